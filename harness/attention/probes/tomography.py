"""Tomography: the mask of every row is read back as integers (K1, K5, K6).

What is read and how is told in `counting`. Three checks put it to use: lengths (which keys a row
has at all), chunks (the causal mask) and windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

import torch

from kvassay.harness.attention.case import Case, Contents
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import twisted
from kvassay.harness.attention.probes.counting import CODED, Reading, readable, readings
from kvassay.harness.attention.probes.masks import (
    ANOMALIES,
    Mistake,
    blamed,
    place,
    ranges,
    story,
)
from kvassay.harness.attention.probes.positions import Told, told
from kvassay.harness.attention.probes.shapes import (
    HEAD_DIMS,
    ONE_KV_HEAD,
    decode,
    fitted,
    lattice,
    long_lengths,
)
from kvassay.harness.attention.wrong import Anomaly, Refused, Wrong
from kvassay.harness.contract import Capability
from kvassay.harness.violation import Crash

SPLIT_EDGES = (255, 256, 257, 511, 512, 513, 1025)
TYPES_BY_REACH = ("float32", "float16", "bfloat16")
"""Those that leave the longest rows readable first."""
DRAWN = 3
"""Mixed batches that are drawn."""


# ---------------------------------------------------------------------------------------- judging


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """Read every row; nothing is said of a case that cannot be read."""
    if not readable(case):
        return None
    wrong = [r for r in _read(kernel, case) if not (r.output_right and r.lse_right)]
    if not wrong:
        return None
    if all(reading.output_right for reading in wrong):
        return _wrong_lse(wrong)
    return _wrong_mask(kernel, case, [r for r in wrong if not r.output_right])


def _read(kernel: Kernel, case: Case) -> Iterator[Reading]:
    built = kernel.build(case)
    return readings(built, kernel.attend(built))


def _wrong_lse(wrong: list[Reading]) -> Wrong:
    words = [f"its LSE stands for {r.count:.6g} keys instead of {r.total}" for r in wrong]
    expected = f"the LSE of {place(wrong[0].row)}, whose logits are 0, to be ln(number of keys)"
    return Wrong("K1", Anomaly.LSE, expected, words[0], _story(wrong, words))


def _wrong_mask(kernel: Kernel, case: Case, wrong: list[Reading]) -> Wrong:
    others = _other_code(kernel, case)
    known = [_known(case, reading, others) for reading in wrong]
    mistakes = [
        Mistake(reading.row, each.missed, each.seen, keys=each.count is not None)
        for reading, each in zip(wrong, known, strict=True)
    ]
    invariant = blamed(case, mistakes)
    right = ranges(torch.nonzero(wrong[0].row.visible)[:, 0].tolist())
    words = [_words(reading, each) for reading, each in zip(wrong, known, strict=True)]
    return Wrong(
        invariant,
        ANOMALIES[invariant],
        f"{place(wrong[0].row)} to see {right}",
        words[0],
        _story(wrong, words),
    )


def _story(wrong: list[Reading], words: list[str]) -> tuple[str, ...]:
    return story((each.row, each.head, text) for each, text in zip(wrong, words, strict=True))


def _other_code(kernel: Kernel, case: Case) -> dict[tuple[int, int], Reading]:
    """The same rows read by the other code, to tell positions apart."""
    other = CODED[1 - CODED.index(case.contents)]
    try:
        found = _read(kernel, replace(case, contents=other))
        return {(reading.row.token, reading.head): reading for reading in found}
    except (Refused, Crash, Wrong):
        return {}


def _known(case: Case, reading: Reading, others: dict[tuple[int, int], Reading]) -> Told:
    both = {case.contents: reading}
    second = others.get((reading.row.token, reading.head))
    if second is not None:
        both[CODED[1 - CODED.index(case.contents)]] = second
    return told(both)


def _words(reading: Reading, known: Told) -> str:
    if known.missed or known.seen:
        parts = [f"misses {ranges(known.missed)}"] if known.missed else []
        parts += [f"wrongly sees {ranges(known.seen)}"] if known.seen else []
        return "it " + " and ".join(parts)
    if known.count is None:
        return "it sees slots that hold no position of its sequence, or is no attention at all"
    return f"it sees {known.count} keys instead of {reading.total}, which ones is not to be told"


# ------------------------------------------------------------------------------------------ cases


def _both(base: Case, *seqs: tuple[int, int], seed: int) -> Iterator[Case]:
    """Counted, and where it adds something placed."""
    for contents in CODED:
        if contents is Contents.COUNTED or max(n for n, _ in seqs) >= base.head_dim_v:
            case = replace(base, seqs=seqs, contents=contents, seed=seed)
            if readable(case):
                yield case


def _seed(rng: Random) -> int:
    return rng.randrange(2**31)


def length_cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """Decode rows at the edges of blocks and splits, then long ones."""
    base = fitted(kernel)
    if base is None:
        return
    yield from _both(base, *decode(*lattice(base.block_size)), seed=_seed(rng))
    yield from _both(base, *decode(*SPLIT_EDGES), seed=_seed(rng))
    for _ in range(DRAWN):
        lengths = [rng.randint(1, 12 * base.block_size) for _ in range(4)]
        yield from _both(base, *decode(*lengths), seed=_seed(rng))
    yield from _long(kernel, rng)


def _long(kernel: Kernel, rng: Random) -> Iterator[Case]:
    """One row each, in the first shape in which it can be read."""
    bases = [
        fitted(kernel, dtypes=(dtype,), head_dims=(dim,), heads=ONE_KV_HEAD)
        for dtype in TYPES_BY_REACH
        for dim in HEAD_DIMS[:3]
    ]
    usable = [base for base in bases if base is not None]
    for length in long_lengths(kernel, usable[0]) if usable else ():
        for base in usable:
            cases = list(_both(base, (length, 1), seed=_seed(rng)))
            yield from cases
            if cases:
                break


def causal_cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """The same sequence in several chunks, whole prefills, and batches of everything."""
    base = fitted(kernel)
    if base is None:
        return
    size = base.block_size
    n = 2 * size + 5
    yield from _both(base, (n, n), (size, size), (3, 3), (n + 1, n + 1), seed=_seed(rng))
    chunks = [(n, q) for q in (size + 1, size, 7, 2, 1)]
    yield from _both(base, *chunks, (2 * size, 5), (3, 2), seed=_seed(rng))
    yield from _both(base, (130, 67), (257, 129), (5, 1), seed=_seed(rng))
    for _ in range(DRAWN):
        yield from _both(base, *_mixed(size, rng), seed=_seed(rng))


def _mixed(size: int, rng: Random) -> list[tuple[int, int]]:
    """Decode rows, chunks, whole prefills, and a sequence without rows."""
    long = rng.randint(1, 6 * size)
    seqs = [(long, rng.randint(1, min(long, 40))), (rng.randint(1, 6 * size), 1)]
    short = rng.randint(1, 40)
    seqs += [(short, short), (rng.randint(1, 2 * size), 0)]
    rng.shuffle(seqs)
    return seqs


def window_cases(kernel: Kernel, rng: Random) -> Iterable[Case]:
    """Windows of no key, of a block and around it, and wider than the sequence."""
    base = fitted(kernel, window_left=7)
    if base is None:
        return
    size = base.block_size
    for window in dict.fromkeys((max(size - 1, 0), 0)):
        yield from _narrow_window(replace(base, window_left=window), rng)
    yield from _wide_window(replace(base, window_left=127), rng)
    for window in dict.fromkeys((size, 1, size + 1, 10**6)):
        yield from _narrow_window(replace(base, window_left=window), rng)
    yield from _wide_window(replace(base, window_left=200, evicted=True), rng)


def _wide_window(cut: Case, rng: Random) -> Iterator[Case]:
    """Wider than the tiles of most kernels, which mask nothing where every row sees every key."""
    yield from _both(cut, (700, 1), (390, 33), (100, 1), (129, 3), seed=_seed(rng))


def _narrow_window(cut: Case, rng: Random) -> Iterator[Case]:
    """Decode rows, then chunks, around block boundaries."""
    size = cut.block_size
    yield from _both(cut, *decode(*lattice(size)), seed=_seed(rng))
    n = 2 * size + 5
    chunks = ((n, size + 1), (5 * size + 3, 7), (n, n), (2, 1))
    yield from _both(cut, *chunks, seed=_seed(rng))


# ----------------------------------------------------------------------------------------- checks

register(
    Check(
        "length-tomography",
        "every row sees all keys of its sequence and no other slot",
        ("K1",),
        length_cases,
        judge,
        twisted("last-key"),
    )
)
register(
    Check(
        "causal-tomography",
        "row i of a chunk sees exactly positions 0 to context + i",
        ("K5",),
        causal_cases,
        judge,
        twisted("late-mask"),
        needs=frozenset({Capability.CAUSAL}),
    )
)
register(
    Check(
        "window-tomography",
        "every row sees exactly as many keys as the window says",
        ("K6",),
        window_cases,
        judge,
        twisted("wide-window"),
        needs=frozenset({Capability.WINDOW}),
    )
)
