"""What the tests of Triton kernels out of wheels share: judging one case, and planting faults."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from kvassay.harness import registry
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.budget import Judgement, expect, judge
from kvassay.harness.contract import Capability

Edit = tuple[str, str, str]
"""Of a file of the wheel: its end, what stands there, and what is to stand there instead."""


def registered(module: str, name: str) -> registry.Registration:
    """One registration of a module."""
    return {entry.name: entry for entry in registry.find(module)}[name]


def pairs(lattice: dict[str, dict[str, Case]]) -> list[tuple[str, str]]:
    """Every kernel of a lattice with each of its cases, by name."""
    return [(name, case) for name, cases in lattice.items() for case in cases]


def judged(kernel: Kernel, case: Case) -> Judgement:
    """One case against the oracle."""
    built = kernel.build(case)
    result = kernel.attend(built)
    declared = kernel.declaration
    expected = expect(built.batch, declared.rounding)
    return judge(result, expected, empty_row=declared.empty_row, lse=kernel.has(Capability.LSE))


def edited(root: Path, files: Iterable[str], edit: Edit, copy: Path) -> Path:
    """A copy of some files below `root`, with a text of one of them replaced wherever it stands."""
    end, before, after = edit
    for name in files:
        source, target = root / name, copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        if name.endswith(end):
            text = target.read_text()
            assert before in text, f"{end} has changed: {before!r} is not in it"
            target.write_text(text.replace(before, after))
    return copy
