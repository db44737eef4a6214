"""Left out of a run on named implementations that does not name this folder: it looks at none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.load.known.trial import Outcome, trial
from kvassay.harness.plugin import asked_for

FOLDER = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True for everything here, unless asked for."""
    if not config.getoption("impl"):
        return None
    return None if asked_for(FOLDER, config) else True


@pytest.fixture(scope="session")
def outcome() -> Outcome:
    """The trial of the instrument that everything here measures with."""
    return trial(Instrument())
