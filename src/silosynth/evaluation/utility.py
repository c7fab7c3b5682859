"""What classifiers say: how well models trained on synthetic rows do, and how well one tells them from real rows.

**Two-sample AUC** (`separate`): how well a classifier distinguishes real rows from synthetic ones; 0.5 is guessing.
The same number of real and synthetic rows (at most 10 000 each) goes through stratified 3-fold cross-validation; the
figure is the mean of the three areas. Its variance is the sum of DeLong's variances over the folds, divided by 9; it
does not cover the choice of the training folds. Floor: training rows against all available hold-out rows, not scaled.

**Utility**: models trained on the synthetic table and on the real one, scored on the same real hold-out.

**XGBoost** (`downstream`) has 200 trees of depth 6 at rate 0.1. Rows without a target are left out. A categorical
target is a classification: ROC area (binary, or the mean of one-against-rest areas) and macro F1, both over the classes
in the hold-out. A class that the training table lacks gets probability 0; a class that only the synthetic table has
stays in its model and counts as wrong whenever predicted. A training table with a single class gives a constant
prediction (area 0.5). A numeric target is a regression: R².

**scikit-learn classifiers** (`judge`) that papers train: they all see the same features, since three of the five are
linear or a network: one-hot levels (the most frequent of the real training rows), and numbers standardised by the real
training rows and clipped at `WILDEST` deviations, with 0 and a flag where a value is missing. A class that the training
rows lack is never predicted and ranks all rows alike (area 0.5). Settings that no paper names are scikit-learn's
defaults.

Legend: n training rows, h hold-out rows, F features, K classes (the levels of the target), k classes in the hold-out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from silosynth.evaluation import scores as figures
from silosynth.evaluation.coding import Coded, Field, line, standardised
from silosynth.evaluation.scores import Floats, Ints, Least, Scale, Score, Skipped

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
    probability, area_F, error_F = _folds(x, y, classifier, FOLDS, seed)
    error = math.sqrt(float((error_F**2).sum())) / FOLDS
    return Separation(float(area_F.mean()), error, probability, len(y) // 2)


def areas(x: Floats, y: NDArray[np.int64], folds: int, seed: int) -> tuple[Floats, Floats]:
    """Areas (folds) by which XGBoost tells rows with y = 1 from those with y = 0, and their standard errors."""
    return _folds(x, y, _xgboost, folds, seed)[1:]


def _folds(
    x: Floats, y: NDArray[np.int64], classifier: FitPredict, count: int, seed: int
) -> tuple[Floats, Floats, Floats]:
    """Out-of-fold probabilities (rows), and each fold's area and standard error (folds)."""
    folds = list(StratifiedKFold(count, shuffle=True, random_state=seed).split(x, y))
    fitted = side_by_side([partial(classifier, x[train], y[train], x[test], seed) for train, test in folds])
    probability = np.empty(len(y))
    measured = []
    for (_, test), predicted in zip(folds, fitted, strict=True):
        probability[test] = predicted
        area, influence = figures.auc_with_influence(y[test] == 1, predicted)
        measured.append((area, math.sqrt(float((influence**2).sum()))))
    area_F, error_F = np.array(measured).T
    return probability, area_F, error_F


def two_sample_auc(
    kind: str, separation: Separation | str, floor: Separation | str, floor_note: str
) -> Score | Skipped:
    """The score of a separation, beside that of its floor."""
    name = f"two_sample_auc_{kind}"
    if isinstance(separation, str):
        return Skipped(name, separation)
    ends = figures.auc_interval(separation.area, separation.error, separation.k)
    label = f"Two-sample AUC ({'XGBoost' if kind == 'xgboost' else 'logistic'})"
    text = "How well a classifier tells synthetic rows from real ones: 0.5 is guessing, 1 is always right."
    least: Least
    if isinstance(floor, str):
        text, least = f"{text} No real sample was left to compare with.", (None, f"no floor: {floor}")
    else:
        least = floor.area, f"{floor_note}, {floor.k:,} rows each"
    method = figures.EXACT if separation.area in (0, 1) else f"{figures.DELONG}, summed over {FOLDS} folds"
    on = Scale("two-sample", "AUC", "near", 0.5)
    return on.score(name, label, separation.area, least, ends, separation.k, text, method)


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


WILDEST = 20.0  # deviations; one wild synthetic value must not decide a linear model


@dataclass(frozen=True, slots=True)
class Classifier:
    """A classifier; `limit` is its maximum of iterations, None where it does not iterate."""

    name: str
    make: Callable[[int], Any]  # seed -> an unfitted estimator
    limit: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """Predictions of a fitted classifier for the hold-out rows."""

    scores_hK: Floats  # larger: more likely that class; minus infinity for classes not in training
    converged: bool

    @property
    def predicted_h(self) -> Ints:
        """The class with the largest score."""
        return np.asarray(self.scores_hK.argmax(axis=1), np.int64)


TREE = Classifier("decision tree", lambda seed: DecisionTreeClassifier(random_state=seed))
SVM = Classifier("linear SVM", lambda seed: LinearSVC(dual=False, max_iter=1000, random_state=seed), 1000)
FOREST = Classifier("random forest", lambda seed: RandomForestClassifier(n_estimators=100, random_state=seed))
LOGISTIC = Classifier("logistic regression", lambda seed: LogisticRegression(max_iter=500, random_state=seed), 500)
MLP = Classifier("MLP", lambda seed: MLPClassifier((100,), max_iter=200, random_state=seed), 200)

VTGAN = (TREE, SVM, FOREST, LOGISTIC, MLP)  # VT-GAN paper, section 4.2.1
GDTS = (TREE, FOREST, LOGISTIC, MLP)  # GDTS paper, section II-D: the same without the SVM


def features(reference: Coded, table: Coded, target: int) -> Floats:
    """(n, F): all columns of `table` but the target, with the levels and scales of the `reference` rows."""
    return design(reference, table, target)[0]


def design(reference: Coded, table: Coded, target: int) -> tuple[Floats, Ints]:
    """`features`, and the column of the table that each of the F comes from."""
    fields = table.fields
    most = max(5, min(100, ONE_HOT // max(1, sum(f.categorical for f in fields))))
    columns: list[Floats] = []
    origin: list[int] = []
    for j, field in enumerate(fields):
        if j != target:
            own = (_one_hot if field.categorical else _numeric)(field, reference.values[j], table.values[j], most)
            columns += own
            origin += [j] * len(own)
    return np.stack(columns, axis=1), np.array(origin, np.int64)


def judge(classifier: Classifier, x_nF: Floats, y_n: Ints, test_hF: Floats, size: int, seed: int) -> Judgement:
    """Fit one classifier, and score the test rows for `size` classes.

    Convergence is judged by the number of iterations; the caller silences scikit-learn's warning about it.
    """
    present, codes = np.unique(y_n, return_inverse=True)
    scores = np.full((len(test_hF), size), -np.inf)
    if len(present) == 1:
        scores[:, present[0]] = 0.0
        return Judgement(scores, True)
    model = classifier.make(seed).fit(x_nF, codes)
    scores[:, present] = _scores(model, test_hF)
    iterations = np.max(getattr(model, "n_iter_", 0))
    return Judgement(scores, classifier.limit is None or bool(iterations < classifier.limit))


def _scores(model: Any, test: Floats) -> Floats:
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(test), np.float64)
    margin = np.asarray(model.decision_function(test), np.float64)
    return np.stack([-margin, margin], axis=1) if margin.ndim == 1 else margin


def _one_hot(field: Field, reference: NDArray[Any], values: NDArray[Any], most: int) -> list[Floats]:
    """Flags of the most frequent levels; missing counts as a level."""
    counted = np.bincount(reference, minlength=len(field.levels) + 1)
    frequent = np.argsort(-counted, kind="stable")[: min(most, np.count_nonzero(counted))]
    return [(values == level).astype(np.float64) for level in frequent]


def _numeric(field: Field, reference: NDArray[Any], values: NDArray[Any], most: int) -> list[Floats]:
    """The standardised number, and its missing flag."""
    mean, deviation = line(reference)
    scaled = np.clip((values - mean) / deviation, -WILDEST, WILDEST)
    return [np.nan_to_num(scaled), np.isnan(values).astype(np.float64)]


SCALE = Scale("utility", "score", "higher", 1.0)
FLOOR = "the same model trained on the real training table"
DRAWS = 500
BOOTSTRAP = f"95 % percentile interval, bootstrap over hold-out rows ({DRAWS} draws)"


@dataclass(frozen=True, slots=True)
class Booster:
    """XGBoost's settings."""

    trees: int = 200
    depth: int = 6
    rate: float = 0.1
    objective: str | None = None  # of a regression; None: squared error

    def settings(self, seed: int) -> dict[str, Any]:
        """Arguments of XGBoost's models, but for the objective."""
        size = {"n_estimators": self.trees, "max_depth": self.depth, "learning_rate": self.rate}
        return {**size, "tree_method": "hist", "n_jobs": 1, "random_state": seed}


def downstream(
    train: Coded, holdout: Coded, synthetic: Coded, target: int, rng: np.random.Generator
) -> list[Score | Skipped]:
    """AUC and macro F1 for a categorical target, R² for a numeric one."""
    classify = train.fields[target].categorical
    names = ("downstream_auc", "downstream_f1") if classify else ("downstream_r2",)
    train, holdout, synthetic = (t.take(~t.missing(target)) for t in (train, holdout, synthetic))
    why = unfit(train, holdout, synthetic, target)
    if why:
        return [Skipped(name, why) for name in names]
    seed, tables = int(rng.integers(2**31)), [train, holdout, synthetic]
    x_train, test, x_synthetic = split(codes_matrix(*tables), tables, target)
    y_train, truth, y_synthetic = (t.values[target] for t in tables)
    fit = partial(predict_classes, size=len(train.fields[target].levels)) if classify else predict_numbers
    p, q = side_by_side(
        [
            partial(fit, x, y, test, booster=Booster(), seed=seed)
            for x, y in ((x_synthetic, y_synthetic), (x_train, y_train))
        ]
    )
    return [_auc_score(truth, p, q), _f1_score(truth, p, q, rng)] if classify else [_r2_score(truth, p, q, rng)]


def unfit(train: Coded, holdout: Coded, synthetic: Coded, target: int) -> str | None:
    """Why nothing can be learnt from these rows, all of which have a target; or None."""
    if len(train.fields) < 2:
        return "needs a column beside the target"
    for name, table in (("training", train), ("hold-out", holdout), ("synthetic", synthetic)):
        if len(table) < 2:
            return f"the {name} table has fewer than two rows with a target"
    if len(np.unique(holdout.values[target])) < 2:
        return "the target is constant in the hold-out"
    return None


def split(x: Floats, tables: list[Coded], target: int) -> list[Floats]:
    """The design matrix without the target's column, split into the tables it was made from."""
    return np.split(np.delete(x, target, axis=1), np.cumsum([len(t) for t in tables])[:-1])


def predict_classes(x: Floats, y: Ints, test: Floats, size: int, booster: Booster, seed: int) -> Floats:
    """Class probabilities (h, size) of the test rows; classes that `y` lacks have probability 0."""
    present, codes = np.unique(y, return_inverse=True)
    probability = np.zeros((len(test), size))
    if len(present) == 1:
        probability[:, present[0]] = 1.0
        return probability
    from xgboost import XGBClassifier

    probability[:, present] = XGBClassifier(**booster.settings(seed)).fit(x, codes).predict_proba(test)
    return np.asarray(probability)


def predict_numbers(x: Floats, y: Floats, test: Floats, booster: Booster, seed: int) -> Floats:
    """Predictions (h,) of a numeric target, which is standardised for the fit."""
    from xgboost import XGBRegressor

    centre, scale = y.mean(), y.std()
    if not scale > 0:
        return np.full(len(test), centre)
    model = XGBRegressor(**booster.settings(seed), objective=booster.objective or "reg:squarederror")
    predicted = np.asarray(model.fit(x, (y - centre) / scale).predict(test), np.float64)
    return np.asarray(predicted * scale + centre)


def f1_macro(confusion_kK: NDArray[np.int64], classes: Ints) -> float:
    """Macro F1 over `classes`, from counts of (true class in `classes`, predicted class)."""
    hits = confusion_kK[np.arange(len(classes)), classes]
    both = confusion_kK.sum(axis=1) + confusion_kK.sum(axis=0)[classes]
    return float(np.mean(2 * hits / np.maximum(both, 1)))


def confusion(truth: Ints, predicted: Ints, classes: Ints, size: int) -> NDArray[np.int64]:
    """Counts (k, size) of true class (a row of `classes`) and predicted class."""
    rows = np.searchsorted(classes, truth)
    return np.bincount(rows * size + predicted, minlength=len(classes) * size).reshape(len(classes), size)


def r_squared(truth: Floats, predicted: Floats) -> float:
    """1 - residual over total sum of squares."""
    total = ((truth - truth.mean()) ** 2).sum()
    return float(1 - ((truth - predicted) ** 2).sum() / total)


def _auc(truth: Ints, probability: Floats) -> tuple[float, float]:
    classes = np.unique(truth)
    if len(classes) == 2:
        score = probability[:, classes[1]] - probability[:, classes[0]]
        return figures.macro_auc(truth, score[:, None], classes[1:])
    return figures.macro_auc(truth, probability[:, classes], classes)


def _auc_score(truth: Ints, p: Floats, q: Floats) -> Score:
    area, error = _auc(truth, p)
    count_k = np.unique(truth, return_counts=True)[1]
    ends = figures.auc_interval(area, error, np.minimum(count_k, len(truth) - count_k))
    method = figures.EXACT if area in (0, 1) else figures.DELONG
    text = (
        "How well a model trained on synthetic rows ranks real ones it has never seen; 0.5 is guessing, 1 is perfect."
    )
    floor, on = (_auc(truth, q)[0], FLOOR), Scale("utility", "AUC", "higher", 1.0)
    return on.score("downstream_auc", "Downstream AUC", area, floor, ends, len(truth), text, method)


def _f1_score(truth: Ints, p: Floats, q: Floats, rng: np.random.Generator) -> Score:
    classes, size = np.unique(truth), p.shape[1]
    cells = confusion(truth, p.argmax(axis=1), classes, size)
    real = f1_macro(confusion(truth, q.argmax(axis=1), classes, size), classes)
    draws = rng.multinomial(len(truth), cells.ravel() / len(truth), DRAWS)
    ends = figures.percentiles([f1_macro(draw.reshape(cells.shape), classes) for draw in draws])
    text = (
        "How well a model trained on synthetic rows classifies real ones, all classes counting the same; 1 is perfect."
    )
    value = f1_macro(cells, classes)
    return SCALE.score("downstream_f1", "Downstream F1", value, (real, FLOOR), ends, len(truth), text, BOOTSTRAP)


def _r2_score(truth: Floats, predicted: Floats, reference: Floats, rng: np.random.Generator) -> Score:
    n = len(truth)
    draws = []
    for _ in range(DRAWS):
        rows = rng.integers(n, size=n)
        if np.ptp(truth[rows]) > 0:  # a constant draw has no R²
            draws.append(r_squared(truth[rows], predicted[rows]))
    text = "How much of the target's variation a model trained on synthetic rows predicts in real ones; 1 is perfect."
    value, real = r_squared(truth, predicted), r_squared(truth, reference)
    ends = figures.percentiles(draws)
    return SCALE.score("downstream_r2", "Downstream R²", value, (real, FLOOR), ends, n, text, BOOTSTRAP)
