"""Keeps the tests of one campaign in one pytest-xdist worker, so that it runs once."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling


class CampaignScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Work units are (suite folder, implementation) pairs."""

    def _split_scope(self, nodeid: str) -> str:
        """``suites/cow/test_cow.py::test_c1[paged]`` -> ``suites/cow[paged]``.

        A test that no implementation parametrises is a unit of its own.
        """
        module, _, test = nodeid.partition("::")
        _, bracket, parameters = test.partition("[")
        return f"{module.rpartition('/')[0]}[{parameters}" if bracket else nodeid


def make(config: Any, log: Any) -> CampaignScheduling:
    """For the hook ``pytest_xdist_make_scheduler``."""
    return CampaignScheduling(config, log)
