"""Prompts that no cache has seen: token ids renamed for this run, the same for the same salt.

Equal prefixes stay equal and different ones different, so what requests share is what they were
made to share; but what a server still has of an earlier run is of no use. (A cache of single
tokens may find the first token of a prompt by chance: there are only so many.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvassay.harness.workloads.fresh import VOCABULARY
from kvassay.harness.workloads.plan import Planned


def salted(
    requests: Sequence[Planned], salt: int, vocabulary: int = VOCABULARY
) -> tuple[Planned, ...]:
    """The requests with their token ids renamed; `ValueError` for an id not below `vocabulary`."""
    names = np.random.default_rng(salt).permutation(vocabulary).tolist()
    return tuple(_renamed(one, names) for one in requests)


def _renamed(one: Planned, names: list[int]) -> Planned:
    try:
        prompt = tuple([names[token] for token in one.prompt])
        return replace(one, prompt=prompt, output=tuple([names[token] for token in one.output]))
    except IndexError:
        largest = max((*one.prompt, *one.output))
        raise ValueError(
            f"{one.name}: expected token ids below {len(names)}, got {largest}"
        ) from None
