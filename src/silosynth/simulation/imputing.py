"""Missing cells of rows, filled in several times by what a generator has learnt: multiple imputation.

The generator draws rows. For each column that has missing cells, trees learn from these to tell it from the others.
Each draw begins with the cells of a generated row that is like the known ones, and then draws its cells anew, column by
column, for a few rounds: each from a leaf of one of the trees, the value of a generated row in it (Doove, van Buuren,
Dusseldorp: *Recursive partitioning for missing data imputation*, 2014). So draws differ by as much as cells are
uncertain. Silos are asked for nothing but synthetic rows; the rows that are filled in go nowhere. `gaps.impute` takes
synthetic rows that somebody has already, such as the table of a job, and asks for nothing.

Shapes: R rows, D draws, P generated rows, F features, K donors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.rules import Rule, keeps_all
from silosynth.core.schema import Column, Schema, Table, union
from silosynth.data import frames
from silosynth.models.graphical import Levels, Numbers

Singles = npt.NDArray[np.float32]

POOL = 10_000  # generated rows
_TREES, _LEAST = 30, 5  # of a column; rows of a leaf
_ROUNDS, _AGAIN = 4, 10  # of all rows; of those that break a rule, at most
_DONORS = 8  # generated rows by which the interval of a draw's cell is found
_ALIKE = 100  # generated rows among which the one is looked for with which a draw begins
_MOST = 50  # levels of a column that are told apart by trees; rarer ones are not
_ENDS = (0.05, 0.95)


@dataclass(frozen=True)
class Imputation:
    """What `Model.impute` returns.

    Attributes:
        draws: complete tables. Analyse each, and pool the results by Rubin's rules.
        table: one complete table: of each missing cell the median of its draws, or the most frequent level.
        intervals: a row for each missing cell: ``row``, from 0, and ``column``; of numbers and instants an interval
            that holds 90 % of draws, ``low`` and ``high``; of levels the ``share`` of draws that are as in ``table``.
    """

    draws: list[Any]
    table: Any
    intervals: pd.DataFrame

    def __repr__(self) -> str:
        """How much was filled in; no values."""
        return f"Imputation: {len(self.intervals):,} cells filled in, {len(self.draws)} draws"


def to_impute(frame: pd.DataFrame, schema: Schema) -> list[str]:
    """The columns of a frame that are modelled.

    Raises:
        ConfigError: there are others, or none.
    """
    unknown = [name for name in frame if name not in schema.names]
    names = [name for name in schema.modelled if name in frame]
    if unknown or not names:
        rule = "Missing cells are filled in where columns are modelled"
        known = f"It models {', '.join(schema.modelled)}."
        raise ConfigError(rule, unknown or list(frame), nearest(str(unknown[0]), schema.modelled) if unknown else known)
    return names


def completed(found: Filled, partial: Any, frame: pd.DataFrame, known: Table, types: bytes = b"") -> Imputation:
    """Frames like ``partial``, which is ``frame`` in pandas and has the cells ``known``; ``types`` of Arrow, if any."""
    gaps = [column.name for column in known.columns if column.missing.any()]

    def whole(table: Table) -> Any:
        cells = {name: frames.decode(table[name]).set_axis(frame.index) for name in gaps}
        return frames.as_flavour(frame.assign(**cells), frames.flavour(partial), types)

    return Imputation([whole(table) for table in found.draws], whole(found.middle), found.intervals)


@dataclass(frozen=True)
class Filled:
    """Tables of each draw; the most likely one; and `Imputation.intervals`."""

    draws: list[Table]
    middle: Table
    intervals: pd.DataFrame


def filled(
    partial: Table, made: Table, draws: int, rules: Sequence[Rule], rng: np.random.Generator,
    watch: Callable[[Progress], None],
) -> Filled:  # fmt: skip
    """Fill in the missing cells of ``partial`` (R rows) by generated rows ``made`` (P) of the same columns.

    Rows that break one of the rules, which concern these columns alone, are drawn again a few times.

    Raises:
        ConfigError: a column of which no generated row has a value.
    """
    partial, made = _alike(partial, made)
    gaps = [column.name for column in partial.columns if column.missing.any()]
    for name in gaps:
        if made[name].missing.all():
            rule = f"Column {name!r} is filled in by values of generated rows, and none has one"
            raise ConfigError(rule, "no value", "Leave the column out.")
    rows = _Rows(partial, made, draws, rng)
    forests = {}
    for done, name in enumerate(gaps):
        watch(Progress("learning columns", done, len(gaps)))
        forests[name] = _Forest(made, rows.features, name, rng)
    every = np.arange(len(rows))
    rounds = _ROUNDS if len(gaps) > 1 else 1
    for done in range(rounds):
        watch(Progress("filling in", done, rounds))
        rows.sweep(forests, every)
    for _ in range(_AGAIN if rules else 0):
        broken = np.flatnonzero(~keeps_all(rows.table(), rules).numpy())
        if not len(broken):
            break
        rows.sweep(forests, broken)
    watch(Progress("filling in", rounds, rounds))
    whole = rows.table()
    tables = [whole.take(slice(d * len(partial), (d + 1) * len(partial))) for d in range(draws)]
    return Filled(tables, *_summed_up(partial, tables, rows.donors, made))


def _alike(partial: Table, made: Table) -> tuple[Table, Table]:
    """Both with the generated rows' dtypes, and the levels of both."""
    pairs = []
    for known, drawn in ((partial[name], made[name]) for name in partial.names):
        if drawn.levels is None:
            known = replace(known, values=known.values.to(drawn.values.dtype), levels=None)
        else:
            levels = union([drawn.levels, known.levels or ()])
            known, drawn = replace(known, levels=known.levels or ()).recoded(levels), drawn.recoded(levels)
        pairs.append((replace(known, dtype=drawn.dtype), drawn))
    return Table(tuple(one for one, _ in pairs)), Table(tuple(one for _, one in pairs))


class _Rows:
    """The rows of all draws, one draw below the other (D·R), in the course of being filled in.

    Attributes:
        donors: of each column with missing cells, generated rows (cells, K) with values that were as likely, by draw.
    """

    def __init__(self, partial: Table, made: Table, draws: int, rng: np.random.Generator) -> None:
        self._made, self._rng = made, rng
        self._columns = {
            column.name: column.take(torch.arange(len(partial)).repeat(draws)) for column in partial.columns
        }
        self._missing = {name: column.missing.numpy() for name, column in self._columns.items()}
        self.features = _Features(made)
        self.donors: dict[str, Levels] = {}
        self._begin()

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def table(self) -> Table:
        """All rows, as they are now."""
        return Table(tuple(self._columns.values()))

    def sweep(self, forests: Mapping[str, _Forest], rows: Levels) -> None:
        """Draw the missing cells of these rows anew, column by column."""
        for name, forest in forests.items():
            own = rows[self._missing[name][rows]]
            donors = forest.draw(self.features.of(self._columns, own, without=name), self._rng)
            if name not in self.donors:
                self.donors[name] = np.zeros((int(self._missing[name].sum()), _DONORS), np.int64)
            self.donors[name][(self._missing[name].cumsum() - 1)[own]] = donors
            self._fill(name, own, donors[:, 0])

    def _begin(self) -> None:
        """Fill in the cells of generated rows: for each, the one of a few whose other cells are most like its own."""
        apart = np.zeros((len(self), _ALIKE), np.float32)
        donors = self._rng.integers(len(self._made), size=apart.shape)
        for name, column in self._columns.items():
            drawn, known = self._made[name], ~self._missing[name]
            if column.levels is None:
                order = np.sort(drawn.values.numpy()[~drawn.missing.numpy()])
                ranks = [np.searchsorted(order, one.values.numpy()) / max(1, len(order)) for one in (column, drawn)]
                differ = np.abs(ranks[0][:, None] - ranks[1][donors])
            else:
                differ = (column.values.numpy()[:, None] != drawn.values.numpy()[donors]).astype(np.float32)
            apart += np.where(known[:, None], np.where(drawn.missing.numpy()[donors], 1.0, differ), 0.0)
        absent = [self._missing[name][:, None] & self._made[name].missing.numpy()[donors] for name in self._columns]
        apart += 100.0 * np.sum(absent, axis=0)  # what has no value gives none
        best = donors[np.arange(len(self)), apart.argmin(1)]
        for name, missing in self._missing.items():
            own = np.flatnonzero(missing)
            lacking = self._made[name].missing.numpy()[best[own]]
            present = np.flatnonzero(~self._made[name].missing.numpy())
            if len(own):
                picked = np.where(lacking, present[self._rng.integers(len(present), size=len(own))], best[own])
                self._fill(name, own, picked)

    def _fill(self, name: str, rows: Levels, donors: Levels) -> None:
        column = self._columns[name]
        values, missing = column.values.clone(), column.missing.clone()
        values[rows], missing[rows] = self._made[name].values[donors], False
        self._columns[name] = replace(column, values=values, missing=missing)


class _Features:
    """Columns as features for trees: numbers as they are, the frequent levels one by one."""

    def __init__(self, made: Table) -> None:
        self._made = made
        self._frequent = {column.name: _frequent(column) for column in made.columns if column.levels is not None}
        known = {column.name: column.values[~column.missing].double() for column in made.columns}
        self._typical = {name: float(values.median()) if len(values) else 0.0 for name, values in known.items()}
        self._parts = {column.name: self._part(column) for column in made.columns}

    def of_made(self, rows: Levels, without: str) -> Singles:
        """Of generated rows (P, F)."""
        parts = [part[rows] for name, part in self._parts.items() if name != without]
        return np.concatenate([*parts, np.zeros((len(rows), 1), np.float32)], axis=1)  # also of a single column

    def of(self, columns: Mapping[str, Column], rows: Levels, without: str) -> Singles:
        """Of rows of other columns (R, F)."""
        parts = [self._part(column.take(torch.from_numpy(rows))) for name, column in columns.items() if name != without]
        return np.concatenate([*parts, np.zeros((len(rows), 1), np.float32)], axis=1)

    def _part(self, column: Column) -> Singles:
        if column.levels is None:
            numbers = column.values.double().masked_fill(column.missing, self._typical[column.name])
            return numbers.float().numpy()[:, None]
        found = (column.values[:, None] == self._frequent[column.name]) & ~column.missing[:, None]
        return found.float().numpy()


class _Forest:
    """Trees that tell a column from the others, and the generated rows in each leaf."""

    def __init__(self, made: Table, features: _Features, name: str, rng: np.random.Generator) -> None:
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

        column, self._name = made[name], name
        self._known = np.flatnonzero(~column.missing.numpy())
        values = column.values[torch.from_numpy(self._known)]
        if column.levels is None:
            kind, target = ExtraTreesRegressor, values.double().numpy()
        else:
            same = values[:, None] == _frequent(column)
            kind, target = ExtraTreesClassifier, torch.where(same.any(1), same.int().argmax(1), -1).numpy()
        seed = int(rng.integers(2**31))
        self._trees = kind(_TREES, min_samples_leaf=_LEAST, max_features=None, random_state=seed)
        x = features.of_made(self._known, without=name)
        self._trees.fit(x, target)
        leaf_PT = self._trees.apply(x)
        self._order = np.argsort(leaf_PT, axis=0, kind="stable")
        self._sorted = np.take_along_axis(leaf_PT, self._order, axis=0)

    def draw(self, x: Singles, rng: np.random.Generator) -> Levels:
        """Generated rows (R, K), each from the leaf of a row in a tree."""
        leaf_RT = self._trees.apply(x) if len(x) else np.zeros((0, _TREES), np.int64)
        tree_RK = rng.integers(_TREES, size=(len(x), _DONORS))
        found = np.zeros((len(x), _DONORS), np.int64)
        for tree in range(_TREES):
            own, donor = np.nonzero(tree_RK == tree)
            leaf = leaf_RT[own, tree]
            first = np.searchsorted(self._sorted[:, tree], leaf)
            last = np.searchsorted(self._sorted[:, tree], leaf, side="right")
            picked = first + (rng.random(len(own)) * (last - first)).astype(np.int64)
            found[own, donor] = self._known[self._order[picked, tree]]
        return found


def _frequent(column: Column) -> Tensor:
    """The codes of the most frequent levels."""
    counts = torch.bincount(column.values[~column.missing], minlength=len(column.levels or ()))
    return counts.argsort(descending=True, stable=True)[: min(_MOST, int((counts > 0).sum()))]


def _summed_up(
    partial: Table, tables: Sequence[Table], donors: Mapping[str, Levels], made: Table
) -> tuple[Table, pd.DataFrame]:
    """The median, or most frequent level, of each missing cell; and `Imputation.intervals`."""
    middle, said = [], [pd.DataFrame({"row": [], "column": [], "low": [], "high": [], "share": []})]
    for column in partial.columns:
        rows = np.flatnonzero(column.missing.numpy())
        if not len(rows):
            middle.append(column)
            continue
        drawn = made[column.name].values.numpy()[donors[column.name].reshape(len(tables), len(rows), -1)]
        drawn = np.moveaxis(drawn, 1, 0).reshape(len(rows), -1)
        cells: dict[str, Any] = {"row": rows, "column": column.name}
        if column.levels is None:
            low, best, high = np.quantile(drawn, (_ENDS[0], 0.5, _ENDS[1]), axis=1, method="nearest")
            cells |= {"low": _decoded(column, low), "high": _decoded(column, high)}
        else:
            best = np.array([np.bincount(levels).argmax() for levels in drawn])
            cells |= {"share": (drawn == best[:, None]).mean(1)}
        said.append(pd.DataFrame(cells))
        values = column.values.clone()
        values[torch.from_numpy(rows)] = torch.from_numpy(best).to(values.dtype)
        middle.append(replace(column, values=values, missing=torch.zeros_like(column.missing)))
    return Table(tuple(middle)), pd.concat(said[1:] or said, ignore_index=True).reindex(columns=said[0].columns)


def _decoded(column: Column, values: Numbers) -> pd.Series:
    """Numbers or instants in the column's dtype."""
    found = torch.from_numpy(values).to(column.values.dtype)
    return frames.decode(replace(column, values=found, missing=torch.zeros(len(found), dtype=torch.bool)))
