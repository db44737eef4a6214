"""Stale declarations: what is declared and was never seen, and nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from kvassay.harness.contract import Capability, Declaration
from kvassay.harness.evidence import Seen
from kvassay.harness.stale import NOT_DRIVEN, stale_declarations


@pytest.mark.parametrize(
    ("declaration", "seen", "text"),
    [
        (Declaration(dedup="remap"), Seen.REMAPPED, "dedup=remap was never observed"),
        (Declaration(drop=2), Seen.DROPPED, "drop=2 was never observed"),
        (Declaration(order="fifo"), Seen.POLICY_TESTED, "order=fifo was never observed"),
        (Declaration(["copies"]), Seen.COPIED, "COPIES was never observed"),
        (Declaration(["fork"]), Seen.FORK, "FORK was never observed"),
        (Declaration(["evict"]), Seen.EVICT_CALLED, "EVICT was never observed"),
        (Declaration(["reset"]), Seen.RESET, "RESET was never observed"),
    ],
)
def test_is_stale_until_it_is_seen(declaration: Declaration, seen: Seen, text: str) -> None:
    others = Counter(dict.fromkeys(set(Seen) - {seen}, 1))
    assert stale_declarations(declaration, others) == [text]
    assert stale_declarations(declaration, Counter({seen: 1})) == []
    assert stale_declarations(Declaration(), Counter()) == []


@pytest.mark.parametrize("capability", sorted(NOT_DRIVEN))
def test_what_no_operation_uses_is_said(capability: Capability) -> None:
    everything = Counter(dict.fromkeys(Seen, 1))
    (text,) = stale_declarations(Declaration([capability]), everything)
    assert text == f"{capability.value.upper()} is declared but not driven by this version"
