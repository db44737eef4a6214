"""How a live request stands to the radix tree: growing, shrinking and publishing its table.

Invariants:

* ``table[:ceil(node.end / B)]`` are the blocks of the path to the request's pinned `node`; all
  further blocks of the table are its own, or shared with its forks, and unknown to the tree.
* Nothing that others can read is ever overwritten. A request writes into a partially filled last
  block only if no other table holds it and the tree publishes nothing at or past that position;
  otherwise it writes into a fresh copy, and its pin moves up to the start of that block.
* A prefix computed twice is kept once. Full blocks that the tree has already replace the
  request's own; a partial one stays private, since the next token may tell the two apart.
"""

from __future__ import annotations

from kvassay.harness.contract import OutOfBlocks
from kvassay.impls.block_pool import BlockPool
from kvassay.impls.radix_key import Element
from kvassay.impls.radix_tree import RadixTree, TreeNode


class RadixRequest:
    """One live request."""

    __slots__ = ("committed", "drafts", "elements", "node", "slots", "table")

    def __init__(self, elements: list[Element], node: TreeNode, table: list[int]) -> None:
        self.elements = elements  # the whole prompt, and what was appended
        self.node = node  # pinned
        self.table = table
        self.slots = 0  # leading tokens that have slots
        self.committed = 0  # leading tokens whose KV is written
        self.drafts = 0  # trailing tokens that are not yet accepted


def require(need: int, room: int) -> None:
    """Refuse an operation that needs more blocks than can be had."""
    if need > room:
        raise OutOfBlocks(f"{need} blocks needed, {room} free or evictable")


class RequestTables:
    """The operations on requests' tables that a manager is made of."""

    __slots__ = ("_block_size", "_pool", "_tree", "copies")

    def __init__(self, pool: BlockPool, tree: RadixTree, block_size: int) -> None:
        self._pool = pool
        self._tree = tree
        self._block_size = block_size
        self.copies: list[tuple[int, int]] = []

    def blocks(self, length: int) -> int:
        """How many blocks hold `length` tokens."""
        return -(-length // self._block_size)

    def share(self, elements: list[Element], node: TreeNode, end: int) -> RadixRequest:
        """A request whose table is the path to `node` as far as position `end`, which is pinned."""
        node = self._tree.cut(node, end)
        self._tree.pin(node)
        table = self._tree.path_blocks(node)
        for block in table:
            self._pool.share(block)
        return RadixRequest(elements, node, table)

    def fork(self, state: RadixRequest) -> RadixRequest:
        """A request with the same tokens and the very same blocks."""
        child = RadixRequest(list(state.elements), state.node, list(state.table))
        child.slots = child.committed = state.slots
        self._tree.pin(child.node)
        for block in child.table:
            self._pool.share(block)
        return child

    def leave(self, state: RadixRequest) -> None:
        """Let go of everything, the end of the table first."""
        self._tree.unpin(state.node)
        for block in reversed(state.table):
            self._pool.drop(block)

    def take(self, state: RadixRequest, need: int, source: int = -1) -> None:
        """Add `need` blocks to the table, the first of them as a copy of `source` if given."""
        self._tree.make_room(need, keep=source)
        fresh = self._pool.take(need)
        if source >= 0:
            self.copies.append((source, fresh[0]))
        state.table += fresh

    def grow(self, state: RadixRequest, slots: int) -> None:
        """Slots up to `slots`, with copy-on-write where the last block must stay as it is."""
        table = state.table
        need = self.blocks(slots) - len(table)
        source = -1
        if state.slots % self._block_size:
            alone = self._pool.users[table[-1]] == 1
            if not alone or state.node.end > state.slots:
                if alone and need == self._pool.available():
                    self._withdraw_tail(state)  # nobody else needs it, and no block for a copy
                else:
                    need += 1
                    source = table[-1]
        if need:
            require(need, self._pool.available())
            if source >= 0:
                table.pop()
            self.take(state, need, source)
            if source >= 0:
                self._unpin_tail(state)
                self._pool.drop(source)
        state.slots = slots

    def shorten(self, state: RadixRequest, length: int) -> None:
        """Give back the blocks past `length`; tokens of a prompt not yet reserved stay known."""
        kept = self.blocks(length)
        if state.node.end > kept * self._block_size:
            self._move_pin(state, self._tree.cut(state.node, kept * self._block_size))
        for block in reversed(state.table[kept:]):
            self._pool.drop(block)
        del state.table[kept:]
        if state.slots == len(state.elements):
            del state.elements[length:]
        state.slots = length
        state.committed = min(state.committed, length)

    def _unpin_tail(self, state: RadixRequest) -> None:
        """Pin no more than the start of the block that is written next."""
        start = state.slots // self._block_size * self._block_size
        if state.node.end > start:
            self._move_pin(state, self._tree.cut(state.node, start))

    def _withdraw_tail(self, state: RadixRequest) -> None:
        """Take the last block of the table out of the tree, with all that depends on it."""
        node = state.node
        self._unpin_tail(state)
        if self._pool.cached[state.table[-1]]:
            self._tree.remove_below(node)

    def _move_pin(self, state: RadixRequest, node: TreeNode) -> None:
        self._tree.pin(node)  # first, so that what stays locked is never unlocked in between
        self._tree.unpin(state.node)
        state.node = node

    # --------------------------------------------------------------------------------- publishing

    def publish(self, state: RadixRequest) -> None:
        """Put into the tree what is committed and no draft, and pin it there."""
        stop = min(state.committed, state.slots - state.drafts)
        node = state.node
        if not node.children and node.parent is not None:
            # Decoding: the leaf grows with its request. Past the block it ends in, only if
            # nobody else pins it, since the others do not have the further blocks.
            end = stop if node.locks == 1 else min(stop, self.blocks(node.end) * self._block_size)
            self._extend(state, end)
        if node.end >= stop:
            return
        bottom, position = self._tree.descend(node, state.elements, stop)
        if position // self._block_size > node.end // self._block_size:
            self._remap(state, bottom, position)
        if position < stop:
            self._branch(state, self._tree.cut(bottom, position), stop)

    def _extend(self, state: RadixRequest, end: int) -> None:
        node = state.node
        if end > node.end:
            blocks = state.table[self.blocks(node.end) : self.blocks(end)]
            self._tree.extend(node, state.elements[node.end : end], blocks)

    def _remap(self, state: RadixRequest, bottom: TreeNode, position: int) -> None:
        """Replace the request's own full blocks before `position` by those of the tree."""
        first = state.node.end // self._block_size
        last = position // self._block_size
        shared = self._tree.path_blocks(bottom, below=state.node)[: last - first]
        for index, block in enumerate(shared, first):
            self._pool.share(block)
            self._pool.drop(state.table[index])
            state.table[index] = block
        self._move_pin(state, self._tree.cut(bottom, last * self._block_size))

    def _branch(self, state: RadixRequest, parent: TreeNode, stop: int) -> None:
        """Publish [parent.end, stop) as a leaf below `parent`, in the request's own blocks."""
        start = parent.end
        if state.node.end % self._block_size:
            # The request went on in the tail of its pinned node: that block moves along first.
            end = min(stop, self.blocks(start) * self._block_size)
            self._tree.branch_off(state.node, parent, state.elements[start:end])
            self.publish(state)
            return
        blocks = state.table[start // self._block_size : self.blocks(stop)]
        self._move_pin(state, self._tree.attach(parent, state.elements[start:stop], blocks))
