"""Faults in what measures: clocks, arrivals, prompts, endings (M2, M4, M5, M6)."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvassay.harness.contract import TokenEvent
from kvassay.harness.load.arriving import drawn
from kvassay.harness.load.generator import Generator
from kvassay.harness.load.known.instrument import Timelines
from kvassay.harness.load.salting import salted
from kvassay.harness.load.watching import Wanted, Watcher
from kvassay.harness.metrics import cache, rates
from kvassay.harness.metrics.metric import Measured
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Ending, Timeline
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.harness.serving.transport import CutOff, Reply, ServingError
from kvassay.harness.workloads.plan import Planned
from kvassay.impls.faulty.metrics_planting import fault, metric

# ------------------------------------------------------------------------------------ M2: the clock

SET_BACK_AT, SET_BACK_BY = 0.6, 0.25


class WallClock(OpenAIEngine):
    """Stamps chunks by a clock that is set right during the run."""

    def _now(self) -> float:
        now = super()._now()
        return now if now < SET_BACK_AT else now - SET_BACK_BY


fault(
    "wall-clock",
    "M1 M2 M7",
    "Nobody sets the clock during most runs.\nIt must be set back between two stamps.",
    engine=WallClock,
)


class WallClockEnds(Watcher):
    """Chunks by one clock, the end by another that was set back."""

    def timeline(self, *parts: Any) -> Timeline:
        made = super().timeline(*parts)
        return replace(made, ended=(made.ended or 0.0) - SET_BACK_BY)


fault(
    "two-clocks",
    "M2",
    "Latencies to tokens are right.\nEnds must be compared with what came before.",
    watcher=WallClockEnds,
)


class StampedAtTheEnd(Watcher):
    """Keeps the chunks and stamps them when the stream is over."""

    def timeline(self, *parts: Any) -> Timeline:
        made = super().timeline(*parts)
        return replace(made, events=tuple(replace(e, time=self.clock()) for e in made.events))


fault(
    "stamped-at-the-end",
    "M2",
    "The order is right, and so is the last stamp.\nThe first of several chunks must be looked at.",
    watcher=StampedAtTheEnd,
)


class CoarseClock(OpenAIEngine):
    """Ticks four times a second."""

    def _now(self) -> float:
        return super()._now() // 0.25 * 0.25


fault(
    "coarse-clock",
    "M1 M2",
    "Means over many requests are nearly right.\nTwo chunks must come within one tick.",
    engine=CoarseClock,
)

# ------------------------------------------------------------------------------- M4: waits left out


class AnswerFirst(Generator):
    """Calls itself an open loop, and waits for the answer before it sends the next."""

    async def _send_all(self, load: list[Wanted], tasks: dict[str, Any]) -> None:
        for one in load:
            now = self.watcher.clock()
            await super()._send_all([replace(one, intended=max(one.intended, now))], tasks)
            await asyncio.wait(tasks.values())


fault(
    "waits-for-answers",
    "M4",
    "A server that keeps up answers before the next is due.\nIt must answer nothing for a while.",
    generator=AnswerFirst,
)


class FromWhenItCould(Watcher):
    """A request counts from the moment at which the client came to send it."""

    async def watch(self, wanted: Wanted) -> Timeline:
        return await super().watch(replace(wanted, intended=self.clock()))


fault(
    "meant-when-sent",
    "M4",
    "Equal as long as the client sends at once.\nThe client must have made a request wait.",
    watcher=FromWhenItCould,
)


class FewAtOnce(Generator):
    """Has only so many connections, and says of nothing that it waited."""

    def __init__(self, watcher: Watcher, **parts: Any) -> None:
        super().__init__(watcher, **{**parts, "at_once": min(parts.get("at_once") or 4, 4)})

    async def _send(self, one: Wanted) -> Timeline:
        made = await super()._send(one)
        return made if made.sent is None else replace(made, intended=made.sent)


fault(
    "few-connections",
    "M4",
    "A server that keeps up never has so many requests.\nMore must be live at a time.",
    generator=FewAtOnce,
)


def rescaled(rate: float, cv: float, count: int, seed: int) -> list[float]:
    times = drawn(rate, cv, count, seed)
    return [time * (count / rate) / times[-1] for time in times]


fault(
    "gaps-rescaled",
    "M4",
    "Each gap is distributed as it should be, and the mean is better than it should be.\n"
    "It must be noticed that it is too good.",
    arrivals=rescaled,
)


def evenly(rate: float, cv: float, count: int, seed: int) -> list[float]:
    return [(number + 1) / rate for number in range(count)]


fault(
    "bursts-left-out",
    "M4",
    "The rate is right.\nThe distribution of gaps must be looked at.",
    arrivals=evenly,
)


def slower(rate: float, cv: float, count: int, seed: int) -> list[float]:
    return drawn(rate / 2, cv, count, seed)


fault(
    "half-the-load",
    "M4",
    "The shape of the process is right.\nThe rate must be compared with what was asked for.",
    arrivals=slower,
)

# -------------------------------------------------------------------------------- M5: cached tokens


def unsalted(requests: Sequence[Planned], salt: int) -> Sequence[Planned]:
    return requests


fault(
    "warm-from-an-earlier-run",
    "M5",
    "The first run is right.\nA second must meet the same server.",
    salting=unsalted,
)


def each_salted(requests: Sequence[Planned], salt: int) -> Sequence[Planned]:
    return [salted([one], salt + number)[0] for number, one in enumerate(requests)]


fault(
    "a-salt-for-each-request",
    "M5",
    "No run helps the next.\nHits within a run must be looked at.",
    salting=each_salted,
)


class NothingFound(OpenAIEngine):
    def _cached(self, usage: Mapping[str, Any]) -> int | None:
        return super()._cached(usage) or 0


fault(
    "untold-is-nothing-found",
    "M5",
    "Servers tell cached tokens, if asked.\nA server must not tell.",
    engine=NothingFound,
)


class AsDeclared(cache.HitRate):
    def of(self, run: Run) -> float | None:
        return cache.DeclaredHitRate().of(run)


metric(
    "hits-as-declared",
    "M5",
    "The cache does what the workload means it to do.\nIt must have forgotten.",
    AsDeclared(),
)


class SkipsFirst(cache.CachedTokens):
    def measure(self, run: Run) -> Measured:
        found = [s for s in super().measure(run).samples if s]
        return self._measured(statistics.median(found) if found else None, found)


metric(
    "misses-left-out",
    "M5",
    "A cache that always hits is told right.\nSome request must find nothing.",
    SkipsFirst(),
)

# ------------------------------------------------------------------------------------- M6: failures


@dataclass(frozen=True)
class AllComplete(Run):
    """Takes every request for a complete one."""

    @property
    def complete(self) -> tuple[Timeline, ...]:  # type: ignore[override]
        return self.timelines


def with_failures(warm: Timelines, measured: Timelines, objectives: Mapping[str, float]) -> Run:
    return AllComplete(tuple(measured), objectives)


fault(
    "failures-have-latencies",
    "M6 M7",
    "No request fails.\nOne must fail after its first token.",
    run_of=with_failures,
)


def without_failures(warm: Timelines, measured: Timelines, objectives: Mapping[str, float]) -> Run:
    good = [one for one in measured if one.ending is Ending.COMPLETE]
    return Run(tuple(good), objectives)


fault(
    "failures-dropped",
    "M6",
    "Latencies are right.\nRequests must be counted, those that failed too.",
    run_of=without_failures,
)


class NeverCutOff(OpenAIEngine):
    def _require_finished(self, finished: bool) -> None:
        """Whatever ends is finished."""


class EndsAreEnds(Watcher):
    def ending_of(self, events: list[TokenEvent]) -> Ending:
        return Ending.COMPLETE if events else super().ending_of(events)


fault(
    "truncated-is-complete",
    "M6",
    "Streams end with a reason.\nOne must end without, and cleanly.",
    engine=NeverCutOff,
    watcher=EndsAreEnds,
)


class DeafToErrors(OpenAIEngine):
    """Takes an error in the stream for a chunk without a token."""

    async def _payloads(self, reply: Reply) -> Any:
        try:
            async for now, payload in super()._payloads(reply):
                yield now, payload
        except CutOff:
            raise
        except ServingError:
            yield self._now(), {"choices": [{"text": "", "finish_reason": "stop"}]}


fault(
    "error-is-an-ending",
    "M6",
    "Streams have no errors in them.\nOne must fail in the middle, its head long sent.",
    engine=DeafToErrors,
)


class AbortIsAReason(OpenAIEngine):
    def _event(self, name: str, now: float, payload: Mapping[str, Any]) -> Any:
        try:
            return super()._event(name, now, payload)
        except ServingError:
            return super()._event(name, now, {"choices": [{"text": "", "finish_reason": "stop"}]})


fault(
    "abort-is-complete",
    "M6",
    "Nobody aborts.\nThe server must give a request up, and say so politely.",
    engine=AbortIsAReason,
)


class Optimist(rates.Failed):
    def of(self, run: Run) -> float | None:
        return super().of(run) and float(
            sum(one.ending is Ending.FAILED and not one.events for one in run.timelines)
        )


metric(
    "failed-before-the-first-chunk-only",
    "M6 M7",
    "Servers refuse at once.\nA request must fail after its first chunk.",
    Optimist(),
)
