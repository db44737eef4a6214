"""vLLM's Triton kernel that joins two partial results: `merge_attn_states`, in the interpreter.

This kernel sees results, not caches. So every sequence is cut where the blocks end that lie wholly
before its queries (as for a prefix that requests have in common); kvassay's kernel in PyTorch
attends to both parts, and vLLM's joins them. What is wrong here is wrong in the joining.

* Both parts are stored in the query's type: rounding=P+part.
* The kernel in PyTorch reads what it must and nothing else: tail=any.
* The cut follows from a sequence's own length and queries: determinism=batch.
* Where neither part has a key, the output is 0 and the LSE -inf.

The first part knows nothing of the positions of its queries: a window or ALiBi is refused. A sink
belongs to the second part. Rows after the last that has a first part are copied by the kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Determinism,
    PagedAttention,
    Rounding,
    Tail,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.vllm_triton import INSTALL, PACKAGE, engine
from kvassay.impls.engines.wheel_kernels import CALL_LIMIT


@implementation(
    "vllm-triton-merge",
    kind=PagedAttention,
    package=PACKAGE,
    install=INSTALL,
    declaration=Declaration(
        capabilities=frozenset(
            {
                Capability.CAUSAL,
                Capability.SOFTCAP,
                Capability.SINKS,
                Capability.SCALES,
                Capability.LSE,
                Capability.OUTPUT,
            }
        ),
        rounding=Rounding.P_PART,
        tail=Tail.ANY,
        determinism=Determinism.BATCH,
    ),
)
class VllmMergedAttention:
    """Two calls of the kernel in PyTorch and one of vLLM's per batch."""

    device = "cpu"

    def __init__(self, engine_of: Callable[[], SimpleNamespace] = engine) -> None:
        from kvassay.impls.torch_attention import TorchAttention

        self._vllm = engine_of()
        self._attention = TorchAttention()
        self.time_limit = CALL_LIMIT
        self.paths = Counter({"joined": 0, "copied": 0})

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        _refuse(batch)
        rows = batch.query_start.diff()
        size = batch.key_cache.shape[1]
        blocks = (batch.seq_lens - rows).clamp_min(0) // size
        first = self._attention(_before(batch, blocks))
        second = self._attention(_after(batch, blocks))
        output = (
            self._vllm.torch.empty_like(second.output) if batch.output is None else batch.output
        )
        lse = self._vllm.torch.empty_like(second.lse) if batch.lse is None else batch.lse
        if batch.query.shape[0]:
            self._join(first, second, output, lse, _last_with(blocks * rows, batch))
        return AttentionResult(output, lse)

    def _join(
        self, first: AttentionResult, second: AttentionResult, output: Any, lse: Any, rows: int
    ) -> None:
        """The first `rows` rows are joined, the others copied."""
        self.paths["joined"] += rows > 0
        self.paths["copied"] += rows < output.shape[0]
        self._vllm.merge.merge_attn_states(
            output, first.output, first.lse.T, second.output, second.lse.T, lse.T, rows
        )


def _last_with(blocks: Any, batch: AttentionBatch) -> int:
    """The row after the last of a sequence with blocks in its first part."""
    having = blocks.nonzero().flatten()
    return int(batch.query_start[having[-1] + 1]) if len(having) else 0


def _before(batch: AttentionBatch, blocks: Any) -> AttentionBatch:
    """The leading blocks of each sequence, which all of its queries see."""
    keys = (blocks * batch.key_cache.shape[1]).to(batch.seq_lens.dtype)
    return replace(batch, seq_lens=keys, causal=False, sinks=None, output=None, lse=None)


def _after(batch: AttentionBatch, blocks: Any) -> AttentionBatch:
    """The keys behind those blocks."""
    columns = blocks[:, None] + blocks.new_tensor(range(batch.block_table.shape[1]))
    last = max(batch.block_table.shape[1] - 1, 0)
    table = batch.block_table.gather(1, columns.clamp_max(last).long())
    keys = batch.seq_lens - (blocks * batch.key_cache.shape[1]).to(batch.seq_lens.dtype)
    return replace(batch, block_table=table, seq_lens=keys, output=None, lse=None)


def _refuse(batch: AttentionBatch) -> None:
    """Raise `NotImplementedError` for what two parts cannot say or the kernel cannot write."""
    for name in ("window_left", "alibi_slopes"):
        if getattr(batch, name) is not None:
            raise NotImplementedError(f"{name}: the first part knows no positions of queries")
    output = batch.output
    if output is not None and (
        output.stride(2) != 1 or output.stride(0) != output.shape[1] * output.stride(1)
    ):
        raise NotImplementedError(
            "output: vLLM's merge kernel writes rows without gaps between them"
        )
