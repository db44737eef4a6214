"""How a request's life grows with the pool, and with the depth of its path in a tree.

A pool of blocks is filled to four fifths with short cached prompts, as many as there is room for;
then some of them are asked for again, one request at a time: always the same few (*hot*), or any
(*random*, which is the growth of the machine's caches as well as the manager's). A path is made
deep by prompts that leave it at so many places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from kvassay.harness.control.pairing import Watch, turns, undisturbed
from kvassay.harness.control.stages import Contender, Prompt, Stages
from kvassay.harness.control.steps import VOCABULARY, play, tokens

LIVES = 64
"""Requests in a sample."""
HOT = 16
"""Prompts that are asked for again and again."""
PROMPT_BLOCKS = 4
DEEP_PROMPT = 64
"""Blocks of the prompt whose path is made deep."""

Samples = dict[str, list[float]]
"""Seconds per request's life, round by round, of each contender."""


def cached_prompt(number: int, block_size: int) -> list[int]:
    """The tokens of a cached prompt: its first one is nobody else's."""
    rest = tokens(Random(number), PROMPT_BLOCKS * block_size - 1)
    return [VOCABULARY + number, *rest]


def pool_growth(
    contenders: Sequence[Contender],
    num_blocks: int,
    rounds: int,
    *,
    block_size: int = 16,
    watch: Callable[[], None] = lambda: None,
) -> tuple[Samples, Samples]:
    """Hot and random lives over a pool of `num_blocks`, which is to be at least 100."""
    if num_blocks < 100:
        raise ValueError(f"num_blocks: expected at least 100, got {num_blocks}")
    count = num_blocks * 4 // 5 // PROMPT_BLOCKS
    running = {each.name: each.build(num_blocks, block_size, LIVES) for each in contenders}
    for stages in running.values():
        for number in range(count):
            play(stages, [(f"fill-{number}", cached_prompt(number, block_size))])
    rng = Random(num_blocks)
    hot = range(count - min(HOT, count), count)

    def hottest() -> list[int]:
        return [hot[i % len(hot)] for i in range(LIVES)]

    def anything() -> list[int]:
        return [rng.randrange(count) for _ in range(LIVES)]

    samples: tuple[Samples, Samples] = ({n: [] for n in running}, {n: [] for n in running})
    with undisturbed():
        for number in range(rounds + 1):
            for pick, kept in zip((hottest, anything), samples, strict=True):
                asked = [cached_prompt(i, block_size) for i in pick()]
                _round(running, asked, kept if number else None, number)
            watch()
    return samples


def depth_growth(
    contenders: Sequence[Contender],
    depth: int,
    rounds: int,
    *,
    block_size: int = 16,
    watch: Callable[[], None] = lambda: None,
) -> Samples:
    """Lives of one prompt whose path others leave at `depth` places, up to `DEEP_PROMPT`."""
    if not 1 <= depth <= DEEP_PROMPT:
        raise ValueError(f"depth: expected 1 to {DEEP_PROMPT}, got {depth}")
    num_blocks = 4 * DEEP_PROMPT + 4 * depth
    running = {each.name: each.build(num_blocks, block_size, LIVES) for each in contenders}
    prompt = tokens(Random(0), DEEP_PROMPT * block_size)
    for stages in running.values():
        play(stages, [("path", prompt)])
        for place in range(1, depth):
            kept = place * DEEP_PROMPT // depth * block_size
            play(stages, [(f"leaves-{place}", [*prompt[:kept], VOCABULARY + place])])
    samples: Samples = {name: [] for name in running}
    with undisturbed():
        for number in range(rounds + 1):
            _round(running, [prompt] * LIVES, samples if number else None, number)
            watch()
    return samples


def _round(
    running: dict[str, Stages], asked: Sequence[list[int]], samples: Samples | None, number: int
) -> None:
    for name in turns(list(running), number):
        lives: list[list[Prompt]] = [[(f"{number}-{i}", list(p))] for i, p in enumerate(asked)]
        stages, watch = running[name], Watch()
        for life in lives:
            play(stages, life)
        if samples is not None:
            samples[name].append(watch.lap() / len(lives))
