"""The hits that prompts allow, counted from the prompts alone.

Whole blocks of a prompt that an earlier prompt has, when each is answered before the next is sent
and nothing is ever evicted; at least one token is left to compute. Answers are not counted: what a
server generates is not known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvassay.harness.workloads.plan import Planned


def intended_hits(requests: Iterable[Planned], block_size: int) -> list[int]:
    """Tokens to be hit by each request, in their order."""
    if block_size < 1:
        raise ValueError(f"block_size: expected at least 1, got {block_size}")
    known = KnownBlocks(block_size)
    return [known.hit_then_keep(one.prompt) for one in requests]


class KnownBlocks:
    """Prompts as chains of whole blocks: a block is known with all before it, or not at all."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._ids: dict[tuple[int, tuple[int, ...]], int] = {}

    def hit_then_keep(self, prompt: Sequence[int]) -> int:
        """Leading tokens that are known, at most all but one; then all whole blocks are."""
        size, parent, hit, missed = self.block_size, 0, 0, False
        for start in range(0, len(prompt) - size + 1, size):
            key = (parent, tuple(prompt[start : start + size]))
            found = self._ids.get(key)
            missed = missed or found is None
            if not missed and start + size < len(prompt):
                hit = start + size
            parent = self._ids.setdefault(key, len(self._ids) + 1)
        return hit
