from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.linalg import sqrtm

import silosynth as ss
from silosynth.core.errors import DataError
from silosynth.evaluation.coding import code_tables
from silosynth.models.vflgan import gaussian_frechet
from silosynth.papers.vflgan_scores import (
    averaged,
    figures,
    frechet,
    inception_score,
    table_frechet,
    usefulness,
)

needs_data = pytest.mark.skipif("SILOSYNTH_DATA" not in os.environ, reason="needs the data sets")


def by_sqrtm(a: np.ndarray, b: np.ndarray) -> float:
    """The formula as it stands."""
    va, vb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(va + vb - 2 * sqrtm(va @ vb).real))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_frechet_is_the_formula(seed: int, width: int):
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(width, width))
    a, b = rng.normal(size=(200, width)) @ mix, rng.normal(1.0, 2.0, size=(150, width))
    assert frechet(a, b) == pytest.approx(by_sqrtm(a, b), rel=1e-6)
    assert frechet(a, b) == pytest.approx(frechet(b, a))


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.floats(-5, 5)] * 2, *[st.floats(0, 9)] * 2), min_size=1, max_size=9))
def test_frechet_of_diagonal_gaussians_is_that_of_their_means_and_deviations(parts: list[tuple[float, ...]]):
    m, n, v, w = np.array(parts).T
    expected = ((m - n) ** 2).sum() + ((np.sqrt(v) - np.sqrt(w)) ** 2).sum()
    moments = (torch.from_numpy(each) for each in (m, np.diag(v), n, np.diag(w)))
    assert gaussian_frechet(*moments) == pytest.approx(expected, abs=1e-9)


def test_frechet_of_columns_that_depend_on_each_other_is_finite_and_zero_for_the_same_rows():
    hot = np.eye(4)[np.random.default_rng(0).integers(0, 4, 500)]
    rows = np.concatenate([hot, hot, np.ones((500, 1))], axis=1)  # singular three times over
    assert frechet(rows, rows) == pytest.approx(0.0, abs=1e-12)
    assert frechet(rows, rows + 3.0) == pytest.approx(9 * 9.0)


@pytest.mark.parametrize("rows", [np.zeros((1, 2)), np.zeros((5, 3)), np.full((5, 2), np.nan)])
def test_frechet_refuses_what_has_no_gaussian(rows: np.ndarray):
    with pytest.raises(DataError, match="Fréchet"):
        frechet(np.zeros((5, 2)), rows)


def test_numbers_are_in_units_of_the_real_deviation_and_levels_are_one_hot():
    real = pd.DataFrame({"x": [0.0, 10.5, 20.0, 30.0] * 50, "c": ["a", "b"] * 100})
    coded = code_tables({"real": real, "moved": real.assign(x=real["x"] + 5.0), "other": real.assign(c="b")})
    assert table_frechet(coded["real"], coded["moved"]) == pytest.approx(25.0 / real["x"].var())
    assert table_frechet(coded["real"], coded["real"]) == pytest.approx(0.0, abs=1e-9)
    one = table_frechet(coded["real"], coded["other"])  # both flags' means move by 1/2, and their variance goes
    v = np.cov(pd.get_dummies(real["c"]).to_numpy(float), rowvar=False)
    x_c = np.cov(real["x"] / real["x"].std(), real["c"] == "b")[0, 1]
    assert 0.5 < one < 0.5 + np.trace(v) + 2 * abs(x_c) + 0.3


@pytest.mark.slow
def test_a_copy_has_the_real_table_s_figures_and_a_shuffled_target_is_far_from_them(
    people: Callable[..., pd.DataFrame],
):
    real = people(250, 1)
    copy = figures(real, real, "rich", {"rich"})
    assert copy["FD"] == pytest.approx(0.0, abs=1e-9)
    assert (copy["tsts accuracy"], copy["tsts f1"]) == (copy["trtr accuracy"], copy["trtr f1"])
    assert copy["trts f1"] == copy["tstr f1"]
    more = [copy[f"{which} {what}"] - copy[f"trtr {what}"] for which in ("trts", "tstr") for what in ("accuracy", "f1")]
    assert copy["total difference"] == pytest.approx(sum(map(abs, more)))
    mixed = real.assign(rich=real["rich"].sample(frac=1, random_state=0).to_numpy())
    assert figures(real, mixed, "rich", {"rich"}, "folds")["total difference"] > 1.0 > copy["total difference"]


def test_totals_of_several_tables_are_those_of_their_means():
    """Differences of opposite signs make two totals, and cancel in the mean."""
    names = [f"{which} {what}" for which in ("trtr", "tsts", "trts", "tstr") for what in ("accuracy", "f1")]
    one = {"FD": 1.0, **dict.fromkeys(names, 0.5)}
    results = averaged([{**one, "tsts f1": 0.5 + gap, "tstr accuracy": 0.4, "FD": 1.0 + gap} for gap in (0.2, -0.1)])
    assert results["total difference"] == pytest.approx(0.05 + 0.1)
    assert results["FD"] == pytest.approx(1.05) and results["trtr f1"] == 0.5


@pytest.mark.slow
def test_integers_are_numbers_but_for_categories():
    rng = np.random.default_rng(0)
    real = pd.DataFrame({"x": rng.normal(size=100), "q": rng.integers(3, 7, 100)})
    results = figures(real, real.assign(q=real["q"] + 1), "q", set())
    assert results["FD"] == pytest.approx(1 / real["q"].var(), rel=1e-6)
    assert results["trtr f1"] < 1  # classes for the forests all the same


def test_forests_refuse_tables_that_are_too_small_and_targets_that_are_no_category(people: Callable[..., pd.DataFrame]):
    coded = code_tables({"train": people(100, 1), "synthetic": people(100, 3)})
    train, synthetic = coded.values()
    with pytest.raises(DataError, match="20 rows"):
        usefulness(train, synthetic.take(np.arange(5)), 3)
    with pytest.raises(DataError, match="category"):
        usefulness(train, synthetic, 1)


def test_the_inception_score_counts_classes():
    assert inception_score(np.eye(10)) == pytest.approx(10.0)
    assert inception_score(np.full((7, 10), 0.1)) == pytest.approx(1.0)
    assert inception_score(np.eye(10)[[0, 0, 1, 1]]) == pytest.approx(2.0)
    with pytest.raises(DataError, match="probabilities"):
        inception_score(np.ones((3, 2)))


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(("name", "accuracy", "f1"), [("red", 0.59, 0.26), ("white", 0.53, 0.21)])
def test_real_wine_gives_the_first_figures_of_table_1(name: str, accuracy: float, f1: float):
    frame = ss.datasets.load(f"wine_quality_{name}")
    results = figures(frame, frame, "quality", {"quality"})
    assert round(results["trtr accuracy"], 2) == accuracy
    assert round(results["trtr f1"], 2) == f1
