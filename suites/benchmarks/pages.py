"""Every published page: made again from what is stored, or the command that measures it.

    python -m kvassay.suites.benchmarks.pages [--check] [NAME ...]

writes the pages of `results/` that have stored records, with their charts, and the index
(`results/README.md`). ``--check`` writes nothing: it says what is another than what comes out of
its records, what nobody knows how to make, and which charts no page shows, and then exits with 1.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from kvassay.harness.record import BadRecord, Record, read_all
from kvassay.harness.report import style
from kvassay.harness.verdict import Status
from kvassay.harness.verdict_table import as_markdown, merged
from kvassay.suites.benchmarks.stored import (
    CHARTS,
    RESULTS,
    USAGE_ERROR,
    Made,
    Maker,
    stale,
    told,
    write,
)

BENCHMARKS = "kvassay.suites.benchmarks"
INDEX = "README"
LINK = re.compile(rf"{CHARTS}/[\w.-]+\.(?:{'|'.join(style.FORMS)})")


@dataclass(frozen=True)
class Page:
    """A page, and where its numbers come from."""

    name: str
    """Of its file, without the ending."""
    about: str
    command: str
    """Measures it, or what it is made of; empty where nothing is measured."""
    records: str = ""
    """File or folder of results that it is made of; empty if it comes out of a run only."""
    make: Maker | None = None


def _by(module: str) -> Maker:
    """What makes a page, imported when it is asked for."""

    def make(results: Path) -> Made:
        found: Made = import_module(f"{BENCHMARKS}.{module}").made(results)
        return found

    return make


def _verdicts(results: Path) -> Made:
    found = read_all([results / "verdicts"])
    failing = "".join(_failing(found, results / "findings"))
    return Made("verdicts", as_markdown(merged(found), found) + (failing and FAILING + failing))


FAILING = """
## What fails

By implementation, what was met first in each circumstance, and the findings that it led to.

"""
FOUND_BY = re.compile(r"^- found by: .*--impl ([\w-]+)`(.*)$", re.MULTILINE)


def _failing(records: Sequence[Record], findings: Path) -> Iterator[str]:
    """A line for every verdict that fails, with the findings that name it.

    Of those that name implementation and id, the ones that name the circumstance too, if any do.
    """
    pages = {}
    for path in sorted(findings.glob("*-*.md")):
        by = FOUND_BY.search(path.read_text("utf-8"))
        if by is not None:
            pages[path.name] = by[1], by[2]
    told = {
        (record.subject.name, entry.invariant, entry.reason)
        for record in records
        for entry in record.verdicts
        if entry.status in (Status.FAIL, Status.ERROR)
    }
    for name, invariant, reason in sorted(told):
        named = {
            page: ids
            for page, (of, ids) in pages.items()
            if of == name and re.search(rf"\b{invariant}\b", ids)
        }
        circumstance = f'"{reason.partition(":")[0]}"'
        exact = [page for page, ids in named.items() if circumstance in ids]
        links = ", ".join(f"[`{page}`](findings/{page})" for page in exact or named)
        yield f"- **{name}** {invariant}: {reason}" + (f" ({links})" if links else "") + "\n"


def _metrics(results: Path) -> Made:
    return Made("metrics", import_module("kvassay.harness.metrics.definitions").page())


PAGES = (
    Page("verdicts", "the verdicts on built-ins, engines, kernels and pairs",
         "tox run -e assay,triton,flex,transformers,vllm,sglang -- --record results/verdicts",
         "verdicts/", _verdicts),
    Page("releases", "the same suites on one release of an engine after another, and what changed",
         "python -m kvassay.suites.benchmarks.releases --engine vllm --version 0.32.0",
         "releases/", _by("releases_page")),
    Page("kill_matrix", "planted faults and what convicts them; controls that nothing convicts",
         "tox run -e trial -- --necessity --record results/kill_matrix.json",
         "kill_matrix.json", _by("kill_matrix_page")),
    Page("control_plane", "what cache managers cost their scheduler, and how it grows",
         "kvassay bench control --record results/control",
         "control/", _by("control_page")),
    Page("engine", "time to the first token of vLLM, prefix caching on and off",
         "kvassay bench engine --http 6 --record results/engine",
         "engine/", _by("engine_page")),
    Page("inside", "every slot that running engines read, through their workers' tables",
         "kvassay bench inside --record results/inside",
         "inside/", _by("inside_page")),
    Page("load_curves", "latency, throughput and goodput of two vLLM servers up to saturation",
         "kvassay bench curve --slo ttft=0.2 --slo tpot=0.05 --record results/load_curves",
         "load_curves/", _by("load_curves_page")),
    Page("memory", "where KV memory goes, in contiguous runs and in blocks, on public traces",
         "python -m kvassay.suites.benchmarks.memory", "memory.json", _by("memory")),
    Page("capacity", "hits on public traces by the size of the cache in GiB",
         "python -m kvassay.suites.benchmarks.capacity", "capacity/", _by("capacity")),
    Page("virtual", "a trace in virtual time, and how far that is from a real vLLM "
         "(`virtual_error.json`, by `python -m kvassay.suites.benchmarks.virtual_error`)",
         "python -m kvassay.suites.benchmarks.virtual --limit 3000 --speed 0.1 --speed 0.3 "
         "--speed 0.5 --speed 0.7 --speed 1 --cache on --cache off --pool-tokens 853658 "
         "--pool-tokens 5120000 --output results",
         "virtual.json", _by("virtual_page")),
    Page("calibration", "the rounding budget: false alarms, and detection beside other tolerances",
         "tox run -e calibration", "calibration.csv", _by("calibration")),
    Page("gate", "how often the gate fails what did not change, and passes what did",
         "tox run -e calibrate", "gate.json", _by("gate_rates")),
    Page("hit_laws", "which part of a prompt is found again, measured from outside",
         "python -m kvassay.suites.benchmarks.hit_laws --impl NAME --record results/hit_laws",
         "hit_laws/", _by("hit_laws")),
    Page("metrics", "what each latency metric means, and what other tools call it",
         "", "../harness/metrics/", _metrics),
    Page("replay", "two traces through `radix` and vLLM's manager",
         "kvassay bench replay --no-counters --impl radix --impl vllm-eventless --trace "
         "mooncake-conversation --trace agentic --capacity 100000 --page results/replay.md"),
    Page("ttft", "time to the first token in the rig, beside what hits promise of it",
         "tox run -e ttft -- --clock cpu --page results/ttft.md"),
    Page("agreement", "latencies beside those of `vllm bench serve`",
         "tox run -e agreement -- --page results/agreement.md"),
    Page("agreement_scripted", "the same where the truth is known",
         "tox run -e agreement -- --server scripted --page results/agreement_scripted.md"),
    Page("probes", "what the probes see at up to 65,531 keys", "tox run -e probes"),
    Page("false_alarms", "correct implementations on thousands of generated cases",
         "python -m kvassay.suites.benchmarks.false_alarms --impl NAME"),
    Page("yardstick", "how many examples the generator needs, beside uniform operations",
         "python -m kvassay.suites.benchmarks.yardstick --all --most 2000 --seeds 1 --page "
         "results/yardstick.md"),
    Page("triton", "the verdicts on Triton kernels, built-in and out of wheels, interpreted",
         "tox run -e triton,vllm-triton,sglang-triton -- --record DIR`, then `kvassay merge DIR "
         "--output results/triton.md"),
    Page("search", "how much of SGLang was searched, by core and page size",
         "pytest suites/ -n auto --assay search --seconds 60 --block-size N --impl sglang-... "
         "--record DIR`, then `kvassay merge DIR --totals results/search.md"),
)  # fmt: skip
"""Every page of `results/`; the order is that of the index."""

FOLDERS = {
    CHARTS: "the charts of the pages, as SVG and PNG",
    "schema": "the JSON Schema of records",
    "findings": "what was found in engines, a page each, and what else is odd in them",
    "counterexamples": "scenario files of failures, replayed first the next time (not in git)",
    "__pycache__": "",
}
"""Folders that pages are not made of."""

TEXT = """# results

What runs leave behind. Written by `tox run -e pages`, which makes the pages of the first table
again, with their charts; `-- --check` says which of them is another than what its records say. A
page is of the newest complete run in its records.

## Made of what is stored

| page | about | made of | measured by |
|---|---|---|---|
{made}

Several environments measure for one page: the records of `control/` are made once in each engine's
(`.tox/vllm/bin/kvassay bench control --impl radix --impl vllm --record results/control`, in
`.tox/sglang` with `--impl radix --impl sglang-unified-python --impl sglang-unified-rust`, once more
with `--block-size 1`); those of `engine/` and `load_curves/` in vLLM's. Time is measured on a
machine that does nothing else.

## Out of a run

| page | about | written by |
|---|---|---|
{measured}

Traces are found by `KVASSAY_TRACES`. `memory`, `capacity` and `calibration` take `--check` as well,
and then measure again.

## Beside the pages

{folders}

Not here: code, but for the schema's package.
"""


def index(results: Path) -> Made:
    """`README.md`: the pages that are there."""
    there = [page for page in PAGES if (results / f"{page.name}.md").is_file()]
    made = (
        f"| [`{page.name}.md`]({page.name}.md) | {page.about} | [`{page.records}`]({page.records}) "
        f"| {f'`{page.command}`' if page.command else '(definitions)'} |"
        for page in there
        if page.make
    )
    measured = (
        f"| [`{page.name}.md`]({page.name}.md) | {page.about} | `{page.command}` |"
        for page in there
        if not page.make
    )
    kept = (f"- `{name}/`: {about}." for name, about in FOLDERS.items() if about)
    return Made(
        INDEX,
        TEXT.format(made="\n".join(made), measured="\n".join(measured), folders="\n".join(kept)),
    )


def makers(results: Path, names: Sequence[str] = ()) -> Iterator[Maker]:
    """Of the pages that have something stored, or are there; only these, if some are named."""
    for page in PAGES:
        stands = (results / page.records).exists() or (results / f"{page.name}.md").exists()
        if page.make and stands and (not names or page.name in names):
            yield page.make
    if not names:
        yield index


def unaccounted(results: Path) -> Iterator[str]:
    """What nobody knows how to make, and charts that do not match what the pages show."""
    known = {page.name for page in PAGES} | {INDEX}
    pages = sorted(results.glob("*.md"))
    for path in pages:
        if path.stem not in known:
            yield f"{path.name}: what it is made of, or measures it, is not in {BENCHMARKS}.pages"
    stems = {path.stem for path in pages}
    for page in PAGES:
        if not page.make and page.name not in stems:
            yield f"{page.name}.md: is listed, and not there"
    used = {page.records.strip("/") for page in PAGES} | set(FOLDERS)
    for path in sorted(results.iterdir()):
        if path.is_dir() and path.name not in used:
            yield f"{path.name}/: no page is made of it"
    shown = {link for path in pages for link in LINK.findall(path.read_text("utf-8"))}
    there = {f"{CHARTS}/{path.name}" for path in (results / CHARTS).glob("*")}
    yield from (f"{chart}: a page shows it, and it is not there" for chart in sorted(shown - there))
    yield from (f"{chart}: no page shows it" for chart in sorted(there - shown))


def check(results: Path, names: Sequence[str] = ()) -> list[str]:
    """All that is stale, or not accounted for; empty if all is as it should be."""
    found = [] if names else list(unaccounted(results))
    for make in makers(results, names):
        try:
            found += stale(make(results), results)
        except BadRecord as error:
            found.append(str(error))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """From the command line; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="pages (all that are stored)")
    parser.add_argument("--check", action="store_true", help="say what is stale, write nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the pages")
    options = parser.parse_args(arguments)
    of_run = {page.name: page.command for page in PAGES if not page.make}
    for name in options.names:
        if name in of_run:
            print(f"{name}: comes out of a run only: {of_run[name]}", file=sys.stderr)
            return USAGE_ERROR
        if name not in {page.name for page in PAGES}:
            print(f"{name}: expected one of {', '.join(p.name for p in PAGES)}", file=sys.stderr)
            return USAGE_ERROR
    if options.check:
        return told(check(options.results, options.names))
    try:
        for make in makers(options.results, options.names):
            write(make(options.results), options.results)
    except BadRecord as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
