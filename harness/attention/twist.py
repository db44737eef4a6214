"""A twist: the oracle with one mistake, and the ways in which mistakes are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import AttentionBatch
from kvassay.reference import attention as oracle
from kvassay.reference.attention import Attended, Sequence

Apply = Callable[[AttentionBatch], Attended]
When = Callable[[AttentionBatch], bool]
Law = tuple[str, Anomaly]
"""An invariant, and the name of what breaks it."""

OUTPUT: Law = ("K1", Anomaly.OUTPUT)
LSE: Law = ("K1", Anomaly.LSE)
TAIL: Law = ("K2", Anomaly.TAIL)
PARTITION: Law = ("K4", Anomaly.PARTITION)
CAUSAL: Law = ("K5", Anomaly.CAUSAL)
WINDOW: Law = ("K6", Anomaly.WINDOW)
HEAD: Law = ("K7", Anomaly.HEAD)
ADDRESS: Law = ("K8", Anomaly.ADDRESS)
SCORE: Law = ("K9", Anomaly.SCORE)
SCALE: Law = ("K10", Anomaly.SCALE)
LEAK: Law = ("K14", Anomaly.LEAK)


@dataclass(frozen=True)
class Twist:
    """One mistake."""

    name: str
    words: str
    """As in "it looks as if ..."."""
    invariant: str
    anomaly: Anomaly
    apply: Apply
    """The wrong result; raises `ValueError` where the mistake leads to no batch."""
    when: When = lambda batch: True
    """Whether a batch has what the mistake is about."""


def twist(name: str, words: str, law: Law, apply: Apply, when: When | None = None) -> Twist:
    """A twist; without what it is about, the result is right. By default every batch has that."""
    invariant, anomaly = law
    if when is None:
        return Twist(name, words, invariant, anomaly, apply)

    def guarded(batch: AttentionBatch) -> Attended:
        return apply(batch) if when(batch) else oracle.attend(batch)

    return Twist(name, words, invariant, anomaly, guarded, when)


def has(*names: str) -> When:
    """Whether these fields of a batch are set."""
    return lambda batch: all(getattr(batch, name) is not None for name in names)


def on_batch(change: Callable[[AttentionBatch], AttentionBatch]) -> Apply:
    """The mistake is to read this batch instead."""
    return lambda batch: oracle.attend(change(batch))


def without(name: str) -> Apply:
    """The mistake is to ignore a field."""
    return on_batch(lambda batch: replace(batch, **{name: None}))  # type: ignore[arg-type]


def on_sequences(change: Callable[[AttentionBatch, Sequence], Sequence]) -> Apply:
    """The mistake is in every sequence that has rows."""

    def apply(batch: AttentionBatch) -> Attended:
        result = nothing(batch)
        for sequence in oracle.sequences(batch):
            put(result, sequence, change(batch, sequence))
        return result

    return apply


def nothing(batch: AttentionBatch) -> Attended:
    """A result of which no row is attended yet."""
    shape = (*batch.query.shape[:2], batch.value_cache.shape[-1])
    output = torch.zeros(shape, dtype=oracle.F64)
    return Attended(output, torch.full(shape[:2], -torch.inf, dtype=oracle.F64))


def put(result: Attended, place: Sequence, attended: Sequence) -> None:
    """The rows of a sequence, as another reading has them."""
    result.output[place.rows], result.lse[place.rows] = oracle.softmax(attended)


def hiding(hidden: Callable[[AttentionBatch, Sequence], Tensor]) -> Apply:
    """Keys are left out: `hidden` says which, ``bool [q, n]``."""

    def change(batch: AttentionBatch, sequence: Sequence) -> Sequence:
        logits = sequence.logits.masked_fill(hidden(batch, sequence), -torch.inf)
        return replace(sequence, logits=logits)

    return on_sequences(change)


def seeing(
    visible: Callable[[AttentionBatch, Sequence], Tensor],
    window: Callable[[AttentionBatch], int | None] = lambda batch: batch.window_left,
) -> Apply:
    """Other keys of the sequence are seen: ``bool [q, n]``, up to `window` before a row's own."""

    def apply(batch: AttentionBatch) -> Attended:
        result = nothing(batch)
        open_to_all = replace(batch, causal=False, window_left=window(batch))
        pairs = zip(oracle.sequences(batch), oracle.sequences(open_to_all), strict=True)
        for sequence, whole in pairs:
            logits = whole.logits.masked_fill(~visible(batch, sequence), -torch.inf)
            put(result, sequence, replace(whole, logits=logits))
        return result

    return apply


def positions_of(sequence: Sequence) -> Tensor:
    """``[q]``: where the queries of a sequence stand."""
    queries, keys = sequence.visible.shape
    return torch.arange(keys - queries, keys)


def at_phase(whole: Twist, *, decode: bool) -> Twist:
    """The same mistake, made only in sequences of one row (or only in those of several)."""

    def apply(batch: AttentionBatch) -> Attended:
        right, wrong = oracle.attend(batch), whole.apply(batch)
        here = _rows_of_phase(batch, decode)
        output = torch.where(here[:, None, None], wrong.output, right.output)
        return Attended(output, torch.where(here[:, None], wrong.lse, right.lse))

    def when(batch: AttentionBatch) -> bool:
        here = _rows_of_phase(batch, decode)
        return whole.when(batch) and bool(here.any()) and not bool(here.all())

    where = "decode" if decode else "prefill"
    return replace(
        whole,
        name=f"{whole.name}-{where}",
        words=f"{whole.words} at {where}",
        apply=apply,
        when=when,
    )


def _rows_of_phase(batch: AttentionBatch, decode: bool) -> Tensor:
    """``bool [num_tokens]``: rows of sequences that have one row, or several."""
    counts: Tensor = batch.query_start.cpu().long().diff()
    return counts.eq(1).eq(decode).repeat_interleave(counts)
