"""The memory behind the tables: hand-outs, clearings, copies, writes, and what is found in it."""

from __future__ import annotations

import pytest
import torch

from kvassay.harness.contract import CacheKey, Tail
from kvassay.harness.pairs.form import Form
from kvassay.harness.pairs.history import History
from kvassay.harness.pairs.pool import Garbage, NoPlace, Pool, garbage_for
from kvassay.reference.tags import TagBook

FORM = Form("float32", head_dim=8, num_q_heads=4, num_kv_heads=2, causal=True)
BOOK = TagBook()
TAGS = BOOK.of_key(CacheKey((3, 1, 4, 1, 5, 9)))
HISTORY = History(BOOK, FORM)


def pool(garbage: Garbage = Garbage.NAN) -> Pool:
    return Pool(FORM, 4, 2, garbage)


def test_what_is_written_is_right_to_the_bit_and_nothing_else_is() -> None:
    memory = pool()
    memory.write([7, 3, 5], TAGS, 0, 5, HISTORY)
    assert memory.first_wrong([7, 3, 5], TAGS, 5, HISTORY) is None
    assert memory.first_wrong([7, 3, 5], TAGS, 6, HISTORY) == 5
    assert memory.first_wrong([7, 5, 3], TAGS, 5, HISTORY) == 2
    for part in (0, 1):
        memory.slot([7, 3, 5], 4)[part][1, 7] += 1e-7
        assert memory.first_wrong([7, 3, 5], TAGS, 5, HISTORY) == 4
        memory.write([7, 3, 5], TAGS, 4, 5, HISTORY)


def test_copies_are_done_as_if_all_sources_were_read_first() -> None:
    memory = pool()
    memory.write([0, 1], TAGS, 0, 4, HISTORY)
    memory.hand_out([], [], [(0, 1), (1, 0)])
    assert memory.first_wrong([1, 0], TAGS, 4, HISTORY) is None


def test_a_copy_survives_the_clearing_of_its_source() -> None:
    memory = pool()
    memory.write([0], TAGS, 0, 2, HISTORY)
    memory.hand_out([2], [0, 2], [(0, 2)])
    assert memory.first_wrong([2], TAGS, 2, HISTORY) is None
    assert not memory.slot([0], 0)[0].any()


def test_what_the_last_owner_left_stays() -> None:
    for garbage in (Garbage.NAN, Garbage.FINITE):
        memory = pool(garbage)
        memory.write([0], TAGS, 0, 2, HISTORY)
        memory.hand_out([0], [], [])
        assert memory.first_wrong([0], TAGS, 2, HISTORY) is None


def test_where_clearing_is_relied_on_nothing_stays_without_it() -> None:
    memory = pool(Garbage.CLEARED)
    memory.write([0, 1], TAGS, 0, 4, HISTORY)
    memory.hand_out([0, 1], [1], [])
    assert memory.slot([0, 1], 0)[0].isnan().all()
    assert not memory.slot([0, 1], 2)[0].any()


@pytest.mark.parametrize(
    ("tail", "clears", "garbage"),
    [
        (Tail.ANY, False, Garbage.NAN),
        (Tail.ANY, True, Garbage.NAN),
        (Tail.FINITE, False, Garbage.FINITE),
        (Tail.FINITE, True, Garbage.CLEARED),
    ],
)
def test_garbage_is_what_both_claim_to_stand(tail: Tail, clears: bool, garbage: Garbage) -> None:
    assert garbage_for(tail, clears) is garbage
    fresh = Pool(FORM, 4, 2, garbage).tail([0], 1)
    assert bool(fresh.isnan().all()) is (garbage is not Garbage.FINITE)
    assert garbage is not Garbage.FINITE or float(fresh.abs().max()) > 100


def test_ids_of_any_size_have_places_as_many_as_there_are_blocks() -> None:
    memory = pool()
    places = memory.places([10**9, 0, 77, 5])
    assert len(set(places)) == 4
    assert memory.places([77, 10**9]) == [places[2], places[0]]
    assert not {*memory.unused()} & {*places}
    assert torch.equal(memory.tail([0, 77], 4), memory.key[0, :0])
    with pytest.raises(NoPlace, match="block 6 is one more"):
        memory.place(6)
