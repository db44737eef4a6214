"""An assay of a kernel: every test of the suite asks for one check, which then runs.

A check that is not claimed or proves nothing here is told apart from one that passes. What the
checks reached together is judged last (`require_reach`).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvassay.harness.assay import AssayError, Plan, write_whole
from kvassay.harness.attention import checks
from kvassay.harness.attention.campaign import Effort, Finding, Outcome, run, searching
from kvassay.harness.attention.case import BadCase, Trial, load, to_json
from kvassay.harness.attention.check import Check
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.law import KERNEL_LAW
from kvassay.harness.attention.offered import offered
from kvassay.harness.attention.pinned import pinned
from kvassay.harness.attention.reach import Reach, counted, missing, unreached_paths
from kvassay.harness.attention.wrong import Wrong
from kvassay.harness.contract import ContractError
from kvassay.harness.deviations import Deviation, deviations_of
from kvassay.harness.registry import Registration, Unavailable
from kvassay.harness.showing import declared_values
from kvassay.harness.verdict import Status, Verdict
from kvassay.harness.violation import Crash


class KernelAssay:
    """Runs checks on one kernel when a test asks for them, each once."""

    def __init__(self, registration: Registration, suite: str, plan: Plan) -> None:
        self.registration = registration
        self.suite = suite
        self.plan = plan
        self.outcomes: dict[str, Outcome] = {}
        self._news: list[dict[str, Any]] = []
        if "PYTEST_XDIST_WORKER" in os.environ:
            # Workers share the machine: one thread each, or they wait for each other.
            torch.set_num_threads(1)
        try:
            self.deviations = deviations_of(registration)
            self.kernel = Kernel.of(registration)
            self.known = self._known()
        except (Unavailable, ContractError, BadCase) as error:
            raise AssayError(str(error)) from error
        except Exception as error:
            raise AssayError(
                f"{registration.name}: building it: {type(error).__name__}: {error}"
            ) from error

    def _known(self) -> list[Trial]:
        files = sorted(self.plan.counterexamples.glob(f"{self._stem()}-*.json"))
        return [*pinned(self.registration.declaration), *(load(path) for path in files)]

    def _stem(self) -> str:
        """How the names of its counterexamples begin; kinds may share a name."""
        return f"{self.registration.name}-{self.registration.kind.__name__}"

    def _effort(self) -> Effort:
        plan = self.plan
        usual = Effort() if plan.budget.derandomized else searching()
        return replace(
            usual, cases=plan.examples or usual.cases, seconds=plan.seconds or usual.seconds
        )

    # ---------------------------------------------------------------------------------- verdicts

    def require(self, name: str) -> None:
        """Pass, or end the test with what the check says."""
        check = checks.find(name)
        unclaimed = check.unclaimed(self.registration.declaration)
        if unclaimed is not None:
            self._tell(check.invariants, Status.NOT_CLAIMED, unclaimed)
            pytest.skip(f"not claimed: {unclaimed}")
        if name not in self.outcomes:
            self.outcomes[name] = run(check, self.kernel, self._effort(), self.known)
            self._tell_run()
        self._end(check, self.outcomes[name])

    def _end(self, check: Check, outcome: Outcome) -> None:
        finding = outcome.finding
        if finding is not None:
            self._convict(check, finding)
        refused = _refused(outcome)
        if refused is not None:
            self._tell(check.invariants, Status.NOT_CLAIMED, refused)
            pytest.skip(f"not claimed: {refused}")
        blind = _blind(outcome)
        if blind is not None:
            self._tell(check.invariants, Status.NOT_REACHED, blind)
            pytest.skip(f"not reached: {blind}")
        self._tell(check.invariants, Status.PASS)

    def _convict(self, check: Check, finding: Finding) -> None:
        verdict = finding.verdict
        if isinstance(verdict, Crash):
            self._tell(check.invariants, Status.ERROR, str(verdict))
            self._save(finding)
            pytest.fail(self._report(check, finding), pytrace=False)
        known = next((entry for entry in self.deviations if entry.covers(verdict)), None)
        if known is not None:
            reason = f"{known.reason} ({known.link})"
            self._tell((verdict.invariant,), Status.DEVIATION, reason)
            pytest.xfail(f"deviation: {reason}")
        self._tell((verdict.invariant,), Status.FAIL, str(verdict))
        self._save(finding)
        pytest.fail(self._report(check, finding), pytrace=False)

    def require_reach(self) -> None:
        """What the checks met together is what the invariants need, on every execution path."""
        if not self.outcomes:
            self.require("oracle")
        lacking = {}
        for invariant in self._spoken_of():
            never = self._missing(invariant)
            if never:
                lacking[invariant] = "never met: " + "; ".join(never)
                self._tell((invariant,), Status.NOT_REACHED, lacking[invariant])
        paths = unreached_paths(self.kernel)
        if paths:
            pytest.fail(f"execution paths never taken: {', '.join(paths)}", pytrace=False)
        if lacking:
            told = "; ".join(f"{name}: {text}" for name, text in lacking.items())
            pytest.skip(f"not reached: {told}")

    def _spoken_of(self) -> list[str]:
        """The invariants that some check vouched for here, or had all its cases refused."""
        open_ones = [o for o in self.outcomes.values() if o.finding is None]
        open_ones = [o for o in open_ones if _refused(o) is not None or _blind(o) is None]
        return sorted({name for outcome in open_ones for name in outcome.check.invariants})

    def _missing(self, invariant: str) -> list[str]:
        """What its own checks did not meet, although the kernel offers it."""
        met: Counter[Reach] = Counter()
        for outcome in self.outcomes.values():
            if invariant in outcome.check.invariants:
                met += counted(outcome.met, telling=outcome.check.telling)
        return missing(
            invariant, met, self.registration.declaration, lambda reach: offered(reach, self.kernel)
        )

    def require_no_stale_deviation(self) -> None:
        """Under ``--strict-deviations``, every documented deviation was seen."""
        stale = [f"{e.invariant} ({e.scope}): {e.reason}" for e in self._stale()]
        if stale and self.plan.strict_deviations:
            pytest.fail("documented but not seen: " + "; ".join(stale), pytrace=False)

    def _stale(self) -> list[Deviation]:
        seen = [o.finding.verdict for o in self.outcomes.values() if o.finding is not None]
        entries = [entry for entry in self.deviations if entry.invariant in KERNEL_LAW]
        return [e for e in entries if not any(e.covers(verdict) for verdict in seen)]

    # ------------------------------------------------------------------------------------- reports

    def _report(self, check: Check, finding: Finding) -> str:
        verdict = finding.verdict
        story = "\n".join(verdict.story) if isinstance(verdict, Wrong) else ""
        return (
            f"{verdict}\n\ncheck {check.name}: {check.title}\n{finding.trial.case}\n{story}\n\n"
            f"{finding.how}\ncase:   {self._path(finding)}\nreplay: {self._replay(finding)}"
        )

    def _path(self, finding: Finding) -> Path:
        return self.plan.counterexamples / f"{self._stem()}-{_file_id(finding)}.json"

    def _replay(self, finding: Finding) -> str:
        return f"kvassay replay {self._path(finding)} --impl {self.registration.reference}"

    def _save(self, finding: Finding) -> None:
        violates = f"{finding.invariant} in {self.registration.name}"
        trial = replace(finding.trial, violates=violates, note=str(finding.verdict))
        write_whole(self._path(finding), to_json(trial))

    def _tell(self, invariants: tuple[str, ...], status: Status, reason: str = "") -> None:
        for invariant in invariants:
            verdict = Verdict(self.registration.name, invariant, status, reason)
            kind = self.registration.kind.__name__
            self._news.append({"verdict": verdict.as_dict(), "kind": kind, "suite": self.suite})

    def _tell_run(self) -> None:
        """What the summary prints about all checks so far."""
        outcomes = list(self.outcomes.values())
        met: Counter[Reach] = Counter()
        for outcome in outcomes:
            met += outcome.met
        judged, refused = sum(o.judged for o in outcomes), sum(o.refused for o in outcomes)
        self._news.append(
            {
                "run": {
                    "implementation": self.registration.name,
                    "kind": self.registration.kind.__name__,
                    "version": self.registration.version,
                    "reference": self.registration.reference,
                    "suite": self.suite,
                    "seed": "derandomized" if self.plan.budget.derandomized else "random",
                    "examples": judged + refused,
                    "operations": sum(self.kernel.calls.values()),
                    "seconds": sum(outcome.seconds for outcome in outcomes),
                    "effects": dict(self.kernel.calls),
                    "met": {reach.value: count for reach, count in met.items()},
                    "declared": declared_values(self.registration.declaration),
                    "stale_declarations": [],
                    "stale_deviations": [f"{e.invariant} ({e.scope})" for e in self._stale()],
                    "health": f"{len(outcomes)} checks judged {judged} cases; {refused} refused",
                    "findings": [self._told(o.finding) for o in outcomes if o.finding is not None],
                }
            }
        )

    def _told(self, finding: Finding) -> dict[str, Any]:
        return {
            "invariant": finding.invariant,
            "verdict": str(finding.verdict),
            "operations": 1,
            "how": f"{finding.how} of {finding.trial.check}",
            "scenario": [str(finding.trial.case)],
            "file": str(self._path(finding)),
            "replay": self._replay(finding),
        }

    def take_news(self) -> list[dict[str, Any]]:
        """What was not yet reported to the terminal."""
        news, self._news = self._news, []
        return news


def _refused(outcome: Outcome) -> str | None:
    """What the kernel said if it refused all cases of a check."""
    if outcome.judged or not outcome.refused:
        return None
    return f"all {outcome.refused} cases were refused, the last with: {outcome.refusal}"


def _blind(outcome: Outcome) -> str | None:
    """Why the check has proved nothing, if it has not."""
    if outcome.judged == 0:
        return _refused(outcome) or "there was no case for it"
    if not outcome.control_seen:
        return f"its control was not convicted on the {outcome.judged} cases that were accepted"
    return None


def _file_id(finding: Finding) -> str:
    return finding.invariant if finding.invariant != "error" else f"error-{finding.trial.check}"
