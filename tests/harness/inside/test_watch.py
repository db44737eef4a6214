"""The device inside, on passes to follow by hand: a few requests, blocks of two slots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kvassay.harness.contract import CacheKey
from kvassay.harness.inside.batch import Batch, LayerGroup
from kvassay.harness.inside.conviction import Conviction
from kvassay.harness.inside.evidence import Met
from kvassay.harness.inside.watch import Watch
from kvassay.harness.violation import Anomaly

FULL = LayerGroup(2, 10, null=frozenset({0}))
WINDOWED = LayerGroup(2, 10, window=3, null=frozenset({0}))
PROMPT = (11, 12, 13, 14, 15)


class Worker:
    """Tells a watch of passes over rows that a test writes out."""

    def __init__(self, *groups: LayerGroup, tables: object = None) -> None:
        self.watch = Watch(groups or (FULL,), tables)  # type: ignore[arg-type]
        self.size = self.watch.groups[0].block_size

    def ask(self, name: str, tokens: Sequence[int] = PROMPT, salt: str | None = None) -> None:
        self.watch.submitted(name, CacheKey(tuple(tokens), salt=salt))

    def passes(
        self,
        *rows: tuple[str, int, Sequence[int], Sequence[int]],
        slots: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        residency: int = 0,
        group: int = 0,
    ) -> None:
        """Rows: request, first position, tokens, block table. Slots follow the tables."""
        spans = [range(start, start + len(tokens)) for _, start, tokens, _ in rows]
        told = [position for span in spans for position in span]
        self.watch.passes(
            Batch(
                [row[0] for row in rows],
                np.cumsum([0, *map(len, spans)]),
                np.array([span.stop for span in spans]),
                np.array([token for row in rows for token in row[2]]),
                np.array(told if positions is None else positions),
                [residency] * len(rows),
            )
        )
        if slots is None:
            slots = [
                row[3][at // self.size] * self.size + at % self.size
                for row, span in zip(rows, spans, strict=True)
                for at in span
            ]
        self.watch.wrote(group, np.array(slots))
        width = max(len(row[3]) for row in rows)
        tables = [[*row[3], *[0] * (width - len(row[3]))] for row in rows]
        self.watch.reads(group, np.array(tables))

    @property
    def convicted(self) -> dict[str, Conviction]:
        return self.watch.convictions

    def said(self, name: str) -> tuple[str, Anomaly, int]:
        """Invariant, anomaly and position."""
        one = self.convicted[name]
        return one.invariant, one.anomaly, one.position


def test_a_prompt_in_chunks_and_its_answer_are_read_right() -> None:
    worker = Worker()
    worker.ask("a")
    worker.passes(("a", 0, PROMPT[:3], [4, 7]))
    worker.passes(("a", 3, PROMPT[3:], [4, 7, 2]))
    worker.watch.received("a", [30])
    worker.passes(("a", 5, [30], [4, 7, 2]))
    worker.watch.received("a", [31])
    worker.watch.left("a")
    assert worker.watch.verdicts() == {"a": None}
    met = worker.watch.met
    assert (met[Met.PASS], met[Met.WRITTEN], met[Met.READ], met[Met.HIT]) == (3, 6, 3 + 5 + 6, 0)
    assert met[Met.CHUNKED] == 1


def test_a_hit_is_verified_and_counted() -> None:
    worker = Worker()
    worker.ask("a")
    worker.passes(("a", 0, PROMPT, [4, 7, 2]))
    worker.watch.left("a")
    worker.ask("b", (*PROMPT[:4], 99))
    worker.passes(("b", 4, [99], [4, 7, 5]))
    assert not worker.convicted
    assert worker.watch.met[Met.HIT] == 4


def test_what_is_published_at_reservation_is_hit_in_the_same_pass() -> None:
    worker = Worker()
    worker.ask("a")
    worker.ask("b")
    worker.passes(("a", 0, PROMPT, [4, 7, 2]), ("b", 4, PROMPT[4:], [4, 7, 5]))
    assert not worker.convicted


def test_the_same_kv_written_twice_or_in_two_places_convicts_nobody() -> None:
    worker = Worker()
    worker.ask("a")
    worker.ask("b")
    worker.passes(("a", 0, PROMPT, [4, 7, 2]))
    worker.passes(("b", 0, PROMPT, [1, 3, 5]))
    worker.passes(("b", 3, PROMPT[3:], [4, 7, 5]), residency=1)  # the last token of a hit again
    assert not worker.convicted
    assert worker.watch.met[Met.PREEMPTED] == 1


def test_a_conviction_says_what_should_be_there_what_was_and_where() -> None:
    worker = Worker()
    worker.ask("a")
    worker.ask("b", (50, 51, 52))
    worker.passes(("a", 0, PROMPT, [4, 7, 2]), ("b", 0, (50, 51, 52), [1, 3]))
    worker.watch.received("a", [30])
    worker.passes(("a", 5, [30], [4, 3, 2]))
    assert str(worker.convicted["a"]) == (
        "A7 incoherent block table, pass 2, layer group 0, block 3, slot 6: expected position 2 "
        "of a to read token 13 after [11, 12]; got token 52 after [50, 51], written by b in pass 1"
    )
    assert list(worker.convicted) == ["a"]


def test_a_convicted_request_is_judged_once_and_others_go_on() -> None:
    worker = Worker()
    worker.ask("a")
    worker.ask("b", (50, 51, 52))
    for _ in range(2):
        worker.passes(("a", 0, PROMPT, [4, 7, 0]), ("b", 0, (50, 51, 52), [1, 3]))
    assert [one.step for one in worker.convicted.values()] == [1]
    worker.watch.left("b")
    assert worker.watch.verdicts() == {"a": worker.convicted["a"], "b": None}


# --------------------------------------------------------------------------------- which invariant


def test_a_null_block_in_the_read_range_is_a7() -> None:
    worker = Worker()
    worker.ask("a")
    worker.passes(("a", 0, PROMPT, [4, 0, 2]))
    assert worker.said("a") == ("A7", Anomaly.TABLE, 2)


def test_a_block_that_does_not_exist_is_a7() -> None:
    worker = Worker()
    worker.ask("a")
    worker.passes(("a", 0, PROMPT, [4, 7, 10]))
    assert worker.said("a") == ("A7", Anomaly.TABLE, 4)


def test_a_table_too_short_is_a7() -> None:
    worker = Worker()
    worker.ask("a")
    worker.passes(("a", 0, PROMPT, [4, 7]), slots=[8, 9, 14, 15, 4])
    assert worker.said("a") == ("A7", Anomaly.TABLE, 4)


def test_kv_that_went_elsewhere_than_the_table_leads_is_a7() -> None:
    worker = Worker()
    worker.ask("a")
    worker.passes(("a", 0, PROMPT, [4, 7, 2]), slots=[8, 9, 14, 16, 4])
    assert worker.said("a") == ("A7", Anomaly.TABLE, 3)


def test_a_worker_that_disagrees_with_the_manager_is_a7() -> None:
    told = {"b": [4, 7, 5]}
    worker = Worker(tables=lambda name, group: told.get(name, []))
    worker.ask("a")
    worker.ask("b", (*PROMPT[:4], 99))
    worker.passes(("a", 0, PROMPT, [4, 7, 2]))
    worker.passes(("b", 4, [99], [3, 7, 5]))
    assert worker.said("b") == ("A7", Anomaly.TABLE, 0)


def test_a_slot_that_nobody_wrote_is_p4() -> None:
    worker = Worker()
    worker.ask("b", (*PROMPT[:4], 99))
    worker.passes(("b", 4, [99], [4, 7, 5]))
    assert worker.said("b") == ("P4", Anomaly.UNWRITTEN, 0)


def test_a_hit_whose_kv_was_overwritten_is_p5() -> None:
    worker = Worker()
    worker.ask("a")
    worker.ask("b", (50, 51, 52))
    worker.ask("c", (*PROMPT[:4], 99))
    worker.passes(("a", 0, PROMPT, [4, 7, 2]))
    worker.watch.left("a")
    worker.passes(("b", 0, (50, 51, 52), [7, 3]))
    worker.passes(("c", 4, [99], [4, 7, 5]))
    assert worker.said("c") == ("P5", Anomaly.STALE_HIT, 2)
    assert list(worker.convicted) == ["c"]


def test_a_hit_under_another_salt_is_p2() -> None:
    worker = Worker()
    worker.ask("a", salt="x")
    worker.ask("b", salt="y")
    worker.passes(("a", 0, PROMPT, [4, 7, 2]))
    worker.passes(("b", 4, PROMPT[4:], [4, 7, 5]))
    assert worker.said("b") == ("P2", Anomaly.WRONG_KEY, 0)


def test_a_hit_on_the_same_block_behind_another_prefix_is_p1() -> None:
    worker = Worker()
    worker.ask("a")
    worker.ask("b", (11, 99, 13, 14, 15))
    worker.passes(("a", 0, PROMPT, [4, 7, 2]))
    worker.passes(("b", 0, (11, 99), [1]))
    worker.passes(("b", 4, [15], [1, 7, 5]))
    assert worker.said("b") == ("P1", Anomaly.PHANTOM_HIT, 2)


def test_a_stranger_in_a_block_of_ones_own_is_a2() -> None:
    worker = Worker()
    worker.ask("a")
    worker.ask("b", (50, 51, 52))
    worker.passes(("a", 0, PROMPT, [4, 7, 2]), ("b", 0, (50, 51, 52), [1, 7]))
    assert worker.said("a") == ("A2", Anomaly.FOREIGN_WRITE, 2)
    assert list(worker.convicted) == ["a"]


def test_a_block_at_two_places_of_a_table_is_a2() -> None:
    worker = Worker()
    worker.ask("a")
    worker.passes(("a", 0, PROMPT, [4, 4, 2]))
    assert worker.said("a") == ("A2", Anomaly.DOUBLE_HAND_OUT, 0)


def test_a_sharer_who_writes_into_the_shared_block_is_c1() -> None:
    worker = Worker()
    worker.ask("a", (11, 12, 13, 14))
    worker.ask("b", (11, 12, 13, 99))
    worker.passes(("a", 0, (11, 12, 13, 14), [4, 7]))
    worker.passes(("b", 3, [99], [4, 7]))
    assert not worker.convicted, "nobody has read it yet but b, whose it is now"
    worker.watch.received("a", [30])
    worker.passes(("a", 4, [30], [4, 7, 2]))
    assert worker.said("a") == ("C1", Anomaly.SHARER_WRITE, 3)


def test_a_pass_for_somebody_who_has_left_is_a8() -> None:
    worker = Worker()
    worker.ask("a")
    worker.ask("b", (50, 51, 52))
    worker.passes(("a", 0, PROMPT, [4, 7, 2]))
    worker.watch.left("a", aborted=True)
    worker.passes(("b", 0, (50, 51, 52), [2, 3]))
    worker.passes(("a", 5, [30], [4, 7, 2]))
    worker.watch.received("b", [53])
    worker.passes(("b", 3, [53], [2, 3]))
    assert worker.said("b") == ("A8", Anomaly.FOREIGN_WRITE, 1)
    assert worker.watch.met[Met.LATE] == 1


def test_another_token_given_to_the_model_is_s1() -> None:
    worker = Worker()
    worker.ask("a")
    worker.passes(("a", 0, [11, 12, 13, 14, 77], [4, 7, 2]))
    assert worker.said("a") == ("S1", Anomaly.MISCOMPUTED, 4)
    assert "got token 77 after [11, 12, 13, 14]" in str(worker.convicted["a"])


def test_another_position_given_to_the_model_is_s1() -> None:
    worker = Worker(FULL, FULL)
    worker.ask("a")
    worker.passes(("a", 0, PROMPT, [4, 7, 2]), positions=[0, 1, 2, 4, 4], group=1)
    assert worker.said("a") == ("S1", Anomaly.MISCOMPUTED, 3)


def test_tokens_that_are_left_out_are_s1() -> None:
    worker = Worker()
    worker.ask("a")
    worker.passes(("a", 6, [30], [4, 7, 2, 1]))
    assert worker.said("a") == ("S1", Anomaly.MISCOMPUTED, 6)


# ------------------------------------------------------------------- windows, groups, what is ahead


def test_what_the_window_has_passed_is_not_read() -> None:
    worker = Worker(WINDOWED)
    worker.ask("a")
    worker.passes(("a", 0, PROMPT[:4], [4, 7]))
    worker.passes(("a", 4, PROMPT[4:], [0, 7, 2]))
    assert not worker.convicted
    assert (worker.watch.met[Met.PASSED], worker.watch.met[Met.NULL]) == (2, 1)


def test_the_last_slot_that_the_window_still_sees_is_read() -> None:
    worker = Worker(WINDOWED)
    worker.ask("a")
    worker.passes(("a", 0, PROMPT[:4], [4, 7]))
    worker.passes(("a", 4, PROMPT[4:], [4, 0, 2]))
    assert worker.said("a") == ("A7", Anomaly.TABLE, 2)


def test_groups_in_one_memory_overwrite_each_other_and_others_do_not() -> None:
    for memory, convicted in ((0, ["a"]), (1, [])):
        worker = Worker(FULL, LayerGroup(2, 10, memory=memory))
        worker.ask("a")
        worker.passes(("a", 0, PROMPT[:2], [4]), group=1)
        worker.passes(("a", 0, PROMPT[:2], [4]), group=0)
        worker.passes(("a", 2, PROMPT[2:], [4, 7, 2]), group=1)
        assert list(worker.convicted) == convicted


def test_tokens_ahead_of_their_caller_are_taken_on_trust_until_it_has_them() -> None:
    for came, convicted in ((30, []), (77, ["a"])):
        worker = Worker()
        worker.ask("a")
        worker.passes(("a", 0, PROMPT, [4, 7, 2]))
        worker.passes(("a", 5, [30], [4, 7, 2]))
        assert worker.watch.met[Met.IN_FLIGHT] == 1
        worker.watch.received("a", [came, 40])
        worker.passes(("a", 6, [40], [4, 7, 2, 1]))
        assert list(worker.convicted) == convicted


def test_drafts_that_were_rejected_are_computed_anew() -> None:
    worker = Worker()
    worker.ask("a")
    worker.passes(("a", 0, PROMPT, [4, 7, 2]))
    worker.watch.received("a", [30])
    worker.passes(("a", 5, [30, 40, 41], [4, 7, 2, 1]))
    worker.watch.received("a", [50])
    worker.passes(("a", 6, [50], [4, 7, 2, 1]))
    assert not worker.convicted


# ------------------------------------------------------------------------------------------ callers


def test_what_nobody_submitted_is_an_error() -> None:
    worker = Worker()
    with pytest.raises(ValueError, match="'a', which nobody has submitted"):
        worker.passes(("a", 0, PROMPT, [4, 7, 2]))


def test_names_are_used_once() -> None:
    worker = Worker()
    worker.ask("a")
    with pytest.raises(ValueError, match="expected a new name, got 'a'"):
        worker.ask("a")
    worker.watch.left("a")
    with pytest.raises(ValueError, match="expected a new name, got 'a'"):
        worker.ask("a")


def test_groups_of_one_memory_have_blocks_of_one_shape() -> None:
    with pytest.raises(ValueError, match="blocks of one shape"):
        Watch([LayerGroup(2, 10), LayerGroup(4, 10)])


def test_who_was_never_read_is_not_right_but_unjudged() -> None:
    worker = Worker()
    worker.ask("a")
    worker.watch.left("a", aborted=True)
    assert worker.watch.verdicts() == {}
    assert set(worker.watch.never_met) >= {Met.READ, Met.HIT, Met.PREEMPTED, Met.RECYCLED}
    assert Met.ABORTED not in worker.watch.never_met
    assert Met.NULL not in worker.watch.never_met
    assert Met.NULL in Worker(WINDOWED).watch.never_met


def test_who_was_read_in_one_group_of_two_is_unjudged() -> None:
    worker = Worker(FULL, WINDOWED)
    worker.ask("a")
    worker.passes(("a", 0, PROMPT[:2], [4, 7]))
    worker.watch.left("a")
    assert worker.watch.judged["a"] == 0
