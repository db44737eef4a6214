"""One run of one implementation: a scenario replayed, or operations generated and recorded."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kvassay.harness.checker import Checker, Effect
from kvassay.harness.contract import Capability, Declaration
from kvassay.harness.evidence import Seen
from kvassay.harness.generator import Generator
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import Operation, Quiesce, Scenario
from kvassay.harness.violation import Crash, Violation

TIME_LIMIT = 20.0
"""Seconds after which a run counts as hung."""
INSPECTION = frozenset(
    {Capability.COUNTERS, Capability.REFCOUNTS, Capability.WALK, Capability.PEEK, Capability.EVENTS}
)
"""Capabilities that only look."""


@dataclass
class Run:
    """What came of one run."""

    scenario: Scenario
    verdict: Violation | Crash | None = None
    met: Counter[Seen] = field(default_factory=Counter)
    effects: Counter[Effect] = field(default_factory=Counter)


def without_inspection(declaration: Declaration) -> Declaration:
    """The declaration with every capability removed that only looks."""
    fields = {name: getattr(declaration, name) for name in Declaration.__dataclass_fields__}
    return Declaration(**{**fields, "capabilities": declaration.capabilities - INSPECTION})


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Turn a hang into a `Crash`, where signals can do so (POSIX, main thread)."""
    usable = hasattr(signal, "setitimer") and (
        threading.current_thread() is threading.main_thread()
    )
    if not usable:
        yield
        return

    def on_alarm(*_: Any) -> None:
        raise Crash(f"no answer within {seconds:g} s: it hangs")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def build(registration: Registration, num_blocks: int, block_size: int) -> Checker:
    """A new instance under a checker; the instance may insist on another geometry."""
    try:
        manager = registration.build(num_blocks=num_blocks, block_size=block_size)
    except ValueError:
        raise
    except RuntimeError:
        raise
    except Exception as error:
        raise Crash(f"building it: {type(error).__name__}: {error}") from error
    return Checker(manager, registration.declaration)


def replay(registration: Registration, scenario: Scenario) -> Run:
    """Run a scenario from the start; the verdict is None if nothing is wrong."""
    checker = build(registration, scenario.num_blocks, scenario.block_size)
    run = Run(scenario)
    try:
        with time_limit(TIME_LIMIT):
            for operation in scenario.operations:
                run.effects[checker.step(operation)] += 1
    except (Violation, Crash) as verdict:
        run.verdict = _placed(verdict, checker)
    run.met = checker.met()
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
    """Generate up to `length` operations and a final quiescence; records what took effect."""
    checker = build(registration, num_blocks, block_size)
    generator = Generator(rng, checker, focus)
    return drive(checker, (generator.next() for _ in range(length)))


def drive(checker: Checker, operations: Iterable[Operation]) -> Run:
    """Run operations as they are drawn, ending with `Quiesce`; skipped ones are not recorded."""
    done: list[Operation] = []
    effects: Counter[Effect] = Counter()
    verdict: Violation | Crash | None = None
    try:
        with time_limit(TIME_LIMIT):
            for operation in operations:
                done.append(operation)
                effect = checker.step(operation)
                effects[effect] += 1
                if effect is Effect.SKIPPED:
                    done.pop()
                    checker.index -= 1
                if isinstance(operation, Quiesce):
                    break
            else:
                done.append(Quiesce())
                effects[checker.step(done[-1])] += 1
    except (Violation, Crash) as raised:
        verdict = _placed(raised, checker)
    scenario = Scenario(checker.manager.num_blocks, checker.manager.block_size, tuple(done))
    return Run(scenario, verdict, checker.met(), effects)


def _placed(verdict: Violation | Crash, checker: Checker) -> Violation | Crash:
    """A hang is raised from outside the step: say where it was."""
    if verdict.operation is None:
        verdict.index, verdict.operation = checker.index, checker.operation
    return verdict
