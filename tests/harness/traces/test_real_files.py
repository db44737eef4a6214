"""The real traces have the sizes, lengths and quirks that their description gives."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kvassay.harness.traces import agentic, azure, mooncake, ragpulse, servegen, vidur
from kvassay.harness.traces.request import TraceRequest

Real = Callable[[str], Path]


def gaps_cv(arrivals: list[float]) -> float:
    gaps = [after - before for before, after in pairwise(arrivals)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


def means(requests: list[TraceRequest]) -> tuple[int, int]:
    prompts = statistics.fmean(one.input_tokens for one in requests)
    return round(prompts), round(statistics.fmean(one.output_tokens for one in requests))


def test_mooncake_conversation(real: Real) -> None:
    got = list(mooncake.read(real("mooncake_fast25_conversation.jsonl.gz")))
    assert (len(got), means(got)) == (12031, (12035, 343))
    assert sum(len(one.blocks or ()) for one in got) == 288500
    assert sum(len(one.full_blocks()) for one in got) == 276491
    assert len({one.arrival for one in got}) == 1180
    assert {(one.blocks or [None])[0] for one in got} == {0}
    seen = {tuple(one.blocks or ()) for one in got}
    assert len(got) - len(seen) == 118


def test_mooncake_synthetic(real: Real) -> None:
    got = list(mooncake.read(real("mooncake_fast25_synthetic.jsonl.gz")))
    assert (len(got), means(got)) == (3993, (15325, 149))
    assert len({id for one in got for id in one.blocks or ()}) == 43924
    assert got[-1].arrival == pytest.approx(1022, abs=1)


def test_agentic(real: Real) -> None:
    count = blocks = shrunk = silent = subagents = 0
    beyond, session, before, longest = 0, None, 0, 0
    for one in agentic.read(real("agentic_coding_block64_first64.jsonl.gz")):
        assert one.blocks is not None
        if one.session != session:
            beyond, session, before = longest + 1, one.session, 0
        assert not one.blocks or min(one.blocks) >= beyond
        longest = max(longest, max(one.blocks, default=0))
        count += 1
        blocks += len(one.blocks)
        silent += not one.output_tokens
        subagents += one.kind == "subagent"
        shrunk += one.kind == "agent" and one.input_tokens < before
        before = one.input_tokens if one.kind == "agent" else before
    assert (count, blocks, silent, shrunk) == (4326, 8118269, 1, 58)
    assert subagents > 11


def test_azure(real: Real) -> None:
    code = list(azure.read(real("azure_llm_2023_code.csv.gz")))
    talk = list(azure.read(real("azure_llm_2023_conv.csv.gz")))
    assert (len(code), means(code)) == (8819, (2048, 28))
    assert (len(talk), means(talk)) == (19366, (1155, 211))
    times = [one.arrival or 0.0 for one in code], [one.arrival or 0.0 for one in talk]
    assert [round(each[-1]) for each in times] == [3436, 3502]
    assert gaps_cv(times[0]) == pytest.approx(13.2, abs=0.05)
    assert gaps_cv(times[1]) == pytest.approx(1.09, abs=0.005)
    assert max(after - before for before, after in pairwise(times[0])) == pytest.approx(217, abs=1)


def test_ragpulse(real: Real) -> None:
    got = list(ragpulse.read(real("ragpulse_0_trace.jsonl.gz")))
    assert (len(got), means(got)) == (7106, (2944, 283))
    assert [one.recording for one in got] == [0] * 3800 + [1] * 3306
    extra = {one.input_tokens - sum(part.tokens for part in one.segments) for one in got}
    assert (min(extra), max(extra)) == (6, 12)
    prefixes: set[tuple[int, ...]] = set()
    seen: set[int] = set()
    asked = shared = anywhere = 0
    for one in got:
        ids = tuple(part.id for part in one.segments)
        for end, part in enumerate(one.segments, 1):
            asked += part.tokens
            shared += part.tokens * (ids[:end] in prefixes)
            anywhere += part.tokens * (part.id in seen)
        prefixes |= {ids[:end] for end in range(1, len(ids) + 1)}
        seen |= set(ids)
    assert shared / asked == pytest.approx(0.315, abs=0.0005)
    assert anywhere / asked == pytest.approx(0.720, abs=0.0005)


def test_arxiv(real: Real) -> None:
    got = list(vidur.read(real("arxiv_summarization_lengths.csv.gz")))
    assert (len(got), means(got)) == (28257, (2588, 291))
    totals = [one.input_tokens + one.output_tokens for one in got]
    assert (min(totals), max(totals)) == (39, 4096)


def test_servegen(real: Real) -> None:
    got = list(servegen.read(real("servegen_deepseek_r1_top12.jsonl.gz")))
    assert (len(got), got[0].client, {len(one.windows) for one in got}) == (12, 35, {144})
    for one in got:
        rates = statistics.fmean(window.rate for window in one.windows)
        assert rates == pytest.approx(one.mean_rate, rel=1e-6)
        assert all((window.family is None) <= (window.cv == 0) for window in one.windows)
