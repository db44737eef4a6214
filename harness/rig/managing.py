"""The manager as the scheduler calls it.

After every operation the device's part of it (copies, clearings) is collected, in order. What a
call takes is added up per branch and stage by a clock that is given, real or virtual; where
admission is one call, look-up and reservation cannot be told apart and count as reservation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from kvassay.harness.contract import (
    CacheKey,
    Capability,
    ContractError,
    Declaration,
    Outcome,
    Reclaim,
    is_out_of_blocks,
)
from kvassay.harness.rig.plan import Transfer

Clock = Callable[[], float]
LOOKUP, RESERVATION = "lookup", "reservation"


class Refused(Exception):
    """The manager has no block for an operation."""


class Managed:
    """One manager; of its capabilities the rig uses those that it declares."""

    def __init__(self, manager: Any, declaration: Declaration, clock: Clock) -> None:
        if declaration.windowed:
            raise ContractError("the rig cannot drive a manager with GROUPS or a window")
        if declaration.has(Capability.STORAGE) and not declaration.has(Capability.COPIES):
            raise ContractError("the rig, which keeps KV itself, needs COPIES beside STORAGE")
        self.declaration = declaration
        self.num_blocks: int = manager.num_blocks
        self.block_size: int = manager.block_size
        self.commits = declaration.has(Capability.COMMIT)
        self.chunked = declaration.has(Capability.CHUNKED)
        self.forks = declaration.has(Capability.FORK)
        self.salted = declaration.has(Capability.SALT)
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        """By branch and stage."""
        self.manager = manager
        self._clock = clock
        self._transfers: list[Transfer] = []

    # ------------------------------------------------------------------------------- operations

    def enter(self, name: str, key: CacheKey) -> tuple[int, int]:
        """Look up, and reserve everything unless that goes in pieces; the hit, and the slots."""
        if self.chunked:
            hit = int(self._call(LOOKUP, name, self.manager.begin, name, key))
            return hit, hit
        hit = int(self._call(RESERVATION, name, self.manager.admit, name, key))
        return hit, len(key.tokens)

    def reserve(self, name: str, num_tokens: int) -> int:
        """Slots for further tokens of the prompt; how many leading tokens have them."""
        return int(self._call(RESERVATION, name, self.manager.reserve, name, num_tokens))

    def append(self, name: str, tokens: Sequence[int]) -> None:
        """Slots for tokens behind the prompt."""
        self._call(RESERVATION, name, self.manager.append, name, tokens)

    def commit(self, name: str, num_tokens: int) -> None:
        """The KV of so many leading tokens is written, where that is to be told."""
        if self.commits:
            self._call(RESERVATION, name, self.manager.commit, name, num_tokens)

    def fork(self, name: str, children: Sequence[str]) -> None:
        """Children with the same tokens."""
        self._call(RESERVATION, name, self.manager.fork, name, children)

    def release(self, name: str, outcome: Outcome) -> None:
        """The branch leaves."""
        self._call(RESERVATION, name, self.manager.release, name, outcome)

    def reclaim(self) -> bool:
        """With nobody live, get back what comes back at a reset only; whether that was tried."""
        declared = self.declaration
        resets = declared.reclaim is Reclaim.RESET and declared.has(Capability.RESET)
        if resets:
            self.manager.reset()
        return resets

    def table(self, name: str) -> Sequence[int]:
        """Block table of a branch at this moment."""
        table: Sequence[int] = self.manager.block_table(name)
        return table

    def resident(self, key: CacheKey) -> int:
        """Leading tokens known to be resident, by a look that is no access."""
        return int(self.manager.peek(key)) if self.declaration.has(Capability.PEEK) else 0

    def has_room(self, key: CacheKey) -> bool:
        """Whether the whole key could be admitted now; yes where that cannot be asked."""
        if not self.declaration.has(Capability.QUERY):
            return True
        return bool(self.manager.can_admit(key))

    # ------------------------------------------------------------------------------- its answers

    def _call(self, stage: str, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        start, refusal, answer = self._clock(), None, None
        try:
            answer = method(*arguments)
        except RuntimeError as error:
            if not is_out_of_blocks(error):
                raise
            refusal = error
        self.seconds[name][stage] += self._clock() - start
        self._collect()
        if refusal is not None:
            raise Refused(str(refusal)) from refusal
        return answer

    def _collect(self) -> None:
        """What the last operation asks of the device."""
        manager, declared = self.manager, self.declaration
        zeroes = manager.take_zeroes() if declared.has(Capability.ZEROES) else ()
        copies = manager.take_copies() if declared.has(Capability.COPIES) else ()
        if zeroes or copies:
            pairs = tuple((source, destination) for source, destination in copies)
            self._transfers.append(Transfer(tuple(zeroes), pairs))

    def take_transfers(self) -> tuple[Transfer, ...]:
        """What was asked of the device since the last call."""
        taken, self._transfers = tuple(self._transfers), []
        return taken
