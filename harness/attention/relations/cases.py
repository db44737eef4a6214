"""Cases of a relation for a kernel: small ones, of the types and sizes that it accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

from kvassay.harness.attention.case import CacheLayout, Case
from kvassay.harness.attention.check import Cases
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.contract import Capability

HEADS = ((4, 2), (8, 2), (14, 2), (8, 1), (4, 4), (2, 2))
LAYOUTS = (CacheLayout.NHD, CacheLayout.HND)
DTYPES = ("bfloat16", "float16", "float32")
HEAD_DIMS = (64, 128, 256)
BLOCK_SIZES = (16, 32, 64, 128, 1)
"""Of everything the first that is accepted."""
USUAL_BLOCK = 16
"""Block size that recipes are written for."""
MODIFIERS: dict[str, Capability] = {
    "window_left": Capability.WINDOW,
    "softcap": Capability.SOFTCAP,
    "alibi": Capability.ALIBI,
    "sinks": Capability.SINKS,
    "k_scale": Capability.SCALES,
    "v_scale": Capability.SCALES,
    "buffers": Capability.OUTPUT,
}
"""Fields that say nothing to a kernel which does not claim what they need."""

Seqs = tuple[tuple[int, int], ...]
DECODE: Seqs = ((37, 1), (50, 1))
MIXED: Seqs = ((33, 5), (48, 1), (20, 3))


@dataclass(frozen=True)
class Recipe:
    """Sequences and fields of a case, with keys and positions for blocks of 16."""

    seqs: Seqs
    fields: dict[str, Any]
    optional: dict[str, Any]
    """Fields for kernels that claim what they need."""
    needs: frozenset[Capability] = frozenset()
    """What only kernels that claim it are asked for."""

    def case(self, kernel: Kernel, seed: int) -> Case:
        """The case as the kernel can have it."""
        plain = _plain(kernel)
        claimed = {k: v for k, v in self.optional.items() if kernel.has(MODIFIERS[k])}
        fields = {**self.fields, **claimed}
        times = -(-plain.block_size // USUAL_BLOCK)
        for name in ("window_left", "mark"):
            if fields.get(name) is not None:
                fields[name] *= times
        seqs = tuple((n * times, q * times if q == n else q) for n, q in self.seqs)
        return replace(plain, **{"seqs": seqs, "seed": seed, **fields})


def recipe(
    seqs: Seqs,
    *,
    optional: dict[str, Any] | None = None,
    needs: Iterable[Capability] = (),
    **fields: Any,
) -> Recipe:
    """A recipe with these fields of a case."""
    return Recipe(seqs, fields, optional or {}, frozenset(needs))


def recipes(*given: Recipe) -> Cases:
    """One case for each that the kernel claims, seeds drawn."""

    def cases(kernel: Kernel, rng: Random) -> Iterator[Case]:
        for each in given:
            if kernel.has(*each.needs):
                yield each.case(kernel, rng.randrange(2**31))

    return cases


def _plain(kernel: Kernel) -> Case:
    """The first case of a few keys that the kernel accepts; any if it accepts none of these."""
    causal = kernel.has(Capability.CAUSAL)
    for heads, layout, dtype, dim, size in product(HEADS, LAYOUTS, DTYPES, HEAD_DIMS, BLOCK_SIZES):
        case = Case(
            ((3, 1),),
            num_q_heads=heads[0],
            num_kv_heads=heads[1],
            head_dim=dim,
            head_dim_v=dim,
            block_size=size,
            dtype=dtype,
            cache_dtype=dtype,
            causal=causal,
            cache_layout=layout,
        )
        if kernel.accepts(case):
            return case
    return Case(((3, 1),), causal=causal)
