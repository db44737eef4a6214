"""Limits come from one file; what it does not mean to say is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvassay.harness.gate.thresholds import BadThresholds, load


def written(folder: Path, text: str) -> Path:
    path = folder / "limits.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_default_has_a_limit_for_everything() -> None:
    assert load().of("whatever") == 0.05
    assert not load().free


def test_a_name_may_have_a_limit_of_its_own(tmp_path: Path) -> None:
    times = '[times]\nslower = 0.1\n[times.by_name]\n"1 request: release" = 0.3\n'
    found = load(written(tmp_path, times + '[counters]\nfree = ["hits"]\n'))
    assert (found.of("1 request: release"), found.of("other")) == (0.3, 0.1)
    assert found.unknown({"1 request: release"}, {"hits"}) == []
    assert found.unknown({"other"}, set()) == ["1 request: release", "hits"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[times]\nslower = 0\n", "times.slower: expected a part of base's time above 0"),
        ("[times]\nslower = true\n", "got True"),
        ('[times.by_name]\nx = "5 %"\n', r"times.by_name.x: .* got '5 %'"),
        ("[times]\nfaster = 1\n", "times.faster: expected one of by_name, slower"),
        ("[memory]\n", r"memory: expected \[times\], \[counters\]"),
        ("[counters]\nfree = [1]\n", r"counters.free: expected names, got \[1\]"),
        ("[times\n", "limits.toml"),
    ],
)
def test_what_is_no_limit_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadThresholds, match=told):
        load(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadThresholds, match=r"nowhere\.toml: cannot be read"):
        load(tmp_path / "nowhere.toml")
