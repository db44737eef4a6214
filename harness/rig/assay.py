"""An assay of a pair in a rig: each check runs when its test asks, and tells its verdict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kvassay.harness.circumstances import Checked, CircumstanceAssay
from kvassay.harness.circumstances import Subject as Whose
from kvassay.harness.registry import Registration
from kvassay.harness.rig.checking import Met, Subject
from kvassay.harness.rig.conformance import Check
from kvassay.harness.rig.law import KIND, SUITE
from kvassay.harness.showing import declared_values


@contextmanager
def _one_thread() -> Iterator[None]:
    """Of a model as small as here, every further thread only waits, and keeps others waiting."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class RigAssay(CircumstanceAssay[Met]):
    """What the tests of one pair ask."""

    def __init__(self, manager: Registration, kernel: Registration, subject: Subject) -> None:
        whose = Whose(
            f"{manager.name}+{kernel.name}",
            " + ".join(dict.fromkeys((manager.version, kernel.version))),
            f"{manager.reference} --impl {kernel.reference}",
            _declared(manager=manager, kernel=kernel),
        )
        super().__init__(whose, KIND, SUITE, answer=Met.ANSWER, operation=Met.STEP)
        self._subject = subject

    def require(self, check: Check) -> None:
        """Pass, or end the test with what the check says."""
        self.ask(lambda: self._checked(check))

    def _checked(self, check: Check) -> Checked[Met]:
        with _one_thread():
            return check(self._subject)


def _declared(**halves: Registration) -> dict[str, str]:
    """What both halves declare beyond the defaults, capabilities apart."""
    return {
        f"{half} {name}": value
        for half, registration in halves.items()
        for name, value in declared_values(registration.declaration).items()
        if name != "capabilities"
    }
