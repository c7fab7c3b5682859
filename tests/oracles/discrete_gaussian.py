"""Discrete Gaussian noise, one draw at a time, as Canonne, Kamath and Steinke (2020) write it; its law and its cost.

https://arxiv.org/abs/2004.00010, algorithm 3.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from tests.oracles.discrete_laplace import Below, draw as draw_laplace, happens_exp


def draw(variance: Fraction, below: Below) -> int:
    """One draw."""
    t = math.isqrt(math.floor(variance)) + 1
    while True:
        y = draw_laplace(1, t, below)
        gamma = (abs(y) - variance / t) ** 2 / (2 * variance)
        if all(happens_exp(Fraction(1), below) for _ in range(math.floor(gamma))) and happens_exp(gamma % 1, below):
            return y


def law(variance: float, k: np.ndarray) -> np.ndarray:
    """The probability of each k."""
    reach = np.arange(-int(15 * math.sqrt(variance)) - 5, int(15 * math.sqrt(variance)) + 6)
    weights: np.ndarray = np.exp(-(k**2) / (2 * variance))
    return weights / np.exp(-(reach**2) / (2 * variance)).sum()


def delta(variance: float, epsilon: float) -> float:
    """Of one count at ``epsilon``, by the definition, term by term."""
    k = np.arange(-int(14 * math.sqrt(variance)) - 5, int(14 * math.sqrt(variance)) + 6)
    return float(np.maximum(0, law(variance, k) - math.exp(epsilon) * law(variance, k + 1)).sum())
