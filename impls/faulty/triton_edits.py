"""The built-in Triton kernel with one edit: in its kernels, its plan or its launch.

An edit is a replacement of text that occurs exactly once. What is edited is loaded as modules of
their own; building it needs Triton, in its interpreter or on a GPU.
"""

from __future__ import annotations

import atexit
import inspect
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from kvassay.impls.faulty.edits import replaced_once
from kvassay.impls.interpreted import usual_tuning

KERNELS = "kvassay.impls.triton_kernels"
PLAN = "kvassay.impls.triton_plan"
LAUNCH = "kvassay.impls.triton_attention"


@dataclass(frozen=True)
class TritonFault:
    """One edit."""

    name: str
    accepted: frozenset[str]
    """Ids of the invariants that may convict it."""
    check: str
    """Name of the check that convicts it."""
    module: str
    old: str
    new: str

    def build(self) -> Any:
        """The kernel with the edit in it."""
        tuning = usual_tuning()
        return self._launch().TritonAttention(tuning)

    def _launch(self) -> ModuleType:
        """The module that launches, with the edit in it or in a module that it uses."""
        if self.module == LAUNCH:
            return self._edited()
        launch = loaded(LAUNCH, inspect.getsource(import_module(LAUNCH)))
        if self.module == KERNELS:
            vars(launch)["kernels"] = self._edited()
        else:
            vars(launch)["plan"] = self._edited().plan
        return launch

    def _edited(self) -> ModuleType:
        source = inspect.getsource(import_module(self.module))
        edited = replaced_once(source, self.old, self.new, where=self.module)
        return loaded(self.module, edited)


def loaded(name: str, source: str) -> ModuleType:
    """A source as a module of its own. It lies in a file, as Triton reads the source of kernels."""
    path = Path(tempfile.mkdtemp(dir=_folder())) / f"{name.rpartition('.')[2]}.py"
    path.write_text(source, encoding="utf-8")
    # Data classes look themselves up by the name of their module.
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="kvassay-faults-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
