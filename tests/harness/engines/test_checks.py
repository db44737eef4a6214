"""The checks of engines: a right one passes all of them, and each fault is found by its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvassay.harness.circumstances import Checked
from kvassay.harness.contract import Capability, Declaration, Engine
from kvassay.harness.engines.checks import CHECKS, Met
from kvassay.harness.engines.dense import DenseModel
from kvassay.harness.engines.subject import EngineSubject
from kvassay.harness.registry import Registration

from . import toy

CLAIMED = Declaration(capabilities=frozenset({Capability.PREFIX_CACHE, Capability.SALT}))
CASES = {check.circumstance: check for check in CHECKS}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Of a model as small as here, every further thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def subject(build: type[toy.Toy], declared: Declaration = CLAIMED) -> EngineSubject:
    entry = Registration("toy", Engine, build, declared, reference="toy")
    dense = DenseModel(toy.MODEL, declared)
    waits = build in (toy.LeaksWhenLeft, toy.WaitsForever, toy.NeverStops)
    return EngineSubject(entry, Path("nowhere"), dense, patience=0.7 if waits else 60.0)


def checked(build: type[toy.Toy], circumstance: str) -> Checked[Met]:
    asked = subject(build)
    found = CASES[circumstance](asked)
    asked.drop()
    return found


@pytest.mark.parametrize("build", [toy.Toy, toy.SmallBlocks, toy.TasksOfItsOwn])
def test_a_right_engine_passes_everything(build: type[toy.Toy]) -> None:
    right = subject(build)
    found = [check(right) for check in CHECKS]
    right.drop()
    assert not [one for one in found if one.problem is not None]
    assert not [one for one in found if one.missing or one.unclaimed]
    assert all(one.met[Met.LOGPROB] > one.met[Met.TOKEN] // 2 for one in found)


@pytest.mark.parametrize(
    ("fault", "circumstance", "told"),
    [
        (toy.StaleHit, "warm", "token 0 of its output"),
        (toy.LosesAtCuts, "in chunks", ", token "),
        (toy.Crosstalk, "in a batch", ", token "),
        (toy.SaltIgnored, "another salt", "only another salt had brought"),
        (toy.LogprobsOff, "cold and alone", "a log-probability"),
        (toy.LeaksWhenLeft, "the whole pool after aborts", "stuck"),
        (toy.WaitsForever, "requests without room beside others", "was never told"),
        (toy.DiesOfIt, "requests without room beside others", "RuntimeError"),
        (toy.NeedsABlockMore, "a pool that just holds one", "it does not fit"),
        (toy.MixesNames, "a name that is in use", "brought events of somebody else"),
        (toy.NeighboursToken, "a prompt without tokens", "beside another"),
        (toy.OneTokenShort, "in a batch", "ended early"),
        (toy.NeverStops, "another salt", "stuck"),
        (toy.StopsEarly, "a pool that just holds one", "token 2 of its output"),
        (toy.BoastsOfHits, "cold and alone", "7777 cached tokens"),
        (toy.OneLogprobTooFew, "cold and alone", "log-probabilities of"),
    ],
)
def test_a_fault_is_found_where_it_shows(
    fault: type[toy.Toy], circumstance: str, told: str
) -> None:
    found = checked(fault, circumstance)
    assert not found.crashed
    assert told in str(found.problem)


def test_what_is_not_claimed_is_not_asked() -> None:
    found = CASES["warm"](subject(toy.Toy, Declaration()))
    assert found.unclaimed == "needs PREFIX_CACHE"


def test_a_circumstance_that_was_not_met_is_no_pass() -> None:
    class Forgets(toy.Toy):
        def cached(self, *_: object) -> int:
            return 0

    assert checked(Forgets, "warm").missing == (Met.HIT,)


def test_preemptions_are_wanted_of_who_counts_them() -> None:
    class Counts(toy.Toy):
        def preemptions(self) -> int:
            return 0

    assert checked(Counts, "preempted").missing == (Met.PREEMPTED,)


def test_a_near_tie_may_go_either_way() -> None:
    class Second(toy.Toy):
        """Chooses the second best where it is a rounding below the best."""

        def next(self, tokens: list[int], cached: int) -> tuple[int, float]:
            token, logprob = super().next(tokens, cached)
            logits = toy.MODEL.logits(self.latest, first=len(self.latest) - 1)[0, 0]
            best, second = logits.topk(2).values.tolist()
            return (
                (int(logits.topk(2).indices[1]), logprob)
                if best - second < 1e-6
                else (token, logprob)
            )

    assert checked(Second, "in a batch").problem is None
