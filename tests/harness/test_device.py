"""The shadow device: tenancies, simultaneous copies, and where the first wrong slot is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.harness.device import FRESH, ShadowDevice


def device(**blocks: list[int]) -> ShadowDevice:
    """Blocks of two slots: ``b0=[1, 2]``."""
    played = ShadowDevice(2)
    for name, content in blocks.items():
        played.memory[int(name[1:])] = list(content)
    return played


def test_copies_read_all_sources_first() -> None:
    played = device(b0=[1, 2], b1=[3, 4])
    played.begin_tenancies((), [(0, 1), (1, 0)])
    assert played.memory == {0: [3, 4], 1: [1, 2]}


def test_a_chain_of_copies_moves_what_was_there_before() -> None:
    played = device(b0=[1, 2], b1=[3, 4])
    played.begin_tenancies([2], [(0, 1), (1, 2)])
    assert played.memory == {0: [1, 2], 1: [1, 2], 2: [3, 4]}


def test_a_source_that_is_handed_out_in_the_same_step_is_read_before() -> None:
    played = device(b0=[1, 2])
    played.begin_tenancies([0, 1], [(0, 1)])
    assert played.memory == {0: [FRESH, FRESH], 1: [1, 2]}


def test_copies_are_independent_afterwards() -> None:
    played = device(b0=[1, 2])
    played.begin_tenancies([1], [(0, 1)])
    played.write([0], [8, 9], 0, 2)
    assert played.memory == {0: [8, 9], 1: [1, 2]}


def test_a_copy_from_nowhere_brings_nothing() -> None:
    played = device()
    played.begin_tenancies([1], [(7, 1)])
    assert played.memory[1] == [FRESH, FRESH]


def test_a_handed_out_block_holds_nothing_of_before() -> None:
    played = device(b0=[1, 2], b1=[3, 4])
    played.begin_tenancies([0], ())
    assert played.memory == {0: [FRESH, FRESH], 1: [3, 4]}
    assert played.read([0], 1) == FRESH
    assert played.first_wrong([0], [1, 2], 2) == 0


def test_a_block_that_was_never_handed_out_holds_nothing() -> None:
    played = device(b0=[1, 2])
    assert played.first_wrong([0, 5], [1, 2, 3, 4], 4) == 2
    assert played.first_wrong([0, 5], [1, 2, 3, 4], 2) is None
    assert (played.read([0, 5], 1), played.read([0, 5], 2)) == (2, None)


@settings(max_examples=150, deadline=None)
@given(size=st.integers(1, 4), data=st.data())
def test_writes_go_where_the_table_says_and_wrong_slots_are_found(
    size: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(1, 12))
    blocks = -(-length // size)
    table = data.draw(st.permutations(range(blocks)))
    tags = list(range(100, 100 + length))
    played = ShadowDevice(size)
    played.begin_tenancies(table, ())
    middle = data.draw(st.integers(0, length))
    played.write(table, tags, 0, middle)
    assert played.first_wrong(table, tags, length) == (middle if middle < length else None)
    played.write(table, tags, middle, length)
    assert [played.read(table, position) for position in range(length)] == tags
    assert played.first_wrong(table, tags, length) is None
    for wrong in range(length):
        block, offset = table[wrong // size], wrong % size
        played.memory[block][offset] = -7
        assert played.first_wrong(table, tags, length) == wrong
        assert played.first_wrong(table, tags, wrong) is None
        played.memory[block][offset] = tags[wrong]
