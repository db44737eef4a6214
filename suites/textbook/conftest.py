"""The fixture `exercise`: the solutions that ``--impl`` names, or the bundled one."""

from __future__ import annotations

import pytest

from kvassay.harness.textbook import Exercise, NotAnExercise, find_exercise

BUNDLED = "kvassay.impls.textbook"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "exercise" in metafunc.fixturenames:
        references = metafunc.config.getoption("impl") or [BUNDLED]
        metafunc.parametrize("exercise", references, ids=_short, indirect=True, scope="session")


def _short(reference: str) -> str:
    """``./solutions/student.py`` -> ``student``."""
    return reference.rpartition("/")[2].removesuffix(".py").removeprefix("kvassay.impls.")


@pytest.fixture(scope="session")
def exercise(request: pytest.FixtureRequest) -> Exercise:
    """The classes of one solution."""
    try:
        return find_exercise(request.param)
    except NotAnExercise as reason:
        pytest.skip(str(reason))
