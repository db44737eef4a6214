"""What a cache did for requests: tokens found, as observed and as declared; preemptions."""

from __future__ import annotations

from collections.abc import Iterable

from kvassay.harness.metrics.metric import Need, OfRequest, OfRun, names
from kvassay.harness.metrics.reading import cached_tokens
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.record import Direction


class CachedTokens(OfRequest):
    """Prompt tokens found in the cache.

    `cached tokens`, as the server says

    A server that does not say is not one that found none.
    """

    tag, unit, direction = "cached_tokens", "token", Direction.HIGHER
    needs = (Need.CACHED,)
    elsewhere = names(aiperf="`usage_prompt_cache_read_tokens`")

    def of(self, one: Timeline) -> float | None:
        found = cached_tokens(one)
        return None if found is None else float(found)


class HitRate(OfRun):
    """Share of the prompts' tokens that was found in the cache.

    `sum(cached tokens) / sum(prompt tokens)` over complete requests

    Unknown as soon as one of these does not tell its cached tokens.
    """

    tag, unit, direction = "hit_rate", "1", Direction.HIGHER
    needs = (Need.CACHED,)

    def of(self, run: Run) -> float | None:
        return _share(run, (cached_tokens(one) for one in run.complete))


class DeclaredHitRate(OfRun):
    """Share of the prompts' tokens that the workload means to be found.

    `sum(declared cached tokens) / sum(prompt tokens)` over complete requests
    """

    tag, unit, direction = "hit_rate_declared", "1", Direction.NEITHER
    needs = (Need.DECLARED,)

    def of(self, run: Run) -> float | None:
        return _share(run, (one.declared_cached for one in run.complete))


def _share(run: Run, counts: Iterable[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    prompts = sum(one.prompt_tokens for one in run.complete)
    return sum(known) / prompts if prompts and len(known) == len(run.complete) else None


class Preemptions(OfRun):
    """How often requests were preempted.

    `sum(preemptions)` over all requests

    Unknown as soon as that of one request is; a server seen from outside does not tell.
    """

    tag, unit = "preemptions", "1"
    needs = (Need.PREEMPTIONS,)

    def of(self, run: Run) -> float | None:
        known = [one.preemptions for one in run.timelines if one.preemptions is not None]
        if not known or len(known) < len(run.timelines):
            return None
        return float(sum(known))
