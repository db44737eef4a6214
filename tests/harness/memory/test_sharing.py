"""What forks save: counted by hand, and the same through managers written apart."""

from __future__ import annotations

import pytest

from kvassay.harness.contract import ContractError
from kvassay.harness.memory.sharing import Saved, beam_search, parallel_sampling
from kvassay.harness.registry import Registration, find

MANAGERS = ("paged", "radix", "hashed")


def named(name: str) -> Registration:
    module = "kvassay.impls.faulty.hashed" if name == "hashed" else name
    return next(entry for entry in find(module) if entry.name == name)


@pytest.mark.parametrize("name", MANAGERS)
def test_samples_share_the_full_blocks_of_their_prompt(name: str) -> None:
    prompt, output, branches, size = 37, 30, 3, 8
    lengths = range(prompt + 1, prompt + output + 1)
    listed = branches * sum(-(-length // size) for length in lengths)
    saved = (branches - 1) * (prompt // size) * output
    got = parallel_sampling(named(name), prompt, output, branches, size)
    assert got == Saved(listed, listed - saved)
    assert got.share == pytest.approx(saved / listed)


@pytest.mark.parametrize("name", MANAGERS)
def test_one_branch_saves_nothing(name: str) -> None:
    for got in (
        parallel_sampling(named(name), 20, 5, 1, 4),
        beam_search(named(name), 20, 5, 1, 4, seed=0),
    ):
        assert got.share == 0


def test_beams_share_more_than_samples_and_alike_in_every_manager() -> None:
    found = {name: beam_search(named(name), 20, 60, 4, 4, seed=1) for name in MANAGERS}
    assert len({(saved.listed, saved.held) for saved in found.values()}) == 1
    samples = parallel_sampling(named("paged"), 20, 60, 4, 4)
    assert found["paged"].listed == samples.listed
    assert found["paged"].share > samples.share + 0.2
    assert found["paged"] != beam_search(named("paged"), 20, 60, 4, 4, seed=2)


def test_a_manager_without_fork_is_refused() -> None:
    (entry,) = (entry for entry in find("contiguous") if "Manager" in entry.kind.__name__)
    with pytest.raises(ContractError, match="contiguous does not declare FORK"):
        parallel_sampling(entry, 4, 4, 2, 4)


def test_savings_add_up() -> None:
    assert Saved(10, 6) + Saved(10, 10) == Saved(20, 16)
    assert (Saved(10, 6) + Saved(10, 10)).share == pytest.approx(0.2)
