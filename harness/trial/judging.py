"""Which judge tries which family. Each runs what the suites run, on the same code."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from kvassay.harness.trial.found import Effort, Judged
from kvassay.harness.trial.planted import Family, Planted

Judge = Callable[[Planted, Any, Effort], Judged]
"""A fault or control, its subject, and how hard to try."""

MODULES: dict[Family, str] = {
    Family.MANAGER: "of_campaigns",
    Family.INDEX: "of_campaigns",
    Family.TORCH: "of_kernels",
    Family.TRITON: "of_kernels",
    Family.PAIR: "of_pairs",
    Family.RIG: "of_rigs",
    Family.METRICS: "of_metrics",
    Family.INSIDE: "of_inside",
}
"""Imported when they are needed: most of them need torch."""


def judge_of(family: Family) -> Judge:
    """The judge of a family."""
    judge: Judge = _module(family).judge
    return judge


def warm(families: set[Family]) -> None:
    """Import what these judges need, and have them compute what they compute but once."""
    modules = {_module(family) for family in families}
    for module in modules:
        getattr(module, "warm", lambda: None)()


def _module(family: Family) -> Any:
    return import_module(f"kvassay.harness.trial.{MODULES[family]}")
