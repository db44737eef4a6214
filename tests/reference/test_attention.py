"""The oracle of attention against loops over plain numbers, against decoding, and against PyTorch.

The loops follow the words of the contract one key at a time. What they did not look at is then
filled with NaN and with ids of no block, so that the oracle may not look at it either.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from kvassay.harness.contract import AttentionBatch
from kvassay.reference.attention import Attended, attend, check, sequences, slots_of, weights_of

NO_BLOCK = (2**31 - 1, -1)


# ------------------------------------------------------------------------------- batches by recipe


@dataclass(frozen=True)
class Recipe:
    """A small batch: two rows on five keys, none on three, one on none, five on two, one on seven.

    So one sequence is chunked, one rests, one has no key, one has more queries than keys, and one
    decodes.
    """

    kv_heads: int = 2
    group: int = 2
    head_dim: int = 3
    value_dim: int = 2
    block_size: int = 2
    values_in_keys: bool = False
    query_type: torch.dtype = torch.float64
    cache_type: torch.dtype = torch.float64
    alibi: bool = False
    sinks: bool = False
    k_scale: str | None = None
    v_scale: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[tuple[int, int], ...] = ((2, 5), (0, 3), (1, 0), (5, 2), (1, 7))
    """Queries and keys of each sequence."""


def build(recipe: Recipe, seed: int = 0) -> AttentionBatch:
    """The batch, with blocks in random order and something finite in every slot."""
    draw = torch.Generator().manual_seed(seed)
    num_q_heads = recipe.kv_heads * recipe.group
    columns = max(-(-keys // recipe.block_size) for _, keys in recipe.lengths) + 1
    num_blocks = columns * len(recipe.lengths)
    pool = (num_blocks, recipe.block_size, recipe.kv_heads)
    key = _cache(torch.randn(*pool, recipe.head_dim, generator=draw), recipe.cache_type)
    value = _cache(torch.randn(*pool, recipe.value_dim, generator=draw), recipe.cache_type)
    rows = sum(queries for queries, _ in recipe.lengths)
    starts = list(itertools.accumulate((queries for queries, _ in recipe.lengths), initial=0))
    query = torch.randn(rows, num_q_heads, recipe.head_dim, generator=draw)
    return AttentionBatch(
        query=query.to(recipe.query_type),
        key_cache=key,
        value_cache=key[..., : recipe.value_dim] if recipe.values_in_keys else value,
        block_table=torch.randperm(num_blocks, generator=draw).view(-1, columns).int(),
        seq_lens=torch.tensor([keys for _, keys in recipe.lengths]).int(),
        query_start=torch.tensor(starts).int(),
        alibi_slopes=torch.rand(num_q_heads, generator=draw) if recipe.alibi else None,
        sinks=torch.randn(num_q_heads, generator=draw) if recipe.sinks else None,
        k_scale=_factor(recipe.k_scale, pool, draw),
        v_scale=_factor(recipe.v_scale, pool, draw),
        **recipe.options,
    )


def _cache(drawn: Tensor, kind: torch.dtype) -> Tensor:
    return (20 * drawn).round().to(kind) if kind == torch.int8 else drawn.to(kind)


def _factor(kind: str | None, pool: tuple[int, ...], draw: torch.Generator) -> Any:
    if kind is None:
        return None
    if kind == "float":
        return 0.1
    shape = {"scalar": (), "head": pool[2:], "token-head": pool}[kind]
    return torch.rand(shape, generator=draw) + 0.5


# ----------------------------------------------------------------------------------------- by hand


@dataclass
class ByHand:
    """The result of the loops, and which table columns and slots they looked at."""

    output: Tensor
    lse: Tensor
    columns: set[tuple[int, int]]
    slots: set[tuple[int, int]]


def by_hand(batch: AttentionBatch) -> ByHand:
    """Every row by itself, as the contract puts it."""
    numbers = {
        name: getattr(batch, name).float().double().tolist()
        if getattr(batch, name).dtype != torch.float64
        else getattr(batch, name).tolist()
        for name in ("query", "key_cache", "value_cache")
    }
    found = ByHand(torch.zeros(0), torch.zeros(0), set(), set())
    output, lse = [], []
    starts = batch.query_start.tolist()
    for b, length in enumerate(batch.seq_lens.tolist()):
        for row in range(starts[b], starts[b + 1]):
            position = length - 1 - (starts[b + 1] - 1 - row)
            heads = [
                _head(batch, numbers, found, b, row, position, head)
                for head in range(batch.query.shape[1])
            ]
            output.append([out for out, _ in heads])
            lse.append([total for _, total in heads])
    shape = (batch.query.shape[0], batch.query.shape[1], batch.value_cache.shape[3])
    found.output = torch.tensor(output, dtype=torch.float64).view(shape)
    found.lse = torch.tensor(lse, dtype=torch.float64).view(shape[:2])
    return found


def _head(
    batch: AttentionBatch,
    numbers: dict[str, Any],
    found: ByHand,
    b: int,
    row: int,
    position: int,
    head: int,
) -> tuple[list[float], float]:
    block_size, kv_heads = batch.key_cache.shape[1:3]
    kv_head = head // (batch.query.shape[1] // kv_heads)
    query = numbers["query"][row][head]
    logits, values = [], []
    for key in range(int(batch.seq_lens[b])):
        if batch.causal and key > position:
            continue
        if batch.window_left is not None and position - key > batch.window_left:
            continue
        block, slot = int(batch.block_table[b, key // block_size]), key % block_size
        found.columns.add((b, key // block_size))
        found.slots.add((block, slot))
        where = (block, slot, kv_head)
        k = [
            x * _scale_at(batch.k_scale, where) for x in numbers["key_cache"][block][slot][kv_head]
        ]
        v = [
            x * _scale_at(batch.v_scale, where)
            for x in numbers["value_cache"][block][slot][kv_head]
        ]
        scale = 1 / math.sqrt(len(query)) if batch.scale is None else batch.scale
        logit = scale * sum(a * b for a, b in zip(query, k, strict=True))
        if batch.softcap is not None:
            logit = batch.softcap * math.tanh(logit / batch.softcap)
        if batch.alibi_slopes is not None:
            logit += float(batch.alibi_slopes[head]) * (key - position)
        logits.append(logit)
        values.append(v)
    weights = [math.exp(logit) for logit in logits]
    total = sum(weights)
    if batch.sinks is not None:
        total += math.exp(float(batch.sinks[head]))
    if not logits:
        return [0.0] * batch.value_cache.shape[3], math.log(total) if total else -math.inf
    columns = zip(*values, strict=True)
    out = [sum(w * x for w, x in zip(weights, column, strict=True)) / total for column in columns]
    return out, math.log(total)


def _scale_at(scale: Any, where: tuple[int, int, int]) -> float:
    if scale is None:
        return 1.0
    if not isinstance(scale, Tensor) or scale.dim() == 0:
        return float(scale)
    return float(scale[where] if scale.dim() == 3 else scale[where[2]])


def forbidding(batch: AttentionBatch, allowed: ByHand) -> AttentionBatch:
    """The same batch with garbage wherever the loops did not look."""
    table = batch.block_table.clone()
    for b, column in itertools.product(*map(range, table.shape)):
        if (b, column) not in allowed.columns:
            table[b, column] = NO_BLOCK[(b + column) % 2]
    changed: dict[str, Any] = {"block_table": table}
    in_keys = batch.value_cache.data_ptr() == batch.key_cache.data_ptr()
    for name in ("key_cache", "value_cache", "k_scale", "v_scale"):
        tensor = getattr(batch, name)
        if isinstance(tensor, Tensor) and tensor.dim() >= 3:
            changed[name] = _poisoned(tensor, allowed.slots)
    if in_keys:
        changed["value_cache"] = changed["key_cache"][..., : batch.value_cache.shape[3]]
    return replace(batch, **changed)


def _poisoned(tensor: Tensor, slots: set[tuple[int, int]]) -> Tensor:
    garbage = -128.0 if tensor.dtype == torch.int8 else torch.nan
    poisoned = torch.full(tensor.shape, garbage).to(tensor.dtype)
    for block, slot in slots:
        poisoned[block, slot] = tensor[block, slot]
    return poisoned


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "every head its own": {"group": 1},
    "one head for all": {"kv_heads": 1, "group": 3},
    "values in keys": {"values_in_keys": True},
    "values larger": {"value_dim": 4},
    "block size 1": {"block_size": 1},
    "block size 3": {"block_size": 3},
    "not causal": {"options": {"causal": False}},
    "window 0": {"options": {"window_left": 0}},
    "window 1": {"options": {"window_left": 1}},
    "window 3": {"options": {"window_left": 3}},
    "window wide": {"options": {"window_left": 100}},
    "soft cap": {"options": {"softcap": 0.7}},
    "scale": {"options": {"scale": 1.3}},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "k scale float": {"k_scale": "float"},
    "k scale scalar": {"k_scale": "scalar"},
    "k scale per head": {"k_scale": "head"},
    "k scale per token": {"k_scale": "token-head"},
    "v scale float": {"v_scale": "float"},
    "v scale scalar": {"v_scale": "scalar"},
    "v scale per head": {"v_scale": "head"},
    "v scale per token": {"v_scale": "token-head"},
    "bf16 query": {"query_type": torch.bfloat16},
    "fp16 caches": {"cache_type": torch.float16},
    "e4m3 caches": {"cache_type": torch.float8_e4m3fn},
    "e5m2 caches": {"cache_type": torch.float8_e5m2},
    "int8 caches": {"cache_type": torch.int8, "k_scale": "head"},
}


def combined(names: tuple[str, ...]) -> Recipe | None:
    """All the features at once; None where two of them want different things of one field."""
    fields: dict[str, Any] = {}
    for name in names:
        for key, value in FEATURES[name].items():
            if key == "options":
                value = {**fields.get(key, {}), **value}
                if len(value) < len(fields.get(key, {})) + 1:
                    return None
            elif fields.get(key, value) != value:
                return None
            fields[key] = value
    return Recipe(**fields)


PAIRS = [pair for pair in itertools.combinations(FEATURES, 2) if combined(pair) is not None]


def assert_by_hand(batch: AttentionBatch) -> None:
    expected = by_hand(batch)
    got = attend(forbidding(batch, expected))
    assert (got.output.dtype, got.lse.dtype) == (torch.float64, torch.float64)
    assert_close(got.output, expected.output)
    assert_close(got.lse, expected.lse)


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_features_and_pairs_of_them_are_what_loops_say(names: tuple[str, str]) -> None:
    recipe = combined(names)
    assert recipe is not None
    assert_by_hand(build(recipe))


def test_pairs_are_many_and_the_loops_see_what_they_are_there_for() -> None:
    assert {name for pair in PAIRS for name in pair} == set(FEATURES)
    plain = by_hand(build(Recipe()))
    assert (
        torch.isneginf(plain.lse).any(dim=1).tolist()
        == [False, False, True] + [True] * 3 + [False] * 3
    )
    for name, fields in FEATURES.items():
        if name in ("plain", "window wide"):
            continue
        other = by_hand(build(Recipe(**fields)))
        same = other.output.shape == plain.output.shape and torch.equal(other.output, plain.output)
        assert not (same and torch.equal(other.lse, plain.lse)), f"{name} changes nothing"


@pytest.mark.parametrize("seed", range(5))
def test_all_features_at_once(seed: int) -> None:
    names = ("window 3", "soft cap", "scale", "alibi", "sinks", "k scale per token")
    recipe = combined((*names, "v scale per head", "e4m3 caches", "block size 3"))
    assert recipe is not None
    assert_by_hand(build(recipe, seed))


def test_the_loops_know_garbage_from_what_counts() -> None:
    """A control of the controls: with garbage where they do look, the loops' result changes."""
    batch = build(Recipe())
    allowed = by_hand(batch)
    allowed.slots.pop()
    assert by_hand(forbidding(batch, allowed)).output.isnan().any()


# ---------------------------------------------------------------------------------- in the head


def uniform(length: int, num_queries: int, **options: Any) -> Attended:
    """Queries of 0, so that all visible keys weigh the same; the value at position p is p."""
    cache = torch.arange(8.0).view(4, 2, 1, 1)
    return attend(
        AttentionBatch(
            query=torch.zeros(num_queries, 1, 1),
            key_cache=cache,
            value_cache=cache,
            block_table=torch.arange(4).int()[None],
            seq_lens=torch.tensor([length]).int(),
            query_start=torch.tensor([0, num_queries]).int(),
            **options,
        )
    )


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, [range(4), range(5), range(6)]),
        ({"causal": False}, [range(6)] * 3),
        ({"window_left": 0}, [[3], [4], [5]]),
        ({"window_left": 2}, [range(1, 4), range(2, 5), range(3, 6)]),
        ({"window_left": 2, "causal": False}, [range(1, 6), range(2, 6), range(3, 6)]),
    ],
)
def test_equal_weights_read_the_mask_back(options: dict[str, Any], keys: list[range]) -> None:
    got = uniform(6, 3, **options)
    means = [sum(seen) / len(seen) for seen in keys]
    assert_close(got.output.flatten(), torch.tensor(means, dtype=torch.float64))
    counts = torch.tensor([float(len(seen)) for seen in keys], dtype=torch.float64)
    assert_close(got.lse.flatten().exp(), counts)


def test_a_sink_is_a_key_whose_value_is_zero() -> None:
    plain, sunk = uniform(6, 1), uniform(6, 1, sinks=torch.zeros(1))
    assert_close(sunk.output, plain.output * 6 / 7)
    assert_close(sunk.lse.exp(), plain.lse.exp() + 1)


@pytest.mark.parametrize(("length", "causal"), [(0, True), (0, False), (2, True)])
def test_a_row_that_sees_no_key_is_zero(length: int, causal: bool) -> None:
    got, sunk = (
        uniform(length, 3, causal=causal),
        uniform(length, 3, causal=causal, sinks=torch.tensor([0.25])),
    )
    empty = 3 - length
    assert got.output[:empty].eq(0).all()
    assert got.lse[:empty].isneginf().all()
    assert sunk.output[:empty].eq(0).all()
    assert sunk.lse[:empty].eq(0.25).all()
    assert got.lse[empty:].isfinite().all()


def test_more_queries_than_keys_all_see_them_where_nothing_hides_them() -> None:
    assert_close(uniform(2, 3, causal=False).lse.exp(), torch.full((3, 1), 2.0).double())


def test_a_huge_logit_neither_overflows_nor_hides_the_rest() -> None:
    batch = build(Recipe(options={"scale": 1e6}))
    seen = attend(batch).lse.isfinite()
    assert seen.any()
    assert attend(batch).output[seen.any(dim=1)].isfinite().all()


def test_a_float_is_not_rounded_to_single_precision() -> None:
    batch = build(Recipe(1, 1, 1, 1, lengths=((1, 1),)))
    ones = torch.ones_like(batch.key_cache)
    single = replace(batch, query=torch.ones(1, 1, 1), key_cache=ones, value_cache=ones)
    assert float(attend(replace(single, k_scale=0.1)).lse) == 0.1
    assert float(attend(replace(single, scale=0.1)).lse) == 0.1
    assert float(attend(replace(single, v_scale=0.1)).output) == 0.1


# ------------------------------------------------------------------------------- against others

TOGETHER = ("window 3", "soft cap", "alibi", "sinks", "k scale per token", "v scale per head")


@pytest.mark.parametrize("names", [("plain",), *((n,) for n in TOGETHER), TOGETHER], ids="+".join)
@pytest.mark.parametrize("chunks", [[1] * 9, [4, 5], [2, 3, 4], [8, 1]], ids=str)
def test_any_chunking_comes_to_the_same(names: tuple[str, ...], chunks: list[int]) -> None:
    recipe = combined(names)
    assert recipe is not None
    whole = build(replace(recipe, lengths=((9, 9),)))
    output, lse, done = [], [], 0
    for size in chunks:
        part = replace(
            whole,
            query=whole.query[done : done + size],
            seq_lens=torch.tensor([done + size]).int(),
            query_start=torch.tensor([0, size]).int(),
        )
        got = attend(part)
        output.append(got.output)
        lse.append(got.lse)
        done += size
    assert_close(torch.cat(output), attend(whole).output)
    assert_close(torch.cat(lse), attend(whole).lse)


@pytest.mark.parametrize(
    "names",
    [
        ("plain",),
        ("one head for all",),
        ("not causal",),
        ("window 3",),
        ("alibi",),
        ("scale", "values larger"),
        ("window 1", "not causal"),
        ("alibi", "window 3"),
    ],
    ids="+".join,
)
def test_pytorch_says_the_same(names: tuple[str, ...]) -> None:
    recipe = combined(names)
    assert recipe is not None
    length, rows = 11, 4
    batch = build(replace(recipe, lengths=((rows, length),)))
    blocks = batch.block_table[0].long()
    key = batch.key_cache[blocks].flatten(0, 1)[:length].transpose(0, 1)
    value = batch.value_cache[blocks].flatten(0, 1)[:length].transpose(0, 1)
    behind = torch.arange(length - rows, length)[:, None] - torch.arange(length)
    mask = torch.zeros(rows, length, dtype=torch.float64)
    if batch.causal:
        mask[behind < 0] = -torch.inf
    if batch.window_left is not None:
        mask[behind > batch.window_left] = -torch.inf
    if batch.alibi_slopes is not None:
        mask = mask - batch.alibi_slopes.double()[:, None, None] * behind
    expected = scaled_dot_product_attention(
        batch.query.transpose(0, 1)[None],
        key.repeat_interleave(recipe.group, dim=0)[None],
        value.repeat_interleave(recipe.group, dim=0)[None],
        attn_mask=mask,
        scale=batch.scale,
    )
    assert_close(attend(batch).output, expected[0].transpose(0, 1))


def test_any_strides_do() -> None:
    batch = build(Recipe())
    turned = batch.key_cache.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    wide = torch.full((*batch.query.shape[:2], 8), torch.nan).double()
    wide[..., 2:5] = batch.query
    other = attend(replace(batch, key_cache=turned, query=wide[..., 2:5]))
    assert turned.stride() != batch.key_cache.stride()
    assert torch.equal(other.output, attend(batch).output)


# ---------------------------------------------------------------------------- parts, and caution


def test_the_parts_of_a_sequence_fit_together() -> None:
    batch = build(Recipe(sinks=True))
    parts = list(sequences(batch))
    assert [part.index for part in parts] == [0, 2, 3, 4], "the second has no row"
    assert [part.rows for part in parts] == [slice(0, 2), slice(2, 3), slice(3, 8), slice(8, 9)]
    for part in parts:
        weights, lse = weights_of(part)
        assert part.sinks is not None
        taken = torch.exp(part.sinks[:, None] - lse)
        assert_close(weights.sum(dim=-1), 1 - taken)
        assert part.group == 2
    blocks, slots = slots_of(batch, 4)
    assert (blocks * 2 + slots)[5] == batch.block_table[4, 2] * 2 + 1


def fingerprint(batch: AttentionBatch) -> dict[str, str]:
    """A hash of all that each tensor's memory holds."""
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return {
        name: hashlib.sha256(bytes(tensor.untyped_storage().tolist())).hexdigest()
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("names", [("plain",), TOGETHER], ids="+".join)
def test_inputs_are_only_read(names: tuple[str, ...]) -> None:
    recipe = combined(names)
    assert recipe is not None
    rows = sum(queries for queries, _ in recipe.lengths)
    buffers = {"output": torch.ones(rows, 4, 2).double(), "lse": torch.ones(rows, 4)}
    batch = replace(build(recipe), **buffers)
    before = fingerprint(batch)
    assert len(before) >= 8
    attend(batch)
    assert fingerprint(batch) == before
    batch.key_cache.mul_(2)
    assert fingerprint(batch) != before


# ------------------------------------------------------------------------------------- refusals

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "query: dimensions": (
        {"query": torch.zeros(9, 12)},
        r"query: expected 3 dimensions, got shape \(9, 12\)",
    ),
    "key cache: dimensions": (
        {"key_cache": torch.zeros(5, 2, 3)},
        r"key_cache: expected 4 dimensions, got shape \(5, 2, 3\)",
    ),
    "value cache: dimensions": (
        {"value_cache": torch.zeros(5)},
        r"value_cache: expected 4 dimensions, got shape \(5,\)",
    ),
    "table: dimensions": (
        {"block_table": torch.zeros(5).int()},
        r"block_table: expected 2 dimensions, got shape \(5,\)",
    ),
    "value cache: other pool": (
        {"value_cache": torch.zeros(25, 3, 2, 2)},
        r"value_cache: expected \(25, 2, 2\) as the keys have, got \(25, 3, 2\)",
    ),
    "value cache: other heads": (
        {"value_cache": torch.zeros(25, 2, 4, 2)},
        r"value_cache: expected \(25, 2, 2\) as the keys have, got \(25, 2, 4\)",
    ),
    "query: head size": (
        {"query": torch.zeros(9, 4, 5)},
        r"query: expected head size 3 as the keys have, got 5",
    ),
    "query: heads": (
        {"query": torch.zeros(9, 3, 3)},
        r"query: expected a multiple of 2 KV heads, got 3",
    ),
    "query: no heads": (
        {"query": torch.zeros(9, 0, 3)},
        r"query: expected a multiple of 2 KV heads, got 0",
    ),
    "caches: no heads": (
        {"key_cache": torch.zeros(25, 2, 0, 3), "value_cache": torch.zeros(25, 2, 0, 2)},
        r"query: expected a multiple of 0 KV heads, got 4",
    ),
    "lengths: shape": (
        {"seq_lens": torch.zeros(4).int()},
        r"seq_lens: expected shape \(5,\), got \(4,\)",
    ),
    "starts: shape": (
        {"query_start": torch.zeros(5).int()},
        r"query_start: expected shape \(6,\), got \(5,\)",
    ),
    "starts: not from 0": (
        {"query_start": torch.tensor([1, 2, 2, 3, 8, 9]).int()},
        r"query_start: expected to rise from 0 to 9, got \[1, 2, 2, 3, 8, 9\]",
    ),
    "starts: not to the end": (
        {"query_start": torch.tensor([0, 2, 2, 3, 8, 8]).int()},
        r"query_start: expected to rise from 0 to 9, got \[0, 2, 2, 3, 8, 8\]",
    ),
    "starts: falling": (
        {"query_start": torch.tensor([0, 3, 2, 3, 8, 9]).int()},
        r"query_start: expected to rise from 0 to 9, got \[0, 3, 2",
    ),
    "lengths: negative": (
        {"seq_lens": torch.tensor([5, 3, -1, 2, 7]).int()},
        r"seq_lens\[2\]: expected 0 to 10 .*, got -1",
    ),
    "lengths: beyond the table": (
        {"seq_lens": torch.tensor([11, 3, 0, 2, 7]).int()},
        r"seq_lens\[0\]: expected 0 to 10 \(the table's columns times the block size\), got 11",
    ),
    "table: beyond the pool": (
        {"block_table": torch.full((5, 5), 25).int()},
        r"block_table\[0\]: expected blocks 0 to 24, got 25",
    ),
    "table: negative": (
        {"block_table": torch.full((5, 5), -1).int()},
        r"block_table\[0\]: expected blocks 0 to 24, got -1",
    ),
    "window": ({"window_left": -1}, "window_left: expected None or at least 0, got -1"),
    "soft cap 0": ({"softcap": 0.0}, "softcap: expected None or above 0, got 0.0"),
    "soft cap NaN": ({"softcap": math.nan}, "softcap: expected None or above 0, got nan"),
    "alibi": (
        {"alibi_slopes": torch.zeros(2)},
        r"alibi_slopes: expected shape \(4,\), got \(2,\)",
    ),
    "sinks": ({"sinks": torch.zeros(4, 1)}, r"sinks: expected shape \(4,\), got \(4, 1\)"),
    "k scale": (
        {"k_scale": torch.zeros(4)},
        r"k_scale: expected a scalar or shape \(2,\) or \(25, 2, 2\), got \(4,\)",
    ),
    "v scale": (
        {"v_scale": torch.zeros(25, 2)},
        r"v_scale: expected a scalar or shape \(2,\) or \(25, 2, 2\), got \(25, 2\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_batch_is_refused_with_the_reason(name: str) -> None:
    changed, says = REFUSED[name]
    batch = build(Recipe())
    attend(batch)
    with pytest.raises(ValueError, match=says):
        attend(replace(batch, **changed))


def test_a_check_alone_refuses_all_but_unknown_blocks() -> None:
    """Which table entries count depends on what is visible, so only attending can tell."""
    batch = build(Recipe())
    for name, (changed, says) in REFUSED.items():
        if name.startswith("table: ") and "dimensions" not in name:
            check(replace(batch, **changed))
        else:
            with pytest.raises(ValueError, match=says):
                check(replace(batch, **changed))
