"""Allocation and ownership (A1-A7): every block in one state, handed out once, given back once.

The campaign of this suite runs once per implementation; every test reads one verdict off it.
"""

import pytest

from kvassay.harness.assay import Assay
from kvassay.suites.common import (  # noqa: F401
    test_no_deviation_is_stale,
    test_nothing_else_is_broken,
    test_the_run_was_healthy,
)

pytestmark = pytest.mark.suite("allocator")


def test_a1_conservation(assay: Assay) -> None:
    assay.require("A1")


def test_a2_fresh_hand_out(assay: Assay) -> None:
    assay.require("A2")


def test_a3_release_exactly_once(assay: Assay) -> None:
    assay.require("A3")


def test_a4_refusal_is_harmless(assay: Assay) -> None:
    assay.require("A4")


def test_a5_quiescence(assay: Assay) -> None:
    assay.require("A5")


def test_a6_page_granularity(assay: Assay) -> None:
    assay.require("A6")


def test_a7_table_coherence(assay: Assay) -> None:
    assay.require("A7")
