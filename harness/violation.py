"""What a conviction says: the law, the anomaly by name, where, expected and got."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kvassay.harness.scenario import Step


class Anomaly(StrEnum):
    """Named ways to break an invariant."""

    ACCOUNTING = "accounting drift"
    TOO_MANY_BLOCKS = "more blocks than the pool has"
    DOUBLE_HAND_OUT = "double hand-out"
    PREMATURE_REUSE = "reuse while a sharer lives"
    PIN_IGNORED = "pinned block handed out"
    PARTIAL_PAGE = "page given back while partly covered"
    UNDUE_REFUSAL = "undue refusal"
    BROKEN_PROMISE = "broken promise of a capacity query"
    REFUSAL_DAMAGE = "refusal with side effects"
    LEAK = "leak"
    TABLE = "incoherent block table"
    FOREIGN_CHANGE = "table changed by another's operation"
    SHARER_WRITE = "write seen by a sharer"
    LOST_COPY = "lost copy"
    FOREIGN_WRITE = "foreign write"
    PHANTOM_HIT = "phantom hit"
    WRONG_KEY = "hit for another key"
    LAW = "hit law broken"
    HOLE = "hit past a hole"
    UNWRITTEN = "hit on unwritten KV"
    UNPUBLISHED = "hit on unpublished KV"
    OVERWRITTEN = "hit on overwritten KV"
    STALE_HIT = "stale hit"
    SPLIT = "prefix lost in a split"
    EVICT_AMOUNT = "wrong amount evicted"
    WRONG_VICTIM = "wrong victim"
    REMAP = "undeclared remap"
    MISSED_HIT = "missed hit"
    REFUSED_HIT = "hit on a refused insert"
    DUPLICATE_HIT = "hit on a duplicate that the caller kept"
    LOCK_IGNORED = "locked prefix evicted"
    LOCK_LOST = "lock lost"
    LOCK_LEFT = "lock not given back"
    UNREACHABLE = "storage out of reach"
    MIRROR = "mirror disagrees with look-up"
    EVENT_ORDER = "incomplete or unordered events"
    NOT_AN_ANSWER = "answer out of contract"
    FIRST_TOKEN = "wrong first token"
    STAMP = "wrong stamp"
    NOT_ADDING_UP = "latencies that do not add up"
    OMISSION = "wait left out"
    ARRIVALS = "arrivals of another process"
    MISREAD_HITS = "hits misread"
    FALSE_SUCCESS = "failure and success mixed up"
    MISCOUNT = "counter against its definition"
    MISCOMPUTED = "KV computed for another token or position"


@dataclass
class Violation(Exception):
    """An invariant is broken."""

    invariant: str
    anomaly: Anomaly
    expected: str
    got: str
    index: int = -1
    """Number of the operation in its scenario."""
    operation: Step | None = None
    tables: dict[str, list[int]] = field(default_factory=dict)
    """Block tables of the live requests at that moment."""
    place: str = ""
    """Function of the harness that found it; noted in a trial alone (`trial.without`)."""

    def __str__(self) -> str:
        where = f"operation {self.index}" + (f" ({self.operation.op})" if self.operation else "")
        return f"{self.invariant} {self.anomaly}, {where}: expected {self.expected}; got {self.got}"


@dataclass
class Crash(Exception):
    """The implementation raised something the contract does not know, or did not return."""

    what: str
    index: int = -1
    operation: Step | None = None
    tables: dict[str, list[int]] = field(default_factory=dict)
    hangs: bool = False
    """Whether it did not return: trying again would take the whole time limit again."""

    def __str__(self) -> str:
        where = f"operation {self.index}" + (f" ({self.operation.op})" if self.operation else "")
        return f"error in {where}: {self.what}"


class Hang(BaseException):
    """Raised by the alarm clock; no `except Exception` of an implementation can swallow it."""
