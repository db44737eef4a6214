"""What the harness's tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvassay.harness import registry
from kvassay.harness.traces.finding import VARIABLE, NoTrace, located


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten afterwards, and its modules with it."""
    for name in registry.entry_points():
        registry.find(name)  # loaded once per process, so not for the first time in a test
    before = set(sys.modules)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    yield
    for name in set(sys.modules) - before:
        if name.startswith("kvassay_file_") or name == "own_cache":
            del sys.modules[name]


@pytest.fixture
def real() -> Callable[[str], Path]:
    """A file of the folder of traces; skips, saying which, where it is not."""

    def find(file: str) -> Path:
        try:
            return located(file)
        except NoTrace:
            pytest.skip(f"{file} is not here: {VARIABLE} names the folder of traces")

    return find
