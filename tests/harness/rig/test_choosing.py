"""Samples and beams against a search of all there is."""

from __future__ import annotations

import itertools
from math import log

from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import find
from kvassay.harness.rig.jobs import Job
from kvassay.harness.rig.rig import Rig
from kvassay.harness.rig.tagged import VOCABULARY, TaggedDevice, follows

PROMPT = (5, 6, 7, 8, 9)


def outputs(job: Job, name: str = "paged") -> tuple[tuple[int, ...], ...]:
    (entry,) = (found for found in find(name) if found.kind is CacheManager)
    rig = Rig(entry.build(num_blocks=64, block_size=2), entry.declaration, TaggedDevice(2))
    rig.submit(job)
    rig.finish()
    return rig.ended[job.name].outputs


def total(output: tuple[int, ...]) -> float:
    """Sum of log-probabilities."""
    score, tokens = 0.0, list(PROMPT)
    for token in output:
        best = follows(tokens).first
        score -= ((token - best) % VOCABULARY + 1) * log(2)
        tokens.append(token)
    return score


def greedy(*known: int, count: int) -> tuple[int, ...]:
    output = list(known)
    while len(output) < count:
        output.append(follows((*PROMPT, *output)).first)
    return tuple(output)


def test_samples_start_with_the_best_tokens_and_go_on_greedily() -> None:
    first = follows(PROMPT).first
    wanted = [greedy((first + rank) % VOCABULARY, count=4) for rank in range(3)]
    assert sorted(outputs(Job("a", PROMPT, 4, width=3))) == sorted(wanted)


def test_beams_are_those_of_a_search_by_hand() -> None:
    width, length = 3, 4
    beams: list[tuple[int, ...]] = [()]
    for _ in range(length):
        grown = [(*beam, token) for beam, token in itertools.product(beams, range(VOCABULARY))]
        beams = sorted(grown, key=total, reverse=True)[:width]
    found = outputs(Job("a", PROMPT, length, width=width, lockstep=True))
    assert sorted(map(total, found)) == sorted(map(total, beams))
    assert len(set(found)) == width
    assert greedy(count=length) in found


def test_one_beam_is_greedy_and_managers_without_fork_agree() -> None:
    assert outputs(Job("a", PROMPT, 4, lockstep=True)) == (greedy(count=4),)
    for wide in (Job("a", PROMPT, 4, width=3), Job("a", PROMPT, 4, width=3, lockstep=True)):
        assert outputs(wide, "contiguous-pow2") == outputs(wide) == outputs(wide, "radix")
