"""What a pair is judged by: the invariants of manager and kernel that show in an output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

from kvassay.harness.contract import Capability, Declaration
from kvassay.harness.invariants import LAW
from kvassay.harness.pairs.evidence import Met

SUITE = "integration"
KIND = "Pair"
"""What verdicts and records call the kind of thing that is judged."""


@dataclass(frozen=True)
class Reached:
    """What must have been attended to, where manager or kernel has the capability."""

    any_of: tuple[Met, ...]
    needs: Capability | None = None


@dataclass(frozen=True)
class PairRule:
    """One invariant, as far as a pair can show that it is kept."""

    id: str
    reached: tuple[Reached, ...]

    def unclaimed(self, manager: Declaration) -> str | None:
        """Why the manager does not claim it; a kernel claims all that it is asked here."""
        return LAW[self.id].claim(manager) if self.id in LAW else None

    def missing(self, offered: Set[Capability], met: Counter[Met]) -> list[str]:
        """What would have to be attended to for a verdict, and was not."""
        return [
            " or ".join(each.any_of)
            for each in self.reached
            if (each.needs is None or each.needs in offered)
            and not any(met[state] for state in each.any_of)
        ]


def _rule(id: str, *reached: Reached) -> tuple[str, PairRule]:
    return id, PairRule(id, reached)


PAIR_LAW: dict[str, PairRule] = dict(
    (
        _rule(
            "A2",
            Reached((Met.REUSED,)),
            Reached((Met.EVICTED,), Capability.PREFIX_CACHE),
        ),
        _rule("A7", Reached((Met.EDGE,)), Reached((Met.BEYOND,))),
        _rule(
            "C1",
            Reached((Met.FORKED_WRITE,), Capability.FORK),
            Reached((Met.HIT,), Capability.PREFIX_CACHE),
        ),
        _rule("C2", Reached((Met.COPIED,))),
        _rule("P1", Reached((Met.HIT,))),
        _rule("P2", Reached((Met.HIT,)), Reached((Met.NEAR_KEY,))),
        _rule(
            "P4",
            Reached((Met.UNWRITTEN_KEY, Met.UNPUBLISHED_KEY, Met.REWRITTEN, Met.REJECTED)),
            Reached((Met.REWRITTEN,), Capability.TRUNCATE),
        ),
        _rule("P5", Reached((Met.STALE_KEY,))),
        _rule(
            "K1",
            Reached((Met.DECODE,)),
            Reached((Met.CHUNK,), Capability.CAUSAL),
            Reached((Met.PROMPT,), Capability.CAUSAL),
            Reached((Met.MIXED,), Capability.CAUSAL),
        ),
        _rule(
            "K2",
            Reached((Met.STALE_TAIL,)),
            Reached((Met.NAN_TAIL, Met.ZERO_TAIL, Met.LOUD_TAIL)),
        ),
    )
)
"""In the order of the law."""
