"""A campaign whose controls go unseen has proved nothing, and says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kvassay.harness.pairs import attending, control
from kvassay.harness.pairs.blame import Side
from kvassay.harness.pairs.campaign import Campaign, Effort, Outcome
from kvassay.harness.pairs.pool import Pool
from kvassay.harness.pairs.session import Pair


def outcome(make: Callable[..., Pair], examples: int = 6) -> Outcome:
    return Campaign(make("radix"), Effort(examples)).run()


def test_controls_are_planted_and_convicted(make: Callable[..., Pair]) -> None:
    seen = outcome(make)
    assert seen.blind is None
    assert seen.controls >= control.FIRST


def test_a_judgement_that_accepts_everything_is_blind(
    make: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = attending.judge

    def lenient(*arguments: Any, **named: Any) -> Any:
        return replace(real(*arguments, **named), problem=None)

    monkeypatch.setattr(attending, "judge", lenient)
    seen = outcome(make)
    assert seen.finding is None
    assert seen.blind is not None
    assert "went unseen" in seen.blind


def test_a_pool_that_is_always_called_right_is_blind(
    make: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "first_wrong", lambda *_: None)
    seen = outcome(make)
    assert seen.blind is not None
    assert f"was blamed on the {Side.KERNEL}" in seen.blind


def test_a_pool_that_is_never_called_right_is_blind(
    make: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "first_wrong", lambda *_: 0)
    seen = outcome(make)
    assert seen.blind is not None
    assert f"was blamed on the {Side.MANAGER}" in seen.blind


def test_controls_leave_the_pool_as_it_was(make: Callable[..., Pair]) -> None:
    """With a control after every batch, nothing is found that is not there."""
    pair = make("paged")
    assert pair.eyes is not None
    controls = control.Controls(pair.eyes)
    controls._looks = -(10**6)
    played = pair.explore(Random(0), 4, 2, length=40, after=controls)
    assert played.verdict is None
    assert controls.planted == played.attended > 10
