"""K and V in memory: rows for any ids, moves as if at once, and what is unwritten shows."""

from __future__ import annotations

import pytest
import torch

from kvassay.harness.contract import Tail
from kvassay.harness.rig.plan import Transfer
from kvassay.harness.rig.store import NoPlace, Store


def filled(tail: Tail = Tail.ANY) -> Store:
    """Two layers over three blocks of two tokens; blocks 70 and 5 hold 1, 2, 3, 4."""
    store = Store(3, 2, tail, "cpu")
    slots = store.slots([((70, 5), 0, 4)])
    tokens = torch.arange(1.0, 5.0).view(4, 1, 1).expand(4, 2, 3)
    for layer in range(2):
        store.write(layer, slots, tokens, -tokens)
    return store


def read(store: Store, layer: int, table: tuple[int, ...], length: int) -> list[float]:
    slots = store.slots([(table, 0, length)])
    key, value = store.write(layer, store.slots([]), torch.empty(0, 2, 3), torch.empty(0, 2, 3))
    got = key[slots.rows, slots.offsets]
    assert torch.equal(got.nan_to_num(), -value[slots.rows, slots.offsets].nan_to_num())
    return got[:, 0, 0].tolist()


def test_what_was_written_is_read_through_the_table() -> None:
    store = filled()
    for layer in range(2):
        assert read(store, layer, (70, 5), 4) == [1, 2, 3, 4]
        assert read(store, layer, (5, 70), 4) == [3, 4, 1, 2]
    assert store.tables([(70,), (5, 70)]).tolist() == [[1, 0], [2, 1]]
    assert store.num_bytes == 2 * 2 * 4 * 2 * 2 * 3 * 4


def test_a_chunk_in_the_middle_goes_to_its_slots() -> None:
    store = Store(3, 4, Tail.ANY, "cpu")
    store.rows((9, 8, 7))
    slots = store.slots([((9, 8, 7), 3, 6), ((7,), 1, 2)])
    assert slots.rows.tolist() == [1, 2, 2, 3]
    assert slots.offsets.tolist() == [3, 0, 1, 1]


def test_copies_read_all_sources_first_and_reach_every_layer() -> None:
    store = filled()
    store.move([Transfer((), ((70, 5), (5, 70)))])
    for layer in range(2):
        assert read(store, layer, (70, 5), 4) == [3, 4, 1, 2]


def test_transfers_are_done_in_order_and_clearing_precedes_copying() -> None:
    store = filled()
    store.move([Transfer((), ((70, 6),)), Transfer((70,), ((6, 5),))])
    assert read(store, 0, (70, 5), 4) == [0, 0, 1, 2]


def test_what_nobody_has_written_shows() -> None:
    assert read(filled(), 0, (6,), 1)[0] != read(filled(), 0, (6,), 1)[0]
    store = Store(3, 2, Tail.FINITE, "cpu")
    key, _ = store.write(0, store.slots([]), torch.empty(0, 2, 3), torch.empty(0, 2, 3))
    assert bool((key == 1000).all())


def test_there_are_no_more_blocks_than_the_pool_has() -> None:
    store = filled()
    store.place(6)
    with pytest.raises(NoPlace, match="block 1 is one more"):
        store.place(1)
