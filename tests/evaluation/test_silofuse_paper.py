"""SiloFuse's five scores against SciPy and the definitions written out."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import jensenshannon

from silosynth.evaluation.coding import code_tables
from silosynth.evaluation.fidelity import compare, coupled_theils_u, jensen_shannon, ks_distance, quantile_correlation
from silosynth.evaluation.scores import Score, Skipped
from silosynth.evaluation.silofuse_paper import propensity_similarity, resemblance, silofuse_utility, similarities
from silosynth.evaluation.utility import Separation

People = Callable[..., pd.DataFrame]


def entropy(values: list[object]) -> float:
    return -sum(c / len(values) * math.log(c / len(values)) for c in Counter(values).values())


def theils_u(x: list[object], y: list[object]) -> float:
    h = entropy(x)
    return (h + entropy(y) - entropy(list(zip(x, y, strict=True)))) / h if h > 0 else 0.0


def correlation_ratio(codes: list[object], y: np.ndarray) -> float:
    means = {c: np.mean([v for k, v in zip(codes, y, strict=True) if k == c]) for c in set(codes)}
    between = sum((means[c] - y.mean()) ** 2 for c in codes)
    return math.sqrt(between / ((y - y.mean()) ** 2).sum())


def random_shares(seed: int, k: int = 9) -> tuple[np.ndarray, np.ndarray]:
    p, q = np.random.default_rng(seed).dirichlet(np.full(k, 0.3), 2)
    p[0], q[1] = 0.0, 0.0
    return p[None] / p.sum(), q[None] / q.sum()


@pytest.mark.parametrize("seed", range(5))
def test_jensen_shannon_is_scipys(seed: int) -> None:
    p, q = random_shares(seed)
    assert jensen_shannon(p, q)[0] == pytest.approx(jensenshannon(p[0], q[0], base=2))
    assert jensen_shannon(p, p)[0] == 0
    assert ks_distance(p, q)[0] == pytest.approx(np.abs(np.cumsum(p) - np.cumsum(q)).max())


@pytest.mark.parametrize("seed", range(5))
def test_coupled_theils_u_is_that_of_two_sorted_columns(seed: int) -> None:
    x, y = np.sort(np.random.default_rng(seed).integers(0, 5, (2, 40)), axis=1)
    p, q = (np.bincount(v, minlength=5)[None] / 40 for v in (x, y))
    assert coupled_theils_u(p, q)[0] == pytest.approx(theils_u(x.tolist(), y.tolist()))
    assert coupled_theils_u(p, p)[0] == pytest.approx(1)


def test_column_similarity_of_constants() -> None:
    one, two = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert coupled_theils_u(one, one)[0] == 1
    assert coupled_theils_u(one, two)[0] == 0
    values = np.array([3.0, 4.0])
    assert quantile_correlation(values, one, one)[0] == 1
    assert quantile_correlation(values, one, two)[0] == 0
    assert quantile_correlation(values, one, np.array([[0.5, 0.5]]))[0] == 0
    assert quantile_correlation(values, one * 0, one * 0)[0] == 1
    assert quantile_correlation(values, one * 0, one)[0] == 0


def test_quantile_correlation_is_that_of_sorted_columns() -> None:
    x, y = np.random.default_rng(0).gamma(2, size=(2, 1000))
    values = np.unique([x, y])
    p, q = (np.isin(values, v)[None] / 1000 for v in (x, y))
    expected = np.corrcoef(np.sort(x), np.sort(y))[0, 1]
    assert quantile_correlation(values, p, q)[0] == pytest.approx(expected, abs=1e-9)


def slow_association(table: pd.DataFrame, a: str, b: str) -> float:
    numeric = [c for c in (a, b) if c in ("age", "wage", "gain")]
    if len(numeric) == 2:
        return float(table[a].corr(table[b]))
    if not numeric:
        return theils_u(*(table[c].astype(object).where(table[c].notna(), None).tolist() for c in (a, b)))
    level = b if numeric[0] == a else a
    rows = table[table[numeric[0]].notna()]
    return correlation_ratio(
        rows[level].astype(object).where(rows[level].notna(), None).tolist(), rows[numeric[0]].to_numpy(float)
    )


def test_correlation_similarity_against_loops(people: People) -> None:
    real, other = people(150, 1).drop(columns="born"), people(150, 2).drop(columns="born")
    tables = code_tables({"training": real, "synthetic": other})
    compared = compare(tables["training"], tables["synthetic"], np.random.default_rng(0))
    pairs = list(itertools.permutations(real.columns, 2))
    a, b = ([slow_association(t, *pair) for pair in pairs] for t in (real, other))
    similarity = similarities(compared)["correlation_similarity"]
    assert not isinstance(similarity, str)
    assert similarity[0] == pytest.approx(100 * np.corrcoef(a, b)[0, 1], abs=1e-8)


def test_resemblance_is_the_mean_of_five_and_perfect_for_a_copy(people: People) -> None:
    tables = code_tables({"training": people(300, 1), "synthetic": people(300, 1)})
    compared = compare(tables["training"], tables["synthetic"], np.random.default_rng(0))
    unsure = Separation(0.5, 0.01, np.full(600, 0.5), 300)
    mean, *parts = resemblance(compared, None, unsure, "none left")
    assert isinstance(mean, Score)
    assert [p.name.removeprefix("resemblance_") for p in parts] == [
        "column_similarity",
        "correlation_similarity",
        "jensen_shannon",
        "kolmogorov_smirnov",
        "propensity",
    ]
    assert mean.value == pytest.approx(100)
    assert all(isinstance(p, Score) and p.value == pytest.approx(100) for p in parts)


def test_resemblance_lacks_what_a_part_lacks(people: People) -> None:
    narrow = [people(50, s)[["age", "job"]] for s in (1, 2)]
    tables = code_tables({"training": narrow[0], "synthetic": narrow[1]})
    compared = compare(tables["training"], tables["synthetic"], np.random.default_rng(0))
    results = {r.name: r for r in resemblance(compared, None, "too small", "too small")}
    absent = {name for name, r in results.items() if isinstance(r, Skipped)}
    assert absent == {"resemblance", "resemblance_correlation_similarity", "resemblance_propensity"}


def test_propensity_is_zero_for_a_sure_classifier() -> None:
    sure = Separation(1.0, 0.0, np.repeat([0.0, 1.0], 50), 50)
    assert propensity_similarity(sure) == (0.0, 0.0)
    assert propensity_similarity(Separation(0.5, 0.0, np.repeat([0.4, 0.6], 50), 50))[0] == pytest.approx(80)


def test_utility_is_the_90th_percentile_over_columns() -> None:
    """Eight of ten columns are noise, in real rows as in synthetic ones: only a high percentile sees the other two."""
    draw = np.random.default_rng(5)

    def rows(*, tied: bool) -> pd.DataFrame:
        table = pd.DataFrame({name: draw.integers(0, 2, 200).astype(str) for name in "abcdefghx"})
        return table.assign(y=table["x"] if tied else draw.permutation(table["x"]))

    coded = code_tables({"train": rows(tied=True), "holdout": rows(tied=True), "synthetic": rows(tied=False)})
    made = {
        name: silofuse_utility(coded["train"], coded["holdout"], coded[name], draw) for name in ("train", "synthetic")
    }
    values = {name: score.value for name, score in made.items() if isinstance(score, Score)}
    assert values["train"] == 100
    assert 40 < values["synthetic"] < 75


@pytest.mark.parametrize("value", [None, "a"])
def test_a_column_that_synthetic_rows_lack_or_have_all_alike_counts_as_0(value: str | None) -> None:
    real = pd.DataFrame({"x": ["a", "b"] * 60, "y": ["a", "b"] * 60, "z": ["a", "b"] * 60})
    tables = {"train": real, "holdout": real, "synthetic": real, "lacking": real.assign(x=value, y=value, z=value)}
    coded, draw = code_tables(tables), np.random.default_rng(0)
    whole, lacking = (
        silofuse_utility(coded["train"], coded["holdout"], coded[name], draw) for name in ("synthetic", "lacking")
    )
    assert isinstance(whole, Score) and isinstance(lacking, Score)
    assert whole.value == 100 and lacking.value == 0
    assert "3 of 3 columns predicted" in lacking.method
