"""The stages of any registered cache manager, by the operations of the contract.

Keys are prepared as compact arrays. A manager without CHUNKED has no look-up of its own: `admit`
does both, and is timed as the reservation. Tables are not read: whoever needs them reads them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from kvassay.harness.contract import CacheKey, CacheManager, Capability
from kvassay.harness.control.stages import Contender, Prompt, Stages
from kvassay.harness.registry import Registration, Unavailable


class _Handle:
    __slots__ = ("hit", "key", "length", "name")

    def __init__(self, name: str, tokens: list[int]) -> None:
        self.name = name
        self.key = CacheKey(array("Q", tokens))
        self.length = len(tokens)
        self.hit = 0


class ContractStages:
    """One manager."""

    def __init__(self, manager: Any, capabilities: frozenset[Capability]) -> None:
        self._manager = manager
        self._chunked = Capability.CHUNKED in capabilities
        self._commits = Capability.COMMIT in capabilities

    def prepare(self, prompts: Sequence[Prompt]) -> list[Any]:
        return [_Handle(name, tokens) for name, tokens in prompts]

    def look_up(self, handles: Sequence[Any]) -> list[int]:
        if self._chunked:
            begin = self._manager.begin
            for handle in handles:
                handle.hit = begin(handle.name, handle.key)
        return [handle.hit for handle in handles]

    def reserve(self, handles: Sequence[Any]) -> None:
        if self._chunked:
            reserve = self._manager.reserve
            for handle in handles:
                reserve(handle.name, handle.length - handle.hit)
        else:
            admit = self._manager.admit
            for handle in handles:
                handle.hit = admit(handle.name, handle.key)

    def publish(self, handles: Sequence[Any]) -> None:
        if self._commits:
            commit = self._manager.commit
            for handle in handles:
                commit(handle.name, handle.length)

    def append(self, handles: Sequence[Any], token: int) -> None:
        append, tokens = self._manager.append, [token]
        if not self._commits:
            for handle in handles:
                append(handle.name, tokens)
            return
        commit = self._manager.commit
        for handle in handles:
            name = handle.name
            handle.length = length = handle.length + 1
            append(name, tokens)
            commit(name, length)

    def release(self, handles: Sequence[Any]) -> None:
        release = self._manager.release
        for handle in handles:
            release(handle.name)


def contender(registration: Registration) -> Contender:
    """A registered manager; by the engine's own stages, where its adapter offers them.

    Raises `ValueError` for another kind.
    """
    if registration.kind is not CacheManager:
        kind = registration.kind.__name__
        raise ValueError(f"{registration.name}: expected a CacheManager, got a {kind}")

    def build(num_blocks: int, block_size: int, num_requests: int) -> Stages:
        own = getattr(registration.factory, "stages", None)
        if not registration.available:
            raise Unavailable(registration.wanted)
        if own is not None:
            stages: Stages = own(num_blocks, block_size, num_requests)
            return stages
        manager = registration.build(num_blocks=num_blocks, block_size=block_size)
        return ContractStages(manager, registration.declaration.capabilities)

    return Contender(registration.name, registration.version, build)
