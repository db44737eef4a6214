"""CacheModel: what every correct manager must do, from tables and hits alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvassay.harness.contract import (
    CacheKey,
    Capability,
    Declaration,
    Granularity,
    Order,
    Outcome,
    Placement,
    Publish,
    Reclaim,
    Stamp,
)
from kvassay.reference.model import CacheModel, Live

CACHE = frozenset({Capability.PREFIX_CACHE})


def model(num_blocks: int = 8, block_size: int = 2, **declared: Any) -> CacheModel:
    return CacheModel(num_blocks, block_size, Declaration(**{"capabilities": CACHE, **declared}))


def admit(
    model: CacheModel, name: str, tokens: Sequence[int], table: list[int], hit: int = 0
) -> Live:
    """A request whose whole prompt has slots in `table`, of which the hit is shared."""
    model.now += 1
    live = Live(CacheKey(tuple(tokens)), model.tags_of(CacheKey(tuple(tokens))))
    live.hit = live.committed = live.published = hit
    live.length = len(tokens)
    model.take_table(live, table, table[hit // model.block_size :])
    model.live[name] = live
    return live


def commit(model: CacheModel, live: Live) -> None:
    model.now += 1
    live.committed = live.length
    model.publish(live)


def serve(model: CacheModel, name: str, tokens: Sequence[int], table: list[int]) -> Live:
    live = admit(model, name, tokens, table)
    commit(model, live)
    model.now += 1
    model.leave(name, Outcome.FINISHED)
    return live


def must_hit(model: CacheModel, tokens: Sequence[int]) -> int:
    return model.must_hit(model.enter(CacheKey(tuple(tokens))))


# --------------------------------------------------------------------------------------- success


@pytest.mark.parametrize(
    ("need", "declared", "admission", "due"),
    [
        (5, {}, True, True),
        (6, {}, True, False),
        (5, {"watermark": 1}, True, False),
        (4, {"watermark": 1}, True, True),
        (5, {"watermark": 1}, False, True),
        (1, {"placement": Placement.CONTIGUOUS}, False, False),
        (1, {"reclaim": Reclaim.RESET}, False, False),
        (1, {"max_tokens": 3}, False, False),
        (1, {"max_tokens": 4}, False, True),
    ],
)
def test_an_operation_must_succeed_if_its_blocks_are_not_live(
    need: int, declared: dict[str, Any], admission: bool, due: bool
) -> None:
    """Of eight blocks three are live and two cached: five can be had."""
    pool = model(**declared)
    serve(pool, "gone", range(4), [0, 1])
    admit(pool, "live", range(10, 16), [2, 3, 4])
    assert pool.must_succeed(need, 4, admission) is due


def test_two_holders_of_a_block_count_it_once() -> None:
    pool = model(num_blocks=3)
    commit(pool, admit(pool, "a", range(4), [0, 1]))
    assert pool.must_succeed(1, 4)
    admit(pool, "b", range(4), [0, 1], hit=4)
    assert pool.must_succeed(1, 4)
    assert not pool.must_succeed(2, 4)


def test_a_further_request_needs_a_row() -> None:
    pool = model(max_requests=1)
    assert pool.admissible()
    admit(pool, "a", range(2), [0])
    assert not pool.admissible()
    assert model().admissible()


def test_appending_needs_growth_and_a_copy_where_the_tail_is_shared_or_published() -> None:
    pool = model(unit=1)
    live = admit(pool, "a", range(3), [0, 1])
    assert [pool.append_need(live, count) for count in (1, 2, 3)] == [0, 1, 1]
    pool.take_table(Live(live.key, list(live.tags)), [0, 1], [])
    assert [pool.append_need(live, count) for count in (1, 2)] == [1, 2]

    alone = model(unit=1)
    live = admit(alone, "a", range(3), [0, 1])
    commit(alone, live)
    assert alone.append_need(live, 1) == 1

    full = admit(alone, "b", range(10, 14), [2, 3])
    assert [alone.append_need(full, count) for count in (1, 2, 3)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("need", "declared", "admission", "pressed"),
    [
        (0, {}, True, False),
        (2, {}, True, False),
        (3, {}, True, True),
        (2, {"lookahead": 1}, False, True),
        (2, {"watermark": 1}, True, True),
        (2, {"watermark": 1}, False, False),
    ],
)
def test_an_operation_presses_if_it_takes_more_than_is_surely_free(
    need: int, declared: dict[str, Any], admission: bool, pressed: bool
) -> None:
    """Of five blocks one is live and two are cached: two are surely free."""
    pool = model(num_blocks=5, **declared)
    serve(pool, "gone", range(4), [0, 1])
    admit(pool, "live", range(10, 12), [2])
    assert pool.surely_free() == 2
    assert pool.pressed_by(need, admission) is pressed


def test_without_reuse_a_released_block_is_free_only_after_the_reset() -> None:
    for reclaim, free in ((Reclaim.RESET, 6), (Reclaim.RELEASE, 8)):
        pool = model(reclaim=reclaim, capabilities=frozenset())
        serve(pool, "gone", range(4), [0, 1])
        assert pool.surely_free() == free
        pool.reset()
        assert pool.surely_free() == 8


# ------------------------------------------------------------------------------------------ hits


def test_what_was_published_must_hit_until_something_can_have_evicted_it() -> None:
    pool = model()
    live = admit(pool, "a", range(5), [0, 1, 2])
    assert must_hit(pool, range(6)) == 0
    commit(pool, live)
    assert must_hit(pool, range(6)) == 4
    assert must_hit(pool, range(4)) == 2
    assert must_hit(pool, [0, 1, 9, 9, 9]) == 2
    pool.now += 1
    pool.press()
    assert must_hit(pool, range(6)) == 0


def test_a_confirmed_hit_is_sure_again() -> None:
    pool = model()
    serve(pool, "a", range(5), [0, 1, 2])
    pool.now += 1
    pool.press()
    live = admit(pool, "b", range(4), [0, 3], hit=2)
    pool.confirm(live)
    assert must_hit(pool, range(6)) == 2


def test_a_recycled_block_ends_the_due_hit() -> None:
    pool = model()
    serve(pool, "a", range(5), [0, 1, 2])
    admit(pool, "b", [7, 7], [1])
    assert must_hit(pool, range(6)) == 2
    admit(pool, "c", [8, 8], [0])
    assert must_hit(pool, range(6)) == 0


def test_no_hit_is_due_without_a_prefix_cache_nor_across_a_reset() -> None:
    plain, pool = model(capabilities=frozenset()), model()
    for each in (plain, pool):
        serve(each, "a", range(5), [0, 1, 2])
    assert must_hit(plain, range(5)) == 0
    assert must_hit(pool, range(5)) == 4
    pool.now += 1
    pool.reset()
    assert must_hit(pool, range(5)) == 0


def test_drafts_are_not_published_until_they_are_accepted() -> None:
    pool = model()
    live = admit(pool, "a", range(4), [0, 1])
    live.drafts = 1
    commit(pool, live)
    assert must_hit(pool, range(5)) == 2
    live.drafts = 0
    pool.publish(live)
    assert must_hit(pool, range(5)) == 4


@pytest.mark.parametrize(
    ("outcome", "hit"), [(Outcome.FINISHED, 4), (Outcome.ABORTED, 0), (Outcome.PREEMPTED, 0)]
)
def test_publish_at_release_follows_the_declared_outcomes(outcome: Outcome, hit: int) -> None:
    pool = model(publish=Publish.RELEASE, publish_on=frozenset({Outcome.FINISHED}))
    live = admit(pool, "a", range(5), [0, 1, 2])
    live.committed = 5
    assert must_hit(pool, range(5)) == 0
    pool.leave("a", outcome)
    assert must_hit(pool, range(5)) == hit
    assert pool.blocks.num_used == 0
    assert not pool.live


def test_publish_at_commit_does_not_publish_at_release() -> None:
    pool = model()
    live = admit(pool, "a", range(5), [0, 1, 2])
    live.committed = 3
    pool.publish(live)
    live.committed = 5
    pool.leave("a", Outcome.FINISHED)
    assert must_hit(pool, range(5)) == 2


# ---------------------------------------------------------------------------------------- tables


def test_a_new_table_hands_out_its_fresh_blocks_and_drops_the_old() -> None:
    pool = model(order=Order.LRU, stamps={Stamp.RELEASE})
    live = admit(pool, "a", range(4), [0, 1])
    commit(pool, live)
    pool.now += 1
    pool.take_table(live, [0, 5], [5])
    assert pool.blocks.users == {0: 1, 5: 1}
    assert pool.blocks.tenancy == {0: 1, 1: 1, 5: 1}
    assert pool.blocks.idle_since == {1: pool.now}
    assert pool.blocks.published[1].stamp == pool.now
    assert pool.blocks.published[0].stamp < pool.now
    assert live.published == 2, "publication goes on from the block that changed"


def test_an_unchanged_block_is_neither_idle_nor_handed_out_in_between() -> None:
    pool = model()
    live = admit(pool, "a", range(2), [0])
    pool.take_table(live, [0, 1], [1])
    assert pool.blocks.users == {0: 1, 1: 1}
    assert pool.blocks.tenancy[0] == 1
    assert not pool.blocks.shared - {0}
    assert 0 not in pool.blocks.idle_since


def test_a_truncation_cuts_the_key_and_leaves_doubt_about_what_it_cut() -> None:
    pool = model()
    live = admit(pool, "a", range(6), [0, 1, 2])
    commit(pool, live)
    pool.truncate(live, 3)
    assert (live.length, live.committed, live.published, live.cut) == (3, 3, 3, 1)
    assert live.tags == pool.tags_of(CacheKey((0, 1, 2)))
    assert must_hit(pool, range(7)) == 2
    pool.truncate(live, 2)
    assert live.cut is None
    assert must_hit(pool, range(7)) == 2


# -------------------------------------------------------------------------------------- eviction


@pytest.mark.parametrize(
    ("granularity", "most"),
    [(Granularity.BLOCK, 2), (Granularity.PAGE, 2), (Granularity.LEAF, 4), (Granularity.ALL, 8)],
)
def test_evict_may_free_what_its_granularity_says(granularity: Granularity, most: int) -> None:
    """Of a cached prefix of three blocks: one block more than a leaf of it is too much."""
    pool = model(granularity=granularity)
    serve(pool, "a", range(6), [0, 1, 2])
    assert pool.most_evicted(2) == most


def test_surely_evictable_leaves_out_duplicates_live_paths_and_doubt() -> None:
    pool = model()
    serve(pool, "a", range(4), [0, 1])
    assert pool.surely_evictable() == 2
    admit(pool, "b", range(4), [0, 3], hit=2)
    assert pool.surely_evictable() == 0, "block 1 lies above nothing, but its tag is live"
    pool.leave("b", Outcome.ABORTED)
    assert pool.surely_evictable() == 2
    serve(pool, "c", range(4), [4, 5])
    assert pool.surely_evictable() == 0


def test_a_block_is_surely_cached_unless_it_is_a_duplicate_or_cut() -> None:
    pool = model()
    live = admit(pool, "a", range(4), [0, 1])
    commit(pool, live)
    assert pool.surely_cached(0)
    assert pool.surely_cached(1)
    pool.truncate(live, 3)
    assert not pool.surely_cached(1)
    serve(pool, "b", range(2), [4])
    assert not pool.surely_cached(0)
    assert not pool.surely_cached(4)


@pytest.mark.parametrize("kind", [Stamp.HIT, Stamp.COMMIT, Stamp.RESERVE, Stamp.RELEASE])
def test_declared_stamps_and_no_others_are_accesses(kind: Stamp) -> None:
    stamped = {}
    for declared in Stamp:
        pool = model(order=Order.LRU, stamps={declared})
        commit(pool, admit(pool, "a", range(4), [0, 1]))
        live = admit(pool, "b", range(5), [0, 1, 2], hit=4)
        pool.now += 1
        live.committed = 5
        {
            Stamp.HIT: lambda pool=pool, live=live: pool.confirm(live),
            Stamp.COMMIT: lambda pool=pool, live=live: pool._stamp(Stamp.COMMIT, live, 5),
            Stamp.RESERVE: lambda pool=pool, live=live: pool.reserve_stamp(live),
            Stamp.RELEASE: lambda pool=pool: pool.leave("b", Outcome.FINISHED),
        }[kind]()
        stamped[declared] = pool.blocks.published[0].stamp == pool.now
    assert stamped == {declared: declared is kind for declared in Stamp}


def test_a_release_may_renew_the_other_copy_of_what_was_computed_twice() -> None:
    """A tree that inserts at release keeps its own block and renews it; a lone block is renewed."""
    pool = model(stamps={"release"}, order="lru")
    serve(pool, "a", range(2), [0])
    lone = pool.blocks.published[0].latest
    serve(pool, "b", range(7, 9), [1])
    assert pool.blocks.published[0].latest == lone
    serve(pool, "c", range(2), [2])
    assert pool.blocks.published[0].stamp < pool.blocks.published[2].stamp
    assert pool.blocks.published[0].latest == pool.blocks.published[2].stamp


def test_knows_what_has_slots_and_was_not_published() -> None:
    one = model(publish=Publish.RELEASE, publish_on=[Outcome.FINISHED])
    live = admit(one, "a", (1, 2, 3, 4), [0, 1])
    live.committed = 4
    tags = list(live.tags)
    assert [one.held_back(tags, reach) for reach in (0, 2, 4)] == [True, True, False]
    other = one.tags_of(CacheKey((1, 9, 3, 4)))
    assert not one.held_back(other, 0)
    one.leave("a", Outcome.ABORTED)
    assert [one.held_back(tags, reach) for reach in (0, 2)] == [True, True]
    assert one.publications.published(tags, 4) == 0


def test_holds_back_what_a_truncation_or_pending_drafts_cut_off_before_its_publication() -> None:
    one = model(publish=Publish.RELEASE)
    live = admit(one, "a", (1, 2, 3, 4, 5, 6), [0, 1, 2])
    live.committed, live.drafts = 6, 2
    tags = list(live.tags)
    one.truncate(live, 5)
    live.drafts = 1
    one.leave("a", Outcome.FINISHED)
    assert one.publications.published(tags, 6) == 4
    assert one.held_back(tags, 4)
    assert not one.held_back(tags[:5], 4)


def test_a_hit_that_is_copied_is_cached_no_longer_for_sure() -> None:
    """Where the source was evicted with the copying of it, nobody else has what was hit."""
    for copied in (False, True):
        pool = model(3, 4, unit=1)
        serve(pool, "a", [1, 2], [0])
        live = Live(CacheKey((1, 2, 3)), pool.tags_of(CacheKey((1, 2, 3))))
        live.hit, live.length = 1, 3
        pool.now += 1
        pool.press()
        pool.take_table(live, *(([2], [2]) if copied else ([0], [])))
        pool.confirm(live)
        assert must_hit(pool, [1, 9]) == (0 if copied else 1)


def test_a_look_up_alone_needs_a_block_where_hits_end_inside_one() -> None:
    assert model(unit=1).begin_need() == 1
    assert model(unit=3).begin_need() == 1
    assert model().begin_need() == model(unit=4).begin_need() == 0
    assert model(unit=1, capabilities=()).begin_need() == 0
