"""Results within the modelled rounding error of the oracle, over generated cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvassay.harness.contract import PagedAttention

if TYPE_CHECKING:
    from kvassay.harness.attention.assay import KernelAssay

pytestmark = pytest.mark.suite("attention", kind=PagedAttention)


def test_k1_oracle(assay: KernelAssay) -> None:
    assay.require("oracle")


def test_k9_score_pipeline(assay: KernelAssay) -> None:
    assay.require("score-pipeline")


def test_k10_scales(assay: KernelAssay) -> None:
    assay.require("scales")


def test_k11_sizes(assay: KernelAssay) -> None:
    assay.require("sizes")
