"""The cases on which a kernel is compared with the oracle, the first ones a sample of all.

First the pairs of features and execution paths (`pairwise`) and the shape lattice in turn, with a
long row now and then; after that mixed batches without end. Everything is restricted to what the
kernel claims and accepts (`Offers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from kvassay.harness.attention.case import BadCase, Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.lattice import lattice, long_rows
from kvassay.harness.attention.offers import Offers, Value
from kvassay.harness.attention.pairwise import CoveringArray, Pair, Row
from kvassay.harness.attention.random_cases import random_cases

LONG_EVERY = 9
"""One long row among so many cases."""


def cases(kernel: Kernel, rng: Random) -> Iterator[Case]:
    """All cases, without end where the kernel accepts any."""
    offers = Offers(kernel)
    first = _in_turn(pairwise(kernel, rng, offers), lattice(offers, rng))
    long = long_rows(offers, rng)
    for number, case in enumerate(first, start=1):
        yield case
        if number % LONG_EVERY == 0:
            yield from _next(long)
    if offers.usable:
        yield from random_cases(offers, rng)


def _in_turn(*sources: Iterator[Case]) -> Iterator[Case]:
    waiting = list(sources)
    while waiting:
        for source in list(waiting):
            case = next(source, None)
            if case is None:
                waiting.remove(source)
            else:
                yield case


def _next(source: Iterator[Case]) -> Iterator[Case]:
    case = next(source, None)
    if case is not None:
        yield case


def pairwise(kernel: Kernel, rng: Random, offers: Offers | None = None) -> Iterator[Case]:
    """Cases in which every two values of different factors meet.

    A case that the kernel refuses before the next one is drawn does not count: the pair that it
    refuses is looked for and left out, and the others meet elsewhere.
    """
    offers = Offers(kernel) if offers is None else offers
    array = covering(offers, rng)
    while (row := array.row()) is not None:
        try:
            case = offers.case(chosen(offers, row), rng)
        except BadCase:
            array.take(row)
            continue
        yield case
        pair = _blamed(offers, row) if case in kernel.refused else None
        if pair is None:
            array.take(row)
        else:
            array.forbid(pair)


def covering(offers: Offers, rng: Random) -> CoveringArray:
    """The pairs of a kernel's values that can meet."""

    def forbidden(pair: Pair) -> bool:
        one, other = ((name, offers.values[name][index]) for name, index in pair)
        return offers.forbidden((one, other))

    sizes = {name: len(values) for name, values in offers.values.items()}
    return CoveringArray(sizes, rng, forbidden)


def chosen(offers: Offers, row: Row) -> dict[str, Value]:
    """The values that a row of the covering array stands for."""
    return {name: offers.values[name][index] for name, index in row.items()}


def _blamed(offers: Offers, row: Row) -> Pair | None:
    pair = offers.blame(chosen(offers, row))
    if pair is None:
        return None
    (one, _), (other, _) = pair
    return (one, row[one]), (other, row[other])
