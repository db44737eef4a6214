"""FlexAttention over torch's own page tables (`torch.nn.attention.experimental`), eager.

The contract's block tables are entered into torch's `PagedAttention`, whose code then turns a
logical mask and a logical score function into physical ones; the caches are used where they are.
FlexAttention in eager mode scores every slot of the pool and masks what a row may not see, hence:

* the weight 0 of a masked slot times a value of NaN or Inf is NaN: tail=finite;
* keys are summed in the order of the pool, and in a matrix product whose shape is the batch's:
  results depend to the bit on placement and batch, and repeat for the same batch: determinism=run;
* softmax in float32, its weights rounded to the query's type: rounding=P.

A page may have one logical place per sequence only. Quantisation scales and sinks are not offered:
the value side has no hook, and there is no logit without a key.

Importing this file does not import torch; building the kernel does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Determinism,
    EmptyRow,
    PagedAttention,
    Rounding,
    Tail,
)
from kvassay.harness.registry import Unavailable, implementation

PACKAGE = "torch"
INSTALL = "pip install torch==2.13.0"
MAX_ELEMENTS = 2**25
"""Of one float32 intermediate of the eager kernel, which makes several: 128 MiB."""
_QUERY_BLOCK = 128

DECLARATION = Declaration(
    capabilities=frozenset(
        {
            Capability.CAUSAL,
            Capability.WINDOW,
            Capability.SOFTCAP,
            Capability.ALIBI,
            Capability.LSE,
        }
    ),
    rounding=Rounding.P,
    empty_row=EmptyRow.ZERO,
    tail=Tail.FINITE,
    determinism=Determinism.RUN,
)


@lru_cache(maxsize=1)
def library() -> SimpleNamespace:
    """Torch's own names, imported once; raises `Unavailable` where torch is too old for them."""
    try:
        import torch
        from torch.nn.attention import flex_attention as flex
        from torch.nn.attention.experimental import _paged_attention as paged
    except ImportError as error:
        raise Unavailable(
            f"flex needs a newer torch ({error}); install it with: {INSTALL}"
        ) from None

    from kvassay.impls.attention_inputs import looked_at

    return SimpleNamespace(
        AuxRequest=flex.AuxRequest,
        PagedAttention=paged.PagedAttention,
        create_block_mask=flex.create_block_mask,
        flex_attention=flex.flex_attention,
        looked_at=looked_at,
        switches=flex,
        torch=torch,
    )


@contextmanager
def _eagerly() -> Iterator[None]:
    """Have the operator called directly, and without the advice to compile it.

    Otherwise Dynamo traces it anew for every batch, to run it eagerly with the same bits: nine
    tenths of the time. A strict test run makes the advice an error.
    """
    switches = library().switches
    before = switches._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    switches._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        switches._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before


@dataclass(frozen=True)
class _Places:
    """Where the rows of a batch stand, as tensors ``int64 [num_seqs]`` for the mask to index."""

    rows: Any
    """Queries of each sequence."""
    first: Any
    """Position of its first query."""
    length: Any
    """Its keys."""

    @classmethod
    def of(cls, batch: AttentionBatch) -> _Places:
        length = batch.seq_lens.long()
        rows = batch.query_start.long().diff()
        return cls(rows, length - rows, length)


@implementation(
    "flex", kind=PagedAttention, declaration=DECLARATION, package=PACKAGE, install=INSTALL
)
class FlexPagedAttention:
    """One call of FlexAttention per batch: rows are padded to the longest sequence of queries."""

    def __init__(self) -> None:
        self._flex = library()

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        places = _Places.of(batch)
        _refuse(batch, places)
        if not batch.query.shape[0]:
            return self._nothing(batch)
        return self._attend(batch, places, self._tables(batch, places))

    def over(self, tables: Any, batch: AttentionBatch) -> AttentionResult:
        """Attention through page tables of torch's that are there, a sequence for each row.

        The batch's own block table is not used.
        """
        places = _Places.of(batch)
        _refuse(batch, places)
        return self._attend(batch, places, tables)

    def _nothing(self, batch: AttentionBatch) -> AttentionResult:
        num_heads, head_dim_v = batch.query.shape[1], batch.value_cache.shape[3]
        lse = self._flex.torch.empty(0, num_heads)
        return AttentionResult(batch.query.new_empty(0, num_heads, head_dim_v), lse)

    def _tables(self, batch: AttentionBatch, places: _Places) -> Any:
        """Torch's page tables with the contract's blocks in them.

        A block that no query of its sequence sees any more is no page of torch's.
        """
        num_pages, page_size = batch.key_cache.shape[:2]
        num_seqs = batch.seq_lens.shape[0]
        tables = self._flex.PagedAttention(num_pages, page_size, num_seqs, device="cpu")
        for index in range(num_seqs):
            seen = self._flex.looked_at(batch, index)
            first, past = seen.start // page_size, -(-seen.stop // page_size)
            columns = self._flex.torch.arange(first, past)
            pages = batch.block_table[index, columns].long()
            _check_pages(pages.tolist(), num_pages, index)
            tables.page_table[index, columns] = pages
            tables.physical_to_logical[index, pages] = columns
            tables.capacity[index] = -(-places.length[index] // page_size) * page_size
        return tables

    @_eagerly()
    def _attend(self, batch: AttentionBatch, places: _Places, tables: Any) -> AttentionResult:
        mask = self._flex.create_block_mask(
            _mask_mod(batch, places),
            places.rows.shape[0],
            None,
            int(places.rows.max()),
            max(int(places.length.max()), 1),
            device="cpu",
            BLOCK_SIZE=(_QUERY_BLOCK, tables.page_size),
        )
        output, extra = self._flex.flex_attention(
            self._padded(batch, places),
            batch.key_cache.flatten(0, 1).movedim(0, 1)[None],
            batch.value_cache.flatten(0, 1).movedim(0, 1)[None],
            score_mod=tables.get_score_mod(_score_mod(batch, places), places.length),
            block_mask=tables.convert_logical_block_mask(mask, kv_len=places.length),
            scale=batch.scale,
            enable_gqa=True,
            return_aux=self._flex.AuxRequest(lse=True),
        )
        used = self._rows(places)
        return AttentionResult(output.transpose(1, 2)[used], extra.lse.transpose(1, 2)[used])

    def _rows(self, places: _Places) -> Any:
        """Which rows of the padded batch are queries: ``bool [num_seqs, longest]``."""
        return self._flex.torch.arange(int(places.rows.max())) < places.rows[:, None]

    def _padded(self, batch: AttentionBatch, places: _Places) -> Any:
        """Queries ``[num_seqs, num_q_heads, longest, head_dim]``, 0 where there is none."""
        used = self._rows(places)
        padded = batch.query.new_zeros(*used.shape, *batch.query.shape[1:])
        padded[used] = batch.query
        return padded.transpose(1, 2)


def _mask_mod(batch: AttentionBatch, places: _Places) -> Callable[..., Any]:
    """Which logical keys a query sees; rows of the padding see none."""

    def visible(sequence: Any, head: Any, row: Any, key: Any) -> Any:
        behind = places.first[sequence] + row - key
        seen = row < places.rows[sequence]
        if batch.causal:
            seen = seen & (behind >= 0)
        if batch.window_left is not None:
            seen = seen & (behind <= batch.window_left)
        return seen

    return visible


def _score_mod(batch: AttentionBatch, places: _Places) -> Callable[..., Any] | None:
    """Soft cap, then ALiBi, of a score that is scaled already; None where there is neither."""
    softcap, slopes = batch.softcap, batch.alibi_slopes
    if softcap is None and slopes is None:
        return None

    def modified(score: Any, sequence: Any, head: Any, row: Any, key: Any) -> Any:
        if softcap is not None:
            score = softcap * (score / softcap).tanh()
        if slopes is not None:
            score = score + slopes[head] * (key - places.first[sequence] - row)
        return score

    return modified


def _check_pages(pages: list[int], num_pages: int, index: int) -> None:
    for page in pages:
        if not 0 <= page < num_pages:
            raise ValueError(
                f"block_table[{index}]: expected blocks 0 to {num_pages - 1}, got {page}"
            )
    if len(set(pages)) < len(pages):
        raise NotImplementedError(
            f"block_table[{index}]: flex has one logical place for a page, got {pages}"
        )


def _refuse(batch: AttentionBatch, places: _Places) -> None:
    """Raise `NotImplementedError` for what FlexAttention over page tables has no means for."""
    for name in ("sinks", "k_scale", "v_scale", "output"):
        if getattr(batch, name) is not None:
            raise NotImplementedError(f"{name}: flex does not offer it")
    types = {batch.query.dtype, batch.key_cache.dtype, batch.value_cache.dtype}
    if len(types) > 1:
        raise NotImplementedError(f"flex needs one type for queries, keys and values, got {types}")
    num_pages, page_size = batch.key_cache.shape[:2]
    longest = int(places.length.max()) if places.length.numel() else 0
    if longest > num_pages * page_size:
        raise NotImplementedError(
            f"seq_lens: flex needs at most {num_pages * page_size} keys, the pool, got {longest}"
        )
    _refuse_size(batch, places)


def _refuse_size(batch: AttentionBatch, places: _Places) -> None:
    """Eagerly, there is a score of each row for every slot, and a key for every query head."""
    num_heads, head_dim = batch.query.shape[1:]
    slots = batch.key_cache.shape[0] * batch.key_cache.shape[1]
    rows = int(places.rows.max()) * places.rows.numel() if places.rows.numel() else 0
    largest = slots * num_heads * max(rows, head_dim, batch.value_cache.shape[3])
    if largest > MAX_ELEMENTS:
        raise NotImplementedError(
            f"flex works on the whole pool for every row: expected intermediates of at most "
            f"{MAX_ELEMENTS} elements, got {largest}"
        )
