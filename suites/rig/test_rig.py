"""Under all circumstances the answer of the dense model; progress; contained failure.

The model has random weights that make its logits react to every token of the context. Logits are
judged by the rounding that the model itself makes, row by row (see `harness.rig.dense`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvassay.harness.circumstances import parameters
from kvassay.harness.rig.conformance import CHECKS, Check

if TYPE_CHECKING:
    from kvassay.harness.rig.assay import RigAssay


@pytest.mark.parametrize("check", parameters(CHECKS, "S1"))
def test_s1_same_answer(rig_assay: RigAssay, check: Check) -> None:
    rig_assay.require(check)


@pytest.mark.parametrize("check", parameters(CHECKS, "S2"))
def test_s2_progress(rig_assay: RigAssay, check: Check) -> None:
    rig_assay.require(check)


@pytest.mark.parametrize("check", parameters(CHECKS, "S3"))
def test_s3_exhaustion_is_contained(rig_assay: RigAssay, check: Check) -> None:
    rig_assay.require(check)
