"""SiloFuse's utility (section V-B): every column predicted from the others, synthetic-trained over real-trained.

Per column, XGBoost is trained on the real and on the synthetic table and scored on the same hold-out: macro F1
(categorical) or D² absolute error (numeric, 1 - mean absolute error over that of the hold-out's median). Each table's
performance is the 90th percentile over columns; utility is 100 x synthetic / real, cut to 0..100. The paper leaves
the model open: 50 trees of depth 6 at rate 0.3, absolute error for numbers, at most 10 000 rows of each table.
Columns that are constant in the hold-out or have more than 100 levels are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from silosynth.evaluation.coding import Coded, Field
from silosynth.evaluation.downstream import Booster, confusion, f1_macro, predict_classes, predict_numbers, split
from silosynth.evaluation.scores import Floats, Score, Skipped
from silosynth.evaluation.two_sample import codes_matrix, side_by_side

AT_MOST = 10_000
MOST_LEVELS = 100
DRAWS = 100
CLASSES = Booster(trees=50, rate=0.3)
NUMBERS = Booster(trees=50, rate=0.3, objective="reg:absoluteerror")


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """One column over all h hold-out rows: the truth and two models' predictions, NaN where the truth is missing."""

    field: Field
    truth_h: Floats
    by_synthetic_h: Floats
    by_real_h: Floats


def outputs(fields: Sequence[Field]) -> int:
    """How many boosters the figure trains per table: one per number, one per class; what its time grows with."""
    return sum(_outputs(f) for f in fields)


def silofuse_utility(
    train: Coded,
    holdout: Coded,
    synthetic: Coded,
    rng: np.random.Generator,
    tick: Callable[[float], None] = lambda share: None,
) -> Score | Skipped:
    """The paper's utility; `tick` is told the share of columns done."""
    train, holdout, synthetic = (t.sample(AT_MOST, rng) for t in (train, holdout, synthetic))
    seed = int(rng.integers(2**31))
    columns = []
    for j in range(len(train.fields)):
        found = _predict(train, holdout, synthetic, j, seed)
        columns.extend([] if found is None else [found])
        tick((j + 1) / len(train.fields))
    if not columns:
        return Skipped("utility", "no column could be predicted from the others")
    everything = np.arange(len(holdout))
    real, own = (_performance(columns, everything, real=flag) for flag in (True, False))
    if not real > 0:
        return Skipped("utility", "not even the model trained on real rows beats a constant prediction")
    return _score(own, real, _bootstrap(columns, len(holdout), rng), columns, len(train.fields), len(holdout))


def _outputs(field: Field) -> int:
    return 1 if not field.categorical or len(field.levels) == 2 else len(field.levels)


def _predict(train: Coded, holdout: Coded, synthetic: Coded, j: int, seed: int) -> Predicted | None:
    field = train.fields[j]
    rows = ~holdout.missing(j)
    tables = [train.take(~train.missing(j)), holdout.take(rows), synthetic.take(~synthetic.missing(j))]
    few = len(train.fields) < 2 or any(len(t) < 2 for t in tables)
    if few or len(field.levels) > MOST_LEVELS or len(np.unique(tables[1].values[j])) < 2:
        return None
    x_train, x_holdout, x_synthetic = split(codes_matrix(*tables), tables, j)
    truth, by_synthetic, by_real = (np.full(len(holdout), np.nan) for _ in range(3))
    truth[rows] = tables[1].values[j]
    by_synthetic[rows], by_real[rows] = side_by_side(
        [
            partial(_fit, field, x, table.values[j], x_holdout, seed)
            for x, table in ((x_synthetic, tables[2]), (x_train, tables[0]))
        ]
    )
    return Predicted(field, truth, by_synthetic, by_real)


def _fit(field: Field, x: Floats, y: NDArray[np.float64], test: Floats, seed: int) -> Floats:
    if field.categorical:
        probability = predict_classes(x, y.astype(np.int64), test, len(field.levels), CLASSES, seed)
        return np.asarray(probability.argmax(axis=1), np.float64)
    return predict_numbers(x, y, test, NUMBERS, seed)


def _performance(columns: Sequence[Predicted], rows: NDArray[np.int64], real: bool) -> float:
    """90th percentile over columns, on the given hold-out rows (with repeats)."""
    scores = [_column_performance(c, rows, real) for c in columns]
    return float(np.percentile([s for s in scores if s is not None] or [0.0], 90))


def _column_performance(column: Predicted, rows: NDArray[np.int64], real: bool) -> float | None:
    """Macro F1 or D² absolute error; None where the truth is constant on these rows."""
    truth, predicted = column.truth_h[rows], (column.by_real_h if real else column.by_synthetic_h)[rows]
    present = ~np.isnan(truth)
    truth, predicted = truth[present], predicted[present]
    if len(truth) < 2 or np.ptp(truth) == 0:
        return None
    if column.field.categorical:
        codes = truth.astype(np.int64)
        classes = np.unique(codes)
        return f1_macro(confusion(codes, predicted.astype(np.int64), classes, len(column.field.levels)), classes)
    return d2_absolute_error(truth, predicted)


def d2_absolute_error(truth: Floats, predicted: Floats) -> float:
    """1 - mean absolute error over that of the truth's median; the truth must not be constant."""
    return float(1 - np.abs(truth - predicted).mean() / np.abs(truth - np.median(truth)).mean())


def _bootstrap(columns: Sequence[Predicted], n: int, rng: np.random.Generator) -> tuple[float, float]:
    ratios = []
    for _ in range(DRAWS):
        rows = rng.integers(n, size=n)
        real = _performance(columns, rows, real=True)
        if real > 0:
            ratios.append(_ratio(_performance(columns, rows, real=False), real))
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def _ratio(own: float, real: float) -> float:
    return float(np.clip(100 * own / real, 0, 100))


def _score(own: float, real: float, ends: tuple[float, float], columns: Sequence[Predicted], d: int, n: int) -> Score:
    return Score(
        name="utility",
        label="Utility (SiloFuse)",
        group="utility",
        value=_ratio(own, real),
        floor=100.0,
        floor_note="100 by definition: the real table's performance over itself",
        low=ends[0],
        high=ends[1],
        unit="score",
        better="higher",
        ideal=100.0,
        n=n,
        explanation="How well models trained on synthetic rows predict real columns, relative to real-trained models.",
        method=f"95 % percentile interval, bootstrap over hold-out rows ({DRAWS} draws); "
        f"{len(columns)} of {d} columns predicted",
    )
