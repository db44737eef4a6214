"""What can be said against a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Anomaly(StrEnum):
    """Named ways in which a kernel is wrong."""

    OUTPUT = "wrong output"
    LSE = "wrong LSE"
    TAIL = "reads what it must not"
    EMPTY = "empty row not as declared"
    PARTITION = "depends on the partition"
    CAUSAL = "wrong causal offset"
    WINDOW = "wrong window edge"
    HEAD = "wrong head"
    ADDRESS = "depends on addresses"
    SCORE = "wrong score pipeline"
    SCALE = "wrong quantisation scale"
    SHAPE = "wrong shape"
    UNREFUSED = "impossible input accepted"
    RANGE = "not finite"
    FOOTPRINT = "writes what it must not"
    OUTSIDE = "access outside its tensors"
    LEAK = "rows depend on each other"
    BITS = "less deterministic than declared"


@dataclass
class Wrong(Exception):
    """An invariant of the kernel is broken."""

    invariant: str
    anomaly: Anomaly
    expected: str
    got: str
    story: tuple[str, ...] = ()
    """Lines about rows, heads and positions, and the explanation that fits best."""
    looks: str = ""
    """What it looks as if, in words, where something explains it."""

    def __str__(self) -> str:
        return f"{self.invariant} {self.anomaly}: expected {self.expected}; got {self.got}"


class Refused(Exception):
    """The kernel does not offer this, and said so."""
