"""Option ``calibrate``: drawn columns have the marginals of each silo's rows, whatever the generators learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.algorithms.customers import table
from tests.algorithms.vflgan_play import SPLITS, Play
from tests.bounds import bounds_if_private

import silosynth as ss

TINY = {
    "epochs": 1, "least_rounds": 2, "batch": 32, "noise": 8, "generator": [16], "critic": [8], "backbone": 1,
}  # fmt: skip
OF_VFLGAN = {name: value for name, value in TINY.items() if name != "backbone"}


def trained(name: str, calibrate: bool, rows: int = 400, **more: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table, and rows of barely trained generators."""
    real = table(rows)
    options = (TINY if name == "vertigan" else OF_VFLGAN) | more
    held = ss.simulate(real, silos=SPLITS[2], schema=bounds_if_private(real, more))
    options |= {"calibrate": calibrate}
    model = ss.fit(name, held, preset="fast", options=options, progress=False, seed=1)
    return real, model.sample(4000, seed=1)


def gaps(real: pd.DataFrame, drawn: pd.DataFrame) -> tuple[float, float]:
    """The largest differences of a level's frequency, and of a number's quantiles in standard deviations."""
    shares = [
        real[name].value_counts(normalize=True).sub(drawn[name].value_counts(normalize=True), fill_value=0).abs().max()
        for name in ("city", "sex")
    ]
    at = np.linspace(0.05, 0.95, 19)
    numbers = [
        np.abs(real[name].quantile(at) - drawn[name].quantile(at)).max() / real[name].std()
        for name in ("income", "debt")
    ]
    return float(max(shares)), float(max(numbers))


@pytest.mark.parametrize("name", ["vflgan", "vertigan"])
def test_drawn_columns_are_like_those_of_training(name: str) -> None:
    shares, quantiles = gaps(*trained(name, calibrate=True))
    assert shares < 0.03 and quantiles < 0.15
    shares, quantiles = gaps(*trained(name, calibrate=False))
    assert shares > 0.06 or quantiles > 0.3  # the unmatched rows differ


def test_standardised_numbers_are_left_as_they_are() -> None:
    play = Play("vflgan", numbers="standard", calibrate=True)
    play.whole()
    for name, party in play.silos.items():
        local = play.local(name)
        match = local.matching(party.shares, local.weights())
        logits, scores = torch.randn(50, local.rows.shape.levels), torch.randn(50, local.rows.shape.scores)
        corrected, same = match.apply(logits, scores)
        assert torch.allclose(same, scores, atol=1e-6)
        assert (corrected != logits).any() and local.rows.shape.levels


@pytest.mark.slow
def test_with_privacy_columns_are_matched_too() -> None:
    dp = {"epsilon": 8.0, "delta": 1e-4, "encoders": 0.5}
    shares, _ = gaps(*trained("vflgan", calibrate=True, rows=2000, dp=dp))
    assert shares < 0.06


def test_the_released_model_has_no_shares_that_it_does_not_need() -> None:
    for calibrate in (False, True):
        held = ss.simulate(table(), silos=SPLITS[2])
        options = OF_VFLGAN | {"calibrate": calibrate}
        model = ss.fit("vflgan", held, preset="fast", options=options, progress=False)
        assert [bool(len(part["shares"])) for part in model.parts.values()] == [calibrate, calibrate]


def test_a_stored_model_matches_the_same_rows_and_every_batch_of_them(tmp_path: Path) -> None:
    held = ss.simulate(table(400), silos=SPLITS[2])
    options = OF_VFLGAN | {"calibrate": True}
    model = ss.fit("vflgan", held, preset="fast", options=options, progress=False)
    model.save(tmp_path / "model")
    stored = ss.load(tmp_path / "model")
    pd.testing.assert_frame_equal(model.sample(100, seed=1), stored.sample(100, seed=1))
    parts = list(stored.sample_batches(2000, batch=500, seed=1))
    assert all(gaps(table(400), part)[0] < 0.06 for part in parts)


def test_columns_with_nothing_to_match_are_unchanged() -> None:
    """A silo of a constant, and one of a column that is missing throughout."""
    real = table(100)[["city", "income"]].assign(same=1.0, gone=np.nan)
    held = ss.simulate(real, silos={"a": ["city", "income"], "b": ["same"], "c": ["gone"]})
    options = OF_VFLGAN | {"calibrate": True}
    drawn = ss.fit("vflgan", held, preset="fast", options=options, progress=False).sample(50)
    assert (drawn["same"] == 1).all() and drawn["gone"].isna().all()
