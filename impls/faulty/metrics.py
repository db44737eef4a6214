"""Planted faults of an instrument: each is the correct one with one part corrupted.

A fault lists the invariants by which it may be convicted; anything else is a kill for the wrong
reason. `metrics_controls` holds what must not be convicted.
"""

from __future__ import annotations

from kvassay.impls.faulty import metrics_clients, metrics_numbers
from kvassay.impls.faulty.metrics_planting import FAULTS

__all__ = ["FAULTS", "metrics_clients", "metrics_numbers"]
