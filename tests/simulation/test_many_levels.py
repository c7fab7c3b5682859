"""Columns with more categories than are learnt: the most common ones are, the others are drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import silosynth as ss
from silosynth.data.infer import ColumnWarning

TINY = {
    "coder.steps": 60, "coder.hidden": (16,), "latent.steps": 60, "latent.width": 16, "least_rows": 500,
    "coder.encoders.most_categories": 10,
}  # fmt: skip


def towns(rows: int = 2000) -> pd.DataFrame:
    """People of forty towns, of which each has fewer than the one before."""
    rng = np.random.default_rng(0)
    town = np.minimum(rng.exponential(9, rows).astype(int), 39)
    return pd.DataFrame({"town": [f"town {t:02d}" for t in town], "age": rng.integers(18, 80, rows) + town})


def test_towns_that_are_drawn_are_as_common_as_they_were_and_can_be_asked_for() -> None:
    frame = towns()
    federation = ss.simulate(frame, silos={"registry": ["town"], "clinic": ["age"]})
    with pytest.warns(ColumnWarning, match=r"'town': \d+ of its values are drawn by how common they are"):
        model = ss.fit("silofuse", federation, "fast", options=TINY, progress=False)
    made = model.sample(4000, seed=1)
    real, drawn = (one["town"].value_counts(normalize=True) for one in (frame, made))
    assert set(drawn.index) <= {*real.index, "(rare)"}
    assert (drawn.reindex(real.index, fill_value=0) - real)[real >= 5 / len(frame)].abs().max() < 0.03
    rare = real.index[15]  # not among the most common
    assert set(model.sample(20, seed=1, given={"town": rare})["town"]) == {rare}
