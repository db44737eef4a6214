"""An assay of a pair: its campaign runs when it is built, and the tests read their verdicts off it.

Deviations documented beside the manager or the kernel hold for the pair too. Whether one of them is
stale is a question for the suites of the manager and of the kernel; only of a manager's own
attention there is no other suite.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.assay import AssayError, Plan, corpus_folder, write_whole
from kvassay.harness.contract import ContractError
from kvassay.harness.deviations import Deviation, deviations_of
from kvassay.harness.drawing import operation as drawn_operation
from kvassay.harness.explain import Told
from kvassay.harness.invariants import LAW
from kvassay.harness.pairs.campaign import Campaign, Effort, Finding, searching
from kvassay.harness.pairs.explain import explain
from kvassay.harness.pairs.law import KIND, PAIR_LAW, SUITE
from kvassay.harness.pairs.scenario import PairScenario, load, to_json
from kvassay.harness.pairs.session import Pair
from kvassay.harness.registry import Registration, Unavailable
from kvassay.harness.scenario import BadScenario, Scenario
from kvassay.harness.scenario import load as load_scenario
from kvassay.harness.showing import declared_values
from kvassay.harness.verdict import Status, Verdict
from kvassay.harness.violation import Crash


class PairAssay:
    """What the tests of one pair ask."""

    def __init__(self, manager: Registration, kernel: Registration, plan: Plan) -> None:
        self.plan = plan
        self._news: list[dict[str, Any]] = []
        try:
            self.deviations: list[Deviation] = [*deviations_of(manager), *deviations_of(kernel)]
            self.pair = _built(manager, kernel)
            campaign = Campaign(self.pair, self._effort(), plan.geometry, self._known())
            self.outcome = campaign.run()
        except (Unavailable, ContractError, BadScenario) as error:
            raise AssayError(f"{manager.name}+{kernel.name}: {error}") from error
        self._save()
        self._tell_run()

    def _effort(self) -> Effort:
        plan = self.plan
        usual = Effort() if plan.budget.derandomized else searching()
        return replace(
            usual, examples=plan.examples or usual.examples, seconds=plan.seconds or usual.seconds
        )

    def _known(self) -> list[Scenario]:
        """What was found before, and the pinned corpus of managers that have no layer groups."""
        found = sorted(self.plan.counterexamples.glob(f"{self.pair.name}-*.json"))
        corpus = sorted(corpus_folder().glob("*.json"))
        pinned = (one for one in map(load_scenario, corpus) if not one.groups)
        return [*map(load, found), *pinned]

    # ---------------------------------------------------------------------------------- verdicts

    def require(self, invariant: str) -> None:
        """Pass, or end the test with what the campaign says about the invariant."""
        verdict = self._judge(invariant)
        self._tell(verdict)
        if verdict.status in (Status.FAIL, Status.ERROR):
            assert self.outcome.finding is not None
            pytest.fail(self._report(self.outcome.finding), pytrace=False)
        if verdict.status is Status.DEVIATION:
            pytest.xfail(f"deviation: {verdict.reason}")
        if verdict.status is not Status.PASS:
            pytest.skip(f"{verdict.status}: {verdict.reason}")

    def require_nothing_else(self) -> None:
        """Nothing that no test of its own speaks of was broken, and nothing crashed."""
        finding = self.outcome.finding
        if finding is None or finding.verdict.invariant in PAIR_LAW:
            return
        if not isinstance(finding.verdict.verdict, Crash):
            verdict = self._judge(finding.verdict.invariant)
            self._tell(verdict)
            if verdict.status is Status.DEVIATION:
                pytest.xfail(f"deviation: {verdict.reason}")
        pytest.fail(self._report(finding), pytrace=False)

    def require_control(self) -> None:
        """Something was attended to, and faults that were planted in passing were convicted."""
        if self.outcome.finding is None and self.outcome.blind is not None:
            pytest.fail(self.outcome.blind, pytrace=False)

    def require_no_stale_deviation(self) -> None:
        """Under ``--strict-deviations``, what is documented of a manager's own attention shows."""
        stale = [f"{entry.invariant} ({entry.scope}): {entry.reason}" for entry in self._stale()]
        if stale and self.plan.strict_deviations:
            pytest.fail("documented but not seen: " + "; ".join(stale), pytrace=False)

    def _stale(self) -> list[Deviation]:
        """Of a campaign that has found nothing; one that has found something ends with it."""
        if not self.pair.own or self.outcome.finding is not None:
            return []
        return [entry for entry in self.deviations if entry.invariant not in LAW]

    def _judge(self, invariant: str) -> Verdict:
        manager, rule = self.pair.manager.declaration, PAIR_LAW.get(invariant)
        offered = manager.capabilities | self.pair.kernel.declaration.capabilities
        finding, outcome = self.outcome.finding, self.outcome
        status, reason = Status.PASS, ""
        if finding is not None and finding.verdict.invariant == invariant:
            status, reason = self._convicted(finding)
        elif rule is not None and (unclaimed := rule.unclaimed(manager)) is not None:
            status, reason = Status.NOT_CLAIMED, unclaimed
        elif finding is not None and isinstance(finding.verdict.verdict, Crash):
            status, reason = Status.ERROR, str(finding.verdict)
        elif finding is None and outcome.blind is not None:
            status, reason = Status.NOT_REACHED, outcome.blind
        elif rule is not None and (missing := rule.missing(offered, outcome.met)):
            status, reason = Status.NOT_REACHED, "never met: " + "; ".join(missing)
        return Verdict(self.pair.name, invariant, status, reason, self._met(invariant))

    def _convicted(self, finding: Finding) -> tuple[Status, str]:
        verdict = finding.verdict.verdict
        known = next((entry for entry in self.deviations if entry.covers(verdict)), None)
        if known is not None:
            return Status.DEVIATION, f"{known.reason} ({known.link})"
        return Status.FAIL, str(finding.verdict)

    def _met(self, invariant: str) -> dict[str, int]:
        rule, met = PAIR_LAW.get(invariant), self.outcome.met
        states = [state for each in rule.reached for state in each.any_of] if rule else []
        return {state.value: met[state] for state in states if met[state]}

    # ------------------------------------------------------------------------------------- reports

    def _report(self, finding: Finding) -> str:
        verdict, replayed = finding.verdict, explain(self.pair, finding.scenario, Told())
        story = "\n".join(replayed)
        return (
            f"{verdict.invariant}: {verdict}\n\n{story}\n\n"
            f"{finding.how}, {finding.scenario.num_counted} operations (commits not counted)\n"
            f"scenario: {self._path(finding)}\n"
            f"replay:   {self._replay(finding)}"
        )

    def _path(self, finding: Finding) -> Path:
        name = f"{self.pair.name}-{finding.verdict.invariant}.json"
        return self.plan.counterexamples / name

    def _replay(self, finding: Finding) -> str:
        return f"kvassay replay {self._path(finding)} --impl {self._references()}"

    def _references(self) -> str:
        """What names the pair; a manager's own attention comes with it."""
        halves = (self.pair.manager, self.pair.kernel)
        return " --impl ".join(half.reference for half in halves if half.reference)

    def _save(self) -> None:
        finding, pair = self.outcome.finding, self.pair
        if finding is not None:
            told = PairScenario.of(finding.scenario, pair.manager.reference, pair.kernel.reference)
            write_whole(self._path(finding), to_json(told))

    def _tell(self, verdict: Verdict) -> None:
        self._news.append({"verdict": verdict.as_dict(), "kind": KIND, "suite": SUITE})

    def _tell_run(self) -> None:
        """What the summary prints about the campaign."""
        outcome, pair = self.outcome, self.pair
        versions = (pair.manager.version, pair.kernel.version)
        self._news.append(
            {
                "run": {
                    "implementation": pair.name,
                    "kind": KIND,
                    "version": " + ".join(dict.fromkeys(versions)),
                    "reference": self._references(),
                    "suite": SUITE,
                    "seed": "derandomized" if self.plan.budget.derandomized else "random",
                    "options": self.plan.asked,
                    "examples": outcome.examples,
                    "operations": sum(outcome.effects.values()),
                    "seconds": outcome.seconds,
                    "effects": {effect.value: n for effect, n in outcome.effects.items()},
                    "met": {state.value: n for state, n in outcome.met.items()},
                    "declared": self._declared(),
                    "stale_declarations": [],
                    "stale_deviations": [
                        f"{entry.invariant} ({entry.scope})" for entry in self._stale()
                    ],
                    "health": self._health(),
                    "findings": [] if outcome.finding is None else [self._found(outcome.finding)],
                }
            }
        )

    def _declared(self) -> dict[str, str]:
        """What both halves declare beyond the defaults, capabilities apart."""
        return {
            f"{half} {name}": value
            for half, registration in (("manager", self.pair.manager), ("kernel", self.pair.kernel))
            for name, value in declared_values(registration.declaration).items()
            if name != "capabilities"
        }

    def _health(self) -> str:
        outcome, eyes = self.outcome, self.pair.eyes
        form = "no form" if eyes is None else f"{eyes.form.dtype}, head size {eyes.form.head_dim}"
        told = f"{outcome.attended} batches attended ({form}), {outcome.refused} refused"
        return f"{told}, {outcome.controls} of the controls planted were convicted"

    def _found(self, finding: Finding) -> dict[str, Any]:
        return {
            "invariant": finding.verdict.invariant,
            "verdict": str(finding.verdict),
            "operations": finding.scenario.num_counted,
            "how": finding.how,
            "scenario": [drawn_operation(each) for each in finding.scenario.operations],
            "file": str(self._path(finding)),
            "replay": self._replay(finding),
        }

    def take_news(self) -> list[dict[str, Any]]:
        """What was not yet reported to the terminal."""
        news, self._news = self._news, []
        return news


def _built(manager: Registration, kernel: Registration) -> Pair:
    """The pair; whatever its kernel's factory raises ends the assay with that."""
    try:
        return Pair(manager, kernel)
    except (Unavailable, ContractError):
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        told = f"building {kernel.name}: {type(error).__name__}: {error}"
        raise AssayError(f"{manager.name}+{kernel.name}: {told}") from error
