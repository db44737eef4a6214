"""Writes a page for each invariant: what it means, a minimal violation, public reports of it.

    python -m kvassay.suites.invariants.pages [--check]

The violation is the shrunk counterexample of a planted fault that may be convicted by this
invariant, as an assay finds and tells it; for kernels, engines and instruments, which have no such
short scenario, the planted faults are listed alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kvassay.harness.assay import Assay, Plan
from kvassay.harness.attention.law import WHOLE_LAW
from kvassay.harness.campaign import CHECK, Finding
from kvassay.harness.explain import Told
from kvassay.harness.invariants import LAW
from kvassay.harness.meaning import MEANING
from kvassay.harness.registry import Registration
from kvassay.harness.session import without_inspection
from kvassay.harness.subjects import subject_of
from kvassay.harness.trial.of_campaigns import SUITES
from kvassay.harness.trial.planted import Family, Planted
from kvassay.harness.trial.workers import catalogue

FOLDER = Path(__file__).parent
FAULTS = "kvassay.impls.faulty.registry"
TOLD = (Family.MANAGER, Family.INDEX)
"""Families whose counterexamples are scenarios."""
INDEX_SUITE = "index"
ENGINES = ("vllm-fault-", "sglang-fault-", "sglang-index-fault-")
"""Faults that are there only where an engine is: a page is the same everywhere."""


def faults() -> list[Planted]:
    """All planted faults but those in engines."""
    every = catalogue(FAULTS).everything()
    return [one for one in every if one.is_fault and not one.name.startswith(ENGINES)]


def pages() -> Iterator[tuple[str, str]]:
    """File name and text of each page, and of their list."""
    known = faults()
    yield "README.md", "\n".join(_contents())
    for id in WHOLE_LAW:
        own = [one for one in known if id in one.accepted]
        yield f"{id}.md", "\n".join(_page(id, own))


def _contents() -> Iterator[str]:
    yield "# Invariants\n"
    yield "A page for each invariant: what it means, a minimal violation, public reports."
    yield "Written by `python -m kvassay.suites.invariants.pages`.\n"
    yield "Not here: the checks themselves.\n"
    yield "| id | title | suite |"
    yield "|---|---|---|"
    for id, one in WHOLE_LAW.items():
        yield f"| [{id}]({id}.md) | {one.title} | [`{one.suite}`](../{one.suite}) |"
    yield ""


def _page(id: str, own: Sequence[Planted]) -> Iterator[str]:
    one = WHOLE_LAW[id]
    yield f"# {id} {one.title}\n"
    yield f"{MEANING[id]}\n"
    yield f"Judged by `pytest suites/{one.suite} --impl NAME`."
    met = " and ".join(" or ".join(seen.value for seen in group) for group in one.reached)
    behind = " and ".join(" or ".join(s.value for s in group) for group in one.behind_windows)
    further = f"; over layer groups or a window also: {behind}" if behind else ""
    yield (f"A verdict needs that the run met: {met}{further}.\n" if met else "")
    if id in LAW:
        yield from _violation(id, own)
    reports = sorted({one.modelled_on for one in own} - {"none", ""})
    if reports:
        yield "## Public reports\n"
        yield f"Restated by planted faults: {', '.join(reports)} ([corpus](../corpus/README.md)).\n"
    yield "## Planted faults that it may convict\n"
    for family in Family:
        names = [f"`{fault.name}`" for fault in own if fault.family is family]
        if names:
            yield f"- {family.value}: {', '.join(names)}"
    yield "\n[`results/kill_matrix.md`](../../results/kill_matrix.md) says what did convict them.\n"


def _violation(id: str, own: Sequence[Planted]) -> Iterator[str]:
    # What only this invariant may convict shows it best; then the shortest.
    candidates = sorted(
        (one for one in own if one.family in TOLD), key=lambda one: (len(one.accepted), one.name)
    )
    for fault in candidates:
        subject: Registration = fault.subject()
        story = _story(id, subject)
        if story is None:
            continue
        yield "## A minimal violation\n"
        yield f"By the planted fault `{fault.name}`. {fault.hides}\n"
        yield "```text"
        yield from (line.rstrip() for line in story)
        yield "```\n"
        return


def _story(id: str, subject: Registration) -> list[str] | None:
    """The counterexample, step by step; None if it shows another invariant, or there is none."""
    finding = _finding(id, subject)
    if finding is None:
        return None
    if not finding.inspected:
        subject = replace(subject, declaration=without_inspection(subject.declaration))
    told = Told()
    story = list(subject_of(subject.kind).explain(subject, finding.scenario, told))
    shown = getattr(told.verdict, "invariant", None)
    return story if shown == id else None


def _finding(id: str, subject: Registration) -> Finding | None:
    for suite in SUITES.get(subject.kind, (INDEX_SUITE,)):
        with TemporaryDirectory() as folder:
            found = Assay(subject, suite, Plan(budget=CHECK, counterexamples=Path(folder)))
        if id in found.outcome.findings:
            return found.outcome.findings[id]
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """From the command line; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only whether they are as stored")
    check = parser.parse_args(arguments).check
    stale = []
    for name, text in pages():
        path = FOLDER / name
        if check and (not path.exists() or path.read_text("utf-8") != text):
            stale.append(name)
        elif not check:
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} is another than it would be written now", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
