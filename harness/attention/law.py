"""The law of kernels: what each invariant says in a few words, and which suite speaks of it."""

from __future__ import annotations

from kvassay.harness.invariants import LAW, Invariant, always
from kvassay.harness.load.known.law import METRIC_LAW
from kvassay.harness.load.known.law import SUITE as METRICS
from kvassay.harness.rig.law import ENGINE_LAW

SUITE = "attention"

TITLES = {
    "K1": "the oracle",
    "K2": "tail independence",
    "K3": "empty rows",
    "K4": "partition invariance",
    "K5": "causal offset",
    "K6": "window edge",
    "K7": "head mapping",
    "K8": "addressing",
    "K9": "score pipeline",
    "K10": "scales",
    "K11": "right or refused",
    "K12": "range",
    "K13": "footprint",
    "K14": "row isolation",
}

KERNEL_LAW: dict[str, Invariant] = {
    id: Invariant(id, title, SUITE, always, ()) for id, title in TITLES.items()
}
"""What is claimed and reached is told by the checks themselves."""

_OF_METRICS = {
    rule.id: Invariant(rule.id, rule.title, METRICS, always, ()) for rule in METRIC_LAW.values()
}

WHOLE_LAW: dict[str, Invariant] = {**LAW, **KERNEL_LAW, **ENGINE_LAW, **_OF_METRICS}
"""Of managers, indexes, kernels, engines and instruments, in the order of the law."""
