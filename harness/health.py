"""Whether a campaign's operations reached what they are there to reach.

Uniform random operations pass everything by meeting nothing. A run that falls below these
floors is a failed run, whatever its checks said. The shares are per operation of the campaign;
each floor applies only where the implementation declares what it speaks of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvassay.harness.checker import Effect
from kvassay.harness.contract import Capability, Declaration, Reclaim
from kvassay.harness.evidence import Seen

if TYPE_CHECKING:
    from kvassay.harness.campaign import Outcome

FEW = 2_000
"""Operations below which shares say nothing."""


@dataclass(frozen=True)
class Floor:
    """A share of all operations that must be reached."""

    name: str
    seen: Seen
    least: float
    needs: Capability | None = None


FLOORS = (
    Floor("refusals", Seen.REFUSED, 0.01),
    Floor("hits", Seen.HIT, 0.02, Capability.PREFIX_CACHE),
    Floor("hits that later diverge", Seen.DIVERGED, 0.005, Capability.PREFIX_CACHE),
    Floor("evictions", Seen.EVICTED, 0.01, Capability.PREFIX_CACHE),
    Floor("forks, then writes", Seen.FORK_THEN_WRITE, 0.001, Capability.FORK),
    Floor(
        "truncations inside a block, then writes", Seen.CUT_THEN_WRITE, 0.001, Capability.TRUNCATE
    ),
)
LEAST_EFFECTIVE = 0.9


@dataclass(frozen=True)
class Health:
    """Shares of a campaign."""

    operations: int
    effective: float
    """Operations that were done or refused, rather than skipped as illegal."""
    shares: dict[str, tuple[float, float]]
    """Name -> (share, floor)."""

    @classmethod
    def of(
        cls, outcome: Outcome, declaration: Declaration, floors: Sequence[Floor] = FLOORS
    ) -> Health:
        """Health of what a campaign ran."""
        total = outcome.num_operations
        skipped = outcome.effects[Effect.SKIPPED]
        spent_once = declaration.reclaim is Reclaim.RESET
        shares = {
            floor.name: (outcome.met[floor.seen] / max(1, total), floor.least)
            for floor in floors
            if (floor.needs is None or declaration.has(floor.needs))
            and not (spent_once and floor.seen is Seen.EVICTED)
        }
        return cls(total, 1 - skipped / max(1, total), shares)

    def below_floors(self, usual_shapes: bool = True) -> list[str]:
        """What was not reached often enough.

        The floors of states hold for the usual mix of shapes; on pinned ones some states cannot
        be reached (no block of one token is partly filled), and the verdicts say `not reached`.
        """
        if self.operations < FEW:
            return []
        below = [
            f"{name} {share:.2%} of operations, floor {floor:.2%}"
            for name, (share, floor) in self.shares.items()
            if share < floor and usual_shapes
        ]
        if self.effective < LEAST_EFFECTIVE:
            below.append(f"only {self.effective:.0%} of operations took effect")
        return below
