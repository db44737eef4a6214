"""Which kinds of implementation the suites can assay, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvassay.harness.attention.case import load as load_trial
from kvassay.harness.contract import CacheManager, ContractError, PagedAttention
from kvassay.harness.explain import Told, explain
from kvassay.harness.health import FLOORS
from kvassay.harness.index.subject import INDEXES
from kvassay.harness.invariants import LAW
from kvassay.harness.registry import Registration
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


@dataclass(frozen=True)
class Teller:
    """How to replay a stored counterexample of a kind, told line by line."""

    load: Callable[[Path], Any]
    explain: Callable[[Registration, Any, Told], Iterator[str]]


def teller_of(kind: type) -> Teller:
    """How to replay on this kind; `ContractError` if nothing does. Only kernels need torch."""
    if kind is PagedAttention:
        return Teller(_known_trial, _explain_trial)
    subject = subject_of(kind)
    return Teller(subject.load, subject.explain)


def _known_trial(path: Path) -> Any:
    """A kernel's; what is another kind's is told apart before torch is imported."""
    load_trial(path)
    from kvassay.harness.attention import replay as kernels

    return kernels.load_known(path)


def _explain_trial(registration: Registration, trial: Any, told: Told) -> Iterator[str]:
    from kvassay.harness.attention import replay as kernels

    return kernels.explain(registration, trial, told)
