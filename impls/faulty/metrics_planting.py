"""How a fault of an instrument is entered: the correct one with one part replaced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.metrics.catalogue import METRICS
from kvassay.harness.metrics.metric import Metric


@dataclass(frozen=True)
class MetricFault:
    """One planted fault."""

    name: str
    accepted: frozenset[str]
    """Ids of the invariants that may convict it."""
    hides: str
    """What keeps it out of sight, and what brings it out."""
    instrument: Instrument


FAULTS: dict[str, MetricFault] = {}


def fault(name: str, accepted: str, hides: str, **parts: Any) -> None:
    """Enter the correct instrument with these parts replaced into `FAULTS`."""
    instrument = replace(Instrument(), name=f"metric-fault-{name}", **parts)
    FAULTS[name] = MetricFault(name, frozenset(accepted.split()), hides, instrument)


def metric(name: str, accepted: str, hides: str, *wrong: Metric) -> None:
    """The same for metrics: those of the same tags are replaced."""
    fault(name, accepted, hides, metrics={**METRICS, **{one.tag: one for one in wrong}})
