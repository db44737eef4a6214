"""An assay: one suite's campaign against one implementation, and what its tests read off it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from kvassay.harness.campaign import (
    ANY_SHAPE,
    CHECK,
    ERROR,
    SEARCH,
    Budget,
    Campaign,
    Finding,
    Geometry,
    load_known,
)
from kvassay.harness.contract import CacheManager, ContractError
from kvassay.harness.deviations import Deviation, deviations_of
from kvassay.harness.drawing import operation as drawn_operation
from kvassay.harness.explain import Told
from kvassay.harness.health import Health
from kvassay.harness.invariants import of_suite
from kvassay.harness.registry import Registration, Unavailable
from kvassay.harness.scenario import BadScenario, Script
from kvassay.harness.session import without_inspection
from kvassay.harness.showing import declared_values
from kvassay.harness.subjects import subject_of
from kvassay.harness.verdict import Status, Verdict, judge


class AssayError(Exception):
    """The implementation cannot be assayed at all; says why."""


@dataclass(frozen=True)
class Plan:
    """What the command line asks for."""

    budget: Budget = CHECK
    examples: int | None = None
    """What was asked for, if anything."""
    seconds: float | None = None
    geometry: Geometry = ANY_SHAPE
    inspection: bool = True
    strict_deviations: bool = False
    counterexamples: Path = Path("results/counterexamples")

    @classmethod
    def from_options(cls, config: pytest.Config) -> Plan:
        """Read the options, with their defaults by mode."""
        option = config.getoption
        for name in ("examples", "seconds", "num_blocks", "block_size"):
            value = option(name)
            if value is not None and value <= 0:
                flag = name.replace("_", "-")
                raise pytest.UsageError(f"--{flag}: expected a number above 0, got {value}")
        base = SEARCH if option("assay_mode") == "search" else CHECK
        budget = Budget(
            examples=option("examples") or base.examples,
            derandomized=base.derandomized,
            seconds=option("seconds") or base.seconds,
        )
        return cls(
            budget=budget,
            examples=option("examples"),
            seconds=option("seconds"),
            geometry=Geometry(option("num_blocks"), option("block_size")),
            inspection=not option("no_inspection"),
            strict_deviations=option("strict_deviations"),
            counterexamples=Path(option("counterexamples") or "results/counterexamples"),
        )

    @property
    def asked(self) -> dict[str, str]:
        """The mode, and what narrows the run, for its record."""
        shape = self.geometry
        narrowed = {
            "num_blocks": shape.num_blocks,
            "block_size": shape.block_size,
            "inspection": None if self.inspection else "none",
        }
        mode = "check" if self.budget.derandomized else "search"
        return {"assay": mode} | {k: str(v) for k, v in narrowed.items() if v is not None}


class Assay:
    """Runs the campaign when built; the tests of the suite then ask for verdicts."""

    def __init__(self, registration: Registration, suite: str, plan: Plan) -> None:
        try:
            self.subject = subject_of(registration.kind)
        except ContractError as error:
            raise AssayError(f"{registration.name}: {error}") from error
        if not plan.inspection:
            registration = _blinded(registration)
        self.registration = registration
        self.suite = suite
        self.plan = plan
        self._news: list[dict[str, Any]] = []
        try:
            self.deviations = deviations_of(registration)
            campaign = Campaign(registration, suite, plan.budget, plan.geometry, self._known())
            self.outcome = campaign.run()
        except (Unavailable, ContractError, BadScenario) as error:
            raise AssayError(str(error)) from error
        self._save()
        self._tell_run()

    def _known(self) -> list[Script]:
        """The pinned corpus, and the counterexamples that were found before."""
        subject, folder = self.subject, self.plan.counterexamples
        pinned = [corpus_folder(subject.corpus)] if subject.corpus else []
        known = load_known(pinned, load=subject.load)
        for invariant in (*subject.law, ERROR):
            known += load_known([folder], self._file_name(invariant), subject.load)
        return known

    # ---------------------------------------------------------------------------------- verdicts

    def require(self, invariant: str) -> None:
        """Pass, or end the test with what the campaign says about the invariant."""
        verdict = self._judge(invariant)
        self._tell(verdict)
        self._end(verdict)

    def _tell(self, verdict: Verdict) -> None:
        kind = self.registration.kind.__name__
        self._news.append({"verdict": verdict.as_dict(), "kind": kind, "suite": self.suite})

    def _judge(self, invariant: str) -> Verdict:
        declaration = self.registration.declaration
        law = self.subject.law
        return judge(
            self.registration.name, declaration, law[invariant], self.outcome, self.deviations
        )

    def _own(self) -> set[str]:
        """The invariants that this suite speaks of."""
        return {entry.id for entry in of_suite(self.suite, self.subject.law)}

    def require_nothing_else(self) -> None:
        """No invariant of another suite was broken on the way, and nothing crashed."""
        law, own = self.subject.law, self._own()
        others = [f for name, f in self.outcome.findings.items() if name in law and name not in own]
        undocumented = []
        for finding in others:
            verdict = self._judge(finding.invariant)
            self._tell(verdict)
            if verdict.status is Status.FAIL:
                undocumented.append(f"{finding.verdict}\nreplay: {self._replay(finding)}")
        if ERROR in self.outcome.findings:
            pytest.fail(self._report(self.outcome.findings[ERROR]), pytrace=False)
        if undocumented:
            pytest.fail("on the way: " + "\n".join(undocumented), pytrace=False)

    def require_no_stale_deviation(self) -> None:
        """Under ``--strict-deviations``, every documented deviation was seen."""
        stale = [f"{entry.invariant} ({entry.scope}): {entry.reason}" for entry in self._stale()]
        if stale and self.plan.strict_deviations:
            pytest.fail("documented but not seen: " + "; ".join(stale), pytrace=False)

    def _stale(self) -> list[Deviation]:
        seen = [finding.verdict for finding in self.outcome.findings.values()]
        own = self._own()
        return [
            entry
            for entry in self.deviations
            if entry.invariant in own and not any(entry.covers(verdict) for verdict in seen)
        ]

    def require_health(self) -> None:
        """The generator reached what it is there to reach (a broken implementation ends early)."""
        health = Health.of(self.outcome, self.registration.declaration, self.subject.floors)
        if self.outcome.num_operations == 0 and not self.outcome.findings:
            shapes = len(self.outcome.refused_geometries)
            told = f"the factory refused all {shapes} shapes, the last with: {self.outcome.refusal}"
            pytest.fail(f"nothing ran: {told}", pytrace=False)
        below = health.below_floors(self.plan.geometry == ANY_SHAPE)
        if below and not self.outcome.findings:
            pytest.fail("the run is below its floors: " + "; ".join(below), pytrace=False)

    def _end(self, verdict: Verdict) -> None:
        if verdict.status in (Status.FAIL, Status.ERROR):
            findings = self.outcome.findings
            finding = findings.get(verdict.invariant) or findings[ERROR]
            pytest.fail(self._report(finding), pytrace=False)
        if verdict.status is Status.DEVIATION:
            pytest.xfail(f"deviation: {verdict.reason}")
        if verdict.status in (Status.NOT_CLAIMED, Status.NOT_REACHED):
            pytest.skip(f"{verdict.status}: {verdict.reason}")

    # ------------------------------------------------------------------------------------- reports

    def _report(self, finding: Finding) -> str:
        law = self.subject.law
        title = law[finding.invariant].title if finding.invariant in law else "crash or hang"
        scenario = finding.scenario
        story = "\n".join(self._story(finding))
        return (
            f"{finding.invariant} {title}: {finding.verdict}\n\n{story}\n\n"
            f"{finding.how}, {scenario.num_counted} operations (commits not counted)\n"
            f"scenario: {self._path(finding)}\n"
            f"replay:   {self._replay(finding)}"
        )

    def _story(self, finding: Finding) -> list[str]:
        """The scenario step by step, with block tables drawn."""
        return list(self.subject.explain(self.registration, finding.scenario, Told()))

    def _path(self, finding: Finding) -> Path:
        return self.plan.counterexamples / self._file_name(finding.invariant)

    def _file_name(self, invariant: str) -> str:
        """Of a counterexample; kinds may share a name, so all but the managers' tell theirs."""
        name, kind = self.registration.name, self.registration.kind
        of_kind = "" if kind is CacheManager else f"-{kind.__name__}"
        return f"{name}{of_kind}-{invariant}.json"

    def _replay(self, finding: Finding) -> str:
        blind = "" if finding.inspected and self.plan.inspection else " --no-inspection"
        reference = self.registration.reference
        return f"kvassay replay {self._path(finding)} --impl {reference}{blind}"

    def _save(self) -> None:
        for finding in self.outcome.findings.values():
            write_whole(self._path(finding), self.subject.to_json(finding.scenario))

    def _tell_run(self) -> None:
        """What the summary prints about the run as a whole."""
        outcome, declaration = self.outcome, self.registration.declaration
        self._news.append(
            {
                "run": {
                    "implementation": self.registration.name,
                    "kind": self.registration.kind.__name__,
                    "version": self.registration.version,
                    "reference": self.registration.reference,
                    "suite": self.suite,
                    "seed": "derandomized" if self.plan.budget.derandomized else "random",
                    "options": self.plan.asked,
                    "examples": outcome.examples,
                    "operations": outcome.num_operations,
                    "seconds": outcome.seconds,
                    "effects": {effect.value: n for effect, n in outcome.effects.items()},
                    "met": {seen.value: n for seen, n in outcome.met.items()},
                    "declared": declared_values(declaration),
                    "stale_declarations": self.subject.stale(declaration, outcome.met),
                    "stale_deviations": [
                        f"{entry.invariant} ({entry.scope})" for entry in self._stale()
                    ],
                    "findings": [
                        {
                            "invariant": finding.invariant,
                            "verdict": str(finding.verdict),
                            "operations": finding.scenario.num_counted,
                            "how": finding.how,
                            "scenario": [drawn_operation(o) for o in finding.scenario.operations],
                            "drawn": self._story(finding),
                            "file": str(self._path(finding)),
                            "replay": self._replay(finding),
                        }
                        for finding in outcome.findings.values()
                    ],
                }
            }
        )

    def tell_misuse(self, tried: int, wrong: list[str]) -> None:
        """Misuse that was not refused cleanly, where that is not claimed: told, not judged."""
        told = {"implementation": self.registration.name, "tried": tried, "wrong": wrong}
        self._news.append({"misuse": told, "kind": self.registration.kind.__name__})

    def take_news(self) -> list[dict[str, Any]]:
        """What was not yet reported to the terminal."""
        news, self._news = self._news, []
        return news


def write_whole(path: Path, text: str) -> None:
    """Write a file so that other processes see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as draft:
        draft.write(text)
    Path(draft.name).replace(path)


def _blinded(registration: Registration) -> Registration:
    return replace(registration, declaration=without_inspection(registration.declaration))


def corpus_folder(package: str = "kvassay.suites.corpus") -> Path:
    """The pinned scenarios that every implementation replays."""
    return Path(str(resources.files(package)))
