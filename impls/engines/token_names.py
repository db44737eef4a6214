"""Token ids that an engine can hash, in the place of those that no vocabulary has.

Small ids stay what they are. A larger one gets the next free name above `largest`, the same each
time, so that what was another id is another name, and what comes back can be told by its token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class TokenNames:
    """The names of one manager's life."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        """Ids up to this one can be hashed, and so can the names that come after it."""
        self._names: dict[int, int] = {}
        self._tokens: dict[int, int] = {}

    def ids(self, tokens: Sequence[int]) -> Sequence[int]:
        """What the engine is told."""
        if not tokens or max(tokens) <= self.largest:
            return tokens
        return [token if token <= self.largest else self._name(token) for token in tokens]

    def tokens(self, ids: Iterable[int]) -> tuple[int, ...]:
        """What it speaks of."""
        return tuple(self._tokens.get(name, name) for name in ids)

    def _name(self, token: int) -> int:
        name = self._names.setdefault(token, self.largest + 1 + len(self._names))
        self._tokens[name] = token
        return name
