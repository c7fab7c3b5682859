"""Intervals without distribution theory: the delete-a-group jackknife.

The rows of each table are dealt at random into G groups. Replicate 0 uses all rows, replicate g = 1..G leaves group g
out of both tables. Counts and sums are additive over groups, so all replicates cost one pass over the rows. The
standard error follows J. Shao and D. Tu, "The Jackknife and Bootstrap", 1995, section 2.3: deleting a tenth of the
rows keeps it valid for figures that are not smooth.

Legend: R = G + 1 replicates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from silosynth.evaluation.coding import Ints
from silosynth.evaluation.scores import Floats

GROUPS = 10
JACKKNIFE = f"95 % t interval, delete-a-group jackknife over {GROUPS} random groups of rows"
TOO_FEW = "no interval: a jackknife needs at least two rows in every table"


def deal(n: int, groups: int, rng: np.random.Generator) -> Ints:
    """A random group 0..groups-1 for each of n rows, sizes as equal as possible."""
    return np.asarray(rng.permutation(np.arange(n) % groups), np.int64)


def groups_for(*sizes: int) -> int:
    """How many groups such tables allow; below 2 no interval can be had."""
    return min(GROUPS, *sizes)


def without(per_group: NDArray[Any]) -> Floats:
    """Sums per group (G, ...) -> replicates (R, ...): the total, then the total without each group."""
    total = per_group.sum(axis=0, keepdims=True)
    if len(per_group) < 2:
        return np.asarray(total, np.float64)
    return np.concatenate([total, total - per_group]).astype(np.float64)


def counts(cells: Ints, size: int, group: Ints, groups: int) -> Floats:
    """Rows per cell for every replicate: (R, size)."""
    flat = np.bincount(group * size + cells, minlength=groups * size)
    return without(flat.reshape(groups, size))


def shares(counted: Floats) -> Floats:
    """Counts (R, cells) -> shares of each replicate; a replicate without rows has shares of 0."""
    return np.asarray(counted / np.maximum(counted.sum(axis=1, keepdims=True), 1.0))


def standard_error(replicates: Floats) -> float | None:
    """Jackknife standard error of replicate 0; None where there is only that one."""
    left_out = replicates[1:]
    groups = len(left_out)
    if groups < 2:
        return None
    spread = left_out - left_out.mean()
    return float(np.sqrt((groups - 1) / groups * (spread**2).sum()))


def interval(
    value: float, error: float | None, groups: int, least: float, most: float
) -> tuple[float | None, float | None]:
    """Value ± t · standard error, cut to the figure's range."""
    if error is None:
        return None, None
    reach = float(stats.t.ppf(0.975, groups - 1)) * error
    return max(least, value - reach), min(most, value + reach)


def jackknife(replicates: Floats, least: float, most: float) -> tuple[float, float | None, float | None, str]:
    """Value, low, high and the method's sentence of replicates (R,)."""
    value = float(replicates[0])
    low, high = interval(value, standard_error(replicates), len(replicates) - 1, least, most)
    return value, low, high, JACKKNIFE if low is not None else TOO_FEW
