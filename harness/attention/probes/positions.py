"""Which positions a row has missed or wrongly seen, from the readings of two codes.

A single position is told by its two codes (Chinese remainders). More of them are told where the
codes leave only as many candidates as are looked for, or where a run of neighbours fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvassay.harness.attention.case import Contents
from kvassay.harness.attention.contents import code_of
from kvassay.harness.attention.probes.counting import Reading

NEAR = 300
"""How far from the right number of keys another one is looked for, where no LSE tells it."""


@dataclass(frozen=True)
class Told:
    """What a row has seen, as far as it can be told."""

    count: int | None
    """Keys that it saw; None where it saw what is no unit vector."""
    missed: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()


def told(readings: dict[Contents, Reading]) -> Told:
    """Both readings, or one, of the same row and head.

    Without an LSE, some outputs are the mean of 11 keys, of 22, or of 33: the number that leads to
    positions is taken, the nearest to the right one first.
    """
    first: Told | None = None
    for count in _counts(next(iter(readings.values()))):
        found = {contents: _integers(each, contents, count) for contents, each in readings.items()}
        whole = {contents: counts for contents, counts in found.items() if counts is not None}
        if len(whole) < len(readings):
            continue
        each = _told(readings, whole, count)
        if each.missed or each.seen:
            return each
        first = first or each
    return first or Told(None)


def _told(readings: dict[Contents, Reading], whole: dict[Contents, Tensor], count: int) -> Told:
    off = {contents: counts - readings[contents].expected for contents, counts in whole.items()}
    visible = next(iter(readings.values())).row.visible
    missed = _picked({contents: -counts for contents, counts in off.items()}, visible)
    return Told(count, missed, _picked(off, ~visible))


def _integers(reading: Reading, contents: Contents, count: int) -> Tensor | None:
    """The histogram of so many keys; None if the sequence could not make it up."""
    dim = len(reading.expected)
    codes = code_of(contents, torch.arange(reading.row.length), dim)
    most = torch.bincount(codes, minlength=dim)
    scaled = reading.scaled / reading.total * count
    whole = scaled.round()
    near = bool(((scaled - whole).abs() < 0.25).all())
    return whole if near and int(whole.sum()) == count and bool((whole <= most).all()) else None


def _counts(reading: Reading) -> list[int]:
    """Numbers of keys that may have been seen, the likeliest first."""
    total = reading.total
    if reading.count is not None and reading.count < 2**31:
        return [round(reading.count), total]
    near = range(max(1, total - NEAR), min(reading.row.length, total + NEAR) + 1)
    return sorted(near, key=lambda count: abs(count - total))


def _picked(excess: dict[Contents, Tensor], among: Tensor) -> tuple[int, ...]:
    """Positions that make up what is above 0; nothing if several sets would."""
    positions = torch.nonzero(among)[:, 0]
    number = max(int(counts.clamp_min(0).sum()) for counts in excess.values())
    for contents, counts in excess.items():
        codes = code_of(contents, positions, len(counts))
        positions = positions[counts[codes] > 0]
    candidates: list[int] = positions.tolist()
    if len(candidates) == number:
        return tuple(candidates)
    for start in range(len(candidates) - number + 1):
        run = candidates[start : start + number]
        if run and run[-1] - run[0] == number - 1 and _fits(run, excess):
            return tuple(run)
    return ()


def _fits(run: Sequence[int], excess: dict[Contents, Tensor]) -> bool:
    for contents, counts in excess.items():
        codes = code_of(contents, torch.tensor(run), len(counts))
        if not torch.equal(
            torch.bincount(codes, minlength=len(counts)), counts.clamp_min(0).long()
        ):
            return False
    return True
