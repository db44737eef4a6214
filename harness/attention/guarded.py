"""A process that tries a kernel where a wrong access ends it: memory between forbidden pages (K13).

``python -m kvassay.harness.attention.guarded`` answers JSON lines, one try to a line. A kernel is
built when it is first tried; each try happens in a fork, so that its end is an answer::

    > {"id":0,"op":"try","reference":"torch","name":"torch","case":{...},"guard":"end"}
    < {"id":0,"outcome":"outside","text":"past the end of block_table"}

With `guard` every tensor ends right before a page that may not be touched, or begins right after
one. With `judge` ("module:function") a whole judgement is made there instead of a call. Outcomes
are ok, refused, crash, wrong, hangs, outside (an access outside the tensors), killed (ended by a
signal that has nothing to do with the guards), and unknown (no such kernel, no memory).
For CPUs of POSIX systems.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import pkgutil
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.attention.build import build
from kvassay.harness.attention.case import CacheLayout, Case, Garbage, Placement
from kvassay.harness.attention.check import CHECKS
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.memory import PATTERN
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.contract import Declaration, PagedAttention
from kvassay.harness.registry import find
from kvassay.harness.violation import Crash

CONTROL = "control:"
"""How the reference to a check's control begins."""
LONGEST = 500
"""Characters of a text in an answer from a fork: the answer has to fit into a pipe at once."""
CALLS = 20
"""So many times as long as one call a judgement may take: it is several, and what is expected."""
LINES = 5
"""Of a story, for the same reason."""
Judge = Callable[[Kernel, Case], Wrong | None]


class Guard(StrEnum):
    """On which side of a tensor the forbidden page lies."""

    END = "end"
    START = "start"


WORDS = {Guard.END: "past the end of", Guard.START: "before the start of"}


class Guards:
    """Memory for tensors, each in pages of its own with a forbidden page on one side.

    `only` numbers the allocation that is guarded, None guards all; with `open` no page is
    forbidden, and everything else is as it was.
    """

    def __init__(self, side: Guard, *, only: int | None = None, open: bool = False) -> None:
        self.side = side
        self.only = only
        self.open = open
        self.number = -1
        self._protect = ctypes.CDLL(None, use_errno=True).mprotect
        self._protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def __call__(self, num_bytes: int) -> Tensor:
        self.number += 1
        page = mmap.PAGESIZE
        body = max(1, -(-num_bytes // page)) * page
        pages = mmap.mmap(-1, body + 2 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if not self.open and self.only in (None, self.number):
            start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
            self._forbid(start if self.side is Guard.START else start + page + body, page)
        if num_bytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        offset = page + (body - num_bytes if self.side is Guard.END else 0)
        memory = torch.frombuffer(pages, dtype=torch.uint8, count=num_bytes, offset=offset)
        return memory.fill_(PATTERN)

    def _forbid(self, address: int, size: int) -> None:
        if self._protect(address, size, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")


@dataclass(frozen=True)
class Fate:
    """What became of a try."""

    outcome: str
    text: str = ""
    wrong: tuple[Any, ...] = ()
    """Of a wrong outcome, what `Wrong` is made of."""


def attempt(kernel: Kernel, case: Case, guards: Guards | None, judge: Judge | None = None) -> Fate:
    """Call the kernel once, here, or judge it."""
    try:
        if judge is not None:
            wrong = judge(kernel, case)
            return Fate("ok") if wrong is None else _wrong(wrong)
        built = build(case) if guards is None else build(case, allocate=guards, band=0)
        kernel.attend(built)
    except Refused as refusal:
        return Fate("refused", str(refusal))
    except Wrong as wrong:
        return _wrong(wrong)
    except Crash as crash:
        return Fate("hangs" if crash.hangs else "crash", crash.what)
    return Fate("ok")


def _wrong(wrong: Wrong) -> Fate:
    story = tuple(line[:LONGEST] for line in wrong.story[:LINES])
    words = (wrong.expected[:LONGEST], wrong.got[:LONGEST])
    return Fate("wrong", words[1], (wrong.invariant, wrong.anomaly, *words, story))


def forked(kernel: Kernel, case: Case, guards: Guards | None, judge: Judge | None = None) -> Fate:
    """Call the kernel once, or judge it, in a fork."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _without_core()
            fate = attempt(kernel, case, guards, judge)
        except Exception as error:
            fate = Fate("unknown", f"{type(error).__name__}: {error}")
        try:
            os.write(write, json.dumps([fate.outcome, fate.text[:LONGEST], fate.wrong]).encode())
        finally:
            os._exit(0)
    os.close(write)
    limit = kernel.time_limit * (1 if judge is None else CALLS)
    answered = bool(select.select([read], [], [], limit + 5)[0])
    answer = os.read(read, 1 << 16) if answered else b""
    os.close(read)
    if not answered:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if not answered:
        return Fate("hangs", f"no answer within {limit:g} s")
    if os.WIFSIGNALED(status):
        return Fate("killed", signal.Signals(os.WTERMSIG(status)).name)
    return Fate(*json.loads(answer)) if answer else Fate("killed", "an exit of its own")


def _without_core() -> None:
    """An end that is expected leaves no memory image behind."""
    import resource  # not on every system

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def guarded(kernel: Kernel, case: Case, side: Guard) -> Fate:
    """A try between forbidden pages; what ends it is told apart from what would end any."""
    fate = forked(kernel, case, Guards(side))
    if fate.outcome != "killed":
        return fate
    if forked(kernel, case, Guards(side, open=True)).outcome == "killed":
        return fate
    for number, name in enumerate(_names(case)):
        if forked(kernel, case, Guards(side, only=number)).outcome == "killed":
            return Fate("outside", f"{WORDS[side]} {name}")
    return Fate("outside", f"{WORDS[side]} a tensor")


def _names(case: Case) -> list[str]:
    """The tensors of a case in the order in which they are allocated."""
    arena = build(case).arena
    return [region.name for region in (*arena.inputs, *(each for each, _ in arena.outputs))]


# ----------------------------------------------------------------------------------- the process


def kernel_of(reference: str, name: str) -> Kernel:
    """The kernel behind a reference: one that is registered, or the control of a check."""
    if reference.startswith(CONTROL):
        from kvassay.harness.attention import probes  # noqa: F401

        declaration = Declaration()
        check = CHECKS[reference.removeprefix(CONTROL)]
        return Kernel(check.control(declaration), declaration, name)
    found = [e for e in find(reference) if e.kind is PagedAttention and e.name == name]
    if not found:
        raise LookupError(f"{reference}: expected a PagedAttention {name!r}, found none")
    return Kernel.of(found[0])


def warm_up(kernel: Kernel, case: Case) -> None:
    """Call it once on a few keys, so that what it imports and compiles is there in every fork.

    Not if that ends a fork.
    """
    ratio = max(1, case.num_q_heads // case.num_kv_heads)
    easy = replace(
        case,
        seqs=((3, 1),),
        num_q_heads=ratio * case.num_kv_heads,
        placement=Placement.IDENTITY,
        cache_layout=CacheLayout.NHD,
        garbage=Garbage.FINITE,
    )
    if forked(kernel, easy, None).outcome in ("ok", "refused"):
        attempt(kernel, easy, None)


class Server:
    """The kernels that were tried so far."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str], Kernel] = {}

    def answer(self, message: dict[str, Any]) -> Fate:
        """What became of the try that a message asks for."""
        named = message["reference"], message["name"]
        case, guard = Case(**message["case"]), message["guard"]
        try:
            if named not in self._kernels:
                self._kernels[named] = kernel_of(*named)
                warm_up(self._kernels[named], case)
        except Exception as error:
            return Fate("unknown", f"{type(error).__name__}: {error}")
        kernel = self._kernels[named]
        if message.get("judge"):
            return forked(kernel, case, None, pkgutil.resolve_name(message["judge"]))
        return guarded(kernel, case, Guard(guard)) if guard else forked(kernel, case, None)


def main() -> None:
    """Serve until stdin ends; what kernels print goes to stderr."""
    torch.set_num_threads(1)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = Server()
    for line in sys.stdin:
        message = json.loads(line)
        fate = server.answer(message)
        reply = {"id": message["id"], **asdict(fate)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
