"""One run of one pair: a scenario replayed, or operations generated and recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from kvassay.harness import session
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused
from kvassay.harness.attention.wrong import Wrong as KernelWrong
from kvassay.harness.checker import Effect
from kvassay.harness.contract import Capability
from kvassay.harness.generator import Generator
from kvassay.harness.pairs.attending import Eyes, Looked
from kvassay.harness.pairs.blame import Convicted, Side, blame
from kvassay.harness.pairs.evidence import Met
from kvassay.harness.pairs.form import Form, accepts, choose
from kvassay.harness.pairs.noting import note
from kvassay.harness.pairs.own import OwnAttention
from kvassay.harness.pairs.pool import garbage_for
from kvassay.harness.pairs.worker import Worker
from kvassay.harness.registry import Registration, Unavailable, check_attributes
from kvassay.harness.scenario import Operation, Quiesce, Scenario
from kvassay.harness.violation import Crash, Violation

Source = Callable[[Worker], Iterable[Operation]]
After = Callable[[Worker, Looked], None]
"""Something more to be done with what was attended to; it leaves all as it was."""


class NoForm(ValueError):
    """The kernel offers no shape that a pair could use, or not over blocks of this size."""


@dataclass
class Played:
    """What came of one run."""

    scenario: Scenario
    verdict: Convicted | None = None
    met: Counter[Met] = field(default_factory=Counter)
    effects: Counter[Effect] = field(default_factory=Counter)
    attended: int = 0
    refused: int = 0
    """Batches that the kernel refused."""
    brief: bool = False


class Pair:
    """A manager and a kernel. The manager's capabilities that only look are not used."""

    def __init__(self, manager: Registration, kernel: Registration) -> None:
        self.manager = replace(manager, declaration=session.without_inspection(manager.declaration))
        self.kernel = kernel
        self.driver = Kernel.of(kernel)
        self.own = isinstance(self.driver.instance, OwnAttention)
        """Whether the manager's own attention is in the place of a kernel."""
        form = choose(self.driver)
        self.eyes = None if form is None else Eyes(self.driver, form)

    @property
    def name(self) -> str:
        """Manager and kernel."""
        return f"{self.manager.name}+{self.kernel.name}"

    def offers(self, block_size: int) -> bool:
        """Whether the kernel works over blocks of this size."""
        return self.eyes is not None and accepts(self.driver, self.eyes.form, block_size)

    def worker(self, num_blocks: int, block_size: int) -> Worker:
        """A new manager with its memory.

        Raises `NoForm` or the factory's `ValueError` where the shape is not offered, `Crash` where
        building fails.
        """
        form = self._form()
        try:
            manager = self.manager.build(num_blocks=num_blocks, block_size=block_size)
        except (ValueError, Unavailable):
            raise
        except (Exception, SystemExit, GeneratorExit) as error:
            raise Crash(f"building it: {type(error).__name__}: {error}") from error
        check_attributes(manager, self.manager)
        if not self.offers(manager.block_size):
            raise NoForm(f"{self.kernel.name} refuses blocks of {manager.block_size} tokens")
        declared = self.manager.declaration
        clears = declared.has(Capability.ZEROES)
        garbage = garbage_for(self.driver.declaration.tail, clears)
        return Worker(manager, declared, form, garbage)

    def _form(self) -> Form:
        if self.eyes is None:
            last = next(reversed(self.driver.refusals), "")
            raise NoForm(f"{self.kernel.name} refused every form, the last with: {last}")
        return self.eyes.form

    # ------------------------------------------------------------------------------------- runs

    def replay(
        self, scenario: Scenario, after: After | None = None, *, brief: bool = False
    ) -> Played:
        """Run a scenario from the start; the verdict is None if nothing is wrong.

        In `brief`, a verdict says which half is at fault, and no more.
        """
        played, _ = self._play(
            *scenario.shape, lambda worker: scenario.operations, after, brief=brief
        )
        return replace(played, scenario=scenario)

    def explore(
        self,
        rng: Random,
        num_blocks: int,
        block_size: int,
        *,
        length: int,
        focus: str = "",
        after: After | None = None,
    ) -> Played:
        """Generate up to `length` operations; what took effect is recorded."""

        def operations(worker: Worker) -> Iterator[Operation]:
            generator = Generator(rng, worker, focus)
            for _ in range(length):
                operation = generator.next()
                yield operation
                if isinstance(operation, Quiesce):
                    return

        played, done = self._play(num_blocks, block_size, operations, after)
        shape = played.scenario.shape
        return replace(played, scenario=Scenario(*shape, tuple(done)))

    def _play(
        self,
        num_blocks: int,
        block_size: int,
        source: Source,
        after: After | None,
        *,
        brief: bool = False,
    ) -> tuple[Played, list[Operation]]:
        """Every operation is done and then looked at; what was not skipped is returned."""
        played = Played(Scenario(num_blocks, block_size, ()), brief=brief)
        done: list[Operation] = []
        try:
            worker = self.worker(num_blocks, block_size)
            played.scenario = Scenario(*_shape(worker), ())
            for operation in source(worker):
                done.append(operation)
                if self.step(worker, operation, played, after) is Effect.SKIPPED:
                    done.pop()
                    worker.index -= 1
        except Convicted as verdict:
            scenario = replace(played.scenario, operations=tuple(done))
            played.verdict = verdict if brief else self.named(verdict, scenario)
        except Crash as crash:
            played.verdict = Convicted(Side.MANAGER, crash)
        return played, done

    def step(
        self, worker: Worker, operation: Operation, played: Played, after: After | None = None
    ) -> Effect:
        """One operation, and a look at every live request; raises `Convicted`."""
        try:
            effect = worker.step(operation)
            played.effects[effect] += 1
            if effect is not Effect.SKIPPED:
                self._look(worker, played, after)
        except Convicted as verdict:
            verdict.index, verdict.operation = worker.index, operation
            raise
        except (Violation, Crash) as verdict:
            raise Convicted(
                Side.MANAGER, verdict, index=worker.index, operation=operation
            ) from verdict
        return effect

    def _look(self, worker: Worker, played: Played, after: After | None) -> None:
        assert self.eyes is not None
        rows = self.eyes.rows_of(worker)
        if not rows:
            return
        try:
            looked = self.eyes.look(worker, rows)
            played.attended += 1
            if looked.wrong:
                raise blame(self.eyes, worker, looked, brief=played.brief)
            note(worker, rows, played.met)
            if after is not None:
                after(worker, looked)
        except Refused:
            played.refused += 1
        except (Crash, KernelWrong) as verdict:
            raise Convicted(Side.KERNEL, verdict) from verdict

    def named(self, verdict: Convicted, scenario: Scenario) -> Convicted:
        """A manager's fault under the name that its own suites give it on the same scenario."""
        if verdict.side is not Side.MANAGER or not isinstance(verdict.verdict, Violation):
            return verdict
        alone = session.replay(self.manager, scenario).verdict
        if not isinstance(alone, Violation):
            untold = "the manager's own suites see nothing wrong with this scenario"
            return replace(verdict, story=(*verdict.story, untold))
        return replace(verdict, verdict=alone, named=True)


def _shape(worker: Worker) -> tuple[int, int]:
    return worker.model.num_blocks, worker.model.block_size
