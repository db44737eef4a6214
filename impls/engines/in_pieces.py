"""Admission by a look-up and a reservation, for engines whose scheduler makes the two apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from kvassay.harness.contract import CacheKey, Outcome, OutOfBlocks


class InPieces(ABC):
    """`reserve` and `admit` of a manager that has `begin`, `release` and room for a length."""

    _live: dict[str, Any]
    """By request; `length` counts the tokens that have slots."""

    @abstractmethod
    def begin(self, request: str, key: CacheKey) -> int: ...

    @abstractmethod
    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None: ...

    @abstractmethod
    def _store(self, live: Any, length: int) -> None:
        """Slots for the first `length` tokens; `OutOfBlocks`."""

    def reserve(self, request: str, num_tokens: int) -> int:
        live = self._live[request]
        self._store(live, live.length + num_tokens)
        length: int = live.length
        return length

    def admit(self, request: str, key: CacheKey) -> int:
        hit = self.begin(request, key)
        try:
            self.reserve(request, len(key.tokens) - hit)
        except OutOfBlocks:
            self.release(request)
            raise
        return hit
