"""Which states a batch that was attended to was in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvassay.harness.pairs.attending import Row
from kvassay.harness.pairs.evidence import Met
from kvassay.harness.pairs.pool import LOUD
from kvassay.harness.pairs.worker import Worker


def note(worker: Worker, rows: list[Row], met: Counter[Met]) -> None:
    """Count what the rows have shown; what was due and has been attended to is due no longer."""
    met.update(worker.met)
    worker.met.clear()
    chunks = {row.queries > 1 for row in rows}
    met[Met.MIXED] += len(chunks) == 2
    for row in rows:
        met.update(_of_row(worker, row))
        due = worker.due.get(row.name, [])
        met.update(state for state, position in due if position < row.length)
        worker.due[row.name] = [each for each in due if each[1] >= row.length]


def _of_row(worker: Worker, row: Row) -> Iterator[Met]:
    size = worker.model.block_size
    if row.queries == 1:
        yield Met.DECODE
    else:
        yield Met.CHUNK if row.first else Met.PROMPT
    if row.length % size == 0:
        yield Met.EDGE
    if row.length > size and (row.length - 1) % size == 0:
        yield Met.BEYOND
    tail = worker.pool.tail(row.table, row.length)
    if not tail.numel():
        return
    largest = float(tail.abs().max())
    if largest != largest:
        yield Met.NAN_TAIL
    elif largest > LOUD / 10:
        yield Met.LOUD_TAIL
    else:
        yield Met.STALE_TAIL if largest else Met.ZERO_TAIL
