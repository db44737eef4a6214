"""SGLang's Triton kernels out of the wheel: right on a small lattice, convicted when broken.

How the engine itself departs from others is shown with its own functions alone.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from kernels_of_wheels import Edit, edited, judged, pairs, registered

from kvassay.harness.attention.case import CacheLayout, Case, Garbage, RowLayout, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused
from kvassay.impls.engines import sglang_triton, wheel_kernels

pytest.importorskip("triton", reason=f"needs Triton: {sglang_triton.INSTALL}")
if find_spec("sglang") is None:
    pytest.skip(f"needs SGLang: {sglang_triton.INSTALL}", allow_module_level=True)

ONE = {"num_q_heads": 2, "num_kv_heads": 2}
DECODE = Case(((70, 1), (17, 1), (5, 0)))
ALONE = replace(DECODE, **ONE)
CHUNKS = Case(((37, 5), (20, 20), (5, 0)))
SCALED = {"k_scale": Scaling.TENSOR, "v_scale": Scaling.TENSOR}
LATENT = {
    "num_kv_heads": 1,
    "head_dim": 576,
    "head_dim_v": 512,
    "cache_layout": CacheLayout.V_IN_K,
}
GROUPED, NORMAL, EXTEND = (
    f"sglang-triton-{n}" for n in ("decode-grouped", "decode-normal", "extend")
)
LATTICE = {
    GROUPED: {
        "decode": DECODE,
        "one split": replace(DECODE, seqs=((40, 1),)),
        "window": replace(DECODE, window_left=20),
        "evicted": replace(DECODE, window_left=0, evicted=True, garbage=Garbage.NAN),
        "soft cap": replace(DECODE, softcap=5.0),
        "sinks": replace(DECODE, sinks=True),
        "scales": replace(DECODE, **SCALED, scale=0.3),
        "float32": replace(DECODE, dtype="float32", cache_dtype="float32"),
        "head size 80, seven on one": replace(
            DECODE, head_dim=80, head_dim_v=80, num_q_heads=7, num_kv_heads=1
        ),
        "values in the keys": replace(DECODE, **LATENT),
        "packed, blocks of 5": replace(DECODE, cache_layout=CacheLayout.PACKED, block_size=5),
        "padded rows": replace(DECODE, row_layout=RowLayout.PADDED, buffers=True),
        "a row without keys": replace(DECODE, seqs=((0, 1), (20, 1))),
    },
    NORMAL: {
        "decode": ALONE,
        "one split": replace(ALONE, seqs=((40, 1),)),
        "window": replace(ALONE, window_left=20),
        "soft cap": replace(ALONE, softcap=5.0),
        "sinks": replace(ALONE, sinks=True),
        "e4m3": replace(ALONE, cache_dtype="float8_e4m3fn", **SCALED),
        "e5m2": replace(ALONE, cache_dtype="float8_e5m2", dtype="float16", **SCALED),
        "a row without keys": replace(ALONE, seqs=((0, 1), (20, 1))),
    },
    EXTEND: {
        "chunks": CHUNKS,
        "no prefix": replace(CHUNKS, seqs=((20, 20), (3, 3))),
        "not causal": replace(CHUNKS, causal=False),
        "window": replace(CHUNKS, window_left=13),
        "evicted": replace(CHUNKS, window_left=3, evicted=True, garbage=Garbage.NAN),
        "soft cap": replace(CHUNKS, softcap=5.0),
        "sinks": replace(CHUNKS, sinks=True),
        "half the usual scale": replace(CHUNKS, scale=0.0625),
        "two head sizes": replace(CHUNKS, head_dim=192, head_dim_v=128),
        "given buffers": replace(CHUNKS, buffers=True, row_layout=RowLayout.FUSED),
    },
}
REFUSED = {
    GROUPED: {
        "a chunk": CHUNKS,
        "one head on one": ALONE,
        "float8": replace(DECODE, cache_dtype="float8_e4m3fn", **SCALED),
        "ALiBi": replace(DECODE, alibi=True),
        "scale by head": replace(DECODE, k_scale=Scaling.HEAD),
        "heads outside": replace(DECODE, cache_layout=CacheLayout.HND),
        "three heads on two": replace(DECODE, num_q_heads=3),
    },
    NORMAL: {
        "several heads on one": DECODE,
        "int8": replace(ALONE, cache_dtype="int8", **SCALED),
    },
    EXTEND: {
        "own key only": replace(CHUNKS, window_left=0),
        "symmetric window": replace(CHUNKS, window_left=3, causal=False),
        "a scale of 0": replace(CHUNKS, scale=0.0),
        "scale of a 16-bit cache": replace(CHUNKS, k_scale=Scaling.TENSOR),
        "more queries than keys": replace(CHUNKS, seqs=((2, 3),)),
        "float8": replace(CHUNKS, cache_dtype="float8_e4m3fn", **SCALED),
    },
}
FAULTS: dict[str, tuple[str, Case, Edit]] = {
    "the last key of a split left out": (
        GROUPED,
        DECODE,
        ("decode_attention.py", "mask_h[:, None] & (offs_n[None, :] < split_kv_end), qk,",
         "mask_h[:, None] & (offs_n[None, :] < split_kv_end - 1), qk,"),
    ),
    "a sink of base 2": (
        GROUPED,
        replace(DECODE, sinks=True),
        ("decode_attention.py", "e_sum += tl.exp(cur_sink - e_max)",
         "e_sum += tl.exp2(cur_sink - e_max)"),
    ),
    "only the first split": (
        NORMAL,
        ALONE,
        ("decode_attention.py", "tl.range(0, SPLIT_END,", "tl.range(0, 1,"),
    ),
    "heads of the wrong group": (
        NORMAL,
        ALONE,
        ("decode_attention.py", "cur_kv_head = cur_head // kv_group_num\n\n    offs_d",
         "cur_kv_head = 0\n\n    offs_d"),
    ),
    "its own key left out": (
        EXTEND,
        CHUNKS,
        ("extend_attention.py", "mask_causual = (cur_block_m * BLOCK_M + offs_m[:, None]) >= (",
         "mask_causual = (cur_block_m * BLOCK_M + offs_m[:, None]) > ("),
    ),
    "a window a key too narrow in the prefix": (
        EXTEND,
        replace(CHUNKS, window_left=13),
        ("extend_attention.py", "<= (start_n + offs_n_prefix[None, :] + SLIDING_WINDOW_SIZE)",
         "< (start_n + offs_n_prefix[None, :] + SLIDING_WINDOW_SIZE)"),
    ),
    "an LSE without the maximum": (
        EXTEND,
        CHUNKS,
        ("extend_attention.py", "lse = tl.log(deno) + e_max\n", "lse = tl.log(deno)\n"),
    ),
}  # fmt: skip


def kernel(name: str) -> Kernel:
    return Kernel.of(registered(sglang_triton.__name__, name))


def test_importing_the_adapter_imports_neither_torch_nor_triton() -> None:
    code = "import kvassay.impls.engines.sglang_triton, sys; "
    code += "sys.exit(not {'torch', 'triton', 'sglang'}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_building_a_kernel_leaves_the_engine_unimported() -> None:
    before = {name: module for name, module in sys.modules.items() if name.startswith("sglang")}
    kernel(EXTEND)
    assert {name: m for name, m in sys.modules.items() if name.startswith("sglang")} == before


@pytest.mark.parametrize(("name", "case"), pairs(LATTICE))
def test_agrees_with_the_oracle(name: str, case: str) -> None:
    assert judged(kernel(name), LATTICE[name][case]).problem is None


@pytest.mark.parametrize("name", LATTICE)
def test_the_lattice_takes_every_path(name: str) -> None:
    under_test = kernel(name)
    for case in list(LATTICE[name].values())[:2]:
        under_test.attend(under_test.build(case))
    assert all(under_test.paths.values())


@pytest.mark.parametrize(("name", "case"), pairs(REFUSED))
def test_refuses_what_the_kernel_cannot(name: str, case: str) -> None:
    under_test = kernel(name)
    with pytest.raises(Refused):
        under_test.attend(under_test.build(REFUSED[name][case]))


def test_refuses_blocks_that_do_not_exist() -> None:
    under_test = kernel(EXTEND)
    batch = under_test.build(CHUNKS).batch
    table = batch.block_table.clone()
    table[0, 1] = batch.key_cache.shape[0]
    with pytest.raises(ValueError, match="expected blocks 0 to"):
        under_test.instance(replace(batch, block_table=table))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_source_is_convicted(fault: str, tmp_path: Path) -> None:
    name, case, edit = FAULTS[fault]
    sound = kernel(name)
    assert judged(sound, case).problem is None
    root = wheel_kernels.root_of("sglang").parent
    broken = sglang_triton.kernels(edited(root, sglang_triton.FILES.values(), edit, tmp_path))
    instance = type(sound.instance)(lambda: broken)
    assert judged(Kernel(instance, sound.declaration), case).problem is not None


# ------------------------------------------------------------------ as the engine itself has it


def extended(window: int, scale: float | None = 1.0) -> float:
    """Mean position of what the last of 8 queries on equal keys sees, by the engine's function."""
    tokens = torch.zeros(8, 1, 16)
    values = torch.arange(8.0)[:, None, None].expand(8, 1, 16).contiguous()
    output, starts = torch.empty(8, 1, 16), torch.tensor([0, 8], dtype=torch.int32)
    sglang_triton.engine().extend.extend_attention_fwd(
        tokens, tokens, values, output, tokens, values, starts, torch.zeros_like(starts),
        torch.zeros(0, dtype=torch.int64), None, True, None, 8, 1.0, 1.0, sm_scale=scale,
        sliding_window_size=window,
    )  # fmt: skip
    return float(output[7, 0, 0])


def test_a_window_of_the_extend_kernel_counts_extra_keys_and_cannot_be_0() -> None:
    """Why a window of the query's own key is refused: it comes out as none."""
    assert extended(-1) == pytest.approx(3.5)
    assert extended(2) == pytest.approx(6.0)
    assert extended(1) == pytest.approx(6.5)
    assert extended(0) == pytest.approx(3.5)


def decoded(element: float) -> bool:
    """Whether one query on two keys of one large element is finite, by the engine's function."""
    query, keys = torch.zeros(1, 1, 16), torch.zeros(2, 1, 16)
    query[..., 0], keys[0, 0, 0] = element, element
    query, keys = query.half(), keys.half()
    output, one = torch.empty_like(query), torch.ones(1, dtype=torch.int32)
    with np.errstate(all="ignore"):
        sglang_triton.engine().decode.decode_attention_fwd_normal(
            query, keys, keys, output, torch.tensor([0, 2], dtype=torch.int32), torch.arange(2),
            torch.empty(1, 1, 1, 16), torch.empty(1, 1, 1), one, 1, 0.25, 1.0,
        )  # fmt: skip
    return bool(output.isfinite().all())


def test_a_product_over_the_largest_float16_is_not_a_number_for_the_ungrouped_kernel() -> None:
    """Though the logit, 22,500, is far from the end of float32."""
    assert decoded(250.0)
    assert not decoded(300.0)
