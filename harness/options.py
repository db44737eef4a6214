"""Command-line options of the suites.

This is all that loads by itself in other projects that have kvassay installed, so that
``pytest --pyargs kvassay.suites --impl ...`` is understood; it changes nothing else.
"""

from __future__ import annotations

from typing import Any


def add(parser: Any) -> None:
    """Add the options once, whoever asks first."""
    if getattr(parser, "_kvassay_options", False):
        return
    parser._kvassay_options = True
    group = parser.getgroup("kvassay", "conformance of KV caches")
    group.addoption(
        "--impl",
        action="append",
        metavar="REF",
        help="implementation to assay: a name, ./file.py, package.module "
        'or exec:"command"; may be repeated '
        "(default: the built-ins)",
    )
    group.addoption(
        "--assay",
        dest="assay_mode",
        choices=("check", "search"),
        default="check",
        help="check: pinned corpus and derandomised budget; search: explore freely",
    )
    group.addoption(
        "--examples", type=int, metavar="N", help="examples per suite and implementation"
    )
    group.addoption(
        "--seconds", type=float, metavar="S", help="time per suite and implementation (search)"
    )
    group.addoption("--num-blocks", type=int, metavar="N", help="only pools of N blocks")
    group.addoption("--block-size", type=int, metavar="B", help="only blocks of B tokens")
    group.addoption(
        "--no-inspection",
        action="store_true",
        help="use no capability that only looks (counters, refcounts, peek, walk, events)",
    )
    group.addoption(
        "--strict-deviations",
        action="store_true",
        help="documented deviations that were not needed fail",
    )
    group.addoption(
        "--record",
        action="append",
        metavar="DIR",
        help="write a record of each suite and implementation into this folder; may be repeated",
    )
    group.addoption(
        "--counterexamples",
        metavar="DIR",
        default=None,
        help="where to put scenario files of failures (default: results/counterexamples)",
    )


def pytest_addoption(parser: Any) -> None:
    """Entry point of the options-only plugin."""
    add(parser)
