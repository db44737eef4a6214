"""Makes Triton's interpreter exact for bfloat16 and 8-bit floating point.

The interpreter (Triton 3.6 and 3.7) holds these types as bit patterns in integer arrays, and then
computes on the patterns, truncates when it narrows, and reads the NaN of an 8-bit type as a number.
Here every operation on such a type is done in float32 on the values that the patterns stand for,
and its result is rounded to nearest even (or toward zero where that is asked for), as on a GPU:
8-bit types saturate, NaN stays NaN. Matrix products of float16 are computed in float32, which is
exact for each product and what tensor cores do.

Only versions that have been tried are changed; for others `make_faithful` refuses.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

SWITCH = "TRITON_INTERPRET"
"""The variable of the environment by which Triton is told to interpret."""
KNOWN = ("3.6.", "3.7.")
"""Versions of Triton whose interpreter this was tried on."""
NARROW = {
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
"""The types that the interpreter holds as patterns, by Triton's names."""
PATTERNS = {1: torch.uint8, 2: torch.uint16}

Array = npt.NDArray[Any]


class UnknownInterpreter(RuntimeError):
    """A version of Triton whose interpreter has not been tried."""


def values_of(patterns: Array, name: str) -> Array:
    """The float32 numbers that patterns of a narrow type stand for."""
    dtype = NARROW[name]
    codes = torch.from_numpy(np.ascontiguousarray(patterns)).view(PATTERNS[dtype.itemsize])
    return codes.view(dtype).float().numpy().reshape(patterns.shape)


def patterns_of(values: Array, name: str, *, toward_zero: bool = False) -> Array:
    """Numbers rounded to a narrow type; 8-bit types saturate."""
    dtype = NARROW[name]
    numbers = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        numbers = numbers.clamp(-largest, largest)
    rounded = numbers.to(dtype)
    codes = rounded.view(PATTERNS[dtype.itemsize]).numpy().copy()
    if toward_zero:
        # Patterns are sign and magnitude: one less is the next number toward zero.
        too_far = rounded.float().abs() > numbers.abs()
        codes[too_far.numpy()] -= 1
    return codes.reshape(np.shape(values))


class InterpreterTooLate(RuntimeError):
    """Triton was imported for a GPU before anybody asked for the interpreter."""


def use_interpreter() -> bool:
    """Where there is no GPU, have Triton interpret its kernels on the CPU, exactly.

    Says whether it does. To be called before any kernel is defined: Triton decides when it is
    imported. Raises `InterpreterTooLate` if it has been imported otherwise, and
    `UnknownInterpreter` for a version that was not tried.
    """
    if torch.cuda.is_available() and os.environ.get(SWITCH, "0") == "0":
        return False
    if "triton" in sys.modules and not _interprets():
        raise InterpreterTooLate(
            f"Triton was imported without its interpreter; set {SWITCH}=1 before Python starts"
        )
    os.environ[SWITCH] = "1"
    importlib.import_module("triton")
    make_faithful()
    return True


def _interprets() -> bool:
    """Whether the Triton that is loaded was imported as an interpreter."""
    import triton.language as tl

    return not isinstance(tl.sum, sys.modules["triton"].JITFunction)


def make_faithful() -> None:
    """Change the interpreter in this process, once. Without Triton loaded there is nothing to do.

    Raises `UnknownInterpreter` for a version that was not tried.
    """
    if "triton" not in sys.modules:
        return
    import triton
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if getattr(builder, "kvassay_faithful", False):
        return
    if not triton.__version__.startswith(KNOWN):
        raise UnknownInterpreter(
            f"Triton {triton.__version__}: its interpreter was not tried; expected one of "
            + ", ".join(f"{known}x" for known in KNOWN)
        )
    _Faithful(interpreter).install()
    builder.kvassay_faithful = True


class _Faithful:
    """The operations to be replaced, around those of the interpreter module."""

    def __init__(self, interpreter: Any) -> None:
        import triton.language as tl

        self.interpreter = interpreter
        self.tl = tl
        self.handle = interpreter.TensorHandle

    def install(self) -> None:
        builder = self.interpreter.InterpreterBuilder
        builder.binary_op = self._binary(builder.binary_op)
        builder.unary_op = self._unary(builder.unary_op)
        builder.ternary_op = self._ternary(builder.ternary_op)
        builder.create_fma = self._fma(builder.create_fma)
        builder.cast_impl = self._cast(builder.cast_impl)
        builder.create_fp_to_fp = self._fp_to_fp()
        builder.create_dot = self._dot()
        for operation in (self.interpreter.ReduceOps, self.interpreter.ScanOps):
            operation.apply_impl = self._reduction(operation.apply_impl)
        self._prepare_once()

    def _prepare_once(self) -> None:
        """Once per launch and module, and not at every call of a function within a kernel.

        The interpreter replaces the whole language by its own whenever a kernel calls a function,
        which takes longer than most of them.
        """
        executor, function = self.interpreter.GridExecutor, self.interpreter.InterpretedFunction
        launch, prepared = executor.__call__, set[int]()

        def start(executor: Any, *arguments: Any, **options: Any) -> Any:
            prepared.clear()
            return launch(executor, *arguments, **options)

        def call(function: Any, *arguments: Any, **options: Any) -> Any:
            module = id(function.fn.__globals__)
            if module not in prepared:
                self.interpreter._patch_lang(function.fn)
                prepared.add(module)
            return function.rewrite()(*arguments, **options)

        executor.__call__, function.__call__ = start, call

    # ------------------------------------------------------------------------------- handles

    def _narrow(self, *handles: Any) -> bool:
        return any(handle.dtype.scalar.name in NARROW for handle in handles)

    def _wide(self, handle: Any) -> Any:
        """The same numbers in float32, if they are narrow."""
        name = handle.dtype.scalar.name
        if name not in NARROW:
            return handle
        return self.handle(values_of(handle.data, name), self.tl.float32)

    def _as(self, handle: Any, dtype: Any) -> Any:
        """Numbers rounded to a type."""
        name = dtype.scalar.name
        if name not in NARROW:
            return handle
        return self.handle(patterns_of(handle.data, name), dtype.scalar)

    # ---------------------------------------------------------------------------- operations

    def _binary(self, original: Callable[..., Any]) -> Callable[..., Any]:
        on_bits = {np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift}
        compares = {
            np.less,
            np.less_equal,
            np.greater,
            np.greater_equal,
            np.equal,
            np.not_equal,
        }

        def binary_op(builder: Any, left: Any, right: Any, operation: Any) -> Any:
            if operation in on_bits or not self._narrow(left, right):
                return original(builder, left, right, operation)
            result = original(builder, self._wide(left), self._wide(right), operation)
            return result if operation in compares else self._as(result, left.dtype)

        return binary_op

    def _unary(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unary_op(builder: Any, argument: Any, operation: Any) -> Any:
            if not self._narrow(argument):
                return original(builder, argument, operation)
            return self._as(original(builder, self._wide(argument), operation), argument.dtype)

        return unary_op

    def _ternary(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def ternary_op(builder: Any, one: Any, two: Any, three: Any, operation: Any) -> Any:
            if operation is np.where or not self._narrow(one, two, three):
                return original(builder, one, two, three, operation)
            wide = (self._wide(one), self._wide(two), self._wide(three))
            return self._as(original(builder, *wide, operation), three.dtype)

        return ternary_op

    def _fma(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
            if not self._narrow(x, y, z):
                return original(builder, x, y, z)
            wide = original(builder, self._wide(x), self._wide(y), self._wide(z))
            return self._as(wide, z.dtype)

        return create_fma

    def _cast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def cast_impl(builder: Any, source: Any, dtype: Any) -> Any:
            name = dtype.scalar.name
            if not self._narrow(source) and name not in NARROW:
                return original(builder, source, dtype)
            wide = self._wide(source)
            if name in NARROW:
                return self._as(self.handle(wide.data.astype(np.float32), self.tl.float32), dtype)
            return original(builder, wide, dtype)

        return cast_impl

    def _fp_to_fp(self) -> Callable[..., Any]:
        toward_zero = self.interpreter._ir.ROUNDING_MODE.RTZ

        def create_fp_to_fp(builder: Any, source: Any, dtype: Any, rounding: Any) -> Any:
            name, data = dtype.scalar.name, self._wide(source).data
            zero = rounding is not None and rounding == toward_zero
            if name in NARROW:
                return self.handle(patterns_of(data, name, toward_zero=zero), dtype.scalar)
            target = self.interpreter._get_np_dtype(dtype)
            with np.errstate(over="ignore"):
                cast = data.astype(target)
            if zero:
                too_far = np.abs(cast.astype(data.dtype)) > np.abs(data)
                cast[too_far] = np.nextafter(cast[too_far], np.zeros((), dtype=target))
            return self.handle(cast, dtype.scalar)

        return create_fp_to_fp

    def _dot(self) -> Callable[..., Any]:
        def create_dot(builder: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
            left, right = self._wide(a).data, self._wide(b).data
            if left.dtype == np.float16:
                left, right = left.astype(np.float32), right.astype(np.float32)
            product = np.matmul(left, right, dtype=d.data.dtype)
            return self.handle(product + d.data, d.dtype.scalar)

        return create_dot

    def _reduction(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Reductions and scans in float32, their results in the type that they were asked for."""

        def apply_impl(operation: Any, argument: Any) -> Any:
            given = argument if isinstance(argument, tuple) else (argument,)
            types = [tensor.dtype.scalar for tensor in given]
            if not any(dtype.name in NARROW for dtype in types):
                return original(operation, argument)
            wide = tuple(self._widened(operation, tensor) for tensor in given)
            result = original(operation, wide if isinstance(argument, tuple) else wide[0])
            if not isinstance(result, tuple | list):
                return self._narrowed(operation, result, types[0])
            narrowed = [
                self._narrowed(operation, tensor, dtype)
                for tensor, dtype in zip(result, (*types, None), strict=False)
            ]
            return type(result)(narrowed)

        return apply_impl

    def _widened(self, operation: Any, tensor: Any) -> Any:
        name = tensor.dtype.scalar.name
        if name not in NARROW:
            return tensor
        return operation.to_tensor(values_of(tensor.handle.data, name), self.tl.float32)

    def _narrowed(self, operation: Any, tensor: Any, dtype: Any) -> Any:
        """Back in the type of the argument; indices of an argmin stay whole numbers."""
        if dtype is None or dtype.name not in NARROW or not tensor.dtype.scalar.is_floating():
            return tensor
        return operation.to_tensor(patterns_of(tensor.handle.data, dtype.name), dtype)
