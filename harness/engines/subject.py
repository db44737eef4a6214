"""An engine under test: built for a pool and a budget of tokens, all with the same model.

What is to be judged as a black box takes these keywords, beyond those that it may have besides:
``model`` (a folder), ``num_blocks`` (usable ones), and ``step_tokens`` (most tokens of a step, None
for its own choice). It has an attribute ``block_size``, and may have ``preemptions()``, how many
there were so far, and ``close()``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvassay.harness.contract import Capability
from kvassay.harness.engines.asking import PATIENCE, Asking, Sending, Told
from kvassay.harness.engines.dense import DenseModel
from kvassay.harness.registry import Registration
from kvassay.reference.llama import Llama

SPACIOUS = 64
"""Blocks of a pool in which nobody is in anybody's way."""

CLOSING = 15.0
"""Seconds for an engine to end."""


class Engine:
    """One engine that runs, and what it was asked."""

    def __init__(self, subject: EngineSubject, num_blocks: int, step_tokens: int | None) -> None:
        self._instance = subject.registration.build(
            model=subject.model, num_blocks=num_blocks, step_tokens=step_tokens
        )
        self._asking = Asking()
        self._patience = subject.patience
        self.block_size: int = self._instance.block_size
        self.num_blocks = num_blocks

    @property
    def slots(self) -> int:
        """Tokens that its pool holds."""
        return self.num_blocks * self.block_size

    def ask(self, sendings: Sequence[Sending]) -> list[Told]:
        """All of them side by side."""
        return self._asking.sent(self._instance, sendings, self._patience)

    def preemptions(self) -> int | None:
        """So far; None where it does not count them."""
        count = getattr(self._instance, "preemptions", None)
        return None if count is None else int(count())

    def close(self) -> None:
        """Let go of it."""
        closing = threading.Thread(target=self._close, name="closing", daemon=True)
        closing.start()
        closing.join(CLOSING)
        self._asking.close()

    def _close(self) -> None:
        with suppress(Exception):  # it may be broken, and the verdict stands
            self._instance.close()


@dataclass
class EngineSubject:
    """What is checked, and what is right."""

    registration: Registration
    model: Path
    dense: DenseModel
    patience: float = PATIENCE
    _scenes: int = 0
    _built: dict[tuple[Any, ...], Engine] = field(default_factory=dict)

    @classmethod
    def of(
        cls, registration: Registration, model: Path, patience: float = PATIENCE
    ) -> EngineSubject:
        """Judged by the Llama in a folder, which the engine loads from there too."""
        dense = DenseModel(Llama.load(model), registration.declaration)
        return cls(registration, model, dense, patience)

    def has(self, *capabilities: Capability) -> bool:
        """Whether the engine declares them."""
        return self.registration.declaration.has(*capabilities)

    def engine(self, num_blocks: int = SPACIOUS, step_tokens: int | None = None) -> Engine:
        """One such engine; the same again while it lives."""
        key = num_blocks, step_tokens
        if key not in self._built:
            self._built[key] = Engine(self, num_blocks, step_tokens)
        return self._built[key]

    def scene(self) -> int:
        """A number that nobody had before."""
        self._scenes += 1
        return self._scenes

    def drop(self) -> None:
        """Let go of all: one of them may be broken."""
        while self._built:
            self._built.popitem()[1].close()
