"""Utility figures against scikit-learn, and with classes, levels and targets that are absent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import d2_absolute_error_score, f1_score, r2_score

from silosynth.evaluation.coding import Coded, code_tables
from silosynth.evaluation.scores import Score, Skipped
from silosynth.evaluation.silofuse_paper import d2_absolute_error, outputs, silofuse_utility
from silosynth.evaluation.utility import Booster, confusion, downstream, f1_macro, predict_classes, r_squared

People = Callable[..., pd.DataFrame]


def coded(train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame) -> tuple[Coded, Coded, Coded]:
    tables = code_tables({"training": train, "hold-out": holdout, "synthetic": synthetic})
    return tables["training"], tables["hold-out"], tables["synthetic"]


def scores(train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, target: str) -> dict[str, Score]:
    tables = coded(train, holdout, synthetic)
    position = [f.name for f in tables[0].fields].index(target)
    results = downstream(*tables, position, np.random.default_rng(0))
    assert all(isinstance(s, Score) for s in results), results
    return {s.name: s for s in results if isinstance(s, Score)}


def test_f1_is_scikit_learns_over_the_holdouts_classes() -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.choice([1, 2, 4], 60), rng.integers(0, 6, 60)
    classes = np.unique(truth)
    cells = confusion(truth, predicted, classes, 6)
    assert f1_macro(cells, classes) == pytest.approx(f1_score(truth, predicted, labels=classes, average="macro"))


def test_r_squared_and_d2_are_scikit_learns() -> None:
    truth, predicted = np.random.default_rng(0).normal(size=(2, 31))
    assert r_squared(truth, predicted) == pytest.approx(r2_score(truth, predicted))
    assert d2_absolute_error(truth, predicted) == pytest.approx(d2_absolute_error_score(truth, predicted))


@pytest.mark.slow
@pytest.mark.parametrize(("target", "names"), [("rich", ["auc", "f1"]), ("job", ["auc", "f1"]), ("age", ["r2"])])
def test_real_rows_reach_the_floor_and_noise_does_not(target: str, names: list[str], people: People) -> None:
    train, holdout = people(500, 1), people(300, 2)
    noise = people(500, 3).assign(**{target: lambda t: t[target].sample(frac=1, random_state=0).to_numpy()})
    good, bad, same = (scores(train, holdout, t, target) for t in (people(500, 3), noise, train))
    assert list(good) == [f"downstream_{name}" for name in names]
    for name, score in good.items():
        assert score.floor is not None
        assert score.low is not None
        assert score.high is not None
        assert score.low <= score.value <= score.high
        assert abs(score.value - score.floor) < 0.12
        assert bad[name].value < score.value - 0.1
        assert same[name].value == score.floor


def test_a_single_class_in_the_synthetic_table_is_guessing(people: People) -> None:
    results = scores(people(200, 1), people(200, 2), people(200, 3).assign(rich=True), "rich")
    assert results["downstream_auc"].value == 0.5
    rich = people(200, 2).rich.mean()
    assert results["downstream_f1"].value == pytest.approx(2 * rich / (1 + rich) / 2)


def test_classes_absent_or_invented_are_scored(people: People) -> None:
    absent = people(300, 3, gaps=False).assign(job=lambda t: t.job.replace("baker", "smith"))
    invented = people(300, 3).assign(job="astronaut")
    for synthetic in (absent, invented):
        results = scores(people(300, 1), people(300, 2), synthetic, "job")
        assert results["downstream_f1"].value < results["downstream_f1"].floor - 0.05  # type: ignore[operator]
    assert results["downstream_f1"].value == 0
    assert results["downstream_auc"].value == 0.5


def test_a_class_that_training_lacks_has_probability_zero() -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    p = predict_classes(x, np.repeat([1, 3], 15), x[:5], 5, Booster(trees=2), 0)
    assert p.shape == (5, 5)
    assert (p[:, [0, 2, 4]] == 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("columns", "change", "why"),
    [
        (["rich"], {}, "beside the target"),
        (["age", "rich"], {"rich": True}, "constant in the hold-out"),
        (["age", "job"], {"job": None}, "fewer than two rows"),
    ],
)
def test_what_cannot_be_scored_says_why(
    columns: list[str], change: dict[str, object], why: str, people: People
) -> None:
    frames = [people(30, seed)[columns].assign(**change) for seed in range(3)]
    results = downstream(*coded(*frames), len(columns) - 1, np.random.default_rng(0))
    assert [type(s) for s in results] == [Skipped, Skipped]
    assert all(why in s.why for s in results if isinstance(s, Skipped))


def test_rows_without_a_target_are_left_out(people: People) -> None:
    train, holdout, synthetic = (people(150, seed, gaps=False) for seed in range(3))
    blank = synthetic.assign(job=None)
    both = scores(train, pd.concat([holdout, holdout.assign(job=None)]), pd.concat([synthetic, blank]), "job")
    assert both["downstream_auc"].n == 150
    assert both["downstream_auc"].value == pytest.approx(
        scores(train, holdout, synthetic, "job")["downstream_auc"].value
    )


def test_paper_utility_is_a_hundred_for_the_training_table_and_less_for_noise(people: People) -> None:
    train, holdout = people(300, 1), people(200, 2)
    noise = pd.DataFrame({c: train[c].sample(frac=1, random_state=i).to_numpy() for i, c in enumerate(train)})
    ticks: list[float] = []
    same = silofuse_utility(*coded(train, holdout, train), np.random.default_rng(0), ticks.append)
    bad = silofuse_utility(*coded(train, holdout, noise), np.random.default_rng(0))
    assert isinstance(same, Score)
    assert isinstance(bad, Score)
    assert same.value == 100
    assert bad.value < 90
    assert bad.low is not None
    assert bad.high is not None
    assert bad.low <= bad.value <= bad.high
    assert ticks == pytest.approx(np.arange(1, 8) / 7)


def test_paper_utility_counts_its_boosters(people: People) -> None:
    fields = coded(people(50, 1), people(50, 2), people(50, 3))[0].fields
    assert outputs(fields) == 4 + 1 + 3 + 4  # numbers and instants, rich, job, children


def test_paper_utility_without_a_predictable_column(people: People) -> None:
    frames = [people(30, seed)[["job"]] for seed in range(3)]
    assert isinstance(silofuse_utility(*coded(*frames), np.random.default_rng(0)), Skipped)
