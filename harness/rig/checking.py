"""What the checks of a rig are made of: a subject, what is right, a run, and what it met.

A run that never met the circumstances it is about has not passed: `Checked.missing` says what. What
is right is asked of a `Reference`, which knows the model and no cache. It judges every token that
was generated behind the tokens that the rig itself had generated before; so a near-tie that went
the other way has no consequences for the tokens behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kvassay.harness.contract import Capability
from kvassay.harness.registry import Registration
from kvassay.harness.rig.choosing import Chosen, Scored
from kvassay.harness.rig.device import Device, Scores
from kvassay.harness.rig.jobs import Ended, Job, Reason
from kvassay.harness.rig.plan import StepPlan
from kvassay.harness.rig.rig import Rig
from kvassay.harness.rig.scheduler import Limits

LONGEST = 30
"""Tokens of a job, its output included."""


@dataclass(frozen=True)
class Answer:
    """One branch's output, with the scores by which each of its tokens was chosen."""

    job: Job
    output: tuple[int, ...]
    scores: tuple[Scores | None, ...]
    """None where the rig computed none behind these very tokens."""


class Reference(Protocol):
    """The model without a cache."""

    vocabulary: int
    """Tokens are below it."""

    def problem(self, answers: Sequence[Answer]) -> str | None:
        """What is wrong with the first that is.

        The scores of all; the tokens themselves where the job has one branch, since that is greedy.
        """
        ...


@dataclass(frozen=True)
class Subject:
    """What is checked: a manager, a device, and the rig around them."""

    manager: Registration
    device: Callable[[int, int], Device]
    """Makes a memory of so many blocks of so many tokens, with its model."""
    reference: Reference
    rig: type[Rig] = Rig
    block_size: int = 4

    def build(self, num_blocks: int, limits: Limits) -> Rig:
        """A rig that keeps its scores."""
        manager = self.manager.build(num_blocks=num_blocks, block_size=self.block_size)
        device = self.device(manager.num_blocks, manager.block_size)
        rig = self.rig(manager, self.manager.declaration, device, limits)
        rig.rows = {}
        return rig

    def has(self, *capabilities: Capability) -> bool:
        """Whether the manager declares them."""
        return self.manager.declaration.has(*capabilities)

    def blocks(self, num_tokens: int) -> int:
        """Size of a pool in which one job of so many tokens just fits."""
        declared = self.manager.declaration
        return -(-num_tokens // self.block_size) + declared.watermark + declared.lookahead

    @property
    def longest(self) -> int:
        """Tokens of a job, output included."""
        return min(self.manager.declaration.max_tokens or LONGEST, LONGEST)


class Met(StrEnum):
    """Circumstances."""

    STEP = "a step"
    ANSWER = "an answer"
    HIT = "a hit"
    MIXED = "a step with prompts and single tokens"
    CUT = "a prompt cut into chunks"
    PREEMPTED = "a preemption"
    ABORTED = "an abort while others ran"
    ABORTED_INSIDE = "an abort in the middle of a step"
    BRANCHED = "a token with two continuations"
    DROPPED = "a beam that was dropped"
    NO_ROOM = "a job that was told that there is no room"
    WHOLE_POOL = "a job that needs the whole pool"


class Run:
    """A rig under way, and what it met."""

    def __init__(self, subject: Subject, num_blocks: int, limits: Limits) -> None:
        self.rig = subject.build(num_blocks, limits)
        self.jobs: dict[str, Job] = {}
        self.met: Counter[Met] = Counter()
        self.stuck: str | None = None
        """Why it is not to be waited for any longer."""
        self._aborts: list[str] = []
        self._chooses, self.rig.choose = self.rig.choose, self._choose

    def send(self, *jobs: Job) -> None:
        """All at once."""
        for job in jobs:
            self.jobs[job.name] = job
            self.rig.submit(job)

    def abort(self, name: str, *, inside: bool = False) -> None:
        """Now, or in the middle of the next step."""
        if name in self.rig.ended:
            return
        others = any(branch.job.name != name for branch in self.rig.scheduler.running)
        self.met[Met.ABORTED] += others
        if inside:
            self._aborts.append(name)
        else:
            self.rig.abort(name)

    def step(self, count: int = 1) -> None:
        """So many steps, as long as there is something to do."""
        for _ in range(count):
            if self.rig.idle or self.stuck:
                return
            plan = self.rig.step()
            self._note(plan)
            if not plan.chunks and not self.rig.idle:
                self.stuck = f"step {plan.number} computes nothing, and jobs are pending"

    def finish(self) -> None:
        """To the end, or until it is clear that there is none."""
        patience = self._patience()
        self.step(patience)
        if not self.rig.idle and self.stuck is None:
            self.stuck = f"jobs are still pending after {patience} further steps"

    def _patience(self) -> int:
        """Steps: every job alone, each of its tokens behind a preemption."""
        budget = self.rig.scheduler.limits.step_tokens
        return sum(
            job.width
            * (job.max_tokens + 1)
            * (-(-(len(job.prompt) + job.max_tokens) // budget) + 1)
            for job in self.jobs.values()
        )

    def _choose(self, scored: Scored) -> Chosen:
        """As the rig does; this is the middle of a step."""
        chosen = self._chooses(scored)
        self.met[Met.BRANCHED] += sum(len(tokens) > 1 for tokens in chosen.values())
        self.met[Met.DROPPED] += sum(not tokens for tokens in chosen.values())
        for name in self._aborts:
            planned = any(chunk.job == name for chunk, _ in scored)
            self.met[Met.ABORTED_INSIDE] += planned
            self.rig.abort(name)
        self._aborts.clear()
        return chosen

    def _note(self, plan: StepPlan) -> None:
        self.met[Met.STEP] += 1
        self.met[Met.HIT] += sum(admission.hit > 0 for admission in plan.admitted)
        self.met[Met.CUT] += sum(not chunk.samples for chunk in plan.chunks)
        self.met[Met.MIXED] += bool(plan.prefills and plan.decodes)
        self.met[Met.PREEMPTED] += len(plan.preempted)

    def answers(self) -> list[Answer]:
        """All that was generated: as it was streamed, or branch by branch."""
        rows = self.rig.rows or {}
        return [
            Answer(job, output, tuple(rows.get((name, output[:end])) for end in range(len(output))))
            for name, job in self.jobs.items()
            if name in self.rig.ended
            for output in self._outputs(job)
            if output
        ]

    def _outputs(self, job: Job) -> tuple[tuple[int, ...], ...]:
        return self.rig.ended[job.name].outputs if job.width > 1 else (self.output(job),)

    def output(self, job: Job) -> tuple[int, ...]:
        """The tokens that were streamed; of a job that never ended, none."""
        timeline = self.rig.timelines.get(job.name)
        events = () if timeline is None else timeline.events
        return tuple(token for event in events for token in event.tokens)

    def ended(self, reason: Reason) -> list[Ended]:
        """Jobs that ended so."""
        return [ended for ended in self.rig.ended.values() if ended.reason is reason]

    def undone(self, *excused: Job) -> str | None:
        """A job that did not get all that it asked for, and has no excuse."""
        if self.stuck is not None:
            return self.stuck
        for name, job in self.jobs.items():
            ended = self.rig.ended.get(name)
            if ended is None:
                return f"{name} never ended"
            if job in excused:
                continue
            if ended.reason is not Reason.DONE:
                return f"{name} ended with {ended.reason.value!r}: {ended.detail}"
            if [len(output) for output in ended.outputs] != [job.max_tokens] * job.width:
                told = [len(output) for output in ended.outputs]
                return f"{name} got {told} tokens, of {job.width} times {job.max_tokens}"
        return None
