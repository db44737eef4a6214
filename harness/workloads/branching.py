"""Outputs that become prompts of several requests.

A child's prompt is its parent's prompt and output. Of it the parent has computed all but the last
token, which is also all that may be hit; so every child hits the whole of its prompt but one token.
"""

from __future__ import annotations

from kvassay.harness.workloads.fresh import VOCABULARY, Fresh, Length
from kvassay.harness.workloads.plan import Planned, Tokens, Workload


def _child(parent: Planned, name: str, output: Tokens) -> Planned:
    prompt = parent.prompt + parent.output
    return Planned(
        name=name,
        prompt=prompt,
        output=output,
        shared=len(prompt) - 1,
        after=(parent.name,),
        group=parent.group,
        step=parent.step + 1,
    )


def tree_of_thought(
    seed: int,
    *,
    problems: int = 4,
    depth: int = 3,
    branches: int = 3,
    instruction_tokens: Length = 256,
    problem_tokens: Length = 128,
    thought_tokens: Length = 64,
    vocabulary: int = VOCABULARY,
) -> Workload:
    """Each thought is continued by `branches` thoughts, `depth` levels deep, all of them kept.

    With fixed lengths I, P and T, level d (from 0) of a problem is ``branches ** (d + 1)`` prompts
    of ``I + P + d T`` tokens, of which all but one token are hit; of the very first prompt of all
    nothing is, and of a further problem's first one I tokens.
    """
    parameters = dict(locals())
    fresh = Fresh(seed, vocabulary)
    instruction = fresh.run(instruction_tokens)
    requests: list[Planned] = []
    for number in range(problems):
        prompt, group = instruction + fresh.run(problem_tokens), f"t{number}"
        seen = [len(instruction) if number else 0, *[len(prompt)] * (branches - 1)]
        level = [
            Planned(f"{group}.{branch}", prompt, fresh.run(thought_tokens), known, group=group)
            for branch, known in enumerate(seen)
        ]
        requests += level
        for _ in range(1, depth):
            level = [
                _child(parent, f"{parent.name}.{branch}", fresh.run(thought_tokens))
                for parent in level
                for branch in range(branches)
            ]
            requests += level
    return Workload("tree of thought", seed, tuple(requests), parameters)


def beam_search(
    seed: int,
    *,
    prompts: int = 4,
    width: int = 4,
    steps: int = 32,
    stride: int = 4,
    prompt_tokens: Length = 256,
    vocabulary: int = VOCABULARY,
) -> Workload:
    """`width` beams of each prompt, each of which follows one of the step before.

    Which one is drawn at random, so some beams end and others branch; a step is `stride` tokens. A
    request is one beam for one step; the requests of a group with the same `step` are live
    together. With a fixed length P, step d of a prompt is `width` prompts of ``P + d stride``
    tokens, all but one of which are hit, and nothing of the first.
    """
    parameters = dict(locals())
    fresh = Fresh(seed, vocabulary)
    requests: list[Planned] = []
    for number in range(prompts):
        prompt, group = fresh.run(prompt_tokens), f"b{number}"
        beams = [
            Planned(
                name=f"{group}.0.{beam}",
                prompt=prompt,
                output=fresh.run(stride),
                shared=len(prompt) if beam else 0,
                group=group,
            )
            for beam in range(width)
        ]
        requests += beams
        for step in range(1, steps):
            beams = [
                _child(fresh.rng.choice(beams), f"{group}.{step}.{beam}", fresh.run(stride))
                for beam in range(width)
            ]
            requests += beams
    return Workload("beam search", seed, tuple(requests), parameters)
