"""What the checks of this suite have met together; to be run last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvassay.harness.contract import PagedAttention

if TYPE_CHECKING:
    from kvassay.harness.attention.assay import KernelAssay

pytestmark = pytest.mark.suite("attention", kind=PagedAttention)


def test_the_checks_reached_what_the_law_speaks_of(assay: KernelAssay) -> None:
    assay.require_reach()


def test_no_deviation_is_stale(assay: KernelAssay) -> None:
    assay.require_no_stale_deviation()
