"""From what a suite's run reported to its record."""

from __future__ import annotations

from typing import Any

from kvassay.harness.environment import capture
from kvassay.harness.record import Direction, Metric, Record, Subject, VerdictEntry
from kvassay.harness.registry import Registration
from kvassay.harness.showing import declared_values


def subject_of(registration: Registration) -> Subject:
    """A registered implementation as what was run."""
    return Subject(
        name=registration.name,
        kind=registration.kind.__name__,
        version=registration.version,
        reference=registration.reference,
        declaration=declared_values(registration.declaration),
    )


def record_of(run: dict[str, Any], verdicts: list[dict[str, Any]]) -> Record:
    """The record of one suite and implementation; the environment is that of this moment."""
    seconds = run["seconds"]
    speed = run["operations"] / seconds if seconds else None
    return Record(
        suite=run["suite"],
        subject=Subject(
            name=run["implementation"],
            kind=run["kind"],
            version=run["version"],
            reference=run["reference"],
            declaration=run["declared"],
        ),
        environment=capture(run["seed"]),
        options=run.get("options", {}),
        verdicts=[
            VerdictEntry(**{name: entry[name] for name in VerdictEntry.model_fields})
            for entry in verdicts
        ],
        counters={
            "examples": run["examples"],
            "operations": run["operations"],
            **{f"effect: {name}": count for name, count in run["effects"].items()},
            **{f"met: {name}": count for name, count in run["met"].items() if count},
        },
        metrics=[
            Metric(name="campaign", unit="s", direction=Direction.LOWER, value=seconds),
            Metric(
                name="checked operations",
                unit="1/s",
                direction=Direction.HIGHER,
                value=speed,
            ),
        ],
        findings=run["findings"],
    )
