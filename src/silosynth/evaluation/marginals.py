"""One column at a time: how far the law of a column in another table is from its law in the real one.

Every function answers for all jackknife replicates at once. Legend: R replicates, U distinct values of both tables in
rising order, K levels (the last one stands for missing values), d columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import rel_entr, xlogy

from silosynth.evaluation.coding import Coded, Ints, cut
from silosynth.evaluation.resampling import counts, shares
from silosynth.evaluation.scores import Floats

JS_BINS = 20
QUANTILES = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Marginals:
    """Per replicate and column (R, d), all between 0 and 1."""

    shape: Floats  # KS distance (numeric) or total variation distance (categorical)
    ks: Floats  # KS distance, of the level codes where categorical
    js: Floats  # Jensen-Shannon distance (square root, base 2)
    similarity: Floats  # SiloFuse's column similarity


@dataclass(frozen=True, slots=True, eq=False)
class Dealt:
    """A table whose rows are dealt into groups for the jackknife."""

    table: Coded
    group: Ints
    groups: int


def marginals(real: Dealt, other: Dealt) -> Marginals:
    """All four distances of all columns."""
    columns = [
        _categorical(real, other, j) if field.categorical else _numeric(real, other, j)
        for j, field in enumerate(real.table.fields)
    ]
    shape, ks, js, similarity = (np.stack(rows, axis=1) for rows in zip(*columns, strict=True))
    return Marginals(shape, ks, js, similarity)


def ks_distance(p_RU: Floats, q_RU: Floats) -> Floats:
    """Largest difference of the two distribution functions over values in rising order."""
    return np.asarray(np.abs(np.cumsum(p_RU - q_RU, axis=1)).max(axis=1))


def total_variation(p_RK: Floats, q_RK: Floats) -> Floats:
    """Half the summed difference of the shares."""
    return np.asarray(np.abs(p_RK - q_RK).sum(axis=1) / 2)


def jensen_shannon(p_RK: Floats, q_RK: Floats) -> Floats:
    """Square root of the divergence with logarithms to base 2, as SciPy's `jensenshannon`."""
    mean = (p_RK + q_RK) / 2
    divergence = (rel_entr(p_RK, mean) + rel_entr(q_RK, mean)).sum(axis=1) / 2 / np.log(2)
    return np.asarray(np.sqrt(np.clip(divergence, 0, 1)))


def entropy(p_RK: Floats) -> Floats:
    """Shannon entropy in nats."""
    return np.asarray(-xlogy(p_RK, p_RK).sum(axis=-1))


def coupled_theils_u(p_RK: Floats, q_RK: Floats) -> Floats:
    """Theil's U(real | other) when both columns are sorted and laid side by side; 1: the shares are equal.

    Laid side by side, a pair of levels meets on one stretch between neighbouring steps of the two distribution
    functions, so the joint entropy is that of the stretches. A constant real column scores 1 if the other has the
    same constant, and otherwise 0.
    """
    steps = np.sort(np.concatenate([np.cumsum(p_RK, axis=1), np.cumsum(q_RK, axis=1)], axis=1), axis=1)
    stretches = np.diff(np.clip(steps, 0, 1), axis=1, prepend=0.0)
    h_real, h_other = entropy(p_RK), entropy(q_RK)
    shared = np.clip(h_real + h_other - entropy(np.where(stretches > 1e-12, stretches, 0.0)), 0, None)
    same = (np.abs(p_RK - q_RK).max(axis=1) < 1e-12).astype(np.float64)
    return np.where(h_real > 1e-12, np.clip(shared / np.maximum(h_real, 1e-12), 0, 1), same)


def quantile_correlation(values_U: Floats, p_RU: Floats, q_RU: Floats) -> Floats:
    """Pearson correlation of the two quantile functions at 1000 midpoints, of present values.

    If a column is constant: 1 if the other one equals it everywhere, else 0. The same if a column has no present value.
    """
    return np.array([_quantile_correlation(values_U, p, q) for p, q in zip(p_RU, q_RU, strict=True)])


def _quantile_correlation(values_U: Floats, p_U: Floats, q_U: Floats) -> float:
    if p_U.sum() <= 0 or q_U.sum() <= 0:
        return float(p_U.sum() <= 0 and q_U.sum() <= 0)
    a, b = _quantiles(values_U, p_U), _quantiles(values_U, q_U)
    if a[0] == a[-1] or b[0] == b[-1]:
        return float(np.array_equal(a, b))
    return float(np.clip(np.corrcoef(a, b)[0, 1], 0, 1))


def _quantiles(values_U: Floats, p_U: Floats) -> Floats:
    cumulated = np.cumsum(p_U) / p_U.sum()
    at = (np.arange(QUANTILES) + 0.5) / QUANTILES - 1e-9  # rounding must not decide which side of a step is taken
    return values_U[np.minimum(np.searchsorted(cumulated, at), len(values_U) - 1)]


def _numeric(real: Dealt, other: Dealt, j: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Missing values are an atom at minus infinity: the KS distance is the exact one of that law."""
    x, y = real.table.values[j], other.table.values[j]
    values, place = np.unique(np.nan_to_num(np.concatenate([x, y]), nan=-np.inf), return_inverse=True)
    p, q = _shares(real, place[: len(x)], len(values)), _shares(other, place[len(x) :], len(values))
    ks = ks_distance(p, q)
    first = int(values[0] == -np.inf)
    similarity = quantile_correlation(values[first:], p[:, first:], q[:, first:])
    p_bins, q_bins = (_shares(t, cut(v, x, JS_BINS), JS_BINS + 1) for t, v in ((real, x), (other, y)))
    return ks, ks, jensen_shannon(p_bins, q_bins), similarity


def _categorical(real: Dealt, other: Dealt, j: int) -> tuple[Floats, Floats, Floats, Floats]:
    size = len(real.table.fields[j].levels) + 1
    p, q = _shares(real, real.table.values[j], size), _shares(other, other.table.values[j], size)
    return total_variation(p, q), ks_distance(p, q), jensen_shannon(p, q), coupled_theils_u(p, q)


def _shares(dealt: Dealt, cells: Ints, size: int) -> Floats:
    return shares(counts(cells, size, dealt.group, dealt.groups))
