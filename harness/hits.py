"""What look-ups count and evictions free, against the law and the model."""

from __future__ import annotations

from typing import Any

from kvassay.harness.contract import CacheKey, Publish
from kvassay.harness.evidence import Seen
from kvassay.harness.state import CheckerState
from kvassay.harness.violation import Anomaly
from kvassay.reference.model import Live


class Hits(CheckerState):
    """The part of the checker that judges hits (P1-P6, P12, E1) and amounts (P8, P9)."""

    def _check_hit_number(self, hit: Any, length: int) -> None:
        """P3, as far as the number alone tells."""
        model, declared = self.model, self.declaration
        if not isinstance(hit, int) or isinstance(hit, bool) or hit < 0:
            self._fail("P3", Anomaly.NOT_AN_ANSWER, "a number of tokens", repr(hit))
        if hit and not model.caches:
            self._fail("P3", Anomaly.LAW, "0 without PREFIX_CACHE", f"{hit}")
        most = model.law(length, length)
        if hit > most:
            self._fail("P3", Anomaly.LAW, f"at most {most} of {length} tokens hit", f"{hit}")
        if hit % model.unit:
            self._fail("P3", Anomaly.LAW, f"a multiple of {model.unit} tokens", f"{hit}")
        if declared.drop and hit:
            self.evidence[Seen.DROPPED] += 1

    def _check_hit_content(self, name: str, live: Live, hit: int) -> None:
        """P1, P2, P4, P5: what counts as a hit is what a legal schedule would have written."""
        wrong = self.device.first_wrong(live.table, live.tags, hit)
        if wrong is not None:
            self.diagnosis.wrong_hit(name, live, wrong)
        self._check_published(live, hit)
        shared = live.table[: self.model.blocks_for(hit)]
        self.diagnosis.wrong_victim(self.model.watch.stay(shared))

    def _check_published(self, live: Live, hit: int) -> None:
        """P4, P3: what counts was published, as declared, however right it may be."""
        model, declared = self.model, self.declaration
        tags, reach = model.published(live, hit)
        if reach == hit:
            return
        when = f"publish={declared.publish}"
        if declared.publish is Publish.RELEASE:
            when += f", publish_on={','.join(sorted(declared.publish_on))}"
        expected = f"at most {model.law(len(tags), reach)} of {len(tags)} tokens hit: no more were"
        known = model.held_back(tags, reach)
        invariant, anomaly = ("P4", Anomaly.UNPUBLISHED) if known else ("P3", Anomaly.LAW)
        self._fail(invariant, anomaly, f"{expected} published ({when})", f"{hit}")

    def _check_missed(self, live: Live, hit: int, must: int) -> None:
        """P9, P12: what is missing was evicted, and no more than was asked for."""
        self.diagnosis.over_evicted(live.tags, hit)
        if must:
            self.evidence[Seen.MUST_HIT] += 1
        if hit < must:
            self.diagnosis.missed_hit(live.tags, hit, must)

    def _check_mirror(
        self, key: CacheKey, mirrored: int | None, hit: int, pressed: bool = False
    ) -> None:
        """E1: the mirror of the events answers like the cache.

        An operation short of blocks may give up a part of its hit.
        """
        if mirrored is None or (pressed and hit < mirrored):
            return
        if mirrored:
            self.evidence[Seen.MIRRORED] += 1
        if mirrored != hit:
            expected = f"a hit of {mirrored} of {len(key.tokens)} tokens, as the events say"
            self._fail("E1", Anomaly.MIRROR, expected, f"{hit}")

    def _check_evicted(self, asked: int, freed: Any, surely: int, before: Any) -> None:
        """P9: evict(n) frees what can be freed of n blocks, and reports the true amount."""
        if not isinstance(freed, int) or isinstance(freed, bool) or freed < 0:
            self._fail("P9", Anomaly.NOT_AN_ANSWER, "a number of blocks", repr(freed))
        self.evidence[Seen.EVICT_CALLED] += 1
        if freed < min(asked, surely):
            expected = f"at least {min(asked, surely)} of the {surely} idle cached blocks freed"
            self._fail("P9", Anomaly.EVICT_AMOUNT, expected, f"{freed}")
        most = self.model.most_evicted(asked)
        if freed > most:
            self._fail("P9", Anomaly.EVICT_AMOUNT, f"at most {most} blocks freed", f"{freed}")
        if before is None:
            return
        after = self.manager.counters()
        if freed > before.cached:
            expected = f"at most the {before.cached} blocks freed that counters() says are cached"
            self._fail("P9", Anomaly.EVICT_AMOUNT, expected, f"{freed}")
        if (after.free, after.cached) != (before.free + freed, before.cached - freed):
            self._fail(
                "P9",
                Anomaly.EVICT_AMOUNT,
                f"{freed} reported, so free {before.free + freed}, cached {before.cached - freed}",
                f"free {after.free}, cached {after.cached}",
            )

    def check_cached(self, surely: int) -> None:
        """P8: what is surely cached and idle is counted as such."""
        if not self._counters or not self.model.caches:
            return
        counters = self._call_plain(self.manager.counters)
        if surely:
            self.evidence[Seen.CACHED_COUNTED] += 1
        if counters.cached < surely:
            expected = f"at least {surely} blocks counted as cached"
            self._fail("P8", Anomaly.ACCOUNTING, expected, f"{counters}")
