"""Which request computes which tokens in the next step: continuous batching over a cache manager.

Time and device are somebody else's: `step` says what is to be done, `complete` is told the tokens
that were chosen, and everything in between may be a model, or a formula for how long one takes.

* Jobs are served in the order in which they came; a step computes at most `step_tokens` tokens.
  Nobody overtakes the head of the queue.
* Prompts are computed in chunks where the manager is told what is written (COMMIT), reserves
  piecewise (CHUNKED) or finds nothing again anyway. Elsewhere slots are published before they are
  written, so whatever was reserved is written in the same step, however long.
* A step's last reservation precedes its first write, and nothing is released between a reservation
  and the write that belongs to it.
* Where a decode finds no block, the branch that came last gives up its own (a lockstep job all of
  them) and goes back to the head of the queue, its tokens kept, to be computed again. A chunk that
  finds none waits while others go on.
* A job ends with `Reason.NO_ROOM` once the pool could not hold it were it alone, or did not after
  it had been admitted anew; so a step that computes nothing is one without jobs.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from kvassay.harness.contract import CacheKey, CacheManager, Capability, Declaration, Outcome
from kvassay.harness.rig.jobs import Branch, Ended, Job, Reason
from kvassay.harness.rig.managing import Clock, Managed, Refused
from kvassay.harness.rig.plan import Admission, Chunk, StepPlan

_ORDER = attrgetter("order")


@dataclass(frozen=True)
class Limits:
    """What a step may hold."""

    step_tokens: int = 256
    """Tokens computed; one prompt may exceed it where it cannot be cut."""
    branches: int = 256
    """Branches that have blocks at a time."""

    def __post_init__(self) -> None:
        if self.step_tokens < 1 or self.branches < 1:
            raise ValueError(f"limits: expected numbers of at least 1, got {self}")


@dataclass
class Draft:
    """A step in the making."""

    left: int
    chunks: dict[str, Chunk] = field(default_factory=dict)
    admitted: list[Admission] = field(default_factory=list)
    preempted: list[Branch] = field(default_factory=list)

    def add(self, branch: Branch, stop: int) -> None:
        samples = stop == len(branch.tokens)
        self.chunks[branch.name] = Chunk(branch, branch.computed, stop, samples)
        self.left -= stop - branch.computed


@dataclass
class _Live:
    """A job that has not ended."""

    job: Job
    branches: list[Branch]
    outputs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Of the branches that are done."""
    made: int = 1
    """Branches that there were so far."""
    preemptions: int = 0


def _no_time() -> float:
    return 0.0


class Scheduler:
    """Drives one manager; `step` and `complete` take turns.

    What becomes of one branch is decided in `let_in`, `go_on` and `let_out`, which a subclass may
    extend.
    """

    def __init__(
        self,
        manager: CacheManager,
        declaration: Declaration,
        limits: Limits | None = None,
        clock: Clock = _no_time,
    ) -> None:
        self.managed = Managed(manager, declaration, clock)
        self.limits = limits or Limits()
        finds = declaration.has(Capability.PREFIX_CACHE)
        self._cuts = self.managed.commits or self.managed.chunked or not finds
        self._jobs: dict[str, _Live] = {}
        self._names: set[str] = set()
        """Of branches; the manager may know them."""
        self._waiting: deque[Branch] = deque()
        self._running: list[Branch] = []
        self._leaving: list[tuple[Branch, Outcome]] = []
        """Computed in this step, and to be released behind it."""
        self._ended: list[Ended] = []
        self._draft: Draft | None = None
        self._planned: StepPlan | None = None
        self._arrivals = 0
        self._steps = 0

    # --------------------------------------------------------------------------- from outside

    @property
    def idle(self) -> bool:
        """Whether no job is left, and none ended that has not been told."""
        return not self._jobs and not self._ended

    @property
    def running(self) -> Sequence[Branch]:
        """Branches that have blocks, in the order of arrival."""
        return tuple(self._running)

    @property
    def waiting(self) -> Sequence[Branch]:
        """Branches that have none, the next one first."""
        return tuple(self._waiting)

    def add(self, job: Job) -> None:
        """A new job, behind all others; `ValueError` for a name that is in use."""
        if job.name in self._names or job.name in self._jobs:
            raise ValueError(f"{job.name!r} is in use; expected a name of its own")
        shares = self.managed.declaration.has(Capability.PREFIX_CACHE)
        if job.salt is not None and shares and not self.managed.salted:
            raise ValueError(f"{job.name}: a salt needs a manager with SALT")
        branch = Branch(job, job.name, 0, self._arrivals, list(job.prompt))
        self._arrivals += 1
        self._names.add(job.name)
        self._jobs[job.name] = _Live(job, [branch])
        self._waiting.append(branch)

    def abort(self, name: str) -> None:
        """End a job, computing what the step under way has of it; `KeyError` if it is unknown."""
        if name not in self._jobs:
            raise KeyError(f"no job {name!r}; expected one of {sorted(self._jobs)}")
        self._end(self._jobs[name], Reason.ABORTED, "aborted")

    def table(self, chunk: Chunk) -> Sequence[int]:
        """Block table of a chunk's branch, between `step` and `complete`."""
        return self.managed.table(chunk.name)

    # ------------------------------------------------------------------------------- planning

    def step(self) -> StepPlan:
        """What to do next; without chunks only where there is nothing to do."""
        if self._planned is not None:
            raise RuntimeError(f"step {self._planned.number} is not complete")
        draft = self._draft = Draft(self.limits.step_tokens)
        while self._jobs:
            preempted, jobs = len(draft.preempted), len(self._jobs)
            self._advance(draft)
            if len(draft.preempted) == preempted:
                self._admit(draft)
            if draft.chunks:
                break
            changed = (len(draft.preempted), len(self._jobs)) != (preempted, jobs)
            if not changed and not self._give_up():
                break
        self._draft, self._steps = None, self._steps + 1
        self._planned = StepPlan(
            self._steps,
            tuple(sorted(draft.chunks.values(), key=lambda chunk: chunk.branch.order)),
            self.managed.take_transfers(),
            tuple(draft.admitted),
            tuple(draft.preempted),
            self._take_ended(),
        )
        return self._planned

    def _advance(self, draft: Draft) -> None:
        """Those that have blocks go on."""
        for branch in self.running:
            live = self._jobs.get(branch.job.name)
            if live is None or not branch.running:
                continue  # ended or preempted for the sake of one before it
            count = min(self._goal(branch, live, draft) - branch.computed, draft.left)
            if count > 0:
                self._serve(branch, live, branch.computed + count, draft)

    def _goal(self, branch: Branch, live: _Live, draft: Draft) -> int:
        """Tokens to be computed as soon as there is room for them."""
        known = len(branch.tokens)
        if not branch.job.lockstep or not branch.generated:
            return known
        others = [one for one in live.branches if one.name not in draft.chunks]
        ready = all(one.running and one.computed == known - 1 for one in live.branches)
        return known if ready and len(others) <= draft.left else known - 1

    def _serve(self, branch: Branch, live: _Live, stop: int, draft: Draft) -> None:
        """Put tokens up to `stop` into the step, by preemption if need be."""
        most = self.managed.declaration.max_tokens
        if most is not None and stop > most:
            self._end(live, Reason.NO_ROOM, f"{stop} tokens, and at most {most} are allowed")
            return
        while branch.running:
            try:
                self._grow(branch, stop)
            except Refused as refused:
                victim, alone = self._running[-1], self._alone(live)
                if alone and branch.tried >= stop:
                    self._end(live, Reason.NO_ROOM, f"alone, with {stop} tokens: {refused}")
                elif victim is branch and draft.chunks and branch.slots < branch.admitted:
                    return  # a further piece of its prompt can wait
                else:
                    branch.tried = stop if alone else branch.tried
                    self._preempt(victim, draft)
            else:
                draft.add(branch, stop)
                return

    def _alone(self, live: _Live) -> bool:
        """Whether nobody could make room for a job but itself."""
        if live.job.lockstep:
            return all(one.job is live.job for one in self._running)
        return len(self._running) == 1

    def _grow(self, branch: Branch, stop: int) -> None:
        """Slots up to `stop`; raises `Refused`."""
        prompt = min(stop, branch.admitted)
        if branch.slots < prompt:
            branch.slots = self.managed.reserve(branch.name, prompt - branch.slots)
        if branch.slots < stop:
            self.managed.append(branch.name, branch.tokens[branch.slots : stop])
            branch.slots = stop

    def _preempt(self, victim: Branch, draft: Draft) -> None:
        """Back to the head of the queue; of a lockstep job all, since none can go on alone."""
        live = self._jobs[victim.job.name]
        together = [one for one in self._running if one.job is victim.job]
        for branch in reversed(together) if victim.job.lockstep else [victim]:
            live.preemptions += 1
            branch.preempted += 1
            draft.preempted.append(branch)
            self._let_go(branch, Outcome.PREEMPTED)
            self._requeue(branch)

    def _requeue(self, branch: Branch) -> None:
        """To the head of the queue, which is in the order of arrival like those that run."""
        if self._waiting and self._waiting[0].order < branch.order:
            insort(self._waiting, branch, key=_ORDER)
        else:
            self._waiting.appendleft(branch)

    # ------------------------------------------------------------------------------ admission

    def _admit(self, draft: Draft) -> None:
        """Those that wait, as long as the first of them gets in."""
        while self._waiting and draft.left > 0 and len(self._running) < self._most():
            branch = self._waiting[0]
            why = self._never(branch)
            if why is not None:
                self._end(self._jobs[branch.job.name], Reason.NO_ROOM, why)
            elif not self.let_in(branch, draft):
                return

    def _most(self) -> int:
        declared = self.managed.declaration.max_requests
        return min(self.limits.branches, declared or self.limits.branches)

    def _never(self, branch: Branch) -> str | None:
        """Why a branch would not fit into an empty pool, if so."""
        managed, length = self.managed, len(branch.tokens)
        declared = managed.declaration
        blocks, room = -(-length // managed.block_size), managed.num_blocks - declared.watermark
        if blocks > room:
            return f"{length} tokens need {blocks} blocks, and the pool has {room}"
        if declared.max_tokens is not None and length > declared.max_tokens:
            return f"{length} tokens, and at most {declared.max_tokens} are allowed"
        return None

    def let_in(self, branch: Branch, draft: Draft) -> bool:
        """Let the head of the queue in with its first chunk; False if it has to wait."""
        managed, key = self.managed, branch.key(self.managed.salted)
        length = len(key.tokens)
        if branch.preempted and self._running and not managed.has_room(key):
            return False
        if not self._cuts and draft.chunks and length - managed.resident(key) > draft.left:
            return False
        if any(leaving.name == branch.name for leaving, _ in self._leaving):
            return False  # preempted in this very step
        try:
            hit, slots = self._look_up(branch, key)
        except Refused:
            return False
        branch.admitted, branch.hit = length, hit
        branch.slots, branch.computed = slots, hit
        stop = min(length, hit + draft.left) if self._cuts else length
        try:
            self._grow(branch, stop)
        except Refused:
            managed.release(branch.name, Outcome.PREEMPTED)
            branch.forget()
            return False
        self._waiting.popleft()
        self._run(branch)
        draft.admitted.append(Admission(branch, hit, length, branch.preempted > 0))
        draft.add(branch, stop)
        return True

    def _look_up(self, branch: Branch, key: CacheKey) -> tuple[int, int]:
        """Hit and slots; a pool that needs a reset to be used again gets it when nobody is live."""
        try:
            return self.managed.enter(branch.name, key)
        except Refused:
            if self._running or self._leaving or not self.managed.reclaim():
                raise
        return self.managed.enter(branch.name, key)

    def _give_up(self) -> bool:
        """Nobody can go on, though the step is empty: who is in the way ends, if anybody is."""
        branch = next(iter([*self._waiting, *self._running]), None)
        if branch is None:
            return False
        held = len(self._running)
        told = f"{len(branch.tokens)} tokens, refused while {held} branches hold blocks"
        self._end(self._jobs[branch.job.name], Reason.NO_ROOM, told)
        return True

    # ----------------------------------------------------------------------------- completion

    def complete(self, plan: StepPlan, tokens: Mapping[str, Sequence[int]]) -> tuple[Ended, ...]:
        """The KV of a step is written, and these are the next tokens, by name of the branch.

        One token goes on, several fork, none drops the branch. Answers to chunks that do not sample
        are ignored. Returns the jobs that ended; raises `ValueError` where an answer is missing.
        """
        if plan is not self._planned:
            raise ValueError("complete: expected the plan of the last step")
        leaving = {branch.name for branch, _ in self._leaving}
        sampled = [chunk for chunk in plan.chunks if chunk.samples and chunk.name not in leaving]
        missing = [chunk.name for chunk in sampled if chunk.name not in tokens]
        if missing:
            raise ValueError(f"complete: expected tokens for {missing}")
        self._planned = None
        for chunk in plan.chunks:
            self._computed(chunk)
        for branch, outcome in self._leaving:
            self.let_out(branch, outcome)
        self._leaving.clear()
        done: list[Branch] = []
        for chunk in sampled:
            done += self.go_on(chunk.branch, tokens[chunk.name])
        self._finish(done)
        return self._take_ended()

    def _computed(self, chunk: Chunk) -> None:
        """The KV of a chunk is written."""
        chunk.branch.computed = chunk.stop
        self.managed.commit(chunk.name, chunk.stop)

    def go_on(self, branch: Branch, tokens: Sequence[int]) -> list[Branch]:
        """Each token makes a branch, the first one of the branch itself; those that are done."""
        live = self._jobs[branch.job.name]
        if not tokens:
            live.branches.remove(branch)
            return [branch]
        heirs = [branch, *(self._child(live, branch) for _ in tokens[1:])]
        for heir, token in zip(heirs, tokens, strict=True):
            heir.tokens.append(token)
        over = [heir for heir in heirs if self._is_over(heir)]
        live.outputs.update({heir.index: heir.output for heir in over})
        live.branches = [one for one in live.branches if one not in over]
        self._branch(branch, [heir for heir in heirs[1:] if heir not in over])
        return [branch] if branch in over else []

    def _child(self, live: _Live, parent: Branch) -> Branch:
        index, live.made = live.made, live.made + 1
        name = f"{live.job.name}+{index}"
        while name in self._names or name in self._jobs:
            name += "+"
        child = Branch(live.job, name, index, parent.arrival, list(parent.tokens))
        live.branches.append(child)
        return child

    def _is_over(self, branch: Branch) -> bool:
        job = branch.job
        return branch.generated >= job.max_tokens or branch.tokens[-1] in job.stop

    def _branch(self, parent: Branch, children: Sequence[Branch]) -> None:
        """Children get the parent's blocks, or wait to be admitted on their own."""
        if not children:
            return
        self._names.update(child.name for child in children)
        try:
            if not self.managed.forks:
                raise Refused("no FORK")
            self.managed.fork(parent.name, [child.name for child in children])
        except Refused:
            for child in reversed(children):
                self._requeue(child)
            return
        for child in children:
            child.admitted = child.slots = child.computed = parent.computed
            self._run(child)

    def _run(self, branch: Branch) -> None:
        """A branch has blocks."""
        branch.running = True
        insort(self._running, branch, key=_ORDER)

    # ---------------------------------------------------------------------------------- ending

    def _finish(self, branches: Sequence[Branch]) -> None:
        """Branches that are done or were dropped leave, and jobs with the last of theirs."""
        lives = {branch.job.name: self._jobs[branch.job.name] for branch in branches}
        for branch in branches:
            kept = branch.index in lives[branch.job.name].outputs
            self._let_go(branch, Outcome.FINISHED if kept else Outcome.ABORTED)
        for live in lives.values():
            if not live.branches:
                self._end(live, Reason.DONE, "")

    def _end(self, live: _Live, reason: Reason, detail: str) -> None:
        """A job is over; its branches leave."""
        for branch in live.branches:
            live.outputs[branch.index] = branch.output
            if branch.running:
                self._let_go(branch, reason.outcome)
            else:
                self._waiting.remove(branch)
                self._names.discard(branch.name)
        del self._jobs[live.job.name]
        outputs = tuple(live.outputs[index] for index in sorted(live.outputs))
        self._ended.append(Ended(live.job, reason, detail, outputs, live.preemptions))

    def _let_go(self, branch: Branch, outcome: Outcome) -> None:
        """A branch gives up its blocks: at once, or behind the step that computes it."""
        self._running.remove(branch)
        branch.running = False
        chunk = self._in_step(branch.name)
        if chunk is None:
            self.let_out(branch, outcome)
            return
        self._leaving.append((branch, outcome))
        if self._draft is not None:
            self._draft.chunks[branch.name] = replace(chunk, samples=False)

    def _in_step(self, name: str) -> Chunk | None:
        """The chunk of a branch in the step that is being planned or done."""
        if self._draft is not None:
            return self._draft.chunks.get(name)
        return None if self._planned is None else self._planned.chunk(name)

    def let_out(self, branch: Branch, outcome: Outcome) -> None:
        """A branch's blocks go back; it waits again if it was preempted."""
        self.managed.release(branch.name, outcome)
        if outcome is Outcome.PREEMPTED:
            branch.forget()
        else:
            self._names.discard(branch.name)
            self.managed.seconds.pop(branch.name, None)

    def _take_ended(self) -> tuple[Ended, ...]:
        taken, self._ended = tuple(self._ended), []
        return taken
