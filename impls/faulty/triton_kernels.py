"""Planted faults in the built-in Triton kernel, one edit each (see `triton_edits`).

A fault names the invariants that may convict it and the check that does, so that a test need not
search for it. Importing this module registers each as ``triton-fault-<name>``.
"""

from __future__ import annotations

from kvassay.harness.contract import PagedAttention
from kvassay.harness.registry import implementation
from kvassay.impls.faulty.triton_edits import KERNELS, LAUNCH, PLAN, TritonFault
from kvassay.impls.interpreted import DECLARED

FAULTS: dict[str, TritonFault] = {}


def fault(
    name: str, accepted: str, check: str, old: str, new: str, *, module: str = KERNELS
) -> None:
    """Enter a fault into `FAULTS` and register it."""
    planted = TritonFault(name, frozenset(accepted.split()), check, module, old, new)
    FAULTS[name] = planted
    implementation(f"triton-fault-{name}", kind=PagedAttention, declaration=DECLARED)(planted.build)


# ----------------------------------------------------------------------------------- causal masks
fault(
    "causal-one-late",
    "K1 K5",
    "causal-tomography",
    "(keys[None, :] <= positions[:, None])",
    "(keys[None, :] <= positions[:, None] + 1)",
)
fault(
    "causal-one-early",
    "K1 K3 K5",
    "causal-tomography",
    "(keys[None, :] <= positions[:, None])",
    "(keys[None, :] < positions[:, None])",
)
fault(
    "causal-range-one-short",
    "K1 K3 K5",
    "causal-tomography",
    "some_high = tl.minimum(some_high, last_position + 1)",
    "some_high = tl.minimum(some_high, last_position)",
)
fault(
    "causal-unmasked-too-far",
    "K1 K5",
    "causal-tomography",
    "all_high = tl.minimum(all_high, first_position + 1)",
    "all_high = tl.minimum(all_high, last_position + 1)",
)
fault(
    "causal-top-left",
    "K1 K3 K5 K6",
    "causal-tomography",
    "context = seq_len - num_rows // GROUP",
    "context = 0",
)
fault(
    "context-counts-heads",
    "K1 K3 K5 K6",
    "causal-tomography",
    "context = seq_len - num_rows // GROUP",
    "context = tl.maximum(seq_len - num_rows, 0)",
)
fault(
    "causal-always", "K1 K5", "permuted-keys", "CAUSAL=batch.causal,", "CAUSAL=True,", module=LAUNCH
)
fault(
    "causal-never",
    "K5",
    "causal-tomography",
    "CAUSAL=batch.causal,",
    "CAUSAL=False,",
    module=LAUNCH,
)
# --------------------------------------------------------------------------------------- windows
fault(
    "window-one-wide",
    "K1 K6",
    "window-tomography",
    ">= positions[:, None] - window_left)",
    ">= positions[:, None] - window_left - 1)",
)
fault(
    "window-one-narrow",
    "K1 K3 K6",
    "window-tomography",
    ">= positions[:, None] - window_left)",
    "> positions[:, None] - window_left)",
)
fault(
    "window-range-one-short",
    "K1 K3 K6",
    "window-tomography",
    "some_low = tl.maximum(some_low, first_position - window_left)",
    "some_low = tl.maximum(some_low, first_position - window_left + 1)",
)
fault(
    "window-unmasked-too-early",
    "K1 K6",
    "window-tomography",
    "all_low = tl.maximum(all_low, last_position - window_left)",
    "all_low = tl.maximum(all_low, first_position - window_left)",
)
fault(
    "window-of-zero-is-none",
    "K1 K6",
    "window-tomography",
    "WINDOW=batch.window_left is not None,",
    "WINDOW=bool(batch.window_left),",
    module=LAUNCH,
)
# ------------------------------------------------------------------------ tiles, parts of the loop
fault(
    "unmasked-part-starts-early",
    "K1 K2 K6",
    "window-tomography",
    "tl.cdiv(tl.maximum(all_low, low), BLOCK_N) * BLOCK_N, end)",
    "tl.maximum(all_low, low) // BLOCK_N * BLOCK_N, end)",
)
fault(
    "unmasked-part-ends-late",
    "K1 K2 K3 K5",
    "oracle",
    "full_end = tl.maximum(tl.minimum(all_high, high) // BLOCK_N * BLOCK_N, full_begin)",
    "full_end = tl.maximum(tl.cdiv(tl.minimum(all_high, high), BLOCK_N) * BLOCK_N, full_begin)",
)
fault(
    "last-part-skipped",
    "K1 K3 K4 K5",
    "oracle",
    "stop = full_begin if part == 0 else (full_end if part == 1 else end)",
    "stop = full_begin if part == 0 else full_end",
)
fault(
    "sequence-of-next-tile",
    "K1 K3 K5 K8 K12 K13 K14",
    "oracle",
    "(ends <= tile).to(tl.int32)",
    "(ends < tile).to(tl.int32)",
)
fault(
    "last-tile-forgotten",
    "K1 K3 K5 K12 K13",
    "oracle",
    "tiles = (rows + block_m - 1) // block_m",
    "tiles = torch.clamp(rows // block_m, min=1)",
    module=PLAN,
)
# -------------------------------------------------------------------------------------- addressing
fault(
    "block-ids-one-tile-old",
    "K1 K8",
    "length-tomography",
    "_load_block_ids(table, keys + BLOCK_N, low, high, BLOCK_SIZE)",
    "_load_block_ids(table, keys, low, high, BLOCK_SIZE)",
)
fault(
    "slot-off-by-one",
    "K1 K2 K8",
    "oracle",
    "slot = keys % BLOCK_SIZE",
    "slot = (keys + 1) % BLOCK_SIZE",
)
fault(
    "key-offset-in-32-bit",
    "K8",
    "addressing",
    "k_row = key_cache + block * k_block",
    "k_row = key_cache + (block * k_block).to(tl.int32)",
)
fault(
    "value-offset-in-32-bit",
    "K8",
    "addressing",
    "v_row = value_cache + block * v_block",
    "v_row = value_cache + (block * v_block).to(tl.int32)",
)
fault(
    "block-ids-in-16-bit",
    "K8",
    "addressing",
    "block = block_ids.to(tl.int64)",
    "block = block_ids.to(tl.int16).to(tl.int64)",
)
fault(
    "table-of-first-sequence",
    "K1 K8 K14",
    "oracle",
    "table = block_table + sequence.to(tl.int64) * table_row",
    "table = block_table + sequence.to(tl.int64) * 0",
)
fault(
    "values-by-key-strides",
    "K1 K8 K11",
    "sizes",
    "block * v_block + slot * v_slot + kv_head * v_head",
    "block * k_block + slot * k_slot + kv_head * k_head",
)
# ------------------------------------------------------------------------------------------- tails
fault(
    "tail-of-keys-and-values",
    "K1 K2 K3",
    "oracle",
    "        inside = (keys >= low) & (keys < high)\n",
    "        inside = keys >= low\n",
)
fault(
    "tail-of-values",
    "K2",
    "wild-tail",
    "v_mask = (dims_v < HEAD_DIM_V)[None, :] & inside[:, None]",
    "v_mask = (dims_v < HEAD_DIM_V)[None, :] & (keys >= low)[:, None]",
)
fault(
    "tail-of-token-scales",
    "K2",
    "wild-tail",
    "weights *= tl.load(vs_row, mask=inside, other=0.0)[None, :]",
    "weights *= tl.load(vs_row)[None, :]",
)
# ------------------------------------------------------------------------------------------- heads
fault(
    "heads-interleaved",
    "K1 K7",
    "oracle",
    "head = kv_head * GROUP + row % GROUP",
    "head = row % GROUP * tl.num_programs(0) + kv_head",
)
fault(
    "keys-of-first-head",
    "K1 K7",
    "oracle",
    "slot * k_slot + kv_head * k_head",
    "slot * k_slot + kv_head * 0",
)
fault(
    "values-of-first-head",
    "K1 K7",
    "oracle",
    "slot * v_slot + kv_head * v_head",
    "slot * v_slot + kv_head * 0",
)
fault(
    "rest-of-head-dropped",
    "K1 K11",
    "sizes",
    "scores += tl.dot(query_rest,",
    "scores += 0.0 * tl.dot(query_rest,",
)
# ---------------------------------------------------------------------------------- score pipeline
fault(
    "scale-missing",
    "K9 K12",
    "score-pipeline",
    "            scale * key_factor * LOG2_E,\n",
    "            key_factor * LOG2_E,\n",
)
fault(
    "scale-of-value-size",
    "K9 K11",
    "sizes",
    "head_dim**-0.5 if batch.scale",
    "head_dim_v**-0.5 if batch.scale",
    module=LAUNCH,
)
fault(
    "logits-in-base-e",
    "K1 K9",
    "oracle",
    "            scale * key_factor * LOG2_E,\n",
    "            scale * key_factor,\n",
)
fault(
    "softcap-missing",
    "K9",
    "score-pipeline",
    "SOFTCAP=batch.softcap is not None,",
    "SOFTCAP=False,",
    module=LAUNCH,
)
fault("softcap-not-undone", "K9", "score-pipeline", "softcap * LOG2_E,\n", "1.0 * LOG2_E,\n")
fault(
    "softcap-without-key-scale",
    "K9 K10",
    "scales",
    "2.0 * LOG2_E * scale * key_factor / softcap",
    "2.0 * LOG2_E * scale / softcap",
)
fault(
    "alibi-in-base-e",
    "K9",
    "score-pipeline",
    "(slopes[:, None] * LOG2_E) * ahead",
    "slopes[:, None] * ahead",
)
fault(
    "alibi-from-the-first-key",
    "K1 K9",
    "oracle",
    "ahead = (keys[None, :] - positions[:, None])",
    "ahead = (keys[None, :] - 0 * positions[:, None])",
)
fault("sink-missing", "K9", "score-pipeline", "    if SINKS and not SPLIT:\n", "    if False:\n")
fault(
    "sink-missing-in-merge",
    "K4 K9",
    "score-pipeline",
    "total += tl.exp2((sink - shift) * LOG2_E)",
    "total += 0.0 * tl.exp2((sink - shift) * LOG2_E)",
)
fault(
    "sink-in-every-split",
    "K1 K4 K9",
    "score-pipeline",
    "    if SINKS and not SPLIT:\n",
    "    if SINKS:\n",
)
fault(
    "sink-of-kv-head",
    "K7 K9",
    "oracle",
    "tl.load(sinks + head).to(tl.float32) * LOG2_E",
    "tl.load(sinks + kv_head + 0 * head).to(tl.float32) * LOG2_E",
)
# ------------------------------------------------------------------------------------------- scales
fault(
    "k-scale-of-first-head",
    "K10",
    "scales",
    "tl.load(k_scale + kv_head * K_HEAD_SCALE)",
    "tl.load(k_scale)",
)
fault(
    "v-scale-missing",
    "K10",
    "scales",
    "value_factor = tl.load(v_scale + kv_head * V_HEAD_SCALE)",
    "value_factor = 1.0",
)
fault(
    "k-scale-of-first-slot",
    "K10",
    "scales",
    "block * ks_block + slot * ks_slot",
    "block * ks_block + slot * 0",
)
fault(
    "v-scale-of-first-slot",
    "K10",
    "scales",
    "block * vs_block + slot * vs_slot",
    "block * vs_block + slot * 0",
)
fault(
    "scales-swapped",
    "K10",
    "scales",
    "        v_scale.tensor,\n",
    "        k_scale.tensor,\n",
    module=LAUNCH,
)
# ----------------------------------------------------------------------------------- online softmax
fault(
    "total-not-decayed",
    "K1 K4 K12",
    "halves",
    "total = total * decay + tl.sum(weights, 1)",
    "total = total + tl.sum(weights, 1)",
)
fault(
    "acc-not-decayed",
    "K1 K4 K12",
    "halves",
    "        acc = acc * decay[:, None]\n        largest = now_largest\n",
    "        largest = now_largest\n",
)
fault(
    "maximum-not-below-zero",
    "K9 K12",
    "magnitude",
    "now_largest = tl.maximum(largest, tl.max(scores, 1))",
    "now_largest = tl.maximum(largest, tl.maximum(tl.max(scores, 1), 0.0))",
)
fault(
    "unseen-row-shifted-by-infinity",
    "K1 K3 K6 K12",
    "window-tomography",
    'shift = tl.where(now_largest == float("-inf"), 0.0, now_largest)',
    "shift = now_largest",
)
fault(
    "acc-in-8-bit",
    "K1 K12",
    "repeated-keys",
    "        acc = acc * decay[:, None]\n        largest = now_largest\n",
    "        acc = (acc * decay[:, None]).to(tl.float8e5).to(tl.float32)\n"
    "        largest = now_largest\n",
)
fault(
    "weights-in-8-bit",
    "K1 K10",
    "scales",
    "weights = weights.to(query.dtype)",
    "weights = weights.to(tl.float8e5).to(query.dtype)",
)
# --------------------------------------------------------------------------------------- the result
fault(
    "empty-row-divided-by-zero",
    "K3",
    "empty-rows",
    "    total = tl.where(empty, 1.0, total)\n    value_factor",
    "    value_factor",
)
fault(
    "lse-in-base-2",
    "K1 K3 K4",
    "length-tomography",
    "(largest + tl.log2(total)) * LN_2",
    "largest + tl.log2(total)",
)
fault(
    "lse-without-sink",
    "K1 K4 K9",
    "score-pipeline",
    "        acc = acc * decay[:, None]\n        largest = shift\n",
    "        acc = acc * (decay / total)[:, None]\n"
    "        total = total * 0.0 + 1.0\n        largest = shift\n",
)
fault(
    "output-taken-for-dense",
    "K1 K3 K13",
    "footprint",
    "split * o_split + to_token * o_token + head * o_head",
    "split * o_split + to_token * o_token + head * HEAD_DIM_V",
)
# ------------------------------------------------------------------------------------------- splits
fault(
    "split-one-key-short",
    "K1 K4 K5",
    "length-tomography",
    "split_high = split_low + split_size",
    "split_high = split_low + split_size - 1",
)
fault(
    "splits-overlap",
    "K1 K4 K5",
    "length-tomography",
    "split_high = split_low + split_size",
    "split_high = split_low + split_size + 1",
)
fault(
    "last-split-not-merged",
    "K1 K3 K4 K5",
    "length-tomography",
    "mask=split < NUM_SPLITS, other",
    "mask=split < NUM_SPLITS - 1, other",
)
fault(
    "last-split-not-planned",
    "K1 K3 K4 K5",
    "length-tomography",
    "num_splits=max(1, -(-longest // split_size)),",
    "num_splits=max(1, longest // split_size),",
    module=PLAN,
)
fault(
    "merge-in-base-2",
    "K1 K4",
    "length-tomography",
    "tl.exp2((each - shift) * LOG2_E)",
    "tl.exp2(each - shift)",
)
fault(
    "merge-without-weights",
    "K1 K4",
    "length-tomography",
    "merged = tl.sum(part * weights[:, None], 0) / total",
    "merged = tl.sum(part, 0) / NUM_SPLITS",
)
fault(
    "lse-of-largest-split", "K1 K4", "length-tomography", "shift + tl.log2(total) * LN_2", "shift"
)
# -------------------------------------------------------------------------------------------- input
fault(
    "input-not-checked",
    "K11 K7",
    "heads-refused",
    "        check_batch(batch)\n",
    "",
    module=LAUNCH,
)
