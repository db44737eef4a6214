"""The hit law that observed hits follow: which unit, reserve and drop give every one of them.

What was asked twice is resident as a whole, so `reference.hit_law` leaves three numbers open. All
that agree with every observation are found by trying them, with a reserve of at most a unit (more
is a drop); of those the plainest stands: the smallest drop, then the smallest reserve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvassay.harness.contract import Declaration
from kvassay.reference.hit_law import hit_law

MOST_DROPPED = 3


@dataclass(frozen=True, order=True)
class Law:
    """Tokens of a prompt that hit once all of it has been asked before."""

    drop: int
    reserve: int
    unit: int

    @classmethod
    def declared(cls, declaration: Declaration, block_size: int) -> Law:
        """What an implementation says."""
        return cls(declaration.drop, declaration.reserve, declaration.hit_unit(block_size))

    def hits(self, length: int) -> int:
        """Tokens, of so many."""
        return hit_law(length, length, unit=self.unit, reserve=self.reserve, drop=self.drop)

    def gives(self, observed: Mapping[int, int]) -> bool:
        """Whether these hits, by length of the prompt, are all its own."""
        return all(self.hits(length) == count for length, count in observed.items())

    @classmethod
    def read(cls, text: str) -> Law:
        """What `str` told."""
        return cls(**{name: int(n) for name, n in (part.split(" ") for part in text.split(", "))})

    def __str__(self) -> str:
        return f"unit {self.unit}, reserve {self.reserve}, drop {self.drop}"


def lengths(block_size: int) -> list[int]:
    """Of prompts: enough to tell laws apart whose unit is at most a block.

    All up to two blocks and a bit, then around the third and the fourth boundary.
    """
    near = (3 * block_size, 4 * block_size)
    around = [each + more for each in near for more in (-1, 0, 1, 2)]
    return sorted({*range(1, 2 * block_size + 3), *around})


def fitted(observed: Mapping[int, int]) -> Law | None:
    """The law behind hits by length of the prompt; None if no law of this kind gives them."""
    largest = max(observed, default=0)
    laws = (
        Law(drop, reserve, unit)
        for unit in range(1, largest + 1)
        for drop in range(MOST_DROPPED + 1)
        for reserve in range(unit + 1)
    )
    return min((law for law in laws if law.gives(observed)), default=None)
