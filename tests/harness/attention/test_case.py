"""Attention cases as recipes and files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvassay.harness.attention.case import BadCase, Case, Scaling, Trial, load, to_json

CASE = Case(((20, 3), (5, 1)), window_left=4, k_scale=Scaling.HEAD, evicted=True, seed=7)


def test_a_case_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text(to_json(Trial("oracle", CASE, "K1 in x", "told")))
    assert load(path) == Trial("oracle", CASE, "K1 in x", "told")


def test_values_at_their_defaults_are_left_out() -> None:
    stored = json.loads(to_json(Trial("oracle", Case(((1, 1),)))))["case"]
    assert stored == {"seqs": [[1, 1]]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seqs": ((-1, 1),)}, "seqs: expected no negative lengths"),
        ({"num_q_heads": 0}, "num_q_heads: expected at least 1, got 0"),
        ({"dtype": "float8_e5m2"}, "dtype, cache_dtype: unknown"),
        ({"window_left": -1}, "window_left: expected None or at least 0, got -1"),
        ({"softcap": 0.0}, r"softcap: expected None or above 0, got 0\.0"),
        ({"cache_layout": "interleaved", "head_dim": 32}, "expected head_dim_v equal to head_dim"),
        ({"cache_layout": "v_in_k", "head_dim": 32}, "expected head_dim_v up to head_dim"),
        ({"window_left": None}, "evicted: expected a window_left"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadCase, match=message):
        replace(CASE, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not to be read as JSON"),
        ("[" * 100_000, "not to be read as JSON"),
        ('{"format": "x"}', "expected the format 'kvassay attention case'"),
        ('{"format": "kvassay attention case", "version": 2}', "expected version 1, got 2"),
        (
            '{"format": "kvassay attention case", "version": 1, "check": "a", "case": {"x": 1}}',
            "unexpected keyword argument 'x'",
        ),
        (
            '{"format": "kvassay attention case", "version": 1, "check": "a",'
            ' "case": {"seqs": [[1, 1]], "contents": "wet"}}',
            "'wet' is not a valid Contents",
        ),
    ],
)
def test_what_is_no_case_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(BadCase, match=message) as told:
        load(path)
    assert str(told.value).startswith(str(path))


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadCase, match="not to be read as JSON"):
        load(path)


def test_first_seen_is_the_edge_of_the_first_row_s_window() -> None:
    assert [CASE.first_seen(index) for index in range(2)] == [20 - 3 - 4, 0]
    assert replace(CASE, window_left=None, evicted=False).first_seen(0) == 0
