"""What is counted to judge a synthetic table, and what was: joint tables of columns that are in several silos.

Nobody holds the real rows side by side, so all there is are tables: how often levels of two columns, and of some three,
occur together (`silosynth.counting`). They are planned from the public synthetic table alone (`plan`): its categories,
the rare ones as one level, and quantiles of its numbers and dates as edges; so that what is counted tells nothing of
real rows. `judged` makes the report.

Shapes: d columns, N rows, K levels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from silosynth.core.errors import ConfigError, DataError, nearest
from silosynth.core.schema import DURATIONS, UNMODELLED, Column, Kind, Schema
from silosynth.counting import CountedColumn
from silosynth.data.frames import to_pandas, to_table
from silosynth.encoders.column import RARE as POOLED
from silosynth.evaluation import sound
from silosynth.evaluation.coding import schema_of, unmarked
from silosynth.evaluation.scores import (
    ColumnKind,
    Floats,
    Ints,
)  # fmt: skip
from silosynth.privacy.events import Target

LEVELS = 20  # of a column, at most
COARSE = 8  # of tables with noise, of which each cell has its own
RARE = 5  # synthetic rows: levels of fewer are counted as one
FINER = 16  # so that what independence would give is not much rounded
_NO_LEVEL = ""  # of a column without values
Opening = Literal["exact", "noised", "figures"]


# What is counted.


@dataclass(frozen=True, eq=False)
class JointPlan:
    """What is counted: a function of the public synthetic table.

    Attributes:
        columns: with their levels, in the synthetic table's order; of no silo in particular.
        sets: the columns of each table, by place: all pairs; with a target also, for each column with a parent in the
            tree, (column, parent, target). A table of one column has that one.
        target: the place of the column to predict.
        parents: each column's parent in the tree; None for roots, and for the target.
        schema: kinds of these columns.
        ends: of columns of numbers, the range that is drawn.
    """

    columns: tuple[CountedColumn, ...]
    sets: tuple[tuple[int, ...], ...]
    target: int | None
    parents: tuple[int | None, ...]
    schema: Schema
    ends: tuple[tuple[float, float], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many levels each column has."""
        return tuple(column.size for column in self.columns)

    @property
    def cells(self) -> int:
        """Of all tables."""
        return sum(math.prod(self.sizes[place] for place in places) for places in self.sets)

    def codes(self, frame: Any) -> Ints:
        """Each row's levels (d, N), of any table with these columns.

        Raises:
            DataError: a column is missing, or not of the kind that is counted.
        """
        columns = _read(frame, self.schema)[1]
        return np.stack([own.codes(columns[own.name]) for own in self.columns])

    def only(self, kept: Sequence[int]) -> JointPlan:
        """The plan of these sets; columns whose tables with a parent are left out have none."""
        sets = tuple(self.sets[number] for number in kept)
        parents = tuple(
            parent if (child, parent, self.target) in sets else None for child, parent in enumerate(self.parents)
        )
        return replace(self, sets=sets, parents=parents)

    def kind(self, place: int) -> ColumnKind:
        """How a column is drawn."""
        if not self.columns[place].edges:
            return "categorical"
        column = self.schema.columns[place]
        if column.dtype.startswith(DURATIONS):
            return "duration"
        return "datetime" if column.kind == Kind.DATETIME.value else "numeric"


def plan(
    synthetic: Any,
    schema: Schema | Mapping[str, Any] | None = None,
    target: str | None = None,
    *,
    levels: int = LEVELS,
    silos: Mapping[str, Sequence[str]] | None = None,
    groups: Sequence[Sequence[str]] = (),
) -> JointPlan:
    """Decide what is counted, from the synthetic table alone.

    Args:
        synthetic: the table that is judged, and is public.
        schema: kinds of its columns, as for `silosynth.evaluate`; those that silos have, if known. Identifiers and
            pseudonyms are not counted.
        target: the column to predict.
        levels: of each column at most, besides those of rare and of missing values. Numbers with point masses get some
            more.
        silos: each silo's columns, where tables are of two silos at most: the tree then has no pair that makes three
            with the target.
        groups: the silos of each group, if they are in groups that divide all columns: the same of every group.

    Raises:
        DataError: the table cannot be read, has nothing to count, or has no such target.
        ConfigError: ``levels`` is below 2.
    """
    if not isinstance(levels, int) or levels < 2:
        raise ConfigError("Columns are counted by a whole number of levels, at least two", levels)
    kinds, table = _read(synthetic, schema)
    columns = tuple(_counted(column, levels) for column in table.columns)
    place = None if target is None else _place(target, kinds.names)
    sets: list[tuple[int, ...]] = [*itertools.combinations(range(len(columns)), 2)] or [(0,)]
    parents: tuple[int | None, ...] = (None,) * len(columns)
    if place is not None:
        codes = np.stack([own.codes(column) for own, column in zip(columns, table.columns, strict=True)])
        allowed = _allowed(kinds.names, place, silos, groups)
        parents = _tree(codes, [column.size for column in columns], place, allowed)
        sets += [(child, parent, place) for child, parent in enumerate(parents) if parent is not None]
    return JointPlan(columns, tuple(sets), place, parents, kinds, tuple(map(_ends, table.columns)))


def planned(
    synthetic: Any, columns: Sequence[CountedColumn], sets: Sequence[tuple[int, ...]], target: str | None = None
) -> JointPlan:
    """The plan that something was counted by, where only its columns and sets are known, and the synthetic table.

    Args:
        synthetic: the public table that it was planned from.
        columns, sets: what was counted.
        target: the column to predict; None for the one that all tables of three columns end in.

    Raises:
        DataError: the table lacks a column, or holds something else in it.
    """
    pandas, names = to_pandas(synthetic), [column.name for column in columns]
    if lacking := [name for name in names if name not in pandas.columns]:
        rule = "A report is made with the table that was judged"
        raise DataError(rule, f"no column {lacking[0]!r}", "Name that table.")
    declared = {column.name: kind for column in columns if (kind := _declared(column, pandas[column.name]))}
    kinds, table = _read(pandas[names], declared)
    three = [places for places in sets if len(places) == 3]
    place = _place(target, names) if target is not None else three[0][-1] if three else None
    parents: list[int | None] = [None] * len(names)
    for child, parent, label in three:
        parents[child] = parent if label == place else None
    return JointPlan(
        tuple(columns), tuple(sets), place, tuple(parents), kinds, tuple(_ends(table[name]) for name in names)
    )


def _declared(column: CountedColumn, held: Any) -> dict[str, str]:
    """The kind that a column was counted as; none of dates and durations, which tell theirs."""
    if column.levels:
        return {"kind": "boolean" if all(isinstance(level, bool) for level in column.levels) else "categorical"}
    if held.dtype.kind not in "iuf":
        return {}
    return {"kind": "integer" if all(isinstance(edge, int) for edge in column.edges) else "continuous"}


def _read(frame: Any, schema: Schema | Mapping[str, Any] | None) -> tuple[Schema, Any]:
    """Kinds and values of the columns that can be counted."""
    pandas = to_pandas(frame)
    if isinstance(schema, Schema):
        lacking = [column.name for column in schema.columns if column.name not in set(pandas.columns)]
        if unread := [name for name in lacking if schema[name].kind not in UNMODELLED]:
            raise DataError("The table has all columns that are counted", unread, "Pass the synthetic table as it is.")
        pandas = pandas[[column.name for column in schema.columns if column.name not in lacking]]
    kinds = schema_of(pandas, schema, "synthetic")
    kinds = kinds.select(kinds.modelled)
    if not kinds.columns:
        raise DataError("A table that is judged has a column that is neither an identifier nor a pseudonym", "none")
    return kinds, to_table(unmarked(pandas, kinds), kinds)


def _place(target: str, names: Sequence[str]) -> int:
    if target not in names:
        raise DataError("The target is a column that is counted", target, nearest(str(target), names))
    return list(names).index(target)


def _counted(column: Column, most: int) -> CountedColumn:
    present = column.values[~column.missing].numpy()
    if column.levels is None:
        return CountedColumn("", column.name, edges=_edges(present, most))
    if column.levels and all(isinstance(level, bool) for level in column.levels):
        return CountedColumn("", column.name, (False, True))
    held = np.bincount(present, minlength=len(column.levels))
    often = [int(k) for k in np.argsort(-held, kind="stable")[:most] if column.levels[k] != POOLED]
    named = sorted(k for k in often if held[k] >= RARE) or often[:1]
    return CountedColumn("", column.name, tuple(column.levels[k] for k in named) or (_NO_LEVEL,), others=True)


def _edges(values: Floats | Ints, most: int) -> tuple[int | float, ...]:
    """Between all distinct values, if they are few; else quantiles, with values of many rows in bins of their own.

    The first and the last bin have no end. One value gets a bin below, and one above.
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= 1:
        only = distinct[0] if len(distinct) else values.dtype.type(0)
        above = only + 1 if distinct.dtype.kind == "i" else np.nextafter(only, np.inf)
        return only.item(), above.item()
    places = set(range(1, len(distinct)))
    if len(distinct) > most:
        below = np.cumsum(counts) - counts
        often = np.flatnonzero(counts * most >= len(values))
        quantiles = np.searchsorted(below, np.arange(1, most) * len(values) / most)
        places &= {*quantiles.tolist(), *often.tolist(), *(often + 1).tolist()}
    return tuple(distinct[sorted(places)].tolist())


def _ends(column: Column) -> tuple[float, float]:
    """The central 99 % of a column of numbers."""
    present = column.values[~column.missing].numpy()
    if column.levels is not None or not len(present):
        return 0.0, 0.0
    low, high = np.quantile(present.astype(np.float64), [0.005, 0.995])
    return float(low), float(high)


def _allowed(
    names: Sequence[str], target: int, silos: Mapping[str, Sequence[str]] | None, groups: Sequence[Sequence[str]] = ()
) -> Floats | None:
    """Which pairs of columns are, with the target, in two silos at most; of every group, if there are some."""
    if silos is None:
        return None
    owned = [{name: silo for silo in group for name in silos[silo]} for group in groups or (tuple(silos),)]
    owners = [[owner.get(name, "") for name in names] for owner in owned]
    places = range(len(names))
    return np.array([[all(len({o[a], o[b], o[target]}) <= 2 for o in owners) for b in places] for a in places])


def _tree(codes_dN: Ints, sizes: Sequence[int], target: int, allowed: Floats | None) -> tuple[int | None, ...]:
    """Each column's parent in the tree of most conditional mutual information, given the target."""
    others = [place for place in range(len(sizes)) if place != target]
    gain = np.zeros((len(others), len(others)))
    for a, b in itertools.combinations(range(len(others)), 2):
        (table,) = sound.count_rows(codes_dN, sizes, [(target, others[a], others[b])])
        within = table.sum(axis=(1, 2)) / codes_dN.shape[1]
        known = [sound.mutual_information(own / max(1, own.sum())) for own in table]
        gain[a, b] = gain[b, a] = float(within @ known)
    parents: list[int | None] = [None] * len(sizes)
    kept = None if allowed is None else allowed[np.ix_(others, others)]
    for child, parent in sound.spanning_tree(gain, kept) if others else ():
        parents[others[child]] = None if parent is None else others[parent]
    return tuple(parents)


# What was counted.


@dataclass(frozen=True, eq=False)
class JointTables:
    """Joint tables of real rows, or their distances to the synthetic table's, as they were opened.

    Attributes:
        plan: what was counted.
        owners: the silo of each column; None where silos hold different rows.
        training: a table for each set; none if only distances opened.
        holdout: the same of hold-out rows, if there are some.
        noises: of each table, the deviation of the noise on a cell; none, or zeros, for exact counts.
        distances: if only these opened, for each set the sum over cells of squared differences of shares between
            training rows and what it is about: first each of `references`; last, if there are some, hold-out rows.
        numbers: of training and hold-out rows, where only distances opened; else they follow from the tables.
        dp: what all tables together cost each row, where they have noise.
        dealer: who dealt the random numbers, in words; empty where nothing was counted across silos.
        rows_of: the silos, where each holds different rows of all columns.
        groups: the silos of each group, where these hold different rows, each divided by columns.
    """

    plan: JointPlan
    owners: tuple[str | None, ...]
    training: tuple[Ints, ...] = ()
    holdout: tuple[Ints, ...] | None = None
    noises: tuple[float, ...] = ()
    distances: tuple[tuple[float, ...], ...] = ()
    numbers: tuple[int, int] = (0, 0)
    dp: Target = Target()
    dealer: str = ""
    rows_of: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()

    @property
    def opening(self) -> Opening:
        """How they were opened."""
        return "figures" if self.distances else "noised" if any(self.noises) else "exact"

    @classmethod
    def opened(
        cls, made: JointPlan, found: Mapping[str, Any], holdout: bool = False, dp: Target = Target(), dealer: str = "",
        rows_of: tuple[str, ...] = (), groups: tuple[tuple[str, ...], ...] = (),
    ) -> JointTables:  # fmt: skip
        """From what counting found (`silosynth.counting.judge.coordinate`).

        Args:
            made: what was counted; sets that did not open are left out of it.
            found: "owners"; "tables" or "distances", None for sets that did not open; "noises"; "numbers" of rows.
            holdout: whether the last axis of each table tells training rows from hold-out rows.
            dp, dealer, rows_of, groups: see the class.
        """
        opened: Sequence[Any] = found.get("distances") or found["tables"]
        kept = [number for number, one in enumerate(opened) if one is not None]
        distances = tuple(tuple(map(float, opened[n])) for n in kept) if found.get("distances") else ()
        tables = [] if distances else [np.asarray(opened[n]) for n in kept]
        training = tuple(table[..., 0] if holdout else table for table in tables)
        held = tuple(table[..., 1] for table in tables) if holdout and tables else None
        noises = tuple(float(found["noises"][n]) for n in kept) if any(found.get("noises") or ()) else ()
        owners = tuple(silo or None for silo in found["owners"])
        first, second = found["numbers"] if distances else (0, 0)
        numbers = (first, second)
        return cls(made.only(kept), owners, training, held, noises, distances, numbers, dp, dealer, rows_of, groups)


def count_pooled(
    made: JointPlan, train: Any, holdout: Any | None = None, silos: Mapping[str, Sequence[str]] | None = None
) -> JointTables:
    """The same tables, counted from rows that one party holds.

    Args:
        made: what is counted.
        train: the real rows.
        holdout: real rows that were set aside, of the same columns.
        silos: each silo's columns, to tell pairs within from pairs across silos.

    Raises:
        DataError: a table lacks a column, or holds other values than are counted.
    """
    owner = {name: silo for silo, held in (silos or {}).items() for name in held}
    training, held = (
        None if frame is None else sound.count_rows(made.codes(frame), made.sizes, made.sets)
        for frame in (train, holdout)
    )
    return JointTables(made, tuple(owner.get(name) for name in made.names), training or (), held)


def references(made: JointPlan, synthetic: Any) -> tuple[Ints, ...]:
    """What squared distances are measured to: for each set, along the first axis, the synthetic table's own table, and
    what it would be if the columns were independent; counts of `FINER` times as many rows.
    """
    counted = sound.count_rows(made.codes(synthetic), made.sizes, made.sets)
    return tuple(
        np.stack([FINER * table, np.rint(FINER * table.sum() * independent(table / table.sum())).astype(np.int64)])
        for table in counted
    )


def independent(shares: Floats) -> Floats:
    """What a table's shares would be if its columns were independent."""
    expected = np.ones(())
    for axis in range(shares.ndim):
        expected = expected[..., None] * shares.sum(axis=tuple(a for a in range(shares.ndim) if a != axis))
    return expected
