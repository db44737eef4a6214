"""Needles: one key draws nearly all the weight of every row that sees it (K1, K5, K6).

The logit of the needle is 40 above all others, so a row that sees it returns the needle's value and
a row that does not returns the mean of the others (as the oracle has it), whatever the length. The
needle's share of the output is how far it went from that mean to the needle's value: 1 or 0. The
border lies halfway: no rounding comes near it, and every wrong inclusion or exclusion crosses it.
The needle stands at the edge of something (first, last, page, window, split), just inside or just
outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from kvassay.harness.attention.build import Built
from kvassay.harness.attention.case import Case, Contents
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import twisted
from kvassay.harness.attention.probes.counting import Row, rows_of
from kvassay.harness.attention.probes.masks import ANOMALIES, Mistake, blamed, place, story
from kvassay.harness.attention.probes.shapes import (
    HALF_FIRST,
    ONE_KV_HEAD,
    decode,
    fitted,
    in_turn,
    lattice,
    long_lengths,
)
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.contract import AttentionResult, Capability
from kvassay.reference.attention import Sequence, sequences, slots_of, softmax

F64 = torch.float64
SPLITS = (256, 512, 1024)
"""Sizes of splits and tiles, at whose edges needles stand."""
LONGER = 10_000
"""Lengths from which on a few needles are enough."""


@dataclass(frozen=True)
class Found:
    """What one row and head made of the needle."""

    row: Row
    head: int
    needle: int
    """Its position."""
    seen: bool
    """Whether the row must see it."""
    share: float
    """How much of the way from the others' mean to the needle's value the output went."""
    near: bool
    """Whether the output is the needle's value: more than crossing the border, which an output
    that is neither may do by chance."""
    other_head: int | None
    """The KV head whose needle the output is, if it is another one's."""

    def words(self) -> str:
        """What is wrong."""
        if self.other_head is not None:
            return f"it is what KV head {self.other_head} makes of the needle"
        if self.seen:
            return f"it misses the key at {self.needle} (weight {self.share:.3g} instead of 1)"
        if not self.near:
            return f"it is neither what the keys besides {self.needle} make, nor that key's value"
        return f"it sees the key at {self.needle} (weight {self.share:.3g} instead of 0)"


def mark_in(case: Case, length: int) -> int | None:
    """Where the needle of a sequence is; None if it has none."""
    if not -length <= case.mark < length:
        return None
    return case.mark % length


def misread(built: Built, result: AttentionResult) -> list[Found]:
    """The rows and heads on the wrong side of the border."""
    output = result.output.detach().cpu().to(F64)
    rows: dict[int, list[Row]] = {}
    for row in rows_of(built):
        rows.setdefault(row.sequence, []).append(row)
    found: list[Found] = []
    for sequence in sequences(built.batch):
        mark = mark_in(built.case, sequence.key.shape[0])
        if mark is not None:
            values = _stored(built, sequence.index, mark)
            got = output[sequence.rows]
            found += _misread(sequence, mark, values, rows[sequence.index], got)
    return found


def _stored(built: Built, index: int, position: int) -> Tensor:
    """Values in the slot of a position, whether any row sees it or not: ``[num_kv_heads, dim]``."""
    blocks, slots = slots_of(built.batch, index)
    stored: Tensor = built.batch.value_cache[blocks[position], slots[position]]
    return stored.cpu().to(F64)


def _misread(
    sequence: Sequence, mark: int, values: Tensor, rows: list[Row], got: Tensor
) -> Iterator[Found]:
    without, _ = softmax(_hidden(sequence, mark))
    value = values.repeat_interleave(sequence.group, dim=0)
    seen = sequence.visible[:, mark]
    away = value - without
    share = ((got - without) * away).sum(dim=-1) / away.square().sum(dim=-1)
    near = (got - value).norm(dim=-1) < away.norm(dim=-1) / 2
    right = (share - seen[:, None].to(F64)).abs() < 0.5
    asked = sequence.visible.any(dim=1)
    for index, head in torch.nonzero(~right & asked[:, None]).tolist():
        yield Found(
            row=rows[index],
            head=head,
            needle=mark,
            seen=bool(seen[index]),
            share=float(share[index, head]),
            near=bool(near[index, head]),
            other_head=_other_head(values, got[index, head], head // sequence.group),
        )


def _hidden(sequence: Sequence, mark: int) -> Sequence:
    """The sequence with its needle masked."""
    logits = sequence.logits.clone()
    logits[..., mark] = -torch.inf
    return replace(sequence, logits=logits)


def _other_head(values: Tensor, got: Tensor, own: int) -> int | None:
    """The KV head, other than its own, whose needle an output is."""
    near = (got - values).norm(dim=-1) < values.norm(dim=-1) / 2
    others = [each for each in torch.nonzero(near)[:, 0].tolist() if each != own]
    return others[0] if others else None


# ---------------------------------------------------------------------------------------- judging


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """Whether each row sees the needle if and only if it must; nothing of other contents."""
    if case.contents is not Contents.NEEDLE or case.sinks or case.softcap or case.alibi:
        return None
    built = kernel.build(case)
    return wrong_of(case, misread(built, kernel.attend(built)))


def wrong_of(case: Case, found: list[Found]) -> Wrong | None:
    """What the misread rows come to."""
    if not found:
        return None
    # What the needle itself shows comes before rows that are wrong in another way.
    first = next((each for each in found if each.seen or each.near), found[0])
    if all(each.other_head is not None for each in found):
        invariant, anomaly = "K7", Anomaly.HEAD
    else:
        invariant = blamed(case, [_mistake(each) for each in (first, *found)])
        anomaly = ANOMALIES[invariant]
    must = "see" if first.seen else "not see"
    expected = f"{place(first.row)} to {must} the key at {first.needle}"
    lines = story((each.row, each.head, each.words()) for each in found)
    return Wrong(invariant, anomaly, expected, first.words(), lines)


def _mistake(found: Found) -> Mistake:
    where = (found.needle,)
    if found.seen:
        return Mistake(found.row, missed=where)
    return Mistake(found.row, seen=where) if found.near else Mistake(found.row)


# ------------------------------------------------------------------------------------------ cases


Make = Callable[..., Case]


def cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """Needles at the edges of sequences, pages, windows, chunks and splits; long rows last."""
    base = fitted(kernel, dtypes=HALF_FIRST, heads=ONE_KV_HEAD, contents=Contents.NEEDLE)
    if base is None:
        return
    size = base.block_size

    def case(mark: int, *seqs: tuple[int, int], window: int | None = None) -> Case:
        seed = rng.randrange(2**31)
        return replace(base, seqs=seqs, mark=mark, window_left=window, seed=seed)

    groups = [_pages(case, size), _splits(case)]
    if kernel.has(Capability.CAUSAL):
        groups.append(_chunks(case, size))
    if kernel.has(Capability.WINDOW):
        groups.append(_windows(case, size))
    yield from in_turn(*groups)
    for length in long_lengths(kernel, base):
        page = (length // 2) // size * size
        for mark in (-1, page) if length > LONGER else (-1, page, 0, page + size - 1):
            yield case(mark, (length, 1))


def _pages(case: Make, size: int) -> Iterator[Case]:
    for mark in dict.fromkeys((-1, 0, size - 1, size, -2)):
        yield case(mark, *decode(*lattice(size)))


def _chunks(case: Make, size: int) -> Iterator[Case]:
    """The needle amid the rows: those before it must not see it."""
    for back in (2, size // 2 + 1, size + 2):
        yield case(-back, (2 * size + 5, size + 1), (3 * size, 2 * size), (size + 2, size + 2))


def _windows(case: Make, size: int) -> Iterator[Case]:
    """The needle at the last position that a row sees, at the next one, and a little further."""
    for window in dict.fromkeys((size - 1, size, 0, size + 1)):
        for mark in (-window - 1, -window - 2, -window - 4):
            yield case(mark, *decode(*lattice(size)), window=window)
            yield case(mark, (2 * size + 5, size + 1), (5 * size, 3), window=window)


def _splits(case: Make) -> Iterator[Case]:
    for split in SPLITS:
        for mark in (split - 1, split, split + 1):
            yield case(mark, *decode(split + 2, 2 * split + 5))
        yield case(-1, *decode(split - 1, split, split + 1))


register(
    Check(
        "needle",
        "a key that takes all the weight is seen by exactly the rows that must see it",
        ("K1",),
        cases,
        judge,
        twisted("last-key"),
    )
)
