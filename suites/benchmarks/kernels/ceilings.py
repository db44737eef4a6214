"""What the device does at best, measured in the same run: plain copies and matrix products."""

from __future__ import annotations

import torch

from kvassay.harness.roofline import Ceiling
from kvassay.harness.timing import side_by_side

SIZES = {"cuda": (2**30, 8192), "cpu": (2**24, 256)}
"""Bytes of a copy; rows, columns and depth of a product."""


def measured(device: str, dtype: torch.dtype) -> Ceiling:
    """Bandwidth of a copy, bytes read and written counted, and rate of a square product."""
    num_bytes, size = SIZES[device]
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    timed = side_by_side(
        {"copy": [lambda: target.copy_(source)], "matmul": [lambda: left @ right]},
        device,
        samples=20,
    )
    copy, product = timed["copy"].median, timed["matmul"].median
    assert copy is not None
    assert product is not None
    return Ceiling(bandwidth=2 * num_bytes / copy, matmul=2 * size**3 / product)
