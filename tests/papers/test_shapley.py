"""Shapley values against their definition, by enumerating all orders and all background rows."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from silosynth.core.errors import DataError
from silosynth.papers.vtgan_figures9_10 import importance, shapley_values

GROUP = np.array([0, 1, 1, 2])  # the second feature has two encoded columns


def model(x: np.ndarray) -> np.ndarray:
    """Two outputs with an interaction; the third feature matters to the second output only."""
    return np.stack([x[:, 0] * x[:, 1] + x[:, 2], x[:, 0] - np.tanh(x[:, 3]) * x[:, 1]], axis=1)


def exact(x: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Values (G, K) of one row: the mean gain over all orders and all background rows."""
    gains = []
    for order in permutations(range(3)):
        for z in background:
            hybrid, gain = z.copy(), np.zeros((3, 2))
            for feature in order:
                before = model(hybrid[None])[0]
                hybrid[feature == GROUP] = x[feature == GROUP]
                gain[feature] = model(hybrid[None])[0] - before
            gains.append(gain)
    return np.mean(gains, axis=0)


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(8, 4))


def test_sampled_values_tend_to_the_exact_ones(rows: np.ndarray) -> None:
    expected = np.stack([exact(x, rows) for x in rows[:3]])
    found = shapley_values(model, rows[:3], rows, GROUP, 20_000, np.random.default_rng(1))
    assert found.shape == (3, 3, 2)
    assert np.abs(found - expected).max() < 0.05
    assert np.abs(expected).max() > 1


def test_a_feature_that_is_not_used_gets_nothing(rows: np.ndarray) -> None:
    found = shapley_values(lambda x: x[:, :1], rows, rows, GROUP, 7, np.random.default_rng(1))
    assert (found[:, 1:] == 0).all()


def test_values_add_up_to_what_the_prediction_gains_over_the_background(rows: np.ndarray) -> None:
    found = shapley_values(model, rows, rows[:1], GROUP, 5, np.random.default_rng(1))
    assert found.sum(axis=1) == pytest.approx(model(rows) - model(rows[:1]))


def test_importance_ranks_what_decides_the_target() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"noise": rng.normal(size=400), "word": rng.choice(list("abc"), 400)})
    frame["number"] = rng.normal(size=400)
    frame["y"] = np.where((frame["word"] == "a") | (frame["number"] > 1.5), "yes", "no")
    frame.loc[:20, "number"] = np.nan
    found = importance(frame, "y", 0)
    assert list(found) == ["noise", "word", "number"]  # in the table's order, without the target
    assert found["word"] > 2 * found["number"] > 4 * found["noise"] > 0
    assert importance(frame, "y", 0) == found


@pytest.mark.parametrize("target", [[1.5, 2.5, 3.5, 4.5] * 10, ["same"] * 40])
def test_a_target_without_classes_is_refused(target: list[object]) -> None:
    with pytest.raises(DataError, match="two classes"):
        importance(pd.DataFrame({"x": np.arange(40.0), "y": target}), "y", 0)
