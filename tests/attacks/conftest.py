"""What tests of attacks share."""

from __future__ import annotations

import pytest

from silosynth.attacks import membership


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the trees: training them was most of the time."""
    monkeypatch.setattr(membership, "TREES", membership.TREES // 10)
