"""Keeps the tests of one campaign in one pytest-xdist worker, so that it runs once."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling


class CampaignScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Work units are (test module, implementation) pairs."""

    def _split_scope(self, nodeid: str) -> str:
        """``suites/cow/test_cow.py::test_c1[paged]`` -> ``suites/cow/test_cow.py[paged]``."""
        module, _, test = nodeid.partition("::")
        _, bracket, parameters = test.partition("[")
        return f"{module}{bracket}{parameters}"


def make(config: Any, log: Any) -> CampaignScheduling:
    """For the hook ``pytest_xdist_make_scheduler``."""
    return CampaignScheduling(config, log)
