"""SGLang's caches by the stages of a scheduler step, to be timed (`harness.control`).

As its scheduler calls them, allocation of a batch in one call. What is not the same: the prompt is
published by a checkpoint, generated tokens only by the one at the release; a decode step leaves the
tree alone and costs one call for the whole batch; slots are kept one by one in a row of a tensor.
`mem_cache/allocation.py` needs compiled kernels on a CPU, so its calls are made here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from kvassay.impls.engines.sglang_parts import engine, new_tree, scheduling

_LONGEST_PROMPT = 1 << 17


class SglangStages:
    """One tree over one allocator."""

    def __init__(self, tree: str, allocator: Any, page_size: int, num_requests: int) -> None:
        sglang = engine()
        self._sglang, self._allocator, self._page_size = sglang, allocator, page_size
        longest = min(allocator.size, _LONGEST_PROMPT) + page_size
        self._rows: Any = sglang.ReqToTokenPool(num_requests, longest, "cpu", False)
        self._tree = new_tree(
            tree,
            sglang.CacheInitParams(
                disable=False,
                req_to_token_pool=self._rows,
                token_to_kv_pool_allocator=allocator,
                page_size=page_size,
            ),
        )

    def prepare(self, prompts: Sequence[tuple[str, list[int]]]) -> list[Any]:
        make, sampling = scheduling().Req, self._sglang.sampling
        return [make(name, "", array("q", tokens), sampling) for name, tokens in prompts]

    def look_up(self, handles: Sequence[Any]) -> list[int]:
        match, tree = self._sglang.common.match_kv_cache, self._tree
        for req in handles:
            match(req, tree, max_prefix_len=len(req.origin_input_ids) - 1)
            req.lock = tree.lock(req.last_node)
            req.kv.cache_protected_len = req.prefix_len
        return [req.prefix_len for req in handles]

    def reserve(self, handles: Sequence[Any]) -> None:
        if self._rows.alloc(list(handles)) is None:
            raise RuntimeError("OOM: the benchmark has more requests than rows")
        for req in handles:
            if req.prefix_len:
                indices = self._tree.prefix_device_indices(req)
                self._write(req, 0, req.prefix_len, indices)
        slots, start = self._extend(handles), 0
        for req in handles:
            hit, length = req.prefix_len, len(req.origin_input_ids)
            self._write(req, hit, length, slots[start : start + length - hit])
            start += length - hit
            req.kv.kv_allocated_len = req.kv.kv_committed_len = length

    def publish(self, handles: Sequence[Any]) -> None:
        checkpoint, tree = self._sglang.common.checkpoint_kv_cache, self._tree
        for req in handles:
            req.refresh_fill_ids()
            req.extend_end = len(req.origin_input_ids)
            checkpoint(req, tree)

    def append(self, handles: Sequence[Any], token: int) -> None:
        torch = self._sglang.torch
        rows = torch.tensor([req.kv.req_pool_idx for req in handles])
        lengths = torch.tensor([req.kv.kv_allocated_len for req in handles])
        slots = self._decode(rows, lengths, len(handles))
        self._rows.write((rows, lengths), slots.to(torch.int32))
        for req in handles:
            req.output_ids.append(token)
            req.kv.kv_allocated_len += 1
            req.kv.kv_committed_len += 1

    def release(self, handles: Sequence[Any]) -> None:
        release, tree = self._sglang.common.release_kv_cache, self._tree
        finished = scheduling().FINISH_LENGTH
        for req in handles:
            req.finished_reason = finished(length=len(req.output_ids))
            release(req, tree, checkpoint=True)

    def _decode(self, rows: Any, lengths: Any, count: int) -> Any:
        self._make_room(count * self._page_size)
        if self._page_size == 1:
            return _taken(self._allocator.alloc(count))
        last = self._rows.req_to_token[rows, lengths - 1]
        return _taken(self._allocator.alloc_decode(lengths + 1, lengths + 1, last))

    def _extend(self, handles: Sequence[Any]) -> Any:
        torch = self._sglang.torch
        hits = torch.tensor([req.prefix_len for req in handles])
        lengths = torch.tensor([len(req.origin_input_ids) for req in handles])
        count = int((lengths - hits).sum())
        self._make_room(count + len(handles) * self._page_size)
        if self._page_size == 1:
            return _taken(self._allocator.alloc(count))
        rows = torch.tensor([req.kv.req_pool_idx for req in handles])
        last = torch.where(hits > 0, self._rows.req_to_token[rows, hits - 1], -1)
        return _taken(self._allocator.alloc_extend(hits, hits, lengths, lengths, last, count))

    def _make_room(self, num_tokens: int) -> None:
        self._sglang.common.evict_from_tree_cache(self._tree, num_tokens)

    def _write(self, req: Any, start: int, stop: int, slots: Any) -> None:
        where = req.kv.req_pool_idx, slice(start, stop)
        self._rows.write(where, slots.to(self._sglang.torch.int32))


def _taken(slots: Any) -> Any:
    if slots is None:
        raise RuntimeError("OOM: the pool of the benchmark is too small")
    return slots
