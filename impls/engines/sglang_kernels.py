"""The paged allocator's two Triton kernels by the engine's own plain code, before 0.5.22.

Since then SGLang itself takes ``alloc_extend_naive`` where Triton has no platform; before, its
allocator launched the kernels whatever the platform. Here a launch calls that same function. A
kernel is launched before the allocator has looked whether there are enough pages, and what it
then writes is thrown away: the plain code has no pages to write, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def stand_in(paged: Any) -> None:
    """Take the place of the kernels in the module ``mem_cache.allocator.paged``."""
    naive = paged.alloc_extend_naive

    def extend(before: Any, after: Any, last: Any, pages: Any, out: Any, _: int, size: int) -> None:
        needed = -(-after // size) - -(-before // size)
        if int(needed.sum()) <= len(pages):
            naive(before, after, last, pages, out, size, "cpu")

    def decode(after: Any, last: Any, pages: Any, out: Any, width: int, size: int) -> None:
        extend(after - 1, after, last, pages, out, width, size)

    paged.alloc_extend_kernel = _Launched(extend)
    paged.alloc_decode_kernel = _Launched(decode)


class _Launched:
    """A function that is called as a kernel is: over a grid, which it has no use for."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._function
