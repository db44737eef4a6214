"""Classes of the classroom exercise, recognised in anybody's file: an adapter, and checks of facts.

The exercise has two halves. `KVCacheManager` and `Request` are a cache manager with other words:
the adapter translates, and the suites assay it like any other. `SimpleRadixCache` stores no KV, so
it is neither a CacheManager nor a PrefixIndex. What the exercise itself asks of both is checked
by the suite `textbook`, in the words of the exercise.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

from kvassay.harness.contract import (
    CacheKey,
    CacheManager,
    Capability,
    Counters,
    Declaration,
    Outcome,
    OutOfBlocks,
)
from kvassay.harness.registry import Registration, UnknownImplementation, entry_points, find

POOL_METHODS = ("allocate_for_prefill", "allocate_for_decode", "get_physical_cache")
RADIX_METHODS = ("insert", "match_prefix", "split_prompt")
RELEASES = ("free", "release", "free_request", "release_request", "deallocate")
"""How a solution may call the method, not asked for, by which a request gives its blocks back."""


# ------------------------------------------------------------------------------------- recognising


class NotAnExercise(LookupError):
    """What was named has none of the classes of the exercise; says what was looked for."""


@dataclass(frozen=True)
class Exercise:
    """The classes of one solution; None for what it does not have."""

    pool_class: type | None
    request_class: type | None
    radix_class: type | None


def exercise_in(module: ModuleType) -> Exercise | None:
    """The exercise's classes in a module: by name, and by at least one of their methods."""
    pool = _class_of(module, "KVCacheManager", POOL_METHODS)
    radix = _class_of(module, "SimpleRadixCache", RADIX_METHODS)
    if pool is None and radix is None:
        return None
    return Exercise(pool, _class_of(module, "Request", ()), radix)


def _class_of(module: ModuleType, name: str, methods: Sequence[str]) -> type | None:
    found = getattr(module, name, None)
    if not isinstance(found, type):
        return None
    fits = not methods or any(callable(getattr(found, method, None)) for method in methods)
    return found if fits else None


def recognise(module: ModuleType, path: Path) -> list[Registration]:
    """The cache manager in a module that registers nothing itself, named after the file.

    Empty if there is none, or no `Request` beside it; the textbook suite says what is missing.
    """
    exercise = exercise_in(module)
    if exercise is None or exercise.pool_class is None or exercise.request_class is None:
        return []
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in path.stem)
    factory = partial(AdaptedPool, exercise.pool_class, exercise.request_class)
    declaration = Declaration(capabilities=frozenset({Capability.COUNTERS}))
    return [
        Registration(
            name=name,
            kind=CacheManager,
            factory=factory,
            declaration=declaration,
            reference=str(path),
            origin=path,
        )
    ]


def find_exercise(reference: str) -> Exercise:
    """The exercise behind a file, a module or the name of a built-in; raises `NotAnExercise`."""
    module = _module_of(reference)
    exercise = None if module is None else exercise_in(module)
    if exercise is None:
        wanted = "KVCacheManager with Request, or SimpleRadixCache"
        raise NotAnExercise(f"{reference} is no solution of the exercise: it has no {wanted}")
    return exercise


def _module_of(reference: str) -> ModuleType | None:
    """What the registry loads for a reference; None where that is no module of its own."""
    points = entry_points()
    if reference in points:
        return importlib.import_module(points[reference].module)
    if reference.startswith("exec:"):
        return None
    if not reference.endswith(".py"):
        return importlib.import_module(reference) if "." in reference else None
    with suppress(UnknownImplementation):  # then it registers nothing, but was loaded to see that
        find(reference)
    path = str(Path(reference).expanduser().resolve())
    loaded = (module for module in list(sys.modules.values()) if _file_of(module) == path)
    return next(loaded, None)


def _file_of(module: ModuleType) -> str | None:
    return getattr(module, "__file__", None)


# ----------------------------------------------------------------------------------------- adapter


@dataclass
class _Adapted:
    """A request as the solution keeps it, and how long it really is."""

    own: Any
    length: int


class AdaptedPool:
    """`KVCacheManager` of the exercise, in the words of the contract.

    The exercise decodes one token at a time. Several are so many decodes; if the blocks left in
    `.free_blocks` cannot hold them all, the adapter refuses by itself, since the contract wants
    all or nothing. It knows no release: unless the class has a method of that kind (`RELEASES`,
    with one parameter that is called after the request), the adapter puts the blocks of the
    request's table back into `.free_blocks`, as the exercise's own tests do.
    """

    def __init__(
        self, pool_class: type, request_class: type, *, num_blocks: int, block_size: int
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.pool = pool_class(num_blocks, block_size, 1)
        self._request_class = request_class
        self._own_release = _release_of(self.pool)
        self._live: dict[str, _Adapted] = {}

    def admit(self, request: str, key: CacheKey) -> int:
        """The exercise's prefill."""
        length = len(key.tokens)
        own = self._request_class(request, length)
        _refusable(self.pool.allocate_for_prefill, own)
        self._live[request] = _Adapted(own, length)
        return 0

    def append(self, request: str, tokens: Sequence[int]) -> None:
        """One decode of the exercise per token."""
        adapted = self._live[request]
        length = adapted.length + len(tokens)
        needed = -(-length // self.block_size) - len(adapted.own.block_table)
        if len(tokens) > 1 and needed > len(self.pool.free_blocks):
            raise OutOfBlocks(f"{needed} blocks needed for {len(tokens)} decodes")
        for _ in tokens:
            _refusable(self.pool.allocate_for_decode, adapted.own)
        adapted.length = length

    def block_table(self, request: str) -> list[int]:
        """The request's own table."""
        return [int(block) for block in self._live[request].own.block_table]

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        """The solution's own way to let a request go, or the blocks put back for it."""
        own = self._live.pop(request).own
        if self._own_release is not None:
            self._own_release(own)
        else:
            _give_back(self.pool, list(own.block_table))

    def counters(self) -> Counters:
        """What `.free_blocks` says."""
        free = len(self.pool.free_blocks)
        return Counters(free=free, cached=0, used=self.num_blocks - free)


def _refusable(call: Callable[[Any], object], own: Any) -> None:
    """Call; an error that says OOM anywhere becomes the contract's."""
    try:
        call(own)
    except RuntimeError as error:
        if "OOM" not in str(error):
            raise
        raise OutOfBlocks(str(error)) from error


def _release_of(pool: Any) -> Callable[[Any], object] | None:
    for name in RELEASES:
        method = getattr(pool, name, None)
        if callable(method):
            required = [p for p in signature(method).parameters.values() if p.default is p.empty]
            if len(required) == 1 and _is_request(required[0]):
                return method  # type: ignore[no-any-return]
    return None


def _is_request(parameter: Parameter) -> bool:
    return "req" in parameter.name and parameter.kind is not Parameter.KEYWORD_ONLY


def _give_back(pool: Any, blocks: list[Any]) -> None:
    """Put blocks into `.free_blocks`, whatever collection that is."""
    free = pool.free_blocks
    put = getattr(free, "append", None) or getattr(free, "add", None)
    if put is None:
        pool.free_blocks = [*free, *blocks]
        return
    for block in blocks:
        put(block)
