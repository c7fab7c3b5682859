"""Normal-quantile map of a continuous variable: value ⇄ standard normal score.

The map is piecewise linear through group means of the sorted training values, never through the values themselves, so
that decoding cannot return a value because one row had it. Values on a grid (whole numbers, k decimals) are spread
uniformly over their grid cell before ranking, and decoded values are rounded back to the grid by the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtr, ndtri

from silosynth.core.messages import Struct

MOST_KNOTS = 1000
_TAIL = 20  # groups of the least size at either end
SCORE_LIMIT = 4.0  # |score| beyond this is not resolved: 3 rows in 100 000


@dataclass(frozen=True, slots=True)
class Quantile(Struct):
    """A monotone map between values and normal scores.

    Attributes:
        values: (k,) increasing float64, means of groups of neighbouring training values, and the two range ends.
        ranks: (k,) float64 in [0, 1], the share of rows below each of them.
        step: width of the grid cell over which values are spread when they are encoded; 0 for none.
    """

    values: torch.Tensor
    ranks: torch.Tensor
    step: float

    def scores(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Normal scores (n,) of values (n,); random within a grid cell."""
        spread = values + _spread(len(values), self.step, rng)
        rank = np.interp(spread, self.values.numpy(), self.ranks.numpy())
        scores: np.ndarray = np.clip(ndtri(rank), -SCORE_LIMIT, SCORE_LIMIT)
        return scores

    def decode(self, scores: np.ndarray) -> np.ndarray:
        """Values (n,) of normal scores (n,), not yet rounded to a grid."""
        values: np.ndarray = np.interp(ndtr(scores.astype(np.float64)), self.ranks.numpy(), self.values.numpy())
        return values


def fit_quantile(
    values: np.ndarray, step: float, min_group: int, low: float | None, high: float | None, rng: np.random.Generator
) -> Quantile:
    """Fit the map to ``values`` (n,), n >= 1.

    Each knot is the mean of at least ``min_group`` rows (all rows, if there are fewer); groups are smallest in the
    tails. The ends are ``low`` and ``high`` where declared, otherwise the outermost knots: no single row shows.
    """
    spread = np.sort(values + _spread(len(values), step, rng))
    sizes = _group_sizes(len(spread), max(1, min_group))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    knots = np.add.reduceat(spread, starts) / sizes
    ranks = (starts + sizes / 2) / len(spread)
    first = knots[0] if low is None else min(low, knots[0])
    last = knots[-1] if high is None else max(high, knots[-1])
    xs, us = np.concatenate([[first], knots, [last]]), np.concatenate([[0.0], ranks, [1.0]])
    return Quantile(torch.from_numpy(np.maximum.accumulate(xs)), torch.from_numpy(us), float(step))


def _group_sizes(n: int, least: int) -> np.ndarray:
    """Sizes of neighbouring groups: ``least`` in the tails, larger in the middle, all rows in one if there are few."""
    tail = min(_TAIL, n // (4 * least))
    middle = n - 2 * tail * least
    count = max(1, min(MOST_KNOTS, middle // least))
    sizes = np.full(count, middle // count)
    sizes[: middle % count] += 1
    ends = np.full(tail, least)
    return np.concatenate([ends, sizes, ends]).astype(np.int64)


def _spread(n: int, step: float, rng: np.random.Generator) -> np.ndarray:
    if step == 0 or not math.isfinite(step):
        return np.zeros(n)
    return rng.uniform(-step / 2, step / 2, n)
