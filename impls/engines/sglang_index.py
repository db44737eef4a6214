"""SGLang's radix trees by themselves: token values in, token values out.

The same three trees as in `sglang`, without requests, rows and pages: `RadixCache`
(``sglang-radix-index``) and `UnifiedRadixCache` with its Python and its Rust core
(``sglang-unified-python-index``, ``sglang-unified-rust-index``). Each operation is one call of the
tree; a value is a slot number, and a handle holds the node where a match has ended.

What is the adapter's:

* The limit. A tree has none, the pool of slots has. So an insert beyond `capacity` is refused
  here, after a match, as SGLang matches before it allocates; that match is an access.
* The allocator. A tree gives back slots to one; here it is a `Ledger`, which notes them. What
  `evict` returns is what the tree gave back, not what it says that it did.
* Duplicates. The older tree leaves them to its caller. The unified trees give them back by
  themselves, in the caller's name: exactly those must be in the ledger after an insert.
* Receipts. A lock of a handle returns one, an unlock takes one back. (That the trees differ in
  what they do with an unlock too many does not show here, and VALIDATES_INPUT is not claimed.)

Not claimed, because a tree has no call for it: SPANS; PEEK of the older tree, which splits and
renews what it looks up; WALK of the Rust core, which shows slots and locks but not tokens.

Importing this file does not import SGLang, which takes seconds; building an index does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kvassay.harness.contract import (
    CacheKey,
    Capability,
    Declaration,
    Granularity,
    IndexCounters,
    Match,
    Node,
    Order,
    OutOfBlocks,
    PrefixIndex,
    Stamp,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.sglang_parts import (
    INSTALL,
    PACKAGE,
    TREES,
    engine,
    length,
    lock,
    new_tree,
    radix_key,
    slots,
    unlock,
)
from kvassay.impls.engines.versions import at_least

_OFFERED = (
    Capability.LOCK,
    Capability.EVICT,
    Capability.RESET,
    Capability.COUNTERS,
    Capability.SALT,
    Capability.ADAPTER,
)
# The match that changes nothing came with 0.5.20.
_PEEK = (Capability.PEEK,) if at_least(PACKAGE, "0.5.20") else ()
_ALSO: dict[str, tuple[Capability, ...]] = {
    "radix": (Capability.WALK,),
    "unified-python": (Capability.WALK, *_PEEK),
    "unified-rust": _PEEK,
}


def declare(tree: str) -> Declaration:
    """What is true of a tree by itself."""
    return Declaration(
        capabilities=frozenset((*_OFFERED, *_ALSO[tree])),
        # A match renews its path, whether anything is found or not, and so does an insert.
        order=Order.LRU,
        stamps=frozenset({Stamp.LOOKUP, Stamp.HIT, Stamp.COMMIT}),
        granularity=Granularity.LEAF,
    )


class Ledger:
    """Stands in for the allocator of slots: notes what a tree gives back, and pools nothing."""

    device = "cpu"

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._slots: list[int] = []

    def free_segment(self, free_index: Any, *, start_pos: int) -> None:
        """All slots of whole pages, in the order of their positions."""
        self._slots += free_index.tolist()

    def free(self, free_index: Any) -> None:
        """The same, as releases before 0.5.20 say it."""
        self.free_segment(free_index, start_pos=0)

    def take(self) -> list[int]:
        """What was given back since the last call."""
        slots, self._slots = self._slots, []
        return slots


@dataclass(slots=True)
class Handle:
    """Where a match has ended, and a receipt of the tree for each lock."""

    node: Any
    receipts: list[Any] = field(default_factory=list)


class SglangIndex:
    """One tree; `tree` is the name of one of `TREES`."""

    def __init__(self, tree: str, capacity: int | None, page_size: int) -> None:
        self.capacity = capacity
        self.page_size = page_size
        self.ledger = Ledger(page_size)
        parameters = engine().CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.ledger,
            page_size=page_size,
        )
        self.tree: Any = new_tree(tree, parameters)

    def match(self, key: CacheKey) -> Match:
        match = self._find(key)
        return Match(length(match), slots(self.tree, match), Handle(match.last_device_node))

    def bare_match(self, tokens: list[int]) -> int:
        """How many tokens are found, by the engine's own call alone: to be timed."""
        return length(self._find(CacheKey(tokens)))

    def insert(self, key: CacheKey, values: Sequence[int]) -> int:
        self._make_sure_it_fits(key)
        tensor = engine().torch.tensor(values, dtype=engine().torch.int64)
        wanted = engine().InsertParams(key=radix_key(key), value=tensor)
        there: int = self.tree.insert(wanted).prefix_len
        freed, duplicates = self.ledger.take(), list(values[:there])
        if freed and freed != duplicates:
            raise RuntimeError(f"insert gave back {freed}, expected the duplicates {duplicates}")
        return there

    def lock(self, handle: Handle) -> None:
        handle.receipts.append(lock(self.tree, handle.node))

    def unlock(self, handle: Handle) -> None:
        if not handle.receipts:
            raise ValueError("handle: expected a locked one, got one without a receipt of a lock")
        unlock(self.tree, handle.receipts.pop())

    def evict(self, num_tokens: int) -> list[int]:
        self.tree.evict(engine().EvictParams(num_tokens=num_tokens))
        return self.ledger.take()

    def reset(self) -> None:
        self.tree.reset()

    def counters(self) -> IndexCounters:
        return IndexCounters(
            evictable=self.tree.evictable_size(),
            protected=self.tree.protected_size(),
            total=self._total(),
        )

    def _find(self, key: CacheKey) -> Any:
        return self.tree.match_prefix(engine().MatchPrefixParams(key=radix_key(key)))

    def _make_sure_it_fits(self, key: CacheKey) -> None:
        """A pool of `capacity` slots would have none left for the rest of this key."""
        if self.capacity is None:
            return
        needed = self._total() + len(key.tokens) // self.page_size * self.page_size
        if needed > self.capacity:
            needed -= length(self._find(key))
        if needed > self.capacity:
            raise OutOfBlocks(f"{needed} tokens would be stored, {self.capacity} may be")

    def _total(self) -> int:
        total: int = self.tree.total_size()
        return total


class RadixCacheIndex(SglangIndex):
    """The older tree, whose nodes can be looked at."""

    def __init__(self, capacity: int | None, page_size: int) -> None:
        super().__init__("radix", capacity, page_size)

    def walk(self) -> list[Node]:
        return [_snapshot(node, node.value, node.lock_ref) for node in _below(self.tree.root_node)]


class UnifiedIndex(SglangIndex):
    """A unified tree, which has a match that changes nothing."""

    def peek(self, key: CacheKey) -> int:
        hit: int = self.tree.tree_core.match_full_device_prefix(radix_key(key))[0]
        return hit

    def walk(self) -> list[Node]:
        """Only for the Python core, whose nodes can be looked at."""
        (full,) = engine().components
        nodes = [
            (node, node.component_data[full]) for node in _below(self.tree.tree_core.root_node)
        ]
        return [_snapshot(node, data.value, data.lock_ref) for node, data in nodes]

    def _total(self) -> int:
        full: int = self.tree.total_size()[0]
        return full


def _below(root: Any) -> Iterator[Any]:
    """All nodes but the root, parents first."""
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()


def _snapshot(node: Any, value: Any, locks: int) -> Node:
    return Node(
        id=node.id,
        parent=node.parent.id if node.parent.parent is not None else None,
        tokens=tuple(node.key.raw_token_ids()),
        values=tuple(value.tolist()),
        locks=locks,
    )


for _name in TREES:
    _factory = RadixCacheIndex if _name == "radix" else partial(UnifiedIndex, _name)
    implementation(
        f"sglang-{_name}-index",
        kind=PrefixIndex,
        declaration=declare(_name),
        package=PACKAGE,
        install=INSTALL,
    )(_factory)
