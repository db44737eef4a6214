"""Scenario files: every operation survives the round trip, and a bad file says where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.harness import scenario as files
from kvassay.harness.contract import CacheKey, Outcome, Span
from kvassay.harness.scenario import (
    Accept,
    Admit,
    Append,
    BadScenario,
    Begin,
    Commit,
    Drain,
    Evict,
    Fork,
    Operation,
    Peek,
    Query,
    Quiesce,
    Release,
    Reserve,
    Reset,
    Scenario,
    Truncate,
    as_dict,
    from_json,
    kinds,
    load,
    to_json,
)

NOTHING = pytest.fail.Exception
NAMES = st.text(min_size=1, max_size=4)
TOKENS = st.lists(st.integers(0, 2**31), min_size=1, max_size=5).map(tuple)
SPANS = st.lists(
    st.builds(Span, st.integers(0, 9), st.integers(1, 9), st.text(max_size=3)), max_size=2
).map(tuple)
KEYS = st.builds(CacheKey, TOKENS, st.none() | NAMES, st.none() | NAMES, SPANS)
COUNTS = st.integers(0, 99)
OPERATIONS: dict[type, st.SearchStrategy[Any]] = {
    Admit: st.builds(Admit, NAMES, KEYS),
    Begin: st.builds(Begin, NAMES, KEYS),
    Reserve: st.builds(Reserve, NAMES, COUNTS),
    Commit: st.builds(Commit, NAMES, st.none() | COUNTS),
    Append: st.builds(Append, NAMES, TOKENS, COUNTS),
    Accept: st.builds(Accept, NAMES, COUNTS),
    Fork: st.builds(Fork, NAMES, st.lists(NAMES, max_size=3).map(tuple)),
    Truncate: st.builds(Truncate, NAMES, COUNTS),
    Release: st.builds(Release, NAMES, st.sampled_from(Outcome)),
    Evict: st.builds(Evict, COUNTS),
    Reset: st.just(Reset()),
    Drain: st.just(Drain()),
    Query: st.builds(Query, KEYS),
    Peek: st.builds(Peek, KEYS),
    Quiesce: st.just(Quiesce()),
}


def document(*operations: dict[str, Any], **head: Any) -> str:
    base = {"schema": 1, "num_blocks": 3, "block_size": 2, "operations": operations}
    return json.dumps({**base, **head})


ADMIT = {"op": "admit", "request": "a", "key": {"tokens": [1, 2]}}


def test_every_kind_of_operation_is_drawn_here() -> None:
    assert set(OPERATIONS) == set(kinds())


@pytest.mark.parametrize("kind", list(OPERATIONS), ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_an_operation_survives_the_round_trip(kind: type, data: st.DataObject) -> None:
    operation: Operation = data.draw(OPERATIONS[kind])
    scenario = Scenario(3, 2, (operation, Quiesce()), name="n", note='"', violates="P1 in x")
    back = from_json(to_json(scenario))
    assert back == scenario
    assert type(back.operations[0]) is kind


def test_the_file_has_one_operation_a_line_without_defaults() -> None:
    operations = (Admit("a", CacheKey((1, 2))), Commit("a"), Append("a", (3,)), Release("a"))
    lines = to_json(Scenario(3, 2, operations)).splitlines()
    assert '    {"op": "admit", "request": "a", "key": {"tokens": [1, 2]}},' in lines
    assert '    {"op": "commit", "request": "a"},' in lines
    assert '    {"op": "append", "request": "a", "tokens": [3]},' in lines
    assert not any('"note"' in line or '"violates"' in line for line in lines)
    assert as_dict(Append("a", (3,), drafts=1))["drafts"] == 1


def test_commits_do_not_count() -> None:
    assert Scenario(3, 2, (Admit("a", CacheKey((1,))), Commit("a"), Drain())).num_counted == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "expected schema 1, got 'list'"),
        (document(schema=2), "expected schema 1, got 2"),
        (json.dumps({"num_blocks": 1}), "expected schema 1, got None"),
        (document({"op": "teleport", "request": "a"}), r"operation 0"),
        (document(ADMIT, {**ADMIT, "colour": "red"}), r"operation 1 \(admit\)"),
        (
            document({**ADMIT, "key": {"tokens": [1], "pepper": "x"}}),
            r"operation 0 \(admit\): \S*pepper",
        ),
        (document(num_blocks="many"), "num_blocks: .* integer"),
        (document(num_blocks=0), "a pool of 0 blocks of 2 tokens: expected >= 1"),
        (document(block_size=-1), "a pool of 3 blocks of -1 tokens: expected >= 1"),
        (document(speed=3), "speed: "),
        (document({**ADMIT, "key": {"tokens": [1, -2]}}), r"admit: expected tokens >= 0, got \["),
        (document({**ADMIT, "key": {"tokens": []}}), r"admit: expected tokens >= 0, got \[\]"),
        (document({"op": "append", "request": "a", "tokens": [-1]}), "append: expected tokens >="),
        (document({"op": "release", "request": "a", "outcome": "lost"}), r"operation 0"),
        (document({"op": ["admit"]}), r"operation 0: expected op to be one of admit"),
    ],
)
def test_a_bad_file_says_what_is_wrong_and_where(text: str, says: str) -> None:
    assert from_json(document(ADMIT)).operations == (Admit("a", CacheKey((1, 2))),)
    with pytest.raises(BadScenario, match=f"^here.json: .*{says}"):
        from_json(text, "here.json")


NESTED = "[" * 900 + "]" * 900
LARGE = {
    "digits": (document(num_blocks=7).replace("7", "9" * 5000), "not JSON: Exceeds the limit"),
    "depth": ("[" * 100_000 + "]" * 100_000, "not a scenario: nested too deeply"),
    "depth of a field": (document(note="x").replace('"x"', NESTED), "recursion limit exceeded"),
    "length": (document(note=["x"] * 9000), r"note: Input should be a valid string, got \['x', "),
}


@pytest.mark.parametrize("what", LARGE)
def test_a_file_out_of_all_proportion_is_said_in_one_line(what: str) -> None:
    text, says = LARGE[what]
    with pytest.raises(BadScenario, match=f"^here.json: .*{says}") as told:
        from_json(text, "here.json")
    assert len(str(told.value)) < 400
    assert "\n" not in str(told.value)


def test_the_message_speaks_of_the_kind_that_was_meant() -> None:
    text = document({"op": "commit", "request": "a", "num_tokns": 3})
    with pytest.raises(BadScenario, match=r"operation 0 \(commit\): num_tokns: "):
        from_json(text)


@pytest.mark.parametrize("operation", [{}, {"request": "a"}, {"key": {"tokens": [1]}}])
def test_an_operation_without_a_kind_is_not_guessed(operation: dict[str, Any]) -> None:
    with pytest.raises(BadScenario):
        from_json(document(operation))


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 1), (1, 0), (-3, 4)])
def test_a_pool_has_at_least_one_slot(num_blocks: int, block_size: int) -> None:
    assert Scenario(1, 1, ()).num_blocks == 1
    with pytest.raises(BadScenario, match=f"{num_blocks} blocks of {block_size} tokens"):
        Scenario(num_blocks, block_size, ())


def test_a_file_is_loaded_and_a_missing_one_is_said(tmp_path: Path) -> None:
    scenario = Scenario(3, 2, (Admit("a", CacheKey((1, 2), "s", "l", (Span(0, 1, "x"),))),))
    (tmp_path / "one.json").write_text(to_json(scenario))
    assert load(tmp_path / "one.json") == scenario
    with pytest.raises(BadScenario, match=r"none\.json: cannot be read"):
        load(tmp_path / "none.json")


def test_a_file_in_another_encoding_or_too_large_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.json"
    path.write_text(document(note="@").replace("@", "\u00e9"), encoding="utf-8")
    assert load(path).note == "\u00e9"
    monkeypatch.setattr(files, "MOST_BYTES", path.stat().st_size - 1)
    with pytest.raises(BadScenario, match=r"one\.json: expected at most \d+ bytes, got more"):
        load(path)
    path.write_text(document(note="@").replace("@", "\u00e9"), encoding="latin-1")
    monkeypatch.undo()
    with pytest.raises(BadScenario, match=r"one\.json: expected UTF-8, got something else"):
        load(path)
