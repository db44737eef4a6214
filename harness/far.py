"""One process on the far side of the bridge, and the exchange of lines with it.

One message out, one line in, within a time limit; the pipes are unbuffered, and the usual exchange
is one write, one poll and one read. Whatever else happens (the process dies, hangs, prints
something that is no reply, answers another message) is a `BridgeError` that says so, and the end
of the process. None is left behind: not by an exception, and not by the end of this interpreter.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

GRACE = 1.0
"""Seconds for a process to end by itself once its stdin is closed."""
CHUNK = 1 << 16
LONGEST = 1 << 26
"""Bytes of the longest line."""
LOUD = 1 << 20
"""Bytes of stderr that are kept at most from one instance to the next."""

_decode = json.JSONDecoder().decode


class BridgeError(Exception):
    """The process did not keep the protocol, or died: what was asked, expected and got."""


def short(value: object) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


class Far:
    """One process and the exchange of lines with it."""

    def __init__(self, argv: Sequence[str], limit: float) -> None:
        self.limit = limit
        self.ended = self.hung = False
        self.manager: object = None
        """The one instance that lives in it."""
        self._number = -1
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=self._log, bufsize=0, start_new_session=True
            )
        except OSError:
            self._log.close()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in = self._process.stdin.fileno()
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._answers = select.poll()
        self._answers.register(self._out, select.POLLIN)
        _running.add(self)

    def ask(self, op: str, rest: str) -> dict[str, Any]:
        """Send one message and return its reply; `rest` is the message after its ``op``."""
        if self.ended:
            raise BridgeError(f"{op}: the process has ended; expected a new instance first")
        self._number += 1
        try:
            self._send(f'{{"id":{self._number},"op":"{op}"{rest}}}\n'.encode(), op)
            return self._parsed(self._receive(op), op + rest)
        except BaseException:
            self.end(grace=0)
            raise

    def _send(self, data: bytes, op: str) -> None:
        try:
            done = os.write(self._in, data)
        except BlockingIOError:
            done = 0
        except OSError:
            self._died(op)
        if done < len(data):
            self._send_rest(data[done:], op)

    def _send_rest(self, data: bytes, op: str) -> None:
        """What did not fit into the pipe at once."""
        room, deadline = select.poll(), time.monotonic() + self.limit
        room.register(self._in, select.POLLOUT)
        while data:
            if not room.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._hangs(op)
            try:
                data = data[os.write(self._in, data) :]
            except OSError:
                self._died(op)

    def _receive(self, op: str) -> bytes:
        """One line; the usual one comes in one piece."""
        if not self._answers.poll(self.limit * 1000):
            self._hangs(op)
        line = os.read(self._out, CHUNK)
        return line if line[-1:] == b"\n" else self._receive_rest(line, op)

    def _receive_rest(self, line: bytes, op: str) -> bytes:
        deadline, pieces, size = time.monotonic() + self.limit, [line], len(line)
        while pieces[-1][-1:] != b"\n":
            if not pieces[-1]:
                self._died(op, b"".join(pieces))
            if size > LONGEST:
                raise BridgeError(f"{op}: expected one line, got {size} bytes without an end")
            if not self._answers.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._hangs(op, b"".join(pieces))
            pieces.append(os.read(self._out, CHUNK))
            size += len(pieces[-1])
        return b"".join(pieces)

    def _parsed(self, line: bytes, asked: str) -> dict[str, Any]:
        if line.find(b"\n") != len(line) - 1:
            raise BridgeError(f"{asked[:200]}: expected one line, got more: {short(line)}")
        try:
            reply = _decode(line.decode())
        except (ValueError, RecursionError):
            reply = None
        if type(reply) is not dict:
            raise BridgeError(f"{asked[:200]}: expected a JSON object, got {short(line)}")
        if reply.get("id") != self._number:
            raise BridgeError(
                f"{asked[:200]}: answers for the wrong request: "
                f"expected id {self._number}, got {reply.get('id')!r}"
            )
        return reply

    def _hangs(self, op: str, got: bytes = b"") -> NoReturn:
        self.hung = True
        part = f", only {short(got)}" if got else ""
        raise BridgeError(f"{op}: no answer within {self.limit:g} s{part}: it hangs, and was ended")

    def _died(self, op: str, got: bytes = b"") -> NoReturn:
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            how = "the process closed its stdout"
        else:
            how = f"the process exited with status {code}"
            if code < 0:
                how = f"the process was ended by {_signal_name(-code)}"
        part = f" and {short(got)}" if got else ""
        words = self._last_words()
        raise BridgeError(f"{op}: expected an answer, but {how}{part}{words}")

    def _last_words(self) -> str:
        """The end of what it wrote to stderr."""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), 1000, max(0, size - 1000)).decode(errors="replace")
        lines = text.strip().splitlines()[-3:]
        return f"; the last of its stderr: {' | '.join(lines)}" if lines else ""

    def forget_words(self) -> None:
        """Keep the file of its stderr small."""
        if os.fstat(self._log.fileno()).st_size > LOUD:
            os.ftruncate(self._log.fileno(), 0)

    def end(self, grace: float = GRACE) -> None:
        """Close its stdin, wait, kill it with its descendants if need be, and collect it."""
        if self.ended:
            return
        self.ended = True
        _running.discard(self)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
        self._log.close()


_running: set[Far] = set()


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


@atexit.register
def end_all() -> None:
    """End every process that runs."""
    for far in list(_running):
        far.end()
