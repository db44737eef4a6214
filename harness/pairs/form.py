"""A shape of attention that a kernel offers: what every batch of a pair has in common.

Kernels compute some types and sizes and refuse the others. The sharpest form that is accepted is
taken: float32 where there is one, as its tolerance is the smallest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.contract import Capability

TYPES = ("float32", "bfloat16", "float16")
HEAD_DIMS = (64, 128, 256)
HEADS = ((4, 2), (8, 8))
SIZES = (4, 16, 32)
"""Block sizes with which a form is tried, until one is accepted."""
LARGE = (64, 128, 256)
"""The same where none of those is; memory grows with them, so not for every form."""


@dataclass(frozen=True)
class Form:
    """Types and sizes of a batch, whoever the requests are."""

    dtype: str
    head_dim: int
    num_q_heads: int
    num_kv_heads: int
    causal: bool
    """False for a kernel that knows no causal mask: it gets rows that need none."""
    device: str = "cpu"

    def case(self, seqs: Sequence[tuple[int, int]], block_size: int) -> Case:
        """The recipe of a batch of this form; `seqs` are pairs of keys and queries."""
        return Case(
            seqs=tuple(seqs),
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim,
            block_size=block_size,
            dtype=self.dtype,
            cache_dtype=self.dtype,
            causal=self.causal,
        )


def choose(kernel: Kernel) -> Form | None:
    """The first form that the kernel accepts at any block size."""
    tried = ((SIZES, HEADS), (LARGE, HEADS[:1]))
    return next((form for each in tried for form in _accepted(kernel, *each)), None)


def _accepted(
    kernel: Kernel, sizes: Sequence[int], heads: Sequence[tuple[int, int]]
) -> Iterator[Form]:
    causal = kernel.has(Capability.CAUSAL)
    for dtype, head_dim, (num_q_heads, num_kv_heads) in product(TYPES, HEAD_DIMS, heads):
        form = Form(dtype, head_dim, num_q_heads, num_kv_heads, causal, str(kernel.device))
        if any(accepts(kernel, form, size) for size in sizes):
            yield form


def accepts(kernel: Kernel, form: Form, block_size: int) -> bool:
    """Whether the kernel computes batches of this form over blocks of this size."""
    queries = 2 if form.causal else 1
    return kernel.accepts(form.case(((block_size + 2, queries), (1, 1)), block_size))
