"""Per-column results: the shape error with its floor and interval, and what a plot of real against synthetic needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from silosynth.evaluation.coding import Coded, Field, Ints
from silosynth.evaluation.fidelity import Comparison, Floor
from silosynth.evaluation.resampling import jackknife
from silosynth.evaluation.scores import ColumnScore, Floats, Pairs

BINS = 40
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
    found = compared.dependence
    least = None if floor is None else _frozen(100 * floor.scale * floor.comparison.dependence.error[0])
    names = tuple(f.name for f in fields)
    real, other, error = _frozen(found.real[0]), _frozen(found.other[0]), _frozen(100 * found.error[0])
    return Pairs(names, tuple(silos), real, other, error, least)


def _column(
    real: Coded, synthetic: Coded, compared: Comparison, floor: Floor | None, silo: str | None, j: int
) -> ColumnScore:
    field = real.fields[j]
    error, low, high, _ = jackknife(100 * compared.marginals.shape[:, j], 0.0, 100.0)
    least = None if floor is None else min(100.0, 100 * floor.scale * float(floor.comparison.marginals.shape[0, j]))
    missing = float(real.missing(j).mean()), float(synthetic.missing(j).mean())
    edges = density = other = shares = other_shares = None
    levels: tuple[str, ...] | None = None
    if field.categorical:
        levels, shares, other_shares = level_shares(field, real.values[j], synthetic.values[j])
    else:
        edges, density, other = densities(real.values[j], synthetic.values[j])
    return ColumnScore(
        field.name,
        silo,
        field.kind,
        error,
        least,
        low,
        high,
        *missing,
        edges,
        density,
        other,
        levels,
        shares,
        other_shares,
    )


def densities(real: Floats, synthetic: Floats) -> tuple[Floats | None, Floats | None, Floats | None]:
    """Edges (K+1) and both densities (K); None where a table has no present value."""
    real, synthetic = real[~np.isnan(real)], synthetic[~np.isnan(synthetic)]
    if len(real) == 0:
        return None, None, None
    edges = _edges(real)
    parts = [_density(v, edges) for v in (real, synthetic)]
    return _frozen(edges), parts[0], parts[1]


def _edges(real: Floats) -> Floats:
    """Equal widths over the central 99 % of the real values; whole numbers get bins of whole width."""
    low, high = (float(end) for end in np.quantile(real, [0.005, 0.995]))
    if low == high:
        low, high = float(real.min()), float(real.max())
    if low == high:
        return np.array([low - 0.5, low + 0.5]) if abs(low) < 1e15 else np.array([low * (1 - 1e-9), low * (1 + 1e-9)])
    if abs(high) < 1e15 and abs(low) < 1e15 and (real == np.floor(real)).all():
        width = max(1.0, np.ceil((high - low + 1) / BINS))
        start = np.floor(low) - 0.5
        return np.asarray(start + width * np.arange(int(np.ceil((high + 0.5 - start) / width)) + 1))
    return np.linspace(low, high, BINS + 1)


def _density(values: Floats, edges: Floats) -> Floats:
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    counted = np.bincount(place, minlength=len(edges) - 1)
    return _frozen(counted / max(1, len(values)) / np.diff(edges))


def level_shares(field: Field, real: Ints, synthetic: Ints) -> tuple[tuple[str, ...], Floats, Floats]:
    """The most frequent levels that are not rare, then "(missing)" and "(other)" where there are any."""
    size = len(field.levels) + 1
    counted, other = np.bincount(real, minlength=size), np.bincount(synthetic, minlength=size)
    order = np.argsort(-counted[:-1], kind="stable")[:TOP]
    named = order[counted[order] >= RARE]
    labels = [field.levels[k] for k in named]
    groups = [np.array([k]) for k in named]
    rest = np.setdiff1d(np.arange(size - 1), named)
    for label, members in ((MISSING, np.array([size - 1])), (OTHER, rest)):
        if counted[members].sum() + other[members].sum() > 0:
            labels.append(label)
            groups.append(members)
    shares = [np.array([c[g].sum() for g in groups]) / c.sum() for c in (counted, other)]
    return tuple(labels), _frozen(shares[0]), _frozen(shares[1])


def _frozen(values: Floats) -> Floats:
    copy = np.array(values, np.float64)
    copy.flags.writeable = False
    return copy
