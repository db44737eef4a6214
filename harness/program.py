"""An executable that an implementation drives: somebody has built it, and nothing installs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache

_VERSION = re.compile(r"version:? *(\S+)")
_PATIENCE = 30.0
"""Seconds for it to tell its version."""


@dataclass(frozen=True)
class Program:
    """One executable, by its name on the path, or where an environment variable says."""

    name: str
    variable: str

    @property
    def path(self) -> str | None:
        """Where it is; None if it is nowhere."""
        return shutil.which(os.environ.get(self.variable) or self.name)

    @property
    def version(self) -> str:
        """What it says of itself with ``--version``; `unversioned` if that is no version."""
        path = self.path
        return "not installed" if path is None else _version_of(path)

    @property
    def wanted(self) -> str:
        """What is missing, for a message."""
        return f"the program {self.name}, on the path or where {self.variable} says"


@lru_cache(maxsize=8)
def _version_of(path: str) -> str:
    try:
        told = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_PATIENCE, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unversioned"
    found = _VERSION.search(told.stdout + told.stderr)
    return "unversioned" if found is None else found[1]
