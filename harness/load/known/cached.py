"""Hits in a scripted world: a server with a cache of whole blocks that tells what it found.

Two runs of the same workload meet the same server: the second finds it warm, and must still be
measured as if nobody had been there. A server that forgets half-way finds less than is declared,
and what it found is to be told; one that tells nothing is not one that found nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

from kvassay.harness.load.intended import KnownBlocks, intended_hits
from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.load.known.met import Met
from kvassay.harness.metrics.metric import Measured
from kvassay.harness.metrics.misread import Misread, misread
from kvassay.harness.serving.script import Script, plain
from kvassay.harness.serving.scripted import Asked, Scripted
from kvassay.harness.serving.virtual_time import play
from kvassay.harness.workloads.plan import Planned
from kvassay.harness.workloads.sharing import few_shot, self_consistency

BLOCK = 16
SALTS = (11, 12)
SMALL = {"question_tokens": 24, "output_tokens": 2, "vocabulary": 1000}


class Remembering:
    """Answers at once, and tells what of a prompt it had."""

    def __init__(self, forgets_after: int | None = None, *, tells: bool = True) -> None:
        self.forgets_after, self.tells = forgets_after, tells
        self.cache = KnownBlocks(BLOCK)
        self.found: list[int] = []

    def __call__(self, asked: Asked) -> Script:
        if self.forgets_after is not None and len(self.found) == self.forgets_after:
            self.cache = KnownBlocks(BLOCK)
        prompt = asked.body["prompt"]
        self.found.append(self.cache.hit_then_keep(prompt))
        cached = self.found[-1] if self.tells else None
        return plain(0.25, (0.25,), prompt=len(prompt), cached=cached)


def judge(instrument: Instrument, met: Counter[Met]) -> Iterator[Misread]:
    """Everything that is wrong with how hits are made and told."""
    for workload in (
        few_shot(0, questions=6, example_tokens=64, **SMALL),
        self_consistency(0, questions=3, samples=3, example_tokens=40, **SMALL),
    ):
        yield from _warm(instrument, workload.requests, workload.name, met)
        yield from _forgotten(instrument, workload.requests, workload.name, met)
    yield from _silent(instrument, workload.requests, met)


def _warm(
    instrument: Instrument, requests: Sequence[Planned], name: str, met: Counter[Met]
) -> Iterator[Misread]:
    declared = intended_hits(requests, BLOCK)
    server = Remembering()
    for number, salt in enumerate(SALTS):
        measured = _run(instrument, server, requests, salt)
        scene = f"{name}, run {number + 1} on one server"
        yield from _told(scene, measured, declared, requests)
        intended = sum(declared) / sum(len(one.prompt) for one in requests)
        if measured["hit_rate_declared"].value != intended:
            got = measured["hit_rate_declared"].value
            yield misread("M5", scene, f"hit_rate_declared {intended}", got)
        met[Met.HIT] += sum(map(bool, declared))
        met[Met.WARM] += number


def _forgotten(
    instrument: Instrument, requests: Sequence[Planned], name: str, met: Counter[Met]
) -> Iterator[Misread]:
    server = Remembering(forgets_after=len(requests) // 2)
    measured = _run(instrument, server, requests, SALTS[0])
    yield from _told(f"{name}, a cache that forgets", measured, server.found, requests)
    met[Met.FORGOTTEN] += server.found != intended_hits(requests, BLOCK)


def _silent(
    instrument: Instrument, requests: Sequence[Planned], met: Counter[Met]
) -> Iterator[Misread]:
    measured = _run(instrument, Remembering(tells=False), requests, SALTS[0])
    for tag in ("cached_tokens", "hit_rate"):
        value, samples = measured[tag].value, measured[tag].samples
        if value is not None or samples:
            yield misread("M5", "a server that does not tell", f"{tag} None", value)
    met[Met.SILENT] += 1


def _told(
    scene: str,
    measured: dict[str, Measured],
    hits: Sequence[int],
    requests: Sequence[Planned],
) -> Iterator[Misread]:
    rate = sum(hits) / sum(len(one.prompt) for one in requests)
    if [*measured["cached_tokens"].samples] != [*map(float, hits)]:
        got = [*measured["cached_tokens"].samples]
        yield misread("M5", scene, f"cached_tokens {[*hits]}", got)
    if measured["hit_rate"].value != rate:
        yield misread("M5", scene, f"hit_rate {rate}", measured["hit_rate"].value)


def _run(
    instrument: Instrument, server: Remembering, requests: Sequence[Planned], salt: int
) -> dict[str, Measured]:
    """One after the other, so that each finds what those before it left."""

    async def send() -> dict[str, Measured]:
        clock = asyncio.get_running_loop().time
        engine = instrument.engine(Scripted(server), "scripted", clock=clock)
        generator = instrument.generator(instrument.watcher(engine, clock))
        times = [float(number) for number in range(len(requests))]
        hits = intended_hits(requests, BLOCK)
        sent = await generator.open(instrument.salting(requests, salt), times, hits)
        run = instrument.run_of((), sent.timelines, {})
        return {tag: metric.measure(run) for tag, metric in instrument.metrics.items()}

    return play(send())
