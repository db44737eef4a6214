"""The hit law: how many leading tokens a look-up may count.

``max(0, floor(min(L - reserve, L') / unit) - drop) * unit`` for a key of L tokens of which the
first L' are resident (invariant P3). `reserve` tokens are always left to compute; `drop` units
are given up on top (vLLM does so for EAGLE drafting).
"""

from __future__ import annotations


def hit_law(length: int, resident: int, *, unit: int, reserve: int = 1, drop: int = 0) -> int:
    """Tokens that a key of `length` tokens hits when its first `resident` are cached."""
    if unit < 1:
        raise ValueError(f"unit: expected at least 1 token, got {unit}")
    return max(0, min(length - reserve, resident) // unit - drop) * unit
