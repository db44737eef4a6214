"""vLLM's Triton kernels out of the wheel: right on a small lattice, convicted when broken.

What the engine itself has wrong is shown with its own functions alone, beside the deviation that
documents it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kernels_of_wheels import Edit, edited, judged, pairs, registered

from kvassay.harness.attention.case import CacheLayout, Case, Garbage, RowLayout, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused
from kvassay.impls.engines import vllm_triton, vllm_triton_merge, vllm_triton_prefix, wheel_kernels

pytest.importorskip("triton", reason=f"needs Triton: {vllm_triton.INSTALL}")
if find_spec("vllm") is None:
    pytest.skip(f"needs vLLM: {vllm_triton.INSTALL}", allow_module_level=True)

DECODE = Case(((40, 1), (17, 1)))
CHUNKS = Case(((37, 5), (20, 20), (5, 0)))
E4M3 = {"cache_dtype": "float8_e4m3fn", "k_scale": Scaling.TENSOR, "v_scale": Scaling.TENSOR}
BY_TOKEN = {"k_scale": Scaling.TOKEN, "v_scale": Scaling.TOKEN}
UNIFIED, PREFIX, MERGE = "vllm-triton-unified", "vllm-triton-prefix", "vllm-triton-merge"
MODULES = {UNIFIED: vllm_triton, PREFIX: vllm_triton_prefix, MERGE: vllm_triton_merge}
LATTICE = {
    UNIFIED: {
        "decode": DECODE,
        "chunks": CHUNKS,
        "float32": replace(CHUNKS, dtype="float32", cache_dtype="float32"),
        "not causal": replace(CHUNKS, causal=False),
        "window": replace(CHUNKS, window_left=13),
        "window at decode": replace(DECODE, window_left=20),
        "evicted": replace(CHUNKS, window_left=3, evicted=True, garbage=Garbage.NAN),
        "soft cap": replace(CHUNKS, softcap=5.0),
        "ALiBi": replace(CHUNKS, alibi=True),
        "ALiBi and sinks at decode": replace(DECODE, alibi=True, sinks=True),
        "sinks": replace(CHUNKS, sinks=True),
        "e4m3": replace(CHUNKS, **E4M3),
        "e5m2 at decode": replace(DECODE, **{**E4M3, "cache_dtype": "float8_e5m2"}),
        "e4m3 by token": replace(DECODE, **E4M3 | BY_TOKEN),
        "int8 by token": replace(CHUNKS, cache_dtype="int8", **BY_TOKEN),
        "head size 80, seven on one": replace(
            DECODE, head_dim=80, head_dim_v=80, num_q_heads=7, num_kv_heads=1
        ),
        "heads outside": replace(CHUNKS, cache_layout=CacheLayout.HND, block_size=48),
        "packed, rows with gaps": replace(
            CHUNKS, cache_layout=CacheLayout.PACKED, row_layout=RowLayout.PADDED, buffers=True
        ),
        "NaN around": replace(CHUNKS, garbage=Garbage.NAN),
        "a row without keys": replace(CHUNKS, seqs=((0, 2), (20, 3))),
    },
    PREFIX: {
        "decode": DECODE,
        "chunks": CHUNKS,
        "not causal": replace(CHUNKS, causal=False),
        "window": replace(CHUNKS, window_left=13),
        "not causal, window": replace(CHUNKS, window_left=7, causal=False),
        "own key only": replace(CHUNKS, window_left=0),
        "evicted": replace(CHUNKS, window_left=3, evicted=True),
        "ALiBi": replace(CHUNKS, alibi=True),
        "sinks": replace(CHUNKS, sinks=True),
        "e4m3": replace(CHUNKS, **E4M3),
        "e5m2": replace(CHUNKS, **{**E4M3, "cache_dtype": "float8_e5m2"}),
        "blocks of 5, heads outside": replace(CHUNKS, block_size=5, cache_layout=CacheLayout.HND),
    },
    MERGE: {
        "decode": DECODE,
        "chunks": CHUNKS,
        "copied rows": replace(CHUNKS, seqs=((37, 5), (9, 2), (12, 12))),
        "joined with nothing": replace(CHUNKS, seqs=((9, 2), (37, 5))),
        "sinks": replace(CHUNKS, sinks=True),
        "not causal": replace(CHUNKS, causal=False),
        "head size 80": replace(DECODE, head_dim=80, head_dim_v=80),
        "rows without keys": replace(CHUNKS, seqs=((0, 2), (2, 3), (20, 1))),
    },
}
REFUSED = {
    UNIFIED: {
        "blocks of 8": replace(CHUNKS, block_size=8),
        "head size 16": replace(CHUNKS, head_dim=16, head_dim_v=16),
        "narrow values": replace(CHUNKS, head_dim_v=32),
        "types": replace(CHUNKS, cache_dtype="float16"),
        "scale of a 16-bit cache": replace(CHUNKS, k_scale=Scaling.TENSOR),
        "scale by head": replace(CHUNKS, **{**E4M3, "v_scale": Scaling.HEAD}),
        "int8 with one scale": replace(CHUNKS, **{**E4M3, "cache_dtype": "int8"}),
        "symmetric window": replace(CHUNKS, causal=False, window_left=3),
        "more queries than keys": replace(CHUNKS, seqs=((2, 3),)),
        "ALiBi and sinks": replace(CHUNKS, alibi=True, sinks=True),
        "three heads on two": replace(CHUNKS, num_q_heads=3),
    },
    PREFIX: {
        "soft cap": replace(CHUNKS, softcap=5.0),
        "ALiBi in a window": replace(CHUNKS, alibi=True, window_left=3),
        "ALiBi and sinks": replace(CHUNKS, alibi=True, sinks=True),
        "ALiBi, not causal": replace(CHUNKS, alibi=True, causal=False),
        "a row without keys": replace(CHUNKS, seqs=((0, 1),)),
        "int8": replace(CHUNKS, cache_dtype="int8", **BY_TOKEN),
        "scale by head": replace(CHUNKS, **{**E4M3, "v_scale": Scaling.HEAD}),
        "head size 20": replace(CHUNKS, head_dim=20, head_dim_v=20),
        "narrow values": replace(CHUNKS, head_dim_v=32),
    },
    MERGE: {
        "window": replace(CHUNKS, window_left=3),
        "ALiBi": replace(CHUNKS, alibi=True),
    },
}
FAULTS: dict[str, tuple[str, Case, Edit]] = {
    "a key too few": (
        UNIFIED,
        CHUNKS,
        ("helpers.py", "seq_mask = seq_offset[None, :] <= query_abs_pos\n",
         "seq_mask = seq_offset[None, :] < query_abs_pos\n"),
    ),
    "a window a key too wide": (
        UNIFIED,
        replace(CHUNKS, window_left=13),
        ("helpers.py", "(query_abs_pos - seq_offset) < SLIDING_WINDOW",
         "(query_abs_pos - seq_offset) <= SLIDING_WINDOW"),
    ),
    "the last segment left out": (
        UNIFIED,
        DECODE,
        ("unified_attention.py", "[NUM_SEGMENTS_PER_SEQ], act_num_segments,",
         "[NUM_SEGMENTS_PER_SEQ], act_num_segments - 1,"),
    ),
    "v_scale forgotten": (
        UNIFIED,
        replace(CHUNKS, **E4M3),
        ("unified_attention.py", "V = _cast_kv_tile(V_load, Q, v_scale,",
         "V = _cast_kv_tile(V_load, Q, k_scale,"),
    ),
    "a context one key too short": (
        PREFIX,
        CHUNKS,
        ("prefill.py", "(start_n + offs_bs_n[None, :]) < cur_batch_ctx_len, qk,",
         "(start_n + offs_bs_n[None, :]) < cur_batch_ctx_len - 1, qk,"),
    ),
    "ALiBi a position off": (
        PREFIX,
        replace(CHUNKS, alibi=True),
        ("prefill.py", "start_k = cur_batch_ctx_len", "start_k = cur_batch_ctx_len - 1"),
    ),
    "a base of 2": (
        MERGE,
        CHUNKS,
        ("merge_attn_states.py", "s_se = tl.exp(s_lse)", "s_se = tl.exp2(s_lse)"),
    ),
    "rows copied too early": (
        MERGE,
        CHUNKS,
        ("merge_attn_states.py", "prefix_mask = token_idx < prefill_tokens_with_context",
         "prefix_mask = token_idx < prefill_tokens_with_context - 1"),
    ),
}  # fmt: skip


def kernel(name: str) -> Kernel:
    return Kernel.of(registered(MODULES[name].__name__, name))


def test_importing_an_adapter_imports_neither_torch_nor_triton() -> None:
    names = ", ".join(module.__name__ for module in MODULES.values())
    code = f"import {names}, sys; "
    code += "sys.exit(not {'torch', 'triton', 'vllm'}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_building_a_kernel_leaves_the_engine_unimported() -> None:
    before = {name: module for name, module in sys.modules.items() if name.startswith("vllm")}
    kernel(UNIFIED)
    assert {name: m for name, m in sys.modules.items() if name.startswith("vllm")} == before


@pytest.mark.parametrize(("name", "case"), pairs(LATTICE))
def test_agrees_with_the_oracle(name: str, case: str) -> None:
    assert judged(kernel(name), LATTICE[name][case]).problem is None


@pytest.mark.parametrize("name", LATTICE)
def test_the_lattice_takes_every_path(name: str) -> None:
    under_test = kernel(name)
    for case in LATTICE[name].values():
        under_test.attend(under_test.build(replace(case, num_q_heads=2, num_kv_heads=2)))
    assert all(under_test.paths.values())


@pytest.mark.parametrize(("name", "case"), pairs(REFUSED))
def test_refuses_what_the_kernel_cannot(name: str, case: str) -> None:
    under_test = kernel(name)
    with pytest.raises(Refused):
        under_test.attend(under_test.build(REFUSED[name][case]))


def test_the_merge_kernel_is_not_given_rows_with_gaps_between_them() -> None:
    under_test = kernel(MERGE)
    batch = under_test.build(CHUNKS).batch
    wide = torch.empty(batch.query.shape[0], batch.query.shape[1] + 1, batch.query.shape[2])
    with pytest.raises(NotImplementedError, match="without gaps"):
        under_test.instance(replace(batch, output=wide.to(batch.query.dtype)[:, 1:]))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_source_is_convicted(fault: str, tmp_path: Path) -> None:
    name, case, edit = FAULTS[fault]
    sound = kernel(name)
    assert judged(sound, case).problem is None
    root = wheel_kernels.root_of("vllm").parent
    broken = vllm_triton.kernels(edited(root, vllm_triton.FILES.values(), edit, tmp_path))
    instance = type(sound.instance)(lambda: broken)
    assert judged(Kernel(instance, sound.declaration), case).problem is not None


# ------------------------------------------------------------------------ the engine's own faults


def unified(engine: SimpleNamespace, lengths: list[int], rows: int, **options: Any) -> Any:
    """One head of 32 over blocks of 16, by the engine's own function; scores and values by hand."""
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32) * rows
    query = torch.zeros(int(starts[-1]), 1, 32)
    keys, values = torch.zeros(4, 16, 1, 32), torch.ones(4, 16, 1, 32)
    output = torch.full_like(query, 7.0)
    with np.errstate(all="ignore"):
        engine.unified.unified_attention(
            q=query, k=keys, v=values, out=output, cu_seqlens_q=starts, max_seqlen_q=rows,
            seqused_k=torch.tensor(lengths, dtype=torch.int32), max_seqlen_k=max(lengths),
            softmax_scale=1.0, causal=True, window_size=(-1, -1),
            block_table=torch.arange(4, dtype=torch.int32).repeat(len(lengths), 1), softcap=0.0,
            q_descale=None, k_descale=None, v_descale=None, **options,
        )  # fmt: skip
    return output[:, 0, 0].tolist()


def test_an_empty_row_is_nothing_divided_by_nothing_once_keys_are_cut_into_segments() -> None:
    """Without segments it is 0, as declared."""
    engine = vllm_triton.engine()
    room = {
        "seq_threshold_3D": 128,
        "num_par_softmax_segments": 4,
        "softmax_segm_output": torch.zeros(2, 1, 4, 32),
        "softmax_segm_max": torch.zeros(2, 1, 4),
        "softmax_segm_expsum": torch.zeros(2, 1, 4),
    }
    assert unified(engine, [5, 0], 1) == [1.0, 0.0]
    cut = unified(engine, [5, 0], 1, **room)
    assert cut[0] == 1.0
    assert cut[1] != cut[1]


def test_with_alibi_a_sink_weighs_by_how_a_prompt_is_chunked() -> None:
    """Why both together are refused. Position 2 sees keys biased by -2, -1, 0, and a sink of 0."""
    engine = vllm_triton.engine()
    both = {"alibi_slopes": torch.ones(1), "sinks": torch.zeros(1)}
    at_once, alone = unified(engine, [3], 3, **both)[2], unified(engine, [3], 1, **both)[0]
    weights = torch.tensor([-2.0, -1.0, 0.0]).exp().sum().item()
    assert alone == pytest.approx(weights / (weights + 1))
    assert at_once == pytest.approx(weights * 2.718281828**2 / (weights * 2.718281828**2 + 1))


GUARDED = """
import sys

import torch

from kvassay.harness import registry
from kvassay.harness.attention import build
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.guarded import Guard, guarded

torch.set_num_threads(1)  # of more than one, a fork would wait for the others
build.SPARE_COLUMNS = 0
module, name, keys = sys.argv[1:]
kernel = Kernel.of(*(entry for entry in registry.find(module) if entry.name == name))
for length in (int(keys), int(keys) + 1):
    print(guarded(kernel, Case(((length, 2),)), Guard.END).text)
"""


@pytest.mark.parametrize(("name", "keys"), [(UNIFIED, 32), (PREFIX, 34)])
def test_a_tile_over_the_end_of_the_last_block_reads_the_table_past_its_end(
    name: str, keys: int
) -> None:
    """Of three blocks of 16, two tiles of 32 want four columns; what is there is not used.

    The tiles of the prefix kernel are those of the keys before the queries, here two fewer.

    The engine's tables are wider than most of its sequences, as are the suite's; this one is not.
    """
    command = [sys.executable, "-c", GUARDED, MODULES[name].__name__, name, str(keys)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["", "past the end of block_table"]
