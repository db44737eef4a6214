"""Conversations: each prompt is the one before, its answer, and something new.

Of the answer all but the last token has been computed; so a turn hits the prompt before and the
answer without that token. Sessions take turns, and all of them begin with the same system prompt.
"""

from __future__ import annotations

from kvassay.harness.workloads.fresh import VOCABULARY, Fresh, Length
from kvassay.harness.workloads.plan import Planned, Tokens, Workload


def multi_turn(
    seed: int,
    *,
    chats: int = 16,
    turns: int = 6,
    system_tokens: Length = 128,
    user_tokens: Length = 64,
    output_tokens: Length = 192,
    mean_think_time: float = 10.0,
    vocabulary: int = VOCABULARY,
) -> Workload:
    """Chats whose users think for an exponentially distributed time (s) before they go on.

    With fixed lengths S, U and O, turn t (from 0) has a prompt of ``S + (t + 1) U + t O`` tokens
    and hits ``S + t U + t O - 1`` of them; a chat's first turn hits S, that of the first chat
    nothing.
    """
    parameters = dict(locals())
    fresh = Fresh(seed, vocabulary)
    system = fresh.run(system_tokens)
    latest: list[Planned | None] = [None] * chats
    requests = []
    for turn in range(turns):
        for chat, before in enumerate(latest):
            name, said = f"c{chat}t{turn}", fresh.run(user_tokens)
            answer = fresh.run(output_tokens)
            if before is None:
                known = len(system) if chat else 0
                one = Planned(name, system + said, answer, known, group=f"c{chat}")
            else:
                one = _next(before, name, said, answer, fresh.seconds(mean_think_time))
            latest[chat] = one
            requests.append(one)
    return Workload("multi-turn chat", seed, tuple(requests), parameters)


def agents(
    seed: int,
    *,
    count: int = 4,
    steps: int = 16,
    system_tokens: Length = 2048,
    task_tokens: Length = 256,
    call_tokens: Length = 64,
    result_tokens: Length = 512,
    summary_tokens: Length = 256,
    compact_above: int | None = 6144,
    mean_tool_time: float = 2.0,
    vocabulary: int = VOCABULARY,
) -> Workload:
    """Agents that call a tool in every step and read its result in the next one.

    A prompt of more than `compact_above` tokens is replaced: the system prompt, the task and a
    summary remain, of which the first two are hit. None: contexts only grow.
    """
    parameters = dict(locals())
    fresh = Fresh(seed, vocabulary)
    system = fresh.run(system_tokens)
    tasks = [fresh.run(task_tokens) for _ in range(count)]
    latest: list[Planned | None] = [None] * count
    requests = []
    for step in range(steps):
        for agent, before in enumerate(latest):
            name, call = f"a{agent}s{step}", fresh.run(call_tokens)
            start = system + tasks[agent]
            if before is None:
                known = len(system) if agent else 0
                one = Planned(name, start, call, known, group=f"a{agent}")
            elif compact_above is not None and len(before.prompt) > compact_above:
                one = _compacted(before, name, start, fresh.run(summary_tokens), call)
            else:
                result = fresh.run(result_tokens)
                one = _next(before, name, result, call, fresh.seconds(mean_tool_time))
            latest[agent] = one
            requests.append(one)
    return Workload("agents", seed, tuple(requests), parameters)


def _next(before: Planned, name: str, said: Tokens, answer: Tokens, pause: float) -> Planned:
    return Planned(
        name=name,
        prompt=before.prompt + before.output + said,
        output=answer,
        shared=len(before.computed()),
        after=(before.name,),
        think_time=pause,
        group=before.group,
        step=before.step + 1,
    )


def _compacted(
    before: Planned, name: str, start: Tokens, summary: Tokens, answer: Tokens
) -> Planned:
    return Planned(
        name=name,
        prompt=start + summary,
        output=answer,
        shared=len(start),
        after=(before.name,),
        group=before.group,
        step=before.step + 1,
    )
