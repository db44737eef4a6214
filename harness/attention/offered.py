"""Whether a kernel computes a state at all, found out by asking it for the least cases of it.

A state that is refused is no gap in what was looked at; one that is offered and was never met is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from kvassay.harness.attention.case import BadCase, Case, Contents, Garbage, Placement
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.lengths import PROBES, Seqs
from kvassay.harness.attention.offers import FACTORS, Offers
from kvassay.harness.attention.oracle_check import (
    BLOCK_SIZES,
    HEAD_DIMS,
    MODIFIERS,
    ROWS,
    SCALINGS,
)
from kvassay.harness.attention.reach import Reach, reached

Fields = dict[str, Any]
WINDOWS: tuple[Fields, ...] = ({"window_left": 3}, {"window_left": 10_000})
STATES: dict[Reach, tuple[Fields, ...]] = {
    Reach.TAIL: ({"garbage": Garbage.FINITE},),
    Reach.PERMUTED: ({"placement": Placement.SHUFFLED},),
    Reach.HUGE: ({"contents": Contents.HUGE},),
    Reach.BUFFERS: ({"buffers": True},),
    Reach.ODD_HEAD_DIM: tuple({"head_dim": dim, "head_dim_v": dim} for dim in HEAD_DIMS),
    Reach.ODD_BLOCK: tuple({"block_size": size} for size in BLOCK_SIZES),
}
"""What has to be switched on, beside the usual."""


def offered(reach: Reach, kernel: Kernel) -> bool:
    """Whether it computes any case that meets a state.

    Nothing is taken for refused on no grounds: where no case is known that meets the state, or
    where the kernel refuses even the plainest ones, the state counts as offered.
    """
    offers = Offers(kernel)
    met = [case for case in _cases(reach, offers) if reach in reached(case)]
    return not offers.usable or not met or any(kernel.accepts(case) for case in met)


def _cases(reach: Reach, offers: Offers) -> Iterator[Case]:
    plain = offers.plain()
    sizes = dict.fromkeys(
        (plain.block_size, *(dict(value.fields)["block_size"] for value in FACTORS["block_size"]))
    )
    for fields, size in product(_fields(reach, offers), sizes):
        for seqs in _sequences(size):
            try:
                yield replace(plain, **{"block_size": size, "seqs": seqs, **fields})
            except BadCase:
                continue


def _sequences(size: int) -> Iterator[Seqs]:
    """One row or several, around a boundary and far from it; batches; rows without keys."""
    yield from ROWS.values()
    yield from PROBES.values()
    for keys in (size - 1, size, size + 1, 2 * size + 3):
        if keys > 0:
            yield ((keys, 1),)
            yield ((keys, min(keys, 2)),)


def _fields(reach: Reach, offers: Offers) -> Iterator[Fields]:
    """Ways to switch on what a state is about."""
    name = reach.name.removesuffix("_DECODE").removesuffix("_PREFILL")
    if name in ("K_SCALE", "V_SCALE"):
        for types, (k_scale, v_scale) in product(offers.values["types"], SCALINGS):
            yield {**dict(types.fields), "k_scale": k_scale, "v_scale": v_scale}
    elif name.startswith("WINDOW"):
        yield from WINDOWS
    elif name.lower() in MODIFIERS:
        yield MODIFIERS[name.lower()][1]
    elif reach in (Reach.MHA, Reach.GQA, Reach.MQA):
        yield from (dict(value.fields) for value in FACTORS["heads"])
    else:
        yield from STATES.get(reach, ({},))
