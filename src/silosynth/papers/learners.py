"""What six learners make of latent vectors (TabVFL, section V-B): accuracy, F1 and ROC area, averaged over them.

The paper names the learners and no settings: scikit-learn's and XGBoost's own are taken, but for iterations. "F1" is
the mean over classes weighted by their shares, as in its public code; "macro F1" counts all classes the same, as does
the area, one class against the rest, which the public code weights as well. Latents are not scaled.

Shapes: n rows to learn from, h rows to test on, D latents, K classes.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, f1_score

from silosynth.evaluation.coding import Ints
from silosynth.evaluation.intervals import macro_auc
from silosynth.evaluation.scores import Floats
from silosynth.evaluation.utility import FOREST, LOGISTIC, MLP, SVM, TREE, Classifier, judge


def _boosted(seed: int) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=100, tree_method="hist", n_jobs=1, random_state=seed)


LEARNERS = (LOGISTIC, TREE, FOREST, MLP, Classifier("XGBoost", _boosted), SVM)
FIGURES = ("accuracy", "F1", "macro F1", "AUC")


def scores(x_nD: Floats, y_n: Ints, x_hD: Floats, y_h: Ints, size: int, seed: int) -> dict[str, dict[str, float]]:
    """Each learner's figures; labels are numbers of ``size`` classes."""
    found = {}
    for learner in LEARNERS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            judgement = judge(learner, x_nD, y_n, x_hD, size, seed)
        found[learner.name] = figures(y_h, judgement.predicted_h, judgement.scores_hK)
    return found


def means(each: dict[str, dict[str, float]]) -> dict[str, float]:
    """The mean over learners of each figure."""
    return {name: float(np.mean([own[name] for own in each.values()])) for name in FIGURES}


def figures(truth_h: Ints, predicted_h: Ints, scores_hK: Floats) -> dict[str, float]:
    """What was predicted against the truth, over the classes that occur there."""
    classes = np.unique(truth_h)
    weighted, macro = (
        float(f1_score(truth_h, predicted_h, labels=classes, average=average, zero_division=0))
        for average in ("weighted", "macro")
    )
    area = macro_auc(truth_h, scores_hK[:, classes], classes)[0]
    return dict(zip(FIGURES, (float(accuracy_score(truth_h, predicted_h)), weighted, macro, area), strict=True))
