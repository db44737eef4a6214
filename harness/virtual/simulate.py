"""Traffic served in virtual time: arrivals in, what became of each request out.

The scheduler decides as it does over a device; here a step takes what the cost model says, and
brings each sequence that samples one token at its end. A request that arrives during a step is seen
at its end. The cache manager takes no time: what is left of the time to the first token is queueing
and prefill. There is no clock but the sum of the steps' seconds, and no choice that depends on
anything else, so the same traffic gives the same times to the last bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvassay.harness.contract import CacheManager, Declaration, TokenEvent
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.rig.jobs import Ended, Job, Reason
from kvassay.harness.rig.plan import StepPlan
from kvassay.harness.rig.scheduler import Limits
from kvassay.harness.virtual.cost import Cost, StepWork
from kvassay.harness.virtual.leaping import LeapingScheduler


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request of the traffic."""

    name: str
    at: float
    """Seconds."""
    prompt: tuple[int, ...]
    output_tokens: int
    token: int
    """What it generates, again and again: a token that nobody else's prompt goes on with."""
    declared_cached: int | None = None


@dataclass(slots=True)
class Served:
    """One request, as far as it came."""

    name: str
    intended: float
    prompt_tokens: int
    declared_cached: int | None
    token: int
    hit: int | None = None
    """Leading tokens found resident when it first got in; None if it never did."""
    entered: float | None = None
    """Start of the step in which it first got in."""
    steps: array[int] = field(default_factory=lambda: array("L"))
    """Steps whose ends brought a token, one each."""
    ended: float | None = None
    ending: Ending = Ending.CANCELLED
    error: str = ""
    preemptions: int = 0


@dataclass
class Simulated:
    """A run: all requests in the order of arrival, and the end of every step."""

    requests: list[Served] = field(default_factory=list)
    ends: array[float] = field(default_factory=lambda: array("d"))
    """Seconds, by step; steps count from 0."""
    prefill_tokens: int = 0
    """Tokens computed that no step before had chosen."""
    leaps: int = 0
    calls: int = 0
    """Steps that were planned one by one."""

    def times(self, one: Served) -> list[float]:
        """When its tokens came."""
        ends = self.ends
        return [ends[step] for step in one.steps]

    def timelines(self) -> Iterator[Timeline]:
        """One after another: all at once they take hundreds of bytes per token."""
        return map(self.timeline, self.requests)

    def timeline(self, one: Served) -> Timeline:
        """As a client would have seen it."""
        times = self.times(one)
        last, tokens = len(times) - 1, (one.token,)
        complete = one.ending is Ending.COMPLETE
        events = tuple(
            TokenEvent(
                one.name,
                tokens,
                time,
                "length" if complete and number == last else None,
                one.hit if number == 0 else None,
            )
            for number, time in enumerate(times)
        )
        stages: dict[str, float] = {}
        if one.entered is not None and times:
            stages = {"queue": one.entered - one.intended, "prefill": times[0] - one.entered}
        return Timeline(
            request=one.name,
            prompt_tokens=one.prompt_tokens,
            intended=one.intended,
            sent=one.intended,
            events=events,
            ended=one.ended,
            ending=one.ending,
            error=one.error,
            declared_cached=one.declared_cached,
            stages=stages,
            preemptions=one.preemptions,
            output_tokens=len(times),
        )


def simulate(
    manager: CacheManager,
    declaration: Declaration,
    traffic: Iterable[Incoming],
    cost: Cost,
    limits: Limits | None = None,
    *,
    leaps: bool = True,
) -> Simulated:
    """Serve `traffic`, which is in order of time, to its end.

    `leaps` False goes step by step: the same result, later. Whatever the manager raises besides
    ``OOM`` is passed on.
    """
    run = _Run(LeapingScheduler(manager, declaration, limits, leaps=leaps), cost)
    for one in traffic:
        run.until(one.at)
        run.arrive(one)
    run.until(None)
    return run.result


class _Run:
    """The clock, and what has been seen."""

    def __init__(self, scheduler: LeapingScheduler, cost: Cost) -> None:
        self.scheduler, self.cost = scheduler, cost
        self.now = 0.0
        self.result = Simulated()
        self.served: dict[str, Served] = {}
        self.answers: dict[str, tuple[int, ...]] = {}
        self.tokens: dict[str, int] = {}

    def arrive(self, one: Incoming) -> None:
        """A request comes; the clock has reached its time."""
        served = Served(one.name, one.at, len(one.prompt), one.declared_cached, one.token)
        self.result.requests.append(served)
        self.served[one.name] = served
        self.answers[one.name], self.tokens[one.name] = (one.token,), one.token
        self.scheduler.add(Job(one.name, one.prompt, one.output_tokens))

    def until(self, moment: float | None) -> None:
        """Steps until one has ended at that moment or later, or, with None, until all is done."""
        while not self.scheduler.idle and (moment is None or self.now < moment):
            most = self.scheduler.longest_leap()
            if most > 1:
                self._leap(most, moment)
            else:
                self._step()
        if moment is not None and self.now < moment:
            self.now = moment

    def _step(self) -> None:
        scheduler, result = self.scheduler, self.result
        plan = scheduler.step()
        self._note_ends(plan.ended)
        for admission in plan.admitted:
            served = self.served[admission.branch.name]
            if served.entered is None:
                served.entered, served.hit = self.now, admission.hit
        if not plan.chunks:
            return
        self.now += self.cost.seconds(self._work(plan))
        step = len(result.ends)
        result.ends.append(self.now)
        result.calls += 1
        for chunk in plan.chunks:
            if chunk.samples:
                self.served[chunk.name].steps.append(step)
        self._note_ends(scheduler.complete(plan, self.answers))

    def _work(self, plan: StepPlan) -> StepWork:
        work = StepWork(len(plan.admitted))
        for chunk in plan.chunks:
            start, stop = chunk.start, chunk.stop
            work.add(start, stop, chunk.samples)
            if stop - start > 1 or not chunk.decodes:
                self.result.prefill_tokens += stop - start
        return work

    def _leap(self, most: int, moment: float | None) -> None:
        """Steps of pure decoding, at most so many, until one has ended at the moment or later."""
        scheduler, result, cost = self.scheduler, self.result, self.cost
        branches = scheduler.running
        work = StepWork()
        for branch in branches:
            work.add(branch.computed, branch.computed + 1, True)
        first, now, ends = len(result.ends), self.now, result.ends
        count = 0
        while count < most and (moment is None or now < moment):
            now += cost.seconds(work)
            ends.append(now)
            work.keys += work.chunks
            work.pairs += work.chunks
            count += 1
        self.now = now
        scheduler.leap(count, self.tokens)
        steps = range(first, first + count)
        for branch in branches:
            self.served[branch.name].steps.extend(steps)
        result.leaps += 1

    def _note_ends(self, ended: Iterable[Ended]) -> None:
        for one in ended:
            served = self.served.pop(one.job.name)
            del self.answers[one.job.name], self.tokens[one.job.name]
            served.ended = self.now
            served.preemptions = one.preemptions
            done = one.reason is Reason.DONE
            served.ending = Ending.COMPLETE if done else Ending.FAILED
            served.error = one.detail
