"""The model over layer groups: what a query sees, what is held, what must hit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvassay.harness.contract import CacheKey, Capability, Declaration, GroupSpec, Outcome
from kvassay.reference.groups import GroupModel, Request, Strand, needed_twice, strands_of

FULL, WINDOW = GroupSpec("full"), GroupSpec("window", window=3)
CACHING = Declaration(
    capabilities={Capability.GROUPS, Capability.PREFIX_CACHE, Capability.COMMIT},  # type: ignore[arg-type]
    reserved_ids=(0,),
)


def model_of(*groups: GroupSpec, num_blocks: int = 20) -> GroupModel:
    return GroupModel(num_blocks, 2, CACHING, groups)


def served(model: GroupModel, name: str, tokens: Sequence[int], first_block: int) -> Request:
    """A request that computed all of its tokens, in blocks counted on from `first_block`."""
    model.now += 1
    live = model.enter(CacheKey(tuple(tokens)))
    live.length, model.live[name] = len(tokens), live
    live.sync(model.block_size)
    for strand in strands_of(live):
        blocks = list(range(first_block, first_block + model.blocks_for(len(tokens))))
        first_block += len(blocks)
        model.settle(strand, blocks, blocks)
    live.committed = len(tokens)
    model.publish(live)
    settled(model, live)
    return live


def settled(model: GroupModel, live: Request) -> int:
    live.sync(model.block_size)
    return sum(model.settle(strand, strand.table, ()) for strand in strands_of(live))


@pytest.mark.parametrize("window", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("written", range(12))
def test_what_can_be_read_is_what_some_query_still_sees(window: int | None, written: int) -> None:
    strand = Strand(CacheKey((0,)), [0], window)
    seen = {
        position
        for query in range(written, written + 30)
        for position in range(written)
        if window is None or query - window < position <= query
    }
    assert strand.reach(written) == min(seen, default=0 if window is None else written) or not seen
    assert seen == set(range(strand.reach(written), written))


def test_tags_of_groups_differ() -> None:
    live = model_of(FULL, WINDOW).enter(CacheKey((1, 2)))
    one, other = strands_of(live)
    assert not set(one.tags) & set(other.tags)
    assert live.tags is one.tags


def test_what_a_window_has_passed_is_neither_held_nor_free_for_sure() -> None:
    model = model_of(FULL, WINDOW)
    served(model, "a", range(6), 1)
    # Positions 4 and 5 are seen by the query at 6: blocks 1 and 2 of the window are behind.
    assert model.blocks.num_used == 3 + 1
    assert model.maybe_held() == {4, 5}
    assert model.unheld() == 20 - 6
    assert model.shown_behind() == {4: 1, 5: 1}


def test_a_block_behind_a_window_that_is_handed_out_is_anothers() -> None:
    model = model_of(WINDOW)
    served(model, "a", range(6), 1)
    served(model, "b", [9, 9], 1)
    assert model.maybe_held() == {2}
    assert model.blocks.users == {3: 1, 1: 1}


def test_what_fits_the_window_must_hit_in_every_group() -> None:
    model = model_of(FULL, WINDOW)
    served(model, "a", range(2), 1)
    model.leave("a", Outcome.FINISHED)
    assert model.must_hit(model.enter(CacheKey((0, 1, 2)))) == 2
    model.now += 1
    model.press()
    assert model.must_hit(model.enter(CacheKey((0, 1, 2)))) == 0


def test_what_a_window_has_passed_may_hit_and_never_must() -> None:
    model = model_of(FULL, WINDOW)
    served(model, "a", range(6), 1)
    model.leave("a", Outcome.FINISHED)
    live = model.enter(CacheKey(tuple(range(8))))
    assert model.must_hit(live) == 0
    assert model.published(live, 6)[1] == 6
    assert model.surely_evictable() == 0


def test_a_hit_was_published_as_far_as_it_is_seen() -> None:
    model = model_of(WINDOW)
    served(model, "a", range(6), 1)
    other = model.enter(CacheKey((7, *range(1, 9))))
    assert model.published(other, 6)[1] == 4, "another prefix, other tags"
    longer = model.enter(CacheKey(tuple(range(9))))
    assert model.published(longer, 8)[1] == 6


def test_needs_are_of_all_groups() -> None:
    model = model_of(FULL, WINDOW)
    assert model.admission_need(5) == 6
    live = served(model, "a", range(5), 1)
    assert model.append_need(live, 1) == 0
    assert model.append_need(live, 2) == 2


def test_a_block_that_is_needed_twice_is_found() -> None:
    one, other = (Strand(CacheKey((0,)), [0], None) for _ in range(2))
    one.held, other.held = [1, 2], [3, 2]
    assert [*needed_twice([one, other])] == [2]
