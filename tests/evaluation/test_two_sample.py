"""Areas under the curve against scikit-learn and loops over pairs; separation of tables that differ or do not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from silosynth.evaluation.coding import Coded, code_tables
from silosynth.evaluation.scores import Score, Skipped, auc_interval, auc_with_influence, macro_auc, normal_interval
from silosynth.evaluation.utility import Separation, codes_matrix, dummies_matrix, separate, two_sample_auc

People = Callable[..., pd.DataFrame]


def coded(real: pd.DataFrame, other: pd.DataFrame) -> tuple[Coded, Coded]:
    tables = code_tables({"training": real, "synthetic": other})
    return tables["training"], tables["synthetic"]


@pytest.mark.parametrize("seed", range(4))
def test_area_and_delong_variance_against_all_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, score = rng.random(40) < 0.4, rng.integers(0, 8, 40).astype(float)
    area, influence = auc_with_influence(y, score)
    wins = (score[y][:, None] > score[~y]) + 0.5 * (score[y][:, None] == score[~y])
    variance = wins.mean(axis=1).var(ddof=1) / y.sum() + wins.mean(axis=0).var(ddof=1) / (~y).sum()
    assert area == pytest.approx(wins.mean())
    assert area == pytest.approx(roc_auc_score(y, score))
    assert (influence**2).sum() == pytest.approx(variance)


def test_macro_area_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    truth, p = rng.integers(0, 4, 80), rng.dirichlet(np.ones(4), 80)
    area, error = macro_auc(truth, p, np.arange(4))
    assert area == pytest.approx(roc_auc_score(truth, p, multi_class="ovr"))
    assert 0 < error < 0.1


def test_an_interval_is_exact_where_separation_is_perfect_and_normal_elsewhere() -> None:
    assert auc_interval(1.0, 0.0, 10) == (pytest.approx(0.025**0.1), 1.0)
    assert auc_interval(0.0, 0.0, 10) == (0.0, pytest.approx(1 - 0.025**0.1))
    assert auc_interval(1.0, 0.0, [5, 20])[0] == pytest.approx((0.025**0.2 + 0.025**0.05) / 2)
    assert auc_interval(0.9, 0.04, 10) == normal_interval(0.9, 0.04, 0.0, 1.0)


@pytest.mark.parametrize("apart", [2.0, 3.0])
def test_intervals_of_perfect_separation_hold(apart: float) -> None:
    """Few rows of two normal distributions: an interval that misses for being perfect does so in 2.5 % at most."""
    rng, true = np.random.default_rng(2), stats.norm.cdf(apart / math.sqrt(2))
    y, missed = np.repeat([True, False], [5, 8]), 0
    for _ in range(2000):
        area, influence = auc_with_influence(y, rng.standard_normal(13) + apart * y)
        missed += area == 1 and auc_interval(area, math.sqrt((influence**2).sum()), 5)[0] > true
    assert missed <= stats.binom.ppf(0.999, 2000, 0.025)


def test_two_tables_that_are_told_apart_without_fail_have_a_lower_bound() -> None:
    score = two_sample_auc("xgboost", Separation(1.0, 0.0, np.ones(0), 30), "none", "")
    assert isinstance(score, Score) and (score.low, score.high) == (pytest.approx(0.025 ** (1 / 30)), 1.0)


@pytest.mark.parametrize("kind", ["xgboost", "logistic"])
def test_separation_is_chance_for_fresh_rows_and_sure_for_shifted_ones(kind: str, people: People) -> None:
    real = people(900, 1)
    same = separate(*coded(real, people(900, 2)), kind, np.random.default_rng(0))
    shifted = separate(*coded(real, people(900, 2).assign(gain=lambda t: t.gain - 1)), kind, np.random.default_rng(0))
    assert isinstance(same, Separation)
    assert isinstance(shifted, Separation)
    assert abs(same.area - 0.5) < 0.06
    assert shifted.area > (0.9 if kind == "xgboost" else same.area)


def test_broken_dependence_is_seen_by_trees(people: People) -> None:
    real = people(900, 1)
    broken = people(900, 2).assign(rich=lambda t: t.rich.sample(frac=1, random_state=0).to_numpy())
    separation = separate(*coded(real, broken), "xgboost", np.random.default_rng(0))
    assert isinstance(separation, Separation)
    assert separation.area > 0.65


def test_the_same_seed_gives_the_same_area(people: People) -> None:
    tables = coded(people(100, 1), people(150, 2))
    first, second = (separate(*tables, "xgboost", np.random.default_rng(3)) for _ in range(2))
    assert isinstance(first, Separation)
    assert isinstance(second, Separation)
    assert (first.area, first.k) == (second.area, 100)


def test_too_few_rows_are_a_reason_not_a_number(people: People) -> None:
    separation = separate(*coded(people(9, 1), people(50, 2)), "xgboost", np.random.default_rng(0))
    score = two_sample_auc("xgboost", separation, separation, "")
    assert isinstance(score, Skipped)
    assert "10 rows" in score.why


def test_a_floor_that_is_absent_says_why() -> None:
    score = two_sample_auc("logistic", Separation(0.6, 0.01, np.full(20, 0.5), 10), "too small", "halves")
    assert isinstance(score, Score)
    assert score.floor is None
    assert "too small" in score.floor_note
    assert score.low == pytest.approx(0.6 - 0.0196)


def test_design_matrices_code_missing_values() -> None:
    real = pd.DataFrame({"x": [1.0, np.nan, 3.5], "c": ["a", None, "b"]})
    trees, lines = (design(*coded(real, real)) for design in (codes_matrix, dummies_matrix))
    assert np.isnan(trees[1]).all()
    assert trees[[0, 2], 1].tolist() == [0, 1]
    assert trees[0, 0] == pytest.approx(-1)  # standardised
    assert lines.shape == (6, 5)  # number, its flag, three levels with missing
    assert lines[1, :2].tolist() == [0, 1]
    assert np.isfinite(lines).all()


def test_dummies_are_bounded_for_many_levels() -> None:
    real = pd.DataFrame({"c": [f"level {i}" for i in range(5000)]})
    assert dummies_matrix(*coded(real, real)).shape == (10_000, 100)
