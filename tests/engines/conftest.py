"""What the tests of the engines share."""

import pytest

from kvassay.harness import campaign


@pytest.fixture(autouse=True)
def _soon_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """One conviction is enough here; do not look long for others."""
    monkeypatch.setattr(campaign, "FURTHER", 20)
