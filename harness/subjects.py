"""Which kinds of implementation the suites can assay, and how."""

from __future__ import annotations

from kvassay.harness.contract import CacheManager, ContractError
from kvassay.harness.explain import explain
from kvassay.harness.health import FLOORS
from kvassay.harness.index.subject import INDEXES
from kvassay.harness.invariants import LAW
from kvassay.harness.scenario import load, to_json
from kvassay.harness.session import explore, replay
from kvassay.harness.shrink import OF_MANAGERS
from kvassay.harness.stale import stale_declarations
from kvassay.harness.subject import Shapes, Subject

MANAGERS = Subject(
    kind=CacheManager,
    law=LAW,
    floors=FLOORS,
    shapes=Shapes(
        pools=(1, 2, 3, 3, 4, 4, 5, 6, 7, 8, 12, 24),
        sizes=(1, 2, 2, 3, 4, 4, 5, 8, 16),
        large=((544, 3), (16, 64), (32, 17)),
    ),
    explore=explore,
    replay=replay,
    ways=OF_MANAGERS,
    explain=explain,
    load=load,
    to_json=to_json,
    stale=stale_declarations,
    corpus="kvassay.suites.corpus",
)

SUBJECTS: dict[type, Subject] = {subject.kind: subject for subject in (MANAGERS, INDEXES)}


def subject_of(kind: type) -> Subject:
    """How to assay this kind; `ContractError` if no suite does."""
    if kind not in SUBJECTS:
        known = ", ".join(each.__name__ for each in SUBJECTS)
        raise ContractError(f"no suite assays a {kind.__name__}: expected one of {known}")
    return SUBJECTS[kind]
