"""A joint distribution as one array with an axis per attribute: all that a graphical model computes, by definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import optimize

from silosynth.models.graphical import Attributes, MeasuredTable, Numbers


def joint(
    sizes: Sequence[int], terms: Sequence[tuple[Attributes, Numbers]], ends: Sequence[Sequence[int]] = ()
) -> Numbers:
    """The distribution whose logarithm is the sum of these terms, cell by cell."""
    found = np.zeros(tuple(sizes))
    for cell in itertools.product(*map(range, sizes)):
        at = _with_groups(cell, ends)
        found[cell] = math.exp(sum(numbers[tuple(at[one] for one in names)] for names, numbers in terms))
    return found / found.sum()


def _with_groups(cell: Sequence[int], ends: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The levels of a cell, and the group of each, where there are any."""
    return (*cell, *(sum(level >= end for end in of) for level, of in zip(cell, ends, strict=False)))


def marginal(whole: Numbers, attributes: Attributes, ends: Sequence[Sequence[int]] = ()) -> Numbers:
    """The sums over all other attributes, or groups."""
    sizes = (*whole.shape, *map(len, ends))
    found = np.zeros([sizes[one] for one in attributes])
    for cell in np.ndindex(*whole.shape):
        at = _with_groups(cell, ends)
        found[tuple(at[one] for one in attributes)] += whole[cell]
    return found


def conditional(whole: Numbers, weights: Mapping[int, Numbers]) -> tuple[Numbers, float]:
    """The distribution under a condition, and the condition's probability."""
    weighted = whole.copy()
    for cell in np.ndindex(*whole.shape):
        weighted[cell] *= math.prod(weight_L[cell[one]] for one, weight_L in weights.items())
    return weighted / max(weighted.sum(), 1e-300), float(weighted.sum())


def objective(
    whole: Numbers, tables: Sequence[MeasuredTable], rows: float, entropy: float, least: float,
    ends: Sequence[Sequence[int]] = (),
) -> float:  # fmt: skip
    """What fitting minimises: half the squared error by variances, less the entropy, weighted."""
    loss = sum(
        np.sum((rows * marginal(whole, one.attributes, ends) - one.counts) ** 2) / max(least, one.variance) / 2
        for one in tables
    )
    positive = whole[whole > 0]
    return float(loss + entropy * np.sum(positive * np.log(positive)))


def fitted(
    sizes: Sequence[int], tables: Sequence[MeasuredTable], rows: float, entropy: float, least: float,
    possible: Numbers | None = None, ends: Sequence[Sequence[int]] = (),
) -> Numbers:  # fmt: skip
    """The joint distribution with the least objective, found by a general solver over all cells that are possible."""
    shape = tuple(sizes)

    def value(cells: Numbers) -> float:
        return objective(cells.reshape(shape), tables, rows, entropy, least, ends)

    start = np.full(math.prod(shape), 1.0) if possible is None else possible.astype(float).ravel()
    start /= start.sum()
    sums = {"type": "eq", "fun": lambda cells: cells.sum() - 1}
    bounds, options = [(1e-12, 1.0) if one else (0.0, 0.0) for one in start], {"maxiter": 1000, "ftol": 1e-13}
    found = optimize.minimize(value, start, method="SLSQP", bounds=bounds, constraints=[sums], options=options)
    best: Numbers = found.x.reshape(shape)
    return best
