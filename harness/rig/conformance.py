"""S1 to S3: under all circumstances the answer of the dense model; progress; contained failure.

Each check puts a rig into one circumstance, on prompts whose lengths and common beginnings lie at
and around the boundaries of blocks. The checks need no model to be installed: the device may be a
language model over a memory of its own, or the tagged one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from kvassay.harness.circumstances import Checked
from kvassay.harness.contract import Capability
from kvassay.harness.rig.checking import Met, Run, Subject
from kvassay.harness.rig.jobs import Job, Reason
from kvassay.harness.rig.scheduler import Limits

SEED = 20_261
SPACIOUS = 128
"""Blocks of a pool in which nobody is in anybody's way."""
WIDE = Limits(step_tokens=256)
NARROW = Limits(step_tokens=5)
OUTPUT = 4


class Prompts:
    """Draws jobs that fit a subject."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._rng = Random(SEED)
        self._made = 0

    def run(self, length: int) -> tuple[int, ...]:
        """So many tokens."""
        return tuple(self._rng.randrange(self.subject.reference.vocabulary) for _ in range(length))

    def job(
        self,
        prompt: Sequence[int],
        max_tokens: int = OUTPUT,
        *,
        width: int = 1,
        beams: bool = False,
    ) -> Job:
        """A job under a name of its own."""
        self._made += 1
        name = f"j{self._made}"
        return Job(name, tuple(prompt), max_tokens, width=width, lockstep=beams)

    @property
    def most(self) -> int:
        """Tokens of a prompt."""
        return self.subject.longest - OUTPUT

    def unrelated(self, count: int) -> list[Job]:
        """Of lengths from one token to the most."""
        lengths = [1 + (self.most - 1) * index // (count - 1) for index in range(count)]
        return [self.job(self.run(length)) for length in lengths]

    def growing(self, count: int) -> list[Job]:
        """Outputs as long as their prompts."""
        half = self.subject.longest // 2
        return [self.job(self.run(max(1, half - 2 + more)), half) for more in range(count)]

    def family(self) -> list[Job]:
        """One prompt twice, then others that begin like it."""
        size, whole = self.subject.block_size, self.run(self.most)
        cuts = {size - 1, size, size + 1, 2 * size, 3 * size - 2, len(whole) - 1}
        begun = [whole[:cut] for cut in sorted(cuts) if 0 < cut < len(whole)]
        longer = [start + self.run(min(3, self.most - len(start))) for start in begun]
        return [self.job(prompt) for prompt in (whole, whole, *longer, *begun[-2:])]


class Check:
    """One circumstance of one invariant."""

    invariant = "S1"
    circumstance = ""
    wanted: tuple[Met, ...] = ()

    def unclaimed(self, subject: Subject) -> str | None:
        """Why a manager cannot come into it."""
        return None

    def runs(self, subject: Subject) -> Iterator[Run]:
        """Rigs that have come to their end."""
        raise NotImplementedError

    def problem(self, subject: Subject, run: Run) -> str | None:
        """What is wrong with a run."""
        raise NotImplementedError

    def __call__(self, subject: Subject) -> Checked[Met]:
        """Run, judge, and say what was met."""
        checked: Checked[Met] = Checked(
            self.invariant, self.circumstance, unclaimed=self.unclaimed(subject)
        )
        if checked.unclaimed is not None:
            return checked
        try:
            for run in self.runs(subject):
                checked.problem = self.problem(subject, run)
                checked.met += run.met
                if checked.problem is not None:
                    return checked
        except Exception as error:
            checked.problem, checked.crashed = f"{type(error).__name__}: {error}", True
        checked.missing = tuple(met for met in self.wanted if not checked.met[met])
        return checked


# --------------------------------------------------------------------------------- S1, same answer


class SameAnswer(Check):
    """Whatever was generated is what the dense model says; who got less is another check's."""

    def problem(self, subject: Subject, run: Run) -> str | None:
        answers = run.answers()
        run.met[Met.ANSWER] += len(answers)
        return subject.reference.problem(answers)


class Alone(SameAnswer):
    circumstance = "cold and alone"
    wanted = (Met.ANSWER,)

    def runs(self, subject: Subject) -> Iterator[Run]:
        run = Run(subject, SPACIOUS, WIDE)
        for job in Prompts(subject).unrelated(6):
            run.send(job)
            run.finish()
        yield run


class Warm(SameAnswer):
    circumstance = "warm"
    wanted = (Met.HIT,)

    def unclaimed(self, subject: Subject) -> str | None:
        return None if subject.has(Capability.PREFIX_CACHE) else "needs PREFIX_CACHE"

    def runs(self, subject: Subject) -> Iterator[Run]:
        """One after another, then the next turn of the first."""
        prompts, run = Prompts(subject), Run(subject, SPACIOUS, WIDE)
        for job in prompts.family():
            run.send(job)
            run.finish()
        short = prompts.job(prompts.run(prompts.most // 2))
        run.send(short)
        run.finish()
        turn = (*short.prompt, *run.output(short), *prompts.run(2))
        run.send(prompts.job(turn[: prompts.most]))
        run.finish()
        yield run


class Together(SameAnswer):
    circumstance = "in a batch"
    wanted = (Met.MIXED,)

    def runs(self, subject: Subject) -> Iterator[Run]:
        prompts, run = Prompts(subject), Run(subject, SPACIOUS, WIDE)
        jobs = [*prompts.family(), *prompts.unrelated(5)]
        run.send(*jobs[::2])
        run.step(2)
        run.send(*jobs[1::2])
        run.finish()
        yield run


class Chunked(SameAnswer):
    circumstance = "in chunks"
    wanted = (Met.CUT,)

    def unclaimed(self, subject: Subject) -> str | None:
        if not subject.has(Capability.PREFIX_CACHE):
            return None
        cuts = subject.has(Capability.COMMIT) or subject.has(Capability.CHUNKED)
        return None if cuts else "needs COMMIT or CHUNKED where there is a PREFIX_CACHE"

    def runs(self, subject: Subject) -> Iterator[Run]:
        prompts, run = Prompts(subject), Run(subject, SPACIOUS, NARROW)
        for job in prompts.family():
            run.send(job)
            run.step(3)
        run.finish()
        yield run


class Preempted(SameAnswer):
    circumstance = "preempted"
    wanted = (Met.PREEMPTED,)

    def runs(self, subject: Subject) -> Iterator[Run]:
        """A pool that holds one and a half."""
        for limits in (WIDE, NARROW):
            prompts = Prompts(subject)
            run = Run(subject, subject.blocks(subject.longest * 3 // 2), limits)
            run.send(*prompts.growing(3), *prompts.family()[:4])
            run.finish()
            yield run


class Aborted(SameAnswer):
    circumstance = "after another's abort"
    wanted = (Met.ABORTED, Met.ABORTED_INSIDE)

    def runs(self, subject: Subject) -> Iterator[Run]:
        """Of three jobs one is aborted in its prompt or its output; then others ask the same."""
        for limits in (NARROW, WIDE):
            prompts, run = Prompts(subject), Run(subject, SPACIOUS, limits)
            for inside in (False, True):
                first, second, *others = prompts.family()
                run.send(first, prompts.job(prompts.run(3), OUTPUT), second)
                run.step(2)
                run.abort(first.name, inside=inside)
                run.step()
                run.send(*others)
                run.finish()
            yield run


class Branched(SameAnswer):
    circumstance = "in branches"
    wanted = (Met.BRANCHED, Met.DROPPED)

    def runs(self, subject: Subject) -> Iterator[Run]:
        """Parallel samples and beams, their last common block full and partly filled."""
        for num_blocks in (SPACIOUS, 3 * subject.blocks(subject.longest)):
            prompts, run = Prompts(subject), Run(subject, num_blocks, WIDE)
            for length in {prompts.most, prompts.most // subject.block_size * subject.block_size}:
                prompt = prompts.run(length)
                run.send(prompts.job(prompt, width=3), prompts.job(prompt, width=3, beams=True))
                run.send(prompts.job(prompt))
            run.finish()
            yield run


# ---------------------------------------------------------------------- S2 progress, S3 exhaustion


class Progress(Check):
    """In a pool that the largest job fills, all get what they ask for, whoever waits for whom."""

    invariant = "S2"
    circumstance = "a pool that just holds one"
    wanted = (Met.WHOLE_POOL,)

    def runs(self, subject: Subject) -> Iterator[Run]:
        for limits in (WIDE, Limits(step_tokens=7, branches=2)):
            prompts = Prompts(subject)
            run = Run(subject, subject.blocks(subject.longest), limits)
            run.send(*prompts.growing(3), *prompts.unrelated(4), *prompts.family()[:3])
            run.send(prompts.job(prompts.run(1), subject.longest - 1))
            run.finish()
            run.met[Met.WHOLE_POOL] += 1
            yield run

    def problem(self, subject: Subject, run: Run) -> str | None:
        return run.undone()


class Exhaustion(Check):
    """Jobs that no pool could hold are told so, and all the others get what they ask for."""

    invariant = "S3"
    circumstance = "jobs without room beside others"
    wanted = (Met.NO_ROOM,)

    def runs(self, subject: Subject) -> Iterator[Run]:
        for limits in (WIDE, NARROW):
            prompts = Prompts(subject)
            run = Run(subject, subject.blocks(subject.longest), limits)
            few, more = prompts.unrelated(3), prompts.family()
            run.send(prompts.job(prompts.run(1 + self._slots(run))), *few)
            run.send(prompts.job(prompts.run(subject.longest - 2), self._slots(run)), *more)
            run.finish()
            run.met[Met.NO_ROOM] += len(run.ended(Reason.NO_ROOM))
            yield run

    def _slots(self, run: Run) -> int:
        managed = run.rig.scheduler.managed
        return managed.num_blocks * managed.block_size

    def problem(self, subject: Subject, run: Run) -> str | None:
        slots = self._slots(run)
        too_long = [
            job for job in run.jobs.values() if len(job.prompt) + job.max_tokens - 1 > slots
        ]
        told = [run.rig.ended[job.name] for job in too_long if job.name in run.rig.ended]
        for ended in told:
            if ended.reason is Reason.DONE:
                return f"{ended.job.name} is done, with more tokens than the pool has slots"
            if not ended.detail:
                return f"{ended.job.name} ended with {ended.reason.value!r} and no word why"
        return run.undone(*too_long)


class Recovery(Check):
    """What was aborted, preempted or refused holds nothing: the whole pool can be used again."""

    invariant = "S3"
    circumstance = "the whole pool after aborts"
    wanted = (Met.ABORTED, Met.WHOLE_POOL)

    def runs(self, subject: Subject) -> Iterator[Run]:
        prompts = Prompts(subject)
        run = Run(subject, subject.blocks(subject.longest), NARROW)
        for inside in (False, True):
            other = prompts.job(prompts.run(min(3, prompts.most)))
            victim = prompts.job(prompts.run(prompts.most // 2))
            waits = prompts.job(prompts.run(prompts.most))
            run.send(other, victim, waits)
            run.step(2)
            run.abort(waits.name)
            run.abort(victim.name, inside=inside)
            run.finish()
            run.send(prompts.job(prompts.run(prompts.most)))
            run.finish()
            run.met[Met.WHOLE_POOL] += 1
        yield run

    def problem(self, subject: Subject, run: Run) -> str | None:
        return run.undone(*(ended.job for ended in run.ended(Reason.ABORTED)))


CHECKS: tuple[Check, ...] = (
    Alone(),
    Warm(),
    Together(),
    Chunked(),
    Preempted(),
    Aborted(),
    Branched(),
    Progress(),
    Exhaustion(),
    Recovery(),
)
"""In the order of the law."""
