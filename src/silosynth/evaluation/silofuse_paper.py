"""The figures of the SiloFuse paper (section V-B): resemblance and utility, both from 0 to 100.

**Resemblance** is the mean of five similarities. The paper's wording leaves much open; we read it as follows:

1. *Column similarity* ("correlation between the values in each real and synthetic column", Pearson or Theil's U).
   Rows are not paired, so both columns are sorted first: Pearson's correlation of the two quantile functions, or
   Theil's U(real | synthetic) of the level codes laid side by side in rising order. Mean over columns.
2. *Correlation similarity*: Pearson's correlation, cut at 0, between the real and the synthetic association
   coefficients of all ordered pairs: Pearson (numeric), Theil's U (categorical), correlation ratio (mixed; the paper
   names none).
3. *Jensen-Shannon similarity*: 1 - distance (square root of the divergence, base 2), numeric columns in 20
   equal-width bins of the real range, missing values in a cell of their own. Mean over columns.
4. *Kolmogorov-Smirnov similarity*: 1 - distance, on level codes in rising order for categorical columns. Mean over
   columns.
5. *Propensity similarity*: 1 - mean absolute error, where the error of one row is 2 |p - 1/2| and p the out-of-fold
   probability of the XGBoost classifier of the two-sample AUC. The error is 0 where the classifier cannot distinguish,
   as the paper asks, and 1 where it is sure.

Floors: 1 minus the similarity between two real samples, scaled to the sizes compared: distances (3, 4) fall with the
root of the sizes, correlations (1, 2) linearly; propensity is taken at equal sizes without scaling.

**Utility** predicts every column from the others. Per column, XGBoost is trained on the real and on the synthetic table
and scored on the same hold-out: macro F1 (categorical) or D² absolute error (numeric, 1 - mean absolute error over that
of the hold-out's median). Each table's performance is the 90th percentile over columns; utility is 100 x synthetic /
real, clipped to 0..100. The paper leaves the model open: 50 trees of depth 6 at rate 0.3, absolute error for numbers,
at most 10 000 rows of each table. Columns that are constant in the hold-out or have more than 100 levels are left out;
one whose synthetic values are missing or all alike counts as 0.

Legend: R jackknife replicates, h hold-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from silosynth.evaluation import scores as figures, utility
from silosynth.evaluation.coding import Coded, Field
from silosynth.evaluation.fidelity import NO_FLOOR, Comparison, Floor
from silosynth.evaluation.scores import Ends, Floats, Least, Scale, Score, Skipped

PARTS: Mapping[str, tuple[str, str, int]] = {  # slug -> label, sentence, power of the size scale
    "column_similarity": ("Column similarity", "How well sorted real and synthetic columns line up.", 2),
    "correlation_similarity": ("Correlation similarity", "How alike the strengths of all pairwise relations are.", 2),
    "jensen_shannon": ("Jensen-Shannon similarity", "How much the distributions of single columns overlap.", 1),
    "kolmogorov_smirnov": (
        "Kolmogorov-Smirnov similarity",
        "How close the cumulative distributions of single columns are.",
        1,
    ),
    "propensity": ("Propensity similarity", "How unsure a classifier is whether a row is real or synthetic.", 0),
}
SCALE = Scale("resemblance", "score", "higher", 100.0)
SUM_METHOD = "95 % normal interval from the jackknife of the first four parts and the rows' spread of the fifth"


def resemblance(
    compared: Comparison,
    floor: Floor | None,
    separation: utility.Separation | str,
    floor_separation: utility.Separation | str,
) -> list[Score | Skipped]:
    """The mean of the five parts, and the parts; no mean if a part is skipped."""
    parts = similarities(compared)
    floors = _floors(floor, floor_separation)
    results: list[Score | Skipped] = [
        _part(slug, value, floors.get(slug), floor, compared) for slug, value in parts.items()
    ]
    results.append(_propensity(separation, floors.get("propensity"), floor_separation))
    absent = [r.name for r in results if isinstance(r, Skipped)]
    if absent:
        return [Skipped("resemblance", f"needs all five parts, without {', '.join(absent)}"), *results]
    return [_mean([r for r in results if isinstance(r, Score)], parts, separation), *results]


def similarities(compared: Comparison) -> dict[str, Floats | str]:
    """The first four parts as replicates (R,) in 0..100, or the reason for skipping one."""
    marginals = compared.marginals
    return {
        "column_similarity": 100 * marginals.similarity.mean(axis=1),
        "correlation_similarity": _correlation_similarity(compared),
        "jensen_shannon": 100 * (1 - marginals.js.mean(axis=1)),
        "kolmogorov_smirnov": 100 * (1 - marginals.ks.mean(axis=1)),
    }


def _correlation_similarity(compared: Comparison) -> Floats | str:
    real, other = compared.dependence.real, compared.dependence.other
    d = real.shape[1]
    if d < 3:
        return "needs three columns: fewer give no list of pairs to correlate"
    off = ~np.eye(d, dtype=bool)
    a, b = real[:, off], other[:, off]
    if (a.std(axis=1) < 1e-12).any():
        return "all real pairs are equally associated, so there is nothing to correlate"
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    scale = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    r = np.divide((a * b).sum(axis=1), scale, out=np.zeros_like(scale), where=scale > 0)
    return np.asarray(100 * np.clip(r, 0, 1))


def propensity_similarity(separation: utility.Separation) -> tuple[float, float]:
    """Part 5 in 0..100 and the standard error of its mean over rows."""
    errors = 2 * np.abs(separation.probability - 0.5)
    return 100 * float(1 - errors.mean()), 100 * float(errors.std(ddof=1) / math.sqrt(len(errors)))


def _floors(floor: Floor | None, floor_separation: utility.Separation | str) -> dict[str, float]:
    values: dict[str, float] = {}
    if floor is not None:
        for slug, replicates in similarities(floor.comparison).items():
            if not isinstance(replicates, str):
                loss = (100 - float(replicates[0])) * floor.scale ** PARTS[slug][2]
                values[slug] = max(0.0, 100 - loss)
    if isinstance(floor_separation, utility.Separation):
        values["propensity"] = propensity_similarity(floor_separation)[0]
    return values


def _part(
    slug: str, replicates: Floats | str, least: float | None, floor: Floor | None, compared: Comparison
) -> Score | Skipped:
    if isinstance(replicates, str):
        return Skipped(f"resemblance_{slug}", replicates)
    value, low, high, method = figures.jackknife(replicates, 0.0, 100.0)
    note = NO_FLOOR if floor is None or least is None else f"{floor.note}, scaled to the sizes compared"
    return _score(slug, value, (least, note), (low, high), min(compared.n, compared.m), method)


def _propensity(
    separation: utility.Separation | str, least: float | None, floor_separation: utility.Separation | str
) -> Score | Skipped:
    if isinstance(separation, str):
        return Skipped("resemblance_propensity", separation)
    value, error = propensity_similarity(separation)
    note = (
        f"no floor: {floor_separation}"
        if isinstance(floor_separation, str)
        else f"two real samples of {floor_separation.k:,} rows each"
    )
    method = "95 % normal interval of a mean over rows"
    ends = figures.normal_interval(value, error, 0.0, 100.0)
    return _score("propensity", value, (least, note), ends, separation.k, method)


def _mean(parts: list[Score], replicates: Mapping[str, Floats | str], separation: utility.Separation | str) -> Score:
    value = float(np.mean([s.value for s in parts]))
    floors = [s.floor for s in parts if s.floor is not None]
    summed = np.sum([r for r in replicates.values() if not isinstance(r, str)], axis=0)
    error = figures.standard_error(summed)
    ends: Ends = None, None
    if error is not None and isinstance(separation, utility.Separation):
        error = math.hypot(error, propensity_similarity(separation)[1]) / len(parts)
        ends = figures.normal_interval(value, error, 0.0, 100.0)
    floor: Least = None, "no floor: a part has none"
    if len(floors) == len(parts):
        floor = float(np.mean(floors)), "mean of the five floors"
    text = "How close the synthetic table is to the real one over five statistics; 100 is best."
    method = figures.TOO_FEW if ends[0] is None else SUM_METHOD
    return SCALE.score(
        "resemblance", "Resemblance (SiloFuse)", value, floor, ends, min(s.n for s in parts), text, method
    )


def _score(slug: str, value: float, floor: Least, ends: Ends, n: int, method: str) -> Score:
    label, sentence, _ = PARTS[slug]
    return SCALE.score(f"resemblance_{slug}", label, value, floor, ends, n, f"{sentence} 100 is best.", method)


AT_MOST = 10_000
MOST_LEVELS = 100
DRAWS = 100
CLASSES = utility.Booster(trees=50, rate=0.3)
NUMBERS = utility.Booster(trees=50, rate=0.3, objective="reg:absoluteerror")


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """One column of the h hold-out rows: the truth and two models' predictions, NaN where the truth is missing.

    Predictions by synthetic rows are NaN throughout where these are too few to learn from.
    """

    field: Field
    truth_h: Floats
    by_synthetic_h: Floats
    by_real_h: Floats


def outputs(fields: Sequence[Field]) -> int:
    """Number of boosters the utility trains per table: one per number, one per class. Its time grows with that."""
    return sum(_outputs(f) for f in fields)


def silofuse_utility(
    train: Coded,
    holdout: Coded,
    synthetic: Coded,
    rng: np.random.Generator,
    tick: Callable[[float], None] = lambda share: None,
) -> Score | Skipped:
    """The paper's utility; `tick` is called with the share of columns done."""
    train, holdout, synthetic = (t.sample(AT_MOST, rng) for t in (train, holdout, synthetic))
    seed = int(rng.integers(2**31))
    columns = []
    for j in range(len(train.fields)):
        predicted = _predict(train, holdout, synthetic, j, seed)
        columns.extend([] if predicted is None else [predicted])
        tick((j + 1) / len(train.fields))
    if not columns:
        return Skipped("utility", "no column could be predicted from the others")
    all_rows = np.arange(len(holdout))
    real, own = (_performance(columns, all_rows, real=flag) for flag in (True, False))
    if not real > 0:
        return Skipped("utility", "not even the model trained on real rows beats a constant prediction")
    text = "How well models trained on synthetic rows predict real columns, relative to real-trained models."
    method = f"95 % percentile interval, bootstrap over hold-out rows ({DRAWS} draws)"
    method = f"{method}; {len(columns)} of {len(train.fields)} columns predicted"
    floor = 100.0, "100 by definition: the real table's performance over itself"
    ends = _bootstrap(columns, len(holdout), rng)
    on, value = SCALE._replace(group="utility"), _ratio(own, real)
    return on.score("utility", "Utility (SiloFuse)", value, floor, ends, len(holdout), text, method)


def _outputs(field: Field) -> int:
    return 1 if not field.categorical or len(field.levels) == 2 else len(field.levels)


def _predict(train: Coded, holdout: Coded, synthetic: Coded, j: int, seed: int) -> Predicted | None:
    field = train.fields[j]
    rows = ~holdout.missing(j)
    tables = [train.take(~train.missing(j)), holdout.take(rows), synthetic.take(~synthetic.missing(j))]
    too_few = len(train.fields) < 2 or any(len(t) < 2 for t in tables[:2])
    if too_few or len(field.levels) > MOST_LEVELS or len(np.unique(tables[1].values[j])) < 2:
        return None
    x_train, x_holdout, x_synthetic = utility.split(utility.codes_matrix(*tables), tables, j)
    truth, by_synthetic, by_real = (np.full(len(holdout), np.nan) for _ in range(3))
    truth[rows] = tables[1].values[j]
    fits = [
        partial(_fit, field, x, table.values[j], x_holdout, seed)
        for x, table in ((x_train, tables[0]), (x_synthetic, tables[2]))
        if table is tables[0] or len(np.unique(table.values[j])) > 1
    ]
    for own, predicted in zip((by_real, by_synthetic), utility.side_by_side(fits), strict=False):
        own[rows] = predicted
    return Predicted(field, truth, by_synthetic, by_real)


def _fit(field: Field, x: Floats, y: NDArray[np.float64], test: Floats, seed: int) -> Floats:
    if field.categorical:
        probability = utility.predict_classes(x, y.astype(np.int64), test, len(field.levels), CLASSES, seed)
        return np.asarray(probability.argmax(axis=1), np.float64)
    return utility.predict_numbers(x, y, test, NUMBERS, seed)


def _performance(columns: Sequence[Predicted], rows: NDArray[np.int64], real: bool) -> float:
    """90th percentile over columns, on the given hold-out rows (with repeats)."""
    scores = [_column_performance(c, rows, real) for c in columns]
    return float(np.percentile([s for s in scores if s is not None] or [0.0], 90))


def _column_performance(column: Predicted, rows: NDArray[np.int64], real: bool) -> float | None:
    """Macro F1 or D² absolute error, 0 without predictions; None where the truth is constant on these rows."""
    truth, predicted = column.truth_h[rows], (column.by_real_h if real else column.by_synthetic_h)[rows]
    present = ~np.isnan(truth)
    truth, predicted = truth[present], predicted[present]
    if len(truth) < 2 or np.ptp(truth) == 0:
        return None
    if np.isnan(predicted).all():
        return 0.0
    if column.field.categorical:
        codes = truth.astype(np.int64)
        classes = np.unique(codes)
        return utility.f1_macro(
            utility.confusion(codes, predicted.astype(np.int64), classes, len(column.field.levels)), classes
        )
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
    return figures.percentiles(ratios)


def _ratio(own: float, real: float) -> float:
    return float(np.clip(100 * own / real, 0, 100))
