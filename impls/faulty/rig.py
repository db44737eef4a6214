"""Planted faults of an engine: the rig with one of its habits corrupted, and unusual correct rigs.

What is on trial are the checks of S1 to S3. Managers and kernels are right here; the fault is in
how they are used. A fault lists the invariants by which it may be convicted, and the first of them
must be among those that do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvassay.harness.contract import CacheKey, Outcome
from kvassay.harness.rig.jobs import Branch, Reason
from kvassay.harness.rig.managing import Refused
from kvassay.harness.rig.plan import Chunk, StepPlan, Transfer
from kvassay.harness.rig.rig import Rig
from kvassay.harness.rig.scheduler import Limits, Scheduler


@dataclass(frozen=True)
class RigFault:
    """One planted fault."""

    name: str
    accepted: tuple[str, ...]
    """Ids of the invariants that may convict it; the first one must."""
    hides: str
    """What keeps it out of sight, and what brings it out."""
    build: type[Rig]


FAULTS: dict[str, RigFault] = {}
CONTROLS: dict[str, type[Rig]] = {}


def fault(name: str, accepted: str, hides: str) -> Callable[[type], type]:
    """Enter a rig, or a rig with this scheduler, into `FAULTS`."""

    def plant(build: type) -> type:
        FAULTS[name] = RigFault(name, tuple(accepted.split()), hides, _rig(name, build))
        return build

    return plant


def control(name: str) -> Callable[[type], type]:
    """Enter a correct rig, or a rig with this scheduler, into `CONTROLS`."""

    def plant(build: type) -> type:
        CONTROLS[name] = _rig(name, build)
        return build

    return plant


def _rig(name: str, build: type) -> type[Rig]:
    if issubclass(build, Rig):
        return build
    return type(name, (Rig,), {"scheduling": build})


# ------------------------------------------------------------------------------------- S1, answers


@fault(
    "positions-start-behind-the-hit",
    "S1",
    "Without a hit positions are right, and distances always are.\n"
    "A hit must be followed by something that reads it.",
)
class PositionsStartBehindTheHit(Rig):
    def work_of(self, chunk: Chunk) -> Any:
        work, hit = super().work_of(chunk), chunk.branch.hit
        return replace(work, positions=range(chunk.start - hit, chunk.stop - hit))


@fault(
    "copies-not-done",
    "S1",
    "Only a block that is shared and partly filled is ever copied.\nA branch must write into one.",
)
class CopiesNotDone(Rig):
    def transfers(self, plan: StepPlan) -> Sequence[Transfer]:
        return [replace(transfer, copies=()) for transfer in plan.transfers]


@fault(
    "table-remembered",
    "S1",
    "A table usually grows at its end and nowhere else.\n"
    "A block in it must be exchanged: copied before a write, or remapped.",
)
class TableRemembered(Rig):
    def work_of(self, chunk: Chunk) -> Any:
        work = super().work_of(chunk)
        known = self.__dict__.setdefault("_tables", {})
        before = known.get(chunk.name, ()) if chunk.start else ()
        known[chunk.name] = (*before, *work.table[len(before) :])
        return replace(work, table=known[chunk.name])


@fault(
    "answers-sorted-by-name",
    "S1",
    "With fewer than ten requests their names sort as they came.\nTen must be in one step.",
)
class AnswersSortedByName(Rig):
    def work(self, plan: StepPlan) -> list[Any]:
        work = [one for one in super().work(plan) if one.samples]
        others = [one for one in super().work(plan) if not one.samples]
        names = sorted(one.name for one in work)
        return [replace(one, name=name) for one, name in zip(work, names, strict=True)] + others


@fault(
    "committed-before-written",
    "S1",
    "Whoever waits for the prompt to be computed finds what was promised.\n"
    "A prompt must be abandoned between its chunks, and asked for again.",
)
class CommittedBeforeWritten(Scheduler):
    def _grow(self, branch: Branch, stop: int) -> None:
        super()._grow(branch, max(stop, branch.admitted))

    def _look_up(self, branch: Branch, key: CacheKey) -> tuple[int, int]:
        self.__dict__.setdefault("_promised", {})[branch.name] = 0
        return super()._look_up(branch, key)

    def _computed(self, chunk: Chunk) -> None:
        branch, promised = chunk.branch, self.__dict__["_promised"]
        branch.computed = chunk.stop
        if chunk.stop > promised.get(chunk.name, 0):
            promised[chunk.name] = max(chunk.stop, branch.slots)
            self.managed.commit(chunk.name, promised[chunk.name])


@fault(
    "resumed-without-kv",
    "S1",
    "Without pressure nobody is preempted.\nA preempted request must go on.",
)
class ResumedWithoutKV(Scheduler):
    def _let_go(self, branch: Branch, outcome: Outcome) -> None:
        if outcome is Outcome.PREEMPTED:
            self.__dict__.setdefault("_kept", {})[branch.name] = branch.computed
        super()._let_go(branch, outcome)

    def _look_up(self, branch: Branch, key: CacheKey) -> tuple[int, int]:
        hit, slots = super()._look_up(branch, key)
        kept = min(self.__dict__.get("_kept", {}).pop(branch.name, 0), len(key.tokens) - 1)
        if slots < kept:
            try:
                slots = self.managed.reserve(branch.name, kept - slots)
            except Refused:
                return hit, slots
        return max(hit, kept), slots


@fault(
    "resumed-one-token-back",
    "S1",
    "The output as a whole is right.\n"
    "A client must get the same token twice, as it was streamed before the preemption.",
)
class ResumedOneTokenBack(Scheduler):
    def _requeue(self, branch: Branch) -> None:
        if branch.preempted and branch.generated > 1:
            branch.tokens.pop()
        super()._requeue(branch)


@fault(
    "lone-token-is-a-decode-step",
    "S1",
    "Longer prompts are right, and so is a short one beside others.\n"
    "A prompt of one token must be all there is to do: it takes the way of a decode step.",
)
class LoneTokenIsADecodeStep(Rig):
    def work(self, plan: StepPlan) -> list[Any]:
        work = super().work(plan)
        if len(work) == 1 and plan.chunks[0].stop == 1:
            return [_shifted(work[0], 1)]
        return work


@fault(
    "lone-full-hit-is-a-decode-step",
    "S1",
    "Where more than one token is left to compute, all is well, and so it is in a batch.\n"
    "The same prompt must come again, when nobody else is served.",
)
class LoneFullHitIsADecodeStep(Rig):
    def work(self, plan: StepPlan) -> list[Any]:
        work = super().work(plan)
        if len(work) != 1:
            return work
        (chunk,) = plan.chunks
        full_hit = chunk.samples and 0 < chunk.branch.hit == chunk.start == chunk.stop - 1
        return [_shifted(work[0], -1)] if full_hit and not chunk.branch.generated else work


@fault(
    "twelve-rows-in-a-mixed-batch",
    "S1",
    "Batches of prefills, and of decode steps, are of any size.\n"
    "More than twelve must be served in a step, some of them with a prompt.",
)
class TwelveRowsInAMixedBatch(Rig):
    def work(self, plan: StepPlan) -> list[Any]:
        work = super().work(plan)
        prompts = [chunk for chunk in plan.chunks if not chunk.branch.generated]
        if len(work) <= 12 or not prompts or len(prompts) == len(work):
            return work
        return [*work[:12], *(_shifted(one, 1) for one in work[12:])]


@fault(
    "fourth-piece-starts-late",
    "S1",
    "Prompts that come in three pieces are right, and so is the last piece of any.\n"
    "A prompt must be cut into more than four, and have the device to itself.",
)
class FourthPieceStartsLate(Rig):
    def work(self, plan: StepPlan) -> list[Any]:
        pieces = self.__dict__.setdefault("_pieces", Counter())
        pieces.update(chunk.name for chunk in plan.chunks)
        work = super().work(plan)
        first_time = len(work) == 1 and not plan.chunks[0].branch.preempted
        if first_time and not work[0].samples and pieces[work[0].name] > 3:
            return [_shifted(work[0], 1)]
        return work


@fault(
    "children-start-one-back",
    "S1",
    "Whoever has no brothers is served well, and so is the first of several.\n"
    "A request must branch.",
)
class ChildrenStartOneBack(Rig):
    def work_of(self, chunk: Chunk) -> Any:
        work = super().work_of(chunk)
        return _shifted(work, -1) if chunk.branch.index else work


def _shifted(work: Any, by: int) -> Any:
    """The same at other positions."""
    return replace(work, positions=range(work.positions.start + by, work.positions.stop + by))


# ------------------------------------------------------------------------------------ S2, progress


@fault(
    "places-lost-by-preemption",
    "S2",
    "There are more places than anybody needs.\n"
    "They must be few, and a request be preempted: it is counted when it leaves and once more.",
)
class PlacesLostByPreemption(Scheduler):
    def _requeue(self, branch: Branch) -> None:
        self.__dict__["_lost"] = self.__dict__.get("_lost", 0) + 2
        super()._requeue(branch)

    def _most(self) -> int:
        return super()._most() - int(self.__dict__.get("_lost", 0))


@fault(
    "victim-forgotten",
    "S2 S3",
    "Everybody else goes on, faster than before.\nOne must be preempted, and be waited for.",
)
class VictimForgotten(Scheduler):
    def _requeue(self, branch: Branch) -> None:
        if not branch.preempted:
            super()._requeue(branch)


@fault(
    "chunks-of-whole-blocks",
    "S2 S3",
    "Long prompts get to their last block.\nA prompt must not be a multiple of the block size.",
)
class ChunksOfWholeBlocks(Scheduler):
    def _goal(self, branch: Branch, live: Any, draft: Any) -> int:
        goal = super()._goal(branch, live, draft)
        left = goal - branch.computed
        whole = goal - left % self.managed.block_size
        return goal if branch.generated else whole

    def let_in(self, branch: Branch, draft: Any) -> bool:
        if len(branch.tokens) % self.managed.block_size and not branch.generated:
            return False
        return super().let_in(branch, draft)


@fault(
    "refuses-what-just-fits",
    "S2 S3",
    "Nobody misses the last block.\nA request must need the whole pool.",
)
class RefusesWhatJustFits(Scheduler):
    def _never(self, branch: Branch) -> str | None:
        managed, length = self.managed, len(branch.job.prompt) + branch.job.max_tokens
        if length >= managed.num_blocks * managed.block_size - managed.block_size + 1:
            return f"{length} tokens may not fit"
        return super()._never(branch)


# ---------------------------------------------------------------------------------- S3, exhaustion


@fault(
    "queue-blocked-by-who-never-fits",
    "S3",
    "Whatever fits is served.\nSomething must come that does not fit.",
)
class QueueBlocked(Scheduler):
    def _never(self, branch: Branch) -> str | None:
        return None

    def _give_up(self) -> bool:
        return False


@fault(
    "abort-leaks",
    "S3",
    "There is room for some leaks.\nThe whole pool must be needed after an abort.",
)
class AbortLeaks(Scheduler):
    def let_out(self, branch: Branch, outcome: Outcome) -> None:
        if outcome is not Outcome.ABORTED:
            super().let_out(branch, outcome)


@fault(
    "failure-is-shared",
    "S3",
    "Alone it fails rightly.\nOthers must be waiting or running.",
)
class FailureIsShared(Scheduler):
    def _end(self, live: Any, reason: Reason, detail: str) -> None:
        super()._end(live, reason, detail)
        for other in list(self._jobs.values()) if reason is Reason.NO_ROOM else ():
            super()._end(other, reason, detail)


# ---------------------------------------------------------------------------------------- controls


@control("one-at-a-time")
class OneAtATime(Scheduler):
    """No batch at all."""

    def _most(self) -> int:
        return 1


@control("oldest-is-preempted")
class OldestIsPreempted(Scheduler):
    """Who came first gives way: slower, and nobody is wronged."""

    def _preempt(self, victim: Branch, draft: Any) -> None:
        super()._preempt(self._running[0], draft)


@control("all-are-preempted")
class AllArePreempted(Scheduler):
    """Everybody gives way, then as many come back as there is room for."""

    def _preempt(self, victim: Branch, draft: Any) -> None:
        for branch in reversed(self.running):
            if branch.running:
                super()._preempt(branch, draft)


@control("never-forks")
class NeverForks(Scheduler):
    """Branches are admitted on their own, whatever the manager offers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.managed.forks = False


@control("commits-late")
class CommitsLate(Scheduler):
    """A prompt is committed as a whole."""

    def _computed(self, chunk: Chunk) -> None:
        chunk.branch.computed = chunk.stop
        if chunk.samples or chunk.stop == len(chunk.branch.tokens):
            self.managed.commit(chunk.name, chunk.stop)


@control("small-steps")
class SmallSteps(Scheduler):
    """Two tokens a step, whatever is allowed."""

    def __init__(self, manager: Any, declaration: Any, limits: Any, clock: Any) -> None:
        super().__init__(manager, declaration, replace(limits or Limits(), step_tokens=2), clock)
