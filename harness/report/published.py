"""The published pages of `results/`, as sections: their tables, and the charts beside them.

A page is Markdown that a benchmark wrote; what is read of it are its tables, under the heading that
stands before each. A page that is not there has no section.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvassay.harness.report.section import Section, Table

LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
IMAGE = re.compile(r"!\[([^]]*)\]\(([\w./-]+)\.png\)")
MARKS = re.compile(r"[*`]+")


@dataclass(frozen=True)
class Page:
    """What a page is about."""

    file: str
    heading: str
    about: str


PAGES = (
    Page("ttft.md", "What reuse does to TTFT",
         "Time to the first token inside a small engine (the rig), by how prompts share."),
    Page("engine.md", "What reuse does to TTFT in vLLM",
         "vLLM on a CPU, in process and over HTTP, prefix caching on and off; and what caching "
         "costs where nothing is shared."),
    Page("inside.md", "The device inside vLLM",
         "Every slot that a running vLLM reads, verified under pressure; faults in its worker."),
    Page("load_curves.md", "Latency against load",
         "Rising open loops on live servers, until one saturates."),
    Page("memory.md", "Memory waste",
         "KV memory by the way it is reserved, on the lengths of public traces: in runs, as "
         "contiguous and its kin do, or in blocks on demand, as paged, radix, vLLM and SGLang do."),
    Page("capacity.md", "Hits against capacity",
         "What a cache of so many GiB hits of public traces."),
    Page("hit_laws.md", "Hit laws, measured",
         "Which part of a prompt is found again, from outside, beside what is declared."),
    Page("replay.md", "Traces through managers",
         "Hits, refusals and time of cache managers on public traces, beside policy and optimum."),
    Page("virtual.md", "Traces in virtual time",
         "Latency against arrival rate in virtual time, with its error against a real engine."),
    Page("kill_matrix.md", "Planted faults",
         "Which check convicts which planted fault, and how soon; controls that nothing convicts."),
    Page("yardstick.md", "The generator beside uniform operations",
         "Examples until a planted fault is convicted."),
    Page("gate.md", "Errors of the gate",
         "How often a gate fails what did not change, and passes what did."),
    Page("agreement.md", "Beside another tool", "Latencies beside those of vllm bench serve."),
    Page("calibration.md", "What the rounding budget sees",
         "Planted errors of kernels, by context length."),
)  # fmt: skip


def sections(folder: Path) -> Iterator[Section]:
    """Those pages that are in the folder."""
    for page in PAGES:
        path = folder / page.file
        if path.is_file():
            id = path.stem.replace("_", "-")
            text = path.read_text("utf-8")
            yield Section(
                id, page.heading, page.about, list(tables(text)), list(images(text, folder))
            )


def images(text: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Charts that a page shows and that are there, as data URLs, and what they show."""
    for alt, file in IMAGE.findall(text):
        # As SVG where there is one: it is smaller, and sharp.
        for path, kind in ((folder / f"{file}.svg", "svg+xml"), (folder / f"{file}.png", "png")):
            if path.is_file():
                data = base64.b64encode(path.read_bytes()).decode()
                yield f"data:image/{kind};base64,{data}", alt
                break


def tables(text: str) -> Iterator[Table]:
    """Of a page in Markdown."""
    caption, rows = "", list[list[str]]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([_plain(cell) for cell in line.strip().strip("|").split("|")])
            continue
        if len(rows) > 2:
            yield Table(caption, rows[0], rows[2:])
        rows = []
        if line.startswith("#"):
            caption = _plain(line.lstrip("#"))


def _plain(text: str) -> str:
    return MARKS.sub("", LINK.sub(r"\1", text)).strip()
