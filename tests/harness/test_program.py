"""Executables: found by name or variable, asked for their version, missed with a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvassay.harness.contract import CacheManager, Declaration
from kvassay.harness.program import Program
from kvassay.harness.registry import Registration, Unavailable

SERVER = Program("such-a-server", "KVASSAY_SUCH_A_SERVER")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executable of that name, which nothing finds yet."""
    monkeypatch.delenv(SERVER.variable, raising=False)
    path = tmp_path / SERVER.name
    path.write_text("#!/bin/sh\necho 'version: 77 (abc)' >&2\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def needing(program: Program, *packages: str) -> Registration:
    return Registration("mine", CacheManager, object, Declaration(), packages, program=program)


def test_it_is_found_on_the_path(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (SERVER.path, SERVER.version) == (None, "not installed")
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    assert (SERVER.path, SERVER.version) == (str(script), "77")


def test_it_is_found_where_the_variable_says(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = script.rename(tmp_path / "otherwise-named")
    monkeypatch.setenv(SERVER.variable, str(other))
    assert SERVER.path == str(other)
    monkeypatch.setenv(SERVER.variable, str(script))
    assert SERVER.path is None


@pytest.mark.parametrize("text", ["#!/bin/sh\necho nothing\n", "no program at all"])
def test_one_that_tells_no_version_has_none(
    script: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    script.write_text(text, encoding="utf-8")
    monkeypatch.setenv(SERVER.variable, str(script))
    assert SERVER.version == "unversioned"


def test_an_implementation_may_need_one_beside_its_package(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, lacking = needing(SERVER, "pytest"), needing(SERVER, "no-such-package")
    for one in (there, lacking):
        assert (one.available, one.version) == (False, "not installed")
        with pytest.raises(Unavailable, match=r"such-a-server, .* where KVASSAY_SUCH_A_SERVER"):
            one.build()
    monkeypatch.setenv(SERVER.variable, str(script))
    assert (there.available, there.version) == (True, "77")
    assert not lacking.available
    assert "no-such-package and the program such-a-server" in lacking.wanted
