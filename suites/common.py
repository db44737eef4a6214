"""Tests that every suite has: import them into its module."""

from kvassay.harness.assay import Assay


def test_nothing_else_is_broken(assay: Assay) -> None:
    assay.require_nothing_else()


def test_the_run_was_healthy(assay: Assay) -> None:
    assay.require_health()


def test_no_deviation_is_stale(assay: Assay) -> None:
    assay.require_no_stale_deviation()
