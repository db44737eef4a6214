"""Blocks that forks save, measured through a manager.

The branches of a request are forked when its prompt has been computed, and generate one token per
step each. Before every step of a beam search the next beams are chosen: each follows one of the
present beams, drawn uniformly. (A model's own choice concentrates on fewer, and shares more.) What
is saved is the difference between the blocks in all tables and the distinct ones among them, over
all steps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from kvassay.harness.contract import CacheKey, Capability, ContractError
from kvassay.harness.registry import Registration


@dataclass(frozen=True)
class Saved:
    """Block-steps: one block held for one step."""

    listed: int
    """Blocks in tables: what there would be without sharing."""
    held: int
    """Distinct ones among them."""

    @property
    def share(self) -> float:
        """Of the blocks that there would be."""
        return 1 - self.held / self.listed

    def __add__(self, other: Saved) -> Saved:
        return Saved(self.listed + other.listed, self.held + other.held)


NOTHING = Saved(0, 0)


def parallel_sampling(
    registration: Registration, prompt: int, output: int, branches: int, block_size: int
) -> Saved:
    """`branches` samples of one prompt; lengths in tokens."""
    return _Branches(registration, prompt, output, branches, block_size).play(None)


def beam_search(
    registration: Registration, prompt: int, output: int, branches: int, block_size: int, seed: int
) -> Saved:
    """`branches` beams of one prompt; lengths in tokens."""
    return _Branches(registration, prompt, output, branches, block_size).play(Random(seed))


class _Branches:
    """The live branches of one request in a pool that holds all that it can need."""

    def __init__(
        self, registration: Registration, prompt: int, output: int, branches: int, block_size: int
    ) -> None:
        declared = registration.declaration
        if not declared.has(Capability.FORK):
            raise ContractError(f"{registration.name} does not declare FORK: nothing can be shared")
        self._commits = declared.has(Capability.COMMIT)
        self._copies = declared.has(Capability.COPIES)
        each = -(-(prompt + output) // block_size) + 1
        self._manager: Any = registration.build(
            num_blocks=2 * branches * each, block_size=block_size
        )
        self._length, self._output, self._count = prompt, output, branches
        self._numbers = count()
        self._live = [self._name()]

    def play(self, choose: Random | None) -> Saved:
        """All steps; with `choose`, beams follow one of those before."""
        manager, first = self._manager, self._live[0]
        manager.admit(first, CacheKey(range(self._length)))
        self._written(first)
        self._fork(Counter({first: self._count}))
        saved = NOTHING
        for _ in range(self._output):
            if choose is not None:
                self._fork(Counter(choose.choice(self._live) for _ in self._live))
            self._step()
            saved += self._now()
        return saved

    def _fork(self, children: Counter[str]) -> None:
        """Branches with so many children each; who has none leaves, who has some is the first."""
        for name in self._live:
            if not children[name]:
                self._manager.release(name)
        kept = [name for name in self._live if children[name]]
        for name in list(kept):
            more = [self._name() for _ in range(children[name] - 1)]
            if more:
                self._manager.fork(name, more)
                kept += more
        self._live = kept

    def _step(self) -> None:
        self._length += 1
        for number, name in enumerate(self._live):
            self._manager.append(name, [10**6 + number])
            self._written(name)

    def _written(self, name: str) -> None:
        if self._copies:
            self._manager.take_copies()
        if self._commits:
            self._manager.commit(name, self._length)

    def _now(self) -> Saved:
        tables = [self._manager.block_table(name) for name in self._live]
        return Saved(sum(map(len, tables)), len(set().union(*tables)))

    def _name(self) -> str:
        return f"b{next(self._numbers)}"
