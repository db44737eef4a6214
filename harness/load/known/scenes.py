"""The scenes in which each invariant is tried: small, and each with something to get wrong.

Times are multiples of 1/64 s. A scene names the metrics that it judges, and the invariant that is
to blame for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvassay.harness.load.known.scene import Call, Scene
from kvassay.harness.load.watching import Limits
from kvassay.harness.serving.script import (
    Comment,
    Cut,
    Done,
    Error,
    Finish,
    Part,
    Role,
    Script,
    Silence,
    Tokens,
    Usage,
    plain,
)
from kvassay.harness.serving.scripted import DOWN

WAITS = ("ttft", "e2e", "send_delay")
GAPS = ("icl", "itl", "tpot", "e2e")
RATES = ("request_throughput", "output_throughput", "goodput")
ENDINGS = tuple(f"requests_{name}" for name in ("complete", "truncated", "failed", "cancelled"))


@dataclass(frozen=True)
class Act:
    """A scene, and what is judged of it."""

    invariant: str
    name: str
    scene: Scene
    tags: tuple[str, ...]


def _ended(at: float, *parts: Part, output: int = 0) -> tuple[Part, ...]:
    return (*parts, Finish(at), Usage(at, 8, output), Done(at))


ROLE_FIRST = Script(_ended(1.5, Role(0.25), Tokens(1.0, (7,)), Tokens(1.5, (8,)), output=2))
CHAT = Script((Role(0.125), Comment(0.25), *_ended(0.75, Tokens(0.75, (7,)), output=1)), chat=True)
ALIVE = Script(
    (Comment(0.25), Comment(0.5), *_ended(1.25, Tokens(1.25, (7,)), output=1)), torn=True
)
LATE = Script(_ended(2.25, Tokens(2.0, (7,)), Tokens(2.25, (8,)), output=2), head_at=1.75)
NOTHING = Script(_ended(0.5, Role(0.25)))
LAST_WITH_REASON = Script((Tokens(0.5, (7,)), Finish(1.0, "stop", (8, 9)), Usage(1.0, 8, 3)))
SEVERAL = Script(
    _ended(2.0, Tokens(0.5, (7, 8, 9)), Tokens(1.0, (10,)), Tokens(2.0, (11, 12)), output=6)
)
UNTOLD = Script(_ended(1.0, Tokens(0.5, (7,), told=False), Tokens(1.0, (8,), told=False), output=2))
UNTOLD_SEVERAL = Script(
    _ended(1.0, Tokens(0.5, (7,), told=False), Tokens(1.0, (8,), told=False), output=5)
)
UNCOUNTED = Script((Tokens(0.5, (7,), told=False), Finish(1.0)))
SPACED = Script(
    (
        Role(0.25),
        Tokens(0.5, (7,)),
        Comment(0.625),
        Usage(0.625, 8, 1),
        Tokens(0.75, (8,)),
        Tokens(2.0, (9,)),
        *_ended(2.5, output=3),
    )
)
BURST = Script(_ended(1.0, Tokens(0.5, (7,)), Tokens(0.5, (8,)), Tokens(1.0, (9,)), output=3))

REFUSED = Script(status=500, head_at=0.25, problem="out of memory")
NOBODY = Script(status=DOWN)
BROKEN = Script((Tokens(0.25, (7,)), Tokens(0.5, (8,)), Error(0.75)))
BROKEN_AFTER = Script((Tokens(0.25, (7,)), Finish(0.5), Error(0.75)))
BROKEN_THEN_DONE = Script((Tokens(0.25, (7,)), Error(0.5), Done(0.5)))
ABORTED = Script((Tokens(0.25, (7,)), Finish(0.5, "abort"), Done(0.5)))
SHORT = Script((Tokens(0.25, (7,)), Tokens(0.5, (8,))))
SHORT_DONE = Script((Tokens(0.25, (7,)), Done(0.5)))
CUT = Script((Tokens(0.25, (7,)), Cut(0.375)))
CUT_AFTER = Script((Tokens(0.25, (7,)), Finish(0.5), Cut(0.625)))
STALLED = Script((Tokens(0.25, (7,)), Comment(4.0), Silence(64.0), Tokens(64.0, (8,))))
PATIENT = Limits(stall=8.0)

FAILURES = (
    Call(0.0, plain(0.5, (0.25,))),
    Call(0.25, REFUSED),
    Call(0.5, NOBODY),
    Call(0.75, BROKEN),
    Call(1.0, BROKEN_AFTER),
    Call(1.25, BROKEN_THEN_DONE),
    Call(1.5, ABORTED),
    Call(1.75, SHORT),
    Call(2.0, SHORT_DONE),
    Call(2.25, CUT),
    Call(2.5, CUT_AFTER),
    Call(2.75, STALLED),
    Call(3.0, plain(1.0, (0.5,))),
)
OBJECTIVES = {"ttft": 1.0, "tpot": 0.25, "e2e": 4.0}
GRADED = (
    Call(0.0, plain(0.5, (0.25,) * 3)),
    Call(0.25, plain(1.0, (0.25,))),
    Call(0.5, plain(1.25, (0.25,))),
    Call(0.75, plain(0.5, (0.25, 0.5))),
    Call(1.0, plain(0.5, (0.25,) * 20)),
    Call(1.25, plain(0.5)),
    Call(1.5, NOTHING),
    Call(1.75, BROKEN),
)

ACTS: tuple[Act, ...] = (
    Act(
        "M1",
        "first chunks without a token",
        Scene(
            tuple(
                Call(number * 0.25, script)
                for number, script in enumerate((ROLE_FIRST, CHAT, ALIVE, LATE, plain(0.5)))
            )
        ),
        ("ttft",),
    ),
    Act("M1", "no token at all", Scene((Call(0.0, NOTHING),)), ("ttft",)),
    Act(
        "M1",
        "a client that is busy",
        Scene(tuple(Call(n * 0.25, plain(1.0, (0.5,))) for n in range(4)), at_once=1),
        ("ttft",),
    ),
    Act(
        "M3",
        "one token in each chunk",
        Scene((Call(0.0, SPACED), Call(0.25, BURST), Call(0.5, plain(0.5)), Call(1.0, UNTOLD))),
        GAPS,
    ),
    Act(
        "M3",
        "several tokens in a chunk",
        Scene((Call(0.0, SEVERAL), Call(0.5, LAST_WITH_REASON), Call(1.0, plain(1.0, (0.5,))))),
        GAPS,
    ),
    Act("M3", "text that may be several tokens", Scene((Call(0.0, UNTOLD_SEVERAL),)), GAPS),
    Act(
        "M4",
        "a server that answers nothing for a while",
        Scene(tuple(Call(n * 0.5, plain(max(8.0 - n * 0.5, 0.5), (0.25,))) for n in range(20))),
        WAITS,
    ),
    Act(
        "M4",
        "a client that is busy",
        Scene(tuple(Call(n * 0.25, plain(1.0, (0.5,))) for n in range(8)), at_once=2),
        WAITS,
    ),
    Act("M6", "failures", Scene(FAILURES, limits=PATIENT), (*WAITS, *GAPS, *ENDINGS)),
    Act("M6", "nothing but failures", Scene((Call(0.0, BROKEN), Call(0.25, SHORT))), WAITS),
    Act(
        "M7",
        "tokens",
        Scene(
            (Call(0.0, SEVERAL), Call(0.5, LAST_WITH_REASON), Call(1.0, UNTOLD_SEVERAL)),
            warm_up=(Call(0.0, plain(4.0, (0.25,))), Call(0.0, plain(0.25, (0.25,)))),
        ),
        (*RATES, *ENDINGS, "tpot", "ttft", "preemptions"),
    ),
    Act("M7", "objectives", Scene(GRADED, objectives=OBJECTIVES), (*RATES, *ENDINGS)),
    Act("M7", "unknown counts", Scene((Call(0.0, UNCOUNTED),)), RATES),
)
"""In the order of the law; M2 is judged in all of them, M5 has a world of its own."""
