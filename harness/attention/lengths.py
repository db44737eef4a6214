"""Which sequences, window and mark a case gets, by words like "chunk", "edge" and "narrow"."""

from __future__ import annotations

from enum import StrEnum
from random import Random

Seqs = tuple[tuple[int, int], ...]
MOST_KEYS = 300
"""Keys of a sequence of ordinary length."""
MOST_ROWS = 40
"""Rows of a prefill of ordinary length, unless the block is longer."""


class Phase(StrEnum):
    """What kinds of rows a batch has."""

    DECODE = "decode"
    CHUNK = "chunk"
    PREFILL = "prefill"
    MIXED = "mixed"
    NO_ROWS = "no rows"
    """Some sequences have keys but no query, or nothing at all."""
    EMPTY = "empty"
    """Some rows come before the first key."""


class Length(StrEnum):
    """How long sequences are, in blocks."""

    SHORT = "within a block"
    EDGE = "around a block boundary"
    SEVERAL = "several blocks"


class Window(StrEnum):
    """How far left rows see."""

    NONE = "none"
    ZERO = "own key only"
    BELOW = "below a block"
    EDGE = "around a block boundary"
    MIDDLE = "most of the sequence"
    WIDE = "longer than the sequence"


def keys_of(length: Length, block_size: int, rng: Random) -> int:
    """A number of keys, at least 1."""
    if length is Length.SHORT:
        return rng.randint(1, max(1, min(block_size - 1, 12)))
    if length is Length.EDGE:
        return max(1, rng.choice((1, 2, 3)) * block_size + rng.choice((-1, 0, 1)))
    most = min(MOST_KEYS, 8 * max(block_size, 8))
    return rng.randint(min(most, 2 * block_size + 2), most)


def _chunk(length: Length, block_size: int, rng: Random) -> tuple[int, int]:
    """Some context and some rows."""
    keys = max(3, keys_of(length, block_size, rng))
    rows = rng.choice((2, 3, 5, block_size, block_size + 1, 17))
    return keys, max(2, min(rows, keys - 1, MOST_ROWS))


def _prefill(length: Length, block_size: int, rng: Random) -> tuple[int, int]:
    keys = keys_of(length, block_size, rng)
    keys = max(2, min(keys, max(MOST_ROWS, block_size + 1)))
    return keys, keys


def seqs_of(phase: Phase, length: Length, block_size: int, rng: Random) -> Seqs:
    """Sequences of a batch."""

    def decode() -> tuple[int, int]:
        return keys_of(length, block_size, rng), 1

    def chunk() -> tuple[int, int]:
        return _chunk(length, block_size, rng)

    def prefill() -> tuple[int, int]:
        return _prefill(length, block_size, rng)

    match phase:
        case Phase.DECODE:
            seqs = [decode(), decode()]
        case Phase.CHUNK:
            seqs = [chunk()]
        case Phase.PREFILL:
            seqs = [prefill()]
        case Phase.MIXED:
            seqs = [decode(), chunk(), prefill()]
        case Phase.NO_ROWS:
            seqs = [decode(), (0, 0), (decode()[0], 0)]
        case Phase.EMPTY:
            seqs = [decode(), (0, rng.randint(1, 2)), (2, 4)]
    rng.shuffle(seqs)
    return tuple(seqs)


PROBES: dict[Phase, Seqs] = {
    Phase.DECODE: ((5, 1),),
    Phase.CHUNK: ((6, 2),),
    Phase.PREFILL: ((3, 3),),
    Phase.MIXED: ((5, 1), (6, 2)),
    Phase.NO_ROWS: ((5, 1), (0, 0), (4, 0)),
    Phase.EMPTY: ((5, 1), (0, 1), (1, 2)),
}
"""The least of each phase: to find out whether a kernel accepts it."""


def window_of(window: Window, seqs: Seqs, block_size: int, rng: Random) -> int | None:
    """`window_left` for these sequences."""
    longest = max((keys for keys, _ in seqs), default=0)
    match window:
        case Window.NONE:
            return None
        case Window.ZERO:
            return 0
        case Window.BELOW:
            return rng.randint(1, max(1, block_size - 2))
        case Window.EDGE:
            return max(0, rng.choice((1, 1, 2)) * block_size + rng.choice((-2, -1, 0)))
        case Window.MIDDLE:
            return longest * rng.randint(40, 90) // 100
        case Window.WIDE:
            return longest + rng.choice((-1, 0, 1, 1000))


def mark_of(seqs: Seqs, block_size: int, window_left: int | None, rng: Random) -> int:
    """A position at some edge of one of the sequences."""
    lengths = [keys for keys, _ in seqs if keys]
    if not lengths:
        return 0
    keys = rng.choice(lengths)
    edges = [0, keys - 1, keys // 2, block_size - 1, block_size, keys // block_size * block_size]
    if window_left is not None:
        edges += [keys - 1 - window_left, keys - 2 - window_left, keys - window_left]
    return rng.choice([edge for edge in edges if 0 <= edge < keys])
