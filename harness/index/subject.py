"""The prefix index as a subject of assays."""

from __future__ import annotations

from kvassay.harness.contract import PrefixIndex
from kvassay.harness.index.explain import explain
from kvassay.harness.index.law import FLOORS, LAW
from kvassay.harness.index.scenario import load, to_json
from kvassay.harness.index.session import explore, replay
from kvassay.harness.index.shrinking import OF_INDEXES
from kvassay.harness.stale import never_observed
from kvassay.harness.subject import Shapes, Subject

INDEXES = Subject(
    kind=PrefixIndex,
    law=LAW,
    floors=FLOORS,
    shapes=Shapes(pools=(0, 0, 2, 3, 4, 6, 8, 12, 24), sizes=(1, 1, 2, 4, 4, 16)),
    explore=explore,
    replay=replay,
    ways=OF_INDEXES,
    explain=explain,
    load=load,
    to_json=to_json,
    stale=never_observed,
    corpus="kvassay.suites.corpus.index",
)
