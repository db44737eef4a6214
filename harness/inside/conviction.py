"""What a conviction from inside an engine says."""

from __future__ import annotations

from dataclasses import dataclass

from kvassay.harness.violation import Anomaly


@dataclass(frozen=True)
class Conviction:
    """A slot held other KV than the request that read it had to find there."""

    invariant: str
    anomaly: Anomaly
    request: str
    position: int
    group: int
    block: int
    slot: int
    step: int
    """Number of the forward pass, from 1."""
    expected: str
    got: str

    def __str__(self) -> str:
        where = f"pass {self.step}, layer group {self.group}, block {self.block}, slot {self.slot}"
        who = f"position {self.position} of {self.request}"
        return (
            f"{self.invariant} {self.anomaly}, {where}: expected {who} to read {self.expected}; "
            f"got {self.got}"
        )
