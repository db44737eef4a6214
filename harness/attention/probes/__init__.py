"""Checks with exact answers: what they look for is there or not, whatever a kernel rounds."""

from kvassay.harness.attention.probes import (
    addressing,
    dont_care,
    empty_rows,
    footprint,
    guard_pages,
    halves,
    head_map,
    magnitude,
    needle,
    row_isolation,
    tomography,
)

__all__ = [
    "addressing",
    "dont_care",
    "empty_rows",
    "footprint",
    "guard_pages",
    "halves",
    "head_map",
    "magnitude",
    "needle",
    "row_isolation",
    "tomography",
]
