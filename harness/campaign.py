"""Many runs of one implementation: known scenarios first, then generated ones.

Hypothesis supplies the randomness, so that a run is derandomised in `check` and free in
`search`; shrinking is done on the recorded scenario instead (see `shrink`). The smallest
counterexample per invariant is kept. After a first conviction the campaign looks a little
further, for other invariants, and ends: a broken implementation need not be beaten long.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvassay.harness.checker import Effect
from kvassay.harness.contract import ContractError
from kvassay.harness.deadline import Deadline
from kvassay.harness.evidence import Seen
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import Script
from kvassay.harness.session import Run, without_inspection
from kvassay.harness.shrink import shrink
from kvassay.harness.subject import Shapes
from kvassay.harness.subjects import MANAGERS, subject_of
from kvassay.harness.violation import Crash, Violation

LENGTHS = (12, 25, 40, 60)
FURTHER = 100
"""Examples after a first conviction."""
FURTHER_SECONDS = 0.7
"""Time for them."""
TRIED = 3
SHORT = 8
"""Up to this many counterexamples are shrunk, until one has at most so many operations."""
BATCH = 200
"""Examples that are drawn at once where they are not derandomised."""
ERROR = "error"
"""Stands for an invariant where the implementation crashed or hung."""


@dataclass(frozen=True)
class Budget:
    """How much is tried."""

    examples: int
    derandomized: bool = True
    seconds: float | None = None
    """Stop drawing after this time (search)."""


CHECK = Budget(examples=1000)
SEARCH = Budget(examples=1_000_000, derandomized=False, seconds=300.0)


@dataclass(frozen=True)
class Geometry:
    """Pool shapes that are tried; None means the usual mix."""

    num_blocks: int | None = None
    block_size: int | None = None

    def admits(self, scenario: Script) -> bool:
        """Whether a known scenario is of a shape that was asked for."""
        num_blocks, block_size = scenario.shape
        return self.num_blocks in (None, num_blocks) and self.block_size in (None, block_size)

    def draw(self, rng: Random, shapes: Shapes = MANAGERS.shapes) -> tuple[int, int]:
        """Blocks and tokens per block for one run."""
        usual = self.num_blocks is None and self.block_size is None
        if usual and shapes.large and rng.random() < 0.01:
            size, blocks = rng.choice(shapes.large)
            return blocks, size
        return (
            self.num_blocks or rng.choice(shapes.pools),
            self.block_size or rng.choice(shapes.sizes),
        )


ANY_SHAPE = Geometry()


@dataclass
class Finding:
    """The smallest counterexample of one invariant."""

    invariant: str
    scenario: Script
    verdict: Violation | Crash
    examples: int
    """Examples until it was found first."""
    seconds: float
    others: list[Script] = field(default_factory=list)
    """Further counterexamples, in case this one does not shrink well."""
    inspected: bool = True
    """Whether it was found with the implementation's own inspection in use."""

    @property
    def how(self) -> str:
        """How it was found, in words."""
        if self.examples == 0:
            return "replayed from a known scenario"
        return f"found after {self.examples} examples in {self.seconds:.2f} s"


@dataclass
class Outcome:
    """What a campaign has found and met."""

    findings: dict[str, Finding] = field(default_factory=dict)
    met: Counter[Seen] = field(default_factory=Counter)
    effects: Counter[Effect] = field(default_factory=Counter)
    examples: int = 0
    seconds: float = 0.0
    refused_geometries: Counter[tuple[int, int]] = field(default_factory=Counter)
    refusal: str = ""
    """What the factory said last when it refused a shape."""

    def rank(self) -> None:
        """The shortest counterexample first: it is nearest to the cause."""
        ranked = sorted(self.findings.values(), key=lambda finding: finding.scenario.num_counted)
        self.findings = {finding.invariant: finding for finding in ranked}

    @property
    def num_operations(self) -> int:
        """Operations that were checked."""
        return sum(self.effects.values())


class Campaign:
    """One suite's campaign against one implementation."""

    def __init__(
        self,
        registration: Registration,
        focus: str,
        budget: Budget = CHECK,
        geometry: Geometry = ANY_SHAPE,
        known: Sequence[Script] = (),
    ) -> None:
        self.registration = registration
        self.subject = subject_of(registration.kind)
        self.blind = replace(registration, declaration=without_inspection(registration.declaration))
        self.focus = focus
        self.budget = budget
        self.geometry = geometry
        self.known = known
        self.outcome = Outcome()
        self._start = 0.0
        self._further = Deadline()
        self._hung = False
        """After one hang nothing more is tried: each would take its time."""
        self._left = budget.examples

    def run(self) -> Outcome:
        """Replay what is known, then explore within the budget, then shrink what was found."""
        self._start = time.monotonic()
        for scenario in self.known:
            wanted = scenario.violates is not None or self.geometry.admits(scenario)
            if wanted and not self._hung:
                self._replay(scenario)
        self._explore()
        for finding in self.outcome.findings.values():
            self._minimise(finding)
        self.outcome.rank()
        self.outcome.seconds = time.monotonic() - self._start
        return self.outcome

    def _explore(self) -> None:
        """In batches, so that a limit of time is kept: Hypothesis itself knows none."""
        if self.budget.derandomized:
            self._batch(self.budget.examples)
            return
        while self._left > 0 and not self._timed_out():
            self._batch(BATCH)

    def _batch(self, examples: int) -> None:
        @settings(
            max_examples=examples,
            derandomize=self.budget.derandomized,
            database=None,
            phases=[Phase.generate],
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.randoms(use_true_random=True))
        def example(rng: Random) -> None:
            if self._left > 0 and not self._timed_out():
                self._left -= 1
                self._one(rng)

        example()

    def _timed_out(self) -> bool:
        if self._hung:
            return True
        limit = self.budget.seconds
        over = limit is not None and time.monotonic() - self._start > limit
        return over or self._further.passed

    def _one(self, rng: Random) -> None:
        """One example; every other one without looking inside, once looking inside convicted."""
        convicted = bool(self.outcome.findings)
        registration = self.blind if convicted and self._left % 2 else self.registration
        num_blocks, block_size = self.geometry.draw(rng, self.subject.shapes)
        length = rng.choice(LENGTHS)
        self.outcome.examples += 1
        try:
            run = self.subject.explore(
                registration, rng, num_blocks, block_size, length=length, focus=self.focus
            )
        except ContractError:
            raise
        except ValueError as error:
            self._refused((num_blocks, block_size), error)
        else:
            self._enter(run, registration)

    def _replay(self, scenario: Script) -> None:
        try:
            run = self.subject.replay(self.registration, scenario)
        except ContractError:
            raise
        except ValueError as error:
            self._refused(scenario.shape, error)
        else:
            self._enter(run, self.registration)

    def _refused(self, shape: tuple[int, int], error: ValueError) -> None:
        """The factory does not offer this shape; that is its right, but it is counted."""
        self.outcome.refused_geometries[shape] += 1
        self.outcome.refusal = str(error)

    def _enter(self, run: Run, registration: Registration) -> None:
        outcome = self.outcome
        outcome.met += run.met
        outcome.effects += run.effects
        if run.verdict is None:
            return
        self._hung = isinstance(run.verdict, Crash) and run.verdict.hangs
        if not outcome.findings:
            self._left = min(self._left, FURTHER)
            self._further = Deadline(FURTHER_SECONDS)
        invariant = invariant_of(run.verdict)
        known = outcome.findings.get(invariant)
        if known is None:
            outcome.findings[invariant] = Finding(
                invariant,
                run.scenario,
                run.verdict,
                outcome.examples,
                time.monotonic() - self._start,
                inspected=registration is self.registration,
            )
        elif (registration is self.registration) == known.inspected:
            known.others.append(run.scenario)

    def _minimise(self, finding: Finding) -> None:
        """Shrink the shortest counterexamples, until one is short enough."""
        hangs = isinstance(finding.verdict, Crash) and finding.verdict.hangs
        if finding.scenario.violates is not None or hangs:
            return  # a stored one is as short as it gets; a hang takes too long to shrink
        registration = self.registration if finding.inspected else self.blind

        def fails(candidate: Script) -> bool:
            try:
                verdict = self.subject.replay(registration, candidate).verdict
            except ValueError:
                return False  # the factory does not offer the smaller shape
            return verdict is not None and invariant_of(verdict) == finding.invariant

        found = sorted([finding.scenario, *finding.others], key=lambda s: len(s.operations))
        smallest = None
        for scenario in found[:TRIED]:
            shrunk = shrink(scenario, fails, ways=self.subject.ways)
            if smallest is None or shrunk.num_counted < smallest.num_counted:
                smallest = shrunk
            if smallest.num_counted <= SHORT:
                break
        verdict = self.subject.replay(registration, smallest or finding.scenario).verdict
        if smallest is None or verdict is None:
            return
        finding.verdict = verdict
        finding.scenario = replace(
            smallest,
            name=f"{self.registration.name}-{finding.invariant}",
            violates=f"{finding.invariant} in {self.registration.name}",
            note=str(verdict),
        )


def invariant_of(verdict: Violation | Crash) -> str:
    """The invariant that a verdict speaks of, or `ERROR`."""
    return verdict.invariant if isinstance(verdict, Violation) else ERROR


def load_known(
    folders: Iterable[Path],
    pattern: str = "*.json",
    load: Callable[[Path], Script] = MANAGERS.load,
) -> list[Script]:
    """Scenario files of some folders, in the order of their names."""
    return [load(path) for folder in folders for path in sorted(folder.glob(pattern))]
