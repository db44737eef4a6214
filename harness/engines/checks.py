"""S1 to S3 of an engine as a black box: the circumstances, and what must have been met in each.

A check that never met its circumstances has not passed. What was generated is judged by the dense
model in every check; S2 and S3 ask besides who got what, and whether the engine goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvassay.harness.circumstances import Checked
from kvassay.harness.contract import Capability, GenerationRequest
from kvassay.harness.engines.asking import End, Sending, Told
from kvassay.harness.engines.prompts import OUTPUT, Prompts
from kvassay.harness.engines.subject import SPACIOUS, EngineSubject

LONGEST = 3
"""Blocks of the longest request where the pool is tight."""
SHORTEST = 4 * OUTPUT
"""Its tokens at least: with small blocks it is more of them."""


class Met(StrEnum):
    """Circumstances."""

    ANSWER = "an answer"
    TOKEN = "a token that was judged"
    LOGPROB = "a log-probability that was judged"
    HIT = "a hit"
    OTHER_SALT = "a prompt that only another salt had brought"
    TOGETHER = "answers that came side by side"
    CUT = "a prompt longer than a step"
    OVERCOMMITTED = "more tokens at once than the pool holds"
    PREEMPTED = "a preemption"
    LEFT = "a client that left before the end"
    NO_ROOM = "a request that did not get what it asked for"
    WHOLE_POOL = "a request that needs the whole pool"
    TWICE = "a name that was in use"
    NO_PROMPT = "a prompt without tokens"


class Scene:
    """A subject in the circumstances of one check."""

    def __init__(self, subject: EngineSubject, circumstance: str) -> None:
        self.subject = subject
        self.met: Counter[Met] = Counter()
        self.engine = subject.engine()
        self._longest = LONGEST
        # Another time, other prompts: what was asked before is cached.
        self._seed = f"{circumstance} {subject.scene()}"
        self.prompts = self._prompts()

    def _prompts(self) -> Prompts:
        vocabulary = self.subject.dense.vocabulary
        return Prompts(vocabulary, self.engine.block_size, self._seed)

    def tight(self, blocks: float) -> None:
        """Go on with an engine whose pool holds so many requests of the longest kind."""
        declared = self.subject.registration.declaration
        spare = declared.watermark + declared.lookahead
        self._longest = max(LONGEST, -(-SHORTEST // self.engine.block_size))
        self.engine = self.subject.engine(int(self._longest * blocks) + spare)

    def chunked(self, step_tokens: int) -> None:
        """Go on with an engine that computes so many tokens at a time."""
        self.engine = self.subject.engine(SPACIOUS, step_tokens)

    @property
    def longest(self) -> int:
        """Tokens of a request that fits."""
        return self._longest * self.engine.block_size

    def ask(self, *requests: GenerationRequest) -> list[Told]:
        """All at once."""
        return self.send(*map(Sending, requests))

    def send(self, *sendings: Sending) -> list[Told]:
        """All as they say; what was met is noted."""
        before = self.engine.preemptions()
        told = self.engine.ask(sendings)
        self._note(told)
        after = self.engine.preemptions()
        if before is not None and after is not None:
            self.met[Met.PREEMPTED] += after - before
        return told

    def _note(self, told: Sequence[Told]) -> None:
        self.met[Met.ANSWER] += sum(one.answered for one in told)
        self.met[Met.HIT] += sum(bool(one.cached) for one in told)
        self.met[Met.LEFT] += sum(one.end is End.LEFT for one in told)
        spans = [(one.first, one.last) for one in told if one.first and one.last]
        self.met[Met.TOGETHER] += sum(
            other is not span and span[0] < other[0] < span[1] for span in spans for other in spans
        )
        asked = sum(len(one.request.prompt) + one.request.max_tokens for one in told)
        self.met[Met.OVERCOMMITTED] += asked > self.engine.slots


Run = Callable[[Scene], tuple[list[Told], str | None]]
"""What was asked, and what is wrong beside what was generated."""


@dataclass(frozen=True)
class Check:
    """One circumstance of one invariant."""

    invariant: str
    circumstance: str
    run: Run
    wanted: tuple[Met, ...]
    needs: Capability | None = None

    def __call__(self, subject: EngineSubject) -> Checked[Met]:
        """Ask, judge, and say what was met."""
        checked: Checked[Met] = Checked(self.invariant, self.circumstance)
        if self.needs is not None and not subject.has(self.needs):
            checked.unclaimed = f"needs {self.needs.name}"
            return checked
        try:
            self._judge(subject, checked)
        except Exception as error:
            checked.problem, checked.crashed = f"{type(error).__name__}: {error}", True
        if checked.problem is not None:
            subject.drop()
        return checked

    def _judge(self, subject: EngineSubject, checked: Checked[Met]) -> None:
        scene = Scene(subject, self.circumstance)
        counted = scene.engine.preemptions() is not None
        told, problem = self.run(scene)
        tokens, logprobs = subject.dense.tokens, subject.dense.logprobs
        checked.problem = problem or _strange(told) or subject.dense.problem(told)
        scene.met[Met.TOKEN] += subject.dense.tokens - tokens
        scene.met[Met.LOGPROB] += subject.dense.logprobs - logprobs
        checked.met = scene.met
        wanted = [met for met in self.wanted if met is not Met.PREEMPTED or counted]
        checked.missing = tuple(met for met in wanted if scene.met[met] <= 0)


def _strange(told: Sequence[Told]) -> str | None:
    for one in told:
        if one.strangers:
            return f"the stream of {one.name} brought events of {', '.join(sorted(one.strangers))}"
        if len(one.tokens) > one.request.max_tokens:
            return f"{one}: more tokens than it asked for"
        if one.cached is not None and not 0 <= one.cached <= len(one.request.prompt):
            return f"{one}: {one.cached} cached tokens of a prompt of {len(one.request.prompt)}"
        if len(one.logprobs) != len(one.tokens):
            return f"{one}: {len(one.logprobs)} log-probabilities of {len(one.tokens)} tokens"
    return None


def undone(told: Sequence[Told], excused: Sequence[Told] = ()) -> str | None:
    """Somebody who did not get what he asked for, and has no excuse."""
    for one in told:
        if one.answered or one.end is End.LEFT or any(one is other for other in excused):
            continue
        return str(one)
    return None


# --------------------------------------------------------------------------------- S1, same answer


def _alone(scene: Scene) -> tuple[list[Told], str | None]:
    told = [one for request in scene.prompts.unrelated() for one in scene.ask(request)]
    return told, undone(told)


def _warm(scene: Scene) -> tuple[list[Told], str | None]:
    """One after another, then the next turn of a conversation."""
    told = [one for request in scene.prompts.family() for one in scene.ask(request)]
    first = told[0]
    turn = (*first.request.prompt, *first.tokens, *scene.prompts.run(2))
    told += scene.ask(scene.prompts.request(turn))
    return told, undone(told)


def _together(scene: Scene) -> tuple[list[Told], str | None]:
    """Twice, so that the second time everybody is warm."""
    requests = [*scene.prompts.family(), *scene.prompts.unrelated()]
    told = scene.ask(*requests)
    again = [scene.prompts.request(each.prompt, 2 * OUTPUT) for each in requests[::2]]
    told += scene.send(*(Sending(each, after=0.002 * index) for index, each in enumerate(again)))
    return told, undone(told)


def _chunked(scene: Scene) -> tuple[list[Told], str | None]:
    """Prompts that no step has room for, beside others that are decoded meanwhile."""
    step = scene.engine.block_size + 5
    scene.chunked(step)
    long = [scene.prompts.request(scene.prompts.run(step * 3 + more)) for more in (0, 1, -1)]
    told = scene.ask(*long, *scene.prompts.family())
    scene.met[Met.CUT] += sum(len(one.request.prompt) > step for one in told if one.answered)
    return told, undone(told)


def _preempted(scene: Scene) -> tuple[list[Told], str | None]:
    """A pool of one and a half, for outputs as long as their prompts."""
    scene.tight(1.5)
    told = scene.ask(*scene.prompts.growing(4, scene.longest), *scene.prompts.family()[:4])
    return told, undone(told)


def _after_an_abort(scene: Scene) -> tuple[list[Told], str | None]:
    """Clients leave at their first token and later; then others ask the same."""
    told: list[Told] = []
    for leave in (1, 3):
        first, second, *others = scene.prompts.family()
        first = scene.prompts.request(first.prompt, ABORTED)
        third = scene.prompts.request(scene.prompts.run(3))
        told += scene.send(Sending(first, leave=leave), Sending(second), Sending(third))
        told += scene.ask(*others)
    return told, undone(told)


def _salted(scene: Scene) -> tuple[list[Told], str | None]:
    """What one salt brought is nobody else's, and its own again."""
    prompt = scene.prompts.run(3 * scene.engine.block_size)
    told: list[Told] = []
    for salt in ("a", "b"):
        (one,) = scene.ask(scene.prompts.request(prompt, salt=salt))
        told.append(one)
        if one.cached:
            return told, f"{one} hit {one.cached} tokens that only another salt had brought"
        scene.met[Met.OTHER_SALT] += salt == "b"
    told += scene.ask(scene.prompts.request(prompt, salt="a"))
    return told, undone(told)


# ---------------------------------------------------------------------- S2 progress, S3 exhaustion


def _whole_pool(scene: Scene) -> tuple[list[Told], str | None]:
    """All fit, one after another at least: so all get what they ask for."""
    scene.tight(1)
    prompts = scene.prompts
    one = prompts.request(prompts.run(1), scene.longest - 1)
    told = scene.ask(*prompts.growing(3, scene.longest), one, *prompts.family()[2:5])
    scene.met[Met.WHOLE_POOL] += sum(each.answered for each in told[:4])
    return told, undone(told)


def _no_room(scene: Scene) -> tuple[list[Told], str | None]:
    """Requests that no pool could hold, beside and before others that fit."""
    scene.tight(1)
    prompts, slots = scene.prompts, scene.engine.slots
    too_long = [
        prompts.request(prompts.run(slots + 1)),
        prompts.request(prompts.run(scene.longest - 2), slots),
    ]
    few, more = prompts.unrelated()[:3], prompts.family()[2:5]
    told = scene.ask(too_long[0], *few)
    told += scene.ask(too_long[1], *more)
    told += scene.ask(prompts.request(prompts.run(scene.longest - OUTPUT)))
    hopeless = [one for one in told if one.request in too_long]
    for one in hopeless:
        if one.end is End.STUCK:
            return told, f"{one} and was never told"
    # Whoever keeps KV elsewhere may have room for it.
    scene.met[Met.NO_ROOM] += sum(not one.answered for one in hopeless)
    return told, undone(told, hopeless)


def _after_aborts(scene: Scene) -> tuple[list[Told], str | None]:
    """Whoever left holds nothing: the whole pool can be used again."""
    scene.tight(1)
    prompts, told = scene.prompts, list[Told]()
    for leave in (1, 2):
        other, victim = prompts.run(3), prompts.run(scene.longest // 2)
        told += scene.send(
            Sending(prompts.request(other)),
            Sending(prompts.request(victim, scene.longest // 3), leave=leave),
        )
        (whole,) = scene.ask(prompts.request(prompts.run(scene.longest - OUTPUT)))
        told.append(whole)
        scene.met[Met.WHOLE_POOL] += whole.answered
    return told, undone(told)


def _same_name(scene: Scene) -> tuple[list[Told], str | None]:
    """A name that is in use is refused, or both are answered; nobody else is troubled."""
    prompts = scene.prompts
    first = prompts.request(prompts.run(40), 24)
    second = GenerationRequest(first.request, prompts.run(17), 4, first.options)
    beside = prompts.request(prompts.run(9), 12)
    told = scene.send(Sending(first), Sending(beside), Sending(second))
    told += scene.ask(prompts.request(prompts.run(5)))
    one, _, other, _ = told
    scene.met[Met.TWICE] += one.asked < other.asked < (one.last or 0.0)
    return told, undone(told, [each for each in (other, one) if each.end is End.REFUSED][:1])


def _no_prompt(scene: Scene) -> tuple[list[Told], str | None]:
    """A prompt without tokens is refused or answered alike, whoever stands beside it."""
    prompts, told, outputs = scene.prompts, list[Told](), list[list[int]]()
    for length in (5, 21):
        beside, empty = prompts.request(prompts.run(length), 8), prompts.request(())
        told += scene.ask(beside, empty)
        outputs.append(told[-1].tokens)
        if told[-1].end is End.STUCK:
            return told, f"{told[-1]} and was never told"
        scene.met[Met.NO_PROMPT] += 1
    told += scene.ask(prompts.request(prompts.run(5)))
    if outputs[0] != outputs[1]:
        return (
            told,
            f"a prompt without tokens comes to {outputs[0]} and, beside another, {outputs[1]}",
        )
    empty_ones = [one for one in told if not one.request.prompt]
    return told, undone(told, empty_ones)


ABORTED = 40
"""Tokens that are asked for by whoever leaves: so that there is something to abort."""
JUDGED = (Met.ANSWER, Met.TOKEN)
CHECKS: tuple[Check, ...] = (
    Check("S1", "cold and alone", _alone, JUDGED),
    Check("S1", "warm", _warm, (*JUDGED, Met.HIT), Capability.PREFIX_CACHE),
    Check("S1", "in a batch", _together, (*JUDGED, Met.TOGETHER)),
    Check("S1", "in chunks", _chunked, (*JUDGED, Met.CUT)),
    Check("S1", "preempted", _preempted, (*JUDGED, Met.OVERCOMMITTED, Met.PREEMPTED)),
    Check("S1", "after another's abort", _after_an_abort, (*JUDGED, Met.LEFT)),
    Check("S1", "another salt", _salted, (*JUDGED, Met.OTHER_SALT, Met.HIT), Capability.SALT),
    Check("S2", "a pool that just holds one", _whole_pool, (*JUDGED, Met.WHOLE_POOL)),
    Check("S3", "requests without room beside others", _no_room, (*JUDGED, Met.NO_ROOM)),
    Check("S3", "the whole pool after aborts", _after_aborts, (*JUDGED, Met.LEFT, Met.WHOLE_POOL)),
    Check("S3", "a name that is in use", _same_name, (*JUDGED, Met.TWICE)),
    Check("S3", "a prompt without tokens", _no_prompt, (*JUDGED, Met.NO_PROMPT)),
)
"""In the order of the law."""
