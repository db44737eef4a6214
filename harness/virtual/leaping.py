"""The rig's scheduler, with what cannot be seen in virtual time done at once.

Three shortcuts, none of which changes what is scheduled, hit, evicted or preempted, as long as
nobody else's prompt goes on with what a live request generates:

* *Leaps.* While all branches decode and nobody can come in or leave, n steps are one: each branch
  is appended and committed n tokens. A leap ends before the first branch does, and before the pool
  could run out, as the manager's own counters tell.
* *Deferred appends.* A decoded token that needs no block is told to the manager together with the
  next one that does, or when the branch leaves.
* *Attempts.* Who was refused is not tried again before something could let it in.

They need blocks that are taken when a token needs them, so none is made for a manager that looks
ahead. Leaps and fewer attempts need blocks that are counted and may lie anywhere, and refusals
that change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    Outcome,
    Placement,
    Refusal,
    Stamp,
)
from kvassay.harness.rig.jobs import Branch, Ended, Job
from kvassay.harness.rig.managing import RESERVATION, Clock, Managed, Refused
from kvassay.harness.rig.plan import StepPlan
from kvassay.harness.rig.scheduler import Draft, Limits, Scheduler


def _no_time() -> float:
    return 0.0


class _Told:
    """What the manager knows of a branch, and what is kept back."""

    __slots__ = ("commit", "pending", "room")

    def __init__(self) -> None:
        self.room = 0
        """Tokens that its last block can still take, those kept back included."""
        self.pending: list[int] = []
        self.commit = 0
        """Leading tokens that are to be committed; 0 for none."""


class Deferring(Managed):
    """Keeps back what needs no block."""

    def __init__(self, manager: CacheManager, declaration: Declaration, clock: Clock) -> None:
        super().__init__(manager, declaration, clock)
        self._told: dict[str, _Told] = {}
        self._lengths: dict[str, int] = {}

    def enter(self, name: str, key: CacheKey) -> tuple[int, int]:
        """As it is; the first append behind the prompt is never kept back, for it may copy."""
        found = super().enter(name, key)
        self._lengths[name] = len(key.tokens)
        self._told[name] = _Told()
        return found

    def append(self, name: str, tokens: Sequence[int]) -> None:
        """Slots for tokens behind the prompt, at the latest when they need a block."""
        told = self._told[name]
        if len(told.pending) + len(tokens) <= told.room:
            told.pending += tokens
            return
        self._tell(name, told)
        super().append(name, tokens)
        self._lengths[name] += len(tokens)
        told.room = -self._lengths[name] % self.block_size

    def commit(self, name: str, num_tokens: int) -> None:
        """The KV of so many leading tokens is written; told once slots for all of them are."""
        told = self._told[name]
        if told.pending:
            told.commit = num_tokens
        else:
            super().commit(name, num_tokens)

    def fork(self, name: str, children: Sequence[str]) -> None:
        """Children know what the parent does."""
        self._tell(name, self._told[name])
        super().fork(name, children)
        for child in children:
            self._told[child] = _Told()
            self._lengths[child] = self._lengths[name]

    def release(self, name: str, outcome: Outcome) -> None:
        """The branch leaves, with all of its tokens."""
        self._tell(name, self._told.pop(name))
        del self._lengths[name]
        super().release(name, outcome)

    def table(self, name: str) -> Sequence[int]:
        """Block table of a branch at this moment."""
        self._tell(name, self._told[name])
        return super().table(name)

    def _tell(self, name: str, told: _Told) -> None:
        """What was kept back; no block is needed for it."""
        if not told.pending:
            return
        pending, told.pending = told.pending, []
        told.room -= len(pending)
        self._lengths[name] += len(pending)
        self._call(RESERVATION, name, self.manager.append, name, pending)
        if told.commit:
            super().commit(name, told.commit)
            told.commit = 0

    def counters(self) -> Counters:
        """The manager's."""
        counted: Counters = self.manager.counters()
        return counted

    def steps(self, branches: Sequence[Branch], most: int, blocks: int) -> int:
        """For how many steps, up to `most`, all branches can decode with `blocks` more blocks.

        One that has not yet appended anything may need a copy of its last block besides.
        """
        rooms = []
        for branch in branches:
            told = self._told[branch.name]
            fresh = self._lengths[branch.name] == branch.admitted
            blocks -= fresh
            rooms.append(told.room - len(told.pending))
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            need = sum(max(0, -((room - middle) // self.block_size)) for room in rooms)
            low, high = (middle, high) if need <= blocks else (low, middle - 1)
        return low


class LeapingScheduler(Scheduler):
    """The same decisions, in fewer calls; `leaps` False has it go step by step."""

    def __init__(
        self,
        manager: CacheManager,
        declaration: Declaration,
        limits: Limits | None = None,
        *,
        leaps: bool = True,
    ) -> None:
        super().__init__(manager, declaration, limits, _no_time)
        self._deferring: Deferring | None = None
        self._leaps = False
        self._refused_with: int | None = None
        """Tokens that were left in the step in which the head of the queue was refused, as long as
        nothing has happened since that could let it in."""
        if leaps and not declaration.lookahead:
            self.managed = self._deferring = Deferring(manager, declaration, _no_time)
            self._leaps = (
                declaration.has(Capability.COUNTERS)
                and declaration.placement is Placement.ANY
                and declaration.refusal is Refusal.CLEAN
                and Stamp.LOOKUP not in declaration.stamps
            )

    # ------------------------------------------------------------------------- who waits in vain

    def add(self, job: Job) -> None:
        """A new job, behind all others."""
        if not self._waiting:
            self._refused_with = None
        super().add(job)

    def complete(self, plan: StepPlan, tokens: Mapping[str, Sequence[int]]) -> tuple[Ended, ...]:
        """The KV of a step is written."""
        if self._refused_with is not None and not all(chunk.decodes for chunk in plan.chunks):
            self._refused_with = None  # more of a prompt may be found
        return super().complete(plan, tokens)

    def go_on(self, branch: Branch, tokens: Sequence[int]) -> list[Branch]:
        job = branch.job
        over = branch.generated + 1 >= job.max_tokens
        if over or len(tokens) != 1 or tokens[0] in job.stop:
            return super().go_on(branch, tokens)
        branch.tokens.append(tokens[0])  # by far the most frequent
        return []

    def let_in(self, branch: Branch, draft: Draft) -> bool:
        if self._refused_with == draft.left and self._leaps:
            return False
        entered = super().let_in(branch, draft)
        self._refused_with = None if entered else draft.left
        return entered

    def let_out(self, branch: Branch, outcome: Outcome) -> None:
        self._refused_with = None
        super().let_out(branch, outcome)

    # --------------------------------------------------------------------------------------- leaps

    def longest_leap(self) -> int:
        """How many steps of pure decoding can be made at once; 0 if the next is none of these.

        To be asked between steps. Who waits waits on if the first of them was refused before, by
        the same pool and with as many tokens left in the step.
        """
        running = self._running
        if not self._leaps or not running:
            return 0
        if self._waiting and self._refused_with != self.limits.step_tokens - len(running):
            return 0
        least = 0
        for branch in running:
            decodes = branch.computed == len(branch.tokens) - 1 and branch.slots >= branch.admitted
            if not decodes or branch.job.lockstep:
                return 0
            left = branch.job.max_tokens - branch.generated
            least = min(least, left) if least else left
        return self._fitting(least - 1) if least > 1 else 0

    def _fitting(self, steps: int) -> int:
        """As many of `steps` as surely fit the pool."""
        assert self._deferring is not None
        counted = self._deferring.counters()
        return self._deferring.steps(self._running, steps, counted.free + counted.cached)

    def leap(self, steps: int, tokens: Mapping[str, int]) -> None:
        """Each running branch generates its token so many times; at most `longest_leap`."""
        for branch in self._running:
            token = tokens[branch.name]
            told = [*branch.tokens[branch.slots :], *[token] * (steps - 1)]
            try:
                self.managed.append(branch.name, told)
            except Refused as refused:
                raise RuntimeError(
                    f"{branch.name}: {refused}, though the manager's counters show room: "
                    "simulate it without leaps"
                ) from refused
            branch.tokens += [token] * steps
            branch.slots = branch.computed = len(branch.tokens) - 1
            self.managed.commit(branch.name, branch.computed)
        self._steps += steps
