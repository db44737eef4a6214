"""A counterexample of a pair: the scenario of a cache manager, and who was paired."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from kvassay.harness.scenario import Scenario, kinds, parsed, text_of, written

FORMAT = "kvassay pair scenario"


@dataclass(frozen=True)
class PairScenario(Scenario):
    """Operations on the manager; after each of them the kernel attends to all live requests."""

    manager: str = ""
    """Reference of the manager: what to pass to ``--impl``."""
    kernel: str = ""
    """Reference of the kernel."""
    format: str = FORMAT

    @classmethod
    def of(cls, scenario: Scenario, manager: str, kernel: str) -> PairScenario:
        """A manager's scenario, for a pair."""
        known = {each.name: getattr(scenario, each.name) for each in fields(Scenario)}
        return cls(**known, manager=manager, kernel=kernel)


def from_json(text: str, source: str = "scenario") -> PairScenario:
    """Parse and validate a scenario; `BadScenario` says what is wrong and where."""
    return parsed(text, source, PairScenario, kinds(), FORMAT)


def load(path: Path | str) -> PairScenario:
    """Read a scenario file."""
    return from_json(text_of(path), str(path))


def to_json(scenario: PairScenario) -> str:
    """The file form: one operation a line, defaults left out."""
    pair = {"manager": scenario.manager, "kernel": scenario.kernel}
    shape = {"num_blocks": scenario.num_blocks, "block_size": scenario.block_size}
    return written(
        scenario, {"format": scenario.format, "schema": scenario.schema}, {**pair, **shape}
    )
