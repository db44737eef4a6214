"""Probes with exact answers: no tolerance, at any length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvassay.harness.contract import PagedAttention

if TYPE_CHECKING:
    from kvassay.harness.attention.assay import KernelAssay

pytestmark = pytest.mark.suite("attention", kind=PagedAttention)


def test_k1_length_tomography(assay: KernelAssay) -> None:
    assay.require("length-tomography")


def test_k1_needle(assay: KernelAssay) -> None:
    assay.require("needle")


def test_k2_dont_care(assay: KernelAssay) -> None:
    assay.require("dont-care")


def test_k2_wild_tail(assay: KernelAssay) -> None:
    assay.require("wild-tail")


def test_k3_empty_rows(assay: KernelAssay) -> None:
    assay.require("empty-rows")


def test_k4_halves(assay: KernelAssay) -> None:
    assay.require("halves")


def test_k5_causal_tomography(assay: KernelAssay) -> None:
    assay.require("causal-tomography")


def test_k6_window_tomography(assay: KernelAssay) -> None:
    assay.require("window-tomography")


def test_k7_head_map(assay: KernelAssay) -> None:
    assay.require("head-map")


def test_k7_heads_refused(assay: KernelAssay) -> None:
    assay.require("heads-refused")


def test_k8_addressing(assay: KernelAssay) -> None:
    assay.require("addressing")


def test_k12_magnitude(assay: KernelAssay) -> None:
    assay.require("magnitude")


def test_k13_footprint(assay: KernelAssay) -> None:
    assay.require("footprint")


def test_k13_guard_pages(assay: KernelAssay) -> None:
    assay.require("guard-pages")


def test_k14_row_isolation(assay: KernelAssay) -> None:
    assay.require("row-isolation")
