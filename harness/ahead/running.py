"""Compiling and reading many launches, two at a time, and telling what came out."""

from __future__ import annotations

import json
import multiprocessing
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from kvassay.harness.ahead import amd, nvidia
from kvassay.harness.ahead.compiling import Launch, compile_launch, use_compiler
from kvassay.harness.ahead.report import Report
from kvassay.harness.ahead.targets import TARGETS, Target

PROCESSES = 2


class Configuration(Protocol):
    """A launch that is compiled, and what its binary is held to."""

    @property
    def name(self) -> str: ...
    @property
    def launch(self) -> Launch: ...
    @property
    def phase(self) -> str:
        """As in `Report`."""

    @property
    def tile_bytes(self) -> int: ...
    @property
    def narrow(self) -> tuple[int, ...]: ...


Source = Callable[[str], Iterable[Configuration]]
"""The configurations for a target, by its name. Names are unique."""


def find_source(reference: str) -> Source:
    """``module:function``. Raises what importing it raises."""
    module, _, function = reference.partition(":")
    found: Source = getattr(import_module(module), function)
    return found


def run(reference: str, targets: Sequence[str], processes: int = PROCESSES) -> list[Report]:
    """A report of every configuration on every target, also of those that do not compile."""
    use_compiler()
    source = find_source(reference)
    work = [
        (reference, target, configuration.name)
        for target in targets
        for configuration in source(target)
    ]
    if len(set(work)) < len(work):
        raise ValueError(f"{reference}: two configurations have one name")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, max(1, len(work))), mp_context=context) as pool:
        return list(pool.map(_job, work))


def _job(work: tuple[str, str, str]) -> Report:
    reference, target, name = work
    use_compiler()
    wanted = [one for one in find_source(reference)(target) if one.name == name]
    return report(wanted[0], TARGETS[target])


def report(configuration: Configuration, target: Target) -> Report:
    """Compile one and read it. What goes wrong is in the report, as its error."""
    blank = Report(
        name=configuration.name,
        target=target.name,
        phase=configuration.phase,
        tile_bytes=configuration.tile_bytes,
        narrow=tuple(configuration.narrow),
    )
    try:
        binary = compile_launch(configuration.launch, target)
        found: dict[str, Any] = (amd if target.backend == "hip" else nvidia).read(binary)
    except Exception as error:
        return replace(blank, error=_last_line(error))
    return replace(
        blank,
        kernel=binary.kernel,
        threads=binary.warps * target.warp,
        tensor_memory=binary.tensor_memory,
        seconds=round(binary.seconds, 2),
        **found,
    )


def _last_line(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip()


HEADINGS = (
    *("configuration", "threads", "registers", "spilled", "shared", "products", "copies"),
    *("in flight", "instructions", "seconds"),
)


def table(reports: Iterable[Report]) -> str:
    """A table per target, in Markdown."""
    reports = list(reports)
    parts = []
    for target in dict.fromkeys(one.target for one in reports):
        rows = [HEADINGS, *(_row(one) for one in reports if one.target == target)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [_line([*map(str.ljust, row, widths)]) for row in rows]
        lines.insert(1, _line(["-" * width for width in widths]))
        parts.append(f"{target}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(one: Report) -> tuple[str, ...]:
    if one.error is not None:
        return (one.name, f"error: {one.error}", *[""] * (len(HEADINGS) - 2))
    scalar = f" (+{one.scalar_spills} in lanes)" if one.scalar_spills else ""
    return (
        one.name,
        str(one.threads),
        str(one.registers),
        f"{one.spilled}{scalar}",
        str(one.shared),
        one.products(),
        one.widths(),
        one.in_flight(),
        str(one.instructions),
        f"{one.seconds:.1f}",
    )


def main(arguments: Sequence[str]) -> None:
    """``REFERENCE JSON [TARGET ...]``: compile, write the reports to a file, print the table."""
    reference, path, *targets = arguments
    reports = run(reference, targets or list(TARGETS))
    Path(path).write_text(json.dumps([one.as_json() for one in reports]), encoding="utf-8")
    print(table(reports))


if __name__ == "__main__":
    main(sys.argv[1:])
