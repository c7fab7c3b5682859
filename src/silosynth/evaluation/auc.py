"""Area under the ROC curve with DeLong's variance, as influences of single rows so that macro averages have a
variance too.

Source: E. DeLong, D. DeLong, D. Clarke-Pearson, "Comparing the areas under two or more correlated ROC curves",
Biometrics 44, 1988.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from silosynth.evaluation.scores import Floats

DELONG = "95 % normal interval, DeLong's variance"
EXACT = "95 % interval, from the chance that as many disjoint pairs are all in order"


def auc_with_influence(positive_n: NDArray[np.bool_], score_n: Floats) -> tuple[float, Floats]:
    """The area (ties count one half) and each row's influence; the sum of their squares is DeLong's variance.

    Needs at least one positive and one negative row.
    """
    ranks = rankdata(score_n)
    n1, n0 = int(positive_n.sum()), int((~positive_n).sum())
    above = (ranks[positive_n] - rankdata(score_n[positive_n])) / n0  # share of negatives below each positive
    below = 1 - (ranks[~positive_n] - rankdata(score_n[~positive_n])) / n1
    area = float(above.mean())
    influence = np.empty(len(score_n))
    influence[positive_n] = (above - area) / math.sqrt(n1 * max(n1 - 1, 1))
    influence[~positive_n] = (below - area) / math.sqrt(n0 * max(n0 - 1, 1))
    return area, influence


def macro_auc(truth_n: NDArray[np.int64], scores_nk: Floats, classes: NDArray[np.int64]) -> tuple[float, float]:
    """Mean one-against-rest area over `classes` (columns of `scores_nk` in that order) and its standard error."""
    parts = [auc_with_influence(truth_n == c, scores_nk[:, k]) for k, c in enumerate(classes)]
    influence = np.mean([influence for _, influence in parts], axis=0)
    return float(np.mean([area for area, _ in parts])), float(np.sqrt((influence**2).sum()))


def auc_interval(area: float, error: float, pairs: ArrayLike) -> tuple[float, float]:
    """The normal interval of an area with this standard error; another one where separation is perfect.

    There DeLong's variance is 0: n = min(positives, negatives) = ``pairs`` disjoint pairs are then in order, which has
    probability area^n, so that 0.025^(1/n) is a lower end (mirrored for an area of 0; of a macro average, whose classes
    have ``pairs`` each, the mean of their ends).
    """
    if 0 < area < 1:
        return normal_interval(area, error, 0.0, 1.0)
    end = float(np.mean(0.025 ** (1 / np.asarray(pairs, np.float64))))
    return (end, 1.0) if area >= 1 else (0.0, 1 - end)


def normal_interval(value: float, error: float, least: float, most: float) -> tuple[float, float]:
    """Value ± 1.96 standard errors, cut to the figure's range."""
    return max(least, value - 1.96 * error), min(most, value + 1.96 * error)
