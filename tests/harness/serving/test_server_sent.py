"""Events come out whole, wherever pieces end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest

from kvassay.harness.serving.server_sent import Decoder, events
from kvassay.harness.serving.virtual_time import play

STREAM = (
    b': hello\n\ndata: {"a": 1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\n'
    b"id: 7\n\n: keep-alive\n\ndata: na\xc3\xafve\n\ndata: cut off"
)
EVENTS = ['{"a": 1}', "two\nlines", "naïve"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pieces_of_any_size_give_the_same_events(size: int) -> None:
    decoder = Decoder()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == EVENTS


def test_an_event_is_there_with_the_byte_that_ends_it() -> None:
    decoder = Decoder()
    assert list(decoder.feed(b"data: x\n")) == []
    assert list(decoder.feed(b"\n")) == ["x"]
    assert list(decoder.feed(b"\n\n")) == []


def test_bytes_that_are_no_text_break_nothing() -> None:
    assert list(Decoder().feed(b"data: \xff\n\n")) == ["\ufffd"]


def test_events_that_are_there_together_have_one_time() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"data: a\n\ndata: b\n\nda"
        yield b"ta: c\n\n"  # was there already: nobody waited for it
        await asyncio.sleep(0)
        yield b"data: d\n\n"

    async def listen() -> list[tuple[float, str]]:
        ticks = count()
        return [event async for event in events(pieces(), lambda: float(next(ticks)))]

    assert play(listen()) == [(0.0, "a"), (0.0, "b"), (0.0, "c"), (1.0, "d")]
