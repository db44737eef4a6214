"""What a simulated run comes to: the metrics of `harness.metrics`, from compact times.

Formulas are those of the metric classes (a test compares them on the same requests); made directly
of the arrays, for a run of an hour has millions of tokens. Latencies are of complete requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from struct import pack

import numpy as np
import numpy.typing as npt

from kvassay.harness.metrics.timeline import Ending
from kvassay.harness.virtual.simulate import Served, Simulated

Floats = npt.NDArray[np.float64]
OBJECTIVES = {"ttft": 10.0, "tpot": 0.1}
"""Seconds that are good enough for somebody who waits."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Samples in seconds, counts, and rates per second."""

    ttft: Floats
    tpot: Floats
    """Of requests with at least two tokens."""
    itl: Floats
    queue: Floats
    """Seconds of the time to the first token before the request got in."""
    requests: int
    complete: int
    preemptions: int
    seconds: float
    """From the first arrival to the last end."""
    goodput: float
    """Complete requests per second that keep all objectives."""
    prompt_tokens: int
    hit_tokens: int
    steps: int
    digest: str
    """Of everything that was simulated, to the last bit."""

    @property
    def rate(self) -> float:
        """Complete requests per second."""
        return self.complete / self.seconds if self.seconds else 0.0

    @property
    def hit_rate(self) -> float:
        """Of the prompt tokens of complete requests."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def outcome(run: Simulated, objectives: Mapping[str, float] | None = None) -> Outcome:
    """Of a run with at least one request; objectives are on ``ttft`` and ``tpot``."""
    wanted = OBJECTIVES if objectives is None else objectives
    ends = np.frombuffer(run.ends, dtype=np.float64) if run.ends else np.zeros(0)
    complete = [one for one in run.requests if one.ending is Ending.COMPLETE]
    times = [ends[np.frombuffer(one.steps, dtype=_INDEX)] for one in complete]
    ttft = [float(each[0]) - one.intended for one, each in zip(complete, times, strict=True)]
    tpot = [
        (float(each[-1]) - float(each[0])) / (len(each) - 1) if len(each) > 1 else None
        for each in times
    ]
    good = sum(
        first <= wanted["ttft"] and (rest is None or rest <= wanted["tpot"])
        for first, rest in zip(ttft, tpot, strict=True)
    )
    last = max(one.ended for one in run.requests if one.ended is not None)
    seconds = last - min(one.intended for one in run.requests)
    return Outcome(
        ttft=np.array(ttft),
        tpot=np.array([rest for rest in tpot if rest is not None]),
        itl=np.concatenate([np.diff(each) for each in times]) if times else np.zeros(0),
        queue=np.array([(one.entered or 0.0) - one.intended for one in complete]),
        requests=len(run.requests),
        complete=len(complete),
        preemptions=sum(one.preemptions for one in run.requests),
        seconds=seconds,
        goodput=good / seconds if seconds else 0.0,
        prompt_tokens=sum(one.prompt_tokens for one in complete),
        hit_tokens=sum(one.hit or 0 for one in complete),
        steps=len(run.ends),
        digest=digest(run),
    )


_INDEX = np.dtype("L")


def digest(run: Simulated) -> str:
    """SHA-256 over every step's end, and over what became of every request."""
    found = hashlib.sha256(run.ends.tobytes())
    for one in run.requests:
        found.update(_facts(one).encode())
        found.update(pack("<d", -1.0 if one.ended is None else one.ended))
        found.update(one.steps.tobytes())
    return found.hexdigest()


def _facts(one: Served) -> str:
    return repr((one.name, one.prompt_tokens, one.hit, one.preemptions, one.ending.value))
