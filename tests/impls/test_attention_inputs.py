"""What the built-in kernels refuse, with the reason, and that a refused batch changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvassay.harness.attention.build import Built, build
from kvassay.harness.attention.case import Case
from kvassay.harness.contract import AttentionBatch, AttentionResult
from kvassay.impls.attention_inputs import check_batch, looked_at
from kvassay.impls.dense_attention import DenseAttention
from kvassay.impls.torch_attention import TorchAttention

pytestmark = pytest.mark.usefixtures("one_thread")
KERNELS = (TorchAttention(), DenseAttention())


def small(**changes: Any) -> Built:
    """Nine rows on 5, 3, 0, 2 and 7 keys; 4 query and 2 KV heads of size 3 and 6, blocks of 2."""
    seqs = ((5, 2), (3, 0), (0, 1), (2, 5), (7, 1))
    shape: dict[str, Any] = {"head_dim": 3, "head_dim_v": 6, "block_size": 2, "buffers": True}
    return build(Case(seqs, **{**shape, **changes}))


def full(*shape: int, value: float = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "query: no tensor": ({"query": [[[0.0]]]}, "query: expected a tensor, got list"),
    "query: dimensions": (
        {"query": full(9, 12)},
        r"query: expected 3 dimensions, got shape \(9, 12\)",
    ),
    "query: type": (
        {"query": full(9, 4, 3, dtype=torch.int8)},
        "query: expected float16, bfloat16, float32, float64, got int8",
    ),
    "query: head size": (
        {"query": full(9, 4, 5)},
        "query: expected head size 3 as the keys have, got 5",
    ),
    "query: heads": ({"query": full(9, 3, 3)}, "query: expected a multiple of 2 KV heads, got 3"),
    "query: no heads": (
        {"query": full(9, 0, 3)},
        "query: expected a multiple of 2 KV heads, got 0",
    ),
    "keys: no tensor": ({"key_cache": None}, "key_cache: expected a tensor, got NoneType"),
    "keys: dimensions": (
        {"key_cache": full(9, 2, 3)},
        r"key_cache: expected 4 dimensions, got shape \(9, 2, 3\)",
    ),
    "keys: type": (
        {"key_cache": full(12, 2, 2, 3, dtype=torch.int16)},
        "key_cache: expected float16, .*, int8, got int16",
    ),
    "keys: no slots": (
        {"key_cache": full(12, 0, 2, 3)},
        r"key_cache: expected block size, KV heads and head size of at least 1, got shape \(12, 0",
    ),
    "keys: elsewhere": (
        {"key_cache": torch.empty(12, 2, 2, 3, device="meta", dtype=torch.bfloat16)},
        "key_cache: expected it on cpu as the query, got meta",
    ),
    "values: type": (
        {"value_cache": full(12, 2, 2, 6, dtype=torch.bool)},
        "value_cache: expected float16, .*, got bool",
    ),
    "values: other pool": (
        {"value_cache": full(5, 2, 2, 6)},
        r"value_cache: expected blocks, slots and heads as the keys have, \(\d+, 2, 2\), got \(5",
    ),
    "table: dimensions": (
        {"block_table": ints(0, 1)},
        r"block_table: expected 2 dimensions, got shape \(2,\)",
    ),
    "table: type": (
        {"block_table": full(5, 6)},
        "block_table: expected int32, int64, got bfloat16",
    ),
    "table: beyond the pool": (
        {"block_table": torch.full((5, 6), 13)},
        r"block_table\[0\]: expected blocks 0 to 12, got 13",
    ),
    "table: negative, in the last block of the last sequence": (
        {"block_table": torch.arange(30).eq(4 * 6 + 3).view(5, 6).int().neg()},
        r"block_table\[4\]: expected blocks 0 to 12, got -1",
    ),
    "lengths: type": ({"seq_lens": full(5)}, "seq_lens: expected int32, int64, got bfloat16"),
    "lengths: shape": (
        {"seq_lens": ints(1, 2)},
        r"seq_lens: expected shape \(5,\), got \(2,\)",
    ),
    "lengths: negative": (
        {"seq_lens": ints(5, 3, -1, 2, 7)},
        r"seq_lens\[2\]: expected 0 to 12 \(table columns times block size\), got -1",
    ),
    "lengths: beyond the table": (
        {"seq_lens": ints(5, 3, 0, 2, 13)},
        r"seq_lens\[4\]: expected 0 to 12 \(table columns times block size\), got 13",
    ),
    "starts: shape": (
        {"query_start": ints(0, 9)},
        r"query_start: expected shape \(6,\), got \(2,\)",
    ),
    "starts: not from 0": (
        {"query_start": ints(1, 2, 2, 3, 8, 9)},
        r"query_start: expected to rise from 0 to 9, got \[1, 2, 2, 3, 8, 9\]",
    ),
    "starts: not to the end": (
        {"query_start": ints(0, 2, 2, 3, 8, 8)},
        r"query_start: expected to rise from 0 to 9, got \[0, 2, 2, 3, 8, 8\]",
    ),
    "starts: falling": (
        {"query_start": ints(0, 3, 2, 3, 8, 9)},
        r"query_start: expected to rise from 0 to 9, got \[0, 3, 2, 3, 8, 9\]",
    ),
    "causal": ({"causal": 1}, "causal: expected a bool, got 1"),
    "window: negative": (
        {"window_left": -1},
        "window_left: expected None or an int >= 0, got -1",
    ),
    "window: a pair": (
        {"window_left": (3, 0)},
        r"window_left: expected None or an int >= 0, got \(3, 0\)",
    ),
    "window: True": ({"window_left": True}, "window_left: expected None or .*, got True"),
    "scale: NaN": ({"scale": math.nan}, "scale: expected None or a finite number, got nan"),
    "scale: a text": ({"scale": "1"}, "scale: expected None or a finite number, got '1'"),
    "soft cap: 0": ({"softcap": 0.0}, "softcap: expected None or a number above 0, got 0.0"),
    "soft cap: infinite": (
        {"softcap": math.inf},
        "softcap: expected None or a number above 0, got inf",
    ),
    "alibi: shape": (
        {"alibi_slopes": full(2)},
        r"alibi_slopes: expected shape \(4,\), got \(2,\)",
    ),
    "alibi: type": ({"alibi_slopes": ints(1, 1, 1, 1)}, "alibi_slopes: expected float16, .* int32"),
    "sinks: dimensions": (
        {"sinks": full(4, 1)},
        r"sinks: expected 1 dimensions, got shape \(4, 1\)",
    ),
    "k scale: shape": (
        {"k_scale": full(4)},
        r"k_scale: expected a scalar or shape \(2,\) or \(\d+, 2, 2\), got \(4,\)",
    ),
    "k scale: type": ({"k_scale": ints(1, 1)}, "k_scale: expected float16, .*, got int32"),
    "v scale: a list": (
        {"v_scale": [1.0, 1.0]},
        r"v_scale: expected None, a finite number or a tensor, got \[1.0, 1.0\]",
    ),
    "v scale: infinite": ({"v_scale": math.inf}, "v_scale: expected None, a finite number or"),
    "output: shape": (
        {"output": full(10, 4, 6)},
        r"output: expected shape \(9, 4, 6\), got \(10, 4, 6\)",
    ),
    "output: type": (
        {"output": full(9, 4, 6, dtype=torch.float32)},
        "output: expected bfloat16, got float32",
    ),
    "lse: shape": (
        {"lse": full(4, 9, dtype=torch.float32)},
        r"lse: expected shape \(9, 4\), got \(4, 9\)",
    ),
    "lse: type": ({"lse": full(9, 4)}, "lse: expected float32, got bfloat16"),
}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_batch_is_refused_with_the_reason_and_changes_nothing(
    name: str, kernel: Callable[[AttentionBatch], AttentionResult]
) -> None:
    changed, says = REFUSED[name]
    built = small()
    with pytest.raises(ValueError, match=says):
        kernel(replace(built.batch, **changed))
    assert built.batch.output.isnan().all()
    assert built.batch.lse.isnan().all()
    assert built.arena.damage() == []
    result = kernel(built.batch)
    assert not result.output.isnan().any()
    assert not result.lse.isnan().any()


@pytest.mark.parametrize(
    "changes",
    [
        {"cache_dtype": "float8_e5m2", "k_scale": "tensor"},
        {"cache_dtype": "int8", "v_scale": "token"},
        {"alibi": True, "sinks": True, "softcap": 1.0, "scale": 2.0, "k_scale": "head"},
        {"window_left": 0, "evicted": True, "garbage": "nan"},
        {"window_left": 2, "evicted": True, "garbage": "inf"},
        {"garbage": "nan", "buffers": False, "causal": False},
    ],
)
def test_what_the_contract_allows_is_accepted(changes: dict[str, Any]) -> None:
    batch = small(**changes).batch
    check_batch(batch)
    wide = {name: getattr(batch, name).long() for name in ("block_table", "seq_lens")}
    check_batch(replace(batch, **wide, scale=2, k_scale=torch.tensor(1)))


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, [range(5), range(0), range(0), range(2), range(7)]),
        ({"window_left": 1}, [range(2, 5), range(0), range(0), range(2), range(5, 7)]),
        ({"window_left": 0}, [range(3, 5), range(0), range(0), range(2), range(6, 7)]),
        ({"causal": False}, [range(5), range(0), range(0), range(2), range(7)]),
    ],
)
def test_which_positions_some_query_looks_at(options: dict[str, Any], seen: list[range]) -> None:
    """The second sequence has no query, the third no key, and the fourth more of them than keys."""
    batch = small(**options).batch
    assert [looked_at(batch, sequence) for sequence in range(5)] == seen
