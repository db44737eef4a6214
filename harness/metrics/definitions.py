"""The published table of definitions, made from the metrics themselves.

``python -m kvassay.harness.metrics.definitions`` writes it to ``results/metrics.md``.
"""

from __future__ import annotations

from pathlib import Path

from kvassay.harness.metrics.catalogue import METRICS
from kvassay.harness.metrics.metric import PERCENTILES, Metric, Tool

PAGE = Path(__file__).parents[2] / "results" / "metrics.md"
HEADINGS = ("tag", "what", "unit", "better", "sample per", "formula", "needs", *Tool)
TEXT = f"""# Metrics

What each number means. A name says little: tools use the same one for different things, and one
thing has several names. This page is made from `harness/metrics` by `python -m
kvassay.harness.metrics.definitions`; a test watches that it is not stale.

- All times are of one monotonic clock. A request starts when it is *meant* to, by the arrival
  process, whether or not the client or the server is ready.
- Only requests that the server finished have latencies. Those that failed, were cut off or were
  given up are counted apart, and nothing is divided by them or added up over them.
- A chunk is not a token. A role, an empty text, a comment, a usage report carry none.
- What was not measured is not shown as 0. Percentiles ({", ".join(f"p{p}" for p in PERCENTILES)})
  are interpolated linearly between samples.
- A run lasts from the first intended start to the last end of any request.

"""
END = """
Names of other tools as in vLLM's `vllm/benchmarks/serve.py`, AIPerf's metrics reference and
GuideLLM's `request_stats.py`; an empty cell means that there is none that we know.
"""


def page() -> str:
    """The whole page, as Markdown."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_row, METRICS.values())]
    return TEXT + "".join(f"| {' | '.join(row)} |\n" for row in rows) + END


def _row(metric: Metric) -> tuple[str, ...]:
    return (
        f"`{metric.tag}`",
        metric.title(),
        metric.unit,
        metric.direction.value,
        metric.per.value,
        metric.formula(),
        ", ".join(metric.needs) or "-",
        *(metric.elsewhere.get(tool, "") for tool in Tool),
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
