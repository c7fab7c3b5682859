"""Tables of counts as shares of rows: made sound where they hold noise, and drawn anew for floors and intervals.

*Sound* are tables that some rows could have: they have one total, no cell below zero, and each column has the same
shares in all of them. Noised ones have not. As PrivSyn does (Z. Zhang et al., "PrivSyn: Differentially private data
synthesis", USENIX Security 2021, sections 4.3 and 4.4): a column's counts are averaged over all tables that have it,
weighted by how little noise they have there; each table is moved to these averages; then it is projected onto counts
of at least zero (`_projected`). Repeated `ROUNDS` times, since each step undoes some of the other.

*Drawn anew*: nobody holds the rows that tables were counted from, but tables of pairs say enough to make rows of their
kind: a tree of pairs (C. Chow and C. Liu, "Approximating discrete probability distributions with dependence trees",
IEEE Transactions on Information Theory 14, 1968) has exactly the tables' columns and its own pairs. `Pool` draws from
such rows, or from those of the synthetic table, with replacement: all tables at once, so that errors of tables that
share columns depend on each other as they would.

Shapes: d columns, N rows, K levels of a column, T tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from silosynth.evaluation.scores import Floats, Ints

ROUNDS = 3
DRAWN = 4000  # rows of one draw; what it differs by is then scaled to the size that is asked for
MADE = 20_000  # rows made from tables

Sets = Sequence[tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Proportions:
    """Tables of one population.

    Attributes:
        sets: the columns of each table, by place.
        tables: the share of rows in each cell.
        rows: how many were counted; an estimate where there is noise.
    """

    sets: Sets
    tables: tuple[Floats, ...]
    rows: float

    def of(self, *columns: int) -> Floats:
        """The table of these columns, in this order; of one column, its mean over all tables that have it."""
        if len(columns) == 1:
            return column_shares(self.sets, self.tables, columns[0])
        number = next(n for n, places in enumerate(self.sets) if set(places) == set(columns))
        places = self.sets[number]
        return self.tables[number].transpose([places.index(column) for column in columns])


def count_rows(codes_dN: Ints, sizes: Sequence[int], sets: Sets) -> tuple[Ints, ...]:
    """Tables of all sets."""
    return tuple(_table([codes_dN[place] for place in places], [sizes[place] for place in places]) for places in sets)


def _table(codes: Sequence[Ints], sizes: Sequence[int]) -> Ints:
    cells = np.ravel_multi_index(tuple(codes), tuple(sizes))
    return np.bincount(cells, minlength=math.prod(sizes)).reshape(sizes)


def shares(tables: Sequence[Ints | Floats], sets: Sets, noises: Sequence[float] = ()) -> Proportions:
    """Shares of tables of counts; made sound first, if there are ``noises``: the deviation of each table's cells."""
    if any(noises):
        sound, total = _sound(tables, sets, np.square(noises))
        return Proportions(sets, sound, total)
    total = float(tables[0].sum())
    return Proportions(sets, tuple(table / max(total, 1.0) for table in tables), total)


def column_shares(sets: Sets, tables: Sequence[Floats], column: int) -> Floats:
    """A column's shares, by which all sound tables agree; the mean of those that have it."""
    having = [(places.index(column), table) for places, table in zip(sets, tables, strict=True) if column in places]
    return np.asarray(np.mean([_margin(table, axis) for axis, table in having], axis=0))


def _sound(tables: Sequence[Ints | Floats], sets: Sets, variance_T: Floats) -> tuple[tuple[Floats, ...], float]:
    """Proportions, and the number of rows: the mean of all totals, of which each has the noise of its cells."""
    weights = 1 / (variance_T * [table.size for table in tables])
    total = max(1.0, float(np.average([float(table.sum()) for table in tables], weights=weights)))
    found = [np.asarray(table, np.float64) / total for table in tables]
    for _ in range(ROUNDS):
        found = [_projected(table) for table in _agreeing(found, sets, variance_T)]
    return tuple(found), total


def _agreeing(tables: Sequence[Floats], sets: Sets, variance_T: Floats) -> list[Floats]:
    """Tables moved to common shares of each column, and to a total of 1."""
    found = [table + (1 - table.sum()) / table.size for table in tables]
    for column in sorted({place for places in sets for place in places}):
        having = [(n, places.index(column)) for n, places in enumerate(sets) if column in places]
        margins = [_margin(found[n], axis) for n, axis in having]
        weights = np.array([found[n].shape[axis] / found[n].size / variance_T[n] for n, axis in having])
        common = np.average(margins, axis=0, weights=weights)
        for (n, axis), margin in zip(having, margins, strict=True):
            step = (common - margin) / (found[n].size // len(margin))
            found[n] = found[n] + step.reshape([-1 if a == axis else 1 for a in range(found[n].ndim)])
    return found


def _margin(table: Floats, axis: int) -> Floats:
    return np.asarray(table.sum(axis=tuple(a for a in range(table.ndim) if a != axis)))


def _projected(table: Floats) -> Floats:
    """The nearest table without cells below zero whose total is 1 (Euclidean projection onto the simplex)."""
    falling = np.sort(table, axis=None)[::-1]
    beyond = (np.cumsum(falling) - 1) / np.arange(1, table.size + 1)
    return np.asarray(np.maximum(table - beyond[np.flatnonzero(falling > beyond)[-1]], 0.0))


class Pool:
    """Rows of one kind, from which samples are drawn.

    Args:
        codes_dN: levels of all rows.
        sizes: numbers of levels of all columns.
        sets: the columns of each table.
    """

    def __init__(self, codes_dN: Ints, sizes: Sequence[int], sets: Sets) -> None:
        self._codes, self._sizes, self._sets = codes_dN, sizes, sets
        self.tables = tuple(table / codes_dN.shape[1] for table in count_rows(codes_dN, sizes, sets))

    def deviations(self, rows: float, rng: np.random.Generator) -> tuple[Floats, ...]:
        """How far the tables of a random sample of so many rows are off, in shares."""
        drawn = self._codes[:, rng.integers(self._codes.shape[1], size=DRAWN)]
        scale = math.sqrt(DRAWN / max(rows, 1.0))
        counted = count_rows(drawn, self._sizes, self._sets)
        return tuple((own / DRAWN - table) * scale for own, table in zip(counted, self.tables, strict=True))


def made_rows(real: Proportions, sizes: Sequence[int], rng: np.random.Generator, rows: int = MADE) -> Ints:
    """Rows (d, N) whose columns, and pairs of the tree that says most, are as in the tables."""
    d = len(sizes)
    gain = np.zeros((d, d))
    for places, table in zip(real.sets, real.tables, strict=True):
        if len(places) == 2:
            gain[places] = gain[places[::-1]] = mutual_information(table)
    codes = np.zeros((d, rows), np.int64)
    for column, parent in spanning_tree(gain):
        chances = real.of(column)[None] if parent is None else real.of(parent, column)
        within = np.zeros(rows, np.int64) if parent is None else codes[parent]
        codes[column] = _drawn(chances, within, rng)
    return codes


def _drawn(chances: Floats, within_N: Ints, rng: np.random.Generator) -> Ints:
    """One level for each row, by the chances in the row of the table that it is ``within``."""
    totals = chances.sum(axis=1, keepdims=True)
    even = np.full_like(chances, 1 / chances.shape[1])
    upto = np.cumsum(np.divide(chances, totals, out=even, where=totals > 0), axis=1)
    places = (rng.random(len(within_N))[:, None] >= upto[within_N]).sum(axis=1)
    return np.asarray(np.minimum(places, chances.shape[1] - 1))


def mutual_information(table: Floats) -> float:
    """Of the two columns of a table of shares, in bits."""
    independent = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True)
    inside = table > 0
    return float((table[inside] * np.log2(table[inside] / independent[inside])).sum())


def spanning_tree(gain_dd: Floats, allowed_dd: Floats | None = None) -> list[tuple[int, int | None]]:
    """The tree of most gain (Prim's): each column with its parent, parents first; ties go to the first column.

    Where not all pairs are allowed there may be several trees; each one's root has no parent.
    """
    d = len(gain_dd)
    gain = gain_dd if allowed_dd is None else np.where(allowed_dd, gain_dd, -np.inf)
    order: list[tuple[int, int | None]] = []
    best, parent, left = np.full(d, -np.inf), np.full(d, -1), np.ones(d, bool)
    for _ in range(d):
        column = int(np.argmax(np.where(left, best, -np.inf))) if (best[left] > -np.inf).any() else int(np.argmax(left))
        order.append((column, int(parent[column]) if parent[column] >= 0 else None))
        left[column] = False
        better = left & (gain[column] > best)
        best[better], parent[better] = gain[column][better], column
    return order
