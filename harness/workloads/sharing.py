"""Prompts that share a beginning, or nothing."""

from __future__ import annotations

from kvassay.harness.workloads.fresh import VOCABULARY, Fresh, Length
from kvassay.harness.workloads.plan import Planned, Workload


def few_shot(
    seed: int,
    *,
    questions: int = 64,
    example_tokens: Length = 1024,
    question_tokens: Length = 128,
    output_tokens: Length = 32,
    vocabulary: int = VOCABULARY,
) -> Workload:
    """Questions behind the same examples: all but the first hit these.

    With fixed lengths E and Q the hit rate of n questions is ``(n - 1) E / (n (E + Q))``.
    """
    parameters = dict(locals())
    fresh = Fresh(seed, vocabulary)
    examples = fresh.run(example_tokens)
    requests = [
        Planned(
            name=f"q{number}",
            prompt=examples + fresh.run(question_tokens),
            output=fresh.run(output_tokens),
            shared=len(examples) if number else 0,
        )
        for number in range(questions)
    ]
    return Workload("few-shot", seed, tuple(requests), parameters)


def self_consistency(
    seed: int,
    *,
    questions: int = 16,
    samples: int = 8,
    example_tokens: Length = 512,
    question_tokens: Length = 128,
    output_tokens: Length = 128,
    vocabulary: int = VOCABULARY,
) -> Workload:
    """Each question is asked several times, by requests of their own, behind the same examples.

    With fixed lengths E and Q, n questions and s samples hit ``(n - 1) E + n (s - 1) (E + Q - 1)``
    of ``n s (E + Q)`` tokens.
    """
    parameters = dict(locals())
    fresh = Fresh(seed, vocabulary)
    examples = fresh.run(example_tokens)
    requests = []
    for number in range(questions):
        prompt = examples + fresh.run(question_tokens)
        for sample in range(samples):
            before = len(examples) if number else 0
            one = Planned(
                name=f"q{number}s{sample}",
                prompt=prompt,
                output=fresh.run(output_tokens),
                shared=len(prompt) if sample else before,
                group=f"q{number}",
            )
            requests.append(one)
    return Workload("self-consistency", seed, tuple(requests), parameters)


def parallel_sampling(
    seed: int,
    *,
    prompts: int = 16,
    samples: int = 4,
    prompt_tokens: Length = 512,
    output_tokens: Length = 128,
    vocabulary: int = VOCABULARY,
) -> Workload:
    """Samples of one prompt each, which a manager with FORK makes by forking.

    With a fixed length P, n prompts and s samples hit ``n (s - 1) (P - 1)`` of ``n s P`` tokens.
    """
    parameters = dict(locals())
    fresh = Fresh(seed, vocabulary)
    requests = []
    for number in range(prompts):
        prompt = fresh.run(prompt_tokens)
        for sample in range(samples):
            one = Planned(
                name=f"p{number}s{sample}",
                prompt=prompt,
                output=fresh.run(output_tokens),
                shared=len(prompt) if sample else 0,
                group=f"p{number}",
            )
            requests.append(one)
    return Workload("parallel sampling", seed, tuple(requests), parameters)


def unrelated(
    seed: int,
    *,
    prompts: int = 64,
    prompt_tokens: Length = 1024,
    output_tokens: Length = 128,
    vocabulary: int = VOCABULARY,
) -> Workload:
    """Prompts that share nothing: what a cache costs where it cannot help."""
    parameters = dict(locals())
    fresh = Fresh(seed, vocabulary)
    requests = [
        Planned(f"p{number}", fresh.run(prompt_tokens), fresh.run(output_tokens))
        for number in range(prompts)
    ]
    return Workload("unrelated", seed, tuple(requests), parameters)
