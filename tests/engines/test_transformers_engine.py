"""transformers' continuous batching as a black box: what it does right, and what is found of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvassay.harness import registry
from kvassay.harness.contract import Engine
from kvassay.harness.engines.checks import CHECKS, Check
from kvassay.harness.engines.random_llama import Sizes, write_model
from kvassay.harness.engines.subject import EngineSubject
from kvassay.impls.engines.transformers_engine import INSTALL

FOUND = {
    "requests without room beside others": "No requests can be scheduled",
    "a name that is in use": "stuck",
    "a prompt without tokens": "beside another",
}
"""By circumstance, what stock transformers is convicted of: see `results/findings`."""
SIZES = Sizes(vocab_size=256, hidden_size=64, intermediate_size=128, num_attention_heads=2)


def test_importing_the_adapter_does_not_import_the_library() -> None:
    code = "import kvassay.impls.engines.transformers_engine, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSubject]:
    pytest.importorskip("transformers", reason=f"needs transformers: {INSTALL}")
    (entry,) = registry.find("kvassay.impls.engines.transformers_engine")
    assert entry.kind is Engine
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
    if check.circumstance in FOUND:
        assert FOUND[check.circumstance] in str(checked.problem)
    else:
        assert checked.problem is None
        assert not checked.missing
