"""Trying a kernel in another process, where its end is an answer (see `guarded`).

Only a kernel that another process can find, on a CPU of a POSIX system, can be tried so. The
process is started when it is first needed, and serves all kernels until the end of this one.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from kvassay.harness.attention.case import Case
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.guarded import Fate, Guard
from kvassay.harness.attention.wrong import Anomaly, Refused, Wrong
from kvassay.harness.far import BridgeError, Far

COMMAND = (
    *("env", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1"),
    *(sys.executable, "-m", "kvassay.harness.attention.guarded"),
)
"""One thread: a fork has only one."""
LIMIT = 3600.0
"""Seconds for one answer. The process has limits of its own; this one is for when they fail."""


class Untold(Exception):
    """Another process could not say."""


def unreachable(kernel: Kernel) -> str | None:
    """Why a kernel cannot be tried in another process, if it cannot."""
    if kernel.device != "cpu":
        return f"the kernel runs on {kernel.device}: forbidden pages are the CPU's"
    if not hasattr(os, "fork"):
        return "this system has no fork"
    if not _reference(kernel):
        return "another process cannot find the kernel: it is not registered"
    return None


def tried(kernel: Kernel, case: Case, guard: Guard | None = None, judge: str = "") -> Fate:
    """What becomes of the kernel on a case. Raises `Refused` where it cannot be tried.

    `judge` ("module:function") is called there with kernel and case, instead of the kernel alone.
    """
    reason = unreachable(kernel)
    if reason is not None:
        raise Refused(reason)
    asked = {
        "reference": _reference(kernel),
        "name": kernel.name,
        "case": asdict(case),
        "guard": guard,
        "judge": judge,
    }
    try:
        reply = _process().ask("try", f",{json.dumps(asked)[1:-1]}")
    except BridgeError as error:
        raise Refused(f"the process that tries kernels: {error}") from error
    if reply["outcome"] == "unknown":
        raise Refused(f"another process cannot try the kernel: {reply['text']}")
    return Fate(str(reply["outcome"]), str(reply["text"]), tuple(reply["wrong"]))


def fatal(kernel: Kernel, case: Case, beside: Case) -> str | None:
    """How the kernel ends its process on a case, and not on the harmless one beside it.

    None if it does not, or nobody can try.
    """
    try:
        fate = tried(kernel, case)
        if fate.outcome != "killed" or tried(kernel, beside).outcome == "killed":
            return None
    except Refused:
        return None
    return f"the process is ended by {fate.text}"


def judged(kernel: Kernel, case: Case, judge: str, beside: Case) -> Wrong | str | None:
    """What a judge ("module:function") says of a case in another process, or how that was ended.

    `beside` is the harmless case, to be survived. Raises `Refused` for what the kernel refuses, and
    `Untold` where only a judgement made here can tell.
    """
    try:
        fate = tried(kernel, case, judge=judge)
        if fate.outcome == "killed" and tried(kernel, beside).outcome != "killed":
            return f"the process is ended by {fate.text}"
    except Refused as why:
        raise Untold(str(why)) from why
    if fate.outcome == "refused":
        raise Refused(fate.text)
    if fate.outcome == "wrong":
        invariant, anomaly, expected, got, story = fate.wrong
        return Wrong(invariant, Anomaly(anomaly), expected, got, tuple(story))
    if fate.outcome != "ok":
        raise Untold(fate.text)
    return None


def _reference(kernel: Kernel) -> str:
    """A control is found by what its class says."""
    return kernel.reference or str(vars(type(kernel.instance)).get("found_as", ""))


_started: list[Far] = []
"""The process, once there is one."""


def _process() -> Far:
    if not _started or _started[0].ended:
        _started[:] = [Far(COMMAND, LIMIT)]
    return _started[0]
