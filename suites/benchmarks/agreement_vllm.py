"""`vllm bench serve` as a process: what it is given, when it begins, and what it says it measured.

It replays a trace in Mooncake's format, as kvassay does: the same times, lengths and sharing, sent
as token ids. Its stamps are of the system's monotonic clock, which kvassay's are of, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import fmean, median
from typing import Any

from kvassay.harness.traces.mooncake import BLOCK_TOKENS

BEGIN = "Starting main benchmark run"
"""What it prints right before its first request."""
ROUNDING = 1e-6
"""How far, relatively, a median that it publishes may be from that of its own samples."""
GRACE = 5.0
"""Seconds to end when it is told to."""
CODE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""The command without its front door, which asks for a distribution named vllm: CPU builds are
named otherwise."""


class BadResult(ValueError):
    """Its result cannot be compared; says why."""


@dataclass(frozen=True)
class Sample:
    """One request, as a tool saw it; times in seconds."""

    sent: float
    waited: float
    """From when it was to be sent to the sending."""
    ttft: float
    """From the sending."""
    tpot: float
    prompt_tokens: int
    output_tokens: int

    @property
    def ended(self) -> float:
        """When the last token came."""
        return self.sent + self.ttft + self.tpot * (self.output_tokens - 1)


@dataclass(frozen=True)
class Shape:
    """What a round sends: in each turn so many requests at once."""

    turns: int
    burst: int
    gap: float
    """Seconds from one turn to the next."""
    prompt_tokens: int
    output_tokens: int

    @property
    def requests(self) -> int:
        """Of a round."""
        return self.turns * self.burst


def write_trace(path: Path, shape: Shape) -> Path:
    """The round as a trace of prompts that share nothing. Returns `path`."""
    blocks = count()
    number = -(-shape.prompt_tokens // BLOCK_TOKENS)
    rows = [
        {
            "timestamp": round(1000 * shape.gap * (request // shape.burst)),
            "input_length": shape.prompt_tokens,
            "output_length": shape.output_tokens,
            "hash_ids": [next(blocks) for _ in range(number)],
        }
        for request in range(shape.requests)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Into the folder of a model: a word for each token id, which the tool draws ids from."""
    words = {f"w{number}": number for number in range(vocabulary)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    for name, content in (("tokenizer", tokenizer), ("tokenizer_config", config)):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


# ------------------------------------------------------------------------------------- the process


@dataclass(frozen=True)
class Tool:
    """One run of it."""

    url: str
    model: str
    folder: Path
    """Of model and tokenizer; the result is written there, too."""
    trace: Path
    shape: Shape
    at_once: int | None
    extra: dict[str, Any]
    """Further fields of every request."""

    @property
    def result(self) -> Path:
        """What it writes."""
        return self.folder / "result.json"

    def command(self) -> list[str]:
        """The whole command line."""
        limit = () if self.at_once is None else ("--max-concurrency", str(self.at_once))
        return [
            *(sys.executable, "-c", CODE, "--backend", "vllm", "--base-url", self.url),
            *("--model", self.model, "--tokenizer", str(self.folder), "--disable-tqdm"),
            *("--dataset-name", "timed_trace", "--dataset-path", str(self.trace)),
            *("--timed-trace-chunk-hash-size", str(BLOCK_TOKENS)),
            *("--timed-trace-sec-multiplier", "0.001", "--num-prompts", str(self.shape.requests)),
            *("--num-warmups", "1", "--temperature", "0", "--extra-body", json.dumps(self.extra)),
            *("--save-result", "--save-detailed", "--result-dir", str(self.folder)),
            *("--result-filename", self.result.name, *limit),
        ]

    async def start(self) -> Process:
        """Start it, and wait until it begins to send; `BadResult` if it ends before."""
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        process = await asyncio.create_subprocess_exec(
            *self.command(), env=environment, stdout=PIPE, stderr=STDOUT
        )
        said: list[str] = []
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                said.append(line.decode(errors="replace"))
                if BEGIN in said[-1]:
                    return process
            raise BadResult(f"vllm bench serve did not begin:\n{''.join(said[-12:])}")
        except BaseException:
            await stop(process)
            raise

    async def finish(self, process: Process) -> list[Sample]:
        """Wait for its end, and read what it measured; `BadResult` if it failed."""
        assert process.stdout is not None
        said = (await process.stdout.read()).decode(errors="replace")
        if await process.wait():
            raise BadResult(f"vllm bench serve ended with {process.returncode}:\n{said[-800:]}")
        return read_result(json.loads(self.result.read_text("utf-8")), self.shape.requests)


async def stop(process: Process) -> None:
    """End it, however far it is."""
    for end in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            end()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await process.wait()


# --------------------------------------------------------------------------------------- its result


def read_result(result: dict[str, Any], requests: int) -> list[Sample]:
    """Its samples in the order of the trace.

    `BadResult` unless every request was answered with two tokens or more, and the medians and means
    that it publishes are those of the samples: they are what its users read.
    """
    errors = [error for error in result.get("errors", ()) if error]
    if result.get("completed") != requests or errors:
        why = errors[0].strip().splitlines()[-1] if errors else "no error told"
        got = result.get("completed")
        raise BadResult(f"expected {requests} requests to be completed, got {got}: {why}")
    try:
        samples = list(_samples(result))
        _require_published(result, samples)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, BadResult):
            raise
        raise BadResult(f"no detailed result of this version: {error!r}") from None
    return samples


FIELDS = ("start_times", "queue_times", "ttfts", "latencies", "input_lens", "output_lens")


def _samples(result: dict[str, Any]) -> Iterator[Sample]:
    for sent, waited, ttft, latency, prompt, output in zip(
        *(result[field] for field in FIELDS), strict=True
    ):
        yield Sample(sent, waited, ttft, (latency - ttft) / (output - 1), prompt, output)


def _require_published(result: dict[str, Any], samples: Sequence[Sample]) -> None:
    for metric in ("ttft", "tpot"):
        values = [1000 * getattr(one, metric) for one in samples]
        for name, own in (("median", median(values)), ("mean", fmean(values))):
            published = result[f"{name}_{metric}_ms"]
            if abs(published - own) > ROUNDING * abs(own):
                raise BadResult(
                    f"its {name} {metric} is {published:g} ms, and {own:g} ms by its own samples"
                )
