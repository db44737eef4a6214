"""Documented deviations: a file is read or refused with a reason, and covers one anomaly only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvassay.harness.contract import ContractError
from kvassay.harness.deviations import Deviation, deviations_of, read
from kvassay.harness.registry import find
from kvassay.harness.violation import Anomaly, Crash, Violation

ENTRY = """
[[deviation]]
invariant = "P9"
scope = "wrong amount evicted"
reason = "evict() works on whole segments"
link = "https://example.org/issues/1"
"""
KNOWN = Deviation(
    "P9", "wrong amount evicted", "evict() works on whole segments", "https://example.org/issues/1"
)


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.deviations.toml"
    path.write_text(text)
    return path


def test_reads_every_entry(tmp_path: Path) -> None:
    assert read(write(tmp_path, ENTRY * 2)) == [KNOWN, KNOWN]
    assert read(write(tmp_path, "")) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"P9"', '"P99"', "deviation 0: unknown invariant 'P99'"),
        ('"wrong amount evicted"', '"anything"', "deviation 0: unknown scope 'anything'; expected"),
        ('"https://example.org/issues/1"', '"see the wiki"', "expected a public link, got 'see"),
        ('link = "https://example.org/issues/1"', "", "expected the texts invariant, scope"),
        ("reason", 'colour = "red"\nreason', r"expected the texts .* got \[.*'colour'"),
        ('"P9"', "9", "expected the texts invariant"),
        ("[[deviation]]", "[[deviations]]", r"expected only \[\[deviation\]\], got"),
        ("[[deviation]]", "[[deviation", "not TOML"),
    ],
)
def test_a_file_that_says_too_little_or_too_much_is_refused(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert read(write(tmp_path, ENTRY)) == [KNOWN]
    with pytest.raises(ContractError, match=rf"^mine\.deviations\.toml: .*{says}"):
        read(write(tmp_path, ENTRY.replace(old, new)))


def test_a_number_instead_of_entries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError):
        read(write(tmp_path, "deviation = 3"))


def test_lies_beside_the_implementation_under_its_name(tmp_path: Path) -> None:
    write(tmp_path, ENTRY)
    (radix,) = find("radix")
    mine = replace(radix, name="mine", origin=tmp_path / "cache.py")
    assert deviations_of(mine) == [KNOWN]
    assert deviations_of(replace(mine, name="other")) == []
    assert deviations_of(replace(mine, origin=None)) == []


def test_covers_its_invariant_and_anomaly_and_nothing_else() -> None:
    assert KNOWN.covers(Violation("P9", Anomaly.EVICT_AMOUNT, "1", "2"))
    assert not KNOWN.covers(Violation("P8", Anomaly.EVICT_AMOUNT, "1", "2"))
    assert not KNOWN.covers(Violation("P9", Anomaly.NOT_AN_ANSWER, "1", "2"))
    assert not KNOWN.covers(Crash("wrong amount evicted"))
