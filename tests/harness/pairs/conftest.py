"""What the tests of pairs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvassay.harness.contract import (
    CacheManager,
    Capability,
    Declaration,
    PagedAttention,
    Tail,
)
from kvassay.harness.pairs.session import Pair
from kvassay.harness.registry import Registration, find

Made = Callable[..., Pair]
ORACLE = Declaration(capabilities=frozenset({Capability.CAUSAL, Capability.LSE}), tail=Tail.ANY)
"""What kernels made from the oracle declare here."""


@pytest.fixture
def make() -> Made:
    """Pairs of names, registrations, or factories with a declaration."""

    def made(
        manager: Any,
        kernel: Any = "torch",
        *,
        managing: Declaration | None = None,
        attending: Declaration = ORACLE,
    ) -> Pair:
        return Pair(
            _registration(manager, CacheManager, managing),
            _registration(kernel, PagedAttention, attending),
        )

    return made


def _registration(given: Any, kind: type, declaration: Declaration | None) -> Registration:
    if isinstance(given, Registration):
        return given
    if isinstance(given, str):
        (found,) = [entry for entry in find(given) if entry.kind is kind]
        return found
    assert declaration is not None
    return Registration("mine", kind, given, declaration)
