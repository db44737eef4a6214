"""Engines as black boxes, stock: each is convicted of what was found of it, and of nothing else.

What is found in a new release, or found no more, fails here: see `results/findings`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from kvassay.harness import registry
from kvassay.harness.contract import Engine
from kvassay.harness.engines.checks import CHECKS, Check
from kvassay.harness.engines.random_llama import Sizes, write_model
from kvassay.harness.engines.subject import EngineSubject

NO_ROOM, IN_USE = "requests without room beside others", "a name that is in use"
EXCEEDED = "Context size has been exceeded"
FOUND: Mapping[str, Mapping[str, str]] = {
    "transformers-engine": {
        NO_ROOM: "No requests can be scheduled",
        IN_USE: "stuck",
        "a prompt without tokens": "beside another",
    },
    "openvino-engine": {NO_ROOM: "ended early with 0 (ignored)", IN_USE: "No associated state"},
    "llama-cpp-engine": {
        "preempted": EXCEEDED,
        "a pool that just holds one": EXCEEDED,
        NO_ROOM: EXCEEDED,
    },
}
"""By engine and circumstance, what it is convicted of."""
SIZES = Sizes(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=2,
    num_key_value_heads=1,
)


@pytest.mark.parametrize("name", FOUND)
def test_importing_an_adapter_imports_no_engine(name: str) -> None:
    (entry,) = registry.find(name)
    module, package = entry.factory.__module__, entry.packages[0]
    code = f"import {module}, sys; sys.exit(bool({{'torch', {package!r}}} & {{*sys.modules}}))"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module", params=FOUND)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineSubject]:
    (entry,) = registry.find(request.param)
    assert entry.kind is Engine
    if not entry.available:
        pytest.skip(entry.wanted)
    folder = write_model(tmp_path_factory.mktemp("model"), SIZES)
    subject = EngineSubject.of(entry, folder, patience=8.0)
    yield subject
    subject.drop()


@pytest.mark.parametrize("check", [pytest.param(c, id=c.circumstance) for c in CHECKS])
def test_it_is_convicted_of_what_is_known_and_of_nothing_else(
    subject: EngineSubject, check: Check
) -> None:
    checked = check(subject)
    if checked.unclaimed is not None:
        pytest.skip(checked.unclaimed)
    assert not checked.crashed
    known = FOUND[subject.registration.name].get(check.circumstance)
    if known is None:
        assert checked.problem is None
        assert not checked.missing
    else:
        assert known in str(checked.problem)
