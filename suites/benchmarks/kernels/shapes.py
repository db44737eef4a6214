"""The batches that are timed: decode, prefill, mixed, speculative verify.

Sizes of Llama-3-8B (32 query heads, 8 KV heads, 128 numbers each, bfloat16) unless the name says
otherwise. `TINY` has one of each kind, small enough for Triton's interpreter.
"""

from __future__ import annotations

from kvassay.harness.roofline import Shape

MOST_KEYS = 2**20
"""Keys of a batch, all sequences together: 4 GiB of cache."""


def decode(batch: int, keys: int, **sizes: int) -> Shape:
    """One row for each of `batch` sequences."""
    return Shape(f"decode {batch} x {_short(keys)}", ((keys, 1),) * batch, **sizes)


def prefill(keys: int, batch: int = 1) -> Shape:
    """Whole prompts."""
    return Shape(f"prefill {batch} x {_short(keys)}", ((keys, keys),) * batch)


def _short(keys: int) -> str:
    return f"{keys // 1024}k" if keys % 1024 == 0 else str(keys)


DECODE = tuple(
    decode(batch, keys)
    for keys in (1024, 4096, 16384, 131072)
    for batch in (1, 16, 64, 256)
    if batch * keys <= MOST_KEYS
)
PREFILL = (prefill(1024), prefill(4096), prefill(16384))
CHUNK = Shape("chunk of 2k on 30k", ((32768, 2048),))
MIXED = Shape("mixed: prefill 2k, 63 decode x 4k", ((2048, 2048), *((4096, 1),) * 63))
VERIFY = Shape("verify 5 tokens, 32 x 4k", ((4096, 5),) * 32)
WINDOW = Shape("decode 64 x 4k, window 128", ((4096, 1),) * 64, window_left=127)
OTHER_HEADS = Shape("decode 64 x 4k, heads 28/4", ((4096, 1),) * 64, num_q_heads=28, num_kv_heads=4)
FULL = (*DECODE, *PREFILL, CHUNK, MIXED, VERIFY, WINDOW, OTHER_HEADS)
TUNED = (decode(1, 4096), decode(16, 4096), decode(64, 4096), decode(256, 4096))
"""On which variants of a kernel are compared."""

_SMALL = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "head_dim_v": 64}
TINY = (
    decode(2, 96, **_SMALL),
    Shape("prefill 1 x 40", ((40, 40),), **_SMALL),
    Shape("mixed: prefill 20, decode x 70", ((20, 20), (70, 1)), **_SMALL),
    Shape("verify 5 tokens, 1 x 64", ((64, 5),), **_SMALL),
)
