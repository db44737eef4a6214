"""Numbers of known runs are the known ones: M1 to M7 of the instrument that is used here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvassay.harness.load.known.law import KIND, METRIC_LAW, SUITE
from kvassay.harness.load.known.trial import Outcome
from kvassay.harness.summary import PROPERTY
from kvassay.harness.verdict import Status


@pytest.mark.parametrize("invariant", METRIC_LAW)
def test_the_instrument_keeps(
    invariant: str, outcome: Outcome, record_property: Callable[[str, object], None]
) -> None:
    verdict = outcome.verdict(invariant)
    told = {"verdict": verdict.as_dict(), "kind": KIND, "suite": SUITE}
    record_property(PROPERTY, {**told, "run": outcome.as_run()})
    assert verdict.status is Status.PASS, verdict.reason
