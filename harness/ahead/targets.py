"""The GPUs that are compiled for, and what a block may use on each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One architecture. Limits are those of one block (work group), as the makers publish them."""

    name: str
    backend: str
    """Triton's name: ``cuda`` or ``hip``."""
    arch: int | str
    """Triton's name for the architecture."""
    warp: int
    shared_memory: int
    """Bytes, with what has to be asked for."""
    thread_registers: int
    registers: int
    """Of all threads that must be resident together; on AMD of the lanes of one SIMD."""
    threads: int
    large_product: str
    """Family of instructions that multiply large tiles."""
    small_products: tuple[str, ...]
    """Families that are as good for a handful of rows."""

    def held(self, registers: int, threads: int) -> int:
        """Registers that a block takes: allocated by eights, on AMD over its four SIMDs."""
        rounded = -(-registers // 8) * 8
        if self.backend == "hip":
            return rounded * max(1, threads // self.warp // 4)
        return rounded * threads


def _nvidia(capability: int, shared_kib: int, large: str) -> Target:
    return Target(
        name=f"sm_{capability}",
        backend="cuda",
        arch=capability,
        warp=32,
        shared_memory=shared_kib * 1024,
        thread_registers=255,
        registers=65536,
        threads=1024,
        large_product=large,
        small_products=tuple(dict.fromkeys((large, "HMMA"))),
    )


TARGETS = {
    target.name: target
    for target in (
        _nvidia(80, 163, "HMMA"),
        _nvidia(90, 227, "HGMMA"),
        _nvidia(100, 227, "tcgen05"),
        Target(
            name="gfx942",
            backend="hip",
            arch="gfx942",
            warp=64,
            shared_memory=64 * 1024,
            thread_registers=512,
            registers=512,
            threads=1024,
            large_product="MFMA",
            small_products=("MFMA",),
        ),
    )
}
