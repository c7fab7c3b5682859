"""Column-shape error and pair-trend error, whole and split into within-silo and across-silo.

Definitions (design notes, "Evaluation the papers use"): the shape error is the mean over columns of the
Kolmogorov-Smirnov distance (numeric; missing values are an atom at minus infinity) or the total variation distance
(categorical; missing values are a level). The trend error is the mean over pairs of |rho_real - rho_synthetic| / 2
(both numeric; Pearson over rows where both are present, 0 where a column is constant) or of the total variation
distance of the joint table (numeric columns cut into 10 equal-width bins of the real range, outside values in the end
bins, missing in a bin of its own). All in %.

Floor: the same figure between two disjoint real samples of a and b rows, times sqrt((1/n + 1/m) / (1/a + 1/b)) for a
real table of n and a synthetic one of m rows, since sampling errors of shares fall with the root of the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silosynth.evaluation.coding import Coded
from silosynth.evaluation.dependence import Dependence, dependence
from silosynth.evaluation.marginals import Dealt, Marginals, marginals
from silosynth.evaluation.resampling import deal, groups_for, jackknife
from silosynth.evaluation.scores import Floats, Score, Skipped

ONE_SILO = "no silos were given, or only one"


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two tables compared column by column and pair by pair, with jackknife replicates."""

    marginals: Marginals
    dependence: Dependence
    n: int  # rows of the real table
    m: int  # rows of the other one


@dataclass(frozen=True, slots=True, eq=False)
class Floor:
    """Two disjoint real samples compared, and how that was done."""

    comparison: Comparison
    scale: float  # from the sizes of the two real samples to the sizes of training and synthetic table
    note: str


def compare(real: Coded, other: Coded, rng: np.random.Generator, replicates: bool = True) -> Comparison:
    """Compare two tables; without replicates (for floors) no interval can be had, at a tenth of the memory."""
    groups = groups_for(len(real), len(other)) if replicates else 1
    a, b = (Dealt(t, deal(len(t), groups, rng), groups) for t in (real, other))
    return Comparison(marginals(a, b), dependence(a, b), len(real), len(other))


def size_scale(n: int, m: int, a: int, b: int) -> float:
    """Factor that brings an error between samples of a and b rows to samples of n and m rows."""
    return math.sqrt((1 / n + 1 / m) / (1 / a + 1 / b))


def column_shape(compared: Comparison, floor: Floor | None) -> list[Score | Skipped]:
    """The column-shape error."""
    errors = 100 * compared.marginals.shape.mean(axis=1)
    least = None if floor is None else 100 * float(floor.comparison.marginals.shape[0].mean()) * floor.scale
    text = "How far the distribution of a single column is off, averaged over the columns; 0 % is a perfect match."
    return [_score("column_shape_error", "Column-shape error", errors, least, floor, compared, text)]


def pair_trend(compared: Comparison, floor: Floor | None, silos: Sequence[str | None]) -> list[Score | Skipped]:
    """The pair-trend error over all pairs, over pairs inside one silo, and over pairs that span two silos."""
    d = len(silos)
    upper = np.triu(np.ones((d, d), bool), 1)
    same = np.array([[a == b for b in silos] for a in silos])
    text = "How far the joint distribution of two columns is off, averaged over {}; 0 % is a perfect match."
    parts = [
        ("", "Pair-trend error", upper, "all pairs of columns", "a table of one column has no pairs"),
        (
            "_within",
            "Pair-trend error within silos",
            upper & same,
            "pairs held by one silo",
            "no silo holds two columns",
        ),
        ("_across", "Pair-trend error across silos", upper & ~same, "pairs held by two silos", ONE_SILO),
    ]
    found: list[Score | Skipped] = []
    for suffix, label, mask, which, why in parts:
        name = "pair_trend_error" + suffix
        if suffix and len(set(silos)) < 2:
            found.append(Skipped(name, ONE_SILO))
        elif not mask.any():
            found.append(Skipped(name, why))
        else:
            errors = 100 * compared.dependence.error[:, mask].mean(axis=1)
            found.append(_score(name, label, errors, _trend_floor(floor, mask), floor, compared, text.format(which)))
    return found


def _trend_floor(floor: Floor | None, mask: NDArray[np.bool_]) -> float | None:
    return None if floor is None else 100 * float(floor.comparison.dependence.error[0][mask].mean()) * floor.scale


def _score(
    name: str, label: str, errors_R: Floats, least: float | None, floor: Floor | None, compared: Comparison, text: str
) -> Score:
    value, low, high, method = jackknife(errors_R, 0.0, 100.0)
    return Score(
        name=name,
        label=label,
        group="fidelity",
        value=value,
        floor=None if least is None else min(100.0, least),
        floor_note=NO_FLOOR if floor is None else f"{floor.note}, scaled by {floor.scale:.3f} to the sizes compared",
        low=low,
        high=high,
        unit="%",
        better="lower",
        ideal=0.0,
        n=min(compared.n, compared.m),
        explanation=text,
        method=method,
    )


NO_FLOOR = "no floor: the real tables are too small to be split into two samples"
