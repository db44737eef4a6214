"""The API's pages, from docstrings, with warnings as errors: `tox run -e docs`.

pdoc renders a name in backticks as a link where it finds it, and as mere code where it does not. So
that a name which is gone is seen, every word in backticks that reads as a reference (a class, a
dotted name of this project, a Python file) must be something that is there.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

HOUSE = Path(__file__).parents[1]
SHOWN = (
    *("contract", "registry", "scenario", "invariants", "verdict", "record", "environment"),
    *("plugin", "options", "device", "checker", "budget", "gate", "metrics", "workloads", "traces"),
)
"""Of the harness: what others write against, or read."""
LEFT = ("kvassay.harness.metrics.misread",)
"""Inherits fields whose types are names of another module, which pdoc does not find."""
CHECKED = ("kvassay.harness", "kvassay.reference")
"""Packages all of whose docstrings are checked for references that lead nowhere."""
ROOMS = ("harness", "reference", "impls", "suites", "results", "kvassay")
ELSEWHERE = {"AttentionInterface", "KVCacheManager", "Request", "SimpleRadixCache"}
"""Classes of transformers and of the classroom exercise."""
NAME = re.compile(r"(?<!`)`([A-Za-z_][\w./]*)(?:\(\))?`(?!`)")
CLASS = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")


def broken(text: str, module: ModuleType, scope: object) -> Iterator[str]:
    """References of a docstring that lead nowhere."""
    for name in NAME.findall(text):
        first = name.split(".")[0]
        if name.endswith((".py", ".toml", ".json", ".md")):
            folders = (HOUSE, Path(module.__file__ or "").parent)
            if not any((folder / name).exists() for folder in folders):
                yield name
        elif "/" in name:
            continue
        elif first in ROOMS and "." in name:
            path = name if first == "kvassay" else f"kvassay.{name}"
            if not imported(path):
                yield name
        elif CLASS.fullmatch(first) and not found(name, module, scope):
            yield name


def imported(path: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return reached(thing, parts[count:])
    return False


def reached(thing: object, parts: list[str]) -> bool:
    """Whether attributes, or annotated fields, lead on to the end."""
    for part in parts:
        if not hasattr(thing, part):
            return part in getattr(thing, "__annotations__", {})
        thing = getattr(thing, part)
    return True


def found(name: str, module: ModuleType, scope: object) -> bool:
    """Whether a name is known where it stands, beside it, or in the contract that all speak of."""
    first, *rest = name.split(".")
    if first in ELSEWHERE:
        return True
    package = module.__name__.rpartition(".")[0]
    beside = (
        each for path, each in list(sys.modules.items()) if path.rpartition(".")[0] == package
    )
    contract = importlib.import_module("kvassay.harness.contract")
    return any(
        hasattr(place, first) and reached(getattr(place, first), rest)
        for place in (scope, module, contract, builtins, *beside)
    )


def docstrings(module: ModuleType) -> Iterator[tuple[str, object, str]]:
    """Those of a module and of what it defines: where, in what, and the text."""
    yield module.__name__, module, inspect.getdoc(module) or ""
    for name, thing in vars(module).items():
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        yield f"{module.__name__}.{name}", thing, thing.__doc__ or ""
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                text = getattr(value, "__doc__", None)
                if inspect.isroutine(value) or isinstance(value, property):
                    yield f"{module.__name__}.{name}.{member}", thing, text or ""


def modules(package: str) -> Iterator[ModuleType]:
    """All of a package; those that are there for a process of their own are not run."""
    root = importlib.import_module(package)
    yield root
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def main() -> int:
    """Write the pages; 1 for a reference that leads nowhere."""
    warnings.simplefilter("error")
    import pdoc

    out = Path(sys.argv[1] if len(sys.argv) > 1 else "build/docs")
    shown = [f"kvassay.harness.{name}" for name in SHOWN] + ["kvassay.reference"]
    pdoc.render.configure(docformat="markdown", show_source=False)
    pdoc.pdoc(*shown, *(f"!{name}" for name in LEFT), output_directory=out)
    every = [module for package in CHECKED for module in modules(package)]
    told = [
        f"{where}: `{lost}` is nowhere"
        for module in every
        for where, scope, text in docstrings(module)
        for lost in broken(text, module, scope)
    ]
    print("\n".join(told) or f"{out}/index.html")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
