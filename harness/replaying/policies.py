"""Replacement policies on a stream of prompts: exact counts, no manager.

The replay that all of them share, on a stream of prefix ids (`stream`): count the leading ids that
are resident; touch all ids of the prompt, adding those that are absent; then drop ids until the
capacity holds. Nothing is pinned, nothing is generated, and a prompt may be larger than the
capacity.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Iterable

from kvassay.harness.replaying.counts import Counts
from kvassay.harness.replaying.stream import Prompt


def flat_lru(stream: Iterable[Prompt], capacity: int, *, tail_first: bool = True) -> Counts:
    """Drop the least recently touched id.

    `tail_first`: a prompt is touched from its end, so that of its blocks the last goes first. Else
    the first goes first, and what is behind it is resident and cannot be hit.
    """
    _check(capacity)
    resident: OrderedDict[int, None] = OrderedDict()
    touch, drop = resident.move_to_end, resident.popitem
    requests = blocks = hits = 0
    for prompt in stream:
        requests += 1
        blocks += len(prompt)
        hits += _leading(prompt, resident)
        for id in reversed(prompt) if tail_first else prompt:
            if id in resident:
                touch(id)
            else:
                resident[id] = None
        while len(resident) > capacity:
            drop(last=False)
    return Counts(requests, blocks, hits)


class _Node:
    """A resident block in the tree."""

    __slots__ = ("children", "id", "parent", "touched")

    def __init__(self, id: int, parent: _Node | None) -> None:
        self.id = id
        self.parent = parent
        self.children = 0
        self.touched = 0


def leaf_lru(stream: Iterable[Prompt], capacity: int) -> Counts:
    """Drop the leaf of the prefix tree that was touched least recently.

    A prompt is a path, of which one node at a time is a leaf: so no two leaves were touched last
    by the same prompt, and its number is all the order that is needed.
    """
    _check(capacity)
    resident: dict[int, _Node] = {}
    leaves: list[tuple[int, int]] = []  # (touched, id); outdated entries are left in
    requests = blocks = hits = 0
    for prompt in stream:
        requests += 1
        blocks += len(prompt)
        hits += _leading(prompt, resident)
        parent = None
        for id in prompt:
            node = resident.get(id)
            if node is None:
                node = resident[id] = _Node(id, parent)
                if parent is not None:
                    parent.children += 1
            node.touched = requests
            parent = node
        if parent is not None and not parent.children:
            heapq.heappush(leaves, (requests, parent.id))
        while len(resident) > capacity:
            _drop_oldest(resident, leaves)
    return Counts(requests, blocks, hits)


def _drop_oldest(resident: dict[int, _Node], leaves: list[tuple[int, int]]) -> None:
    touched, id = heapq.heappop(leaves)
    node = resident.get(id)
    if node is None or node.children or node.touched != touched:
        return
    del resident[id]
    parent = node.parent
    if parent is not None:
        parent.children -= 1
        if not parent.children:
            heapq.heappush(leaves, (parent.touched, parent.id))


def infinite(stream: Iterable[Prompt]) -> Counts:
    """Drop nothing: the ceiling (N - U) / N, for N references to U ids."""
    resident: set[int] = set()
    requests = blocks = hits = 0
    for prompt in stream:
        requests += 1
        blocks += len(prompt)
        hits += _leading(prompt, resident)
        resident.update(prompt)
    return Counts(requests, blocks, hits)


def _leading(prompt: Prompt, resident: Container[int]) -> int:
    """How many ids of the prompt, from its start on, are resident."""
    count = 0
    for id in prompt:
        if id not in resident:
            break
        count += 1
    return count


def _check(capacity: int) -> None:
    if capacity < 1:
        raise ValueError(f"capacity: expected at least 1 block, got {capacity}")
