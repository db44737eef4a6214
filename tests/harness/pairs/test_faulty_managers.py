"""Faults planted in managers show in the attention, and are blamed on the manager by their name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvassay.harness.assay import corpus_folder
from kvassay.harness.contract import CacheManager
from kvassay.harness.pairs.blame import Side
from kvassay.harness.pairs.campaign import Campaign, Effort, Finding
from kvassay.harness.pairs.session import Pair
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import load
from kvassay.harness.violation import Crash, Violation
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache
from kvassay.impls.faulty.managers import FAULTS

SHORT = 6
VISIBLE = (
    "key-drops-last-token",
    "key-drops-parent",
    "salt-ignored",
    "adapter-ignored",
    "match-past-hole",
    "refcount-off-on-hit",
    "published-before-commit",
    "published-on-truncated",
    "truncation-keeps-key",
    "duplicate-frees-canonical",
    "cow-above-two",
    "copy-forgotten",
    "copy-reversed",
    "fork-forgets-parent-reference",
    "recycled-keeps-key",
    "reset-keeps-keys",
    "evict-pinned",
)
"""Faults by which somebody reads another's KV."""
INVISIBLE = ("full-hit", "wrong-victim", "evict-too-much", "tail-leaked", "refusal-keeps-blocks")
"""Faults that harm nobody's KV: other suites convict these."""
CORPUS = [load(path) for path in sorted(Path(corpus_folder()).glob("*.json"))]


def found(pair: Pair, examples: int = Effort.examples, *, corpus: bool = True) -> Finding | None:
    known = CORPUS if corpus else []
    return Campaign(pair, Effort(examples, seconds=60.0), known=known).run().finding


def planted(name: str) -> Registration:
    fault = FAULTS[name]
    return Registration(name, CacheManager, fault.build, fault.declaration)


@pytest.mark.parametrize("name", VISIBLE)
def test_a_fault_is_blamed_on_the_manager(make: Callable[..., Pair], name: str) -> None:
    finding = found(make(planted(name)))
    assert finding is not None
    assert finding.verdict.side is Side.MANAGER
    assert finding.verdict.invariant in FAULTS[name].accepted
    assert isinstance(finding.verdict.verdict, Violation)
    assert finding.verdict.named
    assert finding.scenario.num_counted <= SHORT
    assert any(line.startswith("the pool is wrong: ") for line in finding.verdict.story)


@pytest.mark.parametrize("name", INVISIBLE)
def test_a_fault_that_harms_no_kv_is_not_convicted(make: Callable[..., Pair], name: str) -> None:
    assert found(make(planted(name)), 10) is None


@pytest.mark.parametrize("name", ["copy-forgotten", "recycled-keeps-key", "salt-ignored"])
def test_generated_scenarios_alone_find_a_fault(make: Callable[..., Pair], name: str) -> None:
    finding = found(make(planted(name)), corpus=False)
    assert finding is not None
    assert finding.verdict.invariant in FAULTS[name].accepted
    assert finding.scenario.num_counted <= SHORT


def test_what_the_managers_own_suites_do_not_see_is_told(make: Callable[..., Pair]) -> None:
    """A manager that goes wrong from its second instance on: alone, it is right again."""

    class Fickle(HashedCache):
        instances = 0

        def __init__(self, num_blocks: int, block_size: int) -> None:
            super().__init__(num_blocks, block_size)
            Fickle.instances += 1
            self.forgets = Fickle.instances % 2 == 1

        def take_copies(self) -> list[tuple[int, int]]:
            copies = super().take_copies()
            return [] if self.forgets else copies

    pair = make(Fickle, managing=DECLARATION)
    scenario = next(each for each in CORPUS if each.name.startswith("b29"))
    verdict = pair.replay(scenario).verdict
    assert verdict is not None
    assert verdict.side is Side.MANAGER
    assert not verdict.named
    assert "own suites see nothing wrong" in verdict.story[-1]


def test_a_crash_is_an_error_of_the_manager(make: Callable[..., Pair]) -> None:
    class Raises(HashedCache):
        def append(self, request: str, tokens: object) -> None:
            raise ZeroDivisionError("of blocks")

    finding = found(make(Raises, managing=DECLARATION))
    assert finding is not None
    assert finding.verdict.side is Side.MANAGER
    assert isinstance(finding.verdict.verdict, Crash)
    assert "ZeroDivisionError: of blocks" in str(finding.verdict)
    assert finding.scenario.num_counted == 2


@pytest.mark.parametrize("table", [[], [-1], ["a"]], ids=str)
def test_a_table_that_no_worker_could_use_is_the_managers(
    make: Callable[..., Pair], table: list[object]
) -> None:
    class Odd(HashedCache):
        def block_table(self, request: str) -> list[object]:  # type: ignore[override]
            return table

    finding = found(make(Odd, managing=DECLARATION))
    assert finding is not None
    assert (finding.verdict.side, finding.verdict.invariant) == (Side.MANAGER, "A7")


def test_more_blocks_than_there_are_is_the_managers(make: Callable[..., Pair]) -> None:
    class Generous(HashedCache):
        def _block_ids(self) -> range:
            return range(2 * self.num_blocks)

    finding = found(make(Generous, managing=DECLARATION))
    assert finding is not None
    assert (finding.verdict.side, finding.verdict.invariant) == (Side.MANAGER, "A1")
