"""Triton kernels out of an installed wheel, each from its own source file and from nothing else.

The package around a kernel is not imported: it would take seconds, and on a machine without a GPU
it puts dummies where its kernels are. What a file imports from its package is given to it under the
names that it asks for, either another such file or a stand-in, for as long as the file is executed;
then all modules are as they were. So an engine that is loaded as a whole, in the same process,
neither sees this nor is seen. No file of the wheel is changed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

PRIVATE = "kvassay_wheel."
"""What the names of the executed files begin with."""
CALL_LIMIT = 300.0
"""Seconds that one call of a kernel may take, as it is interpreted."""


def root_of(package: str) -> Path:
    """Where a package is installed; raises `ModuleNotFoundError`.

    On the path, not among the modules: what stands for it there may lie nowhere.
    """
    spec = PathFinder.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(spec.origin).parent


def load(
    root: Path, files: Mapping[str, str], stand_ins: Mapping[str, Mapping[str, Any]]
) -> dict[str, ModuleType]:
    """Execute files below `root`, in the order given; returns their modules, by name.

    `files` gives the path of each by its module's name in the package, `stand_ins` what is to be
    found in every other module of the package that is asked for.
    """
    loaded: dict[str, ModuleType] = {}
    names = _Names()
    try:
        for name, contents in stand_ins.items():
            names.give(name, _package(name, contents))
        for name, path in files.items():
            loaded[name] = _execute(PRIVATE + name, root / path)
            names.give(name, loaded[name])
    finally:
        names.take_back()
    return loaded


def _package(name: str, contents: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(contents, __path__=[])
    return module


class _Names:
    """Modules that are found by import for a while, in packages of their own."""

    def __init__(self) -> None:
        self._before: dict[str, ModuleType | None] = {}

    def give(self, name: str, module: ModuleType) -> None:
        self._before.setdefault(name, sys.modules.get(name))
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if not parent:
            return
        if parent not in self._before:
            self.give(parent, _package(parent, {}))
        setattr(sys.modules[parent], child, module)

    def take_back(self) -> None:
        for name, module in self._before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def _execute(name: str, path: Path) -> ModuleType:
    """The module of a file. It stays known by its private name: Triton reads its source there."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module at {path}", name=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
