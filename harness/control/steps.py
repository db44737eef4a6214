"""Scheduler steps, stage by stage, contenders side by side.

A round admits a batch of requests of which a part of the prompt is shared and resident, publishes
their prompts, decodes a few tokens for all of them, and releases them. Small batches are repeated,
one after the other, until as many requests have passed as `LEAST_REQUESTS`: a sample is the time of
a stage, per batch. Tokens of the unshared part are new in every round, so that nothing else can be
hit. What a contender answers is checked: as many leading tokens as were shared, in its own unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kvassay.harness.control.pairing import Watch, turns, undisturbed
from kvassay.harness.control.stages import STAGES, Contender, Prompt, Stages

VOCABULARY = 32_000
LEAST_REQUESTS = 64
"""Requests in a sample."""
DECODES = 16
"""Decode steps per round, a whole block of 16; the sample is the mean of one."""


@dataclass(frozen=True)
class Step:
    """A scheduler step."""

    requests: int
    prompt: int = 1152
    shared: int = 1024
    block_size: int = 16
    full: bool = False
    """Whether the pool is full of prefixes that nobody asks for again: reserving evicts."""

    def __post_init__(self) -> None:
        if not (self.requests >= 1 and self.block_size >= 1 and 0 <= self.shared < self.prompt):
            raise ValueError(
                "expected requests and block_size >= 1 and 0 <= shared < prompt, got "
                f"{self.requests}, {self.block_size}, {self.shared}, {self.prompt}"
            )

    @property
    def repeats(self) -> int:
        """Batches in a sample."""
        return -(-LEAST_REQUESTS // self.requests)

    @property
    def own_blocks(self) -> int:
        """Blocks that one request takes beside the shared ones."""
        whole = -(-(self.prompt + DECODES) // self.block_size)
        return whole - self.shared // self.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool: room for a batch beside what the last one left, or just for one."""
        shared = -(-self.prompt // self.block_size)
        # One block more per request, which some allocators want to see free.
        batch = self.requests * (self.own_blocks + 1)
        return shared + batch * (1 if self.full else 3)


@dataclass
class Timed:
    """Samples of one contender: seconds per batch, by stage."""

    name: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: {s: [] for s in STAGES})

    def total(self, stages: Sequence[str]) -> list[float]:
        """Round by round, the time of several stages together."""
        return [sum(parts) for parts in zip(*(self.seconds[s] for s in stages), strict=True)]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a measurement, with the rounds that were finished."""

    def __init__(self, timed: dict[str, Timed]) -> None:
        super().__init__()
        self.timed = timed


class WrongHits(AssertionError):
    """A contender found something else than was shared; its times mean nothing."""


def tokens(rng: Random, count: int) -> list[int]:
    """Random token ids."""
    return rng.choices(range(VOCABULARY), k=count)


def measure(
    step: Step,
    contenders: Sequence[Contender],
    rounds: int,
    *,
    seed: int = 0,
    watch: Callable[[], None] = lambda: None,
) -> dict[str, Timed]:
    """Rounds of a step, after one that is thrown away; `watch` is called after each.

    Raises `WrongHits` if a contender does not find what is shared, and `Interrupted`.
    """
    rng = Random(seed)
    running = {contender.name: _begun(step, contender, seed) for contender in contenders}
    shared = tokens(rng, step.shared)
    timed = {contender.name: Timed(contender.name) for contender in contenders}
    try:
        with undisturbed():
            for number in range(rounds + 1):
                _round(step, running, timed if number else None, number, rng, shared)
                watch()
    except KeyboardInterrupt:
        finished = min(len(each.seconds["release"]) for each in timed.values())
        for each in timed.values():
            for samples in each.seconds.values():
                del samples[finished:]
        raise Interrupted(timed if finished else {}) from None
    return timed


class Alone:
    """One contender in a process of its own, for samples to be set beside those of another one.

    The same seed and numbers give the same tokens.
    """

    def __init__(self, step: Step, contender: Contender, seed: int = 0) -> None:
        self._step, self._name, self._rng = step, contender.name, Random(seed)
        self._stages = _begun(step, contender, seed)
        self._shared = tokens(self._rng, step.shared)

    def sample(self, number: int) -> dict[str, float]:
        """Seconds per batch, by stage; raises `WrongHits`."""
        batches = _batches(self._step, self._rng, number)
        return _samples(self._stages, batches, self._name, self._step, self._shared)


def _begun(step: Step, contender: Contender, seed: int) -> Stages:
    """A contender over a pool in which the shared part is resident."""
    stages = contender.build(step.num_blocks, step.block_size, step.requests)
    _fill(stages, step, Random(seed + 1))
    first = tokens(Random(seed), step.shared) + tokens(Random(seed), step.prompt - step.shared)
    play(stages, [("first", first)])
    return stages


def _batches(step: Step, rng: Random, number: int) -> list[list[Prompt]]:
    return [
        [_own(step, rng, f"{number}-{batch}-{i}") for i in range(step.requests)]
        for batch in range(step.repeats)
    ]


def _samples(
    stages: Stages, batches: Sequence[list[Prompt]], name: str, step: Step, shared: list[int]
) -> dict[str, float]:
    """The mean over the batches, by stage."""
    samples = [
        _sample(stages, [(who, shared + own) for who, own in batch], name, step)
        for batch in batches
    ]
    return {stage: sum(sample[stage] for sample in samples) / len(samples) for stage in STAGES}


def _round(
    step: Step,
    running: dict[str, Stages],
    timed: dict[str, Timed] | None,
    number: int,
    rng: Random,
    shared: list[int],
) -> None:
    batches = _batches(step, rng, number)
    for name in turns(list(running), number):
        samples = _samples(running[name], batches, name, step, shared)
        if timed is not None:
            for stage, seconds in samples.items():
                timed[name].seconds[stage].append(seconds)


def _own(step: Step, rng: Random, name: str) -> Prompt:
    """The unshared part of a prompt: its first token is nobody else's."""
    own = tokens(rng, step.prompt - step.shared)
    own[0] = VOCABULARY + rng.getrandbits(30)
    return name, own


def _sample(stages: Stages, prompts: Sequence[Prompt], name: str, step: Step) -> dict[str, float]:
    watch = Watch()
    handles = stages.prepare(prompts)
    seconds = {"prepare": watch.lap()}
    hits = stages.look_up(handles)
    seconds["look_up"] = watch.lap()
    stages.reserve(handles)
    seconds["reserve"] = watch.lap()
    stages.publish(handles)
    seconds["publish"] = watch.lap()
    for token in range(DECODES):
        stages.append(handles, token)
    seconds["append"] = watch.lap() / DECODES
    stages.release(handles)
    seconds["release"] = watch.lap()
    _check(stages, handles, hits, name, step)
    return seconds


def _check(stages: Stages, handles: Sequence[Any], hits: list[int], name: str, step: Step) -> None:
    least = step.shared // step.block_size * step.block_size
    if not all(least <= hit <= step.shared for hit in hits):
        raise WrongHits(f"{name}: expected hits of {least} to {step.shared} tokens, got {hits[:5]}")


def _fill(stages: Stages, step: Step, rng: Random) -> None:
    """A pool full of prefixes of a few blocks that are not asked for again."""
    if not step.full:
        return
    length = 8 * step.block_size
    for number in range(step.num_blocks // 8):
        play(stages, [(f"old-{number}", tokens(rng, length))])


def play(stages: Stages, prompts: Sequence[Prompt]) -> None:
    """The whole life of a batch, without decode steps."""
    handles = stages.prepare(prompts)
    stages.look_up(handles)
    stages.reserve(handles)
    stages.publish(handles)
    stages.release(handles)
