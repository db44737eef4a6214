"""Copy-on-write (C1, C2): sharers are isolated, copies complete.

The campaign of this suite runs once per implementation; every test reads one verdict off it.
"""

import pytest

from kvassay.harness.assay import Assay
from kvassay.suites.common import (  # noqa: F401
    test_no_deviation_is_stale,
    test_nothing_else_is_broken,
    test_the_run_was_healthy,
)

pytestmark = pytest.mark.suite("cow")


def test_c1_sharers_are_isolated(assay: Assay) -> None:
    assay.require("C1")


def test_c2_copies_are_complete(assay: Assay) -> None:
    assay.require("C2")
