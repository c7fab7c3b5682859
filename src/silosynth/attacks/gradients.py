"""An attack by a silo of VT-GAN: it reads others' columns off the gradients that it is sent for real rows.

The gradient of the critic in a silo's features depends on the features of all silos. The attacker is granted the
others' columns of half of the rows, and learns a classifier from its own columns and the gradient; what its own columns
tell by themselves is the chance that the finding stands beside.

Shapes: N rows, G rows with gradients, W features of the silo, C columns with levels of another one.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from silosynth.attacks.guesses import Bools, Finding, Ints, balanced, nothing
from silosynth.attacks.listening import Overheard, SiloEar, levels_of
from silosynth.evaluation.auc import normal_interval
from silosynth.evaluation.scores import Floats

MEANING = (
    "of others' cells so many are read off gradients and own columns (levels weigh alike; chance: off these alone)"
)
PAIRS = 2000  # rows that a classifier learns from, at most


def levels_by_gradients(heard: Overheard, rng: np.random.Generator) -> Finding:
    """Mean over pairs of silos of the share of cells that are read right."""
    granted_N = rng.permutation(heard.rows) < heard.rows // 2
    values, floors, errors, trials = [], [], [], 0
    for name, ear in heard.ears.items():
        for other, silo in heard.silos.items():
            truth_NC, widths = levels_of(silo)
            if other == name or not len(widths) or not ear.gradients:
                continue
            read = _read(ear, truth_NC, granted_N)
            if read is None:
                continue
            (by_both, influence), (by_own, _), cells = read
            values.append(by_both)
            floors.append(by_own)
            errors.append(float((influence**2).sum()))
            trials += cells
    if not values:
        return nothing("silo", "gradients, levels", MEANING)
    low, high = normal_interval(float(np.mean(values)), float(np.sqrt(sum(errors))) / len(values), 0.0, 1.0)
    value, chance = float(np.mean(values)), float(np.mean(floors))
    return Finding("silo", "gradients, levels", value, low, high, chance, None, None, trials, MEANING)


Scored = tuple[float, Floats]


def _read(ear: SiloEar, truth_NC: Ints, granted_N: Bools) -> tuple[Scored, Scored, int] | None:
    """Scores with gradients and without, on rows that were not granted, and how many cells that is."""
    row_G, gradient_GW = _heard_of(ear)
    silo, granted_G = ear.silo, granted_N[row_G]
    own_GX = silo.shape.vectors(silo.levels.cpu(), silo.scores.cpu()).numpy()[row_G]
    if not granted_G.any() or granted_G.all():
        return None
    truth_GC = truth_NC[row_G]
    guesses = [_guess(x, truth_GC, granted_G) for x in (np.hstack([own_GX, gradient_GW]), own_GX)]
    truth = truth_GC[~granted_G]
    with_gradients, without = (balanced(guess == truth, truth) for guess in guesses)
    return with_gradients, without, truth.size


def _heard_of(ear: SiloEar) -> tuple[Ints, Floats]:
    """Rows (G,), and the mean direction of what was heard of each."""
    rows, gradients = (torch.cat(parts).numpy() for parts in zip(*ear.gradients.values(), strict=True))
    length = np.linalg.norm(gradients, axis=1, keepdims=True)
    row_G, place, times_G = np.unique(rows, return_inverse=True, return_counts=True)
    sum_GW = np.zeros((len(row_G), gradients.shape[1]))
    np.add.at(sum_GW, place, gradients / np.where(length > 0, length, 1))
    return row_G, sum_GW / times_G[:, None]


def _guess(x_GX: Floats, truth_GC: Ints, granted_G: Bools) -> Ints:
    """Levels of the rows that were not granted, by a classifier per column."""
    known = np.flatnonzero(granted_G)[:PAIRS]
    columns = []
    for level_G in truth_GC.T:
        if len(np.unique(level_G[known])) < 2:
            columns.append(np.full(int((~granted_G).sum()), level_G[known[0]]))
            continue
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=100, class_weight="balanced"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a good guess is wanted, not a last digit
            warnings.filterwarnings("ignore", "The number of unique classes")  # names have as many levels as rows
            columns.append(model.fit(x_GX[known], level_G[known]).predict(x_GX[~granted_G]))
    return np.stack(columns, axis=1)
