"""Which tokens follow, by the scores of a step. Nothing is drawn: equal scores, equal tokens.

* one branch: the best token;
* parallel samples: the best tokens first, one for each branch, then each branch its own best;
* beams: of all continuations of all beams the best, by the sum of their log-probabilities;
* forced: what a workload says it answers, so that later prompts can contain it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

from kvassay.harness.rig.device import Scores
from kvassay.harness.rig.plan import Chunk

Scored = Sequence[tuple[Chunk, Scores]]
Chosen = dict[str, Sequence[int]]
"""Next tokens by name of the branch, as `Scheduler.complete` wants them."""


class Choose(Protocol):
    """A way to choose."""

    def __call__(self, scored: Scored) -> Chosen:
        """For all chunks of a step that sample; a lockstep job's are all among them."""
        ...


class Greedy:
    """The best, as many as a job asks for."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, tuple[int, ...]], float] = {}
        """Log-probability of a beam, by job and output."""

    def __call__(self, scored: Scored) -> Chosen:
        """Forget a job's beams once they have been continued."""
        chosen: Chosen = {}
        beams: dict[str, list[tuple[Chunk, Scores]]] = defaultdict(list)
        for chunk, scores in scored:
            job = chunk.branch.job
            if job.lockstep and job.width > 1:
                beams[job.name].append((chunk, scores))
            else:
                count = 1 if chunk.branch.generated else job.width
                chosen[chunk.name] = [token for _, token in scores.best(count)]
        for group in beams.values():
            chosen |= self._continued(group)
        return chosen

    def _continued(self, group: Scored) -> Chosen:
        """The best continuations of all beams of a job; beams without one are dropped."""
        job = group[0][0].branch.job
        sums = [self._sums.pop((job.name, chunk.branch.output), 0.0) for chunk, _ in group]
        found = [
            (sums[beam] + score, -beam, -token)
            for beam, (_, scores) in enumerate(group)
            for score, token in scores.best(job.width)
        ]
        chosen: dict[str, list[int]] = {chunk.name: [] for chunk, _ in group}
        for total, beam, token in sorted(found, reverse=True)[: job.width]:
            chunk, _ = group[-beam]
            chosen[chunk.name].append(-token)
            self._sums[job.name, (*chunk.branch.output, -token)] = total
        return dict(chosen)


class Forced:
    """Of each job the tokens that are given, whatever the scores."""

    def __init__(self, outputs: Mapping[str, Sequence[int]]) -> None:
        self._outputs = outputs

    def __call__(self, scored: Scored) -> Chosen:
        """`KeyError` for a job without tokens."""
        return {
            chunk.name: [self._outputs[chunk.job][chunk.branch.generated]] for chunk, _ in scored
        }
