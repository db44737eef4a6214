"""Each format on rows written by hand: what is read, and what is damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvassay.harness.traces import (
    agentic,
    azure,
    bailian,
    burstgpt,
    mooncake,
    ragpulse,
    servegen,
    vidur,
)
from kvassay.harness.traces.reading import BadTrace
from kvassay.harness.traces.request import Segment, TraceRequest


def bad(read: Callable[..., Any], path: Path, line: int, reason: str) -> None:
    with pytest.raises(BadTrace, match=reason) as caught:
        list(read(path))
    assert (caught.value.path, caught.value.line) == (path, line)


# ---------------------------------------------------------------------------------------- mooncake

MOONCAKE = {"timestamp": 1500, "input_length": 1025, "output_length": 7, "hash_ids": [0, 3, 4]}


def test_mooncake(written: Any) -> None:
    (got,) = mooncake.read(written("a.jsonl.gz", json.dumps(MOONCAKE)))
    assert got == TraceRequest(1025, 7, arrival=1.5, blocks=[0, 3, 4], block_tokens=512)
    assert got.full_blocks() == [0, 3]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"hash_ids": [0, 4, 3]}, "expected increasing ids, got 3 after 4"),
        ({"hash_ids": [0, 3, 3]}, "expected increasing ids, got 3 after 3"),
        ({"hash_ids": [0, 3]}, "expected 3 for 1025 tokens, got 2"),
        ({"hash_ids": [-1, 3, 4]}, "hash_ids: expected ints >= 0, got -1"),
        ({"input_length": -5}, "input_length: expected an int >= 1, got -5"),
        ({"input_length": 0, "hash_ids": []}, "input_length: expected an int >= 1, got 0"),
        ({"output_length": -1}, "output_length: expected an int >= 1"),
        ({"timestamp": 1499}, "timestamp: expected at least 1500"),
        ({"timestamp": 1500.5}, "timestamp: expected an int"),
    ],
)
def test_damage_in_mooncake(written: Any, changed: dict[str, Any], reason: str) -> None:
    rows = (json.dumps(MOONCAKE), json.dumps(MOONCAKE | changed))
    bad(mooncake.read, written("a.jsonl", *rows), 2, reason)


# ----------------------------------------------------------------------------------------- agentic


def asked(t: float, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": 64 * len(ids) + 5, "out": 9, "hash_ids": ids} | more


def conversation(*requests: dict[str, Any], **more: Any) -> str:
    head = {"id": "one", "block_size": 64, "hash_id_scope": "local", "requests": requests}
    return json.dumps(head | more)


def test_ids_of_one_conversation_are_not_those_of_another(written: Any) -> None:
    first = conversation(asked(0.0, [1, 2]), asked(1.0, [1, 5]))
    second = conversation(asked(0.0, [1, 2]), id="two")
    blocks = [got.blocks for got in agentic.read(written("a.jsonl", first, second))]
    assert blocks == [[1, 2], [1, 5], [7, 8]]


def test_a_conversation_without_full_blocks_moves_nothing(written: Any) -> None:
    lines = (conversation(asked(0.0, [3])), conversation(asked(0.0, [])), conversation())
    last = conversation(asked(0.0, [0]))
    blocks = [got.blocks for got in agentic.read(written("a.jsonl", *lines, last))]
    assert blocks == [[3], [], [4]]


def test_a_sub_agents_times_count_from_its_start_and_its_ids_are_shared(written: Any) -> None:
    inner = {"t": 10.0, "type": "subagent", "requests": [asked(0.5, [1, 7])]}
    line = conversation(asked(0.0, [1, 2], think_time=0.0, api_time=2.5), inner)
    main, sub = agentic.read(written("a.jsonl", line))
    assert (main.arrival, main.kind, main.api_time, main.think_time) == (0.0, "agent", 2.5, 0.0)
    assert (sub.arrival, sub.kind, sub.api_time, sub.session) == (10.5, "subagent", None, "one")
    assert sub.blocks == [1, 7]


def test_a_request_may_have_generated_nothing_and_contexts_may_shrink(written: Any) -> None:
    line = conversation(asked(0.0, [1, 2, 3], out=0), asked(1.0, [9]))
    assert [got.output_tokens for got in agentic.read(written("a.jsonl", line))] == [0, 9]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (conversation(block_size=16), "block_size: expected 64, got 16"),
        (conversation(hash_id_scope="global"), "hash_id_scope: expected 'local'"),
        (conversation(asked(0.0, [1], **{"in": 128})), "expected 2 for 128 tokens, got 1"),
        (conversation(asked(0.0, [1], out=-1)), "out: expected an int >= 0"),
        (conversation(asked(-1.0, [1])), "t: expected a number >= 0"),
        (conversation(asked(0.0, [1], type="x")), "type: expected one of n, s, got 'x'"),
        (conversation({"t": 0.0, "type": "subagent"}), "no field 'requests'"),
        (json.dumps({"id": "one"}), "no field 'block_size'"),
    ],
)
def test_damage_in_agentic(written: Any, line: str, reason: str) -> None:
    bad(agentic.read, written("a.jsonl", conversation(), line), 2, reason)


# ------------------------------------------------------------------------------------------- azure

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_azure(tmp_path: Path) -> None:
    rows = (AZURE, "2023-11-16 23:59:59.9999999,4808,10", "2023-11-17 00:00:00.0000001,1,2")
    path = tmp_path / "a.csv"
    path.write_bytes("\r\n".join(rows).encode())
    first, second = azure.read(path)
    assert first == TraceRequest(4808, 10, arrival=0.0)
    assert second == TraceRequest(1, 2, arrival=2e-7)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2023-11-16 18:17:02.0,1,1", "TIMESTAMP: expected no earlier time"),
        ("2023-11-16 18:17:04.0,0,1", "ContextTokens: expected an int >= 1, got 0"),
        ("2023-11-16 18:17:04.0,1,-3", "GeneratedTokens: expected an int >= 1, got -3"),
        ("2023-11-16T18:17:04Z,1,1", "TIMESTAMP: expected YYYY-MM-DD"),
        ("2023-13-16 18:17:04.0,1,1", "TIMESTAMP: month must be in 1..12"),
        ("2023-11-16 18:17:04.0,1", "expected 3 cells, got 2"),
    ],
)
def test_damage_in_azure(written: Any, row: str, reason: str) -> None:
    path = written("a.csv", AZURE, "2023-11-16 18:17:03.5,1,1", row, end="\r\n")
    bad(azure.read, path, 3, reason)


# ----------------------------------------------------------------------------- lengths, and no ids


def test_vidur(written: Any) -> None:
    head = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio"
    assert list(vidur.read(written("a.csv", head, "3772,54,3826,69.85"))) == [
        TraceRequest(3772, 54)
    ]
    bad(vidur.read, written("a.csv", head, "2,2,5,1.0"), 2, r"expected 2 \+ 2, got 5")
    bad(vidur.read, written("a.csv", head, "0,2,2,0.0"), 2, "num_prefill_tokens: expected an int")


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def test_burstgpt_without_response_tokens_has_failed(written: Any) -> None:
    rows = ("5,ChatGPT,472,18,490,Conversation log", "45.5,GPT-4,1087,0,1087,API log")
    done, failed = burstgpt.read(written("a.csv", BURST, *rows))
    assert done == TraceRequest(472, 18, arrival=5.0, kind="Conversation log")
    assert failed == TraceRequest(1087, 0, arrival=45.5, kind="API log", failed=True)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x,ChatGPT,1,1,2,API log", "Timestamp: expected seconds >= 0, got 'x'"),
        ("nan,ChatGPT,1,1,2,API log", "Timestamp: expected seconds >= 0"),
        ("1,ChatGPT,1,1,3,API log", r"Total tokens: expected 1 \+ 1, got 3"),
        ("1,ChatGPT,-1,2,1,API log", "Request tokens: expected an int >= 0, got -1"),
    ],
)
def test_damage_in_burstgpt(written: Any, row: str, reason: str) -> None:
    bad(burstgpt.read, written("a.csv", BURST, row), 2, reason)


CHAT = {
    "chat_id": 159,
    "parent_chat_id": 55,
    "timestamp": 61.114,
    "input_length": 33,
    "output_length": 132,
    "type": "text",
    "turn": 2,
    "hash_ids": [1089, 5, 1089],
}


def test_bailian_ids_stand_for_contents(written: Any) -> None:
    root = {name: value for name, value in CHAT.items() if name != "hash_ids"}
    rows = (json.dumps(CHAT), json.dumps(root | {"parent_chat_id": -1}))
    turn, first = bailian.read(written("a.jsonl", *rows))
    assert turn == TraceRequest(
        33,
        132,
        arrival=61.114,
        blocks=[1089, 5, 1089],
        block_tokens=16,
        prefix_ids=False,
        session="159",
        parent="55",
        turn=2,
        kind="text",
    )
    assert turn.full_blocks() == [1089, 5]
    assert (first.parent, first.blocks, list(first.full_blocks())) == (None, None, [])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"parent_chat_id": -2}, "parent_chat_id: expected an id, or -1"),
        ({"hash_ids": [1]}, "expected 2 to 3 for 33 tokens, got 1"),
        ({"timestamp": -1}, "timestamp: expected a number >= 0"),
        ({"output_length": -1}, "output_length: expected an int >= 0"),
    ],
)
def test_damage_in_bailian(written: Any, changed: dict[str, Any], reason: str) -> None:
    bad(bailian.read, written("a.jsonl", json.dumps(CHAT | changed)), 1, reason)


# ---------------------------------------------------------------------------------------- ragpulse

TABLES = {
    "1_sys_prompt": ('{"sys_prompt_id": 1, "token_length": 10}',),
    "2_passages": ('{"passage_id": 2, "token_length": 20}', '{"passage_id": 3, "token_length": 4}'),
    "3_history": ('{"history_id": 4, "token_length": 1}',),
    "4_user_input": ('{"user_input_id": 5, "token_length": 2}',),
    "5_web_search": ('{"web_search_id": 6, "token_length": 0}',),
}


def asked_rag(time: str = "82", tokens: int = 44, **ids: list[int]) -> str:
    kinds: dict[str, list[int]] = {kind: [] for kind in ragpulse.KINDS}
    row = {"timestamp": time, "input_length": tokens, "output_length": 3, "session_id": "s"}
    return json.dumps(row | {"hash_ids": kinds | ids})


def rag(written: Any, *rows: str, **tables: tuple[str, ...]) -> Path:
    for name, lines in (TABLES | tables).items():
        written(f"r_{name}.jsonl.gz", *lines, "")
    path: Path = written("r_0_trace.jsonl.gz", *rows, "")
    return path


def test_ragpulse_prompts_are_segments_with_lengths(written: Any) -> None:
    row = asked_rag(sys_prompt=[1], passages_ids=[3, 2], user_input=[5])
    (got,) = ragpulse.read(rag(written, row))
    assert [(segment.id, segment.tokens) for segment in got.segments] == [
        (1, 10),
        (3, 4),
        (2, 20),
        (5, 2),
    ]
    assert got.segments[0] == Segment(1, 10, "sys_prompt")
    assert (got.input_tokens, got.arrival, got.recording, got.blocks) == (44, 82.0, 0, None)


def test_where_ragpulse_goes_back_in_time_another_recording_begins(written: Any) -> None:
    path = rag(written, asked_rag("5"), asked_rag("9"), asked_rag("0"), asked_rag("9"))
    recordings = [(got.recording, got.arrival) for got in ragpulse.read(path)]
    assert recordings == [(0, 5.0), (0, 9.0), (1, 0.0), (1, 9.0)]


def test_damage_in_ragpulse(written: Any) -> None:
    bad(ragpulse.read, rag(written, asked_rag(history=[9])), 1, "segment 9 is not in 3_history")
    bad(ragpulse.read, rag(written, asked_rag(tokens=9, sys_prompt=[1])), 1, "segments' 10 tokens")
    bad(ragpulse.read, rag(written, asked_rag("-1")), 1, "timestamp: expected a string of whole")
    bad(ragpulse.read, written("other.jsonl", asked_rag()), 1, "named like 0_trace")
    twice = TABLES["3_history"] * 2
    with pytest.raises(BadTrace, match=r"3_history.*line 2: history_id: 4 is there twice"):
        list(ragpulse.read(rag(written, asked_rag(), **{"3_history": twice})))


# ---------------------------------------------------------------------------------------- servegen

LENGTHS = {
    "input_tokens": "{4: 0.25, 8: 0.75}",
    "output_tokens": "{2: 1.0}",
    "reason_ratio": "{0.5: 1}",
}
EMPTY = dict.fromkeys(LENGTHS, "{}")


def client(trace: list[Any] | None = None, **changed: Any) -> str:
    rows = [[0.0, 2.5, 1.3, "Gamma", 0.5, 0.2], [600.0, 0.0, 0.0, "", 0.0, 0.0]]
    head = {"client": 35, "mean_rate": 4.5, "trace": rows if trace is None else trace}
    return json.dumps(head | {"dataset": {"0": LENGTHS, "21600": EMPTY}} | changed)


def test_servegen_has_distributions_per_window(written: Any) -> None:
    (got,) = servegen.read(written("a.jsonl.gz", client()))
    assert (got.client, got.mean_rate) == (35, 4.5)
    first, idle = got.windows
    assert (first.start, first.rate, first.family) == (0.0, 2.5, "Gamma")
    assert (idle.start, idle.rate, idle.family) == (600.0, 0.0, None)
    (window,) = got.lengths  # the other one has no traffic
    assert window.input_tokens.mean() == 7.0
    rng = Random(0)
    drawn = [window.input_tokens.draw(rng) for _ in range(2000)]
    assert set(drawn) == {4.0, 8.0}
    assert 0.70 < drawn.count(8.0) / 2000 < 0.80


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (client([[0.0, 1.0]]), "trace: expected rows of 6 cells"),
        (client([[5.0, 1.0, 1.0, "Gamma", 1.0, 1.0]]), "increasing multiples of 600"),
        (client([[0.0, -1.0, 1.0, "Gamma", 1.0, 1.0]]), "rate: expected a number >= 0"),
        (client([[0.0, 1.0, 1.0, "Zeta", 1.0, 1.0]]), "expected one of the families"),
        (client(dataset={"7": LENGTHS}), "dataset: expected multiples of 21600"),
        (client(dataset={"0": LENGTHS | {"input_tokens": "{}"}}), "expected all of"),
        (client(dataset={"0": LENGTHS | {"input_tokens": "{1: 0.5}"}}), "add up to 1, got 0.5"),
        (client(dataset={"0": LENGTHS | {"input_tokens": "{-1: 1.0}"}}), "expected a value >= 0"),
        (client(dataset={"0": LENGTHS | {"input_tokens": "exit(1)"}}), "expected {value"),
        (client(dataset={"0": LENGTHS | {"input_tokens": "{exit(1): 1.0}"}}), "expected value: pr"),
    ],
)
def test_damage_in_servegen(written: Any, line: str, reason: str) -> None:
    bad(servegen.read, written("a.jsonl", client(), line), 2, reason)
