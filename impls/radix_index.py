"""`radix-index`: the tree of RadixAttention by itself, token values in, token values out.

A compressed tree whose symbol is a page of `page_size` tokens: a path from a root spells a
prefix, an edge carries one or more pages and, for each token, the value that was inserted with it
(slot numbers, for a cache that is built on top). A key is cut to whole pages before anything
else, so that nothing in here knows of tokens that do not fill one; lengths are in tokens.

* Where an access ends inside an edge, the edge is split. The node that was there stays the lower
  part: whoever holds it goes on to hold the very same prefix. The new upper part takes over its
  locks and the time of its last access.
* An access counts for the prefix that it found or stored, and for nothing below: it splits
  first and stamps afterwards.
* A lock covers the path from its node up to the root, so a locked node never hangs below an
  unlocked one, and what is not locked can be freed leaf by leaf.
* Eviction takes the leaf whose last access is longest ago, and from it only as many pages as are
  asked for, from its end.

Salt and adapter choose the root; the content of a multimodal span is part of its page.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Sequence
from operator import index as as_int

from kvassay.harness.contract import (
    CacheKey,
    Capability,
    Declaration,
    Granularity,
    IndexCounters,
    Match,
    Order,
    OutOfBlocks,
    PrefixIndex,
    Stamp,
)
from kvassay.harness.contract import Node as Snapshot
from kvassay.harness.registry import implementation
from kvassay.impls.inputs import whole
from kvassay.impls.radix_key import Contents, Elements, Space, common, elements_of, space_of

DECLARATION = Declaration(
    capabilities=frozenset(
        {
            Capability.LOCK,
            Capability.EVICT,
            Capability.RESET,
            Capability.PEEK,
            Capability.WALK,
            Capability.COUNTERS,
            Capability.SALT,
            Capability.ADAPTER,
            Capability.SPANS,
            Capability.VALIDATES_INPUT,
        }
    ),
    order=Order.LRU,
    stamps=frozenset({Stamp.HIT, Stamp.COMMIT}),
    granularity=Granularity.PAGE,
)


class Node:
    """Whole pages below those of the parent, and their values."""

    __slots__ = ("children", "elements", "id", "locks", "parent", "used", "values")

    def __init__(
        self, number: int, parent: Node | None, elements: Elements, values: list[int]
    ) -> None:
        self.id = number
        self.parent = parent
        self.elements = elements
        self.values = values  # one for each element
        self.children: dict[bytes, Node] = {}  # by their first page
        self.locks = 0  # locks of this node and of all below it
        self.used = 0  # time of the last access


class Handle:
    """What a match found: the node that ends its prefix. To be passed back, not looked into."""

    __slots__ = ("locks", "node", "version")

    def __init__(self, node: Node, version: int) -> None:
        self.node = node
        self.version = version
        self.locks = 0


@implementation("radix-index", kind=PrefixIndex, declaration=DECLARATION)
class RadixIndex:
    """Longest-prefix matching with locks and least-recently-used eviction."""

    def __init__(self, capacity: int | None, page_size: int) -> None:
        self.page_size = whole(page_size, "page_size", 1)
        self.capacity = None if capacity is None else whole(capacity, "capacity", 0)
        self._roots: dict[Space, Node] = {}
        self._contents = Contents()
        self._total = 0  # tokens
        self._protected = 0  # tokens of locked nodes
        self._clock = 0  # one tick for each access
        self._version = 0  # one for each change of what is stored
        self._count = 0  # nodes made so far

    # ------------------------------------------------------------------------------- operating

    def match(self, key: CacheKey) -> Match:
        """Longest stored prefix in whole pages, its values, and a handle to lock it by."""
        node, found = self._descend(self._root(key), self._whole_pages(key))
        self._touch(node)
        return Match(found, self._path_values(node), Handle(node, self._version))

    def insert(self, key: CacheKey, values: Sequence[int]) -> int:
        """Store a key; the caller keeps the values of what was there and of an unaligned tail.

        Returns how many leading tokens were there. `OutOfBlocks` if the rest does not fit.
        """
        elements = self._whole_pages(key)
        numbers = self._checked_values(key, values)
        found = self._follow(self._root(key), elements)[2]
        self._check_room(len(elements) - found)
        node, found = self._descend(self._root(key), elements)
        if found < len(elements):
            node = self._attach(key, node, elements[found:], numbers[found : len(elements)])
        self._touch(node)
        return found

    def peek(self, key: CacheKey) -> int:
        """Length of the longest stored prefix; changes nothing."""
        return self._follow(self._root(key), self._whole_pages(key))[2]

    def lock(self, handle: Handle) -> None:
        """Protect the whole path of a match from eviction, until it is unlocked as often."""
        self._check_handle(handle)
        if not handle.locks and handle.version != self._version:
            raise KeyError("handle: what it matched has changed since; match again, then lock")
        handle.locks += 1
        self._add_locks(handle.node, 1)

    def unlock(self, handle: Handle) -> None:
        """Take one lock back."""
        self._check_handle(handle)
        if not handle.locks:
            raise ValueError("handle: expected a locked one, got one without a lock")
        handle.locks -= 1
        self._add_locks(handle.node, -1)

    def evict(self, num_tokens: int) -> list[int]:
        """Free at least `num_tokens`, in whole pages, as far as no lock forbids it.

        Returns the values that were freed.
        """
        size = self.page_size
        wanted = -(-whole(num_tokens, "num_tokens", 1) // size) * size
        queue = [(self._rank(leaf), leaf.id, leaf) for leaf in self._evictable_leaves()]
        heapq.heapify(queue)
        freed: list[int] = []
        while queue and len(freed) < wanted:
            leaf = heapq.heappop(queue)[2]
            freed += self._shorten(leaf, wanted - len(freed))
            parent = leaf.parent
            if not leaf.elements and parent is not None and self._is_evictable_leaf(parent):
                heapq.heappush(queue, (self._rank(parent), parent.id, parent))
        self._roots = {space: root for space, root in self._roots.items() if root.children}
        return freed

    def reset(self) -> None:
        """Forget everything; `ValueError` while anything is locked."""
        if self._protected:
            raise ValueError(f"reset: {self._protected} tokens are locked; unlock them first")
        self._roots.clear()
        self._total = 0
        self._version += 1

    # ------------------------------------------------------------------------------ inspecting

    def counters(self) -> IndexCounters:
        """Tokens that can be evicted, that are locked, and both."""
        return IndexCounters(
            evictable=self._total - self._protected, protected=self._protected, total=self._total
        )

    def walk(self) -> list[Snapshot]:
        """Every node, parents first; what hangs from a root has no parent."""
        return [
            Snapshot(
                id=node.id,
                parent=None if self._is_root(node.parent) else node.parent.id,
                tokens=self._contents.tokens_of(node.elements),
                values=tuple(node.values),
                locks=node.locks,
            )
            for node in self._nodes()
            if node.parent is not None
        ]

    # ------------------------------------------------------------------------------------- keys

    def _whole_pages(self, key: CacheKey) -> Elements:
        """A key without the tokens at its end that fill no page."""
        if self._contents.crowded:
            self._contents.keep(node.elements for node in self._nodes())
        elements = elements_of(key, self._contents)
        del elements[len(elements) // self.page_size * self.page_size :]
        return elements

    def _checked_values(self, key: CacheKey, values: Sequence[int]) -> list[int]:
        """The values, one for each token of the key."""
        try:
            numbers = [as_int(value) for value in values]
        except TypeError:
            raise ValueError(f"values: expected a sequence of ints, got {values!r}") from None
        if len(numbers) != len(key.tokens):
            raise ValueError(f"values: expected {len(key.tokens)}, one a token, got {len(numbers)}")
        return numbers

    def _root(self, key: CacheKey) -> Node:
        """The root of the key's space; a new one is part of the tree once something hangs on it."""
        return self._roots.get(space_of(key)) or self._new_node(None, array("Q"), [])

    def _check_handle(self, handle: Handle) -> None:
        if not isinstance(handle, Handle):
            raise ValueError(f"handle: expected what a match returned, got {handle!r}")

    # ----------------------------------------------------------------------------------- the tree

    def _new_node(self, parent: Node | None, elements: Elements, values: list[int]) -> Node:
        self._count += 1
        return Node(self._count, parent, elements, values)

    def _page(self, elements: Elements, start: int = 0) -> bytes:
        """The page that starts at a position, as children are found by it."""
        return elements[start : start + self.page_size].tobytes()

    def _follow(self, root: Node, elements: Elements) -> tuple[Node, int, int]:
        """Go down as far as pages agree.

        Returns the last node entered, how many of its tokens agree, and how many do in all.
        """
        node, inside, found = root, 0, 0
        while inside == len(node.elements) and found < len(elements):
            child = node.children.get(self._page(elements, found))
            if child is None:
                break
            node, inside = child, self._agreeing(child.elements, elements[found:])
            found += inside
        return node, inside, found

    def _agreeing(self, left: Elements, right: Elements) -> int:
        """Tokens of the pages that two runs have in common at their start."""
        return common(left, right) // self.page_size * self.page_size

    def _descend(self, root: Node, elements: Elements) -> tuple[Node, int]:
        """Like `_follow`, but the node returned ends where the agreement does."""
        node, inside, found = self._follow(root, elements)
        if inside < len(node.elements):
            node = self._split(node, inside)
        return node, found

    def _split(self, node: Node, count: int) -> Node:
        """Give the first `count` tokens of a node to a new node above it; returns that one."""
        upper = self._new_node(node.parent, node.elements[:count], node.values[:count])
        upper.locks, upper.used = node.locks, node.used
        assert node.parent is not None
        node.parent.children[self._page(upper.elements)] = upper
        node.parent = upper
        node.elements, node.values = node.elements[count:], node.values[count:]
        upper.children[self._page(node.elements)] = node
        return upper

    def _attach(self, key: CacheKey, node: Node, elements: Elements, values: list[int]) -> Node:
        """A new leaf below `node`."""
        leaf = self._new_node(node, elements, values)
        if node.parent is None:
            self._roots[space_of(key)] = node
        node.children[self._page(elements)] = leaf
        self._total += len(elements)
        self._version += 1
        return leaf

    def _touch(self, node: Node) -> None:
        """An access of the prefix that ends with `node`."""
        self._clock += 1
        for each in self._path(node):
            each.used = self._clock

    def _add_locks(self, node: Node, number: int) -> None:
        for each in self._path(node):
            before = each.locks
            each.locks += number
            self._protected += (bool(each.locks) - bool(before)) * len(each.elements)

    # --------------------------------------------------------------------------------- eviction

    def _check_room(self, num_tokens: int) -> None:
        needed = self._total + num_tokens
        if num_tokens and self.capacity is not None and needed > self.capacity:
            raise OutOfBlocks(f"{needed} tokens would be stored, {self.capacity} may be")

    def _evictable_leaves(self) -> Iterator[Node]:
        return (node for node in self._nodes() if self._is_evictable_leaf(node))

    def _is_evictable_leaf(self, node: Node) -> bool:
        return node.parent is not None and not node.children and not node.locks

    def _rank(self, leaf: Node) -> int:
        """The leaf with the lowest one goes first. No two are equal: an access has one leaf."""
        return leaf.used

    def _shorten(self, leaf: Node, num_tokens: int) -> list[int]:
        """Take pages off the end of a leaf, and the leaf away if none is left."""
        kept = max(0, len(leaf.elements) - num_tokens)
        freed = leaf.values[kept:]
        first = self._page(leaf.elements)
        del leaf.elements[kept:], leaf.values[kept:]
        if not kept:
            assert leaf.parent is not None
            del leaf.parent.children[first]
        self._total -= len(freed)
        self._version += 1
        return freed

    # ------------------------------------------------------------------------------ getting about

    def _path(self, node: Node) -> Iterator[Node]:
        """The node and those above it, the root left out."""
        while node.parent is not None:
            yield node
            node = node.parent

    def _path_values(self, node: Node) -> list[int]:
        values: list[int] = []
        for each in reversed(list(self._path(node))):
            values += each.values
        return values

    def _nodes(self) -> Iterator[Node]:
        """All nodes, roots included, parents first."""
        below = list(self._roots.values())
        while below:
            node = below.pop()
            yield node
            below += node.children.values()

    @staticmethod
    def _is_root(node: Node | None) -> bool:
        return node is None or node.parent is None
