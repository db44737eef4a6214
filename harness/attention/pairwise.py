"""A covering array: few rows in which every two values of different factors meet.

Greedy, one row at a time (Cohen et al. 1997, AETG): each row starts from the value that has met
least of the others so far and takes, factor by factor, the value that meets most of those already
taken for the first time. So early rows cover most, and any prefix of the rows is a good sample.
Pairs may be forbidden, also while the rows are being drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, product
from random import Random

Choice = tuple[str, int]
"""A factor, and which of its values."""
Pair = tuple[Choice, Choice]
Row = dict[str, int]
"""One value of each factor."""
CANDIDATES = 6
"""Rows that are tried out for each one that is taken."""


class CoveringArray:
    """The pairs that are to meet, and those that have."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        rng: Random,
        forbidden: Callable[[Pair], bool] = lambda pair: False,
    ) -> None:
        """`sizes` says how many values each factor has."""
        self._sizes = dict(sizes)
        self._rank = {name: rank for rank, name in enumerate(sizes)}
        self._rng = rng
        self._forbidden: set[Pair] = set()
        self.uncovered: dict[Pair, None] = {}
        """Pairs that may meet and have not."""
        for pair in _all_pairs(sizes):
            if forbidden(pair):
                self._forbidden.add(pair)
            else:
                self.uncovered[pair] = None
        self.impossible: list[Pair] = []
        """Pairs that are allowed and fit in no row."""

    def row(self) -> Row | None:
        """The next row; it counts once it is taken. None when nothing is left to meet."""
        while self.uncovered:
            pair = self._first_pair()
            rows = [row for _ in range(CANDIDATES) if (row := self._fill(pair)) is not None]
            if rows:
                return max(rows, key=self._gain)
            self.impossible.append(pair)
            del self.uncovered[pair]
        return None

    def take(self, row: Row) -> None:
        """The values of this row have met."""
        for pair in pairs_of(row):
            self.uncovered.pop(pair, None)

    def forbid(self, pair: Pair) -> None:
        """These two must not meet in a later row."""
        self._forbidden.add(pair)
        self.uncovered.pop(pair, None)

    def __iter__(self) -> Iterator[Row]:
        """All rows, each taken at once."""
        while (row := self.row()) is not None:
            self.take(row)
            yield row

    def _first_pair(self) -> Pair:
        """A pair of the value that has most left to meet."""
        left = Counter(choice for pair in self.uncovered for choice in pair)
        choice = max(left, key=lambda each: (left[each], self._rng.random()))
        return next(pair for pair in self.uncovered if choice in pair)

    def _gain(self, row: Row) -> int:
        return sum(pair in self.uncovered for pair in pairs_of(row))

    def _fill(self, pair: Pair) -> Row | None:
        """A row with these two values; None where a factor has no value that fits the others."""
        row = dict(pair)
        names = [name for name in self._sizes if name not in row]
        self._rng.shuffle(names)
        for name in names:
            value = self._best(row, name)
            if value is None:
                return None
            row[name] = value
        return {name: row[name] for name in self._sizes}

    def _best(self, row: Row, name: str) -> int | None:
        """The allowed value that meets most for the first time, ties broken at random."""
        best, most = None, -1.0
        for value in range(self._sizes[name]):
            pairs = [self._pair(each, (name, value)) for each in row.items()]
            if not self._forbidden.isdisjoint(pairs):
                continue
            meets = sum(pair in self.uncovered for pair in pairs) + self._rng.random() / 2
            if meets > most:
                best, most = value, meets
        return best

    def _pair(self, one: Choice, other: Choice) -> Pair:
        return (one, other) if self._rank[one[0]] < self._rank[other[0]] else (other, one)


def _all_pairs(sizes: Mapping[str, int]) -> Iterator[Pair]:
    for one, other in combinations(sizes, 2):
        for value, second in product(range(sizes[one]), range(sizes[other])):
            yield (one, value), (other, second)


def pairs_of(row: Row) -> Iterator[Pair]:
    """The pairs that meet in a row whose factors are in the order of the array."""
    return combinations(row.items(), 2)
