"""One run of one implementation: a scenario replayed, or operations generated and recorded."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol, TypeVar

from kvassay.harness.checker import Checker, Effect
from kvassay.harness.contract import Capability, ContractError, Declaration, GroupSpec
from kvassay.harness.evidence import Seen
from kvassay.harness.generator import Generator
from kvassay.harness.group_checker import GroupChecker
from kvassay.harness.groups import default_groups, drawn_groups, groups_of
from kvassay.harness.registry import Registration, Unavailable, check_attributes
from kvassay.harness.scenario import Operation, Quiesce, Scenario, Script, Step
from kvassay.harness.violation import Crash, Hang, Violation

TIME_LIMIT = 10.0
"""Seconds after which a run counts as hung."""
BUILD_LIMIT = 60.0
"""The same for building: the first instance of an adapter imports its engine."""
INSPECTION = frozenset(
    {Capability.COUNTERS, Capability.REFCOUNTS, Capability.WALK, Capability.PEEK, Capability.EVENTS}
)
"""Capabilities that only look."""


Source = Callable[[Checker], Iterable[Operation]]
"""Operations for a checker, drawn as they are run."""


class Stepping(Protocol):
    """A checker, whatever it checks."""

    index: int

    @property
    def operation(self) -> Step | None: ...

    def step(self, operation: Any) -> Effect: ...

    def met(self) -> Counter[Seen]: ...


AnyChecker = TypeVar("AnyChecker", bound=Stepping)


@dataclass
class Run:
    """What came of one run."""

    scenario: Script
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
        raise Hang(f"no answer within {seconds:g} s: it hangs")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def build(
    registration: Registration,
    num_blocks: int,
    block_size: int,
    groups: tuple[GroupSpec, ...] | None = None,
) -> Checker:
    """A new instance under a checker; the instance may insist on another geometry.

    One that claims GROUPS is built with `groups`; without any, with the usual ones, and with so
    many blocks for each of them. Raises `ValueError` where the factory does not offer the geometry,
    `ContractError` or `Unavailable` where the registration is at fault, `Crash` where building
    fails.
    """
    shape: dict[str, Any] = {"num_blocks": num_blocks, "block_size": block_size}
    if registration.declaration.has(Capability.GROUPS):
        shape["groups"] = groups or default_groups(block_size)
        shape["num_blocks"] *= 1 if groups else len(shape["groups"])

    def checked(manager: Any) -> Checker:
        check_attributes(manager, registration)
        insisted = groups_of(manager, registration.declaration)
        if insisted is None:
            return Checker(manager, registration.declaration)
        return GroupChecker(manager, registration.declaration, insisted)

    return built(registration, shape, checked)


def built(
    registration: Registration, shape: dict[str, Any], checked: Callable[[Any], AnyChecker]
) -> AnyChecker:
    """A new instance under a checker of its kind; raises what `build` raises."""
    try:
        instance = registration.build(**shape)
    except (ValueError, Unavailable):
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        raise Crash(f"building it: {type(error).__name__}: {error}") from error
    try:
        return checked(instance)
    except (Violation, Crash, ContractError):
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        raise Crash(f"a new instance: {type(error).__name__}: {error}") from error


def replay(registration: Registration, scenario: Scenario) -> Run:
    """Run a scenario from the start; the verdict is None if nothing is wrong."""
    new = partial(build, registration, *scenario.shape, scenario.groups)
    return _guarded(new, scenario.shape, lambda checker: scenario.operations, scenario)


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

    def operations(checker: Checker) -> Iterator[Operation]:
        generator = Generator(rng, checker, focus)
        for _ in range(length):
            yield generator.next()

    groups = None
    if registration.declaration.has(Capability.GROUPS):
        groups = drawn_groups(rng, block_size)
        num_blocks *= len(groups)
    return drive(registration, num_blocks, block_size, operations, groups)


def drive(
    registration: Registration,
    num_blocks: int,
    block_size: int,
    source: Source,
    groups: tuple[GroupSpec, ...] | None = None,
) -> Run:
    """Run operations as they are drawn, ending with `Quiesce`; skipped ones are not recorded."""

    def closed(checker: Checker) -> Iterator[Operation]:
        for operation in source(checker):
            yield operation
            if isinstance(operation, Quiesce):
                return
        yield Quiesce()

    new = partial(build, registration, num_blocks, block_size, groups)
    return _guarded(new, (num_blocks, block_size), closed, None)


def _guarded(
    new: Callable[[], Checker],
    shape: tuple[int, int],
    source: Source,
    scenario: Scenario | None,
) -> Run:
    """Build and run within the time limit; whatever goes wrong becomes the verdict."""
    run = Run(scenario or Scenario(*shape, ()))
    checker, done = guarded(run, new, source, scenario is None)
    if scenario is None:
        run.scenario = Scenario(*shape, tuple(done))
        if checker is not None:
            model = checker.model
            run.scenario = Scenario(
                model.num_blocks, model.block_size, tuple(done), groups=_groups_built(checker)
            )
    return run


def _groups_built(checker: Checker) -> tuple[GroupSpec, ...] | None:
    """The groups of a scenario that was drawn for this instance."""
    if isinstance(checker, GroupChecker) and checker.has(Capability.GROUPS):
        return checker.groups
    return None


def guarded(
    run: Run,
    new: Callable[[], AnyChecker],
    source: Callable[[AnyChecker], Iterable[Any]],
    drawn: bool,
) -> tuple[AnyChecker | None, list[Any]]:
    """Build and run within the time limit; what was met and what went wrong is put into `run`.

    Returns the checker, if it came to that, and the operations; of `drawn` ones, those that were
    not skipped.
    """
    done: list[Any] = []
    checker: AnyChecker | None = None
    try:
        with time_limit(BUILD_LIMIT):
            checker = new()
        with time_limit(TIME_LIMIT):
            for operation in source(checker):
                done.append(operation)
                effect = checker.step(operation)
                run.effects[effect] += 1
                if effect is Effect.SKIPPED and drawn:
                    done.pop()
                    checker.index -= 1
    except (Violation, Crash) as verdict:
        run.verdict = verdict
    except Hang as hang:
        run.verdict = _hung(hang, checker)
    if checker is not None:
        run.met = checker.met()
    return checker, done


def _hung(hang: Hang, checker: Stepping | None) -> Crash:
    """A hang is raised from outside the step: say where it was."""
    if checker is None:
        return Crash(f"building it: {hang}", hangs=True)
    return Crash(str(hang), checker.index, checker.operation, hangs=True)
