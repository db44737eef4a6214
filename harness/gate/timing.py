"""What is timed of an implementation, one sample at a time.

A cache manager: scheduler steps of one and of 64 requests, with a free pool and a full one
(`harness.control.steps`); of each the admission (from the key to the published prompt), a decode
step and the release. A prefix tree: a bare look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Protocol

from kvassay.harness.contract import CacheManager, Capability, PrefixIndex
from kvassay.harness.control.contract_stages import contender
from kvassay.harness.control.matching import matcher
from kvassay.harness.control.pairing import Watch, undisturbed
from kvassay.harness.control.steps import Alone, Step, tokens
from kvassay.harness.registry import Registration

STEPS = {
    "1 request": Step(1),
    "64 requests": Step(64),
    "64 requests, pool full": Step(64, full=True),
}
QUANTITIES: Mapping[str, tuple[str, ...]] = {
    "admission": ("prepare", "look_up", "reserve", "publish"),
    "decode step": ("append",),
    "release": ("release",),
}
LENGTHS = (1024, 16384)
"""Tokens of a bare look-up."""
LOOKED_UP = 65536
"""Tokens looked up in a sample."""
PAGE_SIZE = 16


class NotTimed(ValueError):
    """There is nothing that could be timed; says why."""


class Timer(Protocol):
    """One implementation, ready."""

    def sample(self, number: int) -> dict[str, float]:
        """Seconds by name; the same work for the same number."""


def timer(registration: Registration) -> Timer:
    """For a kind that can be timed; `NotTimed` for another."""
    makers: Mapping[type, Callable[[Registration], Timer]] = {
        CacheManager: _Steps,
        PrefixIndex: _LookUps,
    }
    maker = makers.get(registration.kind)
    if maker is None:
        raise NotTimed(f"{registration.name}: a {registration.kind.__name__} is not timed here")
    return maker(registration)


class _Steps:
    """A cache manager."""

    def __init__(self, registration: Registration) -> None:
        timed = contender(registration)
        finds = registration.declaration.has(Capability.PREFIX_CACHE)
        steps = {n: s if finds else replace(s, shared=0, full=False) for n, s in STEPS.items()}
        self._steps = {name: Alone(step, timed) for name, step in steps.items()}

    def sample(self, number: int) -> dict[str, float]:
        seconds = {}
        with undisturbed():
            for name, step in self._steps.items():
                stages = step.sample(number)
                for quantity, parts in QUANTITIES.items():
                    seconds[f"{name}: {quantity}"] = sum(stages[part] for part in parts)
        return seconds


class _LookUps:
    """A prefix tree."""

    def __init__(self, registration: Registration) -> None:
        self._stored = {length: tokens(Random(0), length) for length in LENGTHS}
        self._match = {
            length: matcher(registration, stored, PAGE_SIZE)
            for length, stored in self._stored.items()
        }

    def sample(self, number: int) -> dict[str, float]:
        seconds = {}
        with undisturbed():
            for length, stored in self._stored.items():
                asked = [list(stored) for _ in range(LOOKED_UP // length)]
                match, watch = self._match[length], Watch()
                for each in asked:
                    match(each)
                seconds[f"{length} tokens: look-up"] = watch.lap() / len(asked)
        return seconds
