"""A manager's own attention (ATTEND) in the place of a kernel.

In a pair it serves the live requests of the pair's manager, whose tables it knows. A batch that
belongs to nobody, as when it is found out which shapes are offered, is served by a manager of its
own: requests of those lengths are admitted, and K and V moved to where its tables say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.contract import AttentionBatch, AttentionResult, CacheKey, Capability
from kvassay.harness.registry import Registration

APART = 1_000_000
"""Between the tokens of two requests, so that nothing is shared."""


@dataclass(frozen=True)
class ServedBatch(AttentionBatch):
    """A batch over live requests of a manager."""

    manager: Any = None
    requests: tuple[str, ...] = ()

    @classmethod
    def of(cls, batch: AttentionBatch, manager: Any, requests: Sequence[str]) -> ServedBatch:
        """The same batch, of which it is known whose sequences these are."""
        known = {each.name: getattr(batch, each.name) for each in fields(AttentionBatch)}
        return cls(**known, manager=manager, requests=tuple(requests))


class OwnAttention:
    """Answers as a kernel would, by `attend` of the manager that a batch belongs to."""

    def __init__(self, manager: Registration) -> None:
        self._registration = manager

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        if isinstance(batch, ServedBatch):
            return self._attended(batch)
        at_once = self._registration.declaration.max_requests or len(batch.seq_lens)
        results = [self._attended(self._served(part)) for part in _parts(batch, at_once)]
        if len(results) == 1:
            return results[0]
        without = any(result.lse is None for result in results)
        lse = None if without else torch.cat([result.lse for result in results])
        return AttentionResult(torch.cat([result.output for result in results]), lse)

    @staticmethod
    def _attended(batch: ServedBatch) -> AttentionResult:
        answer: AttentionResult = batch.manager.attend(batch.requests, batch)
        return answer

    def _served(self, batch: AttentionBatch) -> ServedBatch:
        """Raises `ValueError` for a sequence without keys, which no request has, and for too long
        ones. The pool has what is declared to be kept free, or held in advance, on top."""
        declared = self._registration.declaration
        lengths = batch.seq_lens.tolist()
        if min(lengths, default=1) < 1:
            raise ValueError("seq_lens: a request has at least one key")
        num_blocks, block_size = batch.key_cache.shape[:2]
        num_blocks += declared.watermark + len(lengths) * declared.lookahead
        manager = self._registration.build(num_blocks=num_blocks, block_size=block_size)
        names = [str(index) for index in range(len(lengths))]
        for index, (name, length) in enumerate(zip(names, lengths, strict=True)):
            if declared.max_tokens is not None and length > declared.max_tokens:
                raise ValueError(f"seq_lens: expected at most {declared.max_tokens}, got {length}")
            manager.admit(name, CacheKey(range(index * APART, index * APART + length)))
            if declared.has(Capability.COMMIT):
                manager.commit(name, length)
        own = [
            [*manager.block_table(name)][: -(-length // block_size)]
            for name, length in zip(names, lengths, strict=True)
        ]
        rows = num_blocks + len(declared.reserved_ids)
        moved = replace(
            batch,
            key_cache=_moved(batch.key_cache, rows, batch.block_table, own),
            value_cache=_moved(batch.value_cache, rows, batch.block_table, own),
        )
        return ServedBatch.of(moved, manager, names)


def _parts(batch: AttentionBatch, at_once: int) -> Iterator[AttentionBatch]:
    """The batch in pieces of at most so many sequences."""
    starts = batch.query_start.tolist()
    if len(starts) - 1 <= at_once:
        yield batch
        return
    for low in range(0, len(starts) - 1, at_once):
        high = min(low + at_once, len(starts) - 1)
        yield replace(
            batch,
            query=batch.query[starts[low] : starts[high]],
            block_table=batch.block_table[low:high],
            seq_lens=batch.seq_lens[low:high],
            query_start=batch.query_start[low : high + 1] - starts[low],
        )


def _moved(cache: Tensor, rows: int, table: Tensor, own: list[list[int]]) -> Tensor:
    """A cache of so many rows with the blocks of `table` in those that `own` tells."""
    moved = torch.zeros(rows, *cache.shape[1:], dtype=cache.dtype, device=cache.device)
    for index, blocks in enumerate(own):
        moved[blocks] = cache[table[index, : len(blocks)].long()]
    return moved
