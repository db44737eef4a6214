"""SGLang's radix caches on their slot allocators, driven through the calls of its scheduler.

Three trees: `RadixCache` (``radix``) and `UnifiedRadixCache` with its Python and its Rust core
(``unified-python``, ``unified-rust``; the Rust one is the server's default). A request is a real
`Req` with a row of the real `ReqToTokenPool`; it goes ``match_kv_cache``, ``lock``,
``evict_from_tree_cache``, ``alloc`` (page size 1), ``alloc_extend`` or ``alloc_decode``,
``checkpoint_kv_cache``, ``release_kv_cache``. A block is a page: ``block_size`` is the page size.

``sglang-<tree>`` publishes at release, as SGLang does at the end of a request (finished and
aborted ones; a retracted one is released without a checkpoint). ``sglang-<tree>-commit``
publishes in `commit`, by a checkpoint of the running request, as SGLang does after every chunk
of a prefill; its releases publish nothing more, so that what was not committed never shows.

What is the adapter's: ``mem_cache/allocation.py`` needs compiled kernels, so the allocator is
called here, and asked to make room for exactly the pages that are taken. (SGLang asks for up to a
page more per request, without needing it.) A batch holds one request.

Not claimed, because the engine has no call for it: FORK, TRUNCATE, CHUNKED in pieces smaller
than a checkpoint, QUERY (the scheduler's budget is an estimate over a batch), VALIDATES_INPUT (a
second release is an assertion, a second unlock silent), REFCOUNTS (the tree counts locks per node,
and the Rust core does not show them). PEEK is claimed for the unified trees only, since 0.5.20:
others split and renew what they look up.

Importing this file does not import SGLang, which takes seconds; building a manager does.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kvassay.harness.contract import (
    CacheEvent,
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    Dedup,
    EventKind,
    Granularity,
    Order,
    Outcome,
    OutOfBlocks,
    Publish,
    Refusal,
    Stamp,
    Tie,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.sglang_parts import (
    INSTALL,
    PACKAGE,
    TREES,
    engine,
    largest_token,
    naming_adapters,
    new_tree,
    radix_key,
    requests,
    salt,
    scheduling,
)
from kvassay.impls.engines.token_names import TokenNames
from kvassay.impls.engines.versions import at_least

MAX_REQUESTS = 256
"""Rows of the request pool, SGLang's ``--max-running-requests``."""

PUBLISHED = frozenset({Outcome.FINISHED, Outcome.ABORTED})
"""Outcomes that SGLang checkpoints: an aborted request ends its step like a finished one."""

_OFFERED = (
    Capability.PREFIX_CACHE,
    Capability.SALT,
    Capability.ADAPTER,
    Capability.EVICT,
    Capability.RESET,
    Capability.EVENTS,
    Capability.COUNTERS,
)


def declare(tree: str, commits: bool) -> Declaration:
    """What is true of a tree, publishing at commit or at release."""
    offered = [*_OFFERED, *((Capability.COMMIT,) if commits else ())]
    if tree != "radix" and at_least(PACKAGE, "0.5.20"):
        offered.append(Capability.PEEK)
    return Declaration(
        capabilities=frozenset(offered),
        publish=Publish.COMMIT if commits else Publish.RELEASE,
        publish_on=frozenset(Outcome) if commits else PUBLISHED,
        # A match renews the path, whether the request is admitted or not, and so does an insert.
        # A release that inserts nothing (retracted, or all of it committed) is no access.
        order=Order.LRU,
        stamps=frozenset({Stamp.LOOKUP, Stamp.HIT, Stamp.COMMIT}),
        tie=Tie.TAIL_FIRST,
        granularity=Granularity.LEAF,
        # A checkpoint rewrites the row to the tree's slots; after a release nobody sees it.
        dedup=Dedup.REMAP if commits else Dedup.KEEP,
        # Makes room first, and then finds that it is not enough.
        refusal=Refusal.MAY_EVICT,
        # The first page is padding.
        reserved_ids=(0,),
        max_requests=MAX_REQUESTS,
    )


class SglangManager:
    """Requests and the calls that SGLang's scheduler would make for them."""

    commits = False

    def __init__(self, tree: str, num_blocks: int, block_size: int) -> None:
        self._calls = requests()
        sglang = engine()
        self.num_blocks = num_blocks
        self.block_size = block_size
        size = num_blocks * block_size
        self.allocator = _allocator(size, block_size)
        # No request outgrows the pool; one that does all the same is for the harness to find.
        self.rows: Any = sglang.ReqToTokenPool(MAX_REQUESTS, 2 * size, "cpu", False)
        parameters = sglang.CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=block_size,
            enable_kv_cache_events=True,
        )
        self._name_adapter = naming_adapters(parameters)
        self.tree: Any = new_tree(tree, parameters)
        self._requests: dict[str, Any] = {}
        self._names = TokenNames(largest_token())

    def admit(self, request: str, key: CacheKey) -> int:
        req, length = self._request(request, key), len(key.tokens)
        hit = self._calls.match(self.tree, req, length - 1)
        self._calls.lock(self.tree, req)
        try:
            self._place(req, hit, length)
        except OutOfBlocks:
            self._calls.unlock(self.tree, req)
            raise
        self._requests[request] = req
        return hit

    def append(self, request: str, tokens: Sequence[int]) -> None:
        req = self._requests[request]
        self._extend(req, req.kv.kv_allocated_len, req.kv.kv_allocated_len + len(tokens))
        req.output_ids.extend(self._names.ids(tokens))

    def block_table(self, request: str) -> Sequence[int]:
        kv, size = self._requests[request].kv, self.block_size
        slots = self.rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len : size]
        return [slot // size for slot in slots.tolist()]

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        req = self._requests.pop(request)
        publishes = not self.commits and outcome in PUBLISHED
        if outcome is Outcome.FINISHED:
            req.finished_reason = scheduling().FINISH_LENGTH(length=len(req.output_ids))
        elif outcome is Outcome.ABORTED:
            req.finished_reason = scheduling().FINISH_ABORT()
        self._calls.release(self.tree, req, publishes)

    def evict(self, num_blocks: int) -> int:
        wanted = engine().EvictParams(num_tokens=num_blocks * self.block_size)
        freed: int = self.tree.evict(wanted).num_tokens_evicted
        return freed // self.block_size

    def reset(self) -> None:
        # As flush_cache does, which a scheduler with running requests refuses.
        if self._requests:
            raise ValueError(f"reset: expected no live request, got {len(self._requests)}")
        self.tree.reset()
        self.rows.clear()
        self.allocator.clear()

    def counters(self) -> Counters:
        free = self.allocator.available_size() // self.block_size
        cached = self.tree.evictable_size() // self.block_size
        # What the tree protects and what is a request's own is both in use.
        return Counters(free=free, cached=cached, used=self.num_blocks - free - cached)

    def peek(self, key: CacheKey) -> int:
        """Only for the unified trees, which have a match that changes nothing (since 0.5.20)."""
        known = replace(key, tokens=self._names.ids(key.tokens))
        wanted = radix_key(known, limit=len(key.tokens) - 1)
        hit: int = self.tree.tree_core.match_full_device_prefix(wanted)[0]
        return hit

    def take_events(self) -> list[CacheEvent]:
        return [self._translate(event) for event in self.tree.take_events()]

    def _translate(self, event: Any) -> CacheEvent:
        known = engine().events
        if isinstance(event, known.BlockRemoved):
            return CacheEvent(EventKind.REMOVED, tuple(event.block_hashes))
        if isinstance(event, known.AllBlocksCleared):
            return CacheEvent(EventKind.CLEARED)
        return CacheEvent(
            EventKind.STORED,
            tuple(event.block_hashes),
            parent=event.parent_block_hash,
            tokens=self._names.tokens(event.token_ids),
            salt=salt(event),
            adapter=getattr(event, "lora_name", None),
        )

    def _request(self, request: str, key: CacheKey) -> Any:
        req = scheduling().Req(
            request,
            "",
            array("q", self._names.ids(key.tokens)),
            engine().sampling,
            # Becomes the extra key of the tree, as the adapter's id does in SGLang.
            lora_id=key.adapter,
            cache_salt=key.salt,
        )
        self._name_adapter(req, key.adapter)
        return req

    def _place(self, req: Any, hit: int, length: int) -> None:
        """A row for a new request, with its hit and slots for the rest of the prompt."""
        if self.rows.alloc([req]) is None:
            raise OutOfBlocks(f"all {MAX_REQUESTS} rows are in use")
        if hit:
            self._write(req, 0, hit, self._calls.found(self.tree, req))
        try:
            self._extend(req, hit, length)
        except OutOfBlocks:
            self.rows.free(req)
            raise

    def _extend(self, req: Any, start: int, stop: int) -> None:
        """Slots for the tokens [start, stop) of a request."""
        size = self.block_size
        pages = -(-stop // size) - -(-start // size)
        engine().common.evict_from_tree_cache(self.tree, pages * size)
        slots = self._allocate(req, start, stop)
        if slots is None:
            free = self.allocator.available_size() // size
            raise OutOfBlocks(f"{pages} pages do not fit {free} free ones")
        self._write(req, start, stop, slots)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = stop

    def _allocate(self, req: Any, start: int, stop: int) -> Any:
        if self.block_size == 1:
            return self.allocator.alloc(stop - start)
        row = self.rows.req_to_token[req.kv.req_pool_idx]
        last = _one(row[start - 1] if start else -1)
        before, after = _one(start), _one(stop)
        if req.kv.kv_allocated_len and stop == start + 1:
            return self.allocator.alloc_decode(after, after, last)
        return self.allocator.alloc_extend(before, before, after, after, last, stop - start)

    def _write(self, req: Any, start: int, stop: int, slots: Any) -> None:
        where = req.kv.req_pool_idx, slice(start, stop)
        self.rows.write(where, slots.to(engine().torch.int32))


class CommittingSglangManager(SglangManager):
    """The same, publishing by a checkpoint what is reported as written."""

    commits = True

    def commit(self, request: str, num_tokens: int) -> None:
        req = self._requests[request]
        committed, length = self._calls.committed(req), req.kv.kv_allocated_len
        if not committed < num_tokens <= length:
            raise ValueError(
                f"commit: expected {committed} < num_tokens <= {length}, got {num_tokens}"
            )
        self._calls.checkpoint(self.tree, req, num_tokens)


def _one(number: Any) -> Any:
    """A batch of one."""
    return engine().torch.tensor([int(number)], dtype=engine().torch.int64)


def _allocator(size: int, page_size: int) -> Any:
    sglang = engine()
    common = {"dtype": sglang.torch.float32, "device": "cpu", "kvcache": None, "need_sort": False}
    if page_size == 1:
        return sglang.allocator.TokenToKVPoolAllocator(size=size, **common)
    return sglang.allocator.PagedTokenToKVPoolAllocator(size=size, page_size=page_size, **common)


def _stages(tree: str, num_blocks: int, block_size: int, num_requests: int) -> Any:
    """The engine's own calls, to be timed (`harness.control`)."""
    from kvassay.impls.engines.sglang_stages import SglangStages

    allocator = _allocator(num_blocks * block_size, block_size)
    return SglangStages(tree, allocator, block_size, num_requests)


for _name in TREES:
    for _commits in (False, True):
        _factory = partial(CommittingSglangManager if _commits else SglangManager, _name)
        if not _commits:
            _factory.stages = partial(_stages, _name)  # type: ignore[attr-defined]
        implementation(
            f"sglang-{_name}-commit" if _commits else f"sglang-{_name}",
            kind=CacheManager,
            declaration=declare(_name, _commits),
            package=PACKAGE,
            install=INSTALL,
        )(_factory)
