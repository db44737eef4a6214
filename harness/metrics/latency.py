"""How long a client waits: for the first token, between tokens, for the last.

All count from the *intended* start. End-to-end latency ends with the last token, so that it is the
time to the first token plus the gaps between chunks, exactly.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

from kvassay.harness.metrics.metric import Need, OfGaps, OfRequest, Per, names
from kvassay.harness.metrics.reading import chunks, one_token_each, output_tokens
from kvassay.harness.metrics.timeline import Timeline


class TimeToFirstToken(OfRequest):
    """Time to the first token.

    `first token - intended start`

    The first chunk that carries a token counts; a role, an empty text or a comment is none.
    """

    tag, unit = "ttft", "s"
    needs = (Need.CHUNKS,)
    elsewhere = names(
        vllm="`ttft`, from the sending, to the first chunk with a choice",
        aiperf="`time_to_first_token`, from the sending",
        guidellm="`time_to_first_token_ms`, from the sending",
    )

    def of(self, one: Timeline) -> float | None:
        found = chunks(one)
        return found[0].time - one.intended if found else None


class EndToEnd(OfRequest):
    """Time to the last token.

    `last token - intended start`
    """

    tag, unit = "e2e", "s"
    needs = (Need.CHUNKS,)
    elsewhere = names(
        vllm="`e2el`, from the sending, to the last chunk with a choice",
        aiperf="`request_latency`, from the sending",
        guidellm="`request_latency`, from the sending to the end of the stream",
    )

    def of(self, one: Timeline) -> float | None:
        found = chunks(one)
        return found[-1].time - one.intended if found else None


class InterChunk(OfGaps):
    """Gaps between chunks.

    `chunk[i + 1] - chunk[i]` over chunks that carry tokens

    Samples of all requests are pooled. A chunk may carry several tokens, and they are not told
    apart.
    """

    tag, unit = "icl", "s"
    per = Per.CHUNK
    needs: ClassVar[tuple[Need, ...]] = (Need.CHUNKS,)
    elsewhere = names(
        vllm="`itl`, whatever a chunk carries",
        aiperf="`inter_chunk_latency`",
    )

    def of(self, one: Timeline) -> tuple[float, ...] | None:
        return tuple(after.time - before.time for before, after in pairwise(chunks(one)))


class InterToken(InterChunk):
    """Gaps between tokens.

    `token[i + 1] - token[i]` where each chunk carries one token

    Where a chunk of any complete request carries several, or it is not known how many, nobody saw
    the gaps between them, and there is no such number for the run.
    """

    tag, unit = "itl", "s"
    per = Per.TOKEN
    needs = (Need.CHUNKS, Need.ONE_TOKEN)
    elsewhere = names(
        vllm="`itl`, equal where each chunk carries one token",
        aiperf="none: its `inter_token_latency` is `tpot`",
        guidellm="none: its `inter_token_latency_ms` is `tpot`",
    )

    def of(self, one: Timeline) -> tuple[float, ...] | None:
        return super().of(one) if one_token_each(one) else None


class TimePerOutputToken(OfRequest):
    """Mean time per token after the first.

    `(last token - first token) / (output tokens - 1)`

    None for a request of fewer than two tokens, or of an unknown number. A first chunk of several
    tokens makes it smaller: these are divided by, and took no time.
    """

    tag, unit = "tpot", "s"
    needs = (Need.CHUNKS, Need.TOKEN_COUNT)
    elsewhere = names(
        vllm="`tpot`",
        aiperf="`inter_token_latency`; divided by the tokens after the first chunk, where these "
        "are known",
        guidellm="`inter_token_latency_ms`; its `time_per_output_token_ms` "
        "is `e2e / output tokens`",
    )

    def of(self, one: Timeline) -> float | None:
        found, count = chunks(one), output_tokens(one)
        if count is None or count < 2 or not found:
            return None
        return (found[-1].time - found[0].time) / (count - 1)


class SendDelay(OfRequest):
    """How late the client was.

    `sent - intended start`

    What the client adds to every latency: its own queue, or a machine too slow for the load.
    """

    tag, unit = "send_delay", "s"
    needs = (Need.SENT,)
    elsewhere = names(guidellm="none: `request_start - targeted_start` of its timings")

    def of(self, one: Timeline) -> float | None:
        return None if one.sent is None else one.sent - one.intended
