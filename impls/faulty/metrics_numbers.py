"""Faults in numbers: timelines are right, and what is made of them is wrong (M1, M3, M7)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from kvassay.harness.load.generator import Generator, Sent
from kvassay.harness.load.known.instrument import Timelines
from kvassay.harness.metrics import cache, latency, rates, stages
from kvassay.harness.metrics.reading import chunks, output_tokens
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import UNSEEN, Ending, Timeline
from kvassay.harness.serving.openai import OpenAIEngine
from kvassay.impls.faulty.metrics_planting import fault, metric

# ------------------------------------------------------------------------------ M1: the first token


class FromSending(latency.TimeToFirstToken):
    def of(self, one: Timeline) -> float | None:
        found = chunks(one)
        return found[0].time - one.sent if found and one.sent is not None else None


metric(
    "first-token-from-sending",
    "M1 M4",
    "Equal as long as the client sends at once.\nThe client must have made a request wait.",
    FromSending(),
)


class FirstChunk(latency.TimeToFirstToken):
    def of(self, one: Timeline) -> float | None:
        return one.events[0].time - one.intended if one.events else None


metric(
    "first-chunk-counts",
    "M1",
    "Completions begin with a token.\nThe first chunk must carry a role only, or usage.",
    FirstChunk(),
)


class RoleIsToken(OpenAIEngine):
    def _tokens(self, choice: Mapping[str, Any]) -> tuple[int, ...]:
        found = super()._tokens(choice)
        return (UNSEEN,) if not found and choice["finish_reason"] is None else found


fault(
    "role-is-a-token",
    "M1 M3",
    "Servers of completions send no such chunk.\nA stream must begin with a role.",
    engine=RoleIsToken,
)


class ZeroForNone(latency.TimeToFirstToken):
    def of(self, one: Timeline) -> float | None:
        return super().of(one) or 0.0


metric(
    "no-token-is-no-time",
    "M1",
    "Requests have tokens.\nA request must end well without one.",
    ZeroForNone(),
)


class ZeroStage(stages.Prefill):
    def of(self, one: Timeline) -> float | None:
        return one.stages.get(self.stage, 0.0)


metric(
    "unseen-stage-is-no-time",
    "M1",
    "A rig tells all stages.\nA server must be measured that tells none.",
    ZeroStage(),
)

# ------------------------------------------------------------------------------------ M3: adding up


class GapsWithFirst(latency.InterToken):
    def of(self, one: Timeline) -> tuple[float, ...] | None:
        found, first = super().of(one), latency.TimeToFirstToken().of(one)
        return found if found is None or first is None else (first, *found)


metric(
    "gaps-contain-the-first-token",
    "M3 M6",
    "The median hardly moves.\nSamples must be added up, or counted.",
    GapsWithFirst(),
)


class ChunksAsTokens(latency.InterToken):
    def of(self, one: Timeline) -> tuple[float, ...] | None:
        return latency.InterChunk().of(one)


metric(
    "gaps-of-chunks-as-of-tokens",
    "M3",
    "Each chunk carries one token on an idle server.\nA chunk must carry several.",
    ChunksAsTokens(),
)


class EveryEvent(latency.InterChunk):
    def of(self, one: Timeline) -> tuple[float, ...] | None:
        return tuple(after.time - before.time for before, after in pairwise(one.events))


metric(
    "gaps-of-all-events",
    "M3 M6",
    "Completions have tokens in all chunks but the last.\nRoles or usage must come in between.",
    EveryEvent(),
)


class SpreadEvenly(latency.InterToken):
    def of(self, one: Timeline) -> tuple[float, ...] | None:
        found = super().of(one)
        return found and (statistics.fmean(found),) * len(found)


metric(
    "gaps-spread-evenly",
    "M3",
    "Sum, mean and number are right.\nGaps of one request must differ.",
    SpreadEvenly(),
)


class AllTokens(latency.TimePerOutputToken):
    def of(self, one: Timeline) -> float | None:
        found, count = super().of(one), output_tokens(one)
        return None if found is None or not count else found * (count - 1) / count


metric(
    "divided-by-all-tokens",
    "M3 M6 M7",
    "Long answers hardly differ.\nAn answer must be short, and the number compared for equality.",
    AllTokens(),
)


class ToTheEndOfStream(latency.EndToEnd):
    def of(self, one: Timeline) -> float | None:
        return one.events[-1].time - one.intended if chunks(one) else None


metric(
    "latency-to-the-last-event",
    "M3 M6",
    "The last token and the reason come together.\nThe reason must come later.",
    ToTheEndOfStream(),
)

# ------------------------------------------------------------------------------------- M7: counters


class ChunksCounted(rates.OutputThroughput):
    def count(self, run: Run) -> float | None:
        return sum(len(chunks(one)) for one in run.complete)


metric(
    "chunks-counted-as-tokens",
    "M7",
    "Each chunk carries one token on an idle server.\nA chunk must carry several.",
    ChunksCounted(),
)


class Insistent(Generator):
    """Sends what failed once more, and keeps both."""

    async def open(self, *load: Any) -> Sent:
        sent = await super().open(*load)
        again = [one for one in sent.timelines if one.ending is Ending.FAILED]
        return replace(sent, timelines=(*sent.timelines, *again))


fault(
    "retries-counted-twice",
    "M7",
    "No request fails.\nOne must, and requests must be counted.",
    generator=Insistent,
)


def with_warm_up(warm: Timelines, measured: Timelines, objectives: Mapping[str, float]) -> Run:
    return Run((*warm, *measured), objectives)


fault(
    "warm-up-measured",
    "M7",
    "A long run hardly shows it.\nThere must be a warm-up, and requests must be counted.",
    run_of=with_warm_up,
)


class FromFirstToken(Run):
    """Begins when the first token comes: nobody waits before that."""

    @property
    def seconds(self) -> float | None:  # type: ignore[override]
        firsts = [chunks(one)[0].time for one in self.timelines if chunks(one)]
        ends = [one.ended for one in self.timelines if one.ended is not None]
        return max(ends) - min(firsts) if firsts else None


def begins_late(warm: Timelines, measured: Timelines, objectives: Mapping[str, float]) -> Run:
    return FromFirstToken(tuple(measured), objectives)


fault(
    "begins-with-the-first-token",
    "M7",
    "A long run hardly shows it.\nThe time must be compared for equality.",
    run_of=begins_late,
)


class NoneIsZero(cache.Preemptions):
    def of(self, run: Run) -> float | None:
        return float(sum(one.preemptions or 0 for one in run.timelines))


metric(
    "unknown-preemptions-are-none",
    "M7",
    "A rig tells them.\nA server must be measured that does not.",
    NoneIsZero(),
)


class OneObjective(rates.Goodput):
    def count(self, run: Run) -> float | None:
        first = {tag: limit for tag, limit in run.objectives.items() if tag == "ttft"}
        return super().count(Run(run.timelines, first))


metric(
    "good-by-the-first-token",
    "M7",
    "Requests that begin late go on late.\nOne must begin in time and be slow.",
    OneObjective(),
)


class UnknownIsOne(rates.OutputThroughput):
    def count(self, run: Run) -> float | None:
        counts = [output_tokens(one) for one in run.complete]
        return sum(1 if count is None else count for count in counts)


metric(
    "unknown-count-is-one",
    "M7",
    "Servers tell how many tokens there were.\nOne must not.",
    UnknownIsOne(),
)
