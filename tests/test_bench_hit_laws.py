"""Hit laws from outside: managers keep what they declare, and whoever does not is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvassay.harness import registry
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import Registration
from kvassay.suites.benchmarks import hit_laws


def entry(name: str) -> Registration:
    (found,) = (one for one in registry.find(name) if one.kind is CacheManager)
    return found


def test_radix_keeps_its_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hit_laws.main(["--impl", "radix", "--record", str(tmp_path / hit_laws.NAME)]) == 0
    assert "fitted unit 1, reserve 1, drop 0" in capsys.readouterr().out
    assert "| yes |" in hit_laws.made(tmp_path).text


def test_another_declaration_is_not_kept(tmp_path: Path) -> None:
    radix = entry("radix")
    boasts = replace(radix, declaration=replace(radix.declaration, reserve=3))
    size, hits = hit_laws.measured(boasts, 4)
    hit_laws.write(hit_laws.record(boasts, size, hits), tmp_path / hit_laws.NAME)
    assert "| **no** |" in hit_laws.made(tmp_path).text


def test_what_has_no_hits_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert hit_laws.main(["--impl", "paged"]) == hit_laws.USAGE_ERROR
    assert "PREFIX_CACHE" in capsys.readouterr().err
