"""What a kernel is given to look at, and when something counts as looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from kvassay.harness.attention.build import WILD_ID
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.contract import CacheKey, Capability, Declaration, Tail
from kvassay.harness.pairs.attending import MOST_ROWS, Eyes, Row
from kvassay.harness.pairs.evidence import Met
from kvassay.harness.pairs.noting import note
from kvassay.harness.pairs.session import Pair
from kvassay.harness.pairs.worker import Worker
from kvassay.harness.scenario import Admit, Append, Commit, Operation, Release

LONG = CacheKey(tuple(range(30)))


def begun(pair: Pair, *operations: Operation, blocks: int = 12) -> tuple[Eyes, Worker]:
    assert pair.eyes is not None
    worker = pair.worker(blocks, 4)
    for operation in operations:
        worker.step(operation)
    return pair.eyes, worker


def queries(rows: list[Row]) -> dict[str, tuple[int, int]]:
    """First query and number of keys, by request."""
    return {row.name: (row.first, row.length) for row in rows}


def test_what_was_just_written_is_a_chunk_and_everybody_else_decodes(
    make: Callable[..., Pair],
) -> None:
    first = (Admit("a", CacheKey((1, 2, 3))), Commit("a"), Admit("b", CacheKey((4, 5, 6, 7, 8))))
    eyes, worker = begun(make("hashed"), *first)
    assert queries(eyes.rows_of(worker)) == {"a": (2, 3)}
    worker.step(Commit("b", 4))
    assert queries(eyes.rows_of(worker)) == {"a": (2, 3), "b": (0, 4)}
    worker.step(Commit("b"))
    assert queries(eyes.rows_of(worker)) == {"a": (2, 3), "b": (4, 5)}


def test_of_a_long_chunk_the_last_rows_are_asked(make: Callable[..., Pair]) -> None:
    eyes, worker = begun(make("hashed"), Admit("a", LONG), Commit("a"))
    assert queries(eyes.rows_of(worker)) == {"a": (30 - MOST_ROWS, 30)}


def test_a_kernel_without_causal_mask_gets_last_rows_alone(make: Callable[..., Pair]) -> None:
    declared = Declaration()
    pair = make("hashed", lambda: OracleKernel(declared), attending=declared)
    eyes, worker = begun(pair, Admit("a", LONG), Commit("a"))
    assert queries(eyes.rows_of(worker)) == {"a": (29, 30)}
    built = eyes.built(worker.pool, eyes.rows_of(worker), worker.history)
    assert built.batch.causal is False


@pytest.mark.parametrize("tail", list(Tail))
def test_spare_columns_hold_what_the_kernel_claims_not_to_read(
    make: Callable[..., Pair], tail: Tail
) -> None:
    declared = Declaration(capabilities=frozenset({Capability.CAUSAL}), tail=tail)
    pair = make("hashed", lambda: OracleKernel(declared), attending=declared)
    both = (Admit("a", CacheKey((1, 2, 3))), Commit("a"), Admit("b", LONG), Commit("b"))
    eyes, worker = begun(pair, *both)
    rows = eyes.rows_of(worker)
    table = eyes.built(worker.pool, rows, worker.history).batch.block_table
    assert table.shape == (2, 9)
    spare = {*table[0, 1:].tolist(), *table[1, 8:].tolist()}
    if tail is Tail.ANY:
        assert spare == {WILD_ID}
    else:
        assert spare <= {*worker.pool.unused()}
        assert max(spare) < worker.pool.key.shape[0]


def test_a_state_counts_when_it_was_attended_to(make: Callable[..., Pair]) -> None:
    """A block is reused at once, but nothing of it is read before it is written again."""
    used = (Admit("a", CacheKey((1, 2, 3, 4, 5))), Commit("a"), Release("a"))
    again = (Admit("b", CacheKey((6, 7, 8, 9, 6))), Commit("b", 4))
    eyes, worker = begun(make("hashed"), *used, *again, blocks=2)
    met: Counter[Met] = Counter()
    note(worker, eyes.rows_of(worker), met)
    assert met[Met.REUSED] == 1
    worker.step(Append("b", (9,)))
    note(worker, eyes.rows_of(worker), met)
    assert met[Met.REUSED] == 1
    worker.step(Commit("b", 5))
    note(worker, eyes.rows_of(worker), met)
    note(worker, eyes.rows_of(worker), met)
    assert met[Met.REUSED] == 2
