"""How far virtual time is from a real engine: the same traffic through both, and what differs.

What is published of virtual time carries these numbers with it (`results/virtual_error.json`). The
error of a percentile is ``virtual / real - 1``. Real runs are disturbed by whatever else the
machine does, which can only add: so of each request the fastest of all runs counts, as the fastest
of all rounds does of each step that the model was fitted to. How far single runs are from that
stands beside the error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from kvassay.harness.metrics.latency import TimePerOutputToken, TimeToFirstToken
from kvassay.harness.metrics.metric import OfRequest
from kvassay.harness.metrics.reading import cached_tokens
from kvassay.harness.metrics.timeline import Ending, Timeline

FILE = Path(__file__).parents[2] / "results" / "virtual_error.json"
METRICS: dict[str, OfRequest] = {
    metric.tag: metric for metric in (TimeToFirstToken(), TimePerOutputToken())
}
PERCENTILES = (50, 90, 99)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Compared(_Part):
    """One percentile of one metric, in seconds."""

    metric: str
    percentile: int
    virtual: float
    real: float
    """Of the fastest of all runs, request by request."""
    runs: list[float]
    """Of each run by itself."""

    @property
    def error(self) -> float:
        """Of the virtual value, as a share of the real one."""
        return self.virtual / self.real - 1

    @property
    def noise(self) -> float:
        """Largest distance of a single run from that, as a share of it."""
        return max(abs(run / self.real - 1) for run in self.runs)


class Agreement(_Part):
    """One comparison."""

    engine: str
    model: str
    trace: str
    requests: int
    rate: float
    """Requests per second."""
    hit_virtual: int
    """Tokens of all prompts."""
    hit_real: list[int]
    """By run."""
    compared: list[Compared]
    machine: dict[str, Any]
    """The fitted constants."""
    largest_miss: float
    """Of the steps that they were fitted to, as a share."""
    load: list[float]
    """The machine's load average of a minute, before each run."""
    environment: dict[str, Any]

    def of(self, metric: str, percentile: int) -> Compared:
        """One row; `KeyError` if there is none."""
        for row in self.compared:
            if (row.metric, row.percentile) == (metric, percentile):
                return row
        raise KeyError(f"{metric} p{percentile}")

    def sentence(self) -> str:
        """What stands below every table and chart of virtual time."""
        told = (
            f"p{percent} {100 * self.of('ttft', percent).error:+.0f} % (single runs: up to "
            f"{100 * self.of('ttft', percent).noise:.0f} % off)"
            for percent in (50, 99)
        )
        return (
            f"Virtual time; error of the time to the first token against {self.engine}, measured "
            f"with {self.model} on {self.trace}, {self.requests} requests, the fastest of "
            f"{len(self.hit_real)} runs each: {', '.join(told)}."
        )


NOT_COMPARED = "Virtual time; its error against a real engine has not been measured."


def sentence(file: Path = FILE) -> str:
    """That of the comparison in a file, or that there is none."""
    try:
        return Agreement.model_validate_json(file.read_bytes()).sentence()
    except (OSError, ValidationError):
        return NOT_COMPARED


def write(agreement: Agreement, file: Path = FILE) -> None:
    """Replace the file."""
    text = json.dumps(agreement.model_dump(mode="json"), indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def compare(virtual: Iterable[Timeline], runs: Sequence[Iterable[Timeline]]) -> list[Compared]:
    """Every metric and percentile; `ValueError` if any request of any of them is not complete."""
    simulated, real = _samples(virtual), [_samples(run) for run in runs]
    rows = []
    for tag, percent in product(METRICS, PERCENTILES):
        names = simulated[tag]
        fastest = [min(run[tag][name] for run in real) for name in names]
        rows.append(
            Compared(
                metric=tag,
                percentile=percent,
                virtual=float(np.percentile(list(names.values()), percent)),
                real=float(np.percentile(fastest, percent)),
                runs=[float(np.percentile(list(run[tag].values()), percent)) for run in real],
            )
        )
    return rows


def hits(timelines: Iterable[Timeline]) -> int:
    """Tokens found in the cache, of all prompts."""
    return sum(cached_tokens(one) or 0 for one in timelines)


def _samples(timelines: Iterable[Timeline]) -> dict[str, dict[str, float]]:
    """By metric and request."""
    found: dict[str, dict[str, float]] = {tag: {} for tag in METRICS}
    for one in timelines:
        if one.ending is not Ending.COMPLETE:
            raise ValueError(f"{one.request}: {one.ending.value}: {one.error}")
        for tag, metric in METRICS.items():
            value = metric.of(one)
            if value is not None:
                found[tag][one.request] = value
    return found
