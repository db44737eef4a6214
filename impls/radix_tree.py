"""RadixAttention's prefix tree: which KV is resident, and in which blocks of the paged pool.

A compressed tree over token sequences. A path from a root spells a prefix; a node stands for the
tokens at positions [start, end) of every prefix below it. The tree is token-granular, the pool it
points into is paged: position p of a prefix lies in block index ``p // B``. The two meet in the
rules of ownership:

* A node owns the blocks of indices start // B up to its end. A node that starts inside a block
  owns that block whole, with its own copy of the tokens before it: two continuations of one
  half-filled block need two blocks.
* A node that ends inside a block owns this last block, its *tail*, as long as it is a leaf. Below
  an inner node the first block of any child holds the same tokens, so the tail is let go.
* So the table of a path is found by laying each node's blocks over those of its parent, and every
  block belongs to exactly one node.

Requests *pin* the node up to whose end the tree's blocks stand in their table; a pin locks the
path up to the root. A pinned node keeps its tail, also as an inner node: it is in a table.

* A locked node's blocks all stand in live tables, an unlocked node's in none: a table that shares
  a prefix of a thousand blocks counts as one lock on each node, not on each block, and `idle`, the
  blocks of unlocked nodes, is exactly what eviction can free.
* The unlocked nodes form one list by recency. A path becomes unlocked from its deepest node up,
  and a node cannot be locked below an unlocked one; so a child always comes before its parent,
  the head of the list is a leaf, and the least recent block is found at once.
* A split leaves the given node as the lower part, pins and place in the list included, and puts a
  new node above it: no handle, lock or order notices.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvassay.harness.contract import CacheEvent, Counters
from kvassay.impls.block_pool import BlockPool
from kvassay.impls.radix_events import EventLog
from kvassay.impls.radix_key import Contents, Elements, Space, common
from kvassay.impls.radix_state import TreeNode


class RadixTree:
    """The tree of all spaces, and the order in which its blocks are evicted."""

    __slots__ = ("_block_size", "_list", "_log", "_pool", "_roots", "contents", "idle")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.idle = 0  # blocks of unlocked nodes
        self.contents = Contents()
        self._pool = pool
        self._block_size = block_size
        self._roots: dict[Space, TreeNode] = {}
        self._log = EventLog(self.contents)
        self._list = _empty_list()

    # ------------------------------------------------------------------------------------ look-up

    def root(self, space: Space) -> TreeNode:
        """The root of a space; a new one becomes part of the tree when it is pinned."""
        return self._roots.get(space) or TreeNode.root(space)

    def descend(self, node: TreeNode, elements: Elements, stop: int) -> tuple[TreeNode, int]:
        """Follow elements[node.end:stop] down from `node`, as far as they are resident.

        Returns the last node entered and the position reached, which may lie inside it.
        """
        position = node.end
        while position < stop:
            child = node.children.get(elements[position])
            if child is None:
                break
            if child.writer is not None:
                self.settle(child)
            reach = min(stop, child.end)
            if elements[position:reach] != child.elements[: reach - position]:
                reach = position + common(elements[position:reach], child.elements)
            node, position = child, reach
            if position < child.end:
                break
        return node, position

    def owner(self, node: TreeNode, index: int) -> TreeNode:
        """The node that owns the block of `index`, through which the path to `node` runs.

        Where `node` has let go of its tail, that is the first descendant that has it.
        """
        while index - node.start // self._block_size >= len(node.blocks):
            node = next(iter(node.children.values()))
            if node.writer is not None:
                self.settle(node)
        return node

    def block(self, node: TreeNode, index: int) -> int:
        """The block of `index` that `node` owns."""
        return node.blocks[index - node.start // self._block_size]

    def path_blocks(self, node: TreeNode, below: TreeNode | None = None) -> list[int]:
        """The table of the path down to `node`, from the block in which `below` ends if given."""
        path = []
        above: TreeNode | None = node
        while above is not below and above is not None:
            path.append(above)
            above = above.parent
        first = below.end // self._block_size if below is not None else 0
        table: list[int] = []
        for node in reversed(path):
            del table[node.start // self._block_size - first :]
            table += node.blocks
        return table

    def idle_blocks(self, node: TreeNode, count: int) -> int:
        """How many of the first `count` blocks of the path to `node` are idle."""
        idle = 0
        above: TreeNode | None = node
        while above is not None and not above.locks:
            held = min(len(above.blocks), count - above.start // self._block_size)
            idle += max(0, held)
            above = above.parent
        return idle

    def nodes(self) -> Iterator[TreeNode]:
        """Every node that has tokens, parents first."""
        below = [child for root in self._roots.values() for child in root.children.values()]
        while below:
            node = below.pop()
            yield node
            below += node.children.values()

    # ----------------------------------------------------------------------------------- counting

    def available(self) -> int:
        """How many blocks can be handed out: the free ones, and the idle ones after eviction."""
        return len(self._pool.free) + self.idle

    def counters(self) -> Counters:
        """Blocks by state."""
        free, total = len(self._pool.free), len(self._pool.users)
        return Counters(free=free, cached=self.idle, used=total - free - self.idle)

    def tables_at_end(self, node: TreeNode) -> int:
        """How many tables have the last block of a node, or of the path to it, through its pin."""
        return node.pins if node.end % self._block_size else node.locks

    def refcounts(self) -> dict[int, int]:
        """For each block of a locked node, the number of tables that have it."""
        counts: dict[int, int] = {}
        for node in self.nodes():
            if node.locks:
                counts.update(dict.fromkeys(node.blocks, node.locks))
                if self._has_tail(node):
                    counts[node.blocks[-1]] = node.pins
        return counts

    # ------------------------------------------------------------------------------------ pinning

    def cut(self, node: TreeNode, position: int) -> TreeNode:
        """The node on the path to `node` that ends at `position`; splits where there is none."""
        while node.start >= position and node.parent is not None:
            node = node.parent
        return self._split(node, position) if position < node.end else node

    def pin(self, node: TreeNode) -> None:
        """One more request has the blocks down to `node` in its table."""
        node.pins += 1
        above: TreeNode | None = node
        while above is not None:
            self.end_writing(above)
            if above.older is not None:
                _unlink(above)
            if not above.locks:
                self.idle -= len(above.blocks)
            above.locks += 1
            node, above = above, above.parent
        self._roots[node.space] = node

    def unpin(self, node: TreeNode) -> None:
        """A request lets go of `node`; what nobody locks any more is now the most recent."""
        self.end_writing(node)
        node.pins -= 1
        if node.children and not node.pins:
            self._drop_tail(node)
        while True:
            node.locks -= 1
            if node.parent is None:
                break
            if not node.locks:
                assert self._list.older is not None
                _link(node, after=self._list.older)
                self.idle += len(node.blocks)
            node = node.parent
        self._forget_if_empty(node)

    def _split(self, node: TreeNode, position: int) -> TreeNode:
        """Cut `node` in two at `position`; returns the new upper part."""
        assert node.parent is not None
        count = position - node.start
        first = node.start // self._block_size
        held = position // self._block_size - first
        upper = TreeNode(
            node.parent, node.space, node.start, node.elements[:count], node.blocks[:held]
        )
        upper.entries = node.entries[:count]
        upper.locks = node.locks
        node.parent.children[upper.elements[0]] = upper
        node.parent = upper
        node.start = position
        node.elements = node.elements[count:]
        node.entries = node.entries[count:]
        node.blocks = node.blocks[held:]
        upper.children[node.elements[0]] = node
        if node.older is not None:
            _link(upper, after=node)
        return upper

    # ----------------------------------------------------------------------------------- growing

    def settle(self, leaf: TreeNode) -> None:
        """Take over what the writer of a leaf has committed since."""
        writer = leaf.writer
        assert writer is not None
        stop = writer.publishable
        if stop > leaf.end:
            first, last = -(-leaf.end // self._block_size), -(-stop // self._block_size)
            self.extend(leaf, writer.elements[leaf.end : stop], writer.table[first:last])

    def end_writing(self, node: TreeNode) -> None:
        """A writer, if there is one, must ask from now on: others share the node, or it leaves."""
        if node.writer is not None:
            self.settle(node)
            node.writer.room = 0
            node.writer = None

    def extend(self, leaf: TreeNode, elements: Elements, blocks: list[int]) -> None:
        """Append to a leaf what its request has written since; `blocks` are the further ones."""
        leaf.entries += self._log.stored(_last_entry(leaf), elements, leaf.space)
        leaf.elements += elements
        leaf.end += len(elements)
        leaf.blocks += blocks

    def attach(self, parent: TreeNode, elements: Elements, blocks: list[int]) -> TreeNode:
        """A new leaf below `parent`, to be pinned at once; its blocks stand in a live table."""
        leaf = TreeNode(parent, parent.space, parent.end, elements, blocks)
        leaf.entries = self._log.stored(_last_entry(parent), elements, parent.space)
        if not parent.pins:
            self._drop_tail(parent)
        parent.children[elements[0]] = leaf
        self.idle += len(blocks)
        return leaf

    def branch_off(self, node: TreeNode, parent: TreeNode, elements: Elements) -> None:
        """Make the pinned tail of an inner node a leaf of its own below `parent`.

        `parent` is that node, or a descendant that ends in the same block. Whoever pins the node
        now pins the leaf, which has the very same blocks above it; a new node takes over the rest.
        """
        assert node.parent is not None
        self.end_writing(parent)
        upper = TreeNode(node.parent, node.space, node.start, node.elements, node.blocks[:-1])
        upper.entries = node.entries
        upper.children = node.children
        upper.locks = node.locks
        node.parent.children[upper.elements[0]] = upper
        for child in upper.children.values():
            child.parent = upper
        if parent is node:
            parent = upper
        node.parent = parent
        node.start = parent.end
        node.end = node.start + len(elements)
        node.elements = elements
        node.entries = self._log.stored(_last_entry(parent), elements, node.space)
        node.blocks = node.blocks[-1:]
        node.children = {}
        node.locks = node.pins
        if not parent.pins:
            self._drop_tail(parent)
        parent.children[elements[0]] = node
        while parent is not upper:  # these have no blocks: the whole way lies in one block
            if parent.older is not None:
                _unlink(parent)
            parent.locks += node.pins
            assert parent.parent is not None
            parent = parent.parent

    # ----------------------------------------------------------------------------------- eviction

    def make_room(self, count: int, keep: int = -1) -> None:
        """Evict until `count` blocks are free or none is left; spares the block `keep`."""
        while len(self._pool.free) < count and self._evict(count - len(self._pool.free), keep):
            pass

    def remove_below(self, node: TreeNode) -> None:
        """Remove an unlocked node and all below it."""
        while node.parent is not None:
            leaf = node
            while leaf.children:
                leaf = next(iter(leaf.children.values()))
            self._drop_blocks(leaf, 0)

    def reset(self) -> None:
        """Forget everything; no node is locked."""
        node = self._list.newer
        while node is not None and node is not self._list:
            for block in node.blocks:
                self._pool.drop(block)
            node = node.newer
        self.idle = 0
        self._list = _empty_list()
        self._roots.clear()
        self._log.cleared()

    def _evict(self, count: int, keep: int) -> bool:
        """Evict up to `count` least recent blocks: the last ones of the leaf at the list's head."""
        node = self._list.newer
        assert node is not None
        # The leaf that ends in `keep` is passed over, and then so are the nodes above it.
        while node.children or (node.blocks and node.blocks[-1] == keep):
            node = node.newer
            assert node is not None
        if node is self._list:
            return False
        first = max(0, len(node.blocks) - count)
        if keep in node.blocks[first:]:
            first = node.blocks.index(keep) + 1
        self._drop_blocks(node, first)
        return True

    def _drop_blocks(self, leaf: TreeNode, first: int) -> None:
        """Take the blocks of an unlocked leaf from its own `first` on, the last one first."""
        dropped = leaf.blocks[first:]
        del leaf.blocks[first:]
        self.idle -= len(dropped)
        self._cut_back(leaf, (leaf.start // self._block_size + first) * self._block_size)
        for block in reversed(dropped):
            self._pool.drop(block)

    def _cut_back(self, node: TreeNode, boundary: int) -> None:
        """Take away what a leaf, and a path that only led to it, have in a block that goes."""
        while True:
            kept = max(0, boundary - node.start)
            self._log.removed(node.entries, kept)
            if kept:
                del node.elements[kept:], node.entries[kept:]
                node.end = boundary
                return
            parent = node.parent
            assert parent is not None
            del parent.children[node.elements[0]]
            node.parent = None
            if node.older is not None:
                _unlink(node)
            if parent.parent is None:
                self._forget_if_empty(parent)
                return
            if parent.children or not parent.end % self._block_size or self._has_tail(parent):
                return
            node = parent

    def _has_tail(self, node: TreeNode) -> bool:
        full = node.end // self._block_size - node.start // self._block_size
        return len(node.blocks) > full

    def _drop_tail(self, node: TreeNode) -> None:
        if self._has_tail(node):
            self.idle -= not node.locks
            self._pool.drop(node.blocks.pop())

    def _forget_if_empty(self, root: TreeNode) -> None:
        if not root.children and not root.locks:
            self._roots.pop(root.space, None)

    # ------------------------------------------------------------------------------------- events

    def take_events(self) -> list[CacheEvent]:
        """Events since the last call; the first call describes what is resident."""
        if not self._log.recording:
            self._log.recording = True
            for node in self.nodes():
                assert node.parent is not None
                node.entries = self._log.stored(_last_entry(node.parent), node.elements, node.space)
        return self._log.take()


def _last_entry(node: TreeNode) -> int | None:
    return node.entries[-1] if node.entries else None


def _empty_list() -> TreeNode:
    """The sentinel of a ring: `newer` leads from it to the oldest node, `older` to the newest."""
    sentinel = TreeNode.root((None, None))
    sentinel.older = sentinel.newer = sentinel
    return sentinel


def _link(node: TreeNode, after: TreeNode) -> None:
    newer = after.newer
    assert newer is not None
    node.older, node.newer = after, newer
    after.newer = newer.older = node


def _unlink(node: TreeNode) -> None:
    older, newer = node.older, node.newer
    assert older is not None
    assert newer is not None
    older.newer, newer.older = newer, older
    node.older = node.newer = None
