"""Imports SGLang's cache code without its serving stack, GPU kernels and model configurations.

``sglang/__init__.py`` imports transformers, torchvision and the language front end, and the
packages `BARE` import every model and every kernel; none of that is needed here. They are
registered as bare packages (their submodules still come from the wheel), and three modules that
only give names to annotations as dummies. No file of the wheel is touched. Where Triton and
torchvision are not installed, dummies stand in for them during the import: neither kernels nor
pictures are needed here.
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

from kvassay.impls.engines.versions import at_least

BARE = (
    "srt.configs",
    "srt.layers.quantization",
    "srt.layers.attention",
    # 0.5.22 asks a part of it, at the first match, whether this is a GPU of AMD.
    "kernels.ops.attention.dsv4",
)
DUMMIES = ("srt.configs.model_config", "srt.configs.hybrid_arch", "srt.parser.reasoning_parser")
DUMMIES_BEFORE_0_5_21 = ("srt.server_args",)
"""Imports the front end there; later releases do not come by."""
TRITON = ("triton", "triton.language")
STAND_INS = (TRITON, ("torchvision", "torchvision.io"), ("IPython", "IPython.display"))
"""Packages, each with the part of it that is imported; the last two by releases before 0.5.21."""


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
    older = () if at_least("sglang", "0.5.21") else DUMMIES_BEFORE_0_5_21
    for name in (*DUMMIES, *older):
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
def standing_in() -> Iterator[None]:
    """Satisfy imports of what is not installed and not needed, while SGLang is imported."""
    missing = [names for names in STAND_INS if importlib.util.find_spec(names[0]) is None]
    if TRITON in missing:
        # Torch asks for Triton too, but copes without it: let it find out first.
        importlib.import_module("torch._inductor.runtime.triton_compat")
    for package, part in missing:
        top, below = _dummy(package), _dummy(part)
        top.__dict__.update({"__path__": [], "__version__": "0", part.partition(".")[2]: below})
    try:
        yield
    finally:
        for names in missing:
            for name in names:
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
