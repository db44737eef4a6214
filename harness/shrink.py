"""Delta debugging on the operation list of a scenario.

Zeller's ddmin over operations, then simpler arguments: shorter prompts, no salt, fewer children,
small tokens. A candidate counts if it breaks the same invariant; every candidate is a full
replay on a new instance, which takes well under a millisecond for a built-in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from kvassay.harness.contract import CacheKey, Outcome
from kvassay.harness.deadline import Deadline
from kvassay.harness.keys import cut
from kvassay.harness.scenario import (
    Admit,
    AnyScript,
    Append,
    Begin,
    Evict,
    Fork,
    Operation,
    Release,
    Scenario,
)

Fails = Callable[[AnyScript], bool]
SECONDS = 1.5
"""Time after which the smallest scenario so far is good enough."""


@dataclass(frozen=True)
class Ways(Generic[AnyScript]):
    """How scenarios of one kind become simpler, beside losing operations."""

    smaller: Callable[[AnyScript], Iterator[AnyScript]]
    """The same operations on less, the least first."""
    simpler: Callable[[Any, int], Iterator[Any]]
    """Variants of one operation, for a number of tokens per block."""
    modest: Callable[[Any], Any]
    """An operation that may need to take less once others are gone."""
    begins: tuple[type, ...]
    """Operations with which the life of a request begins."""
    ends: tuple[type, ...]


def shrink(
    scenario: AnyScript,
    fails: Fails[AnyScript],
    seconds: float = SECONDS,
    ways: Ways[Any] | None = None,
) -> AnyScript:
    """The smallest scenario found for which `fails` still holds."""
    deadline = Deadline(seconds)
    smallest = scenario
    ways = OF_MANAGERS if ways is None else ways
    for _ in range(10):
        before = smallest
        smallest = _without_lives(smallest, fails, deadline, ways)
        smallest = _fewer_operations(smallest, fails, deadline)
        smallest = _without_pairs(smallest, fails, deadline)
        smallest = _smaller_pool(smallest, fails, deadline, ways)
        smallest = _simpler_arguments(smallest, fails, deadline, ways)
        smallest = _small_tokens(smallest, fails)
        if smallest == before or deadline.passed:
            break
    return smallest


def _with(scenario: AnyScript, operations: Sequence[Any]) -> AnyScript:
    return replace(scenario, operations=tuple(operations))


def _fewer_operations(
    scenario: AnyScript, fails: Fails[AnyScript], deadline: Deadline
) -> AnyScript:
    operations = list(scenario.operations)
    chunk = max(1, len(operations) // 2)
    while not deadline.passed:
        removed = False
        stop = len(operations)
        while stop > 0:
            start = max(0, stop - chunk)
            candidate = operations[:start] + operations[stop:]
            if candidate and fails(_with(scenario, candidate)):
                operations, removed = candidate, True
            stop = start
        if chunk == 1 and not removed:
            break
        chunk = max(1, chunk // 2) if not removed or chunk > 1 else 1
    return _with(scenario, operations)


def _without_lives(
    scenario: AnyScript, fails: Fails[AnyScript], deadline: Deadline, ways: Ways[Any]
) -> AnyScript:
    """Whole lives of requests: from the admission to the release, with all between.

    What is left may need a smaller eviction, or a request that stays until the one that was
    taken out had left.
    """
    operations = list(scenario.operations)
    start = len(operations) - 1
    while start >= 0 and not deadline.passed:
        life = _life(operations, start, ways)
        for candidate in _lifeless(operations, life, ways):
            if fails(_with(scenario, candidate)):
                operations = candidate
                break
        start = min(start, len(operations)) - 1
    return _with(scenario, operations)


def _lifeless(operations: list[Any], life: list[int], ways: Ways[Any]) -> Iterator[list[Any]]:
    """Variants of the operations without one request's life."""
    if len(life) < 2 or len(life) == len(operations):
        return
    without = [o for at, o in enumerate(operations) if at not in life]
    yield without
    yield [ways.modest(o) for o in without]
    for at in range(life[0]):
        if isinstance(operations[at], ways.ends):
            kept = [place for place in range(len(operations)) if place not in life and place != at]
            kept.insert(sum(place < life[-1] for place in kept), at)
            yield [operations[place] for place in kept]


def _life(operations: Sequence[Any], start: int, ways: Ways[Any]) -> list[int]:
    """Places of the operations on the request that is admitted at `start`."""
    if not isinstance(operations[start], ways.begins):
        return []
    request = getattr(operations[start], "request", None)
    life = [start]
    for at in range(start + 1, len(operations)):
        if getattr(operations[at], "request", None) == request:
            life.append(at)
            if isinstance(operations[at], ways.ends):
                break
    return life


def _without_pairs(scenario: AnyScript, fails: Fails[AnyScript], deadline: Deadline) -> AnyScript:
    """Two operations that only make sense together, such as an admission and its release."""
    operations = list(scenario.operations)
    later = 1
    while later < len(operations) and not deadline.passed:
        for earlier in range(later):
            candidate = [o for at, o in enumerate(operations) if at not in (earlier, later)]
            if candidate and fails(_with(scenario, candidate)):
                operations, later = candidate, 0
                break
        later += 1
    return _with(scenario, operations)


def _smaller_pool(
    scenario: AnyScript, fails: Fails[AnyScript], deadline: Deadline, ways: Ways[Any]
) -> AnyScript:
    candidate: AnyScript
    for candidate in ways.smaller(scenario):
        if deadline.passed:
            break
        if fails(candidate):
            return candidate
    return scenario


def _simpler_arguments(
    scenario: AnyScript, fails: Fails[AnyScript], deadline: Deadline, ways: Ways[Any]
) -> AnyScript:
    operations = list(scenario.operations)
    for index in range(len(operations)):
        progress = True
        while progress and not deadline.passed:
            progress = False
            for simpler in ways.simpler(operations[index], scenario.shape[1]):
                candidate = [*operations[:index], simpler, *operations[index + 1 :]]
                if fails(_with(scenario, candidate)):
                    operations, progress = candidate, True
                    break
    return _with(scenario, operations)


def _fewer_blocks(scenario: Scenario) -> Iterator[Scenario]:
    for num_blocks in range(1, scenario.num_blocks):
        yield replace(scenario, num_blocks=num_blocks)
    groups = scenario.groups or ()
    for one in groups if len(groups) > 1 else ():
        yield replace(scenario, groups=tuple(spec for spec in groups if spec is not one))


def _modest(operation: Operation) -> Operation:
    return replace(operation, num_blocks=1) if isinstance(operation, Evict) else operation


def _simpler(operation: Operation, block_size: int) -> Iterator[Operation]:
    """Variants of one operation that are simpler than it is."""
    if isinstance(operation, Admit | Begin):
        for key in simpler_keys(operation.key, block_size):
            yield replace(operation, key=key)
    elif isinstance(operation, Append):
        for stop in _shorter(len(operation.tokens), block_size):
            yield replace(
                operation, tokens=operation.tokens[:stop], drafts=min(operation.drafts, stop)
            )
        if operation.drafts:
            yield replace(operation, drafts=0)
    elif isinstance(operation, Evict) and operation.num_blocks > 1:
        yield replace(operation, num_blocks=1)
    elif isinstance(operation, Fork) and len(operation.children) > 1:
        yield replace(operation, children=operation.children[:1])
    elif isinstance(operation, Release) and operation.outcome is not Outcome.FINISHED:
        yield replace(operation, outcome=Outcome.FINISHED)


def simpler_keys(key: CacheKey, block_size: int) -> Iterator[CacheKey]:
    """Keys that have less than this one."""
    if key.spans:
        yield replace(key, spans=())
    if key.salt is not None:
        yield replace(key, salt=None)
    if key.adapter is not None:
        yield replace(key, adapter=None)
    for stop in _shorter(len(key.tokens), block_size):
        yield cut(key, stop)


def _shorter(length: int, block_size: int) -> Iterator[int]:
    """Shorter lengths: one token, half, one block less, one token less."""
    for stop in dict.fromkeys((1, length // 2, length - block_size, length - 1)):
        if 1 <= stop < length:
            yield stop


def _small_tokens(scenario: AnyScript, fails: Fails[AnyScript]) -> AnyScript:
    """Rename tokens to 0, 1, 2, ... in the order of their first use."""
    names: dict[int, int] = {}
    renamed: list[Any] = []
    for operation in scenario.operations:
        key = getattr(operation, "key", None)
        old = getattr(operation, "tokens", ()) if key is None else key.tokens
        tokens = tuple(names.setdefault(token, len(names)) for token in old)
        if key is not None:
            renamed.append(replace(operation, key=replace(key, tokens=tokens)))
        elif tokens:
            renamed.append(replace(operation, tokens=tokens))
        else:
            renamed.append(operation)
    candidate = _with(scenario, renamed)
    return candidate if candidate != scenario and fails(candidate) else scenario


OF_MANAGERS: Ways[Scenario] = Ways(
    smaller=_fewer_blocks,
    simpler=_simpler,
    modest=_modest,
    begins=(Admit, Begin),
    ends=(Release,),
)
"""How scenarios of a cache manager become simpler."""
