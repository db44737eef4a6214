"""What paging replaced: each request gets one run of blocks that lie side by side.

A kernel that knows no block table needs a request's KV in one piece. So a run of blocks has to be
reserved at admission, before anybody knows how long the request will become, and it is never
moved. Three ways to choose its length (those that the paper on PagedAttention compares with):

* `contiguous` (max length): the longest sequence that the model allows, for everybody;
* `contiguous-pow2`: the next power of two above the prompt, at most twice what is needed now;
* `contiguous-oracle`: no more than is asked for. An oracle would admit the request with its final
  length; without one, the run grows in place while the blocks behind it happen to be free.

The first two waste the part of a run that is never filled, the last one leaves gaps between runs
that fit nobody. Neither can share a block, as a block has one place in one run.

The kernel of the same time, `contiguous` too, copies every sequence into one piece and attends to
that; see `dense_attention`.

Invariants:

* the runs of live requests do not overlap, and `_taken` marks exactly the blocks in them;
* a table is the first ceil(length / B) blocks of the request's run. The rest of the run is
  reserved: in no table and yet not to be had. The contract's `Counters` have no word for it,
  hence no COUNTERS here; `reserved()` tells the number.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Capability,
    Declaration,
    Determinism,
    Outcome,
    OutOfBlocks,
    PagedAttention,
    Placement,
    Rounding,
    Tail,
)
from kvassay.harness.registry import implementation
from kvassay.impls.inputs import field_of, live_request, new_request, token_array, whole

MAX_TOKENS = 16
"""Longest sequence of `contiguous`, unless it is built with another; small, as assayed pools are.

A model's limit is a number of tokens, whatever the pool; so it can be declared beforehand.
"""
CAPABILITIES = frozenset({Capability.QUERY, Capability.REFCOUNTS, Capability.VALIDATES_INPUT})


class _Request:
    """One live request: how long it is, and the run of blocks that is reserved for it."""

    __slots__ = ("length", "run")

    def __init__(self, length: int, run: range) -> None:
        self.length = length
        self.run = run


class _ContiguousManager:
    """Everything but the length of a run."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = whole(num_blocks, "num_blocks", 1)
        self.block_size = whole(block_size, "block_size", 1)
        self.max_tokens = self.num_blocks * self.block_size
        self._taken = bytearray(self.num_blocks)
        self._live: dict[str, _Request] = {}

    def admit(self, request: str, key: CacheKey) -> int:
        """A run for the prompt and for what the policy foresees; nothing is ever resident."""
        new_request(request, self._live)
        length = len(token_array(field_of(key, "tokens")))
        run = self._first_fit(length)
        if run is None:
            raise OutOfBlocks(f"no run of free blocks for a request of {length} tokens")
        self._mark(run, taken=True)
        self._live[request] = _Request(length, run)
        return 0

    def append(self, request: str, tokens: Sequence[int]) -> None:
        """Slots for further tokens, as far as the run reaches."""
        state = live_request(request, self._live)
        length = state.length + len(token_array(tokens))
        if length > self.max_tokens:
            raise OutOfBlocks(f"{length} tokens in one request, at most {self.max_tokens} fit")
        if self._blocks(length) > len(state.run):
            self._grow(state, self._blocks(length))
        state.length = length

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        """The request leaves; its whole run is free at once."""
        Outcome(outcome)
        self._mark(live_request(request, self._live).run, taken=False)
        del self._live[request]

    def block_table(self, request: str) -> list[int]:
        """Physical block of logical block 0, 1, ...: one after the other."""
        state = live_request(request, self._live)
        return list(state.run[: self._blocks(state.length)])

    def can_admit(self, key: CacheKey) -> bool:
        """Whether `admit` would succeed now."""
        return self._first_fit(len(token_array(field_of(key, "tokens")))) is not None

    def refcounts(self) -> dict[int, int]:
        """For each block in a table, its one holder."""
        return {block: 1 for request in self._live for block in self.block_table(request)}

    def reserved(self) -> int:
        """Blocks in runs that no table shows: what pre-allocation holds back at this moment."""
        return self._taken.count(1) - len(self.refcounts())

    def _first_fit(self, length: int) -> range | None:
        """The first free blocks, enough of them side by side, for a request of `length` tokens."""
        if length > self.max_tokens:
            return None
        count = min(self._blocks(self._foreseen(length)), self.num_blocks)
        start = self._taken.find(bytes(count))
        return None if start < 0 else range(start, start + count)

    def _foreseen(self, length: int) -> int:
        """Tokens to reserve a run for, when a prompt has `length` tokens."""
        raise NotImplementedError

    def _grow(self, state: _Request, blocks: int) -> None:
        """Make the run `blocks` long, or raise OutOfBlocks; a run that was foreseen stays."""
        raise OutOfBlocks(f"{blocks} blocks needed, {len(state.run)} were reserved at admission")

    def _mark(self, run: range, *, taken: bool) -> None:
        self._taken[run.start : run.stop] = bytes([taken]) * len(run)

    def _blocks(self, length: int) -> int:
        return -(-length // self.block_size)


@implementation(
    "contiguous",
    kind=CacheManager,
    declaration=Declaration(
        capabilities=CAPABILITIES, placement=Placement.CONTIGUOUS, max_tokens=MAX_TOKENS
    ),
)
class MaxLengthManager(_ContiguousManager):
    """Every run is as long as the longest sequence."""

    def __init__(self, num_blocks: int, block_size: int, max_tokens: int = MAX_TOKENS) -> None:
        super().__init__(num_blocks, block_size)
        self.max_tokens = min(whole(max_tokens, "max_tokens", 1), self.max_tokens)

    def _foreseen(self, length: int) -> int:
        return self.max_tokens


@implementation(
    "contiguous-pow2",
    kind=CacheManager,
    declaration=Declaration(capabilities=CAPABILITIES, placement=Placement.CONTIGUOUS),
)
class PowerOfTwoManager(_ContiguousManager):
    """A run holds a power of two tokens, more than the prompt, if the pool is that large."""

    def _foreseen(self, length: int) -> int:
        return 1 << length.bit_length()


@implementation(
    "contiguous-oracle",
    kind=CacheManager,
    declaration=Declaration(capabilities=CAPABILITIES, placement=Placement.CONTIGUOUS),
)
class OracleManager(_ContiguousManager):
    """A run holds what was asked for, and grows only while the blocks behind it are free."""

    def _foreseen(self, length: int) -> int:
        return length

    def _grow(self, state: _Request, blocks: int) -> None:
        wanted = range(state.run.start, state.run.start + blocks)
        behind = range(state.run.stop, wanted.stop)
        if wanted.stop > self.num_blocks or any(self._taken[behind.start : behind.stop]):
            raise OutOfBlocks(f"the {len(behind)} blocks behind the run are not all free")
        self._mark(behind, taken=True)
        state.run = wanted


@implementation(
    "contiguous",
    kind=PagedAttention,
    declaration=Declaration(
        capabilities=frozenset(
            {
                Capability.CAUSAL,
                Capability.WINDOW,
                Capability.ALIBI,
                Capability.SCALES,
                Capability.LSE,
                Capability.OUTPUT,
                Capability.VALIDATES_INPUT,
            }
        ),
        rounding=Rounding.P,
        tail=Tail.ANY,
        determinism=Determinism.BATCH,
    ),
)
def dense_attention() -> PagedAttention:
    """The kernel that knows no block table; imported when it is built, as PyTorch takes seconds."""
    from kvassay.impls.dense_attention import DenseAttention

    return DenseAttention()
