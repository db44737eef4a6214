"""A device without a model: a slot holds the name of the KV that was written there.

The next token is a function of what is *read* through the block table, so that KV which is not that
of the branch's own tokens shows in its output. Equal to what a dense model would say: `answer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvassay.harness.rig.jobs import Branch, Ended, Job
from kvassay.harness.rig.plan import Chunk, StepPlan
from kvassay.harness.rig.scheduler import Scheduler

VOCABULARY = 97
PATIENCE = 2000
Choose = Callable[[Chunk, int], Sequence[int]]


def tag(tokens: Sequence[int]) -> int:
    """KV of the last token."""
    return hash(tuple(tokens))


def token_of(tags: Sequence[int]) -> int:
    """What follows."""
    return hash(tuple(tags)) % VOCABULARY


def answer(
    prompt: Sequence[int], count: int, stop: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """The output without any cache."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(token_of([tag(tokens[: end + 1]) for end in range(len(tokens))]))
        if tokens[-1] in stop:
            break
    return tuple(tokens[len(prompt) :])


class TagDevice:
    """Slots by block and offset."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[tuple[int, int], int] = {}

    def run(self, scheduler: Scheduler, plan: StepPlan) -> dict[str, int]:
        """Do a step; the next token of every chunk that samples."""
        for transfer in plan.transfers:
            self._clear(transfer.zeroes)
            self._copy(transfer.copies)
        for chunk in plan.chunks:
            table, tokens = scheduler.table(chunk), chunk.branch.tokens
            for end in range(chunk.start, chunk.stop):
                self.slots[self._slot(table, end)] = tag(tokens[: end + 1])
        return {
            chunk.name: token_of(self._read(scheduler.table(chunk), chunk.stop))
            for chunk in plan.chunks
            if chunk.samples
        }

    def _slot(self, table: Sequence[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size

    def _read(self, table: Sequence[int], length: int) -> list[int]:
        return [self.slots.get(self._slot(table, position), 0) for position in range(length)]

    def _clear(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            for offset in range(self.block_size):
                self.slots.pop((block, offset), None)

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        size = range(self.block_size)
        read = {(to, at): self.slots.get((of, at), 0) for of, to in copies for at in size}
        self.slots.update(read)


class Played:
    """A scheduler and its device, step by step."""

    def __init__(self, scheduler: Scheduler, choose: Choose | None = None) -> None:
        self.scheduler = scheduler
        self.device = TagDevice(scheduler.managed.block_size)
        self.plans: list[StepPlan] = []
        self.ended: dict[str, Ended] = {}
        self._choose = choose or (lambda chunk, token: [token])

    def step(self, between: Callable[[], None] | None = None) -> StepPlan:
        """Plan, do, and complete one step."""
        plan = self.scheduler.step()
        tokens = self.device.run(self.scheduler, plan)
        if between is not None:
            between()
        told = [*plan.ended, *self.scheduler.complete(plan, self._chosen(plan, tokens))]
        for ended in told:
            assert ended.job.name not in self.ended
            self.ended[ended.job.name] = ended
        self.plans.append(plan)
        return plan

    def _chosen(self, plan: StepPlan, tokens: Mapping[str, int]) -> dict[str, Sequence[int]]:
        return {
            chunk.name: self._choose(chunk, tokens[chunk.name])
            for chunk in plan.chunks
            if chunk.samples
        }

    def finish(self) -> dict[str, Ended]:
        """Until nothing is left to do."""
        for _ in range(PATIENCE):
            if self.scheduler.idle:
                return self.ended
            plan = self.step()
            assert plan.chunks or self.scheduler.idle, "a step without progress"
        raise AssertionError(f"still {len(self.scheduler.running)} running after {PATIENCE} steps")


def job(name: str, length: int, max_tokens: int = 4, *, first: int = 0, **more: object) -> Job:
    """A prompt of `length` tokens; those with the same `first` share a prefix."""
    prompt = tuple((first * 31 + position * 7) % VOCABULARY for position in range(length))
    return Job(name, prompt, max_tokens, **more)  # type: ignore[arg-type]


def outputs(ended: Mapping[str, Ended]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """By job."""
    return {name: one.outputs for name, one in ended.items()}


def names(branches: Sequence[Branch]) -> list[str]:
    """Of branches."""
    return [branch.name for branch in branches]
