"""``kvassay bench serve``: measure an OpenAI-compatible server.

Exit status: 0 if every request is complete, 1 if some are not, 2 for a wrong call or no server, 130
if it was interrupted; what was measured until then is kept.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvassay.harness.wrong_call import fail

if TYPE_CHECKING:
    from rich.console import Console

    from kvassay.harness.load.session import Load, Report
    from kvassay.harness.serving.openai import Api
    from kvassay.harness.workloads.plan import Workload

INTERRUPTED = 130


def serve(
    url: Annotated[str, typer.Option(help="of the server, such as http://localhost:8000")],
    model: Annotated[str, typer.Option(help="as the server calls it")],
    workload: Annotated[str, typer.Option(help="generated requests by name")] = "few-shot",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="parameter=number of the workload; repeat")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="recorded requests instead")] = None,
    trace_format: Annotated[str, typer.Option("--format", help="of the trace")] = "mooncake",
    requests: Annotated[int | None, typer.Option(help="the first so many only", min=1)] = None,
    rate: Annotated[
        float | None, typer.Option(help="open loop: requests per second (a trace: as recorded)")
    ] = None,
    cv: Annotated[float, typer.Option(help="of the gaps: 1 is Poisson, above 1 bursts")] = 1.0,
    speed: Annotated[float, typer.Option(help="a trace so many times as fast")] = 1.0,
    clients: Annotated[
        int | None, typer.Option(help="closed loop: so many requests at a time", min=1)
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(help="the client's own limit; waits count as latency", min=1)
    ] = None,
    warm_up: Annotated[int, typer.Option(help="requests before, not measured", min=0)] = 1,
    seed: Annotated[int, typer.Option(help="of requests and arrivals")] = 0,
    salt: Annotated[
        int | None, typer.Option(help="renames token ids (default: a new one for each run)")
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="token ids to use", min=2)] = 32000,
    block_size: Annotated[int, typer.Option(help="of the server's cache, in tokens", min=1)] = 16,
    slo: Annotated[
        list[str] | None, typer.Option(help="objective, ttft=0.5 (s); also tpot, e2e; repeat")
    ] = None,
    stall_limit: Annotated[float, typer.Option(help="seconds without a chunk")] = 120.0,
    time_limit: Annotated[float | None, typer.Option(help="seconds of a request")] = None,
    chat: Annotated[bool, typer.Option(help="ask for chat, with words for tokens")] = False,
    plain: Annotated[bool, typer.Option(help="send no field that is not OpenAI's")] = False,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY")] = None,
    record: Annotated[Path | None, typer.Option(help="write a record into this folder")] = None,
    timelines: Annotated[Path | None, typer.Option(help="write every stamp to this file")] = None,
) -> None:
    """Send a load to an OpenAI-compatible server, and measure what its clients see."""
    from rich.console import Console

    from kvassay.harness.load import telling
    from kvassay.harness.load.session import NoServer
    from kvassay.harness.load.watching import Limits
    from kvassay.harness.serving.http import NoAiohttp
    from kvassay.harness.serving.openai import Api

    options = {k: v for k, v in locals().items() if k in RECORDED}
    options["salt"] = salt = secrets.randbits(64) if salt is None else salt
    try:
        load = _load(
            workload, set_ or [], trace, trace_format, requests, rate, cv, speed, clients,
            seed, salt, vocabulary,
        )  # fmt: skip
        load = replace(
            load,
            warm_up=_warm_up(load, warm_up, salt, vocabulary),
            at_once=at_once,
            limits=Limits(stall_limit, time_limit),
            objectives=objectives(slo or []),
            block_size=None if chat else block_size,
        )
        console = Console()
        api = Api.CHAT if chat else Api.COMPLETIONS
        report = asyncio.run(_measured(url, model, api, plain, api_key, load, console))
    except (NoAiohttp, NoServer, ValueError, OSError) as error:
        fail(str(error))
    telling.show(report, console)
    if record is not None:
        from kvassay.harness.record import write

        console.print(f"record: {write(telling.record_of(report, model, url, options), record)}")
    if timelines is not None:
        telling.write_timelines(report, timelines)
    raise typer.Exit(INTERRUPTED if report.interrupted else 0 if report.clean else 1)


RECORDED = (
    "workload", "set_", "trace", "trace_format", "requests", "rate", "cv", "speed", "clients",
    "at_once", "warm_up", "seed", "vocabulary", "block_size", "slo", "stall_limit", "time_limit",
    "chat", "plain",
)  # fmt: skip
"""Options that a record tells; the key is not among them."""


def _load(
    workload: str,
    settings: list[str],
    trace: Path | None,
    form: str,
    requests: int | None,
    rate: float | None,
    cv: float,
    speed: float,
    clients: int | None,
    seed: int,
    salt: int,
    vocabulary: int,
) -> Load:
    """The requests and their times; `ValueError` for a load that is neither open nor closed."""
    from kvassay.harness.load.arriving import drawn
    from kvassay.harness.load.salting import salted
    from kvassay.harness.load.session import Load
    from kvassay.harness.load.workloads import generated, recorded
    from kvassay.harness.workloads import arrivals

    times = None
    if trace is not None:
        made, rows = recorded(trace, form, seed, vocabulary, requests)
        if rate is None and clients is None:
            times = list(arrivals.recorded(rows, speed))
    else:
        made = generated(workload, seed, settings, vocabulary)
        made = replace(made, requests=made.requests[:requests])
    if not made.requests:
        raise ValueError("no requests: expected at least one")
    if rate is not None and clients is not None:
        raise ValueError("expected --rate (open loop) or --clients (closed loop), got both")
    if rate is None and clients is None and times is None:
        raise ValueError("expected --rate (open loop) or --clients (closed loop), got neither")
    process = None
    if rate is not None:
        times, process = drawn(rate, cv, len(made.requests), seed), (rate, cv)
    made = replace(made, requests=salted(made.requests, salt, vocabulary))
    return Load(made, times, clients or 1, process)


def _warm_up(load: Load, count: int, salt: int, vocabulary: int) -> Workload | None:
    """The first requests under another salt: the caches that are measured have not seen them."""
    from kvassay.harness.load.salting import salted
    from kvassay.harness.load.session import first_of

    few = first_of(load.workload, count)
    return replace(few, requests=salted(few.requests, salt + 1, vocabulary)) if count else None


def objectives(given: list[str]) -> dict[str, float]:
    """Limits in seconds by metric, of ``ttft=0.5`` and the like; `ValueError` for others."""
    from kvassay.harness.metrics.rates import OBJECTIVES

    found = {}
    for one in given:
        tag, _, limit = one.partition("=")
        try:
            found[tag] = float(limit)
        except ValueError:
            raise ValueError(f"slo: expected metric=seconds, got {one!r}") from None
        if tag not in OBJECTIVES:
            raise ValueError(f"slo: expected one of {', '.join(OBJECTIVES)}, got {tag!r}")
    return found


async def _measured(
    url: str,
    model: str,
    api: Api,
    plain: bool,
    api_key: str | None,
    load: Load,
    console: Console,
) -> Report:
    from kvassay.harness.load.progress import Progress
    from kvassay.harness.load.session import look_for, measured
    from kvassay.harness.serving.http import HTTP, allow_many_sockets
    from kvassay.harness.serving.openai import EXTENSIONS, OpenAIEngine

    allow_many_sockets()
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with HTTP(url, headers=headers) as transport:
        extra = {} if plain else EXTENSIONS
        engine = OpenAIEngine(transport, model, api=api, extra=extra)
        notes = await look_for(engine)
        with Progress(len(load.workload.requests), console) as progress:
            report = await measured(engine, load, time.monotonic, progress.told)
    return replace(report, notes=(*notes, *report.notes))
