"""How long a client waits: for the first token, between tokens, for the last.

All count from the *intended* start. End-to-end latency ends with the last token, so that it is the
time to the first token plus the gaps between chunks, exactly.
"""

from __future__ import annotations

from itertools import pairwise

from kvassay.harness.metrics.metric import Need, OfGaps, OfRequest, Per, Tool
from kvassay.harness.metrics.reading import chunks, one_token_each, output_tokens
from kvassay.harness.metrics.timeline import Timeline


class TimeToFirstToken(OfRequest):
    """Time to the first token.

    `first token - intended start`

    The first chunk that carries a token counts; a role, an empty text or a comment is none.
    """

    tag, unit = "ttft", "s"
    needs = (Need.CHUNKS,)
    elsewhere = {
        Tool.VLLM: "`ttft`, from the sending, to the first chunk with a choice",
        Tool.AIPERF: "`time_to_first_token`, from the sending",
        Tool.GUIDELLM: "`time_to_first_token_ms`, from the sending",
    }

    def of(self, one: Timeline) -> float | None:
        found = chunks(one)
        return found[0].time - one.intended if found else None


class EndToEnd(OfRequest):
    """Time to the last token.

    `last token - intended start`
    """

    tag, unit = "e2e", "s"
    needs = (Need.CHUNKS,)
    elsewhere = {
        Tool.VLLM: "`e2el`, from the sending, to the last chunk with a choice",
        Tool.AIPERF: "`request_latency`, from the sending",
        Tool.GUIDELLM: "`request_latency`, from the sending to the end of the stream",
    }

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
    needs = (Need.CHUNKS,)
    elsewhere = {
        Tool.VLLM: "`itl`, whatever a chunk carries",
        Tool.AIPERF: "`inter_chunk_latency`",
    }

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
    elsewhere = {
        Tool.VLLM: "`itl`, equal where each chunk carries one token",
        Tool.AIPERF: "none: its `inter_token_latency` is `tpot`",
        Tool.GUIDELLM: "none: its `inter_token_latency_ms` is `tpot`",
    }

    def of(self, one: Timeline) -> tuple[float, ...] | None:
        return super().of(one) if one_token_each(one) else None


class TimePerOutputToken(OfRequest):
    """Mean time per token after the first.

    `(last token - first token) / (output tokens - 1)`

    None for a request of fewer than two tokens, or of an unknown number.
    """

    tag, unit = "tpot", "s"
    needs = (Need.CHUNKS, Need.TOKEN_COUNT)
    elsewhere = {
        Tool.VLLM: "`tpot`",
        Tool.AIPERF: "`inter_token_latency`",
        Tool.GUIDELLM: "`inter_token_latency_ms`; its `time_per_output_token_ms` "
        "is `e2e / output tokens`",
    }

    def of(self, one: Timeline) -> float | None:
        found, count = chunks(one), output_tokens(one)
        if count is None or count < 2 or not found:
            return None
        return (found[-1].time - found[0].time) / (count - 1)


class SendDelay(OfRequest):
    """How late the client was.

    `sent - intended start`

    What the client adds to every latency: its own queue, or a machine that is too slow for the load.
    """

    tag, unit = "send_delay", "s"
    needs = (Need.SENT,)
    elsewhere = {Tool.GUIDELLM: "none: `request_start - targeted_start` of its timings"}

    def of(self, one: Timeline) -> float | None:
        return None if one.sent is None else one.sent - one.intended
