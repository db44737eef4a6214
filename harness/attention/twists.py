"""Ways to read an attention problem wrongly, on purpose.

Each twist is the oracle with one mistake. They serve twice: a kernel made from a twist is the
control that a check must convict, and when a kernel is wrong, the twist whose result it agrees with
is the best explanation.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvassay.harness.attention.twist import Apply, Twist, at_phase
from kvassay.harness.attention.twists_keys import OF_KEYS
from kvassay.harness.attention.twists_places import OF_PLACES
from kvassay.harness.attention.twists_scores import OF_SCORES

__all__ = ["TWISTS", "Apply", "Twist"]

BY_PHASE = (
    "no-window",
    "wide-window",
    "narrow-window",
    "no-softcap",
    "no-alibi",
    "no-sinks",
    "no-k-scale",
    "no-v-scale",
    "default-scale",
)
"""What a kernel may have at decode and lack at prefill, or the other way round."""


def _all() -> Iterator[Twist]:
    yield from OF_KEYS
    yield from OF_SCORES
    yield from OF_PLACES
    for each in (*OF_KEYS, *OF_SCORES):
        if each.name in BY_PHASE:
            yield at_phase(each, decode=True)
            yield at_phase(each, decode=False)


TWISTS: dict[str, Twist] = {each.name: each for each in _all()}
"""All twists by name, simple ones first."""
