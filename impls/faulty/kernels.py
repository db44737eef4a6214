"""Planted faults in kernels: the built-in `torch` kernel, or the tiled one, with one edit each.

A fault is a replacement of text in the kernel's source, which must occur exactly once; the edited
source is then run as a module of its own. A fault lists the invariants by which it may be
convicted. Importing this module registers each as ``kernel-fault-<name>``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

from kvassay.harness.contract import Declaration, Determinism, PagedAttention, Rounding, Tail
from kvassay.harness.registry import implementation
from kvassay.impls.faulty.edits import replaced_once
from kvassay.impls.faulty.kernel_controls import ALL

TORCH = "kvassay.impls.torch_attention"
TILED = "kvassay.impls.faulty.tiled_attention"
BUILD = {TORCH: "TorchAttention()", TILED: "TiledAttention(Habits(tile=16, splits=4))"}
DECLARED = Declaration(
    capabilities=ALL, rounding=Rounding.P, tail=Tail.ANY, determinism=Determinism.RUN
)


@dataclass(frozen=True)
class KernelFault:
    """One edit."""

    name: str
    accepted: frozenset[str]
    """Ids of the invariants that may convict it."""
    module: str
    old: str
    new: str
    declaration: Declaration = DECLARED
    first: str = ""
    """The check that is asked first, where the fault shows in few cases."""

    def build(self) -> Any:
        """The kernel with the edit in it."""
        module = edited(self.module, self.old, self.new)
        return eval(BUILD[self.module], vars(module))


FAULTS: dict[str, KernelFault] = {}


def edited(name: str, old: str, new: str) -> ModuleType:
    """A module as it would be with one edit; `ValueError` if the old text is not there once."""
    spec = util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"no module {name}")
    source = Path(spec.origin).read_text(encoding="utf-8")
    source = replaced_once(source, old, new, where=name)
    module = ModuleType(f"{name}_with_a_fault")
    module.__file__ = spec.origin
    # Data classes look themselves up by the name of their module.
    module.__dict__["__name__"] = name
    exec(compile(source, spec.origin, "exec"), vars(module))
    return module


def fault(
    name: str, accepted: str, old: str, new: str, *, module: str = TORCH, first: str = ""
) -> None:
    """Enter a fault into `FAULTS` and register it."""
    planted = KernelFault(name, frozenset(accepted.split()), module, old, new, first=first)
    FAULTS[name] = planted
    implementation(f"kernel-fault-{name}", kind=PagedAttention, declaration=DECLARED)(planted.build)


# ----------------------------------------------------------------------------------------- masks
fault("causal-one-late", "K5", "masked_fill(ahead > 0,", "masked_fill(ahead > 1,")
fault("causal-one-early", "K1 K3 K5", "masked_fill(ahead > 0,", "masked_fill(ahead >= 0,")
fault("not-causal", "K5", "if batch.causal:", "if batch.causal and False:")
fault(
    "causal-top-left",
    "K1 K5 K6",
    "queries = torch.arange(seen.stop - query.shape[1], seen.stop,",
    "queries = torch.arange(0, query.shape[1],",
)
fault("window-one-wide", "K1 K6", "ahead < -batch.window_left", "ahead < -batch.window_left - 1")
fault("window-one-narrow", "K3 K6", "ahead < -batch.window_left", "ahead <= -batch.window_left")
fault(
    "window-in-decode-only",
    "K1 K6",
    "if batch.window_left is not None:\n        logits",
    "if batch.window_left is not None and logits.shape[1] == 1:\n        logits",
)
fault(
    "first-key-lost",
    "K1 K3 K4 K5 K6",
    "    if batch.causal:\n",
    "    logits[..., :1] = -torch.inf if key.shape[1] > 1 else logits[..., :1]\n"
    "    if batch.causal:\n",
)
fault(
    "long-cut-off",
    "K1 K4 K5",
    "    if batch.causal:\n",
    "    logits[..., 1024:] = -torch.inf\n    if batch.causal:\n",
)
# ------------------------------------------------------------------------------------- head map
fault(
    "heads-interleaved",
    "K1 K7",
    "output = output.view(*query.shape[:2], -1)",
    "output = output.view(value.shape[0], -1, query.shape[1], value.shape[2])"
    ".transpose(0, 1).reshape(*query.shape[:2], -1)",
)
fault(
    "next-kv-head",
    "K1 K7",
    "cache[blocks, slots].transpose(0, 1)",
    "cache[blocks, slots].transpose(0, 1).roll(1, 0)",
)
fault(
    "ratio-not-checked",
    "K7 K11",
    "        check_batch(batch)\n        output, lse = _buffers(batch)\n",
    "        output, lse = _buffers(batch)\n"
    "        if batch.query.shape[1] % batch.key_cache.shape[2]:\n"
    "            return AttentionResult(output.zero_(), lse.zero_())\n"
    "        check_batch(batch)\n",
)
# --------------------------------------------------------------------------------- score pipeline
fault("scale-missing", "K9 K12", "logits = scale * (", "logits = (")
fault("scale-given-ignored", "K9", "if batch.scale is None else batch.scale", "if True else 0.0")
fault(
    "scale-of-padded-size",
    "K9",
    "query.shape[2] ** -0.5",
    "(2 ** (query.shape[2] - 1).bit_length()) ** -0.5",
)
fault("softcap-missing", "K9", "if batch.softcap is not None:", "if False:")
fault("softcap-not-undone", "K9", "batch.softcap * torch.tanh(", "torch.tanh(")
fault(
    "softcap-after-bias",
    "K1 K9",
    "    if batch.causal:\n",
    "    if batch.softcap is not None and batch.alibi_slopes is not None:\n"
    "        logits = batch.softcap * torch.tanh(logits / batch.softcap)\n"
    "    if batch.causal:\n",
)
fault("alibi-missing", "K9", "if batch.alibi_slopes is not None:", "if False:")
fault("alibi-sign", "K9", "[:, None, None] * ahead", "[:, None, None] * -ahead")
fault(
    "alibi-from-the-first-key",
    "K1 K9",
    "[:, None, None] * ahead",
    "[:, None, None] * (ahead - ahead[:, :1])",
)
fault("sinks-missing", "K9", "if sinks is not None:\n        total", "if False:\n        total")
fault(
    "sinks-twice",
    "K9",
    "total = total + torch.exp(",
    "total = total + 2 * torch.exp(",
)
fault(
    "sinks-of-next-head",
    "K1 K7 K9",
    "    if sinks is not None:\n        largest",
    "    sinks = None if sinks is None else sinks.roll(1)\n"
    "    if sinks is not None:\n        largest",
)
# ------------------------------------------------------------------------------------------ scales
fault("k-scale-missing", "K10", "batch.key_cache, batch.k_scale,", "batch.key_cache, None,")
fault("v-scale-missing", "K10", "batch.value_cache, batch.v_scale,", "batch.value_cache, None,")
fault(
    "scales-swapped",
    "K10",
    "batch.value_cache, batch.v_scale,",
    "batch.value_cache, batch.k_scale,",
)
fault(
    "scale-of-first-head",
    "K10",
    "factor = factor[:, None, None]",
    "factor = factor[:1, None, None]",
)
fault(
    "scale-of-first-slot",
    "K10",
    "factor = factor[blocks, slots].T",
    "factor = factor[blocks, 0 * slots].T",
)
fault("v-scale-one-percent", "K10 K1", "return rows * factor", "return rows * (factor * 1.01)")
# -------------------------------------------------------------------------------------------- LSE
fault(
    "lse-base-2",
    "K1 K3 K4",
    "largest + torch.log(total)",
    "(largest + torch.log(total)) / 0.6931471805599453",
)
fault("lse-without-maximum", "K1 K4", "largest + torch.log(total)", "torch.log(total)")
fault(
    "lse-without-sink",
    "K1 K3 K4 K9",
    "    return weights, total, largest + torch.log(total)",
    "    return weights, total, largest + torch.log(weights.sum(dim=2, keepdim=True))",
)
# ----------------------------------------------------------------------------------------- softmax
fault(
    "no-maximum",
    "K12",
    "weights = torch.exp(logits - largest)",
    "largest = largest * 0\n    weights = torch.exp(logits)",
)
fault(
    "weights-in-8-bit",
    "K1",
    "output = _per_kv_head(weights, value.shape[0])",
    "output = _per_kv_head(weights.to(torch.float8_e5m2).to(weights.dtype), value.shape[0])",
)
fault(
    "weights-in-bfloat16",
    "K1",
    "output = _per_kv_head(weights, value.shape[0])",
    "output = _per_kv_head(weights.bfloat16().to(weights.dtype), value.shape[0])",
)
fault("empty-row-nan", "K3", "largest.masked_fill(largest == -torch.inf, 0.0)", "largest")
fault(
    "empty-row-one",
    "K3",
    "/ total.masked_fill(total == 0, 1.0)",
    "/ total.masked_fill(total == 0, 1.0) + (total == 0).to(total.dtype)",
)
# -------------------------------------------------------------------------------------- addressing
fault(
    "ids-in-16-bit",
    "K8",
    ".long()[positions // cache.shape[1]]",
    ".to(torch.uint16).long()[positions // cache.shape[1]]",
)
fault(
    "slot-off-by-one",
    "K1 K2 K8",
    "slots = positions % cache.shape[1]",
    "slots = (positions + 1) % cache.shape[1]",
)
fault(
    "table-of-first-sequence",
    "K1 K8 K14",
    "batch.block_table[sequence].long()",
    "batch.block_table[0].long()",
)
fault(
    "offsets-in-32-bit",
    "K8 K13",
    "rows = _dense(cache[blocks, slots]",
    "if cache.stride(0) >= 2**20:\n"
    "        blocks = blocks % (2**31 // cache.stride(0))\n"
    "    rows = _dense(cache[blocks, slots]",
)
# ------------------------------------------------------------------------------------ tails, rows
fault(
    "tail-read",
    "K1 K2 K5",
    "keys = torch.arange(seen.start, seen.stop, device=query.device)",
    "keys = torch.arange(seen.start, seen.stop, device=query.device)\n"
    "    column = max(seen.stop - 1, 0) // batch.value_cache.shape[1]\n"
    "    past = batch.value_cache[int(batch.block_table[sequence, column]), -1]\n"
    "    value = value + 1e-4 * past.float()[:, None, :]",
)
fault(
    "tail-times-zero",
    "K2",
    "    output = _per_kv_head(weights",
    "    value = value + 0 * batch.value_cache[:, -1].float().sum(0)[:, None, :]\n"
    "    output = _per_kv_head(weights",
)
fault(
    "last-row-unwritten",
    "K1 K3 K12 K13",
    "output[rows], lse[rows] = _attend(batch, sequence, rows)",
    "done, told = _attend(batch, sequence, rows)\n"
    "                kept = len(done) - (sequence > 0)\n"
    "                rows = slice(rows.start, rows.start + kept)\n"
    "                output[rows], lse[rows] = done[:kept], told[:kept]",
)
fault(
    "query-scaled-in-place",
    "K13",
    "    seen = looked_at(batch, sequence)",
    "    batch.query[rows] *= 2.0\n    seen = looked_at(batch, sequence)",
)
fault(
    "reads-past-the-table",
    "K13",
    "            if rows.start < rows.stop:",
    "            import ctypes\n"
    "            past = batch.block_table.data_ptr() + 4 * batch.block_table.numel()\n"
    "            ctypes.string_at(past, 4)\n"
    "            if rows.start < rows.stop:",
    first="guard-pages",
)
fault(
    "query-cleared-after-use",
    "K13",
    "    return output.transpose(0, 1), lse[..., 0].T",
    "    batch.query[rows] = 0\n    return output.transpose(0, 1), lse[..., 0].T",
)
fault(
    "writes-past-the-row",
    "K13",
    "            if rows.start < rows.stop:",
    "            if output.stride(1) > output.shape[2]:\n"
    "                past = output.storage_offset() + output.shape[2]\n"
    "                output.as_strided((1,), (1,), past)[0] = 0\n"
    "            if rows.start < rows.stop:",
)
fault(
    "rows-share-a-maximum",
    "K1 K12 K14",
    "largest.maximum(logits.amax(dim=2, keepdim=True))",
    "largest.maximum(logits.amax(dim=(1, 2), keepdim=True))",
)
fault(
    "rows-leak",
    "K1 K14",
    "return output.transpose(0, 1), lse[..., 0].T",
    "return output.transpose(0, 1) + 1e-3 * batch.query.float().mean(), lse[..., 0].T",
)
# ------------------------------------------------------------------------- splits, online softmax
fault(
    "merge-in-base-2", "K1 K4", "torch.exp(each - shift)", "torch.exp2(each - shift)", module=TILED
)
fault(
    "merge-by-maximum",
    "K1 K4",
    "torch.exp(each - shift)[..., None]).sum(0), total",
    "torch.exp(each - shift)[..., None]).sum(0), each.amax(0)",
    module=TILED,
)
fault(
    "merge-without-weights",
    "K1 K4",
    "(outs * torch.exp(each - shift)[..., None]).sum(0)",
    "outs.mean(0)",
    module=TILED,
)
fault(
    "last-split-dropped",
    "K1 K4 K5",
    "        outs = torch.stack([out for out, _ in parts])",
    "        parts = parts[:-1] if len(parts) > 3 else parts\n"
    "        outs = torch.stack([out for out, _ in parts])",
    module=TILED,
)
fault(
    "sink-per-split",
    "K1 K4 K9",
    "            total = torch.logaddexp(",
    "            sink = batch.sinks[heads].to(total.dtype).expand_as(total)\n"
    "            for _ in parts[1:]:\n"
    "                total = torch.logaddexp(total, sink)\n"
    "            total = torch.logaddexp(",
    module=TILED,
)
fault(
    "decay-forgotten",
    "K1 K4 K12",
    "out = out * decay[..., None] + weights @ value",
    "out = out + weights @ value",
    module=TILED,
)
fault(
    "total-not-decayed",
    "K1 K4 K12",
    "total = total * decay + weights.sum(2)",
    "total = total + weights.sum(2)",
    module=TILED,
)
fault(
    "part-in-fp8",
    "K1 K10",
    "        return out, torch.where(total == 0",
    "        out = out.to(torch.float8_e4m3fn).to(out.dtype)\n"
    "        return out, torch.where(total == 0",
    module=TILED,
)
fault("random-order", "K4 K14", 'elif self.habits.order == "random":', "else:", module=TILED)
