"""How long a step takes: a roofline over the step's whole work, and what a step costs besides.

    FLOP    = tokens * token_flop + rows sampled * head_flop + (query, key) pairs * pair_flop
    bytes   = weights + (keys read + tokens written) * token_bytes
    seconds = max(FLOP / matmul rate, bytes / bandwidth)
            + per step + per chunk * chunks + per entry * requests that enter

A chunk of q tokens that ends at position L has ``q L - q (q - 1) / 2`` pairs and reads L keys, each
once. All counts are whole numbers, so the same steps take the same time to the last bit, in
whatever order their chunks come.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvassay.harness.roofline import H200 as H200_PEAK
from kvassay.harness.roofline import Ceiling
from kvassay.harness.virtual.model import Model


@dataclass(frozen=True)
class Machine:
    """A device, or several that share a model evenly, and how near it comes to its peaks."""

    name: str
    peak: Ceiling
    memory: int
    """Bytes, of which the weights and the KV cache have `memory_share`."""
    matmul_share: float
    """Of the peak, in matrix products of a step."""
    bandwidth_share: float
    step_seconds: float
    """Of a step, whatever is in it."""
    chunk_seconds: float
    """Of each sequence in a step."""
    entry_seconds: float
    """Of each request that enters: hashing, look-up, reservation, whatever its length."""
    source: str
    """Where peaks and shares are from."""
    memory_share: float = 0.9

    def pool_tokens(self, model: Model) -> int:
        """Tokens whose KV finds room beside the weights; 0 where these alone do not."""
        room = int(self.memory * self.memory_share) - model.weight_bytes
        return max(0, room // model.token_bytes)


_H200_SOURCE = (
    "peaks: NVIDIA H200 (SXM) data sheet, dense bfloat16; shares: 790 TFLOP/s matmul and 4.3 TB/s "
    "copy, measured on one; 2 ms per step, 5 us per sequence and 250 us per request are assumed"
)
_A100_SOURCE = (
    "peaks: NVIDIA A100 80 GB (SXM) data sheet, dense bfloat16; shares and seconds are assumed to "
    "be those of the H200"
)
H200 = Machine(
    "H200", H200_PEAK, 141 * 10**9, 790 / 989, 4.3 / 4.8, 2e-3, 5e-6, 2.5e-4, _H200_SOURCE
)
A100 = Machine(
    "A100 80 GB",
    Ceiling(bandwidth=2.039e12, matmul=312e12),
    80 * 10**9,
    H200.matmul_share,
    H200.bandwidth_share,
    H200.step_seconds,
    H200.chunk_seconds,
    H200.entry_seconds,
    _A100_SOURCE,
)
MACHINES = {"h200": H200, "a100": A100}


class StepWork:
    """What one step has to do, added up chunk by chunk."""

    __slots__ = ("chunks", "entered", "keys", "pairs", "samples", "tokens")

    def __init__(self, entered: int = 0) -> None:
        self.entered = entered
        """Requests that come in."""
        self.chunks = self.keys = self.pairs = self.samples = self.tokens = 0

    def add(self, start: int, stop: int, samples: bool) -> None:
        """The tokens at positions [start, stop) of one sequence."""
        count = stop - start
        self.chunks += 1
        self.tokens += count
        self.keys += stop
        self.pairs += count * stop - count * (count - 1) // 2
        self.samples += samples


class Cost:
    """Seconds by work, for one model on one machine."""

    def __init__(self, model: Model, machine: Machine) -> None:
        self.model, self.machine = model, machine
        self._rate = machine.peak.matmul * machine.matmul_share
        self._bandwidth = machine.peak.bandwidth * machine.bandwidth_share

    def flop(self, work: StepWork) -> int:
        """All matrix products."""
        model = self.model
        return (
            work.tokens * model.token_flop
            + work.samples * model.head_flop
            + work.pairs * model.pair_flop
        )

    def bytes(self, work: StepWork) -> int:
        """Weights and KV, read and written."""
        return self.model.weight_bytes + (work.keys + work.tokens) * self.model.token_bytes

    def seconds(self, work: StepWork) -> float:
        """Of a step with at least one chunk."""
        roof = max(self.flop(work) / self._rate, self.bytes(work) / self._bandwidth)
        machine = self.machine
        return (
            roof
            + machine.step_seconds
            + work.chunks * machine.chunk_seconds
            + work.entered * machine.entry_seconds
        )
