"""The runner fails for a survivor, a wrong kill, a dead fault and a convicted control; else not."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvassay.harness.contract import CacheManager
from kvassay.harness.record import Record, read
from kvassay.harness.registry import Registration
from kvassay.harness.trial import workers
from kvassay.harness.trial.attempt import attempt
from kvassay.harness.trial.checks import checks_of
from kvassay.harness.trial.choice import CI, FULL, choose, of_controls
from kvassay.harness.trial.fate import Ended, Fate
from kvassay.harness.trial.found import Effort
from kvassay.harness.trial.marks import marks_of
from kvassay.harness.trial.matrix import Matrix
from kvassay.harness.trial.necessity import needs, sole_finder, with_only
from kvassay.harness.trial.page import as_markdown, of_record
from kvassay.harness.trial.planted import Family, Planted
from kvassay.harness.trial.workers import Asked, tried
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache
from kvassay.impls.faulty.managers import RecyclesTheMostRecent
from kvassay.suites.benchmarks import trial

TINY = "tests_of_trial_catalogue"
FEW = Effort(examples=5)
BRIEF = ("--examples", "5")


class Leaks(HashedCache):
    """Convicted by A1, A4 or A5."""

    def _give_back(self, block: int) -> None:
        """Never."""


class Harmless(HashedCache):
    """Corrupted code that is run, and does what it should."""

    def _give_back(self, block: int) -> None:
        super()._give_back(block)


class NeverRun(HashedCache):
    """Corrupted code that nobody calls."""

    def _nobody_calls(self) -> None:
        """Nothing."""


class LeaksElsewhere(Leaks):
    """What convicts it is not what it adds."""

    def _blocks_for(self, length: int) -> int:
        return super()._blocks_for(length)


class EndsTheProcess(HashedCache):
    def _take_block(self) -> int:
        os._exit(3)


class EndsItOnce(Leaks):
    """What a wild read may do: the first process ends of it, the next one does not."""

    def _take_block(self) -> int:
        first = Path(os.environ["FIRST_PROCESS"])
        if not first.exists():
            first.touch()
            os._exit(3)
        return super()._take_block()


class Hangs(HashedCache):
    def _take_block(self) -> int:
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(600.0)
        return super()._take_block()


def planted(
    name: str,
    build: type[Any],
    accepted: str = "",
    host: type[Any] | None = None,
    marks: Any = None,
) -> Planted:
    """A fault if there is a host, else a control."""

    def registered(of: type[Any]) -> Callable[[], Registration]:
        return lambda: Registration("mine", CacheManager, of, DECLARATION, reference="mine")

    return Planted(
        Family.MANAGER,
        name,
        registered(build),
        frozenset(accepted.split()),
        None if host is None else registered(host),
        lambda: marks_of(marks or build),
    )


KILLED = planted("leaks", Leaks, "A1 A4 A5", HashedCache)
SURVIVES = planted("harmless", Harmless, "A1", HashedCache)
WRONG = planted("leaks-as-P2", Leaks, "P2", HashedCache)
NEVER_RUN = planted("never-run", NeverRun, "A1", HashedCache)
NOT_IN_IT = planted("not-in-it", Leaks, "A1 A4 A5", HashedCache, NeverRun)
OF_THE_HOST = planted("of-the-host", LeaksElsewhere, "A1 A4 A5", Leaks)
CONVICTED = planted("control-leaks", Leaks)
ACQUITTED = planted("control-hashed", HashedCache)


@pytest.fixture
def known() -> Iterator[Callable[..., str]]:
    """Makes a catalogue of these and returns its name."""

    def of(*these: Planted) -> str:
        module: Any = ModuleType(TINY)
        module.everything = lambda: list(these)
        module.prepare = lambda families: None
        sys.modules[TINY] = module
        return TINY

    yield of
    sys.modules.pop(TINY, None)


@pytest.mark.parametrize(
    ("one", "fate"),
    [
        (KILLED, Fate.KILLED),
        (SURVIVES, Fate.SURVIVED),
        (WRONG, Fate.WRONG),
        (NEVER_RUN, Fate.DEAD),
        (NOT_IN_IT, Fate.DEAD),
        (OF_THE_HOST, Fate.DEAD),
        (CONVICTED, Fate.CONVICTED),
        (ACQUITTED, Fate.ACQUITTED),
    ],
    ids=lambda value: value.name if isinstance(value, Planted) else "",
)
def test_each_ends_as_it_should(one: Planted, fate: Fate) -> None:
    told = attempt(one, FEW)
    assert told.fate is fate, told
    assert told.good == (fate in (Fate.KILLED, Fate.ACQUITTED))
    assert Ended.of_dict(told.as_dict()) == told


def test_a_kill_says_by_what_how_soon_and_how_short() -> None:
    told = attempt(KILLED, FEW)
    assert told.killers[0][1] in KILLED.accepted
    assert told.examples is not None
    assert told.operations is not None
    assert 1 <= told.operations <= 8
    assert told.seconds is not None
    assert told.reached


@pytest.mark.parametrize("one", [SURVIVES, WRONG, NEVER_RUN, NOT_IN_IT, OF_THE_HOST, CONVICTED])
def test_the_command_fails_for_any_of_them(
    known: Callable[..., str], one: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--catalogue", known(KILLED, one), "--workers", "1", *BRIEF]
    assert trial.main(given) == 1
    assert one.name in capsys.readouterr().out


def test_the_command_passes_and_leaves_page_and_record(
    known: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, record = tmp_path / "matrix.md", tmp_path / "matrix.json"
    where = known(KILLED, ACQUITTED)
    given = ["--catalogue", where, "--page", str(page), "--record", str(record), *BRIEF]
    assert trial.main([*given, "--workers", "2"]) == 0
    assert "1 of 1 faults killed, 1 of 1 controls acquitted" in page.read_text()
    assert "| leaks | A1 A4 A5 | killed |" in page.read_text()
    read = Record.model_validate_json(record.read_text())
    fates = {Ended.of_dict(entry).name: entry["fate"] for entry in read.findings}
    assert fates == {"leaks": Fate.KILLED, "control-hashed": Fate.ACQUITTED}
    assert "nothing was left out" in capsys.readouterr().out


def test_nothing_tried_is_no_pass(known: Callable[..., str]) -> None:
    assert trial.main(["--catalogue", known()]) == 1


def test_checks_that_are_taken_out_let_a_fault_survive(known: Callable[..., str]) -> None:
    where = known(KILLED)
    assert trial.main(["--catalogue", where, *BRIEF, "--without", "A4"]) == 0
    assert trial.main(["--catalogue", where, *BRIEF, "--without", "A1,A4,A5"]) == 1
    told = attempt(KILLED, replace(FEW, without=frozenset({"A1", "A4", "A5"})))
    assert told.fate is not Fate.KILLED
    assert attempt(KILLED, FEW).fate is Fate.KILLED


def test_a_trial_that_ends_its_process_or_hangs_harms_no_other(known: Callable[..., str]) -> None:
    ends = planted("ends-the-process", EndsTheProcess, "A1", HashedCache)
    hangs = planted("hangs", Hangs, "A1", HashedCache)
    where = known(ends, hangs, ACQUITTED)
    asked = [Asked(one, FEW) for one in (ends, hangs, ACQUITTED)]
    told = {one.name: one for one in tried(where, asked, 2, limit=6.0)}
    assert told["ends-the-process"].fate is Fate.BROKEN
    assert "status 3" in told["ends-the-process"].told
    assert told["hangs"].fate is Fate.LEFT
    assert told["control-hashed"].fate is Fate.ACQUITTED


def test_a_process_that_may_end_is_tried_again(
    known: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    once = planted("ends-it-once", EndsItOnce, "A1 A4 A5", HashedCache, Leaks)
    for lives, fate in ((1, Fate.BROKEN), (2, Fate.KILLED)):
        monkeypatch.setenv("FIRST_PROCESS", str(tmp_path / f"first of {lives}"))
        (ended,) = tried(known(once), [Asked(once, FEW, lives)], 1, limit=60.0)
        assert ended.fate is fate, ended.told


def test_what_is_known_is_kept_when_it_is_broken_off(
    known: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Iterator[Ended]:
        for number, one in enumerate(tried(*arguments)):
            if number:
                raise KeyboardInterrupt
            yield one

    monkeypatch.setattr(trial, "tried", interrupted)
    page = tmp_path / "matrix.md"
    given = ["--catalogue", known(KILLED, ACQUITTED), "--page", str(page), "--workers", "1", *BRIEF]
    assert trial.main(given) == trial.BROKEN_OFF
    assert "broken off: 1 of 2 were tried" in page.read_text()


def test_no_process_is_left_behind(known: Callable[..., str]) -> None:
    hangs = planted("hangs", Hangs, "A1", HashedCache)
    where = known(hangs, KILLED)
    results = tried(where, [Asked(KILLED, FEW), Asked(hangs, FEW)], 2)
    assert next(results).name == "leaks"
    results.close()  # type: ignore[attr-defined]
    import multiprocessing

    assert multiprocessing.active_children() == []
    assert threading.active_count() == 1 or workers.METHOD == "fork"


# ----------------------------------------------------------------------------------- necessity

VICTIM = "hits._check_hit_content"
"""The check that alone sees a wrong victim of a full pool."""
ALONE = planted("recycles-the-most-recent", RecyclesTheMostRecent, "P10", HashedCache)


def test_a_check_is_needed_where_nothing_else_kills(
    known: Callable[..., str], tmp_path: Path
) -> None:
    page, record = tmp_path / "matrix.md", tmp_path / "matrix.json"
    where = known(ALONE, KILLED)
    written = ["--page", str(page), "--record", str(record)]
    given = ["--catalogue", where, *BRIEF, *written]
    assert trial.main([*given, "--necessity"]) == 0
    assert f"| manager | `{VICTIM}` | P10 | 1 | {ALONE.name} |" in page.read_text()
    assert "| manager | `quiescence._fill` | A5 | 0 | none: " in page.read_text()
    # The same is then seen by the removal of all checks in turn, of which one is needed here.
    number = len(checks_of(Family.MANAGER))
    before = page.read_text()
    assert trial.main([*given, "--remove", str(number), "--matrix", str(record)]) == 1
    section = page.read_text().replace("## Controls", "").removeprefix(before.split("## Cont")[0])
    assert f"1 of {number} let a fault survive (seed 0)." in section
    assert f"| manager | `{VICTIM}` | 1 of 1 | {ALONE.name} |" in section
    matrix = of_record(read(record))
    assert as_markdown(matrix, read(record).environment) == page.read_text()


def test_only_what_one_check_alone_found_is_tried_without_it() -> None:
    alone = replace(attempt(KILLED, FEW), finders=(("hits._x", "A5"), ("hits._x", "A1")))
    several = replace(alone, finders=(("hits._x", "A5"), ("looking._y", "A5")))
    assert sole_finder(alone) == "hits._x"
    assert sole_finder(several) is None
    tried_without: list[str] = []

    def all_of(asked: list[Asked]) -> list[Ended]:
        tried_without.extend(name for each in asked for name in each.effort.without)
        return [replace(alone, fate=Fate.SURVIVED) for _ in asked]

    (told,) = with_only([several], {KILLED.key: KILLED}, FEW, all_of)
    assert told.only_by == ()
    assert tried_without == []
    (told,) = with_only([alone], {KILLED.key: KILLED}, FEW, all_of)
    assert told.only_by == ("hits._x",)
    assert {*tried_without} == {"hits._x"}
    assert [need.only for need in needs([replace(told, only_by=(VICTIM,))]) if need.only] == [
        ("leaks",)
    ]


# ----------------------------------------------------------------------------------------- choice


def test_a_share_is_chosen_by_name_alone_and_what_is_left_out_is_told() -> None:
    kernels = [replace(KILLED, family=Family.TORCH, name=f"k{number}") for number in range(40)]
    everything = [*kernels, KILLED]
    parts = [choose(everything, CI, part) for part in range(CI.parts[Family.TORCH])]
    names = [{each.planted.name for each in part.asked} for part in parts]
    assert set.union(*names) == {one.name for one in everything}
    assert all("leaks" in part for part in names)
    assert sum(len(part) - 1 for part in names) == len(kernels)
    assert [each.asked for each in parts] == [
        choose(everything, CI, len(parts) + n).asked for n in range(len(parts))
    ]
    assert f"{len(parts[0].left_out)} of family 'torch kernel'" in parts[0].told()
    assert choose(everything, FULL).told() == "nothing was left out"


def test_the_recorded_run_on_controls_is_in_proportion() -> None:
    assert (of_controls(5000).examples, of_controls(5000).cases) == (5000, 300)


def test_budgets_are_told() -> None:
    slow = replace(attempt(KILLED, FEW), seconds=30.0, operations=12)
    matrix = Matrix((slow,), 1, 30.0, "full")
    assert not matrix.problems()
    assert [text.split(",")[0] for text in matrix.over_budget()] == [
        "median 30.00 s",
        "manager: leaks: 30.0 s",
        "median 12 operations",
    ]
