"""`radix` with an admission that takes longer by a known part: what a gate must see.

Look-up and reservation each go on for a part of the time that they took, by turning in a loop.
Nothing else differs, so no invariant is broken. Watching the time costs some as well (4 % of an
admission), so what is slower is to be compared with what is watched and slower by nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any

from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import find, implementation

PERCENT = (0, 2, 5, 10, 20)
SLOWED = ("begin", "reserve")
SHARE = 0.55
"""Of an admission that these two take; the rest is the key and the publication."""
(RADIX,) = find("radix")


def slower(percent: int) -> str:
    """The name of the implementation that is slower by so much."""
    return f"radix-slower-{percent}"


def _stretched(method: Callable[..., Any], part: float) -> Callable[..., Any]:
    @wraps(method)
    def stretched(*arguments: Any, **named: Any) -> Any:
        begun = perf_counter()
        result = method(*arguments, **named)
        now = perf_counter()
        until = now + part * (now - begun)
        while perf_counter() < until:
            pass
        return result

    return stretched


def built(percent: int) -> Callable[..., Any]:
    """A factory of `radix` that is slower by so much."""

    def build(**arguments: Any) -> Any:
        manager = RADIX.factory(**arguments)
        for name in SLOWED:
            setattr(manager, name, _stretched(getattr(manager, name), percent / 100 / SHARE))
        return manager

    return build


for _percent in PERCENT:
    implementation(slower(_percent), kind=CacheManager, declaration=RADIX.declaration)(
        built(_percent)
    )
