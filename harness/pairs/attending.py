"""One batch over all live requests, attended by the kernel and judged against their history.

A request whose KV was written by the last operation brings the tokens written as a chunk, every
other one its last token. The oracle works on K and V laid out afresh from the history of each
request (the tokens it was given), never on what the pool happens to hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvassay.harness.attention.build import WILD_ID, Built
from kvassay.harness.attention.contents import Filling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.memory import Arena, Region, on
from kvassay.harness.budget import Expected, Judgement, expect, judge
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, Rounding, Tail
from kvassay.harness.pairs.form import Form
from kvassay.harness.pairs.history import History, fingerprint
from kvassay.harness.pairs.own import OwnAttention, ServedBatch
from kvassay.harness.pairs.pool import Pool
from kvassay.harness.pairs.worker import Worker

MOST_ROWS = 16
"""Queries of a chunk: its last ones."""
MOST_KNOWN = 3000
"""Expectations that are kept."""
MOST_ACCEPTED = 2
"""Results that are kept for each; a kernel that is not deterministic has many."""


@dataclass(frozen=True)
class Row:
    """One request in a batch."""

    name: str
    tags: tuple[int, ...]
    """Its history, as far as its KV is written."""
    table: list[int]
    first: int
    """Position of its first query; the others follow up to the last position."""

    @property
    def length(self) -> int:
        """Keys."""
        return len(self.tags)

    @property
    def queries(self) -> int:
        """Rows of the packed query."""
        return self.length - self.first


@dataclass
class Wrong:
    """A request whose result was rejected."""

    row: Row
    judgement: Judgement


@dataclass
class Looked:
    """A batch, what the kernel made of it, and who was wrong."""

    rows: list[Row]
    built: Built
    result: AttentionResult
    wrong: list[Wrong]


class Eyes:
    """Attends with one kernel, and knows what every history must come to."""

    def __init__(self, kernel: Kernel, form: Form) -> None:
        self.kernel = kernel
        self.form = form
        self._accepted: dict[tuple[int, int], list[AttentionResult]] = {}
        """Results that were found right, by history and number of rows."""

    # ------------------------------------------------------------------------------ what to look at

    def rows_of(self, worker: Worker) -> list[Row]:
        """The live requests that have KV, each with the tables of this moment."""
        rows = []
        for name, live in worker.model.live.items():
            table = worker.table(name)
            if live.committed:
                first = max(
                    worker.written.get(name, live.committed - 1), live.committed - MOST_ROWS
                )
                first = first if self.form.causal else live.committed - 1
                rows.append(Row(name, tuple(live.tags[: live.committed]), table, first))
        return rows

    def look(self, worker: Worker, rows: list[Row]) -> Looked:
        """Attend and judge; raises what `Kernel.attend` raises."""
        built = self.built(worker.pool, rows, worker.history)
        if isinstance(self.kernel.instance, OwnAttention):
            batch = ServedBatch.of(built.batch, worker.manager, [row.name for row in rows])
            built = replace(built, batch=batch)
        return self.judged(self.kernel, built, rows, worker.history)

    def judged(self, kernel: Kernel, built: Built, rows: list[Row], history: History) -> Looked:
        """What a kernel makes of a batch that was built over `rows`."""
        result = kernel.attend(built)
        wrong, start = [], 0
        for row in rows:
            part = slice(start, start + row.queries)
            lse = None if result.lse is None else result.lse[part]
            judgement = self._judge(AttentionResult(result.output[part], lse), row, history)
            if judgement is not None and judgement.problem is not None:
                wrong.append(Wrong(row, judgement))
            start += row.queries
        return Looked(rows, built, result, wrong)

    def _judge(self, result: AttentionResult, row: Row, history: History) -> Judgement | None:
        """The judgement on one request; None for bits that were accepted before."""
        accepted = self._accepted.setdefault(_identity(row, history), [])
        if any(_same(result, bits) for bits in accepted):
            return None
        judgement = judge(
            result,
            due(row, history, self.form, self.rounding),
            empty_row=self.kernel.declaration.empty_row,
            lse=self.kernel.has(Capability.LSE),
        )
        if judgement.problem is None and len(accepted) < MOST_ACCEPTED:
            accepted.append(AttentionResult(result.output.clone(), _cloned(result.lse)))
        return judgement

    @property
    def rounding(self) -> Rounding:
        """Where the kernel says that it rounds."""
        return self.kernel.declaration.rounding

    # ----------------------------------------------------------------------------------- the batch

    def built(self, pool: Pool, rows: Sequence[Row], history: History) -> Built:
        """The batch over the pool itself."""
        case = self.form.case([(row.length, row.queries) for row in rows], pool.block_size)
        caches = [Region(each.name, each.memory) for each in pool.arena.inputs]
        arena = Arena(on(self.form.device), self.form.device, inputs=caches)
        filling = _filling(rows, history)
        tables = [pool.places(row.table) for row in rows]
        starts = [0]
        for row in rows:
            starts.append(starts[-1] + row.queries)
        batch = AttentionBatch(
            query=_put(arena, "query", filling.query),
            key_cache=pool.key,
            value_cache=pool.value,
            block_table=_put(arena, "block_table", self._padded(tables, pool)),
            seq_lens=_put(arena, "seq_lens", _ints([row.length for row in rows])),
            query_start=_put(arena, "query_start", _ints(starts)),
            causal=self.form.causal,
        )
        arena.remember()
        return Built(case, batch, arena, tables, filling)

    def _padded(self, tables: list[list[int]], pool: Pool) -> Tensor:
        """Tables as one tensor; what is past a request's own blocks is no block of its own."""
        wild = self.kernel.declaration.tail is Tail.ANY
        columns = max(map(len, tables)) + 1
        spare = WILD_ID if wild else pool.unused()[0]
        return _ints([[*table, *[spare] * (columns - len(table))] for table in tables])


def _filling(rows: Sequence[Row], history: History) -> Filling:
    """What the requests were given."""
    return Filling(
        query=torch.cat([history.queries(row.tags[row.first :]) for row in rows]),
        keys=[history.keys(row.tags) for row in rows],
        values=[history.values(row.tags) for row in rows],
    )


def _identity(row: Row, history: History) -> tuple[int, int]:
    return fingerprint(history.book, row.tags[-1]), row.queries


_DUE: dict[tuple[Form, Rounding, int, int], Expected] = {}


def due(row: Row, history: History, form: Form, rounding: Rounding) -> Expected:
    """What a request must come to; the same history comes up again and again, for other pairs too.

    Half of the time would else go into this.
    """
    key = (form, rounding, *_identity(row, history))
    if key not in _DUE:
        if len(_DUE) >= MOST_KNOWN:
            _DUE.clear()
        _DUE[key] = expect(contiguous(row, history, form), rounding)
    return _DUE[key]


def contiguous(row: Row, history: History, form: Form) -> AttentionBatch:
    """The attention problem of one request over K and V in one piece, from its history alone."""
    return AttentionBatch(
        query=history.queries(row.tags[row.first :]),
        key_cache=history.keys(row.tags)[None],
        value_cache=history.values(row.tags)[None],
        block_table=_ints([[0]]),
        seq_lens=_ints([row.length]),
        query_start=_ints([0, row.queries]),
        causal=form.causal,
    )


def _ints(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _put(arena: Arena, name: str, values: Tensor) -> Tensor:
    return arena.tensor(name, tuple(values.shape), values.dtype).copy_(values)


def _cloned(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


def _same(result: AttentionResult, other: AttentionResult) -> bool:
    same_lse = other.lse is None or torch.equal(result.lse, other.lse)
    return same_lse and torch.equal(result.output, other.output)
