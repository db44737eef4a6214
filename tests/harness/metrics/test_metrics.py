"""Each metric on timelines that were written down by hand, with the numbers beside them."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from kvassay.harness.contract import TokenEvent
from kvassay.harness.metrics import definitions
from kvassay.harness.metrics.catalogue import METRICS, measure
from kvassay.harness.metrics.metric import Measured, Per, Tool
from kvassay.harness.metrics.run import Run
from kvassay.harness.metrics.timeline import UNSEEN, Ending, Timeline
from kvassay.harness.record import Direction


def event(
    time: float, *tokens: int, reason: str | None = None, cached: int | None = None
) -> TokenEvent:
    return TokenEvent("r", tokens, time, reason, cached)


def timeline(*events: TokenEvent, **parts: object) -> Timeline:
    usual = Timeline("r", 10, 1.0, 1.5, events, 9.0, Ending.COMPLETE)
    return replace(usual, **parts)  # type: ignore[arg-type]


STEADY = timeline(
    event(2.0), event(3.0, 7), event(3.5, 8), event(5.0, 9, reason="length", cached=4)
)
BUNDLED = timeline(event(3.0, 7, 8, 9), event(5.0, 10, reason="stop"))
SILENT = timeline(event(2.0), event(3.0, reason="stop"))
FAILED = timeline(event(3.0, 7), ending=Ending.FAILED, error="broken")


def values(*timelines: Timeline, **objectives: float) -> dict[str, Measured]:
    return measure(Run(timelines, objectives))


def test_a_steady_stream_has_these_numbers() -> None:
    found = values(STEADY)
    assert found["ttft"].samples == (2.0,)
    assert found["icl"].samples == found["itl"].samples == (0.5, 1.5)
    assert found["tpot"].value == 1.0
    assert found["e2e"].value == 4.0
    assert found["send_delay"].value == 0.5
    assert found["output_throughput"].value == 3 / 8
    assert found["request_throughput"].value == 1 / 8
    assert found["cached_tokens"].value == 4
    assert found["hit_rate"].value == 0.4


def test_what_was_not_measured_is_none_and_says_what_it_needs() -> None:
    found = values(STEADY)
    for tag in ("ttft_queue", "ttft_rest", "goodput", "hit_rate_declared", "preemptions"):
        assert found[tag].value is None
        assert found[tag].reason.startswith("needs ")
    nothing = values()
    assert nothing["requests_complete"].value == 0  # that many were counted
    assert {tag for tag, one in nothing.items() if one.value is not None} == {
        f"requests_{ending.value}" for ending in Ending
    }


def test_a_chunk_of_several_tokens_has_no_gaps_between_tokens() -> None:
    found = values(BUNDLED)
    assert found["icl"].samples == (2.0,)
    assert found["icl"].per is Per.CHUNK
    assert found["itl"].value is None
    assert found["tpot"].value == 2 / 3
    assert found["output_throughput"].value == 4 / 8
    assert values(STEADY, BUNDLED)["itl"].value is None  # one is not chosen for the other
    assert values(STEADY)["itl"].per is Per.TOKEN


def test_text_without_ids_is_counted_by_the_server_or_not_at_all() -> None:
    chunks = (event(3.0, UNSEEN), event(4.0, UNSEEN, reason="stop"))
    unknown, one_each, more = (timeline(*chunks, output_tokens=n) for n in (None, 2, 5))
    assert values(unknown)["tpot"].value is None
    assert values(unknown)["output_throughput"].value is None
    assert values(unknown)["itl"].value is None
    assert values(one_each)["itl"].samples == (1.0,)
    assert values(more)["itl"].value is None
    assert values(more)["tpot"].value == 1 / 4
    assert values(unknown)["ttft"].value == 2.0


def test_a_request_without_a_token_has_no_latency() -> None:
    found = values(SILENT, STEADY)
    assert found["ttft"].samples == (2.0,)
    assert found["e2e"].samples == (4.0,)
    assert values(SILENT)["ttft"].value is None


def test_failures_have_no_latency_and_show_in_percentiles_over_all() -> None:
    found = values(STEADY, FAILED)
    assert found["ttft"].samples == (2.0,)
    assert found["ttft"].lost == 1
    assert found["requests_failed"].value == 1
    assert found["output_throughput"].value == 3 / 8
    assert found["ttft"].percentile(99) == 2.0
    assert found["ttft"].percentile_of_all(99) is None
    assert found["ttft"].percentile_of_all(0) == 2.0
    assert values(STEADY)["ttft"].percentile_of_all(99) == 2.0
    with pytest.raises(ValueError, match="expected samples per request"):
        found["icl"].percentile_of_all(50)


def test_percentiles_are_interpolated() -> None:
    run = [timeline(event(1.0 + n, 7, reason="stop"), request=str(n)) for n in range(1, 12)]
    found = values(*run)["ttft"]
    assert found.value == found.percentile(50) == 6.0
    assert found.percentile(90) == 10.0
    assert found.percentile(99) == pytest.approx(10.9)
    lost = values(*run, *([FAILED] * 1))["ttft"]
    assert lost.percentile_of_all(50) == 6.5
    assert lost.percentile_of_all(90) == pytest.approx(10.9)


def test_goodput_needs_every_objective() -> None:
    assert values(STEADY, ttft=2.0, tpot=1.0, e2e=4.0)["goodput"].value == 1 / 8
    for tag, limit in (("ttft", 1.9), ("tpot", 0.9), ("e2e", 3.9)):
        assert values(STEADY, **{tag: limit})["goodput"].value == 0
    assert values(FAILED, ttft=9.0)["goodput"].value == 0
    assert values(SILENT, ttft=9.0)["goodput"].value == 0
    assert values(SILENT, tpot=9.0)["goodput"].value == 0
    single = timeline(event(3.0, 7, reason="stop"))
    assert values(single, tpot=0.1)["goodput"].value == 1 / 8
    untold = timeline(event(3.0, UNSEEN, reason="stop"))
    assert values(untold, tpot=0.1)["goodput"].value is None
    with pytest.raises(ValueError, match=r"expected some of .*got \['speed'\]"):
        values(STEADY, speed=1.0)


def test_stages_split_the_time_to_the_first_token() -> None:
    stages = {"queue": 0.5, "lookup": 0.25, "reservation": 0.125, "prefill": 1.0}
    found = values(replace(STEADY, stages=stages))
    assert [found[f"ttft_{name}"].value for name in stages] == [*stages.values()]
    assert found["ttft_rest"].value == 0.125


def test_hits_are_unknown_as_soon_as_one_is() -> None:
    found = values(STEADY, BUNDLED)
    assert found["hit_rate"].value is None
    assert found["cached_tokens"].samples == (4.0,)
    declared = values(replace(STEADY, declared_cached=8), replace(BUNDLED, declared_cached=0))
    assert declared["hit_rate_declared"].value == 8 / 20


def test_preemptions_are_unknown_as_soon_as_one_is() -> None:
    known = replace(STEADY, preemptions=2)
    assert values(known, replace(FAILED, preemptions=1))["preemptions"].value == 3
    assert values(known, STEADY)["preemptions"].value is None


@pytest.mark.parametrize("tag", METRICS)
def test_every_metric_is_defined(tag: str) -> None:
    metric = METRICS[tag]
    assert metric.tag == tag
    assert isinstance(metric.direction, Direction)
    assert metric.unit
    assert metric.title()
    assert metric.formula().startswith("`")
    assert set(metric.elsewhere) <= set(Tool)
    # One small class each: it is read at a glance.
    assert len(inspect.getsource(type(metric)).splitlines()) <= 40


def test_the_published_page_is_not_stale() -> None:
    assert definitions.PAGE.read_text(encoding="utf-8") == definitions.page()
    assert all(f"| `{tag}` |" in definitions.page() for tag in METRICS)
