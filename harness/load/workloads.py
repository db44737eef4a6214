"""Which requests a load is made of: a generated workload by its name, or a recorded trace."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from kvassay.harness.traces.request import TraceRequest
from kvassay.harness.workloads import branching, sessions, sharing
from kvassay.harness.workloads.plan import Planned, Workload

WORKLOADS: Mapping[str, Callable[..., Workload]] = {
    "few-shot": sharing.few_shot,
    "self-consistency": sharing.self_consistency,
    "parallel-sampling": sharing.parallel_sampling,
    "unrelated": sharing.unrelated,
    "tree-of-thought": branching.tree_of_thought,
    "beam-search": branching.beam_search,
    "multi-turn": sessions.multi_turn,
    "agents": sessions.agents,
}
FORMATS = ("mooncake", "azure", "bailian", "burstgpt", "agentic", "vidur", "ragpulse")
"""Formats of traces: modules of `harness.traces` that read requests."""


def generated(name: str, seed: int, settings: Sequence[str], vocabulary: int) -> Workload:
    """The workload of that name, with settings as in ``questions=8``; `ValueError` for others."""
    if name not in WORKLOADS:
        raise ValueError(f"workload: expected one of {', '.join(WORKLOADS)}, got {name!r}")
    known = [p for p in inspect.signature(WORKLOADS[name]).parameters if p != "seed"]
    given: dict[str, Any] = {"vocabulary": vocabulary}
    for setting in settings:
        parameter, _, value = setting.partition("=")
        if parameter not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}, got {parameter!r}")
        given[parameter] = _number(setting, value)
    return WORKLOADS[name](seed, **given)


def _number(setting: str, value: str) -> int | float:
    try:
        return float(value) if "." in value else int(value)
    except ValueError:
        raise ValueError(f"expected parameter=number, got {setting!r}") from None


def recorded(
    path: Path, form: str, seed: int, vocabulary: int, limit: int | None = None
) -> tuple[Workload, list[TraceRequest]]:
    """The first `limit` requests of a trace: blocks of equal ids have equal tokens.

    Where a trace has no ids, prompts share nothing. A request without an output asks for one token.
    """
    if form not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {form!r}")
    read: Callable[[Path], Iterable[TraceRequest]]
    read = importlib.import_module(f"kvassay.harness.traces.{form}").read
    rows = list(islice(read(path), limit))
    requests = tuple(_planned(n, row, seed, vocabulary) for n, row in enumerate(rows))
    return Workload(path.name, seed, requests, {"format": form, "limit": limit}), rows


def _planned(number: int, row: TraceRequest, seed: int, vocabulary: int) -> Planned:
    tokens: list[int] = []
    for block in row.blocks or ():
        rng = Random(f"{seed} block {block}")
        tokens += rng.choices(range(vocabulary), k=row.block_tokens or 1)
    rest = Random(f"{seed} request {number}")
    tokens += rest.choices(range(vocabulary), k=max(row.input_tokens - len(tokens), 0))
    output = (0,) * max(row.output_tokens, 1)
    return Planned(f"r{number}", tuple(tokens[: max(row.input_tokens, 1)]), output)
