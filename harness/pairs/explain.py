"""Replays a scenario on a pair and tells it step by step: tables, and who was attended to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvassay.harness import drawing
from kvassay.harness.device import FRESH
from kvassay.harness.explain import Told
from kvassay.harness.pairs.blame import Convicted
from kvassay.harness.pairs.session import Pair, Played
from kvassay.harness.pairs.worker import Worker
from kvassay.harness.scenario import Scenario
from kvassay.harness.violation import Crash


def explain(pair: Pair, scenario: Scenario, told: Told) -> Iterator[str]:
    """Lines that tell what each operation did; `told.verdict` is set at the end."""
    try:
        worker = pair.worker(*scenario.shape)
    except Crash as crash:
        told.verdict = crash
        yield str(crash)
        return
    model = worker.model
    yield f"{pair.name}: {model.num_blocks} blocks of {model.block_size} tokens"
    played = Played(scenario)
    for index, operation in enumerate(scenario.operations):
        line = f"{index:>3}  {drawing.operation(operation)}"
        try:
            effect = pair.step(worker, operation, played)
        except Convicted as verdict:
            done = replace(scenario, operations=scenario.operations[: index + 1])
            told.verdict = found = pair.named(verdict, done)
            yield f"{line}   <-- here"
            yield from (f"       {row}" for row in drawn(worker))
            yield from found.story
            yield str(found)
            return
        yield f"{line}   {effect}"
        yield from (f"       {row}" for row in drawn(worker))
    yield f"no violation in {played.attended} batches"


def drawn(worker: Worker) -> list[str]:
    """Every live request's table, with the tokens whose KV lies in its slots."""
    memory = {
        block: _tags(worker, block) for live in worker.model.live.values() for block in live.table
    }
    return drawing.tables(worker.model.live, worker.model, memory).splitlines()


def _tags(worker: Worker, block: int) -> list[int]:
    """What lies in a block: tags, FRESH for what is nobody's KV."""
    slots = [worker.pool.slot([block], offset) for offset in range(worker.model.block_size)]
    tags = [worker.history.named(key) for key, _ in slots]
    return [FRESH if tag is None else tag for tag in tags]
