"""Records: what every suite writes about one run, and the frames on top.

A record is one JSON file that is written whole, validated, and never changed afterwards; the
schema is versioned and shipped in ``results/schema``. Raw samples are kept; a value that was not
measured is `None`, never 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvassay.harness.environment import Environment
from kvassay.harness.verdict import Status

if TYPE_CHECKING:
    import pandas


class BadRecord(ValueError):
    """A file that is no record of this version; says where and why."""


class Direction(StrEnum):
    """Which way a metric is better."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Subject(_Part):
    """What was run."""

    name: str
    kind: str
    version: str
    reference: str
    """What finds it again as ``--impl``."""
    declaration: dict[str, str]
    """Every declared value that differs from its default."""


class VerdictEntry(_Part):
    """The verdict on one invariant, with its evidence."""

    invariant: str
    status: Status
    reason: str = ""
    met: dict[str, int] = Field(default_factory=dict)


class Metric(_Part):
    """One measured quantity."""

    name: str
    unit: str
    direction: Direction
    value: float | None
    """The published statistic; None if it was not measured."""
    samples: list[float] = Field(default_factory=list)


class Record(_Part):
    """One suite's run on one subject."""

    schema_version: Literal[1] = 1
    id: str = Field(default_factory=lambda: uuid4().hex)
    suite: str
    subject: Subject
    environment: Environment
    options: dict[str, str] = Field(default_factory=dict)
    """What was asked for: the mode, and what narrows the run, such as a block size."""
    verdicts: list[VerdictEntry] = Field(default_factory=list)
    counters: dict[str, int] = Field(default_factory=dict)
    metrics: list[Metric] = Field(default_factory=list)
    findings: list[dict[str, Any]] = Field(default_factory=list)
    """Counterexamples: verdict, scenario in words, replay command."""


def json_schema() -> str:
    """The JSON Schema of a record, as shipped."""
    return json.dumps(Record.model_json_schema(), indent=2, sort_keys=True) + "\n"


def write(record: Record, folder: Path) -> Path:
    """Add a record to a folder: written whole, under a name of its own, never over another."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = record.environment.time.replace(":", "").replace("-", "")[:15]
    path = folder / f"{stamp}-{record.subject.name}-{record.suite}-{record.id[:8]}.json"
    with NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False, encoding="utf-8") as out:
        out.write(record.model_dump_json(indent=1) + "\n")
        out.flush()
        os.fsync(out.fileno())
    try:
        os.link(out.name, path)
    finally:
        Path(out.name).unlink()
    return path


def read(path: Path) -> Record:
    """Read and validate one record."""
    try:
        return Record.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadRecord(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "as a whole"
        raise BadRecord(f"{path}: {where}: {first['msg']}") from None


def read_all(paths: Iterable[Path]) -> list[Record]:
    """All records in files and folders, oldest first."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise BadRecord(f"{path}: no such file or folder")
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    records = [read(path) for path in files]
    return sorted(records, key=lambda record: (record.environment.time, record.id))


def frame(paths: Iterable[Path]) -> pandas.DataFrame:
    """One row per verdict and per metric, with subject, suite and environment beside it."""
    import pandas

    rows = [row for record in read_all(paths) for row in _rows(record)]
    return pandas.DataFrame(rows)


def _rows(record: Record) -> list[dict[str, Any]]:
    common = {
        "record": record.id,
        "suite": record.suite,
        "implementation": record.subject.name,
        "kind": record.subject.kind,
        "version": record.subject.version,
        "time": record.environment.time,
        "commit": record.environment.commit,
        "processor": record.environment.processor,
    }
    verdicts = [
        {**common, "what": "verdict", "name": entry.invariant, "status": entry.status.value}
        for entry in record.verdicts
    ]
    metrics = [
        {
            **common,
            "what": "metric",
            "name": metric.name,
            "value": metric.value,
            "unit": metric.unit,
            "direction": metric.direction.value,
            "samples": metric.samples,
        }
        for metric in record.metrics
    ]
    return verdicts + metrics
