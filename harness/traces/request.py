"""One request of a trace, whatever the format: what was recorded, and None for what was not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt that is reused as a whole, at any position."""

    id: int
    tokens: int
    kind: str


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. Lengths are in tokens, times in seconds."""

    input_tokens: int
    output_tokens: int
    """Tokens generated; 0 if none was."""
    arrival: float | None = None
    """Seconds since the start of `recording`; of `session` where sessions were recorded singly."""
    recording: int = 0
    """A file may hold several recordings, one after the other, each with a clock of its own."""
    blocks: Sequence[int] | None = None
    """Ids of the prompt's blocks from its start on; the last may stand for a partial block."""
    block_tokens: int | None = None
    """Tokens per block of `blocks`."""
    prefix_ids: bool = True
    """Whether an id stands for a block *and* all before it; else for the block's content alone."""
    segments: tuple[Segment, ...] = ()
    session: str | None = None
    parent: str | None = None
    """The session's request before this one."""
    turn: int | None = None
    kind: str | None = None
    think_time: float | None = None
    """Seconds between the answer to the request before and this one."""
    api_time: float | None = None
    """Seconds that the recorded service took to answer."""
    failed: bool = False

    def full_blocks(self) -> Sequence[int]:
        """Ids of the blocks that the prompt fills, which is all that a block-wise cache shares."""
        if self.blocks is None or self.block_tokens is None:
            return ()
        return self.blocks[: self.input_tokens // self.block_tokens]
