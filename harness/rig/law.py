"""The law of whole engines; what is claimed and reached is told by the checks themselves."""

from __future__ import annotations

from kvassay.harness.invariants import Invariant, always

SUITE = "rig"
KIND = "Rig"
"""What verdicts and records call a manager and a kernel in a rig."""
TITLES = {
    "S1": "same answer",
    "S2": "progress",
    "S3": "exhaustion is contained",
}
ENGINE_LAW: dict[str, Invariant] = {
    name: Invariant(name, title, SUITE, always, ()) for name, title in TITLES.items()
}
