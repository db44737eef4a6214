"""One assay for each pair of the managers and kernels that were named, over one language model.

As importing transformers takes seconds, the suite is left out of a run that does not name its
folder; without transformers it is skipped, which says so.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvassay.harness.pairs.pairing import pairing
from kvassay.harness.plugin import asked_for, implementations
from kvassay.harness.summary import PROPERTY

if TYPE_CHECKING:
    from kvassay.harness.registry import Registration
    from kvassay.harness.rig.assay import RigAssay

FOLDER = Path(__file__).parent
FIXTURE = "rig_assay"
ASSAYS = pytest.StashKey["dict[tuple[str, str], RigAssay]"]()
MODEL = pytest.StashKey[Any]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True for everything here, unless the command line names something here."""
    return None if asked_for(FOLDER, config) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if FIXTURE in metafunc.fixturenames:
        pairs = pairing(implementations(metafunc.config)).pairs
        fitting = [pytest.param(pair, id="+".join(half.name for half in pair)) for pair in pairs]
        metafunc.parametrize(FIXTURE, fitting, indirect=True)


@pytest.fixture(scope="session")
def rig_assay(request: pytest.FixtureRequest) -> RigAssay:
    """The assay of this pair."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not here: pip install 'kvassay[rig]'")
    manager, kernel = request.param
    assays = request.config.stash.setdefault(ASSAYS, {})
    key = (manager.name, kernel.name)
    if key not in assays:
        assays[key] = _assay(request.config, manager, kernel)
    return assays[key]


def _assay(config: pytest.Config, manager: Registration, kernel: Registration) -> RigAssay:
    from kvassay.harness.rig.assay import RigAssay
    from kvassay.harness.rig.checking import Subject
    from kvassay.harness.rig.dense import DenseReference
    from kvassay.harness.rig.language import LanguageModel, random_llama

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that are imported
        model = config.stash.setdefault(MODEL, None) or random_llama()
    config.stash[MODEL] = model
    attend, declared = kernel.build(), kernel.declaration

    def device(num_blocks: int, block_size: int) -> LanguageModel:
        return LanguageModel(model, attend, declared, num_blocks, block_size)

    reference = DenseReference(model, declared)
    size = config.getoption("block_size") or Subject.block_size
    return RigAssay(manager, kernel, Subject(manager, device, reference, block_size=size))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Hand the verdict of a test to the terminal, across processes."""
    report = (yield).get_result()
    running = getattr(item, "funcargs", {}).get(FIXTURE)
    if call.when == "call" and running is not None:
        report.user_properties += [(PROPERTY, news) for news in running.take_news()]
