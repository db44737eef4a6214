"""How the budget tells correct kernels from broken ones, beside tolerances in common use.

A point is a batch of decodes of one length, type and content, drawn from a seed. Emulated kernels
that are correct in different ways must be accepted on every point (a rejection is a false alarm);
kernels with one planted fault should be rejected. The same outputs are judged by fixed tolerances,
and by comparison with a kernel of the same precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvassay.harness.attention.emulated import Fault, Strategy, emulate
from kvassay.harness.attention.hostile import STRATEGIES, hostile
from kvassay.harness.budget import Expected, Judgement, expect, judge
from kvassay.harness.contract import AttentionBatch, AttentionResult, Rounding

F64 = torch.float64
BLOCK = 16
STALE = 64
"""Slots past the length that hold another sequence's keys."""
SEQUENCES, LONG = 4, 8192
"""Sequences of a batch; a longer one stands alone."""
SHAPES = ((2, 4, 128), (2, 4, 64), (4, 1, 128), (2, 8, 64))
"""KV heads, query heads per KV head, head size; taken in turns."""
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LENGTHS = (2, 5, 33, 128, 1000, 4093, 16381)
CONTENTS = ("plain", "peaky", "offset")
"""Normal; the query four times as large; values of 1 + 0.1 N."""
LONG_CONTENTS = ("plain", "peaky")
TINY = "tiny"
"""Uniform within 1e-3: products and outputs are subnormal in fp16."""


@dataclass(frozen=True)
class Point:
    """What a batch is drawn from."""

    dtype: str
    content: str
    length: int
    seed: int


def batch_of(point: Point) -> AttentionBatch:
    """Decodes; slots and table columns past the length hold stale keys."""
    rng = torch.Generator().manual_seed(1000 * point.seed + point.length)
    heads, group, size = SHAPES[point.seed % len(SHAPES)]
    sequences = SEQUENCES if point.length < LONG else 1
    columns = -(-(point.length + STALE) // BLOCK)
    shape = (sequences * columns, BLOCK, heads, size)

    def draw(*shape: int) -> Tensor:
        if point.content == TINY:
            return (torch.rand(*shape, generator=rng) * 2 - 1) * 1e-3
        return torch.randn(*shape, generator=rng)

    query, key, value = draw(sequences, heads * group, size), draw(*shape), draw(*shape)
    if point.content == "peaky":
        query *= 4
    if point.content == "offset":
        value = value * 0.1 + 1
    blocks = torch.randperm(shape[0], generator=rng).to(torch.int32)
    return AttentionBatch(
        query=query.to(TYPES[point.dtype]),
        key_cache=key.to(TYPES[point.dtype]),
        value_cache=value.to(TYPES[point.dtype]),
        block_table=blocks.reshape(sequences, columns),
        seq_lens=torch.full((sequences,), point.length, dtype=torch.int32),
        query_start=torch.arange(sequences + 1, dtype=torch.int32),
    )


PLAIN = Strategy()
EAGER = Strategy(Rounding.EAGER, normalised=True)
ONE_PASS = Strategy(normalised=True)
CORRECT = {
    "blocks of 16": Strategy(block=16),
    "blocks of 64": PLAIN,
    "blocks of 128, base e": Strategy(block=128, base_2=False),
    "3 splits": Strategy(splits=3),
    "8 splits": Strategy(splits=8, block=16),
    "P in float32": Strategy(wide_probabilities=True),
    "one pass, P normalised": ONE_PASS,
}
"""Kernels of class P."""
SLOPPY = {
    "8 splits, parts in 16 bit": Strategy(Rounding.P_PART, splits=8, block=16),
    "scores rounded": Strategy(Rounding.S),
    "eager": EAGER,
    "query scaled and rounded": Strategy(Rounding.Q_PRE),
}
"""Kernels of other classes, each judged by its own."""
BASELINES = ("eager", "one pass, P normalised")
"""Kernels that others' criteria compare with."""

Kernel = Callable[[AttentionBatch], AttentionResult]


def _shorter(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, seq_lens=batch.seq_lens - 1)


def _later(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, window_left=int(batch.seq_lens[0]) - 2)


def _longer(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, seq_lens=batch.seq_lens + 1)


def _whole_block(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, seq_lens=batch.seq_lens + BLOCK - 1 - (batch.seq_lens - 1) % BLOCK)


def _stale_slot(batch: AttentionBatch) -> AttentionBatch:
    length = int(batch.seq_lens[0])
    key, value, table = batch.key_cache.clone(), batch.value_cache.clone(), batch.block_table.long()
    (to, to_slot), (by, by_slot) = divmod(length // 2, BLOCK), divmod(length + 5, BLOCK)
    for cache in (key, value):
        cache[table[:, to], to_slot] = cache[table[:, by], by_slot]
    return replace(batch, key_cache=key, value_cache=value)


def _wrong_block(batch: AttentionBatch) -> AttentionBatch:
    length, table = int(batch.seq_lens[0]), batch.block_table.clone()
    table[:, length // 2 // BLOCK] = table[:, -1]
    return replace(batch, block_table=table)


def _wrong_head(batch: AttentionBatch) -> AttentionBatch:
    return replace(_wrong_key_head(batch), value_cache=batch.value_cache.roll(1, 2))


def _wrong_key_head(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, key_cache=batch.key_cache.roll(1, 2))


def _scaled(factor: float) -> Callable[[AttentionBatch], AttentionBatch]:
    return lambda batch: replace(batch, scale=batch.query.shape[-1] ** -0.5 * factor)


def _unscaled(batch: AttentionBatch) -> AttentionBatch:
    return replace(batch, scale=1.0)


def _on(change: Callable[[AttentionBatch], AttentionBatch]) -> Kernel:
    return lambda batch: emulate(change(batch), PLAIN)


def _with(fault: Fault, splits: int = 1) -> Kernel:
    return lambda batch: emulate(batch, replace(PLAIN, fault=fault, splits=splits))


def _one_row(batch: AttentionBatch) -> AttentionResult:
    right, wrong = emulate(batch, PLAIN), emulate(_shorter(batch), PLAIN)
    right.output[0, 0], right.lse[0, 0] = wrong.output[0, 0], wrong.lse[0, 0]
    return right


def _zero(batch: AttentionBatch) -> AttentionResult:
    right = emulate(batch, PLAIN)
    return AttentionResult(torch.zeros_like(right.output), torch.zeros_like(right.lse))


PADDED = (80 / 128) ** 0.5
"""Scale of a head of 80 that was padded to 128, over the right one."""
FAULTS: dict[str, Kernel] = {
    "last key dropped": _on(_shorter),
    "first key dropped": _on(_later),
    "one stale key too many": _on(_longer),
    "last block not masked": _on(_whole_block),
    "stale slot in the middle": _on(_stale_slot),
    "one wrong block of 16": _on(_wrong_block),
    "wrong KV head": _on(_wrong_head),
    "wrong KV head, keys only": _on(_wrong_key_head),
    "scale missing": _on(_unscaled),
    "scale of the padded head size": _on(_scaled(PADDED)),
    "k_scale 2 % off": _on(_scaled(1.02)),
    "v_scale 0.4 % off": _on(lambda batch: replace(batch, v_scale=1.004)),
    Fault.MERGE_BASE_2: _with(Fault.MERGE_BASE_2, splits=8),
    Fault.DROPPED_SPLIT: _with(Fault.DROPPED_SPLIT, splits=8),
    "one row drops its last key": _one_row,
    Fault.ROUNDED_SUM: _with(Fault.ROUNDED_SUM),
    "output of zeros": _zero,
}
"""Kernels of class P with one fault."""
REQUIRED: dict[str, int] = {
    "last key dropped": 99,
    "first key dropped": 99,
    "one stale key too many": 99,
    "last block not masked": 99,
    "stale slot in the middle": 100,
    "one wrong block of 16": 100,
    "wrong KV head": 100,
    "wrong KV head, keys only": 100,
    "scale missing": 100,
    "scale of the padded head size": 100,
    "k_scale 2 % off": 100,
    "v_scale 0.4 % off": 100,
    Fault.MERGE_BASE_2: 79,
    Fault.DROPPED_SPLIT: 100,
    "one row drops its last key": 85,
    Fault.ROUNDED_SUM: 100,
    "output of zeros": 100,
}
"""Percent of the cases in which each fault has to be seen, give or take `MARGIN` points: what the
statistics saw when they were designed, on a grid of their own, or 100."""
MARGIN = 2
SPLIT_FAULTS = (Fault.MERGE_BASE_2, Fault.DROPPED_SPLIT)
SEEN_FROM: dict[str, int] = {Fault.ROUNDED_SUM: 1000}
"""Shortest length at which there is something to see, where that is not any."""


def faults_at(point: Point) -> Iterator[str]:
    """The faults that change anything at a point: splits need more than one block of 64 keys."""
    for name in FAULTS:
        shortest = PLAIN.block + 1 if name in SPLIT_FAULTS else SEEN_FROM.get(name, 2)
        if point.length >= shortest and not (
            name == "last block not masked" and point.length % BLOCK == 0
        ):
            yield name


# ------------------------------------------------------------------------- tolerances in common use


@dataclass(frozen=True)
class Compared:
    """What the other criteria look at, in float64; a baseline is the error of another kernel."""

    got: Tensor
    exact: Tensor
    dtype: torch.dtype
    eager: Tensor
    one_pass: Tensor

    @property
    def error(self) -> Tensor:
        """Got minus exact."""
        return self.got - self.exact


def _close(got: Tensor, exact: Tensor, absolute: float, relative: float) -> bool:
    return bool(((got - exact).abs() <= absolute + relative * exact.abs()).all())


def _vllm(case: Compared) -> bool:
    return _close(case.got, case.exact.to(case.dtype).to(F64), 1.5e-2, 1e-2)


def _flashinfer(case: Compared) -> bool:
    tolerance = 1e-2 if case.dtype == torch.bfloat16 else 1e-3
    return _close(case.got, case.exact, tolerance, tolerance)


def _flashinfer_fixed(case: Compared) -> bool:
    return _close(case.got, case.exact, 1e-3, 1e-3)


def _flash_attention(case: Compared) -> bool:
    largest = case.error.abs().max() <= 2 * case.eager.abs().max() + 1e-5
    return bool(largest and case.error.abs().mean() <= 1.5 * case.eager.abs().mean())


def _cosine(case: Compared) -> bool:
    return bool((torch.cosine_similarity(case.got, case.exact, dim=-1) > 0.99).all())


def _one_pass(case: Compared) -> bool:
    ulp = 2 * torch.finfo(case.dtype).eps * case.exact.abs().max()
    largest = case.error.abs().max() <= 2 * case.one_pass.abs().max() + ulp
    squares = case.error.square().mean() <= 1.5**2 * case.one_pass.square().mean()
    return bool(largest and squares)


CRITERIA: dict[str, Callable[[Compared], bool]] = {
    "vLLM 1.5e-2 / 1e-2": _vllm,
    "FlashInfer 1e-3 / 1e-2": _flashinfer,
    "1e-3 for all types": _flashinfer_fixed,
    "FlashAttention 2x max, 1.5x mean": _flash_attention,
    "cosine > 0.99": _cosine,
    "2x max, 1.5x rms of a one-pass kernel": _one_pass,
}
"""Whether a criterion accepts; in the order of `Row.others`."""


# ------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Row:
    """One judgement; statistics are divided by their limits."""

    kind: str
    """``correct``, ``sloppy``, ``hostile`` or ``fault``."""
    name: str
    dtype: str
    content: str
    length: int
    seed: int
    row: float
    element: float
    gain: float
    lse: float
    others: str
    """One character per criterion: ``+`` accepted, ``-`` rejected."""

    @property
    def output_rejected(self) -> bool:
        """Whether the output alone convicts."""
        return max(self.row, self.element, self.gain) > 1

    @property
    def lse_rejected(self) -> bool:
        """Whether the LSE alone convicts."""
        return self.lse > 1

    @property
    def rejected(self) -> bool:
        """What the budget says."""
        return self.output_rejected or self.lse_rejected


def rows_of(point: Point) -> Iterator[Row]:
    """All kernels on one point; the sloppy ones on some, the faults only in 16 bit."""
    batch = batch_of(point)
    results = {name: emulate(batch, how) for name, how in (CORRECT | SLOPPY).items()}
    expected = expect(batch)
    errors = [results[name].output.to(F64) - expected.output for name in BASELINES]

    def judged(kind: str, name: str, result: AttentionResult, by: Expected) -> Row:
        case = Compared(result.output.to(F64), expected.output, expected.dtype, *errors)
        others = "".join("+" if accepts(case) else "-" for accepts in CRITERIA.values())
        where = (point.dtype, point.content, point.length, point.seed)
        return Row(kind, str(name), *where, *_parts(judge(result, by, lse=True)), others)

    for name in CORRECT:
        yield judged("correct", name, results[name], expected)
    if point.dtype == "fp32":
        return
    if point.seed < SLOPPY_SEEDS:
        for name, how in SLOPPY.items():
            yield judged("sloppy", name, results[name], expect(batch, how.rounding))
    if point.content in CONTENTS:
        for name in faults_at(point):
            yield judged("fault", name, FAULTS[name](batch), expected)


def hostile_rows(seed: int) -> Iterator[Row]:
    """All correct kernels on one hostile batch, each judged by its own class."""
    content, batch = hostile(seed)
    dtype = next(name for name, dtype in TYPES.items() if dtype == batch.query.dtype)
    classes = sorted({how.rounding for how in STRATEGIES.values()})
    expected = {rounding: expect(batch, rounding) for rounding in classes}
    for name, how in STRATEGIES.items():
        judgement = judge(emulate(batch, how), expected[how.rounding], lse=True)
        length = int(batch.seq_lens.max())
        yield Row("hostile", name, dtype, content, length, seed, *_parts(judgement), "")


def _parts(judgement: Judgement) -> tuple[float, float, float, float]:
    """The statistics as parts of their limits."""
    bounds = judgement.limits
    return (
        judgement.row / bounds.row,
        judgement.element / bounds.element,
        judgement.gain / bounds.gain,
        (judgement.lse or 0.0) / bounds.lse,
    )


def complaints(rows: Iterable[Row]) -> list[str]:
    """False alarms, and faults that are seen too rarely; one sentence each."""
    rows = list(rows)
    found = [f"false alarm: {row}" for row in rows if row.kind != "fault" and row.rejected]
    for name, short in shortfalls(rows).items():
        if short > MARGIN:
            percent = REQUIRED[name] - short
            found.append(f"{name}: seen in {percent:.1f} %, required {REQUIRED[name]} - {MARGIN}")
    return found


def shortfalls(rows: Iterable[Row]) -> dict[str, float]:
    """By how many points each fault is seen less often than required; below 0 where more often."""
    faults: dict[str, list[bool]] = {name: [] for name in REQUIRED}
    for row in rows:
        if row.kind == "fault":
            faults[row.name].append(row.rejected)
    return {
        name: REQUIRED[name] - 100 * sum(seen) / max(len(seen), 1) for name, seen in faults.items()
    }


DECISIVE = 2.0
"""Arithmetic differs between machines: a statistic nearer to its limit than by this factor may come
out on its other side."""


def disagreement(before: Row, after: Row) -> str | None:
    """What another measurement of a stored judgement says otherwise, if it is not near a limit.

    A correct kernel that is now rejected is never near enough.
    """
    if before.kind != "fault" and after.rejected != before.rejected:
        return f"{before} is now {after}"
    verdicts = [(row.output_rejected, row.lse_rejected) for row in (before, after)]
    parts = (before.row, before.element, before.gain, before.lse)
    near = any(1 / DECISIVE < part < DECISIVE for part in parts)
    return None if near or verdicts[0] == verdicts[1] else f"{before} is now {after}"


SEEDS, SLOPPY_SEEDS, HOSTILE_SEEDS = 8, 4, 250


def points() -> Iterator[Point]:
    """The grid; fewer seeds for long sequences, for float32 and for tiny values.

    The longest are plain and peaky, in 16 bit: it is for these that `REQUIRED` is stated.
    """
    for dtype in TYPES:
        for content in (*CONTENTS, TINY):
            for length in LENGTHS:
                few = length >= LONG or dtype == "fp32" or content == TINY
                if length < LONG or (dtype != "fp32" and content in LONG_CONTENTS):
                    for seed in range(SEEDS // 4 if few else SEEDS):
                        yield Point(dtype, content, length, seed)


def is_quick(point: Point) -> bool:
    """Whether a point belongs to the small part of the grid that the project's tests repeat."""
    small = point.seed == 0 and point.length in (5, 128)
    return small and point.content in ("plain", "peaky") and point.dtype != "fp32"


QUICK_HOSTILE_SEEDS = 4
