"""Small files written by hand."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes lines to a file, compressed if its name says so."""

    def write(name: str, *lines: str, end: str = "\n") -> Path:
        data = end.join([*lines, ""]).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write
