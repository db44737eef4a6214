"""Prompts as sequences of prefix ids: equal ids are equal blocks behind equal prefixes.

Policies and replays are stated for such streams, in which each id has one parent. A trace whose ids
name contents alone is renumbered here, block by block along a tree of prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvassay.harness.traces.request import TraceRequest

Prompt = Sequence[int]


class NoBlocks(ValueError):
    """A trace without block ids, which cannot be replayed; says what it has."""


def prompts(requests: Iterable[TraceRequest], *, full_only: bool = False) -> Iterator[Prompt]:
    """Prefix ids of each request; with `full_only`, of the blocks that the prompt fills.

    Raises `NoBlocks` for a request that has no ids.
    """
    tree = PrefixTree()
    for number, one in enumerate(requests):
        if one.blocks is None:
            raise NoBlocks(f"request {number}: lengths alone, or segments, but no block ids")
        ids = one.full_blocks() if full_only else one.blocks
        yield ids if one.prefix_ids else tree.numbered(ids)


def segment_prompts(requests: Iterable[TraceRequest]) -> Iterator[Prompt]:
    """The same with a prompt's segments for blocks."""
    tree = PrefixTree()
    for one in requests:
        yield tree.numbered([segment.id for segment in one.segments])


class PrefixTree:
    """Numbers prefixes in the order in which they first appear."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def numbered(self, ids: Sequence[int]) -> list[int]:
        """A number for each prefix of `ids`."""
        parent, path = -1, []
        for id in ids:
            parent = self._numbers.setdefault((parent, id), len(self._numbers))
            path.append(parent)
        return path
