"""Replays a scenario and tells it step by step, with the block tables drawn in text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kvassay.harness import drawing
from kvassay.harness.checker import Checker
from kvassay.harness.contract import Capability, GroupSpec
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import Scenario, Script
from kvassay.harness.session import BUILD_LIMIT, TIME_LIMIT, AnyChecker, build, time_limit
from kvassay.harness.violation import Crash, Hang, Violation


class Told:
    """What a telling ended with."""

    verdict: Exception | None = None
    """A violation, or a crash."""


def explain(registration: Registration, scenario: Scenario, told: Told) -> Iterator[str]:
    """Lines that tell what each operation did; `told.verdict` is set at the end."""

    def heading(checker: Checker) -> str:
        manager = checker.manager
        told = f"{registration.name}: {manager.num_blocks} blocks of {manager.block_size} tokens"
        groups = scenario.groups if checker.has(Capability.GROUPS) else None
        return told + "".join(f", {_in_words(spec)}" for spec in groups or ())

    return tell(
        scenario,
        told,
        lambda: build(registration, *scenario.shape, scenario.groups),
        heading,
        lambda checker: drawing.tables(
            checker.model.readers(), checker.model, checker.device.memory
        ).splitlines(),
    )


def _in_words(spec: GroupSpec) -> str:
    return f"group {spec.name}" + ("" if spec.window is None else f" (window {spec.window})")


def tell(
    scenario: Script,
    told: Told,
    new: Callable[[], AnyChecker],
    heading: Callable[[AnyChecker], str],
    drawn: Callable[[AnyChecker], Iterable[str]],
) -> Iterator[str]:
    """Lines that tell what each operation did to what `new` builds, as it is `drawn`."""
    try:
        with time_limit(BUILD_LIMIT):
            checker = new()
    except (Crash, Violation) as verdict:
        told.verdict = verdict
        yield str(verdict)
        return
    except Hang as hang:
        told.verdict = Crash(f"building it: {hang}")
        yield str(told.verdict)
        return
    yield heading(checker)
    for index, operation in enumerate(scenario.operations):
        line = f"{index:>3}  {drawing.operation(operation)}"
        try:
            with time_limit(TIME_LIMIT):
                effect = checker.step(operation)
        except (Violation, Crash) as verdict:
            told.verdict = verdict
            yield f"{line}   <-- here"
        except Hang as hang:
            told.verdict = Crash(str(hang), index, operation)
            yield f"{line}   <-- here"
        else:
            yield f"{line}   {effect}"
        yield from (f"       {row}" for row in drawn(checker))
        if told.verdict is not None:
            yield str(told.verdict)
            return
    yield "no violation"
