"""How a live request stands to the radix tree: growing, shrinking and publishing its table.

Invariants:

* ``table[:ceil(node.end / B)]`` are the blocks of the path to the request's pinned `node`; all
  further blocks of the table are its own, or shared with its forks, and unknown to the tree.
* Nothing that others can read is ever overwritten. A request writes into a partially filled last
  block only if no other table holds it and the tree publishes nothing at or past that position;
  otherwise it writes into a fresh copy, and its pin moves up to the start of that block.
* A prefix computed twice is kept once. Full blocks that the tree has already replace the
  request's own; a partial one stays private, since the next token may tell the two apart.
* ``room`` says how long the request may become in blocks that nobody but itself can write to or
  share without the request's knowing: what a decode step asks first, and mostly last.
"""

from __future__ import annotations

from kvassay.harness.contract import OutOfBlocks
from kvassay.impls.block_pool import BlockPool
from kvassay.impls.radix_key import Elements
from kvassay.impls.radix_state import RadixRequest, TreeNode
from kvassay.impls.radix_tree import RadixTree


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

    def share(self, elements: Elements, node: TreeNode, end: int) -> RadixRequest:
        """A request whose table is the path to `node` as far as position `end`, which is pinned."""
        node = self._tree.cut(node, end)
        self._tree.pin(node)
        return RadixRequest(elements, node, self._tree.path_blocks(node))

    def fork(self, state: RadixRequest) -> RadixRequest:
        """A request with the same tokens and the very same blocks."""
        self._tree.pin(state.node)
        child = RadixRequest(state.elements[:], state.node, state.table[:])
        child.slots = child.committed = state.slots
        state.room = 0
        for block in self.private(state):
            self._pool.share(block)
        return child

    def private(self, state: RadixRequest) -> list[int]:
        """The blocks of the table that the tree does not know."""
        return state.table[self.blocks(state.node.end) :]

    def leave(self, state: RadixRequest) -> None:
        """Let go of everything, the end of the table first."""
        self._tree.unpin(state.node)
        for block in reversed(self.private(state)):
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
        private = len(table) > self.blocks(state.node.end)
        if state.slots % self._block_size:
            if private:
                alone = self._pool.users[table[-1]] == 1
            else:
                alone = self._tree.tables_at_end(state.node) == 1
            if not alone or state.node.end > state.slots:
                if alone and need == self._tree.available():
                    self._withdraw_tail(state)  # nobody else needs it, and no block for a copy
                else:
                    need += 1
                    source = table[-1]
        if need:
            require(need, self._tree.available())
            if source >= 0:
                table.pop()
            self.take(state, need, source)
            if source >= 0 and private:
                self._pool.drop(source)
            elif source >= 0:
                self._unpin_tail(state)
        state.slots = slots

    def add_blocks(self, state: RadixRequest, slots: int) -> None:
        """Slots up to `slots` for a request that has `room`: its last block is its own."""
        need = self.blocks(slots) - len(state.table)
        require(need, self._tree.available())
        self.take(state, need)
        state.room = len(state.table) * self._block_size

    def shorten(self, state: RadixRequest, length: int) -> None:
        """Give back the blocks past `length`; tokens of a prompt not yet reserved stay known."""
        self._tree.end_writing(state.node)
        kept = self.blocks(length)
        first_private = self.blocks(state.node.end)
        if state.node.end > kept * self._block_size:
            self._move_pin(state, self._tree.cut(state.node, kept * self._block_size))
        for block in reversed(state.table[max(kept, first_private) :]):
            self._pool.drop(block)
        del state.table[kept:]
        if state.slots == len(state.elements):
            del state.elements[length:]
        state.slots = length
        state.committed = min(state.committed, length)
        state.room = 0

    def _unpin_tail(self, state: RadixRequest) -> None:
        """Pin no more than the start of the block that is written next."""
        start = state.slots // self._block_size * self._block_size
        if state.node.end > start:
            self._move_pin(state, self._tree.cut(state.node, start))

    def _withdraw_tail(self, state: RadixRequest) -> None:
        """Take the last block of the table out of the tree, with all that depends on it."""
        node, block = state.node, state.table[-1]
        self._pool.share(block)  # held by the request itself, before the tree lets go of it
        self._unpin_tail(state)
        if node.blocks:
            self._tree.remove_below(node)

    def _move_pin(self, state: RadixRequest, node: TreeNode) -> None:
        self._tree.pin(node)  # first, so that what stays locked is never unlocked in between
        self._tree.unpin(state.node)
        state.node = node

    # --------------------------------------------------------------------------------- publishing

    def publish(self, state: RadixRequest) -> None:
        """Put into the tree what is committed and no draft, and pin it there."""
        self._publish(state, state.publishable)
        self.note_room(state)

    def note_room(self, state: RadixRequest) -> None:
        """Note how far the request can go on alone, and whether it is the writer of its node."""
        node = state.node
        if node.parent is not None and not node.children and node.locks == 1:
            node.writer = state if node.end <= state.publishable else None
        if node.writer is not state and not self._has_own_end(state):
            state.room = 0
        elif state.drafts or state.slots < len(state.elements):
            state.room = 0  # nothing may be appended, or not before the rest of the prompt
        else:
            state.room = len(state.table) * self._block_size

    def _has_own_end(self, state: RadixRequest) -> bool:
        private = len(state.table) > self.blocks(state.node.end)
        return private and self._pool.users[state.table[-1]] == 1

    def _publish(self, state: RadixRequest, stop: int) -> None:
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
        for block in state.table[self.blocks(state.node.end) : last]:
            self._pool.drop(block)
        state.table[first:last] = shared
        self._move_pin(state, self._tree.cut(bottom, last * self._block_size))

    def _branch(self, state: RadixRequest, parent: TreeNode, stop: int) -> None:
        """Publish [parent.end, stop) as a leaf below `parent`, in the request's own blocks."""
        start = parent.end
        if state.node.end % self._block_size:
            # The request went on in the tail of its pinned node: that block moves along first.
            end = min(stop, self.blocks(start) * self._block_size)
            self._tree.branch_off(state.node, parent, state.elements[start:end])
            self._publish(state, stop)
            return
        blocks = state.table[start // self._block_size : self.blocks(stop)]
        self._move_pin(state, self._tree.attach(parent, state.elements[start:stop], blocks))
