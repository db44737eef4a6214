"""Cache events (E1, E2): a mirror built from them answers like the cache.

The campaign of this suite runs once per implementation; every test reads one verdict off it.
"""

import pytest

from kvassay.harness.assay import Assay
from kvassay.suites.common import (  # noqa: F401
    test_no_deviation_is_stale,
    test_nothing_else_is_broken,
    test_the_run_was_healthy,
)

pytestmark = pytest.mark.suite("events")


def test_e1_events_mirror_the_cache(assay: Assay) -> None:
    assay.require("E1")


def test_e2_events_are_complete(assay: Assay) -> None:
    assay.require("E2")
