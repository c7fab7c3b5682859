"""Columns as a few groups of about as many rows each, which every silo finds by itself, with differential privacy.

An appraisal counts groups, not values: nothing is published of what lies in a group, not even its number of rows. But
which rows share one follows from the rows, and so would tables of them. So groups come from counts with discrete
Gaussian noise alone; given these, adding a row changes no other row's group.

- *Categories*: counts of levels. The most frequent ones are a group each, the others share one. A level whose noised
  count does not reach a threshold is among the others, so that the level of a single row gets a group of its own with
  probability at most delta.
- *Numbers and instants*: two rounds of counts. The first is of cells that anybody knows beforehand: four to each power
  of two, from 2^-30 to 2^62 on both sides of zero. Its cells with many rows are cut into equal pieces, about `PIECES`
  in all; the second round counts these, and neighbours are joined to groups. So nobody has to declare bounds, and
  values may be of any size. But values that differ by less than a hundredth of their size are told apart only if their
  column has bounds: `BOUNDED` equal cells between these are then added to those of the first round. A value that many
  rows share gets a group of its own.

Missing values are one more level, or one more piece before all others. Fewer groups than asked for are found where few
rows, or few values, are there: empty groups are no mistake.

Shapes: N rows, C cells.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from silosynth.core.schema import Column, ColumnSchema, Kind
from silosynth.core.streams import Keystream
from silosynth.counting.levels import Codes
from silosynth.counting.opening import CellNoise
from silosynth.privacy.events import Event
from silosynth.privacy.mechanisms import gaussian_threshold

PIECES = 32  # about so many cells of the second round
BOUNDED = 64  # cells between declared bounds
ROUNDS = 2  # of counts, for numbers and instants; categories take one
_CLEAR = 3.5  # standard deviations that a cell of the first round stands out by: there are hundreds of empty ones
Edges = npt.NDArray[np.float64]
_POWERS = 2.0 ** np.arange(-30, 62)
_POSITIVE = (_POWERS[:, None] * np.array([1.0, 1.25, 1.5, 1.75])).reshape(-1)
_EDGES = np.concatenate([-_POSITIVE[::-1], _POSITIVE])
_NARROW = 2.0**-28  # cells up to this width are not cut: those around zero


def rounds(number: bool) -> int:
    """How often a column's rows are counted to find its groups."""
    return ROUNDS if number else 1


def events_of(name: str, number: bool, noise: CellNoise, names: float, delta: float) -> tuple[Event, ...]:
    """What it costs to find a column's groups.

    Args:
        name: the column's.
        number: whether it is a column of numbers or instants.
        noise: on every count.
        names: the probability at most that a single row's level gets a group of its own.
        delta: at which the budget is stated.
    """
    one = noise.event(f"groups of column {name!r}", joint=False, delta=delta)
    return (replace(one, times=ROUNDS),) if number else (replace(one, delta=names),)


def grouped(column: Column, declared: ColumnSchema, most: int, noise: CellNoise, names: float, rng: Keystream) -> Codes:
    """Each row's group, (N,), from 0 to below ``most``; see `events_of` for noise and names."""
    if is_number(column, declared):
        edges = _EDGES
        if declared.low is not None and declared.high is not None and declared.low < declared.high:
            edges = np.union1d(edges, np.linspace(declared.low, declared.high, BOUNDED + 1))
        return _number_groups(column, edges, most, noise, rng)
    return _level_groups(column, most, noise, names, rng)


def is_number(column: Column, declared: ColumnSchema) -> bool:
    """Whether a column holds numbers or instants, which have an order, and not levels."""
    return Kind(declared.kind).numeric and not column.levels


def _level_groups(column: Column, most: int, noise: CellNoise, names: float, rng: Keystream) -> Codes:
    levels = len(column.levels or ())
    codes = np.where(column.missing.numpy(), levels, column.values.numpy()).astype(np.int64)
    counts = np.bincount(codes, minlength=levels + 1)
    noised = counts + noise.whole((levels + 1,), rng)
    shown = np.nonzero((counts > 0) & (noised >= gaussian_threshold(noise.deviation(2), names)))[0]
    ranked = shown[np.argsort(-noised[shown], kind="stable")]
    group = np.full(levels + 1, min(len(ranked), most - 1), np.int64)
    group[ranked] = np.minimum(np.arange(len(ranked)), most - 1)
    return group[codes]


def _number_groups(column: Column, known: Edges, most: int, noise: CellNoise, rng: Keystream) -> Codes:
    missing = column.missing.numpy()
    values = np.where(missing, 0.0, column.values.numpy().astype(np.float64))
    first = np.bincount(np.searchsorted(known, values[~missing], side="right"), minlength=len(known) + 1)
    edges = _pieces(known, first + noise.whole(first.shape, rng), noise.deviation(2))
    pieces = np.where(missing, 0, 1 + np.searchsorted(edges, values, side="right"))
    second = np.bincount(pieces, minlength=len(edges) + 2)
    noised = second + noise.whole(second.shape, rng)
    return joined(np.where(noised > noise.deviation(2), noised, 0), most)[pieces]


def _pieces(known: Edges, noised: npt.NDArray[np.int64], deviation: float) -> Edges:
    """Edges of the pieces that cells with many rows are cut into, rising."""
    kept = np.where(noised > _CLEAR * deviation, noised, 0)
    edges = [np.zeros(0)]
    for cell in np.nonzero(kept)[0]:
        ends = known[max(cell - 1, 0) : cell + 1]
        whole = ends[-1] - ends[0] <= _NARROW  # also the cells beyond all edges
        parts = 1 if whole else max(1, round(PIECES * kept[cell] / kept.sum()))
        edges.append(np.linspace(ends[0], ends[-1], parts + 1))
    return np.unique(np.concatenate(edges))


def joined(counts: npt.NDArray[np.int64], most: int) -> Codes:
    """The group of each cell, (C,): neighbours together, ``most`` groups of about as many rows each.

    A group ends where one more cell would take it further from what is left to each group than it is without.
    """
    group, current, held, left = np.zeros(len(counts), np.int64), 0, 0, int(counts.sum())
    for cell, count in enumerate(counts.tolist()):
        if held and current < most - 1 and held + count / 2 > left / (most - current):
            left, current, held = left - held, current + 1, 0
        group[cell], held = current, held + count
    return group
