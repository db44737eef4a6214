"""Checks that no planted fault fails: each is seen to fail once, beside the case that is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness import session
from kvassay.harness.campaign import ERROR, Budget, Campaign
from kvassay.harness.contract import CacheKey, CacheManager, ContractError, Declaration
from kvassay.harness.registry import Registration
from kvassay.harness.scenario import Admit, Scenario
from kvassay.harness.violation import Crash, Violation
from kvassay.impls.contiguous import OracleManager
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache


def registration(factory: Any, declaration: Declaration = DECLARATION) -> Registration:
    return Registration("mine", CacheManager, factory, declaration)


class Backwards(OracleManager):
    """Side by side, but the wrong way round."""

    def block_table(self, request: str) -> list[int]:
        return list(reversed(super().block_table(request)))


def test_a_contiguous_table_runs_upwards() -> None:
    declared = Declaration(placement="contiguous")
    scenario = Scenario(8, 2, (Admit("a", CacheKey((1, 2, 3))),))
    assert session.replay(registration(OracleManager, declared), scenario).verdict is None
    verdict = session.replay(registration(Backwards, declared), scenario).verdict
    assert isinstance(verdict, Violation)
    assert (verdict.invariant, "consecutive" in verdict.expected) == ("A7", True)


@pytest.mark.parametrize("value", [None, "lots", 0])
def test_a_missing_attribute_is_named(value: object) -> None:
    def build(num_blocks: int, block_size: int) -> HashedCache:
        cache = HashedCache(num_blocks, block_size)
        cache.num_blocks = value  # type: ignore[assignment]
        return cache

    assert session.build(registration(HashedCache), 2, 2).model.num_blocks == 2
    with pytest.raises(ContractError, match="mine: a CacheManager needs the attribute num_blocks"):
        session.build(registration(build), 2, 2)


class Hangs(HashedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        while True:
            pass


def test_a_campaign_ends_with_its_first_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TIME_LIMIT", 0.2)
    sound = Campaign(registration(HashedCache), "allocator", Budget(examples=20)).run()
    assert (sound.examples, sound.findings) == (20, {})
    outcome = Campaign(registration(Hangs), "allocator", Budget(examples=20)).run()
    verdict = outcome.findings[ERROR].verdict
    assert isinstance(verdict, Crash)
    assert verdict.hangs
    assert outcome.examples <= 2


class Exits(HashedCache):
    def admit(self, request: str, key: CacheKey) -> int:
        raise SystemExit(3)


def test_an_exit_is_an_error_and_not_the_end() -> None:
    scenario = Scenario(2, 2, (Admit("a", CacheKey((1,))),))
    assert session.replay(registration(HashedCache), scenario).verdict is None
    assert "SystemExit" in str(session.replay(registration(Exits), scenario).verdict)


@pytest.mark.parametrize(("value", "status"), [("3", 0), ("0", 4), ("-1", 4)])
def test_a_number_that_cannot_be_is_a_usage_error(tmp_path: Path, value: str, status: int) -> None:
    command = [sys.executable, "-m", "pytest", "--pyargs", "kvassay.suites.cow", "-q"]
    command += ["-p", "kvassay.harness.plugin", "--impl", "paged", f"--examples={value}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode in ({0, 1} if status == 0 else {status})
    assert ("expected a number above 0" in run.stderr) == (status == 4)
