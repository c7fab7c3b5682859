"""Two columns at a time: pair-trend errors and associations of all pairs, for all jackknife replicates in one pass
over the rows.

Association of a pair: Pearson (both numeric), correlation ratio (mixed), Theil's U (both categorical), 0 wherever a
column is constant. Rows in which a numeric value is missing take no part in Pearson and the correlation ratio;
missing is a level of categorical columns and an eleventh bin of binned numeric ones.

Legend: R replicates, G groups, d columns, C cells of a joint table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from silosynth.evaluation.coding import Coded, Ints, cut, standardised
from silosynth.evaluation.marginals import Dealt, entropy, total_variation
from silosynth.evaluation.resampling import counts, shares, without
from silosynth.evaluation.scores import Floats

BINS = 10
DENSE = 50_000  # joint tables with more cells are counted by their occupied cells only
FLAT = 1e-12  # a variance below this share of the mean square counts as none


@dataclass(frozen=True, slots=True, eq=False)
class Dependence:
    """Per replicate and ordered pair, (R, d, d)."""

    error: Floats  # pair-trend error, 0..1, symmetric, diagonal 0
    real: Floats  # association in the real table; Theil's U(row | column); diagonal 1
    other: Floats  # association in the other table


def dependence(real: Dealt, other: Dealt) -> Dependence:
    """Pair-trend errors and both tables' associations."""
    fields = real.table.fields
    d = len(fields)
    a, b = associations_numeric(real), associations_numeric(other)
    error = np.abs(a - b) / 2
    sizes = [(len(f.levels) if f.categorical else BINS) + 1 for f in fields]
    entropies_real, entropies_other = _entropies(real, sizes), _entropies(other, sizes)
    codes_real, codes_other = _codes(real.table, real.table), _codes(other.table, real.table)
    for i in range(d):
        for j in range(i + 1, d):
            if not (fields[i].categorical or fields[j].categorical):
                continue
            cells, others, size = _joint(codes_real, codes_other, sizes, i, j)
            p = shares(counts(cells, size, real.group, real.groups))
            q = shares(counts(others, size, other.group, other.groups))
            error[:, i, j] = error[:, j, i] = total_variation(p, q)
            if fields[i].categorical and fields[j].categorical:
                for table, h, joint in ((a, entropies_real, p), (b, entropies_other, q)):
                    table[:, i, j], table[:, j, i] = _theils_u(h[i], h[j], joint)
    _add_correlation_ratios(a, real)
    _add_correlation_ratios(b, other)
    for table, diagonal in ((a, 1.0), (b, 1.0), (error, 0.0)):
        table[:, range(d), range(d)] = diagonal
    return Dependence(error, a, b)


def associations_numeric(dealt: Dealt) -> Floats:
    """Pearson's correlation over rows where both values are present (R, d, d); 0 for other pairs and constant
    columns.
    """
    d = len(dealt.table.fields)
    places = [j for j, f in enumerate(dealt.table.fields) if not f.categorical]
    rho = np.zeros((dealt.groups + 1 if dealt.groups > 1 else 1, d, d))
    if places:
        x_nd = np.stack([standardised(dealt.table.values[j]) for j in places], axis=1)
        rho[:, np.array(places)[:, None], places] = _pearson(x_nd, dealt.group, dealt.groups)
    return rho


def _pearson(x_nd: Floats, group: Ints, groups: int) -> Floats:
    present, filled = (~np.isnan(x_nd)).astype(np.float64), np.nan_to_num(x_nd)
    n, s, q, c = [], [], [], []
    for g in range(groups):
        w, x = present[group == g], filled[group == g]
        n.append(w.T @ w)
        s.append(x.T @ w)  # [i, j]: sum of column i over rows where j is present too
        q.append((x * x).T @ w)
        c.append(x.T @ x)
    n_R, s_R, q_R, c_R = (without(np.stack(part)) for part in (n, s, q, c))
    n_R = np.maximum(n_R, 1.0)
    mean, mean_other = s_R / n_R, np.swapaxes(s_R, 1, 2) / n_R
    variance = q_R / n_R - mean**2
    variance[variance <= FLAT * np.maximum(q_R / n_R, np.finfo(float).tiny)] = 0.0
    scale = np.sqrt(variance * np.swapaxes(variance, 1, 2))
    rho = np.divide(c_R / n_R - mean * mean_other, scale, out=np.zeros_like(scale), where=scale > 0)
    return np.asarray(np.clip(rho, -1, 1))


def _codes(table: Coded, real: Coded) -> list[Ints]:
    return [
        values if field.categorical else cut(values, reference, BINS)
        for field, values, reference in zip(table.fields, table.values, real.values, strict=True)
    ]


def _joint(real: list[Ints], other: list[Ints], sizes: list[int], i: int, j: int) -> tuple[Ints, Ints, int]:
    """Cell of every real and every other row in the joint table of i and j, and the number of cells."""
    size = sizes[i] * sizes[j]
    cells, others = real[i] * sizes[j] + real[j], other[i] * sizes[j] + other[j]
    if size <= DENSE:
        return cells, others, size
    occupied, place = np.unique(np.concatenate([cells, others]), return_inverse=True)
    return place[: len(cells)], place[len(cells) :], len(occupied)


def _entropies(dealt: Dealt, sizes: list[int]) -> dict[int, Floats]:
    """Entropy (R,) of every categorical column."""
    return {
        j: entropy(shares(counts(dealt.table.values[j], sizes[j], dealt.group, dealt.groups)))
        for j, field in enumerate(dealt.table.fields)
        if field.categorical
    }


def _theils_u(h_i: Floats, h_j: Floats, joint_RC: Floats) -> tuple[Floats, Floats]:
    """U(i | j) and U(j | i): the share of a column's entropy that the other column explains."""
    mutual = np.clip(h_i + h_j - entropy(joint_RC), 0, None)
    return _ratio(mutual, h_i), _ratio(mutual, h_j)


def _add_correlation_ratios(table: Floats, dealt: Dealt) -> None:
    fields = dealt.table.fields
    for i in (i for i, f in enumerate(fields) if not f.categorical):
        y = standardised(dealt.table.values[i])
        rows = ~np.isnan(y)
        for j in (j for j, f in enumerate(fields) if f.categorical):
            size = len(fields[j].levels) + 1
            ratio = _correlation_ratio(y[rows], dealt.table.values[j][rows], size, dealt.group[rows], dealt.groups)
            table[:, i, j] = table[:, j, i] = ratio


def _correlation_ratio(y: Floats, codes: Ints, size: int, group: Ints, groups: int) -> Floats:
    """Square root of the share of y's variance that lies between the levels."""
    cells = group * size + codes

    def sums(weights: Floats | None) -> Floats:
        return without(np.bincount(cells, weights, groups * size).reshape(groups, size))

    n_RK, s_RK = sums(None), sums(y)
    square = sums(y * y).sum(axis=1)
    n = np.maximum(n_RK.sum(axis=1), 1.0)
    offset = s_RK.sum(axis=1) ** 2 / n
    between = (s_RK**2 / np.maximum(n_RK, 1.0)).sum(axis=1) - offset
    total = square - offset
    total = np.where(total > FLAT * square, total, 0.0)
    return np.sqrt(np.clip(_ratio(between, total), 0, 1))


def _ratio(part: Floats, whole: Floats) -> Floats:
    """part / whole, cut to 0..1; 0 where there is nothing to explain."""
    return np.clip(np.divide(part, whole, out=np.zeros_like(whole), where=whole > 1e-12), 0, 1)
