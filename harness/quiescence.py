"""Invariant A5: after every request has left, the whole pool can be handed out again.

The check is an operation like any other: it releases what is live, lets the implementation
finish what it deferred (and reset, where blocks come back only then), and asks for the whole
pool. The fillers leave uncommitted, so that where there is a commit nothing of them is cached.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kvassay.harness.contract import CacheKey, Capability, Outcome, Placement, Reclaim
from kvassay.harness.evidence import Seen
from kvassay.harness.scenario import Admit, Append, Drain, Release, Reset
from kvassay.harness.violation import Anomaly, Violation

if TYPE_CHECKING:
    from kvassay.harness.checker import Checker

FILLER = "filler-"
FIRST_TOKEN = 1_000_000
"""Fillers use tokens that no scenario uses."""


def quiesce(checker: Checker) -> None:
    """Release everything, then fill the pool to the last block."""
    _empty(checker)
    declared = checker.declaration
    if declared.reclaim is Reclaim.RESET:
        if not checker.has(Capability.RESET):
            return
        checker.step_within(Reset())
    held = _fill(checker)
    checker.evidence[Seen.QUIESCED] += 1
    for name in held:
        checker.step_within(Release(name, Outcome.ABORTED))
    if declared.reclaim is Reclaim.RESET:
        checker.step_within(Reset())


def _empty(checker: Checker) -> None:
    for name in list(checker.model.live):
        checker.step_within(Release(name))
    checker.step_within(Drain())
    checker.check_cached(checker.model.surely_evictable())


def _fill(checker: Checker) -> list[str]:
    """Requests that take the whole pool, or as much as the declared limits allow.

    With several tables a request they take the same number of blocks in each; of blocks that are
    left over then, less than one for each table, nothing is asked.
    """
    model, declared = checker.model, checker.declaration
    size, room = model.block_size, model.num_blocks // model.tables
    kept = -(-declared.watermark // model.tables)
    most = room * size if declared.max_tokens is None else declared.max_tokens
    held: list[str] = []
    while room > 0 and model.admissible() and _in_one_piece(checker):
        length = min(room * size, most)
        blocks = model.blocks_for(length)
        admitted = min(length, (room - kept) * size)
        if admitted < 1:
            break
        name = f"{FILLER}{len(held)}"
        tokens = _tokens(model.now, len(held), length)
        _demand(checker, Admit(name, CacheKey(tokens[:admitted])), blocks)
        held.append(name)
        if admitted < length:
            _demand(checker, Append(name, tokens[admitted:]), blocks)
        room -= blocks
    return held


def _in_one_piece(checker: Checker) -> bool:
    """Whether the next filler may be demanded: side by side, only the first may."""
    return checker.declaration.placement is Placement.ANY or not checker.model.live


def _tokens(now: int, number: int, count: int) -> tuple[int, ...]:
    first = FIRST_TOKEN * (1 + now) + number * count
    return tuple(range(first, first + count))


def _demand(checker: Checker, operation: Admit | Append, blocks: int) -> None:
    """Have it done: what may excuse a refusal elsewhere is respected by what is asked for here."""
    before = checker.evidence[Seen.REFUSED]
    try:
        checker.step_within(operation)
        refused = checker.evidence[Seen.REFUSED] > before
    except Violation as violation:
        if violation.anomaly is not Anomaly.UNDUE_REFUSAL:
            raise
        refused = True
    if refused:
        model = checker.model
        raise Violation(
            "A5",
            Anomaly.LEAK,
            f"all {model.num_blocks} blocks to be handed out again after every request has left",
            f"OutOfBlocks for {blocks * model.tables} of them; "
            f"{_obtainable(checker, blocks)} can still be had",
        )


def _obtainable(checker: Checker, refused: int) -> int:
    """Most blocks that one more request can get, in all tables (only for the message)."""
    size = checker.model.block_size
    for blocks in range(refused - 1, 0, -1):
        key = CacheKey(_tokens(checker.model.now + 1, blocks, blocks * size))
        try:
            checker.manager.admit(f"{FILLER}probe", key)
        except RuntimeError:
            continue
        with suppress(Exception):
            checker.manager.release(f"{FILLER}probe")
        return blocks * checker.model.tables
    return 0
