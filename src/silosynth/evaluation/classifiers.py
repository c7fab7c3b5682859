"""scikit-learn classifiers that papers train on real and on synthetic rows: settings, features, and what they say.

Every classifier sees the same features, because three of the five are linear or a network: one-hot levels (the most
frequent of the real training rows), and numbers standardised by the real training rows and cut at `WILDEST` deviations,
with 0 and a flag where a value is missing. A class that the training rows lack is never predicted and ranks all rows
alike (area 0.5); training rows of a single class give a constant prediction. All settings that no paper names are
scikit-learn's defaults.

Legend: n training rows, h hold-out rows, F features, K classes (the levels of the target).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from silosynth.evaluation.coding import Coded, Field, Ints
from silosynth.evaluation.scores import Floats
from silosynth.evaluation.two_sample import ONE_HOT

WILDEST = 20.0  # deviations; one wild synthetic value must not decide a linear model


@dataclass(frozen=True, slots=True)
class Classifier:
    """A classifier by name; `limit` is how many iterations it may take, None where it does not iterate."""

    name: str
    make: Callable[[int], Any]  # seed -> an estimator that has not been fitted
    limit: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What a fitted classifier says about the hold-out rows."""

    scores_hK: Floats  # larger: more likely of that class; minus infinity where the class was not in training
    converged: bool

    @property
    def predicted_h(self) -> Ints:
        """The class of the largest score."""
        return np.asarray(self.scores_hK.argmax(axis=1), np.int64)


TREE = Classifier("decision tree", lambda seed: DecisionTreeClassifier(random_state=seed))
SVM = Classifier("linear SVM", lambda seed: LinearSVC(dual=False, max_iter=1000, random_state=seed), 1000)
FOREST = Classifier("random forest", lambda seed: RandomForestClassifier(n_estimators=100, random_state=seed))
LOGISTIC = Classifier("logistic regression", lambda seed: LogisticRegression(max_iter=500, random_state=seed), 500)
MLP = Classifier("MLP", lambda seed: MLPClassifier((100,), max_iter=200, random_state=seed), 200)

VTGAN = (TREE, SVM, FOREST, LOGISTIC, MLP)  # VT-GAN paper, section 4.2.1
GDTS = (TREE, FOREST, LOGISTIC, MLP)  # GDTS paper, section II-D: the same without the SVM


def features(reference: Coded, table: Coded, target: int) -> Floats:
    """(n, F): all columns of `table` but the target, with levels and scales of the `reference` rows."""
    return design(reference, table, target)[0]


def design(reference: Coded, table: Coded, target: int) -> tuple[Floats, Ints]:
    """`features`, and which of the table's columns each of the F comes from."""
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

    Convergence is read off the iterations taken; scikit-learn's own warning about it is for the caller to silence.
    """
    present, codes = np.unique(y_n, return_inverse=True)
    scores = np.full((len(test_hF), size), -np.inf)
    if len(present) == 1:
        scores[:, present[0]] = 0.0
        return Judgement(scores, True)
    model = classifier.make(seed).fit(x_nF, codes)
    scores[:, present] = _scores(model, test_hF)
    taken = np.max(getattr(model, "n_iter_", 0))
    return Judgement(scores, classifier.limit is None or bool(taken < classifier.limit))


def _scores(model: Any, test: Floats) -> Floats:
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(test), np.float64)
    margin = np.asarray(model.decision_function(test), np.float64)
    return np.stack([-margin, margin], axis=1) if margin.ndim == 1 else margin


def _one_hot(field: Field, reference: NDArray[Any], values: NDArray[Any], most: int) -> list[Floats]:
    """Flags of the most frequent levels; missing is one of them."""
    counted = np.bincount(reference, minlength=len(field.levels) + 1)
    frequent = np.argsort(-counted, kind="stable")[: min(most, np.count_nonzero(counted))]
    return [(values == level).astype(np.float64) for level in frequent]


def _numeric(field: Field, reference: NDArray[Any], values: NDArray[Any], most: int) -> list[Floats]:
    """The standardised number, and a flag where it is missing."""
    present = reference[~np.isnan(reference)]
    centre, deviation = (present.mean(), present.std()) if len(present) else (0.0, 0.0)
    scaled = np.clip((values - centre) / (deviation if deviation > 0 else 1.0), -WILDEST, WILDEST)
    return [np.nan_to_num(scaled), np.isnan(values).astype(np.float64)]
