"""Tags in an engine's own memory: what was copied is told from what was left there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvassay.harness.campaign import Budget, Campaign, Outcome
from kvassay.harness.contract import (
    TORN,
    CacheKey,
    CacheManager,
    Capability,
    ContractError,
    Declaration,
)
from kvassay.harness.device import FRESH
from kvassay.harness.evidence import Seen
from kvassay.harness.generator import FOCUS
from kvassay.harness.registry import Registration, find
from kvassay.harness.scenario import Admit, Commit, Release, Scenario
from kvassay.harness.session import replay, without_inspection
from kvassay.harness.stored_device import LAST, StoredDevice
from kvassay.harness.violation import Crash, Violation
from kvassay.impls.faulty import controls, storage


class Memory:
    """Slots of an engine, and a device over them; blocks of two slots."""

    def __init__(self, num_slots: int = 12) -> None:
        self.slots = [0] * num_slots
        self.device = StoredDevice(2, self.write, lambda slots: [self.slots[s] for s in slots])

    def write(self, slots: Sequence[int], stamps: Sequence[int]) -> None:
        for slot, stamp in zip(slots, stamps, strict=True):
            assert -1 <= stamp <= LAST
            self.slots[slot] = stamp

    def copy(self, source: int, destination: int) -> None:
        self.slots[2 * destination : 2 * destination + 2] = self.slots[2 * source : 2 * source + 2]

    def filled(self, *blocks: int) -> StoredDevice:
        """With the tags 10, 11, ... in these blocks, in this order."""
        self.device.begin_tenancies(blocks, ())
        self.device.write(blocks, range(10, 10 + 2 * len(blocks)), 0, 2 * len(blocks))
        return self.device


def test_what_is_written_is_read_and_what_is_not_is_nothing() -> None:
    device = Memory().filled(3, 1)
    assert device.first_wrong([3, 1], [10, 11, 12, 13], 4) is None
    assert device.first_wrong([3, 1], [10, 11, 13, 12], 4) == 2
    assert device.first_wrong([3, 4], [10, 11, 12, 13], 4) == 2
    assert device.memory.get(4) is None
    assert device.read([3, 1], 3) == 13
    device.begin_tenancies([4], ())
    assert device.memory[4] == [FRESH, FRESH]
    assert sorted(device.memory) == [1, 3, 4]


def test_a_copy_by_the_engine_is_found_when_the_block_is_handed_out() -> None:
    memory = Memory()
    device = memory.filled(0)
    memory.copy(0, 5)
    assert device.sources(5) == {0}
    device.begin_tenancies([5], ())
    assert device.memory[5] == [10, 11]
    assert device.num_copied == 1
    assert not device.sources(5)


def test_what_the_last_owner_left_is_no_copy_though_it_is_the_same() -> None:
    """A child gets the block that an earlier child had a copy in, and nothing is copied."""
    memory = Memory()
    device = memory.filled(0)
    memory.copy(0, 5)
    device.begin_tenancies([5], ())
    device.begin_tenancies([5], ())
    assert device.memory[5] == [FRESH, FRESH]
    memory.copy(0, 5)
    device.begin_tenancies([5], ())
    assert device.memory[5] == [10, 11]


def test_a_copy_of_what_is_there_no_longer_is_none() -> None:
    memory = Memory()
    device = memory.filled(0)
    memory.copy(0, 5)
    device.write([0], [20, 21], 0, 2)
    device.begin_tenancies([5], ())
    assert device.memory[5] == [FRESH, FRESH]


def test_a_source_may_be_handed_out_in_the_same_operation_and_blocks_may_swap() -> None:
    memory = Memory()
    device = memory.filled(0, 1)
    memory.slots[:4] = [*memory.slots[2:4], *memory.slots[:2]]
    device.begin_tenancies([0, 1], ())
    assert (device.memory[0], device.memory[1]) == ([12, 13], [10, 11])


def test_memory_of_another_device_means_nothing() -> None:
    memory, other = Memory(), Memory()
    memory.filled(0)
    other.slots[:] = memory.slots
    other.device.begin_tenancies([0, 1], ())
    assert other.device.memory[0] == [FRESH, FRESH]
    other.filled(2)
    assert not {*memory.slots} & {*other.slots[4:6]}


def test_slots_that_differ_in_their_parts_hold_nothing() -> None:
    memory = Memory()
    device = memory.filled(0)
    memory.slots[1] = TORN
    assert device.memory[0] == [10, TORN]
    assert device.first_wrong([0], [10, 11], 2) == 1
    device.begin_tenancies([0], ())
    assert device.memory[0] == [FRESH, FRESH]


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], [1, None], ["1", 2]])
def test_an_answer_that_is_no_list_of_so_many_ints_is_an_error(answer: Any) -> None:
    device = StoredDevice(2, lambda slots, tags: None, lambda slots: answer)
    with pytest.raises(Crash, match="expected 2 tags as plain ints"):
        device.begin_tenancies([0], ())


@pytest.mark.parametrize("window", [None, 4])
def test_groups_and_windows_are_not_driven_beside_it(window: int | None) -> None:
    groups = ["groups"] if window is None else []
    with pytest.raises(ContractError, match="STORAGE is not driven beside GROUPS or a window"):
        Declaration(capabilities=["storage", *groups], window=window)


# ------------------------------------------------------------------------------- whole managers


class Owning:
    """Any manager, with memory of its own in which it has done its copies when it returns."""

    def __init__(self, manager: Any, lost: Callable[[int, int], bool]) -> None:
        self._manager = manager
        self._lost = lost
        self.slots = [0] * (manager.num_blocks * manager.block_size)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._manager, name)
        if not callable(found):
            return found

        def called(*arguments: Any, **named: Any) -> Any:
            answer = found(*arguments, **named)
            self._copy(self._manager.take_copies())
            return answer

        return called

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        size = self._manager.block_size
        contents = [self.slots[one * size : (one + 1) * size] for one, _ in copies]
        for (source, destination), content in zip(copies, contents, strict=True):
            if not self._lost(source, destination):
                self.slots[destination * size : (destination + 1) * size] = content

    def write(self, group: int, slots: Sequence[int], tags: Sequence[int]) -> None:
        assert group == 0
        for slot, tag in zip(slots, tags, strict=True):
            self.slots[slot] = tag

    def read(self, group: int, slots: Sequence[int]) -> list[int]:
        return [self.slots[slot] for slot in slots]


def owning(
    name: str, *, told: bool = False, lost: Callable[[int, int], bool] = lambda *_: False
) -> Registration:
    (found,) = [each for each in find(name) if each.kind is CacheManager]
    capabilities = found.declaration.capabilities | {Capability.STORAGE}
    if not told:
        capabilities -= {Capability.COPIES}
    return replace(
        found,
        factory=lambda **shape: Owning(found.build(**shape), lost),
        declaration=replace(found.declaration, capabilities=capabilities),
    )


SOME = [focus if focus == "cow" else pytest.param(focus, marks=pytest.mark.long) for focus in FOCUS]
"""What copies; the others are long."""


def outcome(registration: Registration, focus: str, examples: int = 40) -> Outcome:
    return Campaign(registration, focus, Budget(examples=examples)).run()


@pytest.mark.parametrize("focus", SOME)
@pytest.mark.parametrize("name", ["paged", "radix"])
def test_a_right_manager_is_acquitted(name: str, focus: str) -> None:
    assert not outcome(owning(name), focus).findings


@pytest.mark.parametrize(
    ("name", "accepted"), [("paged", {"C2"}), ("radix", {"C2", "P1", "P2", "P5"})]
)
def test_a_copy_that_is_lost_is_convicted(name: str, accepted: set[str]) -> None:
    """Of `radix`, copies for hits that end inside a block too: what is there, if not nothing, is
    what somebody else would have hit."""
    found = outcome(owning(name, lost=lambda *_: True), "cow").findings
    assert "C2" in found
    assert {*found} <= accepted
    assert found["C2"].scenario.num_counted <= 4


@pytest.mark.parametrize("name", storage.FAULTS)
def test_a_planted_fault_is_convicted_and_its_host_is_not(name: str) -> None:
    fault = storage.FAULTS[name]
    blind = without_inspection(fault.declaration)
    planted = Registration(name, CacheManager, fault.build, blind)
    found = outcome(planted, "cow", 60).findings
    assert found
    assert {*found} <= fault.accepted
    stock = Registration("stored", CacheManager, controls.Stored, blind)
    assert min(finding.scenario.num_counted for finding in found.values()) <= 5
    for finding in found.values():
        played = Campaign(stock, "cow", Budget(examples=1), known=[finding.scenario]).run()
        assert not played.findings


@pytest.mark.parametrize("focus", SOME)
def test_the_control_is_acquitted_and_its_copies_count(focus: str) -> None:
    host = Registration("stored", CacheManager, controls.Stored, controls.STORED)
    found = outcome(host, focus)
    assert not found.findings
    assert focus != "cow" or found.met[Seen.COPIED] > 10


class Wiping(controls.Stored):
    """Clears the block before one that is given back."""

    def _give_back(self, block: int) -> None:
        super()._give_back(block)
        if block:
            size = self.block_size
            self._key_slots[(block - 1) * size : block * size] = [0] * size


class WipingBoth(Wiping):
    """The same in keys and values, which agree on it."""

    def _give_back(self, block: int) -> None:
        super()._give_back(block)
        self._value_slots[:] = self._key_slots


@pytest.mark.parametrize(
    ("manager", "told"), [(Wiping, "different things"), (WipingBoth, "what nobody wrote into it")]
)
def test_what_is_wiped_out_is_no_lost_copy(manager: type[controls.Stored], told: str) -> None:
    steps = (
        *(step for name in "ab" for step in (Admit(name, CacheKey((1,))), Commit(name))),
        Release("b"),
    )
    plain = without_inspection(controls.STORED)
    registered = Registration("mine", CacheManager, manager, plain)
    verdict = replay(registered, Scenario(2, 2, steps)).verdict
    assert isinstance(verdict, Violation)
    assert (verdict.invariant, verdict.index) == ("A2", 4)
    assert told in str(verdict)
    stock = replace(registered, factory=controls.Stored)
    assert replay(stock, Scenario(2, 2, steps)).verdict is None


def test_told_copies_are_not_done_once_more() -> None:
    """Copies that are told beside STORAGE are for others: lost ones stay lost."""
    assert not outcome(owning("paged", told=True), "cow").findings
    found = outcome(owning("paged", told=True, lost=lambda *_: True), "cow").findings
    assert {*found} == {"C2"}


def test_keys_are_told_in_words() -> None:
    from kvassay.harness.diagnosis import Diagnosis
    from kvassay.reference.model import CacheModel

    model = CacheModel(2, 2, Declaration())
    model.tags_of(CacheKey((1,)))
    assert "in its parts" in Diagnosis(model, Memory().device).describe(TORN)
