"""What the device has met: a pass in which nothing could go wrong is no evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from kvassay.harness.inside.batch import LayerGroup


class Met(StrEnum):
    """Events, counted."""

    PASS = "forward pass"
    WRITTEN = "slot written"
    READ = "slot read and verified"
    HIT = "slot read that the request has not written itself"
    CHUNKED = "pass that left a prompt unfinished"
    PREEMPTED = "request admitted again after it lost its blocks"
    RECYCLED = "full block overwritten with other KV"
    MOVED = "request in another row than before"
    ABORTED = "request aborted"
    SALTED = "request with a salt"
    IN_FLIGHT = "token computed before its caller had it"
    PASSED = "slot not read because the window has passed it"
    NULL = "null block in a table, behind the window"
    LATE = "slot written for a request that had left"


DEMANDED = frozenset(
    {Met.READ, Met.HIT, Met.CHUNKED, Met.PREEMPTED, Met.RECYCLED, Met.MOVED, Met.ABORTED}
)
"""Without these, nothing was under pressure."""
OF_WINDOWS = frozenset({Met.PASSED, Met.NULL})
"""Demanded as well where a group has a window."""


def never_met(met: Counter[Met], groups: Iterable[LayerGroup]) -> list[Met]:
    """What was demanded and did not happen, in the order of `Met`."""
    windowed = any(group.window is not None for group in groups)
    demanded = DEMANDED | OF_WINDOWS if windowed else DEMANDED
    return [one for one in Met if one in demanded and not met[one]]
