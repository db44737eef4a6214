"""Whether two sides can be compared at all; a gate that cannot says why and judges nothing."""

from __future__ import annotations

from collections.abc import Iterator

from kvassay.harness.environment import Environment
from kvassay.harness.gate.sides import Opened

SAME = ("system", "machine", "processor", "cores", "python")
"""Of the environment: what a time depends on beside the implementation."""
OWN = ("kvassay",)
"""Packages that may differ: they are what is compared."""


def obstacles(base: Opened, head: Opened) -> Iterator[str]:
    """Why they cannot be compared: nothing, if they can."""
    if base.subject.kind != head.subject.kind:
        yield f"kind: {base.subject.kind} and {head.subject.kind}"
    yield from different(base.environment, head.environment)


def different(base: Environment, head: Environment) -> Iterator[str]:
    """What differs between two environments, as far as times depend on it."""
    for name in SAME:
        before, after = getattr(base, name), getattr(head, name)
        if before != after:
            yield f"{name}: {before} and {after}"


def remarks(base: Opened, head: Opened) -> Iterator[str]:
    """What may be meant, and must be known beside the verdict."""
    if base.origin == head.origin:
        yield f"both sides run the same file, {base.origin}: what differs is noise"
    before, after = base.environment.packages, head.environment.packages
    for name in sorted({*before, *after} - {*OWN}):
        if before.get(name) != after.get(name):
            yield f"{name}: base has {before.get(name, 'none')}, head {after.get(name, 'none')}"
    mine, other = base.subject.declaration, head.subject.declaration
    for name in sorted({*mine, *other}):
        if mine.get(name) != other.get(name):
            told = (mine.get(name, "the default"), other.get(name, "the default"))
            yield f"declared {name}: base {told[0]}, head {told[1]}"
