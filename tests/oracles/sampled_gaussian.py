"""The privacy cost of Gaussian noise on sums over Poisson-sampled rows, by formulas without a grid.

- Without sampling: the exact curve of the Gaussian mechanism (Balle and Wang 2018, theorem 8). T releases of noise s
  are one of noise s / sqrt(T).
- With sampling: an upper bound by Rényi divergences of integer orders (Mironov, Talwar and Zhang 2019, section 3.3),
  and their conversion (Canonne, Kamath and Steinke 2020, proposition 12).
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

ORDERS = range(2, 257)


def gaussian_delta(noise: float, epsilon: float) -> float:
    """Delta at ``epsilon``, which may be negative, of one release of noise multiplier ``noise``."""
    return float(norm.cdf(0.5 / noise - epsilon * noise) - math.exp(epsilon) * norm.cdf(-0.5 / noise - epsilon * noise))


def gaussian_epsilon(noise: float, times: int, delta: float) -> float:
    """Epsilon at ``delta`` of ``times`` releases."""
    once = noise / math.sqrt(times)
    return float(brentq(lambda epsilon: gaussian_delta(once, epsilon) - delta, 0, 500))


def renyi_epsilon(noise: float, rate: float, times: int, delta: float) -> float:
    """An upper bound on epsilon at ``delta`` of ``times`` releases over rows sampled with probability ``rate``."""
    return min(_converted(times * _divergence(noise, rate, order), order, delta) for order in ORDERS)


def _divergence(noise: float, rate: float, order: int) -> float:
    terms = [
        gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        + (order - k) * math.log1p(-rate) + k * math.log(rate) + (k * k - k) / (2 * noise**2)
        for k in range(order + 1)
    ]  # fmt: skip
    return float(logsumexp(terms)) / (order - 1)


def _converted(divergence: float, order: int, delta: float) -> float:
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
