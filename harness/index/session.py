"""One run of one index: a scenario replayed, or operations generated and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random

from kvassay.harness.index.checker import IndexChecker
from kvassay.harness.index.generator import IndexGenerator
from kvassay.harness.index.scenario import IndexScenario, Operation
from kvassay.harness.registry import Registration
from kvassay.harness.session import Run, built, guarded

Source = Callable[[IndexChecker], Iterable[Operation]]


def build(registration: Registration, capacity: int | None, page_size: int) -> IndexChecker:
    """A new index under a checker; raises what `session.build` does."""
    return built(
        registration,
        {"capacity": capacity, "page_size": page_size},
        lambda index: IndexChecker(index, registration.declaration, capacity, page_size),
    )


def replay(registration: Registration, scenario: IndexScenario) -> Run:
    """Run a scenario from the start; the verdict is None if nothing is wrong."""
    run = Run(scenario)
    guarded(
        run,
        lambda: build(registration, scenario.capacity, scenario.page_size),
        lambda checker: scenario.operations,
        drawn=False,
    )
    return run


def explore(
    registration: Registration,
    rng: Random,
    num_blocks: int,
    block_size: int,
    *,
    length: int,
    focus: str = "",
) -> Run:
    """Generate up to `length` operations and let go of everything.

    Blocks are pages here, and 0 of them stand for no limit. There is one suite, so no `focus`.
    """

    def operations(checker: IndexChecker) -> Iterator[Operation]:
        generator = IndexGenerator(rng, checker)
        for _ in range(length):
            yield generator.next()
        yield from generator.last()

    return drive(registration, num_blocks * block_size or None, block_size, operations)


def drive(registration: Registration, capacity: int | None, page_size: int, source: Source) -> Run:
    """Run operations as they are drawn; skipped ones are not recorded."""
    run = Run(IndexScenario(capacity, page_size, ()))
    _, done = guarded(run, lambda: build(registration, capacity, page_size), source, drawn=True)
    run.scenario = IndexScenario(capacity, page_size, tuple(done))
    return run
