"""One assay for each engine that was named, over one small model with random weights.

As an engine takes seconds to start, the suite is left out of a run that does not name its folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvassay.harness.contract import Engine
from kvassay.harness.engines.random_llama import Sizes, write_model
from kvassay.harness.plugin import asked_for, implementations
from kvassay.harness.summary import PROPERTY

if TYPE_CHECKING:
    from kvassay.harness.engines.assay import EngineAssay

FOLDER = Path(__file__).parent
FIXTURE = "engine_assay"
SIZES = Sizes(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True for everything here, unless the command line names something here."""
    return None if asked_for(FOLDER, config) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if FIXTURE in metafunc.fixturenames:
        named = implementations(metafunc.config)
        engines = [pytest.param(one, id=one.name) for one in named if one.kind is Engine]
        metafunc.parametrize(FIXTURE, engines, indirect=True, scope="session")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder."""
    return write_model(tmp_path_factory.mktemp("model"), SIZES)


@pytest.fixture(scope="session")
def engine_assay(request: pytest.FixtureRequest, model: Path) -> Iterator[EngineAssay]:
    """The assay of this engine."""
    from kvassay.harness.engines.assay import EngineAssay
    from kvassay.harness.engines.subject import EngineSubject

    registration = request.param
    if not registration.available:
        pytest.skip(registration.wanted)
    assay = EngineAssay(EngineSubject.of(registration, model))
    yield assay
    assay.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Hand the verdict of a test to the terminal, across processes."""
    report = (yield).get_result()
    running = getattr(item, "funcargs", {}).get(FIXTURE)
    if call.when == "call" and running is not None:
        report.user_properties += [(PROPERTY, news) for news in running.take_news()]
