"""Unequal halves: what a lost split or a wrong merge does to the weight of a few strong keys (K4).

The first keys (or the last) weigh `e**6` times as much each as the others, and have values around 1
instead of -1; there are so many of them that both halves weigh about the same. The weight of the
strong half can be read off the output: by how far it went from the mean of one half to the other's.
It is compared with what the oracle says, and with what every wrong merge of some partition would
come to: a part dropped, an LSE of the wrong base, no weights at all. The border lies halfway to the
nearest of those that rounding cannot be mistaken for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
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
from kvassay.harness.attention.probes.likely import likelier
from kvassay.harness.attention.probes.masks import place, story
from kvassay.harness.attention.probes.shapes import (
    HALF_FIRST,
    ONE_KV_HEAD,
    buffered,
    decode,
    long_lengths,
)
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.reference.attention import Sequence, sequences, weights_of

F64 = torch.float64
APART = 1 / 16
"""Difference in weight from which on a reading is told apart, 16 roundings to bfloat16."""
SIZES = (64, 128, 256, 512, 1024, 2048)
COUNTS = (2, 3, 4, 7, 8, 16)
RATIO = 404
"""Keys of the second half that weigh as much as one of the first, nearly: ``exp(6)``."""


@dataclass(frozen=True)
class Guess:
    """What the weight would be if something were wrong."""

    words: str
    weight: Tensor
    """``[num_q_heads, q]``."""


@dataclass(frozen=True)
class Half:
    """The two halves of every row of a sequence: ``[num_q_heads, q]`` and ``[.., .., dim]``."""

    weight: Tensor
    """Of the strong half."""
    strong: Tensor
    """Its mean."""
    away: Tensor
    """From the other half's mean to it."""

    @classmethod
    def of(cls, sequence: Sequence, strong: Tensor) -> Half:
        """By the oracle's weights."""
        weights, _ = weights_of(sequence)
        grouped = weights.reshape(-1, sequence.group, *weights.shape[1:])

        def mean(part: Tensor) -> tuple[Tensor, Tensor]:
            total = grouped[..., part].sum(dim=-1)
            sums = torch.einsum("kgqn,nkd->kgqd", grouped[..., part], sequence.value[part])
            return total.flatten(0, 1), (sums / total[..., None]).flatten(0, 1)

        weight, one = mean(strong)
        _, other = mean(~strong)
        return cls(weight, one, one - other)

    def read(self, output: Tensor) -> Tensor:
        """The weight that an output ``[q, num_q_heads, dim]`` gives the strong half."""
        short = self.strong - output.transpose(0, 1)
        return 1 - (short * self.away).sum(dim=-1) / self.away.square().sum(dim=-1)


# ---------------------------------------------------------------------------------------- judging


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """Whether the strong half has the weight that it must; nothing of other contents."""
    if case.contents is not Contents.HALVES or case.sinks or case.softcap or case.alibi:
        return None
    built = kernel.build(case)
    wrong = misread(built, kernel.attend(built).output)
    return None if wrong is None else likelier(kernel, case, wrong)


def misread(built: Built, output: Tensor) -> Wrong | None:
    """The first sequence in which the strong half has another weight."""
    output = output.detach().cpu().to(F64)
    rows: dict[int, list[Row]] = {}
    for row in rows_of(built):
        rows.setdefault(row.sequence, []).append(row)
    for sequence in sequences(built.batch):
        strong = strong_keys(built.case.mark, sequence.key.shape[0])
        if strong.any() and not strong.all():
            wrong = _judged(sequence, strong, output[sequence.rows], rows[sequence.index])
            if wrong is not None:
                return wrong
    return None


def strong_keys(mark: int, length: int) -> Tensor:
    """``bool [length]``: the keys of the strong half."""
    keys = torch.arange(length)
    return keys < mark if mark >= 0 else keys >= length + mark


def _judged(sequence: Sequence, strong: Tensor, output: Tensor, rows: list[Row]) -> Wrong | None:
    half = Half.of(sequence, strong)
    got = half.read(output)
    guesses = list(_partitions(sequence, strong))
    border = torch.full_like(got, 0.5)
    for guess in guesses:
        off = (guess.weight - half.weight).abs()
        border = torch.where(off >= APART, torch.minimum(border, off / 2), border)
    asked = (half.weight > 0) & (half.weight < 1)
    wrong = asked & ~((got - half.weight).abs() < border)
    if not wrong.any():
        return None
    return _explained(guesses, half, got, wrong, rows)


def _explained(
    guesses: list[Guess], half: Half, got: Tensor, wrong: Tensor, rows: list[Row]
) -> Wrong:
    """By the guess that comes nearest to the first wrong row, if any comes near."""
    places = torch.nonzero(wrong).tolist()
    head, index = places[0]
    best = min(guesses, key=lambda guess: _distance(guess, got, head, index))
    near = _distance(best, got, head, index) < APART / 2
    weight = float(half.weight[head, index])
    entries = ((rows[i], h, f"the strong keys weigh {float(got[h, i]):.4f}") for h, i in places)
    return Wrong(
        "K4" if near else "K1",
        Anomaly.PARTITION if near else Anomaly.OUTPUT,
        f"the few strong keys to weigh {weight:.4f} in {place(rows[index])}",
        f"{float(got[head, index]):.4f}" + (f", as if {best.words}" if near else ""),
        story(entries),
    )


def _distance(guess: Guess, got: Tensor, head: int, index: int) -> float:
    off = float((guess.weight[head, index] - got[head, index]).abs())
    return off if math.isfinite(off) else math.inf


# ---------------------------------------------------------------------------------------- guesses


def _partitions(sequence: Sequence, strong: Tensor) -> Iterator[Guess]:
    """What goes wrong when partial results are merged, for each partition."""
    n = sequence.logits.shape[-1]
    sizes = {size for size in SIZES if size < n} | {-(-n // count) for count in COUNTS}
    for size in sorted(sizes):
        parts = _parts(sequence.logits, strong, size)
        if parts.lse.shape[-1] > 1:
            yield from _merges(parts, size)


@dataclass(frozen=True)
class _Parts:
    """LSE and weight of the strong half in every part: ``[num_q_heads, q, parts]``."""

    lse: Tensor
    share: Tensor


def _parts(logits: Tensor, strong: Tensor, size: int) -> _Parts:
    lse = _lse_of_parts(logits, size)
    lse_strong = _lse_of_parts(logits.masked_fill(~strong, -torch.inf), size)
    share = torch.exp(lse_strong - torch.where(lse.isneginf(), 0.0, lse))
    return _Parts(lse, share)


def _lse_of_parts(logits: Tensor, size: int) -> Tensor:
    padding = -logits.shape[-1] % size
    padded = torch.nn.functional.pad(logits, (0, padding), value=-torch.inf)
    return torch.logsumexp(padded.reshape(*padded.shape[:-1], -1, size), dim=-1)


def _merges(parts: _Parts, size: int) -> Iterator[Guess]:
    """Every wrong way to weight the parts."""
    lse = parts.lse
    last = (torch.arange(lse.shape[-1]) == _last_part(lse)[..., None]).expand_as(lse)
    first = torch.arange(lse.shape[-1]).eq(0)
    ways = {
        "the last of the parts of {} keys was dropped": lse.masked_fill(last, -torch.inf),
        "the first of the parts of {} keys was dropped": lse.masked_fill(first, -torch.inf),
        "parts of {} keys were merged by 2 ** lse": lse * math.log(2),
        "parts of {} keys were merged by exp(lse of base 2)": lse / math.log(2),
        "parts of {} keys had equal weights": torch.where(lse.isneginf(), lse, 0.0),
    }
    for words, logits in ways.items():
        weight = (torch.softmax(logits, dim=-1) * parts.share).sum(dim=-1)
        yield Guess(words.format(size), weight)


def _last_part(lse: Tensor) -> Tensor:
    """The last part of each row that has a key in it."""
    numbers = torch.arange(lse.shape[-1]).expand_as(lse)
    return torch.where(lse.isneginf(), -1, numbers).amax(dim=-1)


# ------------------------------------------------------------------------------------------ cases


def cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """Rows of many splits, a chunk, and long rows."""
    base = buffered(kernel, dtypes=HALF_FIRST, heads=ONE_KV_HEAD, contents=Contents.HALVES, mark=1)
    if base is None:
        return

    def case(mark: int, *seqs: tuple[int, int]) -> Case:
        return replace(base, seqs=seqs, mark=mark, seed=rng.randrange(2**31))

    yield case(3, *decode(1025, 513))
    yield case(-2, *decode(600, 450))
    yield case(2, (700, 17), (2 * base.block_size + 3, 2))
    yield case(-4, *decode(2048, 1500))
    for length in long_lengths(kernel, base):
        yield case(-max(3, length // RATIO), (length, 1))


register(
    Check(
        "halves",
        "no part of a long row is lost or merged with the wrong weight",
        ("K4",),
        cases,
        judge,
        twisted("parts-in-base-2"),
    )
)
