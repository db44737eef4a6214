"""Workloads through rigs that differ in their manager, side by side.

*Serial*: one request at a time, each through all rigs before the next one starts, in turning order;
what drifts drifts for all, and nobody queues. *Closed loop*: a rig at a time, several clients.
Outputs are forced, so that all rigs compute the same and later prompts contain earlier answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvassay.harness.metrics.timeline import Ending
from kvassay.harness.registry import Registration
from kvassay.harness.rig.choosing import Forced
from kvassay.harness.rig.jobs import Job
from kvassay.harness.rig.language import LanguageModel
from kvassay.harness.rig.managing import Clock
from kvassay.harness.rig.plan import StepPlan
from kvassay.harness.rig.rig import Rig
from kvassay.harness.rig.scheduler import Limits
from kvassay.harness.workloads.branching import tree_of_thought
from kvassay.harness.workloads.closed_loop import ClosedLoop
from kvassay.harness.workloads.plan import Planned, Workload
from kvassay.harness.workloads.sessions import multi_turn
from kvassay.harness.workloads.sharing import few_shot, self_consistency
from kvassay.suites.benchmarks.rig_cost import Load

OUTPUT, THOUGHT = 8, 32
"""Tokens of an answer, and of a thought."""


def patterns(seed: int, shared: int, vocabulary: int) -> dict[str, Workload]:
    """The four ways to share a prefix of `shared` tokens; it is 95 % of a few-shot prompt."""
    rest = shared * 5 // 95
    common = {"output_tokens": OUTPUT, "vocabulary": vocabulary}
    found = (
        few_shot(seed, questions=8, example_tokens=shared, question_tokens=rest, **common),
        multi_turn(
            seed,
            chats=2,
            turns=4,
            system_tokens=shared,
            user_tokens=rest // 2,
            mean_think_time=0.0,
            **common,
        ),
        self_consistency(
            seed, questions=3, samples=3, example_tokens=shared, question_tokens=rest, **common
        ),
        tree_of_thought(
            seed,
            problems=1,
            depth=2,
            branches=2,
            instruction_tokens=shared,
            problem_tokens=rest,
            thought_tokens=THOUGHT,
            vocabulary=vocabulary,
        ),
    )
    return {workload.name: workload for workload in found}


@dataclass
class Waste:
    """Slots that live requests hold, and those of them that a token has, summed over steps."""

    held: int = 0
    filled: int = 0

    @property
    def share(self) -> float | None:
        """Held and not filled."""
        return 1 - self.filled / self.held if self.held else None


class Measured(Rig):
    """A rig that notes what each of its steps computed, how long it took, and who held what."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self.loads: list[Load] = []
        self.seconds: list[float] = []
        self.waste = Waste()

    def step(self) -> StepPlan:
        start = self.clock()
        plan = super().step()
        if plan.chunks:
            self.seconds.append(self.clock() - start)
            self.loads.append(Load.of_plan(plan))
            self._weigh()
        return plan

    def _weigh(self) -> None:
        """After a step: a block that several hold counts once, filled as the most of them say."""
        managed, filled = self.scheduler.managed, dict[int, int]()
        for branch in self.scheduler.running:
            for index, block in enumerate(managed.table(branch.name)):
                there = min(managed.block_size, branch.slots - index * managed.block_size)
                filled[block] = max(filled.get(block, 0), there, 0)
        behind = getattr(managed.manager, "reserved", lambda: 0)()
        self.waste.held += (len(filled) + behind) * managed.block_size
        self.waste.filled += sum(filled.values())


@dataclass(frozen=True)
class Bench:
    """What all rigs have in common."""

    model: object
    kernel: Registration
    num_blocks: int
    block_size: int
    limits: Limits
    max_tokens: int
    """The longest request that the model allows; what a run of the longest length holds."""
    clock: Clock

    def rig(self, manager: Registration, workload: Workload) -> Measured:
        """A new one for a workload."""
        pool = {"num_blocks": self.num_blocks, "block_size": self.block_size}
        declared, longest = manager.declaration, {}
        if declared.max_tokens is not None:
            longest = {"max_tokens": self.max_tokens}
            declared = replace(declared, max_tokens=self.max_tokens)
        return Measured(
            manager.build(**pool, **longest),
            declared,
            LanguageModel(self.model, self.kernel.build(), self.kernel.declaration, **pool),
            self.limits,
            choose=Forced({one.name: one.output for one in workload.requests}),
            clock=self.clock,
        )


def _job(one: Planned) -> Job:
    return Job(one.name, one.prompt, len(one.output))


def serial(
    bench: Bench, managers: Sequence[Registration], workload: Workload
) -> Iterator[tuple[Planned, list[Measured]]]:
    """After each request: it, and the rigs; raises `RuntimeError` if one did not answer it."""
    rigs = [bench.rig(manager, workload) for manager in managers]
    for number, one in enumerate(workload.requests):
        for turn in range(len(rigs)):
            rig = rigs[(number + turn) % len(rigs)]
            rig.submit(_job(one), declared_cached=one.hit())
            rig.finish()
            timeline = rig.timelines[one.name]
            if timeline.ending is not Ending.COMPLETE:
                raise RuntimeError(f"{one.name} was not answered: {timeline.error}")
        yield one, rigs


@dataclass(frozen=True)
class Looped:
    """What a closed loop came to."""

    throughput: float
    """Output tokens per second."""
    waste: float | None
    """Share of held slots that hold nothing."""


def closed_loop(bench: Bench, manager: Registration, workload: Workload, clients: int) -> Looped:
    """So many clients, until all is answered."""
    rig, loop = bench.rig(manager, workload), ClosedLoop(workload, clients)
    start, tokens = rig.clock(), 0
    while not loop.done:
        for one in loop.start(rig.clock()):
            rig.submit(_job(one))
        if rig.idle:
            continue
        before = set(rig.timelines)
        rig.step()
        for name in set(rig.timelines) - before:
            loop.answer(name, rig.clock())
            tokens += sum(len(event.tokens) for event in rig.timelines[name].events)
    return Looped(tokens / (rig.clock() - start), rig.waste.share)


def warm_up(bench: Bench, managers: Sequence[Registration], workload: Workload) -> None:
    """The first pass through a model is another one."""
    short = Workload(workload.name, workload.seed, workload.requests[:1])
    for _ in serial(bench, managers, short):
        pass
