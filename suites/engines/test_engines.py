"""Under all circumstances the answer of the dense model; progress; contained failure.

The model has random weights that make its logits react to every token of the context. Tokens and
log-probabilities are judged by the exact model and what rounding makes of it, row by row (see
`harness.engines.dense`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvassay.harness.circumstances import parameters
from kvassay.harness.engines.checks import CHECKS, Check

if TYPE_CHECKING:
    from kvassay.harness.engines.assay import EngineAssay


@pytest.mark.parametrize("check", parameters(CHECKS, "S1"))
def test_s1_same_answer(engine_assay: EngineAssay, check: Check) -> None:
    engine_assay.require(check)


@pytest.mark.parametrize("check", parameters(CHECKS, "S2"))
def test_s2_progress(engine_assay: EngineAssay, check: Check) -> None:
    engine_assay.require(check)


@pytest.mark.parametrize("check", parameters(CHECKS, "S3"))
def test_s3_exhaustion_is_contained(engine_assay: EngineAssay, check: Check) -> None:
    engine_assay.require(check)
