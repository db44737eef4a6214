"""Misuse is refused with an error that says what was wrong, and changes nothing.

Part of the verdict only where VALIDATES_INPUT is claimed; elsewhere it is told, and no more.
"""

import pytest

from kvassay.harness.assay import Assay
from kvassay.harness.misuse import answers
from kvassay.suites.common import require_misuse_refused

pytestmark = pytest.mark.suite("allocator")


def test_misuse_is_refused(assay: Assay) -> None:
    require_misuse_refused(assay, answers)
