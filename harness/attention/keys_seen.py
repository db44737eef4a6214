"""Which keys a row sees, read back from the kernel: equal weights, and values that say whose.

The query is 0 and the value of position p is the unit vector p, so the output of a row lists the
keys that it sees. Only for sequences that are no longer than a value has dimensions, as shrunk
cases mostly are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from kvassay.harness.attention.case import BadCase, Case, Contents, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.violation import Crash
from kvassay.reference.attention import F64, attend

MOST_ROWS = 3
"""Rows that are told about."""


def keys_seen(kernel: Kernel, case: Case, wrong: Tensor) -> list[str]:
    """A line for each of the first wrong rows (``bool [tokens, heads]``) that see other keys."""
    counting = replace(case, contents=Contents.COUNTED, softcap=None, alibi=False, sinks=False)
    if case.k_scale is Scaling.TOKEN or case.v_scale is Scaling.TOKEN:
        counting = replace(counting, k_scale=Scaling.TENSOR, v_scale=Scaling.TENSOR)
    try:
        built = kernel.build(counting)
        got = kernel.attend(built).output.detach().cpu().to(F64)
    except (BadCase, Refused, Crash, Wrong):
        return []
    right = attend(built.batch).output
    rows = [row for row in _rows(case, wrong) if row[2] <= case.head_dim_v]
    lines = [
        _line(sequence, position, keys, head, got[token, head], right[token, head])
        for token, sequence, keys, position, head in rows
    ]
    return [line for line in lines if line][:MOST_ROWS]


def _rows(case: Case, wrong: Tensor) -> Iterator[tuple[int, int, int, int, int]]:
    """Token, sequence, its keys, position and one head, of every wrong row."""
    token = 0
    for sequence, (keys, queries) in enumerate(case.seqs):
        for row in range(queries):
            heads = wrong[token].nonzero().flatten().tolist()
            if heads:
                yield token, sequence, keys, keys - queries + row, heads[0]
            token += 1


def _line(sequence: int, position: int, keys: int, head: int, got: Tensor, right: Tensor) -> str:
    """What one row sees too much or too little."""
    largest = float(got.max())
    if not got.isfinite().all() or largest <= 0:
        return ""
    place = f"sequence {sequence}, position {position}, head {head}"
    if float(got.min()) < -largest / 10 or bool((got[keys:] > largest / 10).any()):
        return f"{place} sees slots that hold no key of its sequence"
    seen, due = got[:keys] > largest / 3, right[:keys] > 0
    lost = (due & ~seen).nonzero().flatten().tolist()
    more = (seen & ~due).nonzero().flatten().tolist()
    parts = [f"does not see {_keys(lost)}"] if lost else []
    parts += [f"sees {_keys(more)}, which it must not"] if more else []
    return f"{place} {' and '.join(parts)}" if parts else ""


def _keys(numbers: list[int]) -> str:
    listed = ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
    return f"key{'s' if len(numbers) > 1 else ''} {listed}"
