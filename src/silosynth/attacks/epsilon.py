"""From an attack's success to a lower bound on epsilon: what (epsilon, delta) cannot hold, at a confidence level.

Two tables are neighbours if one has one row more, as in `silosynth.privacy.events`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from silosynth.core.errors import ConfigError
from silosynth.evaluation.scores import Floats

CONFIDENCE = 0.95
_MOST = 64.0  # no audit of this size shows more


def of_rates(hits: int, inside: int, false: int, outside: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The bound of a fixed test on independent trainings (Jagielski et al. 2020): 0 where it shows nothing.

    The attack says "in" for ``hits`` of ``inside`` trainings with the record, and for ``false`` of ``outside`` without.
    Under (epsilon, delta), TPR <= exp(epsilon) FPR + delta, and 1 - FPR <= exp(epsilon) (1 - TPR) + delta. The rates
    are taken at the bad ends of Clopper-Pearson intervals; both hold at once with the confidence asked for.

    Raises:
        ConfigError: counts do not fit.
    """
    if not (0 <= hits <= inside and 0 <= false <= outside and inside and outside):
        raise ConfigError("Counts of hits are at most those of trials", (hits, inside, false, outside))
    miss = (1 - confidence) / 4  # four one-sided intervals, of which two are used
    tpr, fpr = _low(hits, inside, miss), _high(false, outside, miss)
    tnr, fnr = _low(outside - false, outside, miss), _high(inside - hits, inside, miss)
    return max(_ratio(tpr, fpr, delta), _ratio(tnr, fnr, delta))


def _ratio(rate: float, error: float, delta: float) -> float:
    return max(0.0, math.log((rate - delta) / error)) if rate > delta else 0.0


def _low(hits: int, n: int, miss: float) -> float:
    return float(stats.beta.ppf(miss, hits, n - hits + 1)) if hits else 0.0


def _high(hits: int, n: int, miss: float) -> float:
    return float(stats.beta.ppf(1 - miss, hits + 1, n - hits)) if hits < n else 1.0


def of_one_run(right: int, guesses: int, canaries: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The bound of one training with many canaries (Steinke, Nasr and Jagielski 2023, theorem 5.2).

    Each of ``canaries`` was in with probability 1/2; the attacker guessed about ``guesses`` of them and was ``right``
    so often. The largest epsilon that the test refuses at this confidence; 0 where it refuses none.

    Raises:
        ConfigError: counts do not fit.
    """
    if not 0 <= right <= guesses <= canaries:
        raise ConfigError("Right guesses are at most all guesses, and these the canaries", (right, guesses, canaries))
    if guesses == 0 or _tail(right, guesses, canaries, 0.0, delta) > 1 - confidence:
        return 0.0
    low, high = 0.0, _MOST
    for _ in range(60):
        middle = (low + high) / 2
        refused = _tail(right, guesses, canaries, middle, delta) <= 1 - confidence
        low, high = (middle, high) if refused else (low, middle)
    return low


def _tail(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """The probability, at most, of so many right guesses under (epsilon, delta)."""
    chance = 1 / (1 + math.exp(-epsilon))
    pure = float(stats.binom.sf(right - 1, guesses, chance))
    if delta == 0 or right == 0:
        return min(1.0, pure)
    i = np.arange(1, right + 1)
    slack = float((np.cumsum(stats.binom.pmf(right - i, guesses, chance)) / i).max())
    return min(1.0, pure + 2 * canaries * delta * slack)


def best_threshold(with_: Floats, without: Floats, delta: float) -> tuple[float, int]:
    """The threshold, and the side (1: "in" above it, -1: below), whose rates would bound epsilon highest.

    For choosing on trainings that are not counted afterwards: a test chosen on those it is counted on proves nothing.
    """
    best = (-1.0, 0.0, 1)
    for at in np.unique(np.concatenate([with_, without])).tolist():
        for side in (1, -1):
            hits, false = (int(_says(scores, at, side).sum()) for scores in (with_, without))
            best = max(best, (of_rates(hits, len(with_), false, len(without), delta), at, side))
    return best[1], best[2]


def counted(with_: Floats, without: Floats, test: tuple[float, int], delta: float) -> float:
    """The bound of that test on these trainings."""
    hits, false = (int(_says(scores, *test).sum()) for scores in (with_, without))
    return of_rates(hits, len(with_), false, len(without), delta)


def _says(scores: Floats, threshold: float, side: int) -> NDArray[np.bool_]:
    return np.asarray(side * scores >= side * threshold)
