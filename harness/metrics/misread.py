"""What a conviction of an instrument says: the invariant, where, expected and got."""

from __future__ import annotations

from dataclasses import dataclass

from kvassay.harness.violation import Anomaly, Violation

ANOMALIES = {
    "M1": Anomaly.FIRST_TOKEN,
    "M2": Anomaly.STAMP,
    "M3": Anomaly.NOT_ADDING_UP,
    "M4": Anomaly.OMISSION,
    "M5": Anomaly.MISREAD_HITS,
    "M6": Anomaly.FALSE_SUCCESS,
    "M7": Anomaly.MISCOUNT,
}


@dataclass
class Misread(Violation):
    """An instrument that is wrong; says in which scene."""

    scene: str = ""

    def __str__(self) -> str:
        where = self.scene + (f", request {self.index}" if self.index >= 0 else "")
        return f"{self.invariant} {self.anomaly}, {where}: expected {self.expected}; got {self.got}"


def misread(invariant: str, scene: str, expected: object, got: object, index: int = -1) -> Misread:
    """A conviction, with the anomaly of its invariant."""
    anomaly = ANOMALIES[invariant]
    return Misread(invariant, anomaly, str(expected), str(got), index, scene=scene)
