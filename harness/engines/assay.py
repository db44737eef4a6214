"""An assay of an engine: each check runs when its test asks, and tells its verdict."""

from __future__ import annotations

from kvassay.harness.circumstances import CircumstanceAssay, Subject
from kvassay.harness.engines.checks import Check, Met
from kvassay.harness.engines.subject import EngineSubject
from kvassay.harness.showing import declared_values

KIND = "Engine"
SUITE = "engines"


class EngineAssay(CircumstanceAssay[Met]):
    """What the tests of one engine ask."""

    def __init__(self, subject: EngineSubject) -> None:
        entry = subject.registration
        declared = declared_values(entry.declaration)
        whose = Subject(entry.name, entry.version, entry.reference, declared)
        super().__init__(whose, KIND, SUITE, answer=Met.ANSWER, operation=Met.TOKEN)
        self._subject = subject

    def require(self, check: Check) -> None:
        """Pass, or end the test with what the check says."""
        self.ask(lambda: check(self._subject))

    def close(self) -> None:
        """Let go of the engines."""
        self._subject.drop()
