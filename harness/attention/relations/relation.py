"""A relation as a check: two versions of a problem, and what must be the same of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvassay.harness.attention.case import Case
from kvassay.harness.attention.check import Cases, Check, Control, register
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.relations.agree import agree
from kvassay.harness.attention.relations.law import Arranged, Law
from kvassay.harness.attention.wrong import Wrong
from kvassay.harness.contract import Capability, Declaration

Arrange = Callable[[Kernel, Case], Arranged]
"""The versions of a case; raises `Refused` for one that the relation does not speak of."""


def relation(
    number: int,
    name: str,
    title: str,
    *,
    law: Law,
    arrange: Arrange,
    cases: Cases,
    control: Control,
    further: Iterable[str] = (),
    needs: Iterable[Capability] = (),
    claim: Callable[[Declaration], str | None] = lambda declaration: None,
) -> Check:
    """Register a relation; `number` is its row in the table, `further` what else it vouches for."""

    def judge(kernel: Kernel, case: Case) -> Wrong | None:
        return agree(kernel, law, arrange(kernel, case))

    return register(
        Check(
            name=name,
            title=f"relation {number}: {title}",
            invariants=(law.invariant, *further),
            cases=cases,
            judge=judge,
            control=control,
            needs=frozenset(needs),
            claim=claim,
        )
    )
