"""Fidelity: how far columns and pairs of columns are from the real ones, and what plots of them need.

**Scores** (design notes, "Evaluation the papers use"), all in %. Shape error: mean over columns of the
Kolmogorov-Smirnov distance (numeric; missing values are an atom at minus infinity) or the total variation distance
(categorical; missing values are a level). Trend error: mean over pairs of |rho_real - rho_synthetic| / 2 (both numeric;
Pearson over rows where both are present, 0 where a column is constant) or of the total variation distance of the joint
table (numeric columns cut into 10 equal-width bins of the real range, outside values in the end bins, missing in a bin
of its own). The trend error is split into within-silo and across-silo pairs.

**Associations** of pairs: Pearson (both numeric), correlation ratio (mixed), Theil's U (both categorical), 0 wherever a
column is constant. Rows in which a numeric value is missing take no part in Pearson and the correlation ratio.

**Floor**: the same figure between two disjoint real samples of a and b rows, times sqrt((1/n + 1/m) / (1/a + 1/b)) for
a real table of n and a synthetic one of m rows, since sampling errors of shares fall with the root of the sizes.

All jackknife replicates are computed in one pass over the rows.

Legend: R replicates, G groups, d columns, U distinct values of both tables in rising order, K levels (the last one
stands for missing values), C cells of a joint table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import rel_entr, xlogy

from silosynth.evaluation import scores as figures
from silosynth.evaluation.coding import Coded, Field, cut, standardised
from silosynth.evaluation.scores import ColumnScore, Floats, Ints, Least, Pairs, Scale, Score, Skipped

JS_BINS = 20
QUANTILES = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Marginals:
    """Per replicate and column (R, d), all between 0 and 1."""

    shape: Floats  # KS distance (numeric) or total variation distance (categorical)
    ks: Floats  # KS distance, on level codes where categorical
    js: Floats  # Jensen-Shannon distance (square root, base 2)
    similarity: Floats  # SiloFuse's column similarity


@dataclass(frozen=True, slots=True, eq=False)
class Dealt:
    """A table with its rows dealt into groups for the jackknife."""

    table: Coded
    group: Ints
    groups: int


def marginals(real: Dealt, other: Dealt) -> Marginals:
    """All four measures of all columns."""
    columns = [
        _categorical_column(real, other, j) if field.categorical else _numeric_column(real, other, j)
        for j, field in enumerate(real.table.fields)
    ]
    shape, ks, js, similarity = (np.stack(rows, axis=1) for rows in zip(*columns, strict=True))
    return Marginals(shape, ks, js, similarity)


def ks_distance(p_RU: Floats, q_RU: Floats) -> Floats:
    """Largest difference of two distribution functions over values in rising order."""
    return np.asarray(np.abs(np.cumsum(p_RU - q_RU, axis=1)).max(axis=1))


def total_variation(p_RK: Floats, q_RK: Floats) -> Floats:
    """Half the sum of absolute differences of shares."""
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
    """Theil's U(real | other) of both columns, sorted and laid side by side; 1 where shares are equal.

    Side by side, a pair of levels occupies one stretch between neighbouring steps of the two distribution functions,
    so the joint entropy is that of the stretches. A constant real column scores 1 if the other has the same constant,
    and otherwise 0.
    """
    steps = np.sort(np.concatenate([np.cumsum(p_RK, axis=1), np.cumsum(q_RK, axis=1)], axis=1), axis=1)
    stretches = np.diff(np.clip(steps, 0, 1), axis=1, prepend=0.0)
    h_real, h_other = entropy(p_RK), entropy(q_RK)
    shared = np.clip(h_real + h_other - entropy(np.where(stretches > 1e-12, stretches, 0.0)), 0, None)
    same = (np.abs(p_RK - q_RK).max(axis=1) < 1e-12).astype(np.float64)
    return np.where(h_real > 1e-12, np.clip(shared / np.maximum(h_real, 1e-12), 0, 1), same)


def quantile_correlation(values_U: Floats, p_RU: Floats, q_RU: Floats) -> Floats:
    """Pearson correlation of the two quantile functions at 1000 midpoints, over present values.

    If a column is constant, or has no present value: 1 if the other one equals it everywhere, else 0.
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
    # The offset keeps rounding from deciding on which side of a step a midpoint lies.
    at = (np.arange(QUANTILES) + 0.5) / QUANTILES - 1e-9
    return values_U[np.minimum(np.searchsorted(cumulated, at), len(values_U) - 1)]


def _numeric_column(real: Dealt, other: Dealt, j: int) -> tuple[Floats, Floats, Floats, Floats]:
    """The measures of a numeric column; missing values are an atom at minus infinity."""
    x, y = real.table.values[j], other.table.values[j]
    values, place = np.unique(np.nan_to_num(np.concatenate([x, y]), nan=-np.inf), return_inverse=True)
    p, q = _shares(real, place[: len(x)], len(values)), _shares(other, place[len(x) :], len(values))
    ks = ks_distance(p, q)
    first = int(values[0] == -np.inf)
    similarity = quantile_correlation(values[first:], p[:, first:], q[:, first:])
    p_bins, q_bins = (_shares(t, cut(v, x, JS_BINS), JS_BINS + 1) for t, v in ((real, x), (other, y)))
    return ks, ks, jensen_shannon(p_bins, q_bins), similarity


def _categorical_column(real: Dealt, other: Dealt, j: int) -> tuple[Floats, Floats, Floats, Floats]:
    size = len(real.table.fields[j].levels) + 1
    p, q = _shares(real, real.table.values[j], size), _shares(other, other.table.values[j], size)
    return total_variation(p, q), ks_distance(p, q), jensen_shannon(p, q), coupled_theils_u(p, q)


def _shares(dealt: Dealt, cells: Ints, size: int) -> Floats:
    return figures.shares(figures.counts(cells, size, dealt.group, dealt.groups))


PAIR_BINS = 10
DENSE = 50_000  # of larger joint tables, only occupied cells are counted
FLAT = 1e-12  # variances below this share of the mean square count as 0


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
    sizes = [(len(f.levels) if f.categorical else PAIR_BINS) + 1 for f in fields]
    entropies_real, entropies_other = _entropies(real, sizes), _entropies(other, sizes)
    codes_real, codes_other = _codes(real.table, real.table), _codes(other.table, real.table)
    for i in range(d):
        for j in range(i + 1, d):
            if not (fields[i].categorical or fields[j].categorical):
                continue
            cells, others, size = _joint(codes_real, codes_other, sizes, i, j)
            p = figures.shares(figures.counts(cells, size, real.group, real.groups))
            q = figures.shares(figures.counts(others, size, other.group, other.groups))
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
    n_R, s_R, q_R, c_R = (figures.without(np.stack(part)) for part in (n, s, q, c))
    n_R = np.maximum(n_R, 1.0)
    mean, mean_other = s_R / n_R, np.swapaxes(s_R, 1, 2) / n_R
    variance = q_R / n_R - mean**2
    variance[variance <= FLAT * np.maximum(q_R / n_R, np.finfo(float).tiny)] = 0.0
    scale = np.sqrt(variance * np.swapaxes(variance, 1, 2))
    rho = np.divide(c_R / n_R - mean * mean_other, scale, out=np.zeros_like(scale), where=scale > 0)
    return np.asarray(np.clip(rho, -1, 1))


def _codes(table: Coded, real: Coded) -> list[Ints]:
    return [
        values if field.categorical else cut(values, reference, PAIR_BINS)
        for field, values, reference in zip(table.fields, table.values, real.values, strict=True)
    ]


def _joint(real: list[Ints], other: list[Ints], sizes: list[int], i: int, j: int) -> tuple[Ints, Ints, int]:
    """Cells (n,) of real and of other rows in the joint table of columns i and j, and the number of cells."""
    size = sizes[i] * sizes[j]
    cells, others = real[i] * sizes[j] + real[j], other[i] * sizes[j] + other[j]
    if size <= DENSE:
        return cells, others, size
    occupied, place = np.unique(np.concatenate([cells, others]), return_inverse=True)
    return place[: len(cells)], place[len(cells) :], len(occupied)


def _entropies(dealt: Dealt, sizes: list[int]) -> dict[int, Floats]:
    """Entropy (R,) of every categorical column."""
    return {
        j: entropy(figures.shares(figures.counts(dealt.table.values[j], sizes[j], dealt.group, dealt.groups)))
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
    """(R,) square root of the share of y's variance that lies between levels."""
    cells = group * size + codes

    def sums(weights: Floats | None) -> Floats:
        return figures.without(np.bincount(cells, weights, groups * size).reshape(groups, size))

    n_RK, s_RK = sums(None), sums(y)
    square = sums(y * y).sum(axis=1)
    n = np.maximum(n_RK.sum(axis=1), 1.0)
    offset = s_RK.sum(axis=1) ** 2 / n
    between = (s_RK**2 / np.maximum(n_RK, 1.0)).sum(axis=1) - offset
    total = square - offset
    total = np.where(total > FLAT * square, total, 0.0)
    return np.sqrt(np.clip(_ratio(between, total), 0, 1))


def _ratio(part: Floats, total: Floats) -> Floats:
    """part / total, clipped to 0..1; 0 where there is nothing to explain."""
    return np.clip(np.divide(part, total, out=np.zeros_like(total), where=total > 1e-12), 0, 1)


ONE_SILO, FEW = "no silos were given, or only one", "no silo holds two columns"


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two tables compared column by column and pair by pair, with jackknife replicates."""

    marginals: Marginals
    dependence: Dependence
    n: int  # rows of the real table
    m: int  # rows of the other one


@dataclass(frozen=True, slots=True, eq=False)
class Floor:
    """Two disjoint real samples compared, and how they were made."""

    comparison: Comparison
    scale: float  # factor from the sizes of the two real samples to those of training and synthetic table
    note: str


def compare(real: Coded, other: Coded, rng: np.random.Generator, replicates: bool = True) -> Comparison:
    """Compare two tables; without replicates (for floors) there is no interval, at a tenth of the memory."""
    groups = figures.groups_for(len(real), len(other)) if replicates else 1
    a, b = (Dealt(t, figures.deal(len(t), groups, rng), groups) for t in (real, other))
    return Comparison(marginals(a, b), dependence(a, b), len(real), len(other))


def size_scale(n: float, m: float, a: float, b: float) -> float:
    """Factor that scales an error between samples of a and b rows to samples of n and m rows."""
    return math.sqrt((1 / n + 1 / m) / (1 / a + 1 / b))


def column_shape(compared: Comparison, floor: Floor | None) -> list[Score | Skipped]:
    """The column-shape error."""
    errors = 100 * compared.marginals.shape.mean(axis=1)
    least = None if floor is None else 100 * float(floor.comparison.marginals.shape[0].mean())
    text = "How far the distribution of a single column is off, averaged over the columns; 0 % is a perfect match."
    return [distance(PERCENT, "column_shape_error", "Column-shape error", text, errors, least, floor, compared)]


def pair_trend(compared: Comparison, floor: Floor | None, silos: Sequence[str | None]) -> list[Score | Skipped]:
    """The pair-trend error over all pairs, pairs within a silo, and pairs across silos."""
    d = len(silos)
    upper = np.triu(np.ones((d, d), bool), 1)
    same = np.array([[a == b for b in silos] for a in silos])
    text = "How far the joint distribution of two columns is off, averaged over {}; 0 % is a perfect match."
    parts = [
        ("", "Pair-trend error", upper, "all pairs of columns", "a table of one column has no pairs"),
        ("_within", "Pair-trend error within silos", upper & same, "pairs held by one silo", FEW),
        ("_across", "Pair-trend error across silos", upper & ~same, "pairs held by two silos", ONE_SILO),
    ]
    scores: list[Score | Skipped] = []
    for suffix, label, mask, which, why in parts:
        name = "pair_trend_error" + suffix
        if suffix and len(set(silos)) < 2:
            scores.append(Skipped(name, ONE_SILO))
        elif not mask.any():
            scores.append(Skipped(name, why))
        else:
            errors = 100 * compared.dependence.error[:, mask].mean(axis=1)
            least = None if floor is None else 100 * float(floor.comparison.dependence.error[0][mask].mean())
            scores.append(distance(PERCENT, name, label, text.format(which), errors, least, floor, compared))
    return scores


def distance(
    scale: Scale, name: str, label: str, text: str, values_R: Floats, least: float | None, floor: Floor | None,
    compared: Comparison, most: float = 100.0,
) -> Score:  # fmt: skip
    """The score of replicates between 0 and ``most``; ``least`` is its floor before it is scaled to the sizes."""
    value, low, high, method = figures.jackknife(values_R, 0.0, most)
    bottom: Least = None, NO_FLOOR
    if floor is not None:
        note = f"{floor.note}, scaled by {floor.scale:.3f} to the sizes compared"
        bottom = None if least is None else min(most, least * floor.scale), note
    return scale.score(name, label, value, bottom, (low, high), min(compared.n, compared.m), text, method)


PERCENT = Scale("fidelity", "%", "lower", 0.0)
NO_FLOOR = "no floor: the real tables are too small to be split into two samples"


PLOT_BINS = 40
TOP = 15
RARE = 5  # levels held by fewer real rows are not named
OTHER, MISSING = "(other)", "(missing)"


def column_scores(
    real: Coded, synthetic: Coded, compared: Comparison, floor: Floor | None, silos: Sequence[str | None]
) -> tuple[ColumnScore, ...]:
    """One entry per column."""
    return tuple(_column(real, synthetic, compared, floor, silos[j], j) for j in range(len(real.fields)))


def pair_matrices(
    fields: Sequence[Field], compared: Comparison, floor: Floor | None, silos: Sequence[str | None]
) -> Pairs:
    """The pair matrices of the full tables."""
    dependence = compared.dependence
    least = None if floor is None else _frozen(100 * floor.scale * floor.comparison.dependence.error[0])
    names = tuple(f.name for f in fields)
    real, other, error = _frozen(dependence.real[0]), _frozen(dependence.other[0]), _frozen(100 * dependence.error[0])
    return Pairs(names, tuple(silos), real, other, error, least)


def _column(
    real: Coded, synthetic: Coded, compared: Comparison, floor: Floor | None, silo: str | None, j: int
) -> ColumnScore:
    field = real.fields[j]
    error, low, high, _ = figures.jackknife(100 * compared.marginals.shape[:, j], 0.0, 100.0)
    least = None if floor is None else min(100.0, 100 * floor.scale * float(floor.comparison.marginals.shape[0, j]))
    missing = float(real.missing(j).mean()), float(synthetic.missing(j).mean())
    edges = density = other = shares = others = None
    levels: tuple[str, ...] | None = None
    if field.categorical:
        levels, shares, others = level_shares(field, real.values[j], synthetic.values[j])
    else:
        edges, density, other = densities(real.values[j], synthetic.values[j])
    who = field.name, silo, field.kind
    return ColumnScore(*who, error, least, low, high, *missing, edges, density, other, levels, shares, others)


def densities(real: Floats, synthetic: Floats) -> tuple[Floats | None, Floats | None, Floats | None]:
    """Bin edges (B+1) and both densities (B); None if the real table has no present value."""
    real, synthetic = real[~np.isnan(real)], synthetic[~np.isnan(synthetic)]
    if len(real) == 0:
        return None, None, None
    edges = _edges(real)
    parts = [_density(v, edges) for v in (real, synthetic)]
    return _frozen(edges), parts[0], parts[1]


def _edges(real: Floats) -> Floats:
    """Equal bins over the central 99 % of the real values; integers get bins of integer width."""
    low, high = (float(end) for end in np.quantile(real, [0.005, 0.995]))
    if low == high:
        low, high = float(real.min()), float(real.max())
    if low == high:
        return np.array([low - 0.5, low + 0.5]) if abs(low) < 1e15 else np.array([low * (1 - 1e-9), low * (1 + 1e-9)])
    if abs(high) < 1e15 and abs(low) < 1e15 and (real == np.floor(real)).all():
        width = max(1.0, np.ceil((high - low + 1) / PLOT_BINS))
        start = np.floor(low) - 0.5
        return np.asarray(start + width * np.arange(int(np.ceil((high + 0.5 - start) / width)) + 1))
    return np.linspace(low, high, PLOT_BINS + 1)


def _density(values: Floats, edges: Floats) -> Floats:
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    counted = np.bincount(place, minlength=len(edges) - 1)
    return _frozen(counted / max(1, len(values)) / np.diff(edges))


def level_shares(field: Field, real: Ints, synthetic: Ints) -> tuple[tuple[str, ...], Floats, Floats]:
    """Labels and shares of the most frequent levels that are not rare, then of "(missing)" and "(other)", if any.

    Levels come in their order, if they have one, else by frequency.
    """
    size = len(field.levels) + 1
    counted, other = np.bincount(real, minlength=size), np.bincount(synthetic, minlength=size)
    order = np.argsort(-counted[:-1], kind="stable")[:TOP]
    named = order[counted[order] >= RARE]
    if field.order:
        place = {level: i for i, level in enumerate(field.order)}
        named = np.array(sorted(named, key=lambda k: place.get(field.levels[k], len(place))), np.int64)
    labels = [field.levels[k] for k in named]
    groups = [np.array([k]) for k in named]
    rest = np.setdiff1d(np.arange(size - 1), named)
    for label, members in ((MISSING, np.array([size - 1])), (OTHER, rest)):
        if counted[members].sum() + other[members].sum() > 0:
            labels.append(label)
            groups.append(members)
    own, others = (np.array([c[g].sum() for g in groups]) / c.sum() for c in (counted, other))
    return tuple(labels), _frozen(own), _frozen(others)


def _frozen(values: Floats) -> Floats:
    copy = np.array(values, np.float64)
    copy.flags.writeable = False
    return copy
