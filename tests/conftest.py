"""Triton's kernels are interpreted in these tests; TRITON_INTERPRET=0 has a GPU run them instead.

Triton decides when it is imported, which some test or library may do before the kernels' own tests.

Tests marked long run with ``--long`` only.
"""

import os

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked long, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes seconds, and is left out without --long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="long: runs with --long"))
