"""Small kernels on narrow types beside what torch computes; run by `test_interpreter`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from kvassay.harness.interpreter import make_faithful

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@triton.jit
def combine(out, a, b, N: tl.constexpr, OPERATION: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(a + at)
    y = tl.load(b + at)
    if OPERATION == "add":
        z = x + y
    elif OPERATION == "sub":
        z = x - y
    elif OPERATION == "mul":
        z = x * y
    elif OPERATION == "less":
        z = (x < y).to(tl.float32)
    elif OPERATION == "maximum":
        z = tl.maximum(x, y)
    elif OPERATION == "where":
        z = tl.where(x > 0, x, y)
    elif OPERATION == "negate":
        z = -x
    elif OPERATION == "abs":
        z = tl.abs(x)
    else:
        z = x
    tl.store(out + at, z.to(out.dtype.element_ty))


@triton.jit
def reduce(out, a, M: tl.constexpr, N: tl.constexpr, OPERATION: tl.constexpr):
    rows = tl.arange(0, M)
    x = tl.load(a + rows[:, None] * N + tl.arange(0, N)[None, :])
    z = tl.max(x, 1) if OPERATION == "max" else tl.sum(x, 1)
    tl.store(out + rows, z.to(out.dtype.element_ty))


@triton.jit
def product(out, a, b, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + i[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + j[None, :])
    tl.store(out + i[:, None] * N + j[None, :], tl.dot(x, y))


def all_codes(dtype: torch.dtype) -> Tensor:
    bits = 8 * dtype.itemsize
    integers = torch.int16 if bits == 16 else torch.int8
    return torch.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)).to(integers).view(dtype)


def tell(name: str, got: Tensor, expected: Tensor) -> None:
    got, expected = got.double(), expected.double()
    same = torch.equal(got.nan_to_num(7e77), expected.nan_to_num(7e77))
    same = same and torch.equal(got.isnan(), expected.isnan())
    print(f"{'right' if same else 'wrong'}: {name}")


def elementwise() -> None:
    binary: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "less": lambda x, y: (x < y).float(),
        "where": lambda x, y: torch.where(x > 0, x, y),
        "negate": lambda x, y: -x,
        "abs": lambda x, y: x.abs(),
    }
    x = all_codes(torch.bfloat16)
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    for name, operation in binary.items():
        out = torch.empty_like(x) if name != "less" else torch.empty(len(x))
        combine[(1,)](out, x, y, N=len(x), OPERATION=name)
        tell(f"bfloat16 {name}", out, operation(x, y))
    numbers = ~(x.isnan() | y.isnan())
    out = torch.empty_like(x)
    combine[(1,)](out, x, y, N=len(x), OPERATION="maximum")
    tell("bfloat16 maximum", out[numbers], torch.maximum(x, y)[numbers])


def conversions() -> None:
    for dtype in (torch.bfloat16, *FP8):
        codes = all_codes(dtype)
        for target in (torch.float32, torch.float16, torch.bfloat16):
            out = torch.empty(len(codes), dtype=target)
            combine[(1,)](out, codes, codes, N=len(codes), OPERATION="copy")
            tell(f"{dtype} to {target}", out, codes.float().to(target))
    numbers = torch.randn(2**14, generator=torch.Generator().manual_seed(1)) * 3
    for dtype in (torch.bfloat16, torch.float16, *FP8):
        out = torch.empty(len(numbers), dtype=dtype)
        combine[(1,)](out, numbers, numbers, N=len(numbers), OPERATION="copy")
        tell(f"float32 to {dtype}", out, numbers.to(dtype))


def reductions() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(16, 64, generator=generator).bfloat16()
    out = torch.empty(16, dtype=torch.bfloat16)
    reduce[(1,)](out, x, M=16, N=64, OPERATION="max")
    tell("bfloat16 max", out, x.amax(1))
    whole = torch.randint(-3, 4, (16, 64), generator=generator).bfloat16()
    reduce[(1,)](out, whole, M=16, N=64, OPERATION="sum")
    tell("bfloat16 sum", out, whole.float().sum(1).bfloat16())


def products() -> None:
    generator = torch.Generator().manual_seed(3)
    for dtype in (torch.bfloat16, torch.float16, *FP8):
        a = torch.randint(-4, 5, (16, 32), generator=generator).float().to(dtype)
        b = torch.randint(-4, 5, (32, 16), generator=generator).float().to(dtype)
        out = torch.empty(16, 16)
        product[(1,)](out, a, b, M=16, N=16, K=32)
        tell(f"{dtype} dot", out, a.float() @ b.float())


if __name__ == "__main__":
    if len(sys.argv) > 2:
        triton.__version__ = sys.argv[2]
    if sys.argv[1] == "faithful":
        make_faithful()
        make_faithful()
    with np.errstate(all="ignore"):
        elementwise()
        conversions()
        reductions()
        products()
