"""What a check of kernels is: cases, a judgement on each, and a broken twin that it must convict.

A check passes only if it has judged cases and its *control*, a kernel made from the oracle with one
fault planted in it, was convicted on the same cases: a check that cannot see its own control on
what the kernel accepts is blind, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Wrong
from kvassay.harness.contract import Capability, Declaration, PagedAttention

Cases = Callable[[Kernel, Random], Iterable[Case]]
"""The cases of a check for a kernel, cheapest first; endless where the check explores."""
Judge = Callable[[Kernel, Case], Wrong | None]
"""What is wrong on a case, if anything; raises `Refused` or `Crash` as the kernel does."""
Control = Callable[[Declaration], PagedAttention]
"""A broken kernel with the same declaration."""


@dataclass(frozen=True)
class Check:
    """One named check."""

    name: str
    title: str
    invariants: tuple[str, ...]
    """What it vouches for; the first is the one that it usually convicts."""
    cases: Cases
    judge: Judge
    control: Control
    needs: frozenset[Capability] = field(default_factory=frozenset)
    claim: Callable[[Declaration], str | None] = lambda declaration: None
    """Why it does not apply, beyond the capabilities that it needs."""
    telling: bool = False
    """Whether each of its cases shows it if a modifier or a scale in it is forgotten."""
    only_if_refused: bool = False
    """Whether a refusal is what it looks for: its cases are judged, but nothing is computed."""

    def unclaimed(self, declaration: Declaration) -> str | None:
        """Why an implementation does not claim what this looks at; None if it does."""
        missing = sorted(c.value.upper() for c in self.needs - declaration.capabilities)
        if missing:
            return "needs " + " and ".join(missing)
        return self.claim(declaration)


CHECKS: dict[str, Check] = {}
"""All checks by name, in the order of their registration."""


def register(check: Check) -> Check:
    """Enter a check; names are unique."""
    if check.name in CHECKS:
        raise ValueError(f"a check named {check.name!r} exists already")
    CHECKS[check.name] = check
    return check


def checks_of(invariant: str) -> Iterator[Check]:
    """The checks that vouch for an invariant."""
    return (check for check in CHECKS.values() if invariant in check.invariants)
