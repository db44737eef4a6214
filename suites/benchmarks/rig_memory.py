"""Temporary tensors stay in the process, instead of being got from the system again and again.

glibc hands large blocks back as soon as they are freed; the next one then costs a page fault for
every 4 KiB that is touched, which takes as long as what a step computes. Whether that happens
depends on sizes and on what was freed before: the same step took 31 or 58 ms by what ran next to
it. With memory kept, the cost of a step follows from what it computes.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""What glibc accepts on 64-bit machines."""
NEVER = 2**31 - 1


def keep_memory() -> bool:
    """For the rest of this process; False where the C library has no such setting."""
    name = ctypes.util.find_library("c")
    library = ctypes.CDLL(name) if name else None
    if not hasattr(library, "mallopt"):
        return False
    settings = ((MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD), (TRIM_THRESHOLD, NEVER))
    return all(library.mallopt(which, value) for which, value in settings)  # type: ignore[union-attr]


@contextmanager
def children_keep_memory() -> Iterator[None]:
    """The same for processes that are started in the block, by the environment that glibc reads."""
    settings = {
        "MALLOC_MMAP_THRESHOLD_": str(LARGEST_MMAP_THRESHOLD),
        "MALLOC_TRIM_THRESHOLD_": str(NEVER),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
