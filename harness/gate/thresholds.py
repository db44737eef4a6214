"""What a change may cost, from one file in TOML (`thresholds.toml` is the default and the example).

Times have a limit, by name where a file gives one; counters are exact unless the file frees them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT = Path(__file__).with_name("thresholds.toml")
SECTIONS = {"times": {"slower", "by_name"}, "counters": {"free"}}


class BadThresholds(ValueError):
    """A file that says something else than limits; says where."""


@dataclass(frozen=True)
class Thresholds:
    """Limits of a gate."""

    slower: float
    """By how much head's time may exceed base's, as a part of it."""
    by_name: Mapping[str, float] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    """Counters that may change."""

    def of(self, name: str) -> float:
        """The limit of a time."""
        return self.by_name.get(name, self.slower)

    def unknown(self, times: set[str], counters: set[str]) -> list[str]:
        """Names that nothing has: a limit that guards nothing."""
        return sorted((set(self.by_name) - times) | (self.free - counters))


def load(path: Path = DEFAULT) -> Thresholds:
    """Read a file; `BadThresholds` for what is none."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadThresholds(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadThresholds(f"{path}: {error}") from None
    _require_known(path, content)
    times, counters = content.get("times", {}), content.get("counters", {})
    free = counters.get("free", [])
    if not isinstance(free, list) or not all(isinstance(name, str) for name in free):
        raise BadThresholds(f"{path}: counters.free: expected names, got {free!r}")
    by_name = {
        name: _limit(path, f"times.by_name.{name}", value)
        for name, value in times.get("by_name", {}).items()
    }
    slower = _limit(path, "times.slower", times.get("slower", 0.05))
    return Thresholds(slower, by_name, frozenset(free))


def _require_known(path: Path, content: Mapping[str, Any]) -> None:
    for section, entries in content.items():
        known = SECTIONS.get(section)
        if known is None or not isinstance(entries, dict):
            expected = ", ".join(f"[{name}]" for name in SECTIONS)
            raise BadThresholds(f"{path}: {section}: expected {expected}")
        for name in set(entries) - known:
            expected = ", ".join(sorted(known))
            raise BadThresholds(f"{path}: {section}.{name}: expected one of {expected}")


def _limit(path: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10:
        expected = "a part of base's time above 0, such as 0.05"
        raise BadThresholds(f"{path}: {name}: expected {expected}, got {value!r}")
    return float(value)
