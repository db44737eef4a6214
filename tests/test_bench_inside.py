"""The device inside vLLM: the stored page is of the stored records, and they say what they must."""

from __future__ import annotations

import pytest

from kvassay.harness.inside.evidence import DEMANDED, OF_WINDOWS
from kvassay.harness.record import Record
from kvassay.suites.benchmarks import inside_page
from kvassay.suites.benchmarks.inside_page import (
    CONVICTED,
    NAME,
    OF_FAULTS,
    OF_SGLANG,
    SUITE,
)
from kvassay.suites.benchmarks.stored import RESULTS, stored

RECORDS = RESULTS / NAME
ENGINES = [*stored(RECORDS, SUITE), *stored(RECORDS, OF_SGLANG)]
FAULTS = stored(RECORDS, OF_FAULTS)


def test_the_stored_page_is_of_the_stored_records() -> None:
    assert inside_page.main(["--check"]) == 0


@pytest.mark.parametrize("record", ENGINES, ids=lambda record: str(record.options["engine"]))
def test_a_stock_engine_was_acquitted_on_evidence(record: Record) -> None:
    assert record.counters["requests"] >= 5000
    assert record.counters[CONVICTED] == 0
    windows = record.options["engine"].startswith(("window", "hybrid"))
    demanded = DEMANDED | OF_WINDOWS if windows else DEMANDED
    assert all(record.counters[str(one)] > 0 for one in demanded)


def test_faults_of_several_kinds_were_convicted_and_their_hosts_were_not() -> None:
    found = [finding for record in FAULTS for finding in record.findings]
    assert len(found) >= 10
    for finding in found:
        assert finding["invariants"], finding["fault"]
        assert set(finding["invariants"]) <= set(finding["accepted"])
        assert finding["stock"] == "not convicted"
    assert len({name for finding in found for name in finding["invariants"]}) >= 5
