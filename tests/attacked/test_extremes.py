"""Whoever reads a model, or rows that it makes, for the extreme value of one person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.contracts import settings

QUICK = ("tvae", "vflgan", "dplt", "mst", "mst rows", "gdts")
NAMES = sorted(name for name, options in settings.TINY.items() if "dp" not in options)
LONE = {
    "spent": (98.77e6, 402e6),
    "age": (9000, 21000),
    "since": (pd.Timestamp("1960-01-01"), pd.Timestamp("1931-07-09")),
}


@pytest.mark.parametrize("column", LONE)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_how_far_one_row_lies_outside_changes_nothing(
    name: str, column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one income of 98.77 or 402 million all is the same: what the model's file holds, and all rows."""
    whole, made = settings.frame(), list[Any]()
    for value in LONE[column]:
        whole.loc[7, column] = value
        monkeypatch.setattr(settings, "frame", lambda: whole.copy())
        model = settings.fitted(name)
        model.save(tmp_path / "m.silosynth")
        made.append(((tmp_path / "m.silosynth").read_bytes(), model.sample(50, seed=1)))
    pd.testing.assert_frame_equal(made[0][1], made[1][1])
    assert made[0][0] == made[1][0]
