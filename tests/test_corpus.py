"""The pinned scenarios: well-formed, clean on the built-ins, and each has teeth."""

from pathlib import Path

import pytest

from kvassay.harness.assay import corpus_folder
from kvassay.harness.checker import Effect
from kvassay.harness.registry import find
from kvassay.harness.scenario import load, to_json
from kvassay.harness.session import replay
from kvassay.impls.faulty.managers import FAULTS

FILES = sorted(corpus_folder().glob("*.json"))
TEETH = {
    "b27-fork-then-release-parent": "fork-forgets-parent-reference",
    "b29-fork-inside-a-block": "copy-forgotten",
    "b37-computed-twice": "duplicate-frees-canonical",
    "b61-recycled-key": "recycled-keeps-key",
    "b66-adapters": "adapter-ignored",
    "b67-salt-is-no-adapter": "salt-and-adapter-confused",
    "b71-full-hits-chain": "full-hit",
    "b74-reset-forgets": "reset-keeps-keys",
    "b79-used-again": "wrong-victim-fifo",
    "b82-evict-what-is-asked": "evict-everything",
    "b154-linear-keys": "key-is-linear",
    "truncate-diverge-rematch": "truncation-keeps-key",
}
"""Scenario -> a planted fault that it convicts."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_is_clean_and_takes_effect_on_radix(path: Path) -> None:
    scenario = load(path)
    assert scenario.name == path.stem
    assert scenario.note
    assert path.read_text(encoding="utf-8") == to_json(scenario)
    for name in ("paged", "radix"):
        run = replay(find(name)[0], scenario)
        assert run.verdict is None
    assert run.effects[Effect.SKIPPED] == 0, "radix declares everything: nothing is skipped"


@pytest.mark.parametrize(("name", "fault"), TEETH.items())
def test_a_scenario_has_teeth(name: str, fault: str) -> None:
    scenario = load(corpus_folder() / f"{name}.json")
    found = {entry.name: entry for entry in find("kvassay.impls.faulty.managers")}
    verdict = replay(found[f"fault-{fault}"], scenario).verdict
    assert verdict is not None
    assert getattr(verdict, "invariant", None) in FAULTS[fault].accepted | {"A1"}
    assert replay(find("kvassay.impls.faulty.hashed")[0], scenario).verdict is None
