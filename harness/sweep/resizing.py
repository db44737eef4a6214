"""A trace's prompts in blocks of another size.

A trace tells which blocks of its own size are equal; so blocks of a part of that size, or of a
multiple of it, are equal where those that they are cut from, or made of, are. Only blocks that a
prompt fills count: a block-wise cache shares no others. What a partial block has in common with a
longer prompt is not recorded; so with smaller blocks a real cache hits at least what is seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kvassay.harness.replaying.stream import NoBlocks, PrefixTree, Prompt
from kvassay.harness.traces.request import TraceRequest


class BadBlockSize(ValueError):
    """A size that does not fit the trace's own; says both."""


def resized(requests: Iterable[TraceRequest], block_size: int) -> Iterator[tuple[Prompt, int]]:
    """Prefix ids of the full blocks of each prompt, and its length in tokens.

    Raises `NoBlocks` for a trace without ids, `BadBlockSize` unless one of both sizes divides the
    other.
    """
    tree = PrefixTree()
    for one in requests:
        if one.blocks is None or one.block_tokens is None:
            raise NoBlocks("expected requests with block ids, got one with lengths alone")
        ids = one.blocks if one.prefix_ids else tree.numbered(one.blocks)
        cut = _cutter(one.block_tokens, block_size)
        yield cut(ids, one.input_tokens // block_size), one.input_tokens


Cutter = Callable[[Sequence[int], int], Prompt]


def _cutter(recorded: int, wanted: int) -> Cutter:
    if recorded % wanted == 0:
        parts = recorded // wanted
        return lambda ids, count: [ids[n // parts] * parts + n % parts for n in range(count)]
    if wanted % recorded == 0:
        parts = wanted // recorded
        # An id stands for all before it, so the last one of several stands for all of them.
        return lambda ids, count: [ids[(n + 1) * parts - 1] for n in range(count)]
    raise BadBlockSize(
        f"block size {wanted}: expected a part or a multiple of the trace's own, {recorded}"
    )
