"""What a metric is: a tag, a unit, a direction, what a sample is of, what it needs, a formula.

The formula is the second paragraph of the docstring, from which the published table of definitions
is made. What was not measured is None, never 0, and says why. Samples are of the requests that are
complete: a failure is no fast success. How many requests have no sample because they failed is kept
beside the samples, so that percentiles over all requests can be told, too.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np

from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import Timeline
from kvassay.harness.record import Direction

PERCENTILES = (50, 90, 99)


class Per(StrEnum):
    """What one sample is of."""

    REQUEST = "request"
    TOKEN = "token"
    CHUNK = "chunk"
    RUN = "run"


class Need(StrEnum):
    """What must have been seen."""

    CHUNKS = "chunks with their times"
    SENT = "when requests were sent"
    TOKEN_COUNT = "number of output tokens"
    ONE_TOKEN = "one token in each chunk"
    STAGES = "stages of the time to the first token"
    CACHED = "cached tokens"
    DECLARED = "declared cached tokens"
    PREEMPTIONS = "preemptions"
    SLO = "an objective"


class Tool(StrEnum):
    """Whose names for metrics are told beside ours."""

    VLLM = "vllm bench serve"
    AIPERF = "AIPerf"
    GUIDELLM = "GuideLLM"


def names(*, vllm: str = "", aiperf: str = "", guidellm: str = "") -> Mapping[Tool, str]:
    """What a metric is called elsewhere; a tool without it is left out."""
    told = {Tool.VLLM: vllm, Tool.AIPERF: aiperf, Tool.GUIDELLM: guidellm}
    return {tool: name for tool, name in told.items() if name}


@dataclass(frozen=True)
class Measured:
    """One metric of one run."""

    tag: str
    unit: str
    direction: Direction
    per: Per
    value: float | None
    """The median of the samples, or the run's one number; None if it was not measured."""
    samples: tuple[float, ...] = ()
    lost: int = 0
    """Requests without a sample because they are not complete."""
    reason: str = ""
    """Why `value` is None."""

    def percentile(self, percent: float) -> float | None:
        """Of the samples, by linear interpolation; None without any."""
        if not self.samples:
            return None
        return float(np.percentile(self.samples, percent))

    def percentile_of_all(self, percent: float) -> float | None:
        """With each request that failed as infinitely late; None where it falls on one of these.

        For samples per request; `ValueError` for others.
        """
        if self.per is not Per.REQUEST:
            raise ValueError(f"{self.tag}: expected samples per request, got per {self.per}")
        everything = sorted(self.samples) + [float("inf")] * self.lost
        if not everything:
            return None
        place = (len(everything) - 1) * percent / 100
        return self.percentile(percent) if not self.lost else _between(everything, place)


def _between(ordered: Sequence[float], place: float) -> float | None:
    below, share = ordered[int(place)], place - int(place)
    if not share:
        return below if below < float("inf") else None
    above = ordered[int(place) + 1]
    return below + (above - below) * share if above < float("inf") else None


class Metric(ABC):
    """One quantity; a subclass says what it is and how it is computed."""

    tag: ClassVar[str]
    unit: ClassVar[str]
    direction: ClassVar[Direction] = Direction.LOWER
    per: ClassVar[Per]
    needs: ClassVar[tuple[Need, ...]] = ()
    elsewhere: ClassVar[Mapping[Tool, str]] = names()
    """What other tools call it; a tool that computes something else by that name says so here."""

    @abstractmethod
    def measure(self, run: Run) -> Measured:
        """The metric of a run."""

    @classmethod
    def title(cls) -> str:
        """The first line of the docstring, without its full stop."""
        return cls._paragraph(0).removesuffix(".")

    @classmethod
    def formula(cls) -> str:
        """The second paragraph of the docstring."""
        return cls._paragraph(1)

    @classmethod
    def _paragraph(cls, number: int) -> str:
        return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[number].split())

    def _measured(
        self, value: float | None, samples: Sequence[float] = (), lost: int = 0
    ) -> Measured:
        needed = " and ".join(need.value for need in self.needs)
        reason = f"needs {needed}" if value is None and self.needs else ""
        return Measured(
            self.tag, self.unit, self.direction, self.per, value, tuple(samples), lost, reason
        )


class OfRequest(Metric):
    """One sample per complete request that has it."""

    per = Per.REQUEST

    @abstractmethod
    def of(self, one: Timeline) -> float | None:
        """The sample of one request, whatever its ending; None where there is none."""

    def measure(self, run: Run) -> Measured:
        found = [self.of(one) for one in run.complete]
        samples = [sample for sample in found if sample is not None]
        lost = len(run.timelines) - len(run.complete)
        return self._measured(_median(samples), samples, lost)


class OfGaps(Metric):
    """Several samples per complete request."""

    @abstractmethod
    def of(self, one: Timeline) -> tuple[float, ...] | None:
        """The samples of one request, in order; None where they cannot be told."""

    def measure(self, run: Run) -> Measured:
        """None as soon as one request's cannot be told: the others are a choice, not a sample."""
        found = [self.of(one) for one in run.complete]
        told = [samples for samples in found if samples is not None]
        pooled = [sample for samples in told for sample in samples]
        if len(told) < len(found):
            return self._measured(None)
        return self._measured(_median(pooled), pooled, len(run.timelines) - len(run.complete))


class OfRun(Metric):
    """One number per run."""

    per = Per.RUN

    @abstractmethod
    def of(self, run: Run) -> float | None:
        """The number; None where it cannot be told."""

    def measure(self, run: Run) -> Measured:
        return self._measured(self.of(run))


def _median(samples: Sequence[float]) -> float | None:
    return float(np.median(samples)) if samples else None
