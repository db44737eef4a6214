"""Memory that tells when somebody wrote where nothing was to be written.

Every tensor lies in the middle of a larger piece of memory, its bands and gaps filled with a
pattern (all bits set, which is NaN in every floating-point type). Afterwards what was an input is
compared byte by byte, and of an output everything that is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

BAND = 256
"""Bytes on either side of a tensor."""
PATTERN = 0xFF

Allocate = Callable[[int], Tensor]
"""From a number of bytes to that many, as a flat uint8 tensor."""


def on(device: str) -> Allocate:
    """Plain memory of a torch device."""
    return lambda num_bytes: torch.full((num_bytes,), PATTERN, dtype=torch.uint8, device=device)


@dataclass
class Region:
    """A piece of memory with one or several tensors in it."""

    name: str
    memory: Tensor
    """Flat, uint8, with a band on either side."""
    before: Tensor | None = None
    """Its contents before the kernel ran."""


@dataclass
class Arena:
    """All memory of one case."""

    allocate: Allocate
    device: str = "cpu"
    band: int = BAND
    inputs: list[Region] = field(default_factory=list)
    outputs: list[tuple[Region, Tensor]] = field(default_factory=list)

    def tensor(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A dense input tensor."""
        return self._tensor(name, shape, dtype)[1]

    def output(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A dense tensor that a kernel may write: pass the part it is to write to `writable`."""
        region, tensor = self._tensor(name, shape, dtype)
        self.inputs.remove(region)
        self.outputs.append((region, tensor))
        return tensor

    def writable(self, whole: Tensor, part: Tensor) -> Tensor:
        """Declare the only part of an output that may be written."""
        for index, (region, tensor) in enumerate(self.outputs):
            if tensor is whole:
                self.outputs[index] = (region, part)
        return part

    def _tensor(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> tuple[Region, Tensor]:
        size = torch.empty((), dtype=dtype).element_size()
        count = 1
        for each in shape:
            count *= each
        memory = self.allocate(count * size + 2 * self.band)
        region = Region(name, memory)
        self.inputs.append(region)
        inner = memory[self.band : self.band + count * size]
        return region, inner.view(dtype).view(*shape)

    def remember(self) -> None:
        """Take the contents of the inputs, once they are filled."""
        for region in self.inputs:
            region.before = region.memory.clone()

    def damage(self) -> list[str]:
        """What was written that must not be: names of inputs and of outputs' surroundings."""
        wrong = [
            f"the input {region.name} was written"
            for region in self.inputs
            if region.before is not None and not torch.equal(region.memory, region.before)
        ]
        for region, part in self.outputs:
            if not _untouched_outside(region, part):
                wrong.append(f"memory beside the buffer {region.name} was written")
        return wrong


def _untouched_outside(region: Region, part: Tensor) -> bool:
    """Whether all bytes of a region that are not in `part` still hold the pattern."""
    size = part.element_size()
    inside = torch.zeros(region.memory.numel(), dtype=torch.bool, device=region.memory.device)
    offset = part.data_ptr() - region.memory.data_ptr() if part.numel() else 0
    strides = [stride * size for stride in part.stride()]
    shape = [*part.shape, size]
    if part.numel():
        inside.as_strided(shape, [*strides, 1], offset).fill_(True)
    return bool((region.memory[~inside] == PATTERN).all())
