"""Imports SGLang's cache code without its serving stack, GPU kernels and model configurations.

``sglang/__init__.py`` imports transformers, torchvision and the language front end, and three
packages below it import every model and every kernel; none of that is needed here. They are
registered as bare packages (their submodules still come from the wheel), and three modules that
only give names to annotations as dummies. No file of the wheel is touched. Without Triton, a
dummy stands in for it during the import: its kernels are never called on a CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from types import ModuleType
from typing import Any

BARE = ("srt.configs", "srt.layers.quantization", "srt.layers.attention")
DUMMIES = ("srt.configs.model_config", "srt.configs.hybrid_arch", "srt.parser.reasoning_parser")
TRITON = ("triton", "triton.language")


def install() -> None:
    """Make ``sglang.srt.mem_cache`` and what it needs importable."""
    if "sglang" in sys.modules:
        return
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'sglang'", name="sglang")
    root = os.path.dirname(spec.origin)
    _bare("sglang", root)
    sys.modules["sglang"].__dict__["__version__"] = version("sglang")
    for name in BARE:
        _bare(f"sglang.{name}", os.path.join(root, *name.split(".")))
    for name in DUMMIES:
        _dummy(f"sglang.{name}")


def publish(namespaces: dict[str, dict[str, Any]]) -> None:
    """Publish the server arguments that the request path reads, if no server has published any."""
    context = importlib.import_module("sglang.srt.runtime_context")
    if context.get_context()._config_bags is not None:
        return
    bags = {}
    for name, values in namespaces.items():
        bags[name] = context._ConfigBag(name)
        for leaf, value in values.items():
            bags[name]._set(leaf, value)
    context.get_context()._config_bags = bags


@contextmanager
def without_triton() -> Iterator[None]:
    """Satisfy ``import triton`` while SGLang is imported, where Triton is not installed."""
    if importlib.util.find_spec("triton") is not None:
        yield
        return
    # Torch asks for Triton too, but copes without it: let it find out first.
    importlib.import_module("torch._inductor.runtime.triton_compat")
    triton, language = (_dummy(name) for name in TRITON)
    triton.__dict__.update(__path__=[], __version__="0", language=language)
    try:
        yield
    finally:
        for name in TRITON:
            del sys.modules[name]


def _bare(name: str, path: str) -> None:
    module = ModuleType(name)
    module.__path__ = [path]
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__spec__.submodule_search_locations = [path]
    sys.modules[name] = module


class _Placeholder:
    """Any name of a dummy module: a class to annotate with, or a decorator that does nothing."""

    def __new__(cls, function: Any = None, **options: Any) -> Any:
        return function if function is not None else lambda decorated: decorated


class _Dummy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        placeholder = type(name, (_Placeholder,), {})
        setattr(self, name, placeholder)
        return placeholder


def _dummy(name: str) -> ModuleType:
    module = _Dummy(name)
    module.__spec__ = ModuleSpec(name, None)
    sys.modules[name] = module
    return module
