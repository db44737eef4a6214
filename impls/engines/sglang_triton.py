"""SGLang's Triton attention (``--attention-backend triton``), in Triton's interpreter.

That backend has a kernel for decoding (one query a sequence), in one form for several query heads
per KV head and in one for one, and a kernel to extend: a prefix in the cache, and new tokens with
keys and values of their own. Each is a kernel here, under its own name. All of them address the
cache by token slots: a list of slots for each sequence, keys in the order of their positions.

* The window is W keys where the backend decodes, by leaving others out of the list, and W extra
  keys in the kernel that extends, which cannot say "none" (a window of the query's own key is
  refused). Where no row sees a key any more, neither list has it.
* Probabilities are rounded to the query's type: rounding=P. With one query head per KV head,
  products of single elements are rounded to it instead: rounding=Qpre, whose error in a logit is
  the same. That kernel multiplies float8 keys and values as they are; the others first cast queries
  and probabilities down to float8, and what is multiplied in float8 is not modelled: refused.
* Only slots in the lists are read: tail=any. A query that is alone at the end needs no causal mask,
  so decoding claims none; batches with one and without are the same to it.
* A row of a sequence without keys is 0 / 0: empty_row=nan. Extending has no such row (refused).

Splits of the keys, at most 4, follow from each sequence's length: determinism=batch. Scales are one
number each where the backend decodes; new tokens have none, so extending has none.

Importing this file imports neither torch nor Triton; building a kernel does, but never SGLang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Determinism,
    EmptyRow,
    PagedAttention,
    Rounding,
    Tail,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines import wheel_kernels

PACKAGE = "sglang"
INSTALL = (
    "pip install torch==2.13.0 triton==3.7.1 && "
    "pip install --no-deps -r impls/engines/sglang_requirements.txt"
)
MOST_SPLITS = 4
SPLIT_KEYS = 32
"""Keys per split at the least: the kernel rounds up to that."""
LATENT_HEADS = (288, 576)
"""Head sizes of keys that may hold the values too, for which decoding has a path of its own."""

_OPS = "sglang.kernels.ops.attention."
DECODE, EXTEND = _OPS + "decode_attention", _OPS + "extend_attention"
FILES = {name: name.replace(".", "/") + ".py" for name in (_OPS + "score_mod", DECODE, EXTEND)}
"""Of the wheel: what is executed, by the names of modules, in this order."""
OFFERED = frozenset(
    {
        Capability.WINDOW,
        Capability.SOFTCAP,
        Capability.SINKS,
        Capability.SCALES,
        Capability.OUTPUT,
    }
)


class _Settings:
    """SGLang's environment: no switch is set."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(get=lambda: False)


def kernels(root: Path | None = None) -> SimpleNamespace:
    """The modules of the wheel (or of a folder like it) that define kernels, interpreted."""
    from kvassay.harness.interpreter import use_interpreter

    use_interpreter()
    import torch

    from kvassay.impls.attention_inputs import looked_at

    modules = wheel_kernels.load(
        root or wheel_kernels.root_of("sglang").parent,
        FILES,
        {
            "sglang.srt.environ": {"envs": _Settings()},
            "sglang.srt.utils": {
                "get_device_core_count": lambda index: 0,
                "is_cuda": lambda: False,
                "is_gfx95_supported": lambda: False,
                "is_gfx1250_supported": lambda: False,
                "is_hip": lambda: False,
            },
        },
    )
    return SimpleNamespace(
        decode=modules[DECODE], extend=modules[EXTEND], looked_at=looked_at, torch=torch
    )


@lru_cache(maxsize=1)
def engine() -> SimpleNamespace:
    """The wheel's kernels, loaded once."""
    return kernels()


class _SglangKernel:
    """What the kernels have in common: pools of token slots, and lists of them."""

    device = "cpu"
    types_wanted = (
        "SGLang's kernel is for caches of the query's type; for float8 it casts queries and "
        "probabilities down, which is not modelled"
    )

    def __init__(self, engine_of: Callable[[], SimpleNamespace] = engine) -> None:
        self._sglang = engine_of()

    def _narrow_types(self) -> tuple[Any, ...]:
        """Types of a cache besides the query's."""
        return ()

    def _pools(self, batch: AttentionBatch) -> tuple[Any, Any]:
        """Keys and values as ``[slots, heads, dim]``; raises where slots are not evenly spaced."""
        pools = []
        for name in ("key_cache", "value_cache"):
            cache = getattr(batch, name)
            blocks, size = cache.shape[:2]
            if size > 1 and blocks > 1 and cache.stride(0) != size * cache.stride(1):
                raise NotImplementedError(
                    f"{name}: SGLang's pools have slots at equal distances, got strides "
                    f"{cache.stride()} for blocks of {size}"
                )
            if cache.stride(3) != 1:
                raise NotImplementedError(
                    f"{name}: SGLang needs heads whose numbers are neighbours"
                )
            step = cache.stride(1) if size > 1 else cache.stride(0)
            pools.append(
                cache.as_strided(
                    (blocks * size, *cache.shape[2:]),
                    (step, *cache.stride()[2:]),
                    cache.storage_offset(),
                )
            )
        return pools[0], pools[1]

    def _slots(self, batch: AttentionBatch, index: int, positions: range) -> Any:
        """Slots of positions of a sequence; raises `ValueError` for a block that does not exist."""
        blocks, size = batch.key_cache.shape[:2]
        at = self._sglang.torch.tensor(positions, dtype=self._sglang.torch.int64)
        named = batch.block_table[index].long()[at // size]
        wrong = named[(named < 0) | (named >= blocks)]
        if wrong.numel():
            raise ValueError(f"block_table: expected blocks 0 to {blocks - 1}, got {int(wrong[0])}")
        return named * size + at % size

    def _list(self, batch: AttentionBatch, kept: list[tuple[int, range]]) -> tuple[Any, Any]:
        """Where the slots of each sequence begin, and the slots of the positions kept."""
        torch = self._sglang.torch
        slots = [self._slots(batch, index, positions) for index, positions in kept]
        starts = torch.zeros(len(kept) + 1, dtype=torch.int32)
        starts[1:] = torch.tensor([len(each) for each in slots], dtype=torch.int32).cumsum(0)
        return starts, torch.cat(slots)

    def _refuse(self, batch: AttentionBatch) -> None:
        """Raise `NotImplementedError` for what no kernel of the backend takes."""
        heads = batch.query.shape[1], batch.key_cache.shape[2]
        if heads[0] % heads[1]:
            raise ValueError(f"expected a multiple of {heads[1]} query heads, got {heads[0]}")
        if batch.alibi_slopes is not None:
            raise NotImplementedError("alibi_slopes: SGLang's kernels have none")
        stored = {batch.key_cache.dtype, batch.value_cache.dtype}
        offered = ({each} for each in (batch.query.dtype, *self._narrow_types()))
        if stored not in offered:
            raise NotImplementedError(f"cache of {stored}: {self.types_wanted}")
        for name in ("k_scale", "v_scale"):
            if getattr(getattr(batch, name), "ndim", 0):
                raise NotImplementedError(f"{name}: SGLang's kernels need one number")
        for name in ("query", "output"):
            tensor = getattr(batch, name)
            if tensor is not None and tensor.stride(2) != 1:
                raise NotImplementedError(
                    f"{name}: SGLang needs heads whose numbers are neighbours"
                )


def _number(scale: Any) -> float:
    return 1.0 if scale is None else float(scale)


def _softmax_scale(batch: AttentionBatch) -> float:
    return batch.query.shape[2] ** -0.5 if batch.scale is None else batch.scale


# ----------------------------------------------------------------------------------------- decode


class _Decode(_SglangKernel):
    """One query per sequence, at its end."""

    def __init__(self, engine_of: Callable[[], SimpleNamespace] = engine) -> None:
        super().__init__(engine_of)
        self.time_limit = wheel_kernels.CALL_LIMIT
        self.paths = Counter({"one split": 0, "several splits": 0})

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        self._refuse(batch)
        if bool((batch.query_start.diff() > 1).any()):
            raise NotImplementedError("SGLang decodes one query per sequence")
        pools = self._pools(batch)
        shape = (*batch.query.shape[:2], batch.value_cache.shape[3])
        output = batch.query.new_empty(shape) if batch.output is None else batch.output
        rows = batch.query_start.diff().nonzero().flatten().tolist()
        if rows:
            lists = self._list(batch, [(i, self._sglang.looked_at(batch, i)) for i in rows])
            self._attend(batch, pools, lists, output)
        return AttentionResult(output)

    def _attend(
        self, batch: AttentionBatch, pools: tuple[Any, Any], lists: tuple[Any, Any], output: Any
    ) -> None:
        torch = self._sglang.torch
        num_tokens, num_heads, head_dim_v = output.shape
        parts = torch.full((num_tokens, num_heads, MOST_SPLITS, head_dim_v), torch.nan)
        splits = (lists[0].diff() // SPLIT_KEYS).clamp(1, MOST_SPLITS)
        self.paths["one split" if int(splits.max()) == 1 else "several splits"] += 1
        self._function()(
            batch.query,
            *pools,
            output,
            *lists,
            parts,
            parts.new_full(parts.shape[:3], torch.nan),
            splits.to(torch.int32),
            MOST_SPLITS,
            _softmax_scale(batch) * _number(batch.k_scale),
            _number(batch.v_scale),
            logit_cap=batch.softcap or 0.0,
            sinks=batch.sinks,
            page_size=batch.key_cache.shape[1],
            **self._more(batch),
        )

    def _function(self) -> Any:
        """SGLang's function for this kernel."""
        raise NotImplementedError

    def _more(self, batch: AttentionBatch) -> dict[str, Any]:
        """Arguments that other kernels do not have."""
        return {}


def _decode_declaration(rounding: Rounding) -> Declaration:
    return Declaration(
        capabilities=OFFERED,
        rounding=rounding,
        empty_row=EmptyRow.NAN,
        tail=Tail.ANY,
        determinism=Determinism.BATCH,
    )


@implementation(
    "sglang-triton-decode-grouped",
    kind=PagedAttention,
    package=PACKAGE,
    install=INSTALL,
    declaration=_decode_declaration(Rounding.P),
)
class SglangGroupedDecode(_Decode):
    """Several query heads per KV head, tiled; keys that hold the values are loaded once."""

    def _refuse(self, batch: AttentionBatch) -> None:
        super()._refuse(batch)
        if batch.query.shape[1] == batch.key_cache.shape[2]:
            raise NotImplementedError("SGLang groups several query heads per KV head, got one")

    def _function(self) -> Any:
        return self._sglang.decode.decode_attention_fwd_grouped

    def _more(self, batch: AttentionBatch) -> dict[str, Any]:
        key, value = batch.key_cache, batch.value_cache
        latent = key.shape[3] in LATENT_HEADS and key.data_ptr() == value.data_ptr()
        # What the kernel takes for the values is a power of two of a key's numbers, the first.
        wide = 1 << (key.shape[3].bit_length() - 1)
        return {"has_mla": latent and value.shape[3] == wide and key.stride() == value.stride()}


@implementation(
    "sglang-triton-decode-normal",
    kind=PagedAttention,
    package=PACKAGE,
    install=INSTALL,
    declaration=_decode_declaration(Rounding.Q_PRE),
)
class SglangNormalDecode(_Decode):
    """One query head per KV head: no matrix product."""

    types_wanted = "SGLang's kernel is for caches of the query's type or of float8"

    def _refuse(self, batch: AttentionBatch) -> None:
        super()._refuse(batch)
        if batch.query.shape[1] != batch.key_cache.shape[2]:
            raise NotImplementedError("SGLang's ungrouped kernel is for one query head per KV head")

    def _narrow_types(self) -> tuple[Any, ...]:
        return self._sglang.torch.float8_e4m3fn, self._sglang.torch.float8_e5m2

    def _function(self) -> Any:
        return self._sglang.decode.decode_attention_fwd_normal


# ----------------------------------------------------------------------------------------- extend


@implementation(
    "sglang-triton-extend",
    kind=PagedAttention,
    package=PACKAGE,
    install=INSTALL,
    declaration=Declaration(
        capabilities=(OFFERED | {Capability.CAUSAL, Capability.LSE}) - {Capability.SCALES},
        rounding=Rounding.P,
        empty_row=EmptyRow.ZERO,
        tail=Tail.ANY,
        determinism=Determinism.BATCH,
    ),
)
class SglangExtend(_SglangKernel):
    """The last positions of each sequence are new tokens, the others its prefix."""

    def __init__(self, engine_of: Callable[[], SimpleNamespace] = engine) -> None:
        super().__init__(engine_of)
        self.time_limit = wheel_kernels.CALL_LIMIT
        self.paths = Counter({"prefix": 0, "no prefix": 0})

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        self._refuse(batch)
        pools = self._pools(batch)
        shape = (*batch.query.shape[:2], batch.value_cache.shape[3])
        output = batch.query.new_empty(shape) if batch.output is None else batch.output
        lse = batch.lse
        if lse is None:
            lse = batch.query.new_empty(shape[:2], dtype=self._sglang.torch.float32)
        if shape[0]:
            self._attend(batch, pools, output, lse)
        return AttentionResult(output, lse)

    def _attend(self, batch: AttentionBatch, pools: tuple[Any, Any], output: Any, lse: Any) -> None:
        rows = batch.query_start.diff().tolist()
        lengths = batch.seq_lens.tolist()
        prefixes, extended = [], []
        for index, (length, queries) in enumerate(zip(lengths, rows, strict=True)):
            first_new = length - queries
            seen = self._sglang.looked_at(batch, index)
            prefixes.append((index, range(min(seen.start, first_new), first_new if queries else 0)))
            extended.append((index, range(first_new, length)))
        starts, slots = self._list(batch, prefixes)
        self.paths["prefix" if slots.numel() else "no prefix"] += 1
        new = self._list(batch, extended)[1]
        self._sglang.extend.extend_attention_fwd(
            batch.query,
            pools[0][new],
            pools[1][new],
            output,
            *pools,
            batch.query_start,
            starts,
            slots,
            None,
            batch.causal,
            None,
            max(rows),
            1.0,
            1.0,
            sm_scale=_softmax_scale(batch),
            logit_cap=batch.softcap or 0.0,
            sliding_window_size=-1 if batch.window_left is None else batch.window_left,
            sinks=batch.sinks,
            lse_extend=lse,
            page_size=batch.key_cache.shape[1],
        )

    def _refuse(self, batch: AttentionBatch) -> None:
        super()._refuse(batch)
        if batch.k_scale is not None or batch.v_scale is not None:
            raise NotImplementedError("scales: SGLang's new tokens have none")
        if batch.window_left == 0:
            raise NotImplementedError("window_left: SGLang's kernel reads 0 as no window")
        if batch.window_left is not None and not batch.causal:
            raise NotImplementedError("window_left: SGLang's window is symmetric unless causal")
        if batch.scale == 0:
            raise NotImplementedError("scale: SGLang's kernel reads 0 as the usual scale")
        rows = batch.query_start.diff()
        if bool((batch.seq_lens < rows).any()):
            raise NotImplementedError("seq_lens: SGLang extends by keys, one for each query")
