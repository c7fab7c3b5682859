"""Two-sample AUC: how well a classifier distinguishes real rows from synthetic ones; 0.5 is guessing.

The same number of real and synthetic rows (at most 10 000 each) goes through stratified 3-fold cross-validation; the
figure is the mean of the three areas. Its variance is the sum of DeLong's variances over the folds, divided by 9; it
does not cover the choice of the training folds. Floor: training rows against all available hold-out rows, not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from silosynth.evaluation.coding import Coded, standardised
from silosynth.evaluation.intervals import DELONG, EXACT, auc_interval, auc_with_influence
from silosynth.evaluation.scores import Floats, Score, Skipped

FOLDS = 3
AT_MOST = 10_000
AT_LEAST = 10  # rows of each table; three folds of fewer say nothing
ONE_HOT = 600  # dummy columns of the logistic model, divided among the categorical columns

FitPredict = Callable[[Floats, NDArray[np.int64], Floats, int], Floats]  # train x, train y, test x, seed -> P(y = 1)


@dataclass(frozen=True, slots=True, eq=False)
class Separation:
    """Out-of-fold result of one classifier on two tables of the same size."""

    area: float
    error: float  # standard error
    probability: Floats  # (2 k) of being from the second table; the first k rows are the first table's
    k: int  # rows of each table


def separate(real: Coded, other: Coded, kind: str, rng: np.random.Generator) -> Separation | str:
    """Cross-validated separation by "xgboost" or "logistic"; or why the tables are too small for it."""
    k = min(len(real), len(other), AT_MOST)
    if k < AT_LEAST:
        return f"needs {AT_LEAST} rows of each table, there are {k}"
    design, classifier = {"xgboost": (codes_matrix, _xgboost), "logistic": (dummies_matrix, _logistic)}[kind]
    x = design(real.sample(k, rng), other.sample(k, rng))
    y = np.repeat(np.array([0, 1], np.int64), k)
    return _cross_validate(x, y, classifier, int(rng.integers(2**31)))


def _cross_validate(x: Floats, y: NDArray[np.int64], classifier: FitPredict, seed: int) -> Separation:
    folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, y))
    fitted = side_by_side([partial(classifier, x[train], y[train], x[test], seed) for train, test in folds])
    probability = np.empty(len(y))
    areas, variance = [], 0.0
    for (_, test), predicted in zip(folds, fitted, strict=True):
        probability[test] = predicted
        area, influence = auc_with_influence(y[test] == 1, predicted)
        areas.append(area)
        variance += float((influence**2).sum())
    return Separation(float(np.mean(areas)), math.sqrt(variance) / FOLDS, probability, len(y) // 2)


def two_sample_auc(
    kind: str, separation: Separation | str, floor: Separation | str, floor_note: str
) -> Score | Skipped:
    """The score of a separation, beside that of its floor."""
    name = f"two_sample_auc_{kind}"
    if isinstance(separation, str):
        return Skipped(name, separation)
    low, high = auc_interval(separation.area, separation.error, separation.k)
    return Score(
        name=name,
        label=f"Two-sample AUC ({'XGBoost' if kind == 'xgboost' else 'logistic'})",
        group="two-sample",
        value=separation.area,
        floor=floor.area if not isinstance(floor, str) else None,
        floor_note=f"{floor_note}, {floor.k:,} rows each" if not isinstance(floor, str) else f"no floor: {floor}",
        low=low,
        high=high,
        unit="AUC",
        better="near",
        ideal=0.5,
        n=separation.k,
        explanation="How well a classifier tells synthetic rows from real ones: 0.5 is guessing, 1 is always right."
        + ("" if not isinstance(floor, str) else " No real sample was left to compare with."),
        method=EXACT if separation.area in (0, 1) else f"{DELONG}, summed over {FOLDS} folds",
    )


def side_by_side(tasks: Sequence[Callable[[], Floats]]) -> list[Floats]:
    """Run model fits in two threads, one core each: on a busy machine, two threads *inside* XGBoost deadlock."""
    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


def codes_matrix(*tables: Coded) -> Floats:
    """(rows, d) for trees: level codes, and numbers standardised lest float32 merge them; NaN for missing."""
    columns = []
    for j, field in enumerate(tables[0].fields):
        values = np.concatenate([t.values[j] for t in tables]).astype(np.float64)
        if field.categorical:
            values[values == len(field.levels)] = np.nan
        columns.append(values if field.categorical else standardised(values))
    return np.stack(columns, axis=1)


def dummies_matrix(*tables: Coded) -> Floats:
    """(rows, dummies) for linear models: one-hot frequent levels, standardised numbers and their missing flags."""
    fields = tables[0].fields
    most = max(5, min(100, ONE_HOT // max(1, sum(f.categorical for f in fields))))
    columns: list[Floats] = []
    for j, field in enumerate(fields):
        values = np.concatenate([t.values[j] for t in tables])
        if field.categorical:
            frequent = np.argsort(-np.bincount(values), kind="stable")[:most]
            columns.extend((values == level).astype(np.float64) for level in frequent)
        else:
            columns.append(np.nan_to_num(standardised(values)))
            columns.append(np.isnan(values).astype(np.float64))
    return np.stack(columns, axis=1)


def _xgboost(x: Floats, y: NDArray[np.int64], test: Floats, seed: int) -> Floats:
    from xgboost import XGBClassifier

    model = XGBClassifier(n_estimators=100, max_depth=5, tree_method="hist", n_jobs=1, random_state=seed)
    return np.asarray(model.fit(x, y).predict_proba(test)[:, 1], np.float64)


def _logistic(x: Floats, y: NDArray[np.int64], test: Floats, seed: int) -> Floats:
    model = LogisticRegression(solver="newton-cholesky", max_iter=200, random_state=seed)
    return np.asarray(model.fit(x, y).predict_proba(test)[:, 1], np.float64)
