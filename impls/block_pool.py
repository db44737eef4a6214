"""The pool of KV blocks: who holds each block, and which are free.

A block may be held in two ways, and the pool knows nothing else about it:

* ``users[block]``: how many live block tables hold it;
* ``cached[block]``: whether a prefix cache holds it (never, without one).

Invariants:

* a block is *used* (users > 0), *idle* (cached, but users == 0) or *free* (neither), and the list
  `free` holds exactly the free ones, each once;
* it becomes free in the very operation in which its last holder lets go, never before.
"""

from __future__ import annotations

from kvassay.harness.contract import Counters


class BlockPool:
    """A fixed number of blocks, numbered from 0."""

    __slots__ = ("cached", "free", "idle", "users")

    def __init__(self, num_blocks: int) -> None:
        self.users = [0] * num_blocks
        self.cached = [False] * num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))  # the next one to hand out comes last
        self.idle = 0

    def take(self, count: int) -> list[int]:
        """`count` free blocks for one table; the caller made sure that there are so many."""
        taken = [self.free.pop() for _ in range(count)]
        for block in taken:
            self.users[block] = 1
        return taken

    def share(self, block: int) -> None:
        """One more table holds the block, which is used or idle."""
        if not self.users[block]:
            self.idle -= 1
        self.users[block] += 1

    def drop(self, block: int) -> None:
        """One table lets go of the block."""
        self.users[block] -= 1
        if not self.users[block]:
            if self.cached[block]:
                self.idle += 1
            else:
                self.free.append(block)

    def cache(self, block: int) -> None:
        """The prefix cache takes hold of a block that a table holds."""
        self.cached[block] = True

    def uncache(self, block: int) -> None:
        """The prefix cache lets go of the block."""
        self.cached[block] = False
        if not self.users[block]:
            self.idle -= 1
            self.free.append(block)

    def available(self) -> int:
        """How many blocks can be handed out: the free ones, and the idle ones after eviction."""
        return len(self.free) + self.idle

    def counters(self) -> Counters:
        """The three states by size."""
        used = len(self.users) - len(self.free) - self.idle
        return Counters(free=len(self.free), cached=self.idle, used=used)

    def refcounts(self) -> dict[int, int]:
        """Users of each block that has any."""
        return {block: users for block, users in enumerate(self.users) if users}
