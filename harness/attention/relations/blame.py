"""Which invariant is broken, once a result is not the oracle's or two results differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvassay.harness.attention.compare import Comparison
from kvassay.harness.attention.explain import EXPECTED, where
from kvassay.harness.attention.likeness import likeness
from kvassay.harness.attention.relations.difference import Difference
from kvassay.harness.attention.relations.law import Law
from kvassay.harness.attention.wrong import Anomaly, Wrong


@dataclass(frozen=True)
class Version:
    """One of the results beside the oracle."""

    number: int
    seen: Comparison

    @property
    def right(self) -> bool:
        """Whether it is the oracle's within rounding."""
        return self.seen.right


def of_difference(law: Law, difference: Difference, versions: Sequence[Version]) -> Wrong:
    """The relation's own invariant, unless what was changed has no part in it.

    That is so where a result looks like a known mistake, and where all are wrong by themselves: all
    versions, or all rows where the versions are sequences of one batch.
    """
    wrong = [version for version in versions if not version.right]
    blamed = Wrong(law.invariant, law.anomaly, law.expected, difference.words, difference.story)
    if wrong and _named(blamed, wrong[0].seen):
        return blamed
    if _all_wrong(versions) and not law.direct:
        blamed.invariant, blamed.anomaly = "K1", Anomaly.OUTPUT
    return blamed


def _all_wrong(versions: Sequence[Version]) -> bool:
    if len(versions) > 1:
        return not any(version.right for version in versions)
    seen = versions[0].seen
    return bool(seen.judgement.wrong_rows[~seen.expected.empty].all())


def of_bits(law: Law, difference: Difference) -> Wrong:
    """Results that are equal within rounding only."""
    expected = f"{law.expected}, to the bit"
    broken = law.bits or law.invariant
    return Wrong(broken, Anomaly.BITS, expected, difference.words, difference.story)


def of_version(versions: Sequence[Version]) -> Wrong | None:
    """The first result that is wrong by itself, although the relation holds."""
    version = next((each for each in versions if not each.right), None)
    if version is None:
        return None
    seen, rows = version.seen, version.seen.judgement.wrong_rows
    story = (f"in version {version.number}: {seen.built.case}", *where(seen.built.case, rows))
    blamed = Wrong("K1", Anomaly.OUTPUT, EXPECTED, str(seen.judgement.problem), story)
    if seen.expected.empty[rows.any(dim=1)].all():
        blamed.invariant, blamed.anomaly = "K3", Anomaly.EMPTY
    else:
        _named(blamed, seen)
    return blamed


def _named(blamed: Wrong, seen: Comparison) -> bool:
    """Put the blame on a known mistake, if the result looks like one."""
    twist = likeness(seen)
    if twist is None:
        return False
    blamed.invariant, blamed.anomaly = twist.invariant, twist.anomaly
    blamed.looks = f"it looks as if {twist.words}"
    blamed.got = f"{blamed.got}; {blamed.looks}"
    blamed.story = (*blamed.story, blamed.looks)
    return True
