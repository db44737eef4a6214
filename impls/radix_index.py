"""`radix-index`: the tree of RadixAttention by itself, token values in, token values out.

A compressed tree whose symbol is a page of `page_size` tokens: a path from a root spells a
prefix, an edge carries one or more pages and, for each, the values that were inserted with it
(slot numbers, for a cache that is built on top). A key is cut to whole pages before anything
else, so that nothing in here knows of tokens that do not fill one.

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
from collections.abc import Iterator, Sequence
from operator import index as as_int
from typing import TypeAlias

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
from kvassay.impls.radix_key import Element, Space, elements_of, space_of, tokens_of

Page: TypeAlias = tuple[Element, ...]
Values: TypeAlias = tuple[int, ...]

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
    """Pages below those of the parent, and their values."""

    __slots__ = ("children", "id", "locks", "pages", "parent", "used", "values")

    def __init__(
        self, number: int, parent: Node | None, pages: list[Page], values: list[Values]
    ) -> None:
        self.id = number
        self.parent = parent
        self.pages = pages
        self.values = values
        self.children: dict[Page, Node] = {}  # by their first page
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
        self._total = 0  # pages
        self._protected = 0  # pages of locked nodes
        self._clock = 0  # one tick for each access
        self._version = 0  # one for each change of what is stored
        self._count = 0  # nodes made so far

    # ------------------------------------------------------------------------------- operating

    def match(self, key: CacheKey) -> Match:
        """Longest stored prefix in whole pages, its values, and a handle to lock it by."""
        pages = self._pages_of(key)
        node, found = self._descend(self._root(key), pages)
        self._touch(node)
        values = [value for page in self._path_values(node) for value in page]
        return Match(found * self.page_size, values, Handle(node, self._version))

    def insert(self, key: CacheKey, values: Sequence[int]) -> int:
        """Store a key; the caller keeps the values of what was there and of an unaligned tail.

        Returns how many leading tokens were there. `OutOfBlocks` if the rest does not fit.
        """
        pages = self._pages_of(key)
        paged = self._paged_values(key, values)
        found = self._follow(self._root(key), pages)[2]
        self._check_room(len(pages) - found)
        node, found = self._descend(self._root(key), pages)
        if found < len(pages):
            node = self._attach(key, node, pages[found:], paged[found : len(pages)])
        self._touch(node)
        return found * self.page_size

    def peek(self, key: CacheKey) -> int:
        """Length of the longest stored prefix; changes nothing."""
        return self._follow(self._root(key), self._pages_of(key))[2] * self.page_size

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
        wanted = -(-whole(num_tokens, "num_tokens", 1) // self.page_size)
        queue = [(self._rank(leaf), leaf.id, leaf) for leaf in self._evictable_leaves()]
        heapq.heapify(queue)
        freed: list[Values] = []
        while queue and len(freed) < wanted:
            leaf = heapq.heappop(queue)[2]
            freed += self._shorten(leaf, wanted - len(freed))
            parent = leaf.parent
            if not leaf.pages and parent is not None and self._is_evictable_leaf(parent):
                heapq.heappush(queue, (self._rank(parent), parent.id, parent))
        self._roots = {space: root for space, root in self._roots.items() if root.children}
        return [value for page in freed for value in page]

    def reset(self) -> None:
        """Forget everything; `ValueError` while anything is locked."""
        if self._protected:
            raise ValueError(
                f"reset: {self._protected * self.page_size} tokens are locked; unlock them first"
            )
        self._roots.clear()
        self._total = 0
        self._version += 1

    # ------------------------------------------------------------------------------ inspecting

    def counters(self) -> IndexCounters:
        """Tokens that can be evicted, that are locked, and both."""
        total, protected = self._total * self.page_size, self._protected * self.page_size
        return IndexCounters(evictable=total - protected, protected=protected, total=total)

    def walk(self) -> list[Snapshot]:
        """Every node, parents first; what hangs from a root has no parent."""
        return [
            Snapshot(
                id=node.id,
                parent=None if self._is_root(node.parent) else node.parent.id,
                tokens=tokens_of([element for page in node.pages for element in page]),
                values=tuple(value for page in node.values for value in page),
                locks=node.locks,
            )
            for node in self._nodes()
            if node.parent is not None
        ]

    # ------------------------------------------------------------------------------------- keys

    def _pages_of(self, key: CacheKey) -> list[Page]:
        """The whole pages of a key."""
        elements, size = elements_of(key), self.page_size
        stop = len(elements) // size * size
        return [tuple(elements[start : start + size]) for start in range(0, stop, size)]

    def _paged_values(self, key: CacheKey, values: Sequence[int]) -> list[Values]:
        """One value for each token, as pages."""
        try:
            numbers = [as_int(value) for value in values]
        except TypeError:
            raise ValueError(f"values: expected a sequence of ints, got {values!r}") from None
        if len(numbers) != len(key.tokens):
            raise ValueError(f"values: expected {len(key.tokens)}, one a token, got {len(numbers)}")
        size = self.page_size
        return [tuple(numbers[start : start + size]) for start in range(0, len(numbers), size)]

    def _root(self, key: CacheKey) -> Node:
        """The root of the key's space; a new one is part of the tree once something hangs on it."""
        return self._roots.get(space_of(key)) or self._new_node(None, [], [])

    def _check_handle(self, handle: Handle) -> None:
        if not isinstance(handle, Handle):
            raise ValueError(f"handle: expected what a match returned, got {handle!r}")

    # ----------------------------------------------------------------------------------- the tree

    def _new_node(self, parent: Node | None, pages: list[Page], values: list[Values]) -> Node:
        self._count += 1
        return Node(self._count, parent, pages, values)

    def _follow(self, root: Node, pages: list[Page]) -> tuple[Node, int, int]:
        """Go down as far as pages agree.

        Returns the last node entered, how many of its pages agree, and how many do in all.
        """
        node, inside, found = root, 0, 0
        while inside == len(node.pages) and found < len(pages):
            child = node.children.get(pages[found])
            if child is None:
                break
            node, inside = child, common(child.pages, pages[found:])
            found += inside
        return node, inside, found

    def _descend(self, root: Node, pages: list[Page]) -> tuple[Node, int]:
        """Like `_follow`, but the node returned ends where the agreement does."""
        node, inside, found = self._follow(root, pages)
        if inside < len(node.pages):
            node = self._split(node, inside)
        return node, found

    def _split(self, node: Node, count: int) -> Node:
        """Give the first `count` pages of a node to a new node above it; returns that one."""
        upper = self._new_node(node.parent, node.pages[:count], node.values[:count])
        upper.locks, upper.used = node.locks, node.used
        assert node.parent is not None
        node.parent.children[upper.pages[0]] = upper
        node.parent = upper
        node.pages, node.values = node.pages[count:], node.values[count:]
        upper.children[node.pages[0]] = node
        return upper

    def _attach(self, key: CacheKey, node: Node, pages: list[Page], values: list[Values]) -> Node:
        """A new leaf below `node`."""
        leaf = self._new_node(node, pages, values)
        if node.parent is None:
            self._roots[space_of(key)] = node
        node.children[pages[0]] = leaf
        self._total += len(pages)
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
            self._protected += (bool(each.locks) - bool(before)) * len(each.pages)

    # --------------------------------------------------------------------------------- eviction

    def _check_room(self, num_pages: int) -> None:
        needed = (self._total + num_pages) * self.page_size
        if num_pages and self.capacity is not None and needed > self.capacity:
            raise OutOfBlocks(f"{needed} tokens would be stored, {self.capacity} may be")

    def _evictable_leaves(self) -> Iterator[Node]:
        return (node for node in self._nodes() if self._is_evictable_leaf(node))

    def _is_evictable_leaf(self, node: Node) -> bool:
        return node.parent is not None and not node.children and not node.locks

    def _rank(self, leaf: Node) -> int:
        """The leaf with the lowest one goes first. No two are equal: an access has one leaf."""
        return leaf.used

    def _shorten(self, leaf: Node, num_pages: int) -> list[Values]:
        """Take pages off the end of a leaf, and the leaf away if none is left."""
        kept = max(0, len(leaf.pages) - num_pages)
        freed = leaf.values[kept:]
        first = leaf.pages[0]
        del leaf.pages[kept:], leaf.values[kept:]
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

    def _path_values(self, node: Node) -> list[Values]:
        path = list(self._path(node))
        return [page for each in reversed(path) for page in each.values]

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


def common(left: Sequence[Page], right: Sequence[Page]) -> int:
    """Pages that two sequences have in common at their start."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
