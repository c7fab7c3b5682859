"""Columns, tables and schemas as plain values: no pandas, no file formats.

A `Column` holds a column's values as tensors, whatever its kind: numbers as float64 or int64, everything else as int64
codes into ``levels``. Missing entries are marked in ``missing`` and hold 0. A `Table` is a struct, so that synthetic
columns can cross a border; that no real ones do is checked message by message in the contract tests.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import torch

from silosynth.core.errors import ConfigError, DataError, ProtocolError, SchemaError, nearest
from silosynth.core.messages import Struct


class Kind(str, Enum):
    """What a column is, to a generator."""

    CONTINUOUS = "continuous"
    INTEGER = "integer"
    CATEGORICAL = "categorical"
    BOOLEAN = "boolean"
    DATETIME = "datetime"
    MIXED = "mixed"  # numeric, with special values or a point mass
    IDENTIFIER = "identifier"  # never modelled: synthetic rows are numbered
    PSEUDONYM = "pseudonym"  # never modelled: synthetic rows get substitutes of the same form

    @property
    def numeric(self) -> bool:
        """Whether values lie on a line (numbers and instants)."""
        return self in (Kind.CONTINUOUS, Kind.INTEGER, Kind.MIXED, Kind.DATETIME)


DURATIONS = ("timedelta64", "duration")  # how dtypes of durations begin; their kind is datetime
UNMODELLED = (Kind.IDENTIFIER.value, Kind.PSEUDONYM.value)
"""The kinds of columns that no generator learns, and no evaluation compares."""


class Column(Struct):
    """One column of n rows.

    Attributes:
        name: the column's name.
        dtype: the dtype it has (and gets back) in the user's frame, as pandas spells it.
        values: (n,) float64 or int64 numbers; instants as int64 nanoseconds since 1970; or codes into ``levels``.
        missing: (n,) bool, true where there is no value.
        levels: the levels that codes refer to; None for numbers and instants.
    """

    name: str
    dtype: str
    values: torch.Tensor
    missing: torch.Tensor
    levels: tuple[str | int | float | bool, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def recoded(self, levels: Sequence[Any]) -> Column:
        """The column coded by other levels, which include all that occur in it."""
        place = {level: code for code, level in enumerate(levels)}
        code_L = torch.tensor([place.get(level, 0) for level in self.levels or ()] or [0])
        return replace(self, values=code_L[self.values].masked_fill(self.missing, 0), levels=tuple(levels))

    def own_levels(self) -> Column:
        """The column with the levels that occur in it, and no others; booleans always have false and true."""
        if self.levels is None or all(isinstance(level, bool) for level in self.levels):
            return self
        return self.recoded([self.levels[code] for code in self.values[~self.missing].unique().tolist()])

    def common_levels(self, rows: int) -> int:
        """How many levels at least so many rows hold; 0 for numbers and instants."""
        if self.levels is None:
            return 0
        return int((torch.bincount(self.values[~self.missing]) >= rows).sum())

    def take(self, rows: torch.Tensor | slice) -> Column:
        """The column restricted to ``rows``."""
        return replace(self, values=self.values[rows], missing=self.missing[rows])


class Table(Struct):
    """Columns of equal length, each with a name of its own.

    Raises:
        DataError: lengths differ or a name occurs twice.
    """

    columns: tuple[Column, ...]

    def _check(self) -> None:
        if len({len(column) for column in self.columns}) > 1:
            raise DataError("All columns of a table have the same length", {c.name: len(c) for c in self.columns})
        twice = _repeated(column.name for column in self.columns)
        if twice:
            raise DataError("Every column needs a name of its own", twice, "Rename or drop one of them.")

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise DataError("The table has no such column", name, nearest(name, self.names))

    def select(self, names: Sequence[str]) -> Table:
        """The table restricted to ``names``, in that order."""
        return Table(tuple(self[name] for name in names))

    def own_levels(self) -> Table:
        """The table coded by the levels of its own rows: its silo must not know those of other rows."""
        return Table(tuple(column.own_levels() for column in self.columns))

    def take(self, rows: torch.Tensor | slice) -> Table:
        """The table restricted to ``rows``."""
        return Table(tuple(column.take(rows) for column in self.columns))


LEAST_ROWS = 2  # of a table that a network can learn from


def modelled_columns(table: Table, schema: Schema) -> Table:
    """The columns that are learnt from: all but identifiers and pseudonyms."""
    return table.select([name for name in table.names if name in schema.modelled])


def common_levels(tables: Sequence[Table]) -> list[Table]:
    """Tables of the same columns, coded by the levels of all of them (`union`)."""
    columns = [_alike(column) for column in zip(*(table.columns for table in tables), strict=True)]
    return [Table(row) for row in zip(*columns, strict=True)]


def _alike(columns: Sequence[Column]) -> list[Column]:
    levels_of = [column.levels for column in columns]
    if None in levels_of:  # numbers; only columns without values have (empty) levels nonetheless
        return [replace(column, levels=None) for column in columns]
    levels = union([own for own in levels_of if own is not None])
    return [column.recoded(levels) for column in columns]


def check_trainable(table: Table, schema: Schema) -> None:
    """Check that a silo's modelled columns can be learnt from.

    Raises:
        DataError: no column, or fewer than two rows.
    """
    if not table.columns:
        raise DataError(
            "A silo needs at least one column that is neither an identifier nor a pseudonym",
            schema.names,
            'Declare what a column is, such as schema={"city": "categorical"}, or give the silo another column.',
        )
    if len(table) < LEAST_ROWS:
        raise DataError(f"A generator needs at least {LEAST_ROWS} rows", len(table), "Give the silo more.")


def beside(tables: Iterable[Table]) -> Table:
    """Columns of the same rows, side by side."""
    return Table(tuple(column for table in tables for column in table.columns))


def distinct_columns(tables: Iterable[Table]) -> Table:
    """As `beside`; of a column that several silos hold, such as a pseudonym, the first one's."""
    return Table(tuple({column.name: column for table in reversed([*tables]) for column in table.columns}.values()))


def pseudonyms(schema: Mapping[str, Any]) -> set[str]:
    """The columns that are declared pseudonyms, by a kind or by several properties."""
    rules = {name: rule.get("kind") if isinstance(rule, Mapping) else rule for name, rule in schema.items()}
    return {name for name, rule in rules.items() if getattr(rule, "kind", rule) == Kind.PSEUDONYM}


def below(tables: Sequence[Table]) -> Table:
    """Tables of the same columns, concatenated by rows.

    Raises:
        DataError: names or levels of a column differ, so that its codes mean different things.
    """
    first = tables[0]
    for table in tables[1:]:
        _check_same(first, table)
    return Table(
        tuple(
            replace(
                column,
                values=torch.cat([table.columns[i].values for table in tables]),
                missing=torch.cat([table.columns[i].missing for table in tables]),
            )
            for i, column in enumerate(first.columns)
        )
    )


class ColumnSchema(Struct):
    """What a silo declares (or infers) about one of its columns. It stays inside the silo.

    Attributes:
        name: the column's name.
        kind: a value of `Kind`.
        dtype: pandas dtype.
        decimals: decimal places that the values have; negative means tens, hundreds…; None when they have no grid.
        low, high: the range that synthetic values may take (numbers and instants); None for the data's own range.
        reason: why this kind was inferred, in words; "declared" where the user said so.
        forms: of a pseudonym: the forms that at least five rows each have (see `silosynth.data.personal`).
        missing: what the user declared to stand for missing values, as text; it is in no table that is learnt from.
        levels: of categories: those that there may be, where the user declared them, which makes them public.
    """

    name: str
    kind: str
    dtype: str
    decimals: int | None = None
    low: float | None = None
    high: float | None = None
    reason: str = "declared"
    forms: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    levels: tuple[str | int | float | bool, ...] = ()


class Schema(Struct):
    """Column schemas in column order."""

    columns: tuple[ColumnSchema, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    def __getitem__(self, name: str) -> ColumnSchema:
        for column in self.columns:
            if column.name == name:
                return column
        raise SchemaError("The schema has no such column", name, nearest(name, self.names))

    def select(self, names: Sequence[str]) -> Schema:
        """The schema restricted to ``names``, in that order."""
        return Schema(tuple(self[name] for name in names))

    @property
    def modelled(self) -> tuple[str, ...]:
        """Names of the columns that a generator learns: all but identifiers and pseudonyms."""
        return tuple(column.name for column in self.columns if column.kind not in UNMODELLED)


def beyond_bounds(table: Table, schema: Schema) -> dict[str, int]:
    """How many values of each column lie beyond its declared bounds, which no synthetic value passes.

    Columns without such values are left out. The counts are exact: they are for the silo itself.
    """
    counts = {}
    for column in table.columns:
        declared, present = schema[column.name], column.values[~column.missing]
        low = 0 if declared.low is None else int((present < declared.low).sum())
        high = 0 if declared.high is None else int((present > declared.high).sum())
        if column.levels is None and low + high:
            counts[column.name] = low + high
    return counts


def agreed(schemas: Mapping[str, Schema]) -> Schema:
    """The common schema of silos that hold different rows of the same columns, in the first silo's column order.

    A column has the decimal places of the most precise silo, or no grid where one silo's has none; and the widest
    declared range, or the data's own at an end where one silo declares none.

    Raises:
        SchemaError: silos hold other columns, or a column is of another kind or dtype in one of them; names the column,
            and what each silo says.
    """
    first = next(iter(schemas.values()))
    for name in dict.fromkeys(name for schema in schemas.values() for name in schema.names):
        _check_alike(
            f"Column {name!r} must be in every silo",
            {silo: "there" if name in schema.names else "absent" for silo, schema in schemas.items()},
            "Rename it where it has another name, or leave it out everywhere.",
        )
    return Schema(tuple(_agreed({silo: schema[name] for silo, schema in schemas.items()}) for name in first.names))


def grouped(schemas: Mapping[str, Schema], groups: Sequence[Sequence[str]]) -> dict[str, Schema]:
    """The schema of each group of silos, by the names of its silos; of each silo where there are no groups.

    Raises:
        ConfigError: groups do not name each silo once; two silos of a group hold a column, or a group lacks one.
    """
    if not groups:
        return dict(schemas)
    check_groups({silo: schema.names for silo, schema in schemas.items()}, groups)
    merged = {group: {c.name: c for silo in group for c in schemas[silo].columns} for group in map(tuple, groups)}
    return {" and ".join(group): Schema(tuple(columns.values())) for group, columns in merged.items()}


def check_groups(held: Mapping[str, Sequence[str]], groups: Sequence[Sequence[str]]) -> None:
    """Check that each group of silos holds all columns, each in one of its silos.

    Raises:
        ConfigError: see `grouped`.
    """
    named = [silo for group in groups for silo in group]
    if sorted(named) != sorted(held):
        rule = "Groups of silos name all silos, each once"
        raise ConfigError(rule, sorted(set(named) ^ set(held)) or sorted(named), f"Silos are {', '.join(held)}.")
    every = list(dict.fromkeys(name for silo in named for name in held[silo]))
    for group in groups:
        holders = {name: [silo for silo in group if name in held[silo]] for name in every}
        if lacking := [name for name, silos in holders.items() if not silos]:
            raise ConfigError(
                "Every group of silos holds all columns: a table of two that only some groups hold is not learnt",
                f"{' and '.join(group)}: without {', '.join(lacking)}",
                "Leave these columns out in all groups, or the group.",
            )
        if twice := [name for name, silos in holders.items() if len(silos) > 1]:
            raise ConfigError(
                "A column is in one silo of each group: a row would count twice in it",
                f"{', '.join(twice)}: in {' and '.join(holders[twice[0]])}", "Leave it out in all but one of them.",
            )  # fmt: skip


def owners(schemas: Mapping[str, Schema], group: Sequence[str], names: Sequence[str]) -> list[str]:
    """Which silo of a group holds each column."""
    return [next(silo for silo in group if name in schemas[silo].names) for name in names]


def check_agreed(own: Schema, common: Schema) -> None:
    """Check that a silo's own columns are among those from which `agreed` makes ``common``, as far as it can tell.

    Raises:
        ProtocolError: a column is missing, of another kind or dtype, or its range narrower than the silo's own.
    """
    differ = sorted(set(own.names) ^ set(common.names))
    differ += [name for name in own.names if name in common.names and not _covers(common[name], own[name])]
    if differ:
        rule = "What silos agree on covers each silo's own columns, with their kinds and ranges"
        raise ProtocolError(rule, differ, "Both sides must run the same version of silosynth.")


def _covers(common: ColumnSchema, own: ColumnSchema) -> bool:
    low = common.low is None or (own.low is not None and common.low <= own.low)
    high = common.high is None or (own.high is not None and common.high >= own.high)
    alike = (common.kind, common.dtype, common.levels) == (own.kind, own.dtype, own.levels)
    return alike and low and high


def _agreed(declared: Mapping[str, ColumnSchema]) -> ColumnSchema:
    first = next(iter(declared.values()))
    _check_alike(
        f"Column {first.name!r} must be of the same kind in every silo",
        {silo: column.kind for silo, column in declared.items()},
        f'Declare its kind, such as schema={{"{first.name}": "{first.kind}"}}, or cast it to one dtype in every silo.',
    )
    _check_alike(
        f"Column {first.name!r} must have the same dtype in every silo",
        {silo: column.dtype for silo, column in declared.items()},
        "Cast it to one of them in every silo, with .astype; of numbers and dates in text, declare one format.",
    )
    _check_alike(
        f"Column {first.name!r} must have the same declared levels in every silo",
        {silo: json.dumps(column.levels) for silo, column in declared.items()},
        "Declare the same ones, in the same order, or none anywhere.",
    )
    return replace(
        first,
        decimals=_if_all(max, [column.decimals for column in declared.values()]),
        low=_if_all(min, [column.low for column in declared.values()]),
        high=_if_all(max, [column.high for column in declared.values()]),
        reason="agreed",
        forms=tuple(sorted({form for column in declared.values() for form in column.forms})),
        missing=tuple(sorted({mark for column in declared.values() for mark in column.missing})),
    )


def _check_alike(rule: str, declared: Mapping[str, str], remedy: str) -> None:
    """Raise if silos differ; the error groups silos by what they declare."""
    if len(set(declared.values())) > 1:
        groups = {what: [silo for silo in declared if declared[silo] == what] for what in declared.values()}
        raise SchemaError(rule, "; ".join(f"{what} in {', '.join(them)}" for what, them in groups.items()), remedy)


def _if_all(choose: Callable[[Iterable[Any]], Any], values: Sequence[Any]) -> Any:
    return None if None in values else choose(values)


def same_columns(held: Mapping[str, Collection[str]]) -> bool:
    """Whether silos hold the same columns, and so different rows of them; if not, no two hold a common one.

    Raises:
        ConfigError: silos share some of their columns, and not all.
    """
    own = [set(names) for names in held.values()]
    if all(names == own[0] for names in own):
        return True
    shared = sorted(set().union(*(a & b for a, b in itertools.combinations(own, 2))))
    if shared:
        raise ConfigError(
            "Silos hold either the same columns, of different rows, or different columns, of the same rows",
            f"{len(shared)} columns in some silos, others not: {', '.join(shared)}",
            "Leave these out in all silos but one, or leave out what not all silos hold. If groups of silos hold other "
            "rows each, and divide all columns, name each silo's group.",
        )
    return False


def check_partition(columns: Sequence[str], silos: Mapping[str, Sequence[str]], shared: Collection[str] = ()) -> None:
    """Check that ``silos`` deals out ``columns``: every name known, none twice but ``shared`` ones, no silo empty.

    Columns that no silo holds are allowed: they are simply not part of the federation.

    Raises:
        DataError: names the silo, the column and the rule.
    """
    holder: dict[str, str] = {}
    for silo, names in silos.items():
        if isinstance(names, str):
            raise DataError(f"Silo {silo!r} needs a list of column names", names, f"Write [{names!r}].")
        if len(names) == 0:
            raise DataError(f"Silo {silo!r} holds no column", list(names), "Give it at least one, or leave it out.")
        for name in names:
            if name not in columns:
                raise DataError(f"Silo {silo!r} names an unknown column", name, nearest(str(name), map(str, columns)))
            if name in holder and (name not in shared or holder[name] == silo):
                raise DataError(
                    f"A column belongs to one silo; {name!r} is in {holder[name]!r} and in {silo!r}",
                    name,
                    "Leave it to one of them, or rename it in the other if it holds different values; if it says whose "
                    f'rows these are, declare it pseudonym: schema={{"{name}": "pseudonym"}}.',
                )
            holder[name] = silo


def _check_same(first: Table, second: Table) -> None:
    if first.names != second.names:
        raise DataError(
            "Tables can be concatenated only if their columns are the same", second.names, f"Wanted: {first.names}."
        )
    unlike = [a.name for a, b in zip(first.columns, second.columns, strict=True) if a.levels != b.levels]
    if unlike:
        raise DataError(
            "Columns can be concatenated only if their levels are the same", unlike, "Code them by common levels first."
        )


def _repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return sorted({name for name in names if name in seen or seen.add(name)})  # type: ignore[func-returns-value]


def union(known: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The union of a column's levels in several tables: sorted if they are sorted in every table, else in an order that
    keeps each table's own where possible, so that a declared order of categories is preserved.
    """
    if all(levels == known[0] for levels in known):
        return tuple(known[0])
    every = {level for levels in known for level in levels}
    if len({type(level) for level in every}) == 1 and all(list(levels) == sorted(levels) for levels in known):
        return tuple(sorted(every))
    merged: list[Any] = []
    for levels in known:
        place = 0
        for level in levels:
            if level not in merged:
                merged.insert(place, level)
            place = merged.index(level) + 1
    return tuple(merged)
