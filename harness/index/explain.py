"""Replays an index scenario and tells it step by step, with what is stored drawn in text."""

from __future__ import annotations

from collections.abc import Iterator

from kvassay.harness import drawing
from kvassay.harness.explain import Told, tell
from kvassay.harness.index.checker import IndexChecker
from kvassay.harness.index.scenario import IndexScenario
from kvassay.harness.index.session import build
from kvassay.harness.registry import Registration
from kvassay.reference.index_model import IndexModel

MOST_LINES = 24


def explain(registration: Registration, scenario: IndexScenario, told: Told) -> Iterator[str]:
    """Lines that tell what each operation did; `told.verdict` is set at the end."""
    limit = "no limit" if scenario.capacity is None else f"{scenario.capacity} tokens"

    def drawn(checker: IndexChecker) -> list[str]:
        return stored(checker.model)

    return tell(
        scenario,
        told,
        lambda: build(registration, scenario.capacity, scenario.page_size),
        lambda checker: f"{registration.name}: {limit}, pages of {scenario.page_size}",
        drawn,
    )


def stored(model: IndexModel) -> list[str]:
    """What must be stored: stretches without a branch, indented by depth, with their values.

    ``*`` marks what a lock covers.
    """
    lines: list[str] = []
    below = [place for place in model.values if model.accesses[place].depth == 0]
    queue = [(place, 0) for place in reversed(below)]
    while queue:
        place, depth = queue.pop()
        stretch = _stretch(model, place)
        lines.append("  " * depth + _line(model, stretch))
        queue += [(child, depth + 1) for child in sorted(model.below.get(stretch[-1], ()))]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f".. {len(lines) - MOST_LINES} more"]
    return lines or ["(nothing is stored)"]


def _stretch(model: IndexModel, place: int) -> list[int]:
    """Places from this one on, up to a branch or to where the locks change."""
    stretch = [place]
    while True:
        below = model.below.get(stretch[-1], set())
        if len(below) != 1:
            return stretch
        (place,) = below
        if model.covers[place] != model.covers[stretch[-1]]:
            return stretch
        stretch.append(place)


def _line(model: IndexModel, stretch: list[int]) -> str:
    tokens = drawing.tokens([model.tokens[place] for place in stretch])
    values = drawing.tokens([model.values[place] for place in stretch])
    space = model.prefix_of(stretch[0])[0]
    names = [f"salt={space.salt}"] if space.salt is not None else []
    names += [f"adapter={space.adapter}"] if space.adapter is not None else []
    locks = "*" * bool(model.covers[stretch[0]])
    return " ".join([f"{tokens}{locks} -> {values}", *names])
