"""The way in which references of docstrings are looked up finds what is there, and nothing else."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

from kvassay.harness.trial import matrix

HOUSE = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("docs", HOUSE / ".ci" / "docs.py")
assert spec is not None
assert spec.loader is not None
docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs)

HERE = (
    "`Matrix`",
    "`Matrix.ended`",
    "`Matrix.left_out`",
    "`Matrix.families()`",
    "`Ended`",  # imported
    "`Planted`",  # of a module beside it
    "`OutOfBlocks`",  # of the contract
    "`ValueError`",
    "`harness.trial.matrix`",
    "`kvassay.harness.trial.matrix.Matrix`",
    "`harness/contract.py`",
    "`matrix.py`",
    "`anything_else`",
    "``Nobody``",
)
NOWHERE = (
    "`Matricks`",
    "`Matrix.edned`",
    "`Ended.nothing`",
    "`harness.trial.matrices`",
    "`harness.trial.matrix.Matricks`",
    "`harness/contrakt.py`",
    "`matrices.py`",
)


@pytest.mark.parametrize("text", HERE)
def test_what_is_there_is_found(text: str) -> None:
    assert list(docs.broken(f"See {text}.", matrix, matrix.Matrix)) == []


@pytest.mark.parametrize("text", NOWHERE)
def test_what_is_gone_is_said(text: str) -> None:
    assert list(docs.broken(f"See {text}.", matrix, matrix.Matrix)) == [text.strip("`")]


def test_docstrings_of_methods_and_properties_are_read() -> None:
    where = {place for place, _, text in docs.docstrings(matrix) if text}
    inside = {"", ".Matrix", ".Matrix.complete", ".Matrix.families"}
    assert {f"{matrix.__name__}{name}" for name in inside} <= where


def test_the_tool_is_pinned_alike_for_tox_and_for_others() -> None:
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text("utf-8"))["project"]
    (pinned,) = project["optional-dependencies"]["docs"]
    assert pinned in (HOUSE / "constraints.txt").read_text("utf-8").split()
