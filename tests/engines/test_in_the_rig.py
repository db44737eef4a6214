"""S1 to S3 of the rig around the engines' own cache managers, on the device without a model."""

from __future__ import annotations

import pytest

from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import find
from kvassay.harness.rig.checking import Subject
from kvassay.harness.rig.conformance import CHECKS
from kvassay.harness.rig.device import Device
from kvassay.harness.rig.tagged import TaggedDevice, TaggedReference

ENGINES = (
    "vllm",
    "vllm-deferred",
    "sglang-radix",
    "sglang-radix-commit",
    "sglang-unified-python-commit",
    "sglang-unified-rust",
    "sglang-unified-rust-commit",
    "transformers",
)


def device(num_blocks: int, block_size: int) -> Device:
    return TaggedDevice(block_size)


@pytest.mark.parametrize("name", ENGINES)
def test_it_serves_under_all_circumstances(name: str) -> None:
    (entry,) = (found for found in find(name) if found.kind is CacheManager)
    if not entry.available:
        pytest.skip(entry.wanted)
    checked = [check(Subject(entry, device, TaggedReference())) for check in CHECKS]
    assert not [one for one in checked if one.problem is not None]
    assert not [one for one in checked if one.missing]
    assert {one.circumstance for one in checked if one.unclaimed} <= {"in chunks"}
