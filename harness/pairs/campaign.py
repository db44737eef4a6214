"""Many runs of one pair: known scenarios first, then generated ones, with controls in between.

The first conviction ends it: the scenario is shrunk and kept. The pinned corpus of the managers is
played too, as it leads straight to where managers were found wrong before.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random

import torch

from kvassay.harness import session
from kvassay.harness.campaign import ANY_SHAPE, Geometry
from kvassay.harness.checker import Effect
from kvassay.harness.contract import ContractError
from kvassay.harness.deadline import Deadline
from kvassay.harness.pairs.blame import Convicted
from kvassay.harness.pairs.control import Controls
from kvassay.harness.pairs.evidence import Met
from kvassay.harness.pairs.session import Pair, Played
from kvassay.harness.scenario import Scenario
from kvassay.harness.shrink import shrink
from kvassay.harness.subject import Shapes
from kvassay.harness.violation import Crash, Violation

LENGTHS = (12, 25, 40)
FOCUSES = ("cow", "prefix", "allocator")
SHAPES = Shapes(pools=(2, 3, 4, 4, 5, 6, 8), sizes=(1, 2, 3, 4, 4, 5, 8, 16))
LARGER = (32, 64, 128, 256)
"""Block sizes for a kernel that takes none of the usual ones."""
AT_LEAST = 5
"""Runs that are made however slow the kernel is."""
SHRINK_SECONDS = 6.0


@dataclass(frozen=True)
class Effort:
    """How much one pair may take."""

    examples: int = 60
    seconds: float = 6.0
    """Of processor time."""
    seed: int = 0


def searching() -> Effort:
    """Other scenarios every time, as many as the time allows."""
    return Effort(examples=10**9, seconds=120.0, seed=secrets.randbits(32))


@dataclass
class Finding:
    """The smallest scenario that shows what is wrong."""

    scenario: Scenario
    verdict: Convicted
    examples: int
    """Runs until it was found."""
    known: bool
    """Whether the scenario was a known one."""

    @property
    def how(self) -> str:
        """How it was found, in words."""
        if self.known:
            return "replayed from a known scenario"
        return f"found after {self.examples} examples"


@dataclass
class Outcome:
    """What a campaign has found and met."""

    finding: Finding | None = None
    met: Counter[Met] = field(default_factory=Counter)
    effects: Counter[Effect] = field(default_factory=Counter)
    examples: int = 0
    attended: int = 0
    refused: int = 0
    controls: int = 0
    """Faults planted in passing."""
    blind: str | None = None
    """Why the campaign has proved nothing, if it has not."""
    seconds: float = 0.0


class Campaign:
    """The campaign against one pair."""

    def __init__(
        self,
        pair: Pair,
        effort: Effort,
        geometry: Geometry = ANY_SHAPE,
        known: Sequence[Scenario] = (),
    ) -> None:
        self.pair = pair
        self.effort = effort
        self.geometry = geometry
        self.known = known
        self.outcome = Outcome()
        self._refusal = ""

    def run(self) -> Outcome:
        """Known scenarios, then generated ones within the effort, then the shrinking."""
        start = time.monotonic()
        with one_thread():
            controls = None if self.pair.eyes is None else Controls(self.pair.eyes)
            for played, known in self._runs(controls):
                self._enter(played, known)
                if self.outcome.finding is not None:
                    self._minimise(self.outcome.finding)
                    break
        self.outcome.controls = 0 if controls is None else controls.planted
        self.outcome.blind = self._blind(controls)
        self.outcome.seconds = time.monotonic() - start
        return self.outcome

    def _runs(self, controls: Controls | None) -> Iterator[tuple[Played, bool]]:
        """Runs, and whether their scenario was known; what is not offered is left out."""
        deadline = Deadline(self.effort.seconds)
        for scenario in self.known:
            wanted = scenario.violates is not None or self.geometry.admits(scenario)
            if wanted and not deadline.passed:
                with self._unless_refused():
                    yield self.pair.replay(scenario, controls), True
        for number in range(self.effort.examples):
            if number >= AT_LEAST and deadline.passed:
                return
            with self._unless_refused():
                yield self._explore(number, controls), False

    @contextmanager
    def _unless_refused(self) -> Iterator[None]:
        """The factory or the kernel may not offer a shape; that is its right."""
        try:
            yield
        except ContractError:
            raise
        except ValueError as error:
            self._refusal = str(error)

    def _explore(self, number: int, controls: Controls | None) -> Played:
        rng = Random(self.effort.seed + number)
        num_blocks, block_size = self.geometry.draw(rng, self._shapes())
        return self.pair.explore(
            rng,
            num_blocks,
            block_size,
            length=rng.choice(LENGTHS),
            focus=FOCUSES[number % len(FOCUSES)],
            after=controls,
        )

    def _shapes(self) -> Shapes:
        """The usual shapes, as far as the kernel takes their blocks."""
        offered = [size for size in SHAPES.sizes if self.pair.offers(size)]
        offered = offered or [size for size in LARGER if self.pair.offers(size)]
        return replace(SHAPES, sizes=tuple(offered) or SHAPES.sizes)

    def _enter(self, played: Played, known: bool) -> None:
        outcome = self.outcome
        outcome.examples += 1
        outcome.met += played.met
        outcome.effects += played.effects
        outcome.attended += played.attended
        outcome.refused += played.refused
        if played.verdict is not None:
            outcome.finding = Finding(played.scenario, played.verdict, outcome.examples, known)

    def _blind(self, controls: Controls | None) -> str | None:
        """Why a campaign that found nothing has shown nothing either."""
        outcome = self.outcome
        if outcome.attended == 0:
            told = self._refusal or f"all {outcome.refused} batches were refused"
            return f"nothing was attended to: {told}"
        assert controls is not None
        if controls.blind is not None:
            return f"the control was not convicted: {controls.blind}"
        return None if controls.planted else "no control could be planted"

    # ----------------------------------------------------------------------------------- shrinking

    def _minimise(self, finding: Finding) -> None:
        """Shrink the scenario, keeping half and invariant."""
        crash = finding.verdict.verdict
        if finding.scenario.violates is not None or (isinstance(crash, Crash) and crash.hangs):
            return
        smallest = self._shrunk(finding)
        verdict = self.pair.replay(smallest).verdict
        if verdict is None:
            return
        finding.verdict = verdict
        finding.scenario = replace(
            smallest,
            name=f"{self.pair.name}-{verdict.invariant}",
            violates=f"{verdict.invariant} in {self.pair.name}",
            note=str(verdict),
        )

    def _shrunk(self, finding: Finding) -> Scenario:
        """As small as it gets; if that looks like another mistake, as small as it gets without."""
        scenario, verdict = finding.scenario, finding.verdict
        smallest = shrink(scenario, self._fails(verdict, brief=True), SHRINK_SECONDS)
        found = self.pair.replay(smallest).verdict
        if verdict.looks and (found is None or found.looks != verdict.looks):
            smallest = shrink(scenario, self._fails(verdict, brief=False), SHRINK_SECONDS)
        return smallest

    def _fails(self, verdict: Convicted, *, brief: bool) -> Callable[[Scenario], bool]:
        """Whether a candidate shows the same; the manager alone, where it can tell, goes first."""

        def fails(candidate: Scenario) -> bool:
            try:
                if verdict.named and _invariant_alone(self.pair, candidate) != verdict.invariant:
                    return False
                found = self.pair.replay(candidate, brief=brief).verdict
            except ValueError:
                return False
            return found is not None and _same(found, verdict, brief=brief)

        return fails


def _same(found: Convicted, verdict: Convicted, *, brief: bool) -> bool:
    """Whether two convictions are of one half for one kind of thing."""
    crash = isinstance(found.verdict, Crash) is isinstance(verdict.verdict, Crash)
    return found.side is verdict.side and crash and (brief or found.looks == verdict.looks)


def _invariant_alone(pair: Pair, scenario: Scenario) -> str | None:
    verdict = session.replay(pair.manager, scenario).verdict
    return verdict.invariant if isinstance(verdict, Violation) else None


@contextmanager
def one_thread() -> Iterator[None]:
    """Batches are small: more threads cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
