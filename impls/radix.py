"""RadixAttention's cache manager: paged KV whose finished prefixes stay in a radix tree.

A request first looks up the longest prefix of its key that is resident, at any token, and shares
it; only the rest needs blocks and computation. What it writes is published in the tree as soon as
it is committed, and stays there, unlocked and evictable, after the request has left.

`radix_tree` describes the tree, `radix_request` how a request's table grows, shrinks and is
published. Invariants of the whole:

* A look-up never counts more than len - 1 tokens: one must be computed to go on.
* What a live request has in its table is locked in the tree. Everything else is free, or idle and
  evictable; so whatever fits beside the live tables is admitted.
* An operation counts what it needs, against blocks that are free or idle and not about to be
  pinned, before it changes anything: a refusal has no effect, not even on recency.
* Recency: a block is as recent as the moment in which the last table let go of it; of one table,
  the end goes first. Looking up, sharing and committing do not reorder anything.
* A draft is written to slots like any token, but is unknown to the tree until it is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from kvassay.harness.contract import (
    CacheEvent,
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    Dedup,
    EventSemantics,
    Granularity,
    Order,
    Outcome,
    Publish,
    Refusal,
    Stamp,
    Tie,
)
from kvassay.harness.registry import implementation
from kvassay.impls.block_pool import BlockPool
from kvassay.impls.inputs import (
    live_request,
    new_children,
    new_request,
    one_token,
    token_array,
    whole,
)
from kvassay.impls.radix_key import CONTENT, Elements, elements_of, space_of
from kvassay.impls.radix_request import RequestTables, require
from kvassay.impls.radix_state import RadixRequest, TreeNode
from kvassay.impls.radix_tree import RadixTree


class _Plan(NamedTuple):
    """What admitting a key would do; making it changes nothing."""

    node: TreeNode
    """Last node of the look-up."""
    hit: int
    source: int
    """Block to copy the partial block of the hit from, or -1."""
    need: int
    """Fresh blocks."""
    room: int
    """Blocks that can be had once the hit is pinned."""


@implementation(
    "radix",
    kind=CacheManager,
    declaration=Declaration(
        capabilities=frozenset(
            {
                Capability.PREFIX_CACHE,
                Capability.COMMIT,
                Capability.CHUNKED,
                Capability.COPIES,
                Capability.QUERY,
                Capability.PEEK,
                Capability.COUNTERS,
                Capability.REFCOUNTS,
                Capability.DRAIN,
                Capability.SALT,
                Capability.ADAPTER,
                Capability.SPANS,
                Capability.FORK,
                Capability.TRUNCATE,
                Capability.DRAFTS,
                Capability.EVICT,
                Capability.RESET,
                Capability.EVENTS,
                Capability.VALIDATES_INPUT,
            }
        ),
        unit=1,
        reserve=1,
        publish=Publish.COMMIT,
        order=Order.LRU,
        stamps=frozenset({Stamp.RELEASE}),
        tie=Tie.TAIL_FIRST,
        granularity=Granularity.BLOCK,
        dedup=Dedup.REMAP,
        refusal=Refusal.CLEAN,
        events=EventSemantics.MULTISET,
    ),
)
class RadixManager:
    """Blocks on demand, copy-on-write, and a token-granular prefix cache."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = whole(num_blocks, "num_blocks", 1)
        self.block_size = whole(block_size, "block_size", 1)
        self._pool = BlockPool(self.num_blocks)
        self._tree = RadixTree(self._pool, self.block_size)
        self._tables = RequestTables(self._pool, self._tree, self.block_size)
        self._live: dict[str, RadixRequest] = {}

    # ---------------------------------------------------------------------------------- admission

    def admit(self, request: str, key: CacheKey) -> int:
        """Slots for the whole prompt, in shared blocks as far as it is resident.

        A hit that ends inside a block shares the full blocks and copies the last one.
        """
        new_request(request, self._live)
        elements = self._elements(key)
        plan = self._plan(key, elements)
        require(plan.need, plan.room)
        full = plan.hit // self.block_size * self.block_size
        state = self._tables.share(elements, plan.node, full)
        self._tables.take(state, plan.need, plan.source)
        state.slots = len(elements)
        state.committed = plan.hit
        self._tables.note_room(state)
        self._live[request] = state
        return plan.hit

    def begin(self, request: str, key: CacheKey) -> int:
        """Share what is resident, a partial last block included, and take no block yet."""
        new_request(request, self._live)
        elements = self._elements(key)
        node, hit = self._look_up(key, elements)
        end = hit
        if hit % self.block_size:
            # Pin the node that owns the partial block, up to the end of that block.
            node = self._tree.owner(node, hit // self.block_size)
            end = min(node.end, self._tables.blocks(hit) * self.block_size)
        state = self._tables.share(elements, node, end)
        state.slots = state.committed = hit
        self._live[request] = state
        return hit

    def reserve(self, request: str, num_tokens: int) -> int:
        """Slots for the next tokens of the prompt; returns how many leading tokens have them."""
        state = live_request(request, self._live)
        left = len(state.elements) - state.slots
        self._tables.grow(state, state.slots + whole(num_tokens, "num_tokens", 1, left))
        self._tables.note_room(state)
        return state.slots

    def can_admit(self, key: CacheKey) -> bool:
        """Whether `admit` would succeed now."""
        plan = self._plan(key, self._elements(key))
        return plan.need <= plan.room

    def peek(self, key: CacheKey) -> int:
        """The hit that `admit` would return now."""
        return self._plan(key, self._elements(key)).hit

    # --------------------------------------------------------------------------- a request's life

    def append(self, request: str, tokens: Sequence[int], drafts: int = 0) -> None:
        """Slots for further tokens, of which the last `drafts` are unverified."""
        try:
            state = self._live[request]
        except (KeyError, TypeError):
            state = live_request(request, self._live)
        if type(tokens) is list and len(tokens) == 1 and drafts == 0:
            token, length = tokens[0], state.slots + 1
            if type(token) is not int or not 0 <= token < CONTENT:
                token = one_token(token)
            if length > state.room:
                self._make_room(request, state, length, 0)
            state.elements.append(token)  # a decode step: mostly nothing but this
            state.slots = length
            return
        added = token_array(tokens)
        length = state.slots + len(added)
        if length > state.room or drafts != 0:
            self._make_room(request, state, length, whole(drafts, "drafts", 0, len(added)))
        state.elements += added
        state.slots = length

    def commit(self, request: str, num_tokens: int) -> None:
        """The KV of the first `num_tokens` tokens is written: look-ups may find it."""
        try:
            state = self._live[request]
        except (KeyError, TypeError):
            state = live_request(request, self._live)
        if type(num_tokens) is not int or not state.committed < num_tokens <= state.slots:
            num_tokens = whole(num_tokens, "num_tokens", state.committed + 1, state.slots)
        state.committed = num_tokens
        if state.node.writer is not state:
            self._tables.publish(state)

    def accept(self, request: str, num_drafts: int) -> None:
        """Keep the first `num_drafts` drafts as ordinary tokens and drop the others."""
        state = live_request(request, self._live)
        if not state.drafts:
            raise ValueError(f"accept: {request!r} has no drafts; expected some to be pending")
        kept = whole(num_drafts, "num_drafts", 0, state.drafts)
        self._tables.shorten(state, state.slots - (state.drafts - kept))
        state.drafts = 0
        self._tables.publish(state)

    def fork(self, parent: str, children: Sequence[str]) -> None:
        """Each child shares all blocks of the parent; this takes no block at all."""
        state = live_request(parent, self._live)
        names = new_children(children, self._live)
        self._expect_no_drafts("fork", parent, state)
        if state.committed < len(state.elements):
            raise ValueError(
                f"fork: {parent!r} has committed {state.committed} of its {len(state.elements)} "
                "tokens; expected all of them"
            )
        for name in names:
            self._live[name] = self._tables.fork(state)

    def truncate(self, request: str, num_tokens: int) -> None:
        """Drop the slots past the first `num_tokens`; what was published stays findable."""
        state = live_request(request, self._live)
        length = whole(num_tokens, "num_tokens", 1, state.slots)
        dropped = state.slots - length
        self._tables.shorten(state, length)
        state.drafts = max(0, state.drafts - dropped)

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        """The request leaves; what it published stays, idle and the most recent."""
        Outcome(outcome)
        state = live_request(request, self._live)
        self._tables.leave(state)
        del self._live[request]

    def block_table(self, request: str) -> list[int]:
        """Physical block of logical block 0, 1, ..."""
        return list(live_request(request, self._live).table)

    def take_copies(self) -> list[tuple[int, int]]:
        """The copies (source, destination) that the device must do before the next write."""
        copies, self._tables.copies = self._tables.copies, []
        return copies

    # ---------------------------------------------------------------------------------- the cache

    def evict(self, num_blocks: int) -> int:
        """Free so many idle blocks, least recent first, or all there are; returns the number."""
        free = len(self._pool.free)
        self._tree.make_room(free + whole(num_blocks, "num_blocks", 1))
        return len(self._pool.free) - free

    def reset(self) -> None:
        """Forget everything cached."""
        if self._live:
            raise ValueError(f"reset: expected no live request, got {sorted(self._live)}")
        self._tree.reset()

    def drain(self) -> None:
        """Nothing is ever deferred."""

    def take_events(self) -> list[CacheEvent]:
        """What became findable or was lost since the last call, token by token."""
        for state in self._live.values():
            if state.node.writer is state:
                self._tree.settle(state.node)
        return self._tree.take_events()

    def counters(self) -> Counters:
        """Blocks by state."""
        return self._tree.counters()

    def refcounts(self) -> dict[int, int]:
        """For each block in use, the number of tables that hold it."""
        counts = self._tree.refcounts()
        for state in self._live.values():
            counts.update({block: self._pool.users[block] for block in self._tables.private(state)})
        return counts

    # ---------------------------------------------------------------------------------- internals

    def _elements(self, key: CacheKey) -> Elements:
        contents = self._tree.contents
        if contents.crowded:
            stored = (node.elements for node in self._tree.nodes())
            contents.keep(chain(stored, (state.elements for state in self._live.values())))
        return elements_of(key, contents)

    def _make_room(self, request: str, state: RadixRequest, length: int, drafts: int) -> None:
        """Slots up to `length`, where it takes more than a look at the request's own block."""
        if state.room and not drafts:
            self._tables.add_blocks(state, length)
            return
        if state.slots < len(state.elements):
            raise ValueError(
                f"append: {request!r} has slots for {state.slots} of the {len(state.elements)} "
                "tokens of its prompt; expected all of them to be reserved"
            )
        self._expect_no_drafts("append", request, state)
        self._tables.grow(state, length)
        state.drafts = drafts
        self._tables.note_room(state)

    def _expect_no_drafts(self, operation: str, request: str, state: RadixRequest) -> None:
        if state.drafts:
            raise ValueError(
                f"{operation}: {request!r} has {state.drafts} drafts pending; expected accept first"
            )

    def _look_up(self, key: CacheKey, elements: Elements) -> tuple[TreeNode, int]:
        return self._tree.descend(self._tree.root(space_of(key)), elements, len(elements) - 1)

    def _plan(self, key: CacheKey, elements: Elements) -> _Plan:
        node, hit = self._look_up(key, elements)
        full = hit // self.block_size
        need = self._tables.blocks(len(elements)) - full
        room = self._tree.available() - self._tree.idle_blocks(node, full)
        source = -1
        if hit % self.block_size:
            owner = self._tree.owner(node, full)
            if not owner.locks and need == room:
                # The source of the copy is itself the last block that can be had.
                hit = full * self.block_size
            else:
                source = self._tree.block(owner, full)
        return _Plan(node, hit, source, need, room)
