"""How scenarios of an index become simpler, beside losing operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvassay.harness.index.scenario import Evict, IndexScenario, Insert, Match, Operation, Unlock
from kvassay.harness.scenario import Peek
from kvassay.harness.shrink import Ways, simpler_keys

PAGES = (1, 2, 4)


def _smaller(scenario: IndexScenario) -> Iterator[IndexScenario]:
    """Smaller pages, or room for fewer of them."""
    limit, size = scenario.capacity, scenario.page_size
    for pages in PAGES:
        if pages < size:
            yield replace(scenario, page_size=pages)
    for capacity in range(size, limit or 0, size):
        yield replace(scenario, capacity=capacity)


def _simpler(operation: Operation, page_size: int) -> Iterator[Operation]:
    if isinstance(operation, Match | Insert | Peek):
        for key in simpler_keys(operation.key, page_size):
            yield replace(operation, key=key)
    elif isinstance(operation, Evict):
        for number in sorted({1, page_size, operation.num_tokens // 2, operation.num_tokens - 1}):
            if 1 <= number < operation.num_tokens:
                yield replace(operation, num_tokens=number)


def _modest(operation: Operation) -> Operation:
    return replace(operation, num_tokens=1) if isinstance(operation, Evict) else operation


OF_INDEXES: Ways[IndexScenario] = Ways(
    smaller=_smaller, simpler=_simpler, modest=_modest, begins=(Match,), ends=(Unlock,)
)
