"""Triton's interpreter made exact: over all codes of bfloat16 and the 8-bit types.

Kernels run in a process of their own: the interpreter has to be chosen before Triton defines them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kvassay.harness.interpreter import NARROW, patterns_of, values_of

KERNELS = Path(__file__).with_name("interpreted_kernels.py")
EIGHT_BIT = [name for name, dtype in NARROW.items() if dtype.itemsize == 1]
ALL_16 = np.arange(2**16, dtype=np.uint16)
ALL_8 = np.arange(2**8, dtype=np.uint8)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def test_all_codes_of_bfloat16_survive() -> None:
    numbers = values_of(ALL_16, "bf16")
    assert same(numbers, torch.from_numpy(ALL_16).view(torch.bfloat16).float().numpy())
    back = patterns_of(numbers, "bf16")
    assert np.array_equal(back[~np.isnan(numbers)], ALL_16[~np.isnan(numbers)])
    assert np.isnan(values_of(back[np.isnan(numbers)], "bf16")).all()


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_all_codes_of_8_bit_types_survive(name: str) -> None:
    numbers = values_of(ALL_8, name)
    finite = np.isfinite(numbers)
    assert np.array_equal(patterns_of(numbers, name)[finite], ALL_8[finite])
    assert np.isnan(values_of(patterns_of(np.array([np.nan]), name), name)).all()


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_8_bit_types_saturate(name: str) -> None:
    largest = torch.finfo(NARROW[name]).max
    far = np.array([1e9, -1e9, np.inf, largest * 1.2], dtype=np.float32)
    assert same(values_of(patterns_of(far, name), name), np.array([1, -1, 1, 1]) * largest)


@pytest.mark.parametrize("name", list(NARROW))
def test_rounding_is_to_the_nearest_even_or_toward_zero(name: str) -> None:
    codes = ALL_16 if NARROW[name].itemsize == 2 else ALL_8
    numbers = np.unique(values_of(codes, name))
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)].astype(np.float64)
    low, high = numbers[:-1], numbers[1:]
    middle = ((low + high) / 2).astype(np.float32)
    nearest = values_of(patterns_of(middle, name), name)
    even = np.where(patterns_of(low.astype(np.float32), name) % 2 == 0, low, high)
    exact = middle.astype(np.float64) == (low + high) / 2
    assert np.array_equal(nearest[exact], even[exact])
    past = np.nextafter(middle, np.float32(np.inf))
    assert np.array_equal(values_of(patterns_of(past, name), name), high)
    assert np.array_equal(values_of(patterns_of(past, name, toward_zero=True), name), low)
    assert np.array_equal(values_of(patterns_of(-past, name, toward_zero=True), name), -low)


def run(faithful: bool, *arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run(
        [sys.executable, str(KERNELS), "faithful" if faithful else "as-it-is", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_kernels_compute_what_torch_computes() -> None:
    done = run(True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong" not in done.stdout
    assert done.stdout.count("right") >= 20


def test_as_it_is_the_interpreter_gets_them_wrong() -> None:
    """If this fails, the interpreter has been mended upstream, and the change is not needed."""
    assert run(False).stdout.count("wrong") >= 3


def test_an_unknown_version_is_refused() -> None:
    done = run(True, "9.9.9")
    assert "UnknownInterpreter: Triton 9.9.9: its interpreter was not tried" in done.stderr


def in_python(code: str, interpret: str | None) -> subprocess.CompletedProcess[str]:
    """A new process, with the switch as it is or as given."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    if interpret is not None:
        environment["TRITON_INTERPRET"] = interpret
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


ASK = "from kvassay.harness.interpreter import use_interpreter; print(use_interpreter())"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to run kernels")
def test_where_there_is_no_gpu_kernels_are_interpreted() -> None:
    pytest.importorskip("triton")
    assert in_python(ASK, None).stdout == "True\n"


def test_an_interpreter_that_comes_too_late_is_refused() -> None:
    pytest.importorskip("triton")
    late = "import triton, os; os.environ['TRITON_INTERPRET'] = '1'; " + ASK
    done = in_python(late, None)
    assert "InterpreterTooLate: Triton was imported without its interpreter" in done.stderr
    assert in_python("import triton; " + ASK, "1").stdout == "True\n"
