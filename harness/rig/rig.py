"""The rig: a scheduler and a device, and what the clients of its jobs saw.

A timeline's stages add up to the time from sending to the first token: `queue` until the step in
which the job entered, `lookup` and `reservation` in the manager (see `managing`), and `prefill` for
all the rest, other jobs' share of the steps included.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvassay.harness.contract import CacheManager, Declaration, TokenEvent
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.rig.choosing import Choose, Chosen, Greedy, Scored
from kvassay.harness.rig.device import Device, Scores, Work
from kvassay.harness.rig.jobs import Ended, Job, Reason
from kvassay.harness.rig.managing import Clock
from kvassay.harness.rig.plan import Chunk, StepPlan, Transfer
from kvassay.harness.rig.scheduler import Limits, Scheduler

QUEUE, PREFILL = "queue", "prefill"
ENDINGS = {
    Reason.DONE: Ending.COMPLETE,
    Reason.ABORTED: Ending.CANCELLED,
    Reason.NO_ROOM: Ending.FAILED,
}


@dataclass
class _Seen:
    """What is noted of a job while it lives."""

    job: Job
    intended: float
    sent: float
    declared_cached: int | None
    entered: float | None = None
    cached: int | None = None
    in_manager: dict[str, float] = field(default_factory=dict)
    """Seconds before the first token by stage."""
    events: list[TokenEvent] = field(default_factory=list)


class Rig:
    """One manager and one device; subclasses replace the scheduler, or what a device is told."""

    scheduling: type[Scheduler] = Scheduler

    def __init__(
        self,
        manager: CacheManager,
        declaration: Declaration,
        device: Device,
        limits: Limits | None = None,
        *,
        choose: Choose | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.scheduler = self.scheduling(manager, declaration, limits, clock)
        self.device = device
        self.choose: Choose = choose or Greedy()
        self.clock = clock
        self.timelines: dict[str, Timeline] = {}
        """Of jobs that are over."""
        self.ended: dict[str, Ended] = {}
        self.rows: dict[tuple[str, tuple[int, ...]], Scores] | None = None
        """Where scores are kept, if they are to be: by job and output so far."""
        self._seen: dict[str, _Seen] = {}

    @property
    def idle(self) -> bool:
        """Whether all jobs are over."""
        return self.scheduler.idle

    def submit(
        self, job: Job, *, intended: float | None = None, declared_cached: int | None = None
    ) -> None:
        """Send a job now; `ValueError` if one of its name lives, or was here before."""
        if job.name in self._seen or job.name in self.ended:
            raise ValueError(f"{job.name!r} is in use; expected a name of its own")
        now = self.clock()
        self.scheduler.add(job)
        started = now if intended is None else intended
        self._seen[job.name] = _Seen(job, started, now, declared_cached)

    def abort(self, name: str) -> None:
        """End a job; `KeyError` if it does not live."""
        self.scheduler.abort(name)

    def step(self) -> StepPlan:
        """Plan, compute, choose."""
        begun = self.clock()
        plan = self.scheduler.step()
        self._enter(plan, begun)
        scores = self.device.run(self.transfers(plan), self.work(plan))
        scored = [(chunk, scores[chunk.name]) for chunk in plan.chunks if chunk.samples]
        self._keep(scored)
        chosen = self.choose(scored)
        self._note_manager(plan)
        fresh = {chunk.name: chunk.job for chunk, _ in scored}
        ended = self.scheduler.complete(plan, chosen)
        self._emit(chosen, fresh, self.told([*plan.ended, *ended]))
        return plan

    def finish(self, patience: int | None = None) -> None:
        """Step until all jobs are over, or so many times."""
        while not self.idle and patience != 0:
            self.step()
            patience = None if patience is None else patience - 1

    # ------------------------------------------------------------------- what the device is told

    def transfers(self, plan: StepPlan) -> Sequence[Transfer]:
        """What is to be moved before the step."""
        return plan.transfers

    def work(self, plan: StepPlan) -> list[Work]:
        """What is to be computed."""
        return [self.work_of(chunk) for chunk in plan.chunks]

    def work_of(self, chunk: Chunk) -> Work:
        """One chunk, with its block table as it is now."""
        return Work(
            chunk.name,
            tuple(chunk.tokens),
            chunk.start,
            range(chunk.start, chunk.stop),
            tuple(self.scheduler.table(chunk)),
            chunk.samples,
        )

    def told(self, ended: Sequence[Ended]) -> Sequence[Ended]:
        """What clients are told at the end of their jobs."""
        return ended

    # ------------------------------------------------------------------------------- what is seen

    def _keep(self, scored: Scored) -> None:
        if self.rows is not None:
            self.rows.update({(chunk.job, chunk.branch.output): s for chunk, s in scored})

    def _enter(self, plan: StepPlan, begun: float) -> None:
        for admission in plan.admitted:
            seen = self._seen.get(admission.branch.job.name)
            if seen is not None and seen.entered is None:
                seen.entered, seen.cached = begun, admission.hit

    def _note_manager(self, plan: StepPlan) -> None:
        """What the manager took for jobs that are about to get their first token."""
        seconds = self.scheduler.managed.seconds
        for chunk in plan.chunks:
            seen = self._seen.get(chunk.job)
            if seen is not None and not seen.events:
                seen.in_manager = dict(seconds.get(chunk.job, {}))

    def _emit(self, chosen: Chosen, fresh: Mapping[str, str], ended: Sequence[Ended]) -> None:
        """Tokens and ends reach the clients."""
        now = self.clock()
        over = {one.job.name: one for one in ended}
        tokens: dict[str, list[int]] = {}
        for name, job in fresh.items():
            if job not in over or over[job].reason is Reason.DONE:
                tokens.setdefault(job, []).extend(chosen[name])
        for job in {**tokens, **over}:
            seen, end = self._seen[job], over.get(job)
            reason = None if end is None else end.reason
            if tokens.get(job) or reason is Reason.DONE:
                event = TokenEvent(job, tuple(tokens.get(job, ())), now, reason, seen.cached)
                seen.events.append(event)
        for name, one in over.items():
            self.ended[name] = one
            self.timelines[name] = self._timeline(self._seen.pop(name), one, now)

    def _timeline(self, seen: _Seen, ended: Ended, now: float) -> Timeline:
        return Timeline(
            request=seen.job.name,
            prompt_tokens=len(seen.job.prompt),
            intended=seen.intended,
            sent=seen.sent,
            events=tuple(seen.events),
            ended=now,
            ending=ENDINGS[ended.reason],
            error=ended.detail,
            declared_cached=seen.declared_cached,
            stages=self._stages(seen),
            preemptions=ended.preemptions,
        )

    def _stages(self, seen: _Seen) -> dict[str, float]:
        first = next((event.time for event in seen.events if event.tokens), None)
        if first is None or seen.entered is None:
            return {}
        rest = first - seen.entered - sum(seen.in_manager.values())
        return {QUEUE: seen.entered - seen.sent, **seen.in_manager, PREFILL: rest}
