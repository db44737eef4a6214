"""The pool of KV blocks: how many hold each block, and which are free.

``users[block]`` counts holders: live block tables, and at most one prefix cache. What a cache holds
the tables get from it, so that a table that shares cached blocks counts nothing here.

* The list `free` holds exactly the blocks without a user, each once;
* a block becomes free in the very operation in which its last holder lets go, never before.
"""

from __future__ import annotations


class BlockPool:
    """A fixed number of blocks, numbered from 0."""

    __slots__ = ("free", "users")

    def __init__(self, num_blocks: int) -> None:
        self.users = [0] * num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))  # the next one to hand out comes last

    def take(self, count: int) -> list[int]:
        """`count` free blocks for one holder; the caller made sure that there are so many."""
        first = len(self.free) - count
        taken = self.free[first:]
        del self.free[first:]
        taken.reverse()
        for block in taken:
            self.users[block] = 1
        return taken

    def share(self, block: int) -> None:
        """One more holder of a block that has one."""
        self.users[block] += 1

    def drop(self, block: int) -> None:
        """One holder lets go of the block."""
        self.users[block] -= 1
        if not self.users[block]:
            self.free.append(block)
