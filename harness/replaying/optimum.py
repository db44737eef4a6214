"""The most that any replacement policy could hit on a stream of prompts (Belady's rule).

A hit is a block that stayed resident from one use to the next. So each pair of successive uses of a
block is an interval, at most `capacity` intervals may be open between two prompts, and hits are the
intervals that stay open to their end. Closing the one that would end last, whenever there are too
many, keeps the most of them.

Of intervals that end at the same prompt, the deepest block's goes first: a block is used whenever
one behind it is, so its interval ends no later. What is resident is thus closed under prefixes, and
only the *number* of open intervals has to be known for each prompt at which they end: its hits are
those that are left when it comes.

The whole stream is in memory, 4 bytes per reference.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator

from kvassay.harness.replaying.counts import Counts
from kvassay.harness.replaying.stream import Prompt


def optimum(stream: Iterable[Prompt], capacity: int) -> Counts:
    """Hits with a cache of `capacity` blocks that knows the future; prefix ids are expected."""
    if capacity < 1:
        raise ValueError(f"capacity: expected at least 1 block, got {capacity}")
    ends, lengths = _ends(stream)
    open_until = [0] * len(lengths)  # intervals by the prompt at which they end
    latest: list[int] = []  # such prompts as a heap, the last one first
    count = hits = 0
    for number, uses in enumerate(_by_prompt(ends, lengths)):
        count -= open_until[number]
        hits += open_until[number]
        for end in uses:
            if end >= 0:
                if not open_until[end]:
                    heapq.heappush(latest, -end)
                open_until[end] += 1
                count += 1
        while count > capacity:
            end = -latest[0]
            closed = min(open_until[end], count - capacity)
            open_until[end] -= closed
            count -= closed
            if not open_until[end]:
                heapq.heappop(latest)
    return Counts(len(lengths), sum(lengths), hits)


def _ends(stream: Iterable[Prompt]) -> tuple[array[int], list[int]]:
    """For each reference the prompt that uses its block next, or -1; and the prompts' lengths."""
    ends, lengths = array("i"), []
    last: dict[int, int] = {}  # where the block's last reference is
    for number, prompt in enumerate(stream):
        lengths.append(len(prompt))
        for place, id in enumerate(prompt, len(ends)):
            before = last.get(id)
            if before is not None:
                ends[before] = number
            last[id] = place
        ends.extend([-1] * len(prompt))
    return ends, lengths


def _by_prompt(ends: array[int], lengths: list[int]) -> Iterator[array[int]]:
    start = 0
    for length in lengths:
        yield ends[start : start + length]
        start += length
