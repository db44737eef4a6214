"""Who is paired with whom, and what is told about it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvassay.harness.contract import (
    CacheManager,
    Capability,
    Declaration,
    PagedAttention,
    PrefixIndex,
)
from kvassay.harness.pairs.pairing import Pairing, own_attention, pairing
from kvassay.harness.registry import Registration


def entry(name: str, kind: type, reference: str = "", **declared: Any) -> Registration:
    return Registration(name, kind, dict[str, Any], Declaration(**declared), reference=reference)


MANAGERS = [entry("m1", CacheManager), entry("m2", CacheManager)]
KERNELS = [entry("k1", PagedAttention), entry("k2", PagedAttention)]
INDEX = entry("i", PrefixIndex)
ATTENDS = entry("own", CacheManager, capabilities=["attend", "causal", "fork"])
UNTOLD = entry("u", CacheManager, capabilities=["storage"])
TOLD = entry("t", CacheManager, capabilities=["storage", "copies"])
WINDOWED = [
    entry("w1", CacheManager, window=4),
    entry("w2", CacheManager, capabilities={"groups"}),
]
ELSEWHERE = entry("far", CacheManager, "exec:python far.py")


def names(found: Pairing) -> list[str]:
    return ["+".join(half.name for half in pair) for pair in found.pairs]


def test_each_with_each_where_both_are_named() -> None:
    found = pairing([*MANAGERS, INDEX, *KERNELS])
    assert names(found) == ["m1+k1", "m1+k2", "m2+k1", "m2+k2"]
    assert not found.note


@pytest.mark.parametrize(
    ("chosen", "pairs", "told"),
    [
        (MANAGERS, ["m1+torch", "m2+torch"], "no kernel named: managers are paired with torch"),
        (KERNELS[:1], ["paged+k1", "radix+k1"], "no manager named: .* with paged and radix"),
        ([ELSEWHERE], [], "no kernel named: .* not paired"),
        ([ELSEWHERE, *MANAGERS[:1]], ["m1+torch"], "no kernel named: .* with torch"),
        ([ELSEWHERE, *KERNELS[:1]], ["far+k1"], "^$"),
        ([INDEX], [], "^$"),
        ([ATTENDS], ["own+attend"], "^$"),
        ([UNTOLD], [], "^not paired, .* told to nobody: u$"),
        ([UNTOLD, *KERNELS[:1]], ["paged+k1", "radix+k1"], "told to nobody: u; .*with paged"),
        ([UNTOLD, TOLD, *KERNELS[:1]], ["t+k1"], "^not paired, .* told to nobody: u$"),
        ([UNTOLD, TOLD], ["t+torch"], "^not paired, .*: u; no kernel named: .* with torch"),
        ([ATTENDS, *KERNELS[:1]], ["own+attend", "own+k1"], "^$"),
        ([ATTENDS, ELSEWHERE], ["own+attend"], "no kernel named: .* not paired"),
        ([ATTENDS, *MANAGERS[:1]], ["own+attend", "m1+torch"], "no kernel named: .* with torch"),
        (
            [*MANAGERS[:1], *WINDOWED],
            ["m1+torch"],
            "not paired, .*: w1 and w2; no kernel .* with torch",
        ),
        (WINDOWED, [], "not paired, having layer groups or a window: w1 and w2$"),
    ],
    ids=[
        *("managers", "kernels", "elsewhere", "some elsewhere", "elsewhere and kernel", "index"),
        *("attends", "untold", "untold and kernel", "untold, told and kernel", "untold and told"),
        *("attends and kernel", "attends and elsewhere", "attends and manager"),
        *("some with windows", "windows"),
    ],
)
def test_a_missing_half_is_supplied_and_told(
    chosen: list[Registration], pairs: list[str], told: str
) -> None:
    found = pairing(chosen)
    assert names(found) == pairs

    assert re.search(told, found.note), found.note
    assert bool(found.supplied) is ("with torch" in told or "with paged" in told)
    assert "own+attend" not in names(Pairing(found.supplied))


def test_its_own_attention_declares_what_is_of_attention() -> None:
    own = own_attention(ATTENDS)
    assert own.kind is PagedAttention
    assert own.declaration == Declaration(capabilities=frozenset({Capability.CAUSAL}))
    assert own.reference == ""


def test_what_has_windows_is_paired_with_no_kernel() -> None:
    found = pairing([*WINDOWED, *MANAGERS[:1], *KERNELS[:1]])
    assert names(found) == ["m1+k1"]
    assert "w1 and w2" in found.note
    found = pairing([*WINDOWED, *KERNELS[:1]])
    assert names(found) == ["paged+k1", "radix+k1"]
    assert "w1 and w2" in found.note
