"""Shape and trend errors against SciPy and plain loops; jackknife replicates against tables without those rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import ks_2samp

from silosynth.evaluation.coding import Coded, code_tables
from silosynth.evaluation.fidelity import (
    Dealt,
    Floor,
    column_shape,
    compare,
    dependence,
    marginals,
    pair_trend,
    size_scale,
)
from silosynth.evaluation.scores import Score, Skipped, jackknife, without

People = Callable[..., pd.DataFrame]


def coded(real: pd.DataFrame, other: pd.DataFrame) -> tuple[Coded, Coded]:
    tables = code_tables({"training": real, "synthetic": other})
    return tables["training"], tables["synthetic"]


def undealt(table: Coded) -> Dealt:
    return Dealt(table, np.zeros(len(table), np.int64), 1)


def slow_shape(x: pd.Series, y: pd.Series, numeric: bool) -> float:
    if numeric:  # missing values sit below everything else
        a, b = (np.where(s.isna(), -1e300, s.astype(float)) for s in (x, y))
        return max(abs(float(np.mean(a <= v)) - float(np.mean(b <= v))) for v in [*a, *b])
    a, b = (s.astype(object).where(s.notna(), "missing").tolist() for s in (x, y))
    return sum(abs(a.count(level) / len(a) - b.count(level) / len(b)) for level in {*a, *b}) / 2


def slow_bins(x: pd.Series, reference: pd.Series) -> list[object]:
    low, high = reference.min(), reference.max()
    return [
        "missing"
        if math.isnan(v)
        else 0
        if high == low
        else min(9, max(0, math.floor((v - low) / ((high - low) / 10))))
        for v in x
    ]


def slow_trend(real: pd.DataFrame, other: pd.DataFrame, a: str, b: str, numeric: list[str]) -> float:
    if a in numeric and b in numeric:
        return float(abs(real[a].corr(real[b]) - other[a].corr(other[b])) / 2)
    joint = []
    for table in (real, other):
        columns = [
            slow_bins(table[c], real[c]) if c in numeric else table[c].astype(object).where(table[c].notna(), None)
            for c in (a, b)
        ]
        joint.append(list(zip(*columns, strict=True)))
    return sum(abs(joint[0].count(k) / len(real) - joint[1].count(k) / len(other)) for k in {*joint[0], *joint[1]}) / 2


def test_shape_errors_against_scipy_and_loops(people: People) -> None:
    real, other = people(150, 1), people(90, 2).assign(age=lambda t: t.age + 3)
    shape = marginals(*(undealt(t) for t in coded(real, other))).shape[0]
    for j, name in enumerate(real):
        numeric = name in ("age", "wage", "gain", "born")
        x, y = (t[name].astype("int64") if name == "born" else t[name] for t in (real, other))
        assert shape[j] == pytest.approx(slow_shape(x, y, numeric), abs=1e-12), name


def test_trend_errors_against_loops(people: People) -> None:
    real, other = people(120, 1).drop(columns="born"), people(80, 2).drop(columns="born")
    error = dependence(*(undealt(t) for t in coded(real, other))).error[0]
    for (i, a), (j, b) in itertools.combinations(enumerate(real), 2):
        slow = slow_trend(real, other, a, b, ["age", "wage", "gain"])
        assert error[i, j] == pytest.approx(slow, abs=1e-10), (a, b)
        assert error[j, i] == error[i, j]
    assert not error.diagonal().any()


def test_sparse_joint_tables_equal_dense_ones(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [undealt(t) for t in coded(people(100, 1), people(80, 2))]
    dense = dependence(*tables)
    monkeypatch.setattr("silosynth.evaluation.fidelity.DENSE", 0)
    sparse = dependence(*tables)
    for a, b in ((dense.error, sparse.error), (dense.real, sparse.real), (dense.other, sparse.other)):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_replicates_equal_tables_without_those_rows(people: People) -> None:
    real, other = coded(people(60, 1), people(47, 2))
    groups = [np.random.default_rng(5).integers(0, 4, len(t)) for t in (real, other)]
    dealt = [Dealt(t, g, 4) for t, g in zip((real, other), groups, strict=True)]
    single, pairs = marginals(*dealt), dependence(*dealt)
    for g in range(4):
        kept = [undealt(t.take(own != g)) for t, own in zip((real, other), groups, strict=True)]
        for name in ("shape", "ks", "similarity"):
            np.testing.assert_allclose(getattr(single, name)[g + 1], getattr(marginals(*kept), name)[0], atol=1e-12)
        for name, d in (("real", 0), ("other", 1)):
            alone = dependence(kept[d], kept[d])
            np.testing.assert_allclose(getattr(pairs, name)[g + 1], alone.real[0], atol=1e-9)


def test_ks_is_scipys() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 80))
    real, other = coded(pd.DataFrame({"c": x}), pd.DataFrame({"c": y[:50]}))
    shape = marginals(undealt(real), undealt(other)).shape[0, 0]
    assert shape == pytest.approx(ks_2samp(x, y[:50]).statistic)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([None, -1.5, 0.0, 0.25, 3.0]), min_size=1, max_size=9),
    st.lists(st.sampled_from([None, -1.5, 0.0, 0.25, 3.0, 7.5]), min_size=1, max_size=9),
)
def test_ks_with_missing_values_and_ties(x: list[float | None], y: list[float | None]) -> None:
    real, other = (pd.DataFrame({"c": pd.array(v, dtype="Float64").to_numpy(float, na_value=np.nan)}) for v in (x, y))
    tables = coded(real, other)
    if not tables[0].fields[0].categorical:
        shape = marginals(*(undealt(t) for t in tables)).shape[0, 0]
        assert shape == pytest.approx(slow_shape(real.c, other.c, True), abs=1e-12)


def test_constant_columns_have_no_correlation() -> None:
    rng = np.random.default_rng(0)
    real = pd.DataFrame({"a": rng.normal(size=50), "b": rng.normal(size=50)})
    other = real.assign(b=lambda t: t.a)
    error = dependence(*(undealt(t) for t in coded(real.assign(b=7.5), other))).error[0]
    assert error[0, 1] == pytest.approx(0.5)  # |0 - 1| / 2


def test_fresh_samples_are_at_the_floor_on_average_and_intervals_cover_it(people: People) -> None:
    rng = np.random.default_rng(0)
    ratios, covered = [], []
    for seed in range(0, 36, 3):
        tables = code_tables({"a": people(900, seed), "b": people(300, seed + 1), "c": people(600, seed + 2)})
        scale = size_scale(900, 600, 900, 300)
        floor = Floor(compare(tables["a"], tables["b"], rng, replicates=False), scale, "test")
        compared = compare(tables["a"], tables["c"], rng)
        for score in (column_shape(compared, floor)[0], pair_trend(compared, floor, [None] * 7)[0]):
            assert isinstance(score, Score)
            assert score.floor is not None
            assert score.low is not None
            assert score.high is not None
            ratios.append(score.value / score.floor)
            covered.append(score.low <= score.floor <= score.high)
    assert 0.85 < np.exp(np.mean(np.log(ratios))) < 1.18
    assert np.mean(covered) > 0.5  # the floor is a draw, too


def test_shuffled_columns_break_trends_and_no_shape(people: People) -> None:
    real = people(1500, 1)
    rng = np.random.default_rng(0)
    shuffled = pd.DataFrame({c: real[c].sample(frac=1, random_state=i).to_numpy() for i, c in enumerate(real)})
    compared = compare(*coded(real, shuffled), rng)
    assert compared.marginals.shape[0].max() == 0
    assert 100 * compared.dependence.error[0].mean() > 10


def test_within_and_across_are_means_over_their_pairs(people: People) -> None:
    compared = compare(*coded(people(200, 1), people(200, 2)), np.random.default_rng(0))
    silos = ["x", "x", "x", "y", "y", "z", "z"]
    overall, within, across = pair_trend(compared, None, silos)
    assert isinstance(overall, Score)
    assert isinstance(within, Score)
    assert isinstance(across, Score)
    error = 100 * compared.dependence.error[0]
    pairs = list(itertools.combinations(range(7), 2))
    inside = [error[i, j] for i, j in pairs if silos[i] == silos[j]]
    outside = [error[i, j] for i, j in pairs if silos[i] != silos[j]]
    assert within.value == pytest.approx(np.mean(inside))
    assert across.value == pytest.approx(np.mean(outside))
    assert overall.value == pytest.approx(np.mean(inside + outside))
    assert overall.floor is None
    assert "no floor" in overall.floor_note


def test_one_silo_has_no_split(people: People) -> None:
    compared = compare(*coded(people(50, 1), people(50, 2)), np.random.default_rng(0))
    assert [type(s) for s in pair_trend(compared, None, ["x"] * 7)] == [Score, Skipped, Skipped]


def test_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=(10, 1))  # ten groups of one row
    replicates = without(values)[:, 0] / np.array([10, *[9] * 10])
    value, low, high, _ = jackknife(replicates, -10, 10)
    error = values.std(ddof=1) / math.sqrt(10)
    assert value == pytest.approx(values.mean())
    assert (low, high) == pytest.approx((value - 2.262157 * error, value + 2.262157 * error), rel=1e-5)


def test_size_scale() -> None:
    assert size_scale(100, 100, 100, 100) == 1
    assert size_scale(400, 400, 100, 100) == pytest.approx(0.5)
