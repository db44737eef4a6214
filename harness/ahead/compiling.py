"""Compiling a launch for a GPU that is not here.

The signature, the constants and what a launch is specialised on (pointers that 16 divides, numbers
that 16 divides or that are 1) come from Triton's own binder, given the arguments of the launch:
they are what a real launch would compile for. Tensors may be on torch's device ``meta``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvassay.harness.ahead.targets import Target

SWITCH = "TRITON_INTERPRET"


class Launch(Protocol):
    """What an implementation launches."""

    @property
    def kernel(self) -> Any: ...
    @property
    def arguments(self) -> Sequence[Any]: ...
    @property
    def constants(self) -> Mapping[str, Any]: ...
    @property
    def options(self) -> Mapping[str, int]: ...


class Interpreted(RuntimeError):
    """Triton was imported as an interpreter, which compiles nothing."""


@dataclass(frozen=True)
class Binary:
    """What came out of the compiler."""

    kernel: str
    assembly: Mapping[str, Any]
    """By stage: ``cubin``, or ``amdgcn``."""
    shared: int
    """Bytes of shared memory that the launch asks for."""
    tensor_memory: int
    """Columns of tensor memory."""
    warps: int
    seconds: float


def use_compiler() -> None:
    """Have Triton compile in this process. Raises `Interpreted` where it is too late for that."""
    if "triton" in sys.modules and os.environ.get(SWITCH, "0") != "0":
        raise Interpreted(f"Triton is the interpreter here; set {SWITCH}=0 before Python starts")
    os.environ[SWITCH] = "0"


def compile_launch(launch: Launch, target: Target) -> Binary:
    """The binary of a launch. Raises what the compiler raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    if not isinstance(launch.kernel, triton.JITFunction):
        raise Interpreted(f"expected a kernel to compile, got {type(launch.kernel).__name__}")
    began = time.monotonic()
    gpu = GPUTarget(target.backend, target.arch, target.warp)
    backend = make_backend(gpu)
    kernel = launch.kernel
    given = {**launch.constants, **launch.options}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialisation, _ = bind(*launch.arguments, **given)
    options, signature, constants, attributes = kernel._pack_args(
        backend, given, bound, specialisation, None
    )
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=gpu, options=options.__dict__)
    meta = compiled.metadata
    return Binary(
        kernel=kernel.__name__,
        assembly=compiled.asm,
        shared=meta.shared,
        tensor_memory=getattr(meta, "tmem_size", 0) or 0,
        warps=meta.num_warps,
        seconds=time.monotonic() - began,
    )
