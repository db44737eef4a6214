"""Where the traces are, and which reader belongs to which file.

The folder is that of the environment variable KVASSAY_TRACES; without it, ``shared/traces`` beside
the repository. Traces are data of others and do not come with kvassay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvassay.harness.traces import agentic, azure, bailian, burstgpt, mooncake, ragpulse, vidur
from kvassay.harness.traces.reading import Opener, open_plain
from kvassay.harness.traces.request import TraceRequest

VARIABLE = "KVASSAY_TRACES"
DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "traces"

Reader = Callable[[Path, Opener], Iterator[TraceRequest]]

FORMATS: Mapping[str, Reader] = {
    "mooncake": mooncake.read,
    "agentic": agentic.read,
    "ragpulse": ragpulse.read,
    "azure": azure.read,
    "vidur": vidur.read,
    "bailian": bailian.read,
    "burstgpt": burstgpt.read,
}
"""Readers of requests by format; ServeGen's profiles are none (`servegen.read`)."""


@dataclass(frozen=True)
class Known:
    """A trace by name."""

    format: str
    file: str


KNOWN: Mapping[str, Known] = {
    "mooncake-conversation": Known("mooncake", "mooncake_fast25_conversation.jsonl.gz"),
    "mooncake-synthetic": Known("mooncake", "mooncake_fast25_synthetic.jsonl.gz"),
    "agentic": Known("agentic", "agentic_coding_block64_first64.jsonl.gz"),
    "ragpulse": Known("ragpulse", "ragpulse_0_trace.jsonl.gz"),
    "azure-code": Known("azure", "azure_llm_2023_code.csv.gz"),
    "azure-conversation": Known("azure", "azure_llm_2023_conv.csv.gz"),
    "arxiv": Known("vidur", "arxiv_summarization_lengths.csv.gz"),
}


class NoTrace(LookupError):
    """A trace that is not here, or not known; says where it was looked for."""


def folder() -> Path:
    """The folder of traces, which need not exist."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else DEFAULT


def located(file: str) -> Path:
    """A file in the folder; `NoTrace` if it is not there."""
    path = folder() / file
    if not path.is_file():
        raise NoTrace(f"no {file} in {folder()}: set {VARIABLE} to the folder of traces")
    return path


def requests(trace: str, opened: Opener = open_plain) -> Iterator[TraceRequest]:
    """The requests of a known trace, or of ``format:path``."""
    if trace in KNOWN:
        known = KNOWN[trace]
        return FORMATS[known.format](located(known.file), opened)
    format, _, path = trace.partition(":")
    if format not in FORMATS or not path:
        raise NoTrace(
            f"no trace {trace!r}: expected one of {', '.join(KNOWN)}, or FORMAT:PATH with a format "
            f"of {', '.join(FORMATS)}"
        )
    return FORMATS[format](Path(path), opened)
