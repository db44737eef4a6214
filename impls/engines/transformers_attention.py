"""Attention of transformers' continuous batching: eager and SDPA, over its `PagedAttentionCache`.

One batch is one step of the engine's own code: its cache hands out read and write indices, takes
the new keys and values and gathers the rest; its mask builder makes the mask; the attention
function that the model would call does the rest. In a layer with full attention the contract's
blocks become pages as they are, tails included, and its tables the engine's. A layer with a window
keeps a ring of the last keys in pages of the engine's choice: what came before the queries is
written there first, as an earlier step would have.

* Only slots below the length are ever gathered: tail=any.
* Rows see all sequences of the batch at once, masked by the least finite number: results repeat to
  the bit for the same batch only (determinism=run), and a row without keys has no meaning: a
  sequence with more queries than keys is refused.
* Eager rounds logits, weights and output to the query's type (rounding=eager), SDPA weights and
  output only (rounding=P).

Attention that is not causal, soft caps, ALiBi and quantisation scales have no place in either;
sinks do in the eager one. The eager one drops a soft cap without a word, and the mask builder takes
a window of one key for no window: both are refused here.

Importing this file does not import transformers, which takes seconds; building a kernel does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Determinism,
    PagedAttention,
    Rounding,
    Tail,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.versions import Call, importing, require

PACKAGE = "transformers"
VERIFIED = ("5.24.0",)
INSTALL = (
    "pip install torch==2.13.0 && "
    "pip install --no-deps -r impls/engines/transformers_requirements.txt"
)

_LAYER = 0


def _declare(rounding: Rounding, *more: Capability) -> Declaration:
    return Declaration(
        capabilities=frozenset((Capability.CAUSAL, Capability.WINDOW, *more)),
        rounding=rounding,
        tail=Tail.ANY,
        determinism=Determinism.RUN,
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings of torch and transformers, which a strict test run makes errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@lru_cache(maxsize=1)
def _engine() -> SimpleNamespace:
    """The engine's own names, imported once."""
    with _quietly(), importing(PACKAGE, VERIFIED):
        import torch
        from transformers import PreTrainedConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
        from transformers.generation.continuous_batching.distributed import DistributedHelper
        from transformers.generation.continuous_batching.requests import RequestState
        from transformers.generation.continuous_batching.utils import build_attention_mask
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    calls = [
        Call(PagedAttentionCache, "can_store_request_tokens", 2),
        Call(PagedAttentionCache, "extend_read_and_write_indices", 5),
        Call(PagedAttentionCache, "update", 4),
    ]
    require(PACKAGE, VERIFIED, calls)
    return SimpleNamespace(
        ContinuousBatchingConfig=ContinuousBatchingConfig,
        DistributedHelper=DistributedHelper,
        PagedAttentionCache=PagedAttentionCache,
        PreTrainedConfig=PreTrainedConfig,
        RequestState=RequestState,
        attention=ALL_ATTENTION_FUNCTIONS,
        build_attention_mask=build_attention_mask,
        torch=torch,
    )


@dataclass(frozen=True)
class _Request:
    """One sequence of the batch that has queries."""

    name: str
    """What the engine calls it."""
    index: int
    """Its row of the block table."""
    past: int
    """Keys before its queries."""
    queries: int

    @property
    def length(self) -> int:
        return self.past + self.queries


@implementation(
    "transformers-eager",
    kind=PagedAttention,
    declaration=_declare(Rounding.EAGER, Capability.SINKS),
    package=PACKAGE,
    install=INSTALL,
)
class EagerPagedAttention:
    """``paged|eager``, for which continuous batching exchanges a model's own eager attention."""

    function = "paged|eager"
    offers_sinks = True

    def __init__(self) -> None:
        self._engine = _engine()

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        _refuse(batch, self.offers_sinks)
        requests = _requests(batch)
        if not requests:
            num_heads, head_dim = batch.query.shape[1:]
            return AttentionResult(batch.query.new_empty(0, num_heads, head_dim))
        with _quietly():
            return AttentionResult(self._step(batch, requests))

    def _step(self, batch: AttentionBatch, requests: list[_Request]) -> Any:
        cache = self._cache(batch, requests)
        if batch.window_left is None:
            self._lay_out(cache, batch, requests)
        else:
            self._write_history(cache, batch, requests)
        key, value = self._updated(cache, batch, requests)
        output, _ = self._engine.attention[self.function](
            self._module(batch),
            batch.query.transpose(0, 1)[None],
            key,
            value,
            self._mask(cache, batch, requests),
            scaling=batch.query.shape[2] ** -0.5 if batch.scale is None else batch.scale,
            is_causal=False,
        )
        return output[0]

    # ------------------------------------------------------------------------------- the cache

    def _cache(self, batch: AttentionBatch, requests: list[_Request]) -> Any:
        """An empty cache for one layer, as the engine would set it up."""
        num_blocks, page_size = batch.key_cache.shape[:2]
        if batch.window_left is not None:
            num_blocks = sum(-(-each.length // page_size) for each in requests)
        settings = self._engine.ContinuousBatchingConfig(
            page_size=page_size,
            num_blocks=num_blocks,
            max_batch_tokens=batch.query.shape[0],
            max_memory_percent=1.0,
            max_blocks_per_request=0,
            max_requests_per_batch=len(requests),
        )
        helper = self._engine.DistributedHelper(None, None)
        return self._engine.PagedAttentionCache(
            _config(self._engine.PreTrainedConfig, batch),
            settings,
            "cpu",
            helper,
            batch.query.dtype,
        )

    def _lay_out(self, cache: Any, batch: AttentionBatch, requests: list[_Request]) -> None:
        """Copy the blocks that the tables name into pages, and enter the tables."""
        (pool,) = cache.cache_allocators.values()
        # Sectors 0 and 1 are never handed out: padding reads and writes them.
        first = 2 * pool.blocks_per_sector
        key_pages, value_pages = pool.get_cache_for_block_table(_LAYER)
        pages_per_block = pool.block_physical_stride // pool.tokens_per_page
        for each in requests:
            columns = -(-each.length // pool.tokens_per_page)
            blocks = batch.block_table[each.index, :columns].long()
            pages = (first + blocks) * pages_per_block
            key_pages[pages] = batch.key_cache[blocks]
            value_pages[pages] = batch.value_cache[blocks]
            pool.block_table[each.name] = (first + blocks).tolist()

    def _write_history(self, cache: Any, batch: AttentionBatch, requests: list[_Request]) -> None:
        """Hand out pages, and write what a window keeps of the keys before the queries."""
        (pool,) = cache.cache_allocators.values()
        nothing = self._engine.torch.empty(0, dtype=self._engine.torch.long)
        for each in requests:
            state = self._engine.RequestState(each.name, [0] * each.length)
            if not cache.can_store_request_tokens(state, each.length):
                raise RuntimeError(f"the engine has no room for {each.length} tokens")
            kept = min(each.past, pool.sliding_window - 1)
            if not kept:
                continue
            start = each.past - kept
            written = pool.get_write_indices(each.name, start, kept)
            key, value = _gathered(batch, each.index, start, each.past)
            pool.update(key, value, _LAYER, nothing, self._engine.torch.tensor(written))

    def _updated(
        self, cache: Any, batch: AttentionBatch, requests: list[_Request]
    ) -> tuple[Any, Any]:
        """Keys and values of all sequences, packed: ``[1, num_kv_heads, keys, head_dim]``."""
        torch = self._engine.torch
        (pool,) = cache.cache_allocators.values()
        # As the engine does: where no request has a past, nothing is read back.
        reads: list[list[int]] | None = [[]] if any(each.past for each in requests) else None
        writes: list[list[int]] = [[]]
        new = []
        for each in requests:
            cache.extend_read_and_write_indices(each.name, each.past, each.queries, reads, writes)
            new.append(_gathered(batch, each.index, each.past, each.length))
        step = {
            "cu_seq_lens_k": {pool.layer_type: torch.tensor(self._key_starts(pool, requests))},
            "max_length_k": {pool.layer_type: 0},
            "read_index": [torch.tensor(reads[0] if reads else [], dtype=torch.long)],
            "write_index": [torch.tensor(writes[0], dtype=torch.long)],
        }
        key, value = (torch.cat(parts).transpose(0, 1)[None] for parts in zip(*new, strict=True))
        return cache.update(key, value, _LAYER, step)

    # --------------------------------------------------------------------- mask and attention

    def _mask(self, cache: Any, batch: AttentionBatch, requests: list[_Request]) -> Any:
        """What is added to the logits: 0, or the least number of the query's type."""
        torch = self._engine.torch
        (pool,) = cache.cache_allocators.values()
        query_starts, key_starts = [0], self._key_starts(pool, requests)
        for each in requests:
            query_starts.append(query_starts[-1] + each.queries)
        dtype = batch.query.dtype
        shape = (1, 1, query_starts[-1], key_starts[-1])
        mask = torch.full(shape, torch.finfo(dtype).min, dtype=dtype)
        window = 1 if batch.window_left is None else pool.sliding_window
        self._engine.build_attention_mask(mask, query_starts, key_starts, window)
        return mask

    @staticmethod
    def _key_starts(pool: Any, requests: list[_Request]) -> list[int]:
        starts = [0]
        for each in requests:
            starts.append(starts[-1] + pool.get_seqlen_k(each.past, each.queries))
        return starts

    def _module(self, batch: AttentionBatch) -> SimpleNamespace:
        """What the attention functions ask of a model's attention module."""
        groups = batch.query.shape[1] // batch.key_cache.shape[2]
        module = SimpleNamespace(num_key_value_groups=groups, is_causal=True)
        if batch.sinks is not None:
            module.sinks = batch.sinks
        return module


@implementation(
    "transformers-sdpa",
    kind=PagedAttention,
    declaration=_declare(Rounding.P),
    package=PACKAGE,
    install=INSTALL,
)
class SdpaPagedAttention(EagerPagedAttention):
    """``sdpa``: torch's scaled dot product attention with the same mask."""

    function = "sdpa"
    offers_sinks = False


def _config(kind: Any, batch: AttentionBatch) -> Any:
    """A model of one layer with the batch's heads; its window counts the query's own position."""
    num_heads, head_dim = batch.query.shape[1:]
    config = kind(
        hidden_size=num_heads * head_dim,
        num_hidden_layers=1,
        num_attention_heads=num_heads,
        num_key_value_heads=batch.key_cache.shape[2],
        head_dim=head_dim,
        vocab_size=8,
        intermediate_size=8,
    )
    config._attn_implementation = "sdpa"
    if batch.window_left is not None:
        config.layer_types = ["sliding_attention"]
        config.sliding_window = batch.window_left + 1
    return config


def _requests(batch: AttentionBatch) -> list[_Request]:
    """The sequences that have queries: the engine schedules no others."""
    starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
    counts = [end - start for start, end in pairwise(starts)]
    return [
        _Request(str(index), index, lengths[index] - queries, queries)
        for index, queries in enumerate(counts)
        if queries
    ]


def _gathered(batch: AttentionBatch, index: int, start: int, end: int) -> tuple[Any, Any]:
    """Keys and values of positions start..end-1: two tensors ``[end - start, num_kv_heads, d]``."""
    page_size = batch.key_cache.shape[1]
    positions = batch.query_start.new_tensor(range(start, end)).long()
    blocks, slots = batch.block_table[index, positions // page_size].long(), positions % page_size
    return batch.key_cache[blocks, slots], batch.value_cache[blocks, slots]


def _refuse(batch: AttentionBatch, offers_sinks: bool) -> None:
    """Raise `NotImplementedError` for what the engine has no place for."""
    absent = ["softcap", "alibi_slopes", "k_scale", "v_scale", "output"]
    for name in absent if offers_sinks else [*absent, "sinks"]:
        if getattr(batch, name) is not None:
            raise NotImplementedError(f"{name}: transformers' paged attention does not offer it")
    if not batch.causal:
        raise NotImplementedError("causal: transformers' paged attention is always causal")
    head_dims = batch.key_cache.shape[3], batch.value_cache.shape[3]
    if head_dims[0] != head_dims[1]:
        raise NotImplementedError(f"transformers' cache has one head size, got {head_dims}")
    heads = batch.query.shape[1], batch.key_cache.shape[2]
    if heads[0] % heads[1]:
        raise ValueError(f"expected a multiple of {heads[1]} query heads, got {heads[0]}")
    types = {batch.query.dtype, batch.key_cache.dtype, batch.value_cache.dtype}
    if len(types) > 1:
        raise NotImplementedError(f"transformers' cache has the model's type, got {types}")
    for each in _requests(batch):
        if each.past < 0:
            raise NotImplementedError(
                f"seq_lens[{each.index}]: transformers needs a key for each of the "
                f"{each.queries} queries, got {each.length}"
            )
        if batch.window_left == 0 and each.queries > 1:
            raise NotImplementedError(
                "window_left: transformers takes a window of one key for none, expected at least "
                f"1 where a sequence has several queries, got 0 and {each.queries} queries"
            )
