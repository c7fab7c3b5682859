"""What an attack has found: a figure with its interval, beside what guessing would give.

Shapes: N rows, C columns; n trials.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from statsmodels.stats.proportion import proportion_confint

from silosynth.evaluation.auc import normal_interval
from silosynth.evaluation.scores import Floats

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
PERMUTATIONS = 200


@dataclass(frozen=True)
class Finding:
    """One attack's score.

    Attributes:
        attacker: "coordinator" or "silo".
        attack: its short name.
        value: a share, or an area under the ROC curve; None where the attacker was given nothing to attack with.
        low, high: 95 % interval of the value; None where it has none.
        chance: what guessing gives; None where there is nothing to guess.
        chance_low, chance_high: between these lie 95 % of guesses, where guessing was tried.
        trials: what the value is a share of; of an area, the rows.
        meaning: one clause.
    """

    attacker: str
    attack: str
    value: float | None
    low: float | None
    high: float | None
    chance: float | None
    chance_low: float | None
    chance_high: float | None
    trials: int
    meaning: str

    @property
    def at_chance(self) -> bool | None:
        """Whether the value is no more than guessing: within guesses' range, or not surely above their mean."""
        if self.value is None or self.chance is None:
            return None
        return self.value <= self.chance_high if self.chance_high is not None else (self.low or 0.0) <= self.chance


def nothing(attacker: str, attack: str, meaning: str) -> Finding:
    """The finding of an attacker who has nothing to attack with."""
    return Finding(attacker, attack, None, None, None, None, None, None, 0, meaning)


def share(attacker: str, attack: str, hits: int, trials: int, chance: float | None, meaning: str) -> Finding:
    """A share of trials, with Wilson's interval, which takes them for independent."""
    if not trials:
        return nothing(attacker, attack, meaning)
    low, high = (float(end) for end in proportion_confint(hits, trials, method="wilson"))
    return Finding(attacker, attack, hits / trials, low, high, chance, None, None, trials, meaning)


def against_permuted(
    attack: str, guess_NC: Ints, truth_NC: Ints, known_NC: Bools, rng: np.random.Generator, meaning: str
) -> Finding:
    """Share of known cells that are guessed right; chance: the same guesses for other rows of the same table."""
    trials = int(known_NC.sum())
    if not trials:
        return nothing("coordinator", attack, meaning)

    def score(rows: Ints) -> float:
        return float((known_NC & (guess_NC == truth_NC[rows])).sum() / trials)

    right_N = (known_NC & (guess_NC == truth_NC)).sum(1)
    value = float(right_N.sum() / trials)
    error = float(np.sqrt(((right_N - value * known_NC.sum(1)) ** 2).sum())) / trials  # rows are independent
    by_chance = [score(rng.permutation(len(truth_NC))) for _ in range(PERMUTATIONS)]
    least, most = (float(end) for end in np.quantile(by_chance, [0.025, 0.975]))
    low, high = normal_interval(value, error, 0.0, 1.0)
    mean = float(np.mean(by_chance))
    return Finding("coordinator", attack, value, low, high, mean, least, most, trials, meaning)


def balanced(right_NC: Bools, truth_NC: Ints) -> tuple[float, Floats]:
    """Mean over columns of the mean over levels of the share guessed right; and influences (N,) of rows.

    The sum of the influences' squares is the variance, rows being independent.
    """
    influence_N = np.zeros(len(truth_NC))
    means = []
    for c in range(truth_NC.shape[1]):
        _, level_N, count = np.unique(truth_NC[:, c], return_inverse=True, return_counts=True)
        recall = np.bincount(level_N, right_NC[:, c]) / count
        influence_N += (right_NC[:, c] - recall[level_N]) / (count[level_N] * len(count))
        means.append(float(recall.mean()))
    return float(np.mean(means)), influence_N / truth_NC.shape[1]
