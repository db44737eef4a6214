"""Paged attention in Triton: one kernel for decode, chunked prefill and mixed batches.

A program computes BLOCK_M rows of one KV head of one sequence. A row is one query head of one
token: row r stands for token ``r // GROUP`` and head ``r % GROUP`` of the KV head's group, so that
any ratio of heads fills a tile without waste. Keys are taken BLOCK_N at a time with an online
softmax in base 2.

Invariants of the loop over keys:

* `largest`, `total` and `acc` describe the keys before `start`: the maximum of a row's logits, the
  sum of ``exp2(logit - largest)`` and the weighted sum of values; -inf, 0 and 0 at first.
* `block_ids` are those of the tile at `start`. They were loaded one iteration before, so that the
  load of keys and values never waits for the load of the table.
* With V_PAIRS two neighbouring values of 8 bits are loaded as one number, and `acc` and `acc_odd`
  sum the even and the odd ones: the compiler copies values 8 at a time, whatever their size.
* No table entry, key, value or scale outside the visible range of the tile is ever read.

The range of keys that some row of the tile sees is walked in three parts: masked, unmasked (every
row sees every key), masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _find_sequence(tile, tile_ends, num_seqs, SEQS_PADDED: tl.constexpr):
    """The sequence that a tile belongs to, and the tile's number within it."""
    index = tl.arange(0, SEQS_PADDED)
    ends = tl.load(tile_ends + index, mask=index < num_seqs, other=2147483647)
    sequence = tl.sum((ends <= tile).to(tl.int32), 0)
    first = tl.load(tile_ends + sequence - 1, mask=(sequence > 0) & (sequence < num_seqs), other=0)
    return sequence, tile - first


@triton.jit
def _load_block_ids(table, keys, low, high, BLOCK_SIZE: tl.constexpr):
    """Blocks of the keys of a tile; only of those that are visible to some row."""
    return tl.load(table + keys // BLOCK_SIZE, mask=(keys >= low) & (keys < high), other=0)


@triton.jit
def _score(
    scores,
    positions,
    keys,
    slopes,
    to_base_2,
    softcap_base_2,
    softcap_factor,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
):
    """From dot products to logits in base 2: scale, soft cap, bias."""
    if SOFTCAP:
        # tanh(x) = 1 - 2 / (exp(2x) + 1); the factor holds 2 log2(e) scale / softcap.
        scores = softcap_base_2 * (1.0 - 2.0 / (tl.exp2(scores * softcap_factor) + 1.0))
    else:
        scores = scores * to_base_2
    if ALIBI:
        ahead = (keys[None, :] - positions[:, None]).to(tl.float32)
        scores += (slopes[:, None] * LOG2_E) * ahead
    return scores


@triton.jit
def _mask(scores, positions, keys, inside, window_left, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """-inf where a row must not see a key."""
    visible = inside[None, :]
    if CAUSAL:
        visible = visible & (keys[None, :] <= positions[:, None])
    if WINDOW:
        visible = visible & (keys[None, :] >= positions[:, None] - window_left)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def _unpack(pairs, CACHED: tl.constexpr, COMPUTED: tl.constexpr):
    """The even and the odd values of 8 bits each, of pairs loaded as numbers of 16 bits."""
    even = pairs.to(tl.int8).to(CACHED, bitcast=True)
    odd = (pairs >> 8).to(tl.int8).to(CACHED, bitcast=True)
    return even.to(COMPUTED), odd.to(COMPUTED)


@triton.jit
def _attend(
    acc,
    acc_odd,
    largest,
    total,
    query,
    query_rest,
    start,
    stop,
    low,
    high,
    positions,
    slopes,
    key_cache,
    value_cache,
    k_token_scale,
    v_token_scale,
    table,
    kv_head,
    k_block,
    k_slot,
    k_head,
    v_block,
    v_slot,
    v_head,
    ks_block,
    ks_slot,
    ks_head,
    vs_block,
    vs_slot,
    vs_head,
    to_base_2,
    softcap_base_2,
    softcap_factor,
    window_left,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_V: tl.constexpr,
    DIM: tl.constexpr,
    DIM_REST: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    K_TOKEN_SCALE: tl.constexpr,
    V_TOKEN_SCALE: tl.constexpr,
    V_PAIRS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Keys start..stop-1, a multiple of BLOCK_N apart, of which low..high-1 may be read."""
    lanes = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, DIM)
    dims_v = tl.arange(0, DIM_V)
    block_ids = _load_block_ids(table, start + lanes, low, high, BLOCK_SIZE)
    for first in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        keys = first + lanes
        inside = (keys >= low) & (keys < high)
        block = block_ids.to(tl.int64)
        slot = keys % BLOCK_SIZE
        block_ids = _load_block_ids(table, keys + BLOCK_N, low, high, BLOCK_SIZE)

        k_row = key_cache + block * k_block + slot * k_slot + kv_head * k_head
        if MASKED or DIM > HEAD_DIM:
            k_mask = (dims < HEAD_DIM)[:, None] & inside[None, :]
            key = tl.load(k_row[None, :] + dims[:, None], mask=k_mask, other=0.0)
        else:
            key = tl.load(k_row[None, :] + dims[:, None])
        scores = tl.dot(query, key.to(query.dtype), input_precision="ieee")
        if DIM_REST > 0:
            rest = DIM + tl.arange(0, DIM_REST)
            rest_mask = (rest < HEAD_DIM)[:, None] & inside[None, :]
            key_rest = tl.load(k_row[None, :] + rest[:, None], mask=rest_mask, other=0.0)
            scores += tl.dot(query_rest, key_rest.to(query.dtype), input_precision="ieee")
        if K_TOKEN_SCALE:
            ks_row = k_token_scale + block * ks_block + slot * ks_slot + kv_head * ks_head
            scores *= tl.load(ks_row, mask=inside, other=0.0)[None, :]
        scores = _score(
            scores,
            positions,
            keys,
            slopes,
            to_base_2,
            softcap_base_2,
            softcap_factor,
            SOFTCAP,
            ALIBI,
        )
        if MASKED:
            scores = _mask(scores, positions, keys, inside, window_left, CAUSAL, WINDOW)

        now_largest = tl.maximum(largest, tl.max(scores, 1))
        shift = now_largest
        if MASKED:
            # A row that has seen no key yet: exp2(-inf - 0) is 0, exp2(-inf - -inf) is NaN.
            shift = tl.where(now_largest == float("-inf"), 0.0, now_largest)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(largest - shift)
        total = total * decay + tl.sum(weights, 1)
        if V_PAIRS:
            acc_odd = acc_odd * decay[:, None]
        acc = acc * decay[:, None]
        largest = now_largest

        v_row = value_cache + block * v_block + slot * v_slot + kv_head * v_head
        if MASKED or DIM_V > HEAD_DIM_V:
            v_mask = (dims_v < HEAD_DIM_V)[None, :] & inside[:, None]
            value = tl.load(v_row[:, None] + dims_v[None, :], mask=v_mask, other=0.0)
        else:
            value = tl.load(v_row[:, None] + dims_v[None, :])
        if V_TOKEN_SCALE:
            vs_row = v_token_scale + block * vs_block + slot * vs_slot + kv_head * vs_head
            weights *= tl.load(vs_row, mask=inside, other=0.0)[None, :]
        weights = weights.to(query.dtype)
        if V_PAIRS:
            even, odd = _unpack(value, key_cache.dtype.element_ty, query.dtype)
            acc = tl.dot(weights, even, acc, input_precision="ieee")
            acc_odd = tl.dot(weights, odd, acc_odd, input_precision="ieee")
        else:
            acc = tl.dot(weights, value.to(query.dtype), acc, input_precision="ieee")
    return acc, acc_odd, largest, total


@triton.jit
def _visible_range(
    first_position,
    last_position,
    seq_len,
    window_left,
    split_low,
    split_high,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Keys that some row of the tile sees, and keys that every row sees, within the split."""
    some_low = split_low
    all_low = split_low
    some_high = tl.minimum(seq_len, split_high)
    all_high = some_high
    if WINDOW:
        some_low = tl.maximum(some_low, first_position - window_left)
        all_low = tl.maximum(all_low, last_position - window_left)
    if CAUSAL:
        some_high = tl.minimum(some_high, last_position + 1)
        all_high = tl.minimum(all_high, first_position + 1)
    return some_low, some_high, all_low, all_high


@triton.jit
def paged_attention_kernel(
    output,
    lse,
    query,
    key_cache,
    value_cache,
    k_scale,
    v_scale,
    sinks,
    slopes,
    block_table,
    query_start,
    seq_lens,
    tile_ends,
    scale,
    softcap,
    window_left,
    num_seqs,
    split_size,
    q_token,
    q_head,
    k_block: tl.int64,
    k_slot,
    k_head,
    v_block: tl.int64,
    v_slot,
    v_head,
    ks_block: tl.int64,
    ks_slot,
    ks_head,
    vs_block: tl.int64,
    vs_slot,
    vs_head,
    table_row,
    o_split: tl.int64,
    o_token: tl.int64,
    o_head,
    lse_split: tl.int64,
    lse_token,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_V: tl.constexpr,
    DIM: tl.constexpr,
    DIM_REST: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEQS_PADDED: tl.constexpr,
    ONE_TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    SINKS: tl.constexpr,
    K_HEAD_SCALE: tl.constexpr,
    V_HEAD_SCALE: tl.constexpr,
    K_TOKEN_SCALE: tl.constexpr,
    V_TOKEN_SCALE: tl.constexpr,
    V_PAIRS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid ``(num_kv_heads, tiles, splits)``; the heads of a block are neighbours in memory."""
    kv_head = tl.program_id(0)
    tile = tl.program_id(1)
    split = tl.program_id(2)
    sequence = tile
    if not ONE_TILE:
        sequence, tile = _find_sequence(tile, tile_ends, num_seqs, SEQS_PADDED)
        if sequence >= num_seqs:
            return
    else:
        tile = 0
    first_token = tl.load(query_start + sequence)
    num_rows = (tl.load(query_start + sequence + 1) - first_token) * GROUP
    seq_len = tl.load(seq_lens + sequence)
    if tile * BLOCK_M >= num_rows:
        return

    # ------------------------------------------------------------------ the rows of this tile
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    real = row < num_rows
    row = tl.minimum(row, num_rows - 1)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    context = seq_len - num_rows // GROUP
    positions = context + token
    first_position = context + tile * BLOCK_M // GROUP
    last_position = context + (tl.minimum((tile + 1) * BLOCK_M, num_rows) - 1) // GROUP

    # ------------------------------------------------------------------ the keys that they see
    split_low = split * split_size if SPLIT else 0
    split_high = split_low + split_size if SPLIT else seq_len
    low, high, all_low, all_high = _visible_range(
        first_position, last_position, seq_len, window_left, split_low, split_high, CAUSAL, WINDOW
    )
    low = tl.maximum(low, 0)
    begin = low // BLOCK_N * BLOCK_N
    end = tl.maximum(tl.cdiv(high, BLOCK_N) * BLOCK_N, begin)
    full_begin = tl.minimum(tl.cdiv(tl.maximum(all_low, low), BLOCK_N) * BLOCK_N, end)
    full_end = tl.maximum(tl.minimum(all_high, high) // BLOCK_N * BLOCK_N, full_begin)

    # ---------------------------------------------------------------------------- what they ask
    dims = tl.arange(0, DIM)
    row_offset = (first_token + token).to(tl.int64) * q_token + head * q_head
    q_mask = real[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(query + row_offset[:, None] + dims[None, :], mask=q_mask, other=0.0)
    q_rest = q
    if DIM_REST > 0:
        rest = DIM + tl.arange(0, DIM_REST)
        rest_mask = real[:, None] & (rest < HEAD_DIM)[None, :]
        q_rest = tl.load(query + row_offset[:, None] + rest[None, :], mask=rest_mask, other=0.0)
    key_factor = 1.0 if K_TOKEN_SCALE else tl.load(k_scale + kv_head * K_HEAD_SCALE)
    slope = tl.zeros([BLOCK_M], dtype=tl.float32)
    if ALIBI:
        slope = tl.load(slopes + head).to(tl.float32)
    softcap_factor = 2.0 * LOG2_E * scale * key_factor / softcap if SOFTCAP else 0.0

    # ---------------------------------------------------------------------------- online softmax
    largest = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    PACKED: tl.constexpr = 2 if V_PAIRS else 1
    acc = tl.zeros([BLOCK_M, DIM_V // PACKED], dtype=tl.float32)
    acc_odd = acc
    table = block_table + sequence.to(tl.int64) * table_row
    for part in tl.static_range(3):
        start = begin if part == 0 else (full_begin if part == 1 else full_end)
        stop = full_begin if part == 0 else (full_end if part == 1 else end)
        acc, acc_odd, largest, total = _attend(
            acc,
            acc_odd,
            largest,
            total,
            q,
            q_rest,
            start,
            stop,
            low,
            high,
            positions,
            slope,
            key_cache,
            value_cache,
            k_scale,
            v_scale,
            table,
            kv_head,
            k_block,
            k_slot,
            k_head,
            v_block,
            v_slot,
            v_head,
            ks_block,
            ks_slot,
            ks_head,
            vs_block,
            vs_slot,
            vs_head,
            scale * key_factor * LOG2_E,
            softcap * LOG2_E,
            softcap_factor,
            window_left,
            HEAD_DIM,
            HEAD_DIM_V // PACKED,
            DIM,
            DIM_REST,
            DIM_V // PACKED,
            BLOCK_SIZE,
            BLOCK_N,
            part != 1,
            CAUSAL,
            WINDOW,
            SOFTCAP,
            ALIBI,
            K_TOKEN_SCALE,
            V_TOKEN_SCALE,
            V_PAIRS,
            STAGES,
        )
    if V_PAIRS:
        acc = tl.interleave(acc, acc_odd)

    # -------------------------------------------------------------------------------- the result
    if SINKS and not SPLIT:
        # A sink is one more key, of a fixed logit and of value 0; splits get it when merged.
        sink = tl.load(sinks + head).to(tl.float32) * LOG2_E
        shift = tl.maximum(largest, sink)
        decay = tl.exp2(largest - shift)
        total = total * decay + tl.exp2(sink - shift)
        acc = acc * decay[:, None]
        largest = shift
    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    value_factor = 1.0
    if not V_TOKEN_SCALE:
        value_factor = tl.load(v_scale + kv_head * V_HEAD_SCALE)
    acc = acc * (value_factor / total)[:, None]
    row_lse = tl.where(empty, float("-inf"), (largest + tl.log2(total)) * LN_2)

    dims_v = tl.arange(0, DIM_V)
    to_token = (first_token + token).to(tl.int64)
    to_row = output + split * o_split + to_token * o_token + head * o_head
    o_mask = real[:, None] & (dims_v < HEAD_DIM_V)[None, :]
    tl.store(to_row[:, None] + dims_v[None, :], acc.to(output.dtype.element_ty), mask=o_mask)
    tl.store(lse + split * lse_split + to_token * lse_token + head, row_lse, mask=real)


@triton.jit
def merge_splits_kernel(
    output,
    lse,
    parts,
    part_lse,
    sinks,
    o_token: tl.int64,
    o_head,
    p_split: tl.int64,
    p_token: tl.int64,
    p_head,
    lse_token,
    part_lse_split: tl.int64,
    part_lse_token,
    HEAD_DIM_V: tl.constexpr,
    DIM_V: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Grid ``(num_tokens, num_q_heads)``: parts weighted by ``exp(lse - total lse)``."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS_PADDED)
    dims_v = tl.arange(0, DIM_V)
    at = part_lse + split * part_lse_split + token * part_lse_token + head
    each = tl.load(at, mask=split < NUM_SPLITS, other=float("-inf"))
    largest = tl.max(each, 0)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        largest = tl.maximum(largest, sink)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.exp2((each - shift) * LOG2_E)
    total = tl.sum(weights, 0)
    if SINKS:
        total += tl.exp2((sink - shift) * LOG2_E)
    # What a split without a key has written is not read: its weight is 0.
    wanted = (weights > 0.0)[:, None] & (dims_v < HEAD_DIM_V)[None, :]
    at = parts + split[:, None] * p_split + token * p_token + head * p_head + dims_v[None, :]
    part = tl.load(at, mask=wanted, other=0.0)
    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    merged = tl.sum(part * weights[:, None], 0) / total
    to_row = output + token * o_token + head * o_head + dims_v
    tl.store(to_row, merged.to(output.dtype.element_ty), mask=dims_v < HEAD_DIM_V)
    row_lse = tl.where(empty, float("-inf"), shift + tl.log2(total) * LN_2)
    tl.store(lse + token * lse_token + head, row_lse)
