"""A launch of a Triton kernel as data: what is given at run time, what is compiled in.

Whoever launches and whoever compiles ahead of time take it from the same function, so that what was
looked at is what runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Launch:
    """One kernel, ready to go."""

    kernel: Any
    """What `triton.jit` made."""
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    """Tensors and numbers, in the kernel's order."""
    constants: dict[str, Any]
    """Compile-time constants by name."""
    options: dict[str, int]
    """What the compiler is told besides: ``num_warps``, ``num_stages``."""

    def start(self) -> None:
        """Launch it on the current stream."""
        self.kernel[self.grid](*self.arguments, **self.constants, **self.options)
