"""Known and documented deviations, kept by the implementer in one TOML file.

The file lies beside the implementation's source and is called ``<name>.deviations.toml``::

    [[deviation]]
    invariant = "P9"
    scope = "wrong amount evicted"
    reason = "evict() works on whole segments"
    link = "https://example.org/issues/1"

`scope` is the name of the anomaly; a deviation covers nothing else. An entry that was not
needed is stale: it is reported, and fails the run under ``--strict-deviations``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvassay.harness.attention.wrong import Anomaly as KernelAnomaly
from kvassay.harness.attention.wrong import Wrong
from kvassay.harness.contract import ContractError
from kvassay.harness.registry import Registration
from kvassay.harness.violation import Anomaly, Crash, Violation

FIELDS = ("invariant", "scope", "reason", "link")


@dataclass(frozen=True)
class Deviation:
    """One entry of the file."""

    invariant: str
    scope: str
    reason: str
    link: str

    def covers(self, verdict: Violation | Wrong | Crash) -> bool:
        """Whether this is the deviation that was documented."""
        return (
            not isinstance(verdict, Crash)
            and verdict.invariant == self.invariant
            and verdict.anomaly == self.scope
        )


def deviations_of(registration: Registration) -> list[Deviation]:
    """The deviations documented beside an implementation; none if there is no file.

    Raises `ContractError` for a file that cannot be understood.
    """
    if registration.origin is None:
        return []
    path = registration.origin.parent / f"{registration.name}.deviations.toml"
    return read(path) if path.is_file() else []


def read(path: Path) -> list[Deviation]:
    """The entries of one file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ContractError(f"{path.name}: not TOML: {error}") from None
    entries = data.get("deviation", [])
    if set(data) - {"deviation"} or not isinstance(entries, list):
        raise ContractError(f"{path.name}: expected only [[deviation]], got {sorted(data)}")
    return [_entry(path.name, number, raw) for number, raw in enumerate(entries)]


def _entry(name: str, number: int, raw: dict[str, Any]) -> Deviation:
    from kvassay.harness.attention.law import WHOLE_LAW

    where = f"{name}: deviation {number}"
    if set(raw) != set(FIELDS) or not all(isinstance(raw[key], str) for key in FIELDS):
        raise ContractError(f"{where}: expected the texts {', '.join(FIELDS)}, got {sorted(raw)}")
    if raw["invariant"] not in WHOLE_LAW:
        raise ContractError(f"{where}: unknown invariant {raw['invariant']!r}")
    anomalies = [*Anomaly, *KernelAnomaly]
    if raw["scope"] not in [anomaly.value for anomaly in anomalies]:
        known = ", ".join(anomaly.value for anomaly in anomalies)
        raise ContractError(f"{where}: unknown scope {raw['scope']!r}; expected one of {known}")
    if not raw["link"].startswith(("http://", "https://")):
        raise ContractError(f"{where}: expected a public link, got {raw['link']!r}")
    return Deviation(**raw)
