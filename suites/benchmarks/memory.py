"""KV memory by the way in which it is reserved: the PagedAttention paper's figure on public traces.

``python -m kvassay.suites.benchmarks.memory`` writes `results/memory.json`, and of it
`results/memory.md` and its charts;
``--check`` measures again and says whether the stored page is what comes out. All of it is
counted, so the same traces give the same page. Memory by lengths alone needs no manager; what
sharing saves is measured through the registered one (``--impl``, `paged`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from kvassay.harness.assay import write_whole
from kvassay.harness.contract import CacheManager
from kvassay.harness.environment import capture
from kvassay.harness.memory.lengths import LLAMA_3_8B, Lengths, lengths_of
from kvassay.harness.memory.reserving import POLICIES, Policy, Use, at_the_end, over_life
from kvassay.harness.memory.saturated import Saturated, saturate
from kvassay.harness.memory.sharing import NOTHING, Saved, beam_search, parallel_sampling
from kvassay.harness.record import Record, read
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, find
from kvassay.harness.report import style
from kvassay.harness.traces.finding import NoTrace, requests
from kvassay.suites.benchmarks.stored import RESULTS, Made, image, stale, told, write

NAME = "memory"
PAGE, KEPT = RESULTS / f"{NAME}.md", RESULTS / f"{NAME}.json"
CHART, SAVED = "memory", "memory_sharing"
CAPTION = "Where the slots of a full pool are: filled, for later, never filled, free"
SAVED_CAPTION = "Blocks that parallel sampling and beam search share"
TRACES = ("azure-conversation", "azure-code", "mooncake-conversation", "mooncake-synthetic")
DRAWN = ("azure-conversation", "mooncake-conversation")
"""Traces in the chart."""
SHARED = ("azure-conversation", "azure-code", "arxiv")
"""Traces whose lengths are branched."""
POOL = 1 << 19
"""Slots: 64 GiB of `LLAMA_3_8B`."""
STEP_SECONDS = 0.025
BRANCHES = (2, 4, 6)
SHARING_BLOCK = 16
SAMPLED = 24
"""Requests of a trace that are branched, evenly spaced."""


@dataclass(frozen=True)
class Row:
    """One policy on one trace."""

    trace: str
    limit: int
    policy: Policy
    end: Use
    life: Use
    pool: Saturated


@dataclass(frozen=True)
class Sharing:
    """Blocks saved on one trace by so many branches."""

    trace: str
    branches: int
    sampling: Saved
    beams: Saved


def rows_of(trace: str, lengths: Lengths) -> list[Row]:
    """Every policy."""
    limit = lengths.limit()
    return [
        Row(
            trace,
            limit,
            policy,
            at_the_end(policy, lengths, limit),
            over_life(policy, lengths, limit),
            saturate(policy, lengths, limit, POOL),
        )
        for policy in POLICIES
    ]


def sharing_of(trace: str, lengths: Lengths, branches: int, entry: Registration) -> Sharing:
    """Both ways to branch, on requests that are evenly spaced in the trace."""
    step = max(1, len(lengths.prompt) // SAMPLED)
    sampling = beams = NOTHING
    chosen = zip(lengths.prompt[::step], lengths.output[::step], strict=True)
    for seed, (prompt, output) in enumerate(list(chosen)[:SAMPLED]):
        case = (entry, int(prompt), int(output), branches, SHARING_BLOCK)
        sampling += parallel_sampling(*case)
        beams += beam_search(*case, seed)
    return Sharing(trace, branches, sampling, beams)


# ------------------------------------------------------------------------------------------ tables


def markdown(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table."""
    head = list(head)
    rows = [head, ["---"] * len(head), *map(list, lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def percent(share: float) -> str:
    """With two digits."""
    return f"{100 * share:.2f}"


def end_table(rows: list[Row]) -> str:
    """Waste at the final length, a column for each trace."""
    by = {(row.policy, row.trace): row for row in rows}
    lines = [
        (policy.name, *(percent(by[policy, trace].end.waste) for trace in TRACES))
        for policy in POLICIES
    ]
    return markdown(("reserved", *TRACES), lines)


def life_table(rows: list[Row], trace: str) -> str:
    """Over the requests' lives."""
    lines = []
    for row in (row for row in rows if row.trace == trace):
        use = row.life
        shares = (percent(part / use.held) for part in (use.filled, use.later, use.never))
        amounts = use.gib_seconds(LLAMA_3_8B, STEP_SECONDS)
        lines.append((row.policy.name, *shares, *(f"{part:,.1f}" for part in amounts)))
    units = ("filled", "for later", "never filled")
    head = ("reserved", *(f"{name}, %" for name in units), *(f"{name}, GiB s" for name in units))
    return markdown(head, lines)


def pool_table(rows: list[Row], trace: str) -> str:
    """In a pool that is always full."""
    found = [row for row in rows if row.trace == trace]
    slowest = max(row.pool.steps for row in found)
    lines = []
    for row in found:
        pool = row.pool
        parts = (pool.use.filled, pool.use.later, pool.use.never)
        shares = [*(percent(pool.share(part)) for part in parts), percent(pool.free)]
        speed = f"{slowest / pool.steps:.1f}"
        again = f"{pool.recomputed:,}"
        lines.append((row.policy.name, *shares, f"{pool.live:.1f}", speed, again))
    head = ("reserved", "filled, %", "for later, %", "never filled, %", "free, %")
    return markdown((*head, "live requests", "speed", "recomputed tokens"), lines)


def sharing_table(found: list[Sharing]) -> str:
    """Blocks saved."""
    lines = [
        (row.trace, str(row.branches), percent(row.sampling.share), percent(row.beams.share))
        for row in found
    ]
    return markdown(("lengths of", "branches", "parallel sampling, %", "beam search, %"), lines)


def sections(rows: list[Row], table: Callable[[list[Row], str], str], heading: str) -> str:
    """A table for each trace, below a heading of its own."""
    found = ((f"### {heading.format(trace=trace)}", table(rows, trace)) for trace in TRACES)
    return "\n\n".join(part for pair in found for part in pair)


TEXT = """# KV memory by the way in which it is reserved

Written by `python -m kvassay.suites.benchmarks.memory`; nothing of it is timed, and the same
traces give the same page (`--check`). The PagedAttention paper compares three contiguous baselines
with blocks on demand. A run of the *max length* that a model allows, here the smallest power of
two that holds every request of the trace: {limits}.

The others: a run of the prompt and of the output's length rounded up to a *power of two*, and a
run of the final length, known beforehand by an *oracle*. A slot is room for one token's KV; a
block of size B is B slots. Nothing is shared between requests, but in the last table.

## At the final length

Slots held and not filled when a request has generated its last token, in % of those held, all
requests of a trace added up.

{end}

## Over a request's life

From its first to its last output token, one token per step. *For later*: the request fills it
before it leaves. *Never filled*: it does not. Of blocks on demand both are in the last block. GiB
s for {shape} ({kib:.0f} KiB per token) at {milliseconds:.0f} ms per step, all requests added up.

{life}

## In a pool that is always full

{pool:,} slots ({gib:.0f} GiB of {shape}), all requests of the trace in a queue from the start, one
token per live request and step. *Free* while the queue's head does not fit: of runs, holes that
are too short. *Speed*: requests per step, against the slowest. Blocks on demand can run out: the
last request to come then gives its blocks up, and its tokens are computed again, which takes no
step here.

{full}

The paper prints 20.4, 26.8 and 38.2 % filled for its three baselines, and 96.3 % for blocks of 16,
on a trace whose outputs are longer beside its prompts than here: so more of a run is for later
there.

## Saved by sharing

Blocks of {block} that stand in a further table, in % of all in tables, over all steps: forks of
{sampled} requests of each trace, through `{impl}`. Each beam follows one of the step before, drawn
uniformly: a model. The paper prints 6 to 31 % for parallel sampling and 38 to 66 % for beam
search, on shorter prompts; the longer the prompt, the more of a table is shared.

{sharing}

{chart}

{saved}
"""


def page(rows: list[Row], sharing: list[Sharing], impl: str) -> str:
    """All of `memory.md`."""
    limits: Mapping[str, int] = {row.trace: row.limit for row in rows}
    return TEXT.format(
        limits=", ".join(f"{trace} {limit:,}" for trace, limit in limits.items()),
        end=end_table(rows),
        shape=LLAMA_3_8B.name,
        kib=LLAMA_3_8B.token_bytes / 2**10,
        milliseconds=1000 * STEP_SECONDS,
        life=sections(rows, life_table, "{trace}"),
        pool=POOL,
        gib=POOL * LLAMA_3_8B.token_bytes / 2**30,
        full=sections(rows, pool_table, "{trace}, full pool"),
        block=SHARING_BLOCK,
        sampled=SAMPLED,
        impl=impl,
        sharing=sharing_table(sharing),
        chart=image(CHART, CAPTION),
        saved=image(SAVED, SAVED_CAPTION),
    )


# ------------------------------------------------------------------------------------------- chart

PARTS = {"filled": 2, "for later": 5, "never filled": 4, "free": 3}
"""Of a pool, and the place of each in the style."""


def chart(rows: list[Row]) -> Any:
    """Shares of a full pool for two traces."""
    figure, panels = style.panels(len(DRAWN), 5.2, 4.4)
    for panel, trace in zip(panels, DRAWN, strict=True):
        _bars(panel, [row for row in rows if row.trace == trace])
        panel.set(title=f"{trace}, {POOL:,} slots", ylabel="% of the pool", ylim=(0, 100))
    style.legend_below(figure, panels[0], len(PARTS))
    return figure


def chart_of_sharing(sharing: list[Sharing]) -> Any:
    """The blocks that sharing saves, by the number of branches."""
    figure, (panel,) = style.panels(1, 6.4)
    for place, trace in enumerate(SHARED):
        found = [row for row in sharing if row.trace == trace]
        where = [row.branches for row in found]
        look = {"color": style.colour(place), "marker": style.marker(place)}
        for name, line in (("beams", "-"), ("sampling", "--")):
            shares = [100 * getattr(row, name).share for row in found]
            panel.plot(where, shares, line, label=f"{trace}, {name}", **look)
    panel.set(xlabel="branches", ylabel="blocks saved, %", ylim=(0, 100), xticks=BRANCHES)
    style.legend(panel, "lower right")
    return figure


def _bars(panel: Any, rows: list[Row]) -> None:
    bottom = [0.0] * len(rows)
    for part, place in PARTS.items():
        heights = [100 * _parts(row.pool)[part] for row in rows]
        names = [row.policy.name.replace(", ", "\n") for row in rows]
        look = {"color": style.colour(place), "hatch": style.hatch(place), "edgecolor": "white"}
        panel.bar(names, heights, bottom=bottom, label=part, linewidth=0, **look)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    panel.tick_params(axis="x", labelsize=7, labelrotation=45)


def _parts(pool: Saturated) -> dict[str, float]:
    use = pool.use
    shares = (*(pool.share(part) for part in (use.filled, use.later, use.never)), pool.free)
    return dict(zip(PARTS, shares, strict=True))


# ------------------------------------------------------------------------------------------ stored


def record_of(rows: list[Row], sharing: list[Sharing], entry: Registration) -> Record:
    """All that was counted: a finding for each policy on a trace, and for each way to branch."""
    return Record(
        suite=NAME,
        subject=subject_of(entry),
        environment=capture(seed="none"),
        findings=[
            *({**asdict(row), "policy": row.policy.name} for row in rows),
            *(asdict(one) for one in sharing),
        ],
    )


def of_record(record: Record) -> tuple[list[Row], list[Sharing]]:
    """What `record_of` recorded."""
    policies = {policy.name: policy for policy in POLICIES}
    rows = [
        Row(
            one["trace"],
            one["limit"],
            policies[one["policy"]],
            Use(**one["end"]),
            Use(**one["life"]),
            Saturated(**{**one["pool"], "use": Use(**one["pool"]["use"])}),
        )
        for one in record.findings
        if "policy" in one
    ]
    sharing = [
        Sharing(one["trace"], one["branches"], Saved(**one["sampling"]), Saved(**one["beams"]))
        for one in record.findings
        if "branches" in one
    ]
    return rows, sharing


def made(results: Path) -> Made:
    """Of the record in the folder; `BadRecord` without one."""
    record = read(results / KEPT.name)
    rows, sharing = of_record(record)
    return _made(rows, sharing, record.subject.name)


def _made(rows: list[Row], sharing: list[Sharing], impl: str) -> Made:
    charts = {CHART: lambda: chart(rows), SAVED: lambda: chart_of_sharing(sharing)}
    return Made(NAME, page(rows, sharing, impl), charts)


# ------------------------------------------------------------------------------------ command line


def measure(entry: Registration) -> tuple[list[Row], list[Sharing]]:
    """All of it; `NoTrace` if a trace is not here."""
    console = Console(stderr=True)
    lengths = {name: lengths_of(requests(name)) for name in {*TRACES, *SHARED}}
    rows = [
        row
        for trace in track(TRACES, "reserving", console=console, transient=True)
        for row in rows_of(trace, lengths[trace])
    ]
    cases = [(trace, branches) for trace in SHARED for branches in BRANCHES]
    sharing = [
        sharing_of(trace, lengths[trace], branches, entry)
        for trace, branches in track(cases, "sharing", console=console, transient=True)
    ]
    return rows, sharing


def main(arguments: list[str] | None = None) -> int:
    """Write the page and the chart, or compare; 1 where the page is another."""
    about = __doc__.splitlines()[0] if __doc__ else ""
    parser = argparse.ArgumentParser(prog="kvassay bench memory", description=about)
    parser.add_argument("--impl", default="paged", help="the manager that forks (paged)")
    parser.add_argument("--check", action="store_true", help="compare with what is stored")
    options = parser.parse_args(arguments)
    (entry,) = (found for found in find(options.impl) if found.kind is CacheManager)
    try:
        rows, sharing = measure(entry)
    except NoTrace as error:
        print(error, file=sys.stderr)
        return 2
    if options.check:
        return told(stale(_made(rows, sharing, entry.name)))
    record = record_of(rows, sharing, entry)
    write_whole(KEPT, record.model_dump_json(indent=1) + "\n")
    write(made(RESULTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
