"""Who is to blame for a wrong output: the manager, the kernel, or the clearing between them.

If the pool, read through the request's table, does not hold the KV of its history to the bit, the
manager has given the kernel something else to read. If it does, the kernel was asked the right
question. It is asked once more with zeros wherever it has nothing to read: if that comes out right,
it reads what it must not (K2), or was promised cleared memory by a manager that forgot it. Unless
the very same batch comes out right as well: then it goes by something of an earlier call (K4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from kvassay.harness.attention.build import Built
from kvassay.harness.attention.compare import Comparison, judged
from kvassay.harness.attention.likeness import likeness
from kvassay.harness.attention.memory import Arena, on
from kvassay.harness.attention.twist import OUTPUT, Law
from kvassay.harness.attention.wrong import Anomaly as KernelAnomaly
from kvassay.harness.attention.wrong import Refused
from kvassay.harness.attention.wrong import Wrong as KernelWrong
from kvassay.harness.budget import expect
from kvassay.harness.diagnosis import in_words
from kvassay.harness.pairs.attending import Eyes, Looked, Wrong
from kvassay.harness.pairs.pool import Garbage, Pool
from kvassay.harness.pairs.worker import Worker
from kvassay.harness.scenario import Operation
from kvassay.harness.violation import Anomaly, Crash, Violation


class Side(StrEnum):
    """Who is at fault."""

    MANAGER = "manager"
    KERNEL = "kernel"


Verdict = Violation | KernelWrong | Crash


@dataclass
class Convicted(Exception):
    """A pair that is wrong, and which half of it."""

    side: Side
    verdict: Verdict
    story: tuple[str, ...] = ()
    index: int = -1
    operation: Operation | None = None
    named: bool = False
    """Whether the manager's own suites convict it on the same scenario, and gave the name."""

    @property
    def invariant(self) -> str:
        """The invariant broken, or ``error``."""
        return "error" if isinstance(self.verdict, Crash) else self.verdict.invariant

    @property
    def looks(self) -> str:
        """Which known mistake a kernel's answer looks like."""
        return self.verdict.looks if isinstance(self.verdict, KernelWrong) else ""

    def __str__(self) -> str:
        return f"the {self.side} is at fault: {self.verdict}"


def blame(eyes: Eyes, worker: Worker, looked: Looked, *, brief: bool = False) -> Convicted:
    """Who is at fault for the requests whose result was rejected; in `brief`, not what it is."""
    for wrong in looked.wrong:
        row = wrong.row
        position = worker.pool.first_wrong(row.table, row.tags, row.length, worker.history)
        if position is not None:
            return _manager(worker, wrong, position)
    story = tuple(_told(wrong) for wrong in looked.wrong)
    if _wrong_again(eyes, worker, looked, _quiet(worker.pool, looked)):
        return _kernel(eyes, looked, story, brief=brief)
    if _wrong_again(eyes, worker, looked, looked.built):
        return _tail(eyes, worker, looked, story)
    return Convicted(Side.KERNEL, KernelWrong(*ONCE), story)


ONCE = (
    *("K4", KernelAnomaly.LEAK, "the same result whenever it is asked for"),
    "a right one for the very same batch, asked once more: earlier calls have an effect",
)
EXPECTED = "attention over the KV of the request's history, which the pool holds"


def _told(wrong: Wrong) -> str:
    row = wrong.row
    rows = f"{row.queries} rows at positions {row.first} to {row.length - 1}"
    return f"{row.name}: {rows}, {row.length} keys in blocks {row.table}: {wrong.judgement.problem}"


def _manager(worker: Worker, wrong: Wrong, position: int) -> Convicted:
    """The pool does not hold what the request was given; the law's name for it is found later."""
    row, live = wrong.row, worker.model.live[wrong.row.name]
    block = row.table[position // worker.model.block_size]
    got = f"block {block} holds {_content(worker, row.table, position)}"
    expected = f"position {position} of {row.name} to hold {_named(worker, row.tags[position])}"
    hit = position < live.hit
    invariant, anomaly = ("P1", Anomaly.PHANTOM_HIT) if hit else ("A2", Anomaly.FOREIGN_WRITE)
    story = (_told(wrong), f"the pool is wrong: expected {expected}; {got}")
    return Convicted(Side.MANAGER, Violation(invariant, anomaly, expected, got), story)


def _named(worker: Worker, tag: int) -> str:
    return in_words(*worker.model.book.path(tag))


def _content(worker: Worker, table: list[int], position: int) -> str:
    """What lies in a slot, in words."""
    key, value = worker.pool.slot(table, position)
    tag = worker.history.named(key)
    if tag is None:
        return "what nobody has written"
    whole = torch.equal(value.cpu(), worker.history.values([tag])[0])
    return _named(worker, tag) if whole else f"the key of {_named(worker, tag)}, not its value"


# -------------------------------------------------------------------------------------- the tail


def _wrong_again(eyes: Eyes, worker: Worker, looked: Looked, built: Built) -> bool:
    """Whether the result is wrong once more, over this pool."""
    try:
        again = eyes.judged(eyes.kernel, built, looked.rows, worker.history)
    except (Refused, Crash, KernelWrong):
        return True
    return bool(again.wrong)


def _quiet(pool: Pool, looked: Looked) -> Built:
    """The same batch over a pool that is zero wherever no sequence reads, spare columns too."""
    batch = looked.built.batch
    read = torch.zeros(pool.key.shape[:2], dtype=torch.bool, device=pool.key.device)
    table = torch.zeros_like(batch.block_table)
    for index, row in enumerate(looked.rows):
        places = looked.built.tables[index]
        table[index, : len(places)] = torch.tensor(places, dtype=torch.int32)
        for position in range(row.length):
            read[places[position // pool.block_size], position % pool.block_size] = True
    caches = [torch.where(read[..., None, None], each, 0.0) for each in (pool.key, pool.value)]
    arena = Arena(on(looked.built.arena.device), looked.built.arena.device)
    changed = replace(batch, key_cache=caches[0], value_cache=caches[1], block_table=table)
    return replace(looked.built, batch=changed, arena=arena)


def _tail(eyes: Eyes, worker: Worker, looked: Looked, story: tuple[str, ...]) -> Convicted:
    """Slots past the end have an effect: who was to see to it that they have none?"""
    row = looked.wrong[0].row
    loud = worker.pool.tail(row.table, row.length)
    if worker.pool.garbage is Garbage.CLEARED and bool(loud.isnan().any()):
        block = row.table[row.length // worker.model.block_size]
        expected = f"block {block} of {row.name} in take_zeroes(), as its slots were not cleared"
        verdict = KernelWrong(
            "K2", KernelAnomaly.TAIL, expected, "NaN past the end, of which tail=finite is not safe"
        )
        return Convicted(Side.MANAGER, verdict, story)
    tail = eyes.kernel.declaration.tail
    got = "another result than with zeros there"
    expected = f"no effect of slots past the end and of spare table columns (tail={tail})"
    return Convicted(Side.KERNEL, KernelWrong("K2", KernelAnomaly.TAIL, expected, got), story)


# ------------------------------------------------------------------------------------ the kernel


def _kernel(eyes: Eyes, looked: Looked, story: tuple[str, ...], *, brief: bool) -> Convicted:
    """The kernel was asked the right question: what does its answer look like?"""
    problem = looked.wrong[0].judgement.problem or ""
    law, words = (OUTPUT, "") if brief else _likeness(eyes, looked)
    got = f"{problem}; {words}" if words else problem
    story = (*story, words) if words else story
    return Convicted(Side.KERNEL, KernelWrong(*law, EXPECTED, got, story, looks=words), story)


def _likeness(eyes: Eyes, looked: Looked) -> tuple[Law, str]:
    """The known mistake that accounts for the whole result, if there is one, in words."""
    kernel, built = eyes.kernel, looked.built
    expected = expect(built.batch, eyes.rounding)
    seen = Comparison(built, looked.result, expected, judged(kernel, looked.result, expected))
    twist = likeness(seen)
    if twist is not None:
        return (twist.invariant, twist.anomaly), f"it looks as if {twist.words}"
    finite = bool(looked.result.output.isfinite().all())
    return OUTPUT if finite else ("K12", KernelAnomaly.RANGE), ""
