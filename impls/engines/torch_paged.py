"""torch's `PagedAttention` (`torch.nn.attention.experimental`) as a manager that attends; eager.

It is a page table and a mask to read through it, and nothing more: a row per request, `reserve`
when it grows, `erase` when it leaves. What turns logical keys into physical ones is a second table,
the way back from a page to its place in a row; no kernel with a plain block table has that one, so
the class is assayed with its own `convert_logical_block_mask` and `get_score_mod` (ATTEND). Of its
code only `assign` is not called: K and V are in the harness's memory, put there through the table.

Every row of the table is a sequence of the call, whether anybody has it or not, as in torch's own
tests: where only some rows are given (``batch_idx``), the converted mask looks up the wrong ones
(https://github.com/meta-pytorch/attention-gym/issues/189). The lowest free row is taken.

`torch-paged` is the class as it is. Its `erase` leaves the way back of an erased row as it was, and
whoever has the row next sees the pages of the one before, whoever has those; see
`results/findings/torch-erase-leaves-the-way-back.md`. `torch-paged-cleared` clears it.

Not claimed, as torch has no call for it: sharing of any kind, copies, truncation, drafts. Rounding,
tails and determinism are those of the adapter `flex`, whose code around FlexAttention is used.

Importing this file does not import torch; building a manager does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    Outcome,
    OutOfBlocks,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines import flex_attention as flex

DECLARATION = Declaration(
    capabilities=frozenset(
        {Capability.ATTEND, Capability.CAUSAL, Capability.LSE, Capability.COUNTERS}
    ),
    rounding=flex.DECLARATION.rounding,
    empty_row=flex.DECLARATION.empty_row,
    tail=flex.DECLARATION.tail,
    determinism=flex.DECLARATION.determinism,
)


@implementation(
    "torch-paged",
    kind=CacheManager,
    declaration=DECLARATION,
    package=flex.PACKAGE,
    install=flex.INSTALL,
)
class TorchPages:
    """Requests in the rows of one page table."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._flex = flex.FlexPagedAttention()
        self._torch = flex.library().torch
        # Whoever is live has a page: there are never more requests than pages.
        self.pages: Any = flex.library().PagedAttention(
            num_blocks, block_size, num_blocks, device="cpu"
        )
        self._free_rows = set(range(num_blocks))
        self._rows: dict[str, int] = {}
        self._lengths: dict[str, int] = {}

    # ------------------------------------------------------------------------------- operations

    def admit(self, request: str, key: CacheKey) -> int:
        if not self._free_rows:
            raise OutOfBlocks("every row has its request, and every page")
        row = min(self._free_rows)
        self._reserve(row, len(key.tokens))
        self._free_rows.remove(row)
        self._rows[request], self._lengths[request] = row, len(key.tokens)
        return 0

    def append(self, request: str, tokens: Sequence[int]) -> None:
        length = self._lengths[request] + len(tokens)
        self._reserve(self._rows[request], length)
        self._lengths[request] = length

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        row = self._rows.pop(request)
        del self._lengths[request]
        self._erase(row)
        self._free_rows.add(row)

    def _reserve(self, row: int, length: int) -> None:
        try:
            self.pages.reserve(self._tensor([row]), self._tensor([length]))
        except AssertionError as error:
            raise OutOfBlocks(str(error)) from error

    def _erase(self, row: int) -> None:
        self.pages.erase(self._tensor([row]))

    def _tensor(self, numbers: list[int]) -> Any:
        return self._torch.tensor(numbers)

    # ------------------------------------------------------------------------------ inspection

    def block_table(self, request: str) -> Sequence[int]:
        row: list[int] = self.pages.page_table[self._rows[request]].tolist()
        return [page for page in row if page >= 0]

    def counters(self) -> Counters:
        used = int((self.pages.page_table >= 0).sum())
        return Counters(free=len(self.pages.empty_pages), cached=0, used=used)

    # -------------------------------------------------------------------------------- attention

    def attend(self, requests: Sequence[str], batch: AttentionBatch) -> AttentionResult:
        order = sorted(range(len(requests)), key=lambda index: self._rows[requests[index]])
        moved, origin = self._by_row([self._rows[each] for each in requests], order, batch)
        result = self._flex.over(self.pages, moved)
        output, lse = self._torch.empty_like(result.output), self._torch.empty_like(result.lse)
        output[origin], lse[origin] = result.output, result.lse
        return AttentionResult(output, lse)

    def _by_row(
        self, rows: list[int], order: list[int], batch: AttentionBatch
    ) -> tuple[AttentionBatch, Any]:
        """The batch with a sequence for every row, and where its queries were before."""
        starts = batch.query_start.tolist()
        origin = [row for index in order for row in range(starts[index], starts[index + 1])]
        lengths = self._torch.zeros(self.num_blocks, dtype=self._torch.int32)
        queries = self._torch.zeros(self.num_blocks, dtype=self._torch.int32)
        lengths[rows] = batch.seq_lens
        queries[rows] = batch.query_start.diff()
        start = self._torch.cat([queries.new_zeros(1), queries.cumsum(0)])
        moved = replace(
            batch,
            query=batch.query[origin],
            key_cache=batch.key_cache[: self.num_blocks],
            value_cache=batch.value_cache[: self.num_blocks],
            block_table=None,
            seq_lens=lengths,
            query_start=start,
        )
        return moved, origin


@implementation(
    "torch-paged-cleared",
    kind=CacheManager,
    declaration=DECLARATION,
    package=flex.PACKAGE,
    install=flex.INSTALL,
)
class ClearedTorchPages(TorchPages):
    """The same, with nothing left behind of who leaves."""

    def _erase(self, row: int) -> None:
        super()._erase(row)
        self.pages.physical_to_logical[row] = -1
