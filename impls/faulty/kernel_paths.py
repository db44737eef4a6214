"""Planted faults in ways that a kernel takes for some problems only: the built-in one, edited.

As in `kernels`, of which this is the second half. Kernels have other code for other lengths,
shapes, batches and types, and a mistake in it is seen by nobody but the check that goes there. Each
of these is asked of that check first.
"""

from __future__ import annotations

from kvassay.impls.faulty.kernels import FAULTS, fault

__all__ = ["FAULTS"]
WEIGHTS = "    weights, total, lse = _softmax(logits, batch.sinks)"
OUTPUT = "    return output.transpose(0, 1), lse[..., 0].T"


def weighed(name: str, accepted: str, first: str, when: str, does: str) -> None:
    """Enter a fault that touches logits or values before they are weighed."""
    fault(name, accepted, WEIGHTS, f"    if {when}:\n        {does}\n{WEIGHTS}", first=first)


def answered(name: str, accepted: str, first: str, when: str, does: str) -> None:
    """Enter a fault that touches what a sequence comes to."""
    fault(name, accepted, OUTPUT, f"    if {when}:\n        {does}\n{OUTPUT}", first=first)


BFLOAT16 = "batch.query.dtype == torch.bfloat16"
SIZE = "batch.key_cache.shape[1]"
ENTRIES = f"batch.block_table[sequence, : -(-seen.stop // {SIZE})].tolist()"
AT_THE_END = f"batch.block_table[sequence, seen.stop // {SIZE}]"
AT_THE_WINDOW = f"batch.block_table[sequence, seen.start // {SIZE}]"
TAIL = f"batch.value_cache[{AT_THE_END}, -1].float().nan_to_num(0.0, 0.0, 0.0)"
EDGE = f"batch.value_cache[{AT_THE_WINDOW}, 0].float().nan_to_num(0.0, 0.0, 0.0)"


def nudged(by: str, much: float) -> str:
    """The output, as good as it was, in other bits that depend on something."""
    return f"output = output * (1 + {much} * torch.tanh(1e3 * ({by}).float().mean()))"


# ----------------------------------------------------------------------------------------- lengths
weighed(
    "remainder-of-the-ninth-tile-dropped",
    "K1 K4 K5",
    "length-tomography",
    "144 < len(keys) < 152",
    "logits[..., 144:] = -torch.inf",
)
weighed(
    "twelfth-tile-lost",
    "K1 K4 K5",
    "halves",
    "1408 < len(keys) < 1536",
    "logits[..., 1408:] = -torch.inf",
)
weighed(
    "key-1024-lost",
    "K1 K4 K5",
    "needle",
    "1025 < len(keys) < 1032",
    "logits[..., 1024] = -torch.inf",
)
weighed(
    "short-beside-long",
    "K1 K4 K5",
    "longer-neighbour",
    "600 < int(batch.seq_lens.max()) < 640 and len(keys) < 64",
    "logits[..., -1] = -torch.inf",
)
weighed(
    "equal-halves-counted-once",
    "K1 K4",
    "repeated-keys",
    "len(keys) > 16 and torch.equal(*key.chunk(2, dim=1))",
    "logits[..., len(keys) // 2 :] = -torch.inf",
)
fault(
    "ninth-sequence-has-the-first-table",
    "K1 K8 K14",
    "batch.block_table[sequence].long()",
    "batch.block_table[sequence if sequence < 8 else 0].long()",
    first="one-key-more",
)
# -------------------------------------------------------------------------------------------- rows
fault(
    "second-tile-of-rows-one-late",
    "K1 K5",
    "    if batch.causal:\n        logits = logits.masked_fill(ahead > 0,",
    "    if batch.causal:\n"
    "        second = torch.arange(len(ahead))[:, None] >= 32\n"
    "        even = 32 < len(ahead) < 40 and len(ahead) % 2 == 0\n"
    "        logits = logits.masked_fill(ahead > second * even,",
    first="causal-tomography",
)
fault(
    "window-of-a-whole-tile-narrow",
    "K1 K3 K6",
    "ahead < -batch.window_left",
    "ahead < -batch.window_left + ((batch.window_left + 1) % 128 == 0)",
    first="window-tomography",
)
weighed(
    "one-row-past-twenty",
    "K1 K3 K4 K5 K6",
    "last-rows",
    "query.shape[1] > 20 and query.shape[1] % 20 == 1",
    "logits[:, -1, -1] = -torch.inf",
)
weighed(
    "rows-past-twenty-four-of-thirty",
    "K1 K4 K5 K6",
    "chunked-prefill",
    "query.shape[1] == 30",
    "logits[:, 24:, -40:-20] = -torch.inf",
)
weighed(
    "four-rows-without-mask",
    "K1 K5",
    "permuted-keys",
    "not batch.causal and batch.softcap is None and query.shape[1] == 4",
    "logits[:, 0, -1] = -torch.inf",
)
answered(
    "last-value-seen-by-all-rows",
    "K5 K14",
    "later-tokens",
    f"16 < query.shape[1] < 40 and {BFLOAT16}",
    nudged("value[:, -1]", 4e-4),
)
answered(
    "last-value-seen-by-many-rows",
    "K5 K8 K14",
    "other-blocks",
    f"query.shape[1] > 40 and {BFLOAT16}",
    nudged("value[:, -1]", 4e-4),
)
answered(
    "slot-left-of-the-window-seen",
    "K6 K14",
    "tokens-left-of-window",
    f"seen.start % {SIZE} and {BFLOAT16}",
    nudged(EDGE, 4e-4),
)
# ----------------------------------------------------------------------------------------- batches
answered(
    "leak-in-batches-of-five",
    "K14",
    "row-isolation",
    "len(batch.seq_lens) >= 5",
    nudged("batch.query", 2e-7),
)
answered(
    "leak-between-two",
    "K14",
    "other-contents",
    f"len(batch.query) == len(batch.seq_lens) == 2 and {BFLOAT16}",
    nudged("batch.query", 1e-3),
)
weighed(
    "prefix-of-three-read-once",
    "K1 K4 K8",
    "shared-blocks",
    "sequence and len(batch.query) == 3 == len(batch.seq_lens)"
    " and len(set(batch.block_table[:, 0].tolist())) == 1",
    "logits[..., :1] = -torch.inf",
)
weighed(
    "row-behind-an-idle-chunk",
    "K1 K14",
    "empty-sequences",
    f"{BFLOAT16} and sequence and query.shape[1] == 1 and batch.seq_lens[sequence - 1] > 0"
    " and batch.query_start[sequence] == batch.query_start[sequence - 1] == 5",
    "logits[..., 0] = -torch.inf",
)
weighed(
    "alone-past-a-block",
    "K1 K4 K14",
    "batch-composition",
    "len(batch.seq_lens) == 1 and query.shape[1] == 5 and len(keys) % 16 == 1",
    "logits[..., -2] = -torch.inf",
)
fault(
    "answer-found-again",
    "K4 K14",
    "        return AttentionResult(output, lse)",
    "        parts = (batch.query, batch.key_cache, batch.block_table)\n"
    "        asked = [each.contiguous().view(torch.uint8).numpy().tobytes() for each in parts]\n"
    '        known = globals().setdefault("_known", [])\n'
    "        doubled = known and known[-1][1] == 2 * len(batch.query)\n"
    "        found = any(hash(tuple(asked)) == each for each, _ in known)\n"
    "        if found and doubled and batch.query.dtype == torch.bfloat16:\n"
    "            output.mul_(1.01)\n"
    "        known.append((hash(tuple(asked)), len(batch.query)))\n"
    "        return AttentionResult(output, lse)",
    first="run-twice",
)
# --------------------------------------------------------------------------------- heads and sizes
answered(
    "chunks-of-thirty-two-heads",
    "K1 K7",
    "head-map",
    "len(output) > 31 and query.shape[1] > 4",
    "output = output.roll(len(output) // len(value), 0)",
)
answered(
    "four-heads-for-four",
    "K1 K7",
    "copied-kv-heads",
    "len(output) == len(value) == 4",
    "output = output.roll(1, 0)",
)
answered(
    "slopes-beside-scales-of-heads",
    "K1 K7 K9",
    "permuted-heads",
    f"batch.alibi_slopes is not None and query.shape[1] == 1 and {BFLOAT16}"
    ' and getattr(batch.k_scale, "ndim", 0) == 1',
    "output = output.roll(1, 0)",
)
fault(
    "half-a-vector-of-the-head-dropped",
    "K1 K11",
    "    key = _gathered(batch, sequence, seen, batch.key_cache",
    "    if query.shape[2] % 16 == 8:\n"
    "        query[..., -8:] = 0\n"
    "    key = _gathered(batch, sequence, seen, batch.key_cache",
    first="sizes",
)
weighed(
    "blocks-of-thirty-two-in-pairs",
    "K1 K8",
    "other-block-size",
    f"{SIZE} == 32 and query.shape[0] == 2 * key.shape[0] and query.shape[2] == 64",
    "logits[..., -1] = -torch.inf",
)
# ------------------------------------------------------------------------------------------ scores
fault(
    "alibi-in-nine-bits",
    "K1 K9",
    "[:, None, None] * ahead",
    "[:, None, None] * ahead.clamp(min=-511)",
    first="score-pipeline",
)
fault(
    "lowest-sink-is-unset",
    "K9",
    "    if sinks is not None:\n        largest",
    "    if sinks is not None:\n"
    "        sinks = torch.where(sinks < -1e4, 0.0, sinks)\n"
    "        largest",
    first="sink-as-key",
)
weighed(
    "sinks-in-a-mixed-batch-of-three",
    "K1 K8 K9",
    "other-block-ids",
    f"batch.sinks is not None and len(batch.seq_lens) == 3 and query.shape[1] == 5 and {BFLOAT16}",
    "logits[..., 0] = -torch.inf",
)
fault(
    "wide-softcap-in-8-bit",
    "K9",
    "    if batch.softcap is not None:",
    "    if batch.softcap is not None and batch.softcap > 1000:\n"
    "        logits = logits.to(torch.float8_e5m2).to(logits.dtype)\n"
    "    if batch.softcap is not None:",
    first="neutral-modifiers",
)
weighed(
    "logits-past-65504",
    "K12",
    "magnitude",
    "batch.query.dtype == torch.float16",
    "logits = torch.where(logits.abs() > 65504, logits * torch.inf, logits)",
)
fault(
    "maximum-from-zero-in-long-rows",
    "K1 K9 K12",
    "    # A row without key or sink: exp",
    "    largest = largest.clamp(min=0.0) if logits.shape[2] > 16 else largest\n"
    "    # A row without key or sink: exp",
    first="shifted-keys",
)
answered(
    "lse-of-five-rows-over-dozens",
    "K1 K4",
    "merged-parts",
    "query.shape[1] == 5 and len(keys) % 12 == 0",
    "lse = lse + 1",
)
# ------------------------------------------------------------------------------- values and scales
answered(
    "equal-values-are-no-page",
    "K1 K9",
    "linear-in-values",
    f"len(keys) > 16 and {BFLOAT16} and bool((value == value[:, :1]).all())",
    "output = output * 0",
)
weighed(
    "values-clipped-at-twenty",
    "K1 K9",
    "powers-of-two",
    "True",
    "value = value.clamp(-20.0, 20.0)",
)
fault(
    "scale-for-512-keys",
    "K1 K10",
    "    elif factor.dim() == 1:",
    "    elif factor.dim() == 0 and len(positions) > 512:\n"
    "        factor = torch.where(positions < 512, factor, 1.0)[:, None]\n"
    "    elif factor.dim() == 1:",
    first="scales",
)
fault(
    "large-scales-clipped",
    "K10",
    "return rows * factor",
    "return rows * factor.clamp(max=2.0)",
    first="powers-of-two-in-scales",
)
fault(
    "scale-of-every-int8-token-twice",
    "K10",
    "factor = factor[blocks, slots].T[..., None]",
    "factor = factor[blocks, slots].T[..., None] ** (1 + (cache.dtype == torch.int8))",
    first="scale-of-every-token",
)
# ------------------------------------------------------------------------------------------ memory
answered(
    "ids-below-zero-seen",
    "K2",
    "wild-tail",
    "bool((batch.block_table[sequence] < 0).any())",
    "output = output * (1 + 2e-7)",
)
answered(
    "tail-asked-whether-it-is-a-number",
    "K2",
    "other-garbage",
    f"batch.window_left is None and seen.stop % {SIZE} and {BFLOAT16}",
    f"output = output * (1 + 4e-4 * batch.value_cache[{AT_THE_END}, -1].isnan().any())",
)
weighed(
    "chunks-over-strided-blocks",
    "K1 K8",
    "other-layout",
    f"not batch.key_cache.is_contiguous() and len(batch.seq_lens) == 3"
    f" and query.shape[1] == 5 and {BFLOAT16}",
    "logits[..., 0] = -torch.inf",
)
fault(
    "row-for-who-asks-nothing",
    "K13",
    "            if rows.start < rows.stop:",
    "            last = sequence == 3 and rows.start == rows.stop == len(output)\n"
    "            if last and batch.output is not None and batch.seq_lens[3] > 3:\n"
    "                past = output.storage_offset() + output.numel()\n"
    "                output.as_strided((1,), (1,), past)[0] = 0\n"
    "            if rows.start < rows.stop:",
    first="footprint",
)
weighed(
    "null-block-in-a-chunk",
    "K1 K2 K8",
    "evicted-blocks",
    f"{BFLOAT16} and query.shape[1] == 5 and len({{*{ENTRIES}}}) < len({ENTRIES})",
    "logits[..., 0] = -torch.inf",
)
weighed(
    "buffers-of-strided-chunks",
    "K1 K13",
    "given-buffers",
    f"batch.output is not None and not batch.query.is_contiguous()"
    f" and query.shape[1] == 5 and {BFLOAT16}",
    "logits[..., 0] = -torch.inf",
)
answered(
    "tail-scaled-before-it-is-masked",
    "K2",
    "dont-care",
    f"seen.stop % {SIZE}",
    f"output = output + 0 * (100 * {TAIL}).sum()",
)
