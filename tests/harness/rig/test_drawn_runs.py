"""Drawn traffic in small pools: answers are the model's, jobs end, nothing is left behind."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import find
from kvassay.harness.rig.choosing import Chosen, Greedy, Scored
from kvassay.harness.rig.jobs import Job, Reason
from kvassay.harness.rig.rig import Rig
from kvassay.harness.rig.scheduler import Limits
from kvassay.harness.rig.tagged import VOCABULARY, TaggedDevice, follows
from kvassay.impls.faulty.rig import FAULTS

RUNS = 15
JOBS = 8
MANAGERS = (
    "paged",
    "radix",
    "contiguous-oracle",
    "control-bump",
    "control-row-limit",
    "control-watermark",
)


class Run:
    """One rig, its jobs sent and aborted at any time."""

    def __init__(self, name: str, seed: int, rig: type[Rig] = Rig) -> None:
        self.rng = Random(seed)
        reference = "kvassay.impls.faulty.controls" if name.startswith("control-") else name
        (entry,) = (e for e in find(reference) if e.kind is CacheManager and e.name == name)
        self.size, self.blocks = self.rng.choice((1, 2, 4)), self.rng.randint(6, 16)
        self.manager = entry.build(num_blocks=self.blocks, block_size=self.size)
        limits = Limits(self.rng.choice((3, 8, 64)), self.rng.choice((2, 50)))
        device = TaggedDevice(self.manager.block_size)
        self.rig = rig(self.manager, entry.declaration, device, limits, choose=self.choose)
        self.jobs = [self.job(f"j{number}") for number in range(JOBS)]
        self._greedy = Greedy()

    def job(self, name: str) -> Job:
        """Two families of prompts; some fit no pool."""
        rng, length = self.rng, self.rng.randint(1, self.blocks * self.size * 5 // 4)
        step = rng.choice((3, 5))
        prompt = tuple(position * step % VOCABULARY for position in range(length))
        wide = {"width": rng.randint(1, 3), "lockstep": rng.random() < 0.4}
        return Job(name, prompt, rng.randint(1, 6), **wide)  # type: ignore[arg-type]

    def choose(self, scored: Scored) -> Chosen:
        """As ever; this is the middle of a step."""
        groups: dict[str, set[int]] = {}
        for chunk, _ in scored:
            if chunk.branch.job.lockstep:
                groups.setdefault(chunk.job, set()).add(chunk.stop)
        assert all(len(stops) == 1 for stops in groups.values()), "beams out of step"
        self.maybe_abort()
        return self._greedy(scored)

    def maybe_abort(self) -> None:
        alive = [job.name for job in self.jobs if job.name in self.rig.scheduler._jobs]
        if alive and self.rng.random() < 0.05:
            self.rig.abort(self.rng.choice(alive))

    def play(self) -> Counter[str]:
        """To the end; how often what happened."""
        seen: Counter[str] = Counter()
        waiting = list(self.jobs)
        while waiting or not self.rig.idle:
            while waiting and self.rng.random() < 0.6:
                self.rig.submit(waiting.pop(0))
            self.maybe_abort()
            plan = self.rig.step()
            assert plan.chunks or not self.rig.scheduler._jobs, "a step that computes nothing"
            seen["preempted"] += len(plan.preempted)
            seen["hit"] += sum(admission.hit > 0 for admission in plan.admitted)
            seen["steps"] += 1
            assert seen["steps"] < 1000
        return seen


def check(job: Job, output: tuple[int, ...]) -> None:
    """Each token is the best, or among the best where branches were made."""
    tokens = list(job.prompt)
    for index, token in enumerate(output):
        rank = (token - follows(tokens).first) % VOCABULARY
        most = job.width if job.lockstep or index == 0 else 1
        assert rank < most, f"token {index} of {job.name} does not follow"
        tokens.append(token)


def served(name: str, rig: type[Rig] = Rig) -> Counter[str]:
    """All runs, their answers checked; how often what happened."""
    seen: Counter[str] = Counter()
    for seed in range(RUNS):
        run = Run(name, seed, rig)
        seen += run.play()
        for job in run.jobs:
            ended = run.rig.ended[job.name]
            seen[ended.reason] += 1
            for output in ended.outputs:
                check(job, output)
            if ended.reason is Reason.DONE:
                assert [len(output) for output in ended.outputs] == [job.max_tokens] * job.width
        assert not run.rig.scheduler.running
        assert not run.manager.refcounts()
    return seen


@pytest.mark.parametrize("fault", ["copies-not-done", "positions-start-behind-the-hit"])
def test_a_fault_shows(fault: str) -> None:
    with pytest.raises(AssertionError, match="does not follow"):
        served("radix", FAULTS[fault].build)


@pytest.mark.parametrize("name", MANAGERS)
def test_drawn_traffic(name: str) -> None:
    seen = served(name)
    assert all(seen[reason] for reason in Reason)
    assert seen["preempted"]
    assert bool(seen["hit"]) == (name not in ("paged", "contiguous-oracle", "control-bump"))
