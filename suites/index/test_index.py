"""The prefix tree by itself (P1-P12, A4): what is inserted is found until it is evicted.

The campaign of this suite runs once per implementation; every test reads one verdict off it.
"""

import pytest

from kvassay.harness.assay import Assay
from kvassay.harness.contract import PrefixIndex
from kvassay.harness.index.misuse import answers
from kvassay.suites.common import (  # noqa: F401
    require_misuse_refused,
    test_no_deviation_is_stale,
    test_nothing_else_is_broken,
    test_the_run_was_healthy,
)

pytestmark = pytest.mark.suite("index", kind=PrefixIndex)


def test_a4_refusal_is_harmless(assay: Assay) -> None:
    assay.require("A4")


def test_p1_a_hit_is_resident(assay: Assay) -> None:
    assay.require("P1")


def test_p2_key_identity(assay: Assay) -> None:
    assay.require("P2")


def test_p3_declared_hit_law(assay: Assay) -> None:
    assay.require("P3")


def test_p4_written_before_read(assay: Assay) -> None:
    assay.require("P4")


def test_p5_look_ups_tell_the_truth(assay: Assay) -> None:
    assay.require("P5")


def test_p6_splitting_is_invisible(assay: Assay) -> None:
    assay.require("P6")


def test_p7_locks_protect(assay: Assay) -> None:
    assay.require("P7")


def test_p8_accounting_of_the_cache(assay: Assay) -> None:
    assay.require("P8")


def test_p9_evict_contract(assay: Assay) -> None:
    assay.require("P9")


def test_p10_declared_order(assay: Assay) -> None:
    assay.require("P10")


def test_p11_duplicates(assay: Assay) -> None:
    assay.require("P11")


def test_p12_effectiveness(assay: Assay) -> None:
    assay.require("P12")


def test_misuse_is_refused(assay: Assay) -> None:
    require_misuse_refused(assay, answers)
