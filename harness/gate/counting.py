"""What an implementation does on a fixed stream of prompts: the same numbers on every machine.

Chats that grow, more of them than the pool holds, some live at a time: so there are hits, and
evictions, and requests that wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from kvassay.harness.contract import CacheManager
from kvassay.harness.record import Direction
from kvassay.harness.registry import Registration
from kvassay.harness.replaying.replay import replay
from kvassay.harness.replaying.stream import PrefixTree, Prompt

CHATS, PROMPTS = 48, 600
SYSTEM, MOST = 8, 6
"""Blocks that all chats begin with, and that a turn adds at most."""
LONGEST = 60
"""Blocks of a chat before a new one takes its place."""
CAPACITY, LIVE = 320, 10
BETTER = {
    "hits": Direction.HIGHER,
    "evictions": Direction.LOWER,
    "refused": Direction.LOWER,
    "waited": Direction.LOWER,
    "false hits": Direction.LOWER,
    "most blocks in use": Direction.LOWER,
}
"""Counters, and which way each is better."""


def chats(seed: int = 0) -> Iterator[Prompt]:
    """The stream, as prefix ids."""
    rng, tree = Random(seed), PrefixTree()
    fresh = iter(range(SYSTEM, 10**9))
    system = list(range(SYSTEM))
    open_chats = [list(system) for _ in range(CHATS)]
    for _ in range(PROMPTS):
        number = min(rng.randrange(CHATS), rng.randrange(CHATS))  # some chats are livelier
        chat = open_chats[number]
        if len(chat) > LONGEST:
            chat = open_chats[number] = list(system)
        chat += [next(fresh) for _ in range(rng.randint(1, MOST))]
        yield tree.numbered(chat)


def counters(registration: Registration) -> dict[str, int]:
    """Of a cache manager, by name, in blocks and requests; empty for other kinds."""
    if registration.kind is not CacheManager:
        return {}
    seen = replay(registration, chats(), CAPACITY, concurrency=LIVE)
    counted = {
        "hits": seen.hits,
        "evictions": seen.evictions,
        "refused": seen.refused,
        "waited": seen.waited,
        "false hits": seen.false,
        "most blocks in use": seen.most_used,
    }
    return {name: count for name, count in counted.items() if count is not None}
