"""A simulated federation: one table among several silos on this machine, by columns or by rows."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from silosynth.core import notebook
from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, DataError, SchemaError, nearest
from silosynth.core.schema import (
    UNMODELLED,
    Column,
    Kind,
    Schema,
    Table,
    agreed,
    below,
    check_partition,
    common_levels,
    distinct_columns,
    grouped,
    pseudonyms,
)
from silosynth.data.dtypes import TO_TEXT, Nature, nature_of
from silosynth.data.frames import arrow_types, flavour, to_pandas, to_table
from silosynth.data.infer import ColumnWarning, infer, without_marks

PAPER_SEED = 12343
"""Seed of the permuted partition in the SiloFuse paper (which does not name its generator)."""
NAMED_SILOS = 6
"""More silos than these are counted in a federation's line, not named."""


def in_order(columns: Sequence[str], parts: int) -> dict[str, list[str]]:
    """Neighbouring columns for each of ``silo1`` … ``siloM``: d // M of d each, the last one also gets the remainder.

    Raises:
        DataError: fewer columns than silos, or no silo.
    """
    names = list(columns)
    if not 1 <= parts <= len(names):
        raise DataError(
            f"{len(names)} columns can be divided among 1 to {len(names)} silos", parts, "Ask for fewer silos."
        )
    share = len(names) // parts
    edges = [*(share * part for part in range(parts)), len(names)]
    return {f"silo{part + 1}": names[edges[part] : edges[part + 1]] for part in range(parts)}


def permuted(columns: Sequence[str], parts: int, seed: int = PAPER_SEED) -> dict[str, list[str]]:
    """As `in_order`, after shuffling the columns by ``numpy.random.default_rng(seed)``.

    Raises:
        DataError: as `in_order`.
    """
    order = np.random.default_rng(seed).permutation(len(columns))
    return in_order([columns[place] for place in order.tolist()], parts)


@dataclass(frozen=True, repr=False)
class Federation:
    """Who holds what. Each silo's table and schema are given to its own party and to no other.

    Attributes:
        tables: each silo's columns, rows in the same order; or its rows, if horizontal; in groups, its columns of the
            group's rows.
        schemas: each silo's column kinds; if horizontal, the same in every silo.
        columns: all columns in the order of the frame they came from.
        flavour: "pandas", "polars" or "arrow": what `Model.sample` gives back.
        types: of the columns there, see `silosynth.data.frames.arrow_types`.
        horizontal: whether silos, or groups of them, hold different rows of the same columns.
        groups: the silos of each group, which divide all columns among them and hold the same rows; none where silos
            are not in groups.
        own: rows of silos that were not linked, coded as ``tables``; SiloFuse trains on them with ``own_rows``.
    """

    tables: Mapping[str, Table]
    schemas: Mapping[str, Schema]
    columns: tuple[str, ...]
    flavour: str = "pandas"
    horizontal: bool = False
    types: bytes = b""
    own: Mapping[str, Table] = field(default_factory=dict)
    groups: tuple[tuple[str, ...], ...] = ()

    def __repr__(self) -> str:
        """The size of each silo's table, or of all where there are many; no values."""
        if len(self.tables) > NAMED_SILOS:
            return f"Federation of {len(self.tables)} silos ({self.rows} rows, {len(self.columns)} columns)"
        sizes = {name: f"{name} ({len(t)} rows, {len(t.names)} columns)" for name, t in self.tables.items()}
        together = [" and ".join(sizes[silo] for silo in group) for group in self.groups]
        return f"Federation of {', '.join(together or sizes.values())}"

    def _repr_html_(self) -> str:
        rows = [(name, len(t), len(t.names), ", ".join(t.names)) for name, t in self.tables.items()]
        return notebook.table(("silo", "rows", "columns", ""), rows, repr(self))

    @property
    def roster(self) -> Roster:
        """The silos in order."""
        return Roster(tuple(self.tables))

    @property
    def silos(self) -> dict[str, list[str]]:
        """Column names by silo."""
        return {name: list(table.names) for name, table in self.tables.items()}

    @property
    def rows(self) -> int:
        """The number of aligned rows; if horizontal, the number of all silos' rows, or of all groups'."""
        counts = [len(table) for table in self._apart()]
        return sum(counts) if self.horizontal else counts[0]

    def _apart(self) -> list[Table]:
        """What silos hold of different rows: each one's table, or a group's side by side."""
        if not self.groups:
            return list(self.tables.values())
        joined = [distinct_columns([self.tables[silo] for silo in group]) for group in self.groups]
        return [table.select(self.columns) for table in joined]

    @property
    def schema(self) -> Schema:
        """Kinds of all columns, in the frame's order."""
        every = [column for schema in self.schemas.values() for column in schema.columns]
        return Schema(tuple(every)).select(self.columns)

    def central(self, name: str = "central") -> Federation:
        """The same columns and rows in one silo, for baselines that pool everything."""
        tables = self._apart()
        table = below(common_levels(tables)) if self.horizontal else distinct_columns(tables).select(self.columns)
        return Federation({name: table}, {name: self.schema}, self.columns, self.flavour, types=self.types)

    def digest(self) -> str:
        """A hash of all values, by which a checkpoint recognises its data."""
        return digest(self.tables) + (digest(self.own) if self.own else "")


def digest(tables: Mapping[str, Table]) -> str:
    """A hash of all values and names of tables."""
    sha = hashlib.sha256()
    for name, table in tables.items():
        for column in table.columns:
            sha.update(repr((name, column.name, column.dtype, column.levels)).encode())
            sha.update(column.values.contiguous().numpy().tobytes())
            sha.update(column.missing.contiguous().numpy().tobytes())
    return sha.hexdigest()


def check_federation(value: Any, make: str = "simulate(frame, silos={…})", grouped: bool = False) -> None:
    """Refuse anything but a federation, such as a frame; ``make`` says how to make one.

    Raises:
        ConfigError: the value is something else; or, unless ``grouped``, its silos are in groups.
    """
    if not isinstance(value, Federation):
        raise ConfigError(
            "This takes a federation: a table, and who holds what of it", type(value).__name__, f"Pass {make}."
        )
    if value.groups and not grouped:
        rule = "Groups of silos, each divided by columns and of other rows, train mst or aim, and judge a table"
        remedy = "Pass a federation, or an experiment file, of the silos of one group."
        raise ConfigError(rule, f"groups of {', '.join(value.roster)}", remedy)


def simulate(
    frame: Any,
    silos: Mapping[str, Any] | None = None,
    schema: Mapping[str, Any] | None = None,
    rows: Mapping[str, Any] | None = None,
    identifier: str | Sequence[str] | None = None,
) -> Federation:
    """Divide the columns or the rows of one frame among silos, or both; or take each silo's own frame.

    Args:
        frame: a pandas, Polars or Arrow table. Or ``{name: table}``, each silo's own rows of the same columns: kinds
            are then inferred silo by silo, and must agree. With ``identifier``, tables of different columns; or
            ``{group: {name: table}}``, groups of such silos, of different rows.
        silos: ``{name: [columns]}``; None puts every column into one silo. Columns that no silo names are left out. One
            that is declared a pseudonym may be in several silos. ``{group: {name: [columns]}}`` with ``rows`` makes
            groups of silos, each of which divides all columns of its rows.
        schema: what is declared about columns instead of inferred: ``{column: kind or {"kind": …, "low": …, …}}``, with
            the keys of `silosynth.data.infer.ColumnOverride`.
        rows: ``{name: rows}`` instead of ``silos``: positions from 0, which may repeat and be in several silos; a
            slice; or a mask of booleans, one for each row. Rows that no silo names are left out, but kinds are inferred
            from all. With ``silos``, each group's rows.
        identifier: by which columns the rows of ``{name: table}`` are linked, in the order of the first table; they are
            not modelled, and rows come back as pandas has them. Rows that share an identifier with another row of
            their table, or lack one, are not linked. What is left of each table stays with its silo: see the option
            ``own_rows`` of SiloFuse.

    Raises:
        ConfigError: more than one of these ways was given; or two silos of a group hold the same column, or a group
            lacks one.
        DataError: a frame is empty, has duplicate column names, infinities, or columns of mixed types; a silo names
            an unknown column, or two silos the same one; a silo gets no row, or one that does not exist.
        SchemaError: a declared kind does not fit its column, an identifier's dtype can hold no running numbers, or
            silos' own frames disagree about columns.

    >>> import pandas as pd
    >>> federation = simulate(pd.DataFrame({"age": [30, 40], "sex": ["f", "m"]}), silos={"a": ["age"], "b": ["sex"]})
    >>> federation.silos
    {'a': ['age'], 'b': ['sex']}
    >>> federation = simulate(pd.DataFrame({"age": [30, 40, 50]}), rows={"a": [0, 2], "b": slice(1)})
    >>> federation.silos, federation.rows
    ({'a': ['age'], 'b': ['age']}, 3)

    Two regions, in each of which two silos know the same people:

    >>> frame = pd.DataFrame({"age": [30, 40, 50, 60], "sex": ["f", "m", "f", "m"]})
    >>> north, south = {"clinic": ["age"], "fund": ["sex"]}, {"hospital": ["age"], "insurer": ["sex"]}
    >>> federation = simulate(
    ...     frame, rows={"north": slice(2), "south": slice(2, 4)}, silos={"north": north, "south": south}
    ... )
    >>> federation.groups, federation.rows
    ((('clinic', 'fund'), ('hospital', 'insurer')), 4)
    """
    nested = isinstance(silos, Mapping) and any(isinstance(held, Mapping) for held in silos.values())
    if silos is not None and (nested or rows is not None) and not isinstance(frame, Mapping):
        _check_index(frame)
        return _of_groups(frame, rows or {}, silos, schema)
    used = {"frames": isinstance(frame, Mapping), "silos": silos is not None, "rows": rows is not None}
    ways = [way for way in used if used[way]]
    if len(ways) > 1:
        raise ConfigError(
            "Either columns are dealt out (silos), or rows (rows), or each silo has a frame of its own",
            " and ".join(ways),
            "Give one of them; or, of one frame, silos and rows by group.",
        )
    if identifier is not None and not isinstance(frame, Mapping):
        raise ConfigError("Rows are linked of tables that silos have", type(frame).__name__, "Pass {name: table}.")
    if isinstance(frame, Mapping) and any(isinstance(own, Mapping) for own in frame.values()):
        return _of_linked_groups(frame, schema, identifier)
    for one in frame.values() if isinstance(frame, Mapping) else [frame]:
        _check_index(one)
    if isinstance(frame, Mapping):
        if identifier is None:
            return _of_frames(frame, schema)
        return _linked(frame, schema, [identifier] if isinstance(identifier, str) else list(identifier))
    return _of_columns(frame, silos, schema) if rows is None else _of_rows(frame, rows, schema)


def _check_index(frame: Any) -> None:
    """Say that a pandas index which seems to hold something is not part of the table."""
    index = getattr(frame, "index", None)
    if isinstance(index, pd.Index) and (any(index.names) or not pd.api.types.is_integer_dtype(index.dtype)):
        name = ", ".join(str(name) for name in index.names if name is not None) or "without a name"
        text = f"The frame's index ({name}) is not part of the table: frame.reset_index() makes it a column"
        warnings.warn(text, ColumnWarning, stacklevel=3)


def _of_columns(frame: Any, silos: Mapping[str, Sequence[str]] | None, schema: Mapping[str, Any] | None) -> Federation:
    pandas = to_pandas(frame)
    silos = {"silo1": list(pandas.columns)} if silos is None else silos
    _check_not_empty(silos, 'Name silos and their columns, as in {"bank": ["age"], "shop": ["visits"]}.')
    check_partition(list(pandas.columns), silos, pseudonyms(schema or {}))
    held = {name for names in silos.values() for name in names}
    columns = tuple(name for name in pandas.columns if name in held)
    everything, table = read_table(pandas[list(columns)], schema)
    tables = {name: table.select(list(names)) for name, names in silos.items()}
    schemas = {name: everything.select(list(names)) for name, names in silos.items()}
    return Federation(tables, schemas, columns, flavour(frame), types=arrow_types(frame, everything))


def _of_rows(frame: Any, rows: Mapping[str, Any], schema: Mapping[str, Any] | None) -> Federation:
    _check_not_empty(rows, "Name silos and their rows.")
    kinds, table = read_table(to_pandas(frame), schema)
    tables = {silo: table.take(_positions(silo, held, len(table))).own_levels() for silo, held in rows.items()}
    made = flavour(frame)
    return Federation(tables, dict.fromkeys(tables, kinds), kinds.names, made, True, arrow_types(frame, kinds))


def _of_frames(frames: Mapping[str, Any], schema: Mapping[str, Any] | None) -> Federation:
    _check_not_empty(frames, "Name silos and their tables.")
    read = {}
    for silo, frame in frames.items():
        with _errors_name(silo):
            read[silo] = read_table(to_pandas(frame), schema)
    _check_not_apart({silo: own.names for silo, (own, _) in read.items()})
    kinds = agreed({silo: own for silo, (own, _) in read.items()})
    tables = {silo: table.select(kinds.names).own_levels() for silo, (_, table) in read.items()}
    first = next(iter(frames.values()))
    made = flavour(first)
    return Federation(tables, dict.fromkeys(tables, kinds), kinds.names, made, True, arrow_types(first, kinds))


def _check_not_apart(held: Mapping[str, Sequence[str]]) -> None:
    """Refuse tables of which each has a column that another lacks: these may be of the same rows."""
    every = dict.fromkeys(name for names in held.values() for name in names)
    lacks = {silo: [name for name in every if name not in names] for silo, names in held.items()}
    if all(lacks.values()):
        raise SchemaError(
            "Tables of different rows have the same columns",
            "; ".join(f"{silo}: without {', '.join(names)}" for silo, names in lacks.items()),
            'Rename columns; or link tables of the same rows by a column that all have: identifier="customer".',
        )


def _of_groups(
    frame: Any, rows: Mapping[str, Any], silos: Mapping[str, Any], schema: Mapping[str, Any] | None
) -> Federation:
    """Rows dealt out to groups of silos, and columns within each."""
    if list(rows) != list(silos) or not all(isinstance(held, Mapping) for held in silos.values()):
        raise ConfigError(
            "Rows and columns are both dealt out to groups of silos: each group's rows, and who holds its columns",
            f"rows of {', '.join(rows) or 'none'}; columns of {', '.join(silos)}",
            'Write rows={"north": …, "south": …}, silos={"north": {"clinic": […], "fund": […]}, "south": {…}}.',
        )
    kinds, table = read_table(to_pandas(frame), schema)
    at = {group: _positions(group, held, len(table)) for group, held in rows.items()}
    tables = dict[str, Table]()
    for group, held in silos.items():
        check_partition(list(table.names), held, pseudonyms(schema or {}))
        rows_of = table.take(at[group])
        tables |= _named_once(group, {s: rows_of.select(list(names)).own_levels() for s, names in held.items()}, tables)
    schemas = {silo: kinds.select(own.names) for silo, own in tables.items()}
    return _in_groups(silos, tables, schemas, kinds, flavour(frame), arrow_types(frame, kinds))


def _of_linked_groups(
    frames: Mapping[str, Any], schema: Mapping[str, Any] | None, identifier: str | Sequence[str] | None
) -> Federation:
    """Groups of silos with tables of their own; those of a group are linked by identifiers."""
    if identifier is None or not all(isinstance(held, Mapping) for held in frames.values()):
        raise ConfigError(
            "Tables of groups of silos are given by group, and linked within each",
            "no identifier" if identifier is None else "a table beside groups",
            'Write simulate({"north": {"clinic": …, "fund": …}, "south": {…}}, identifier="patient").',
        )
    linked = {}
    for group, held in frames.items():
        with _errors_name(group, "Group"):
            linked[group] = simulate(held, schema=schema, identifier=identifier)
    tables, schemas = dict[str, Table](), dict[str, Schema]()
    for group, federation in linked.items():
        tables |= _named_once(group, federation.tables, tables)
        schemas |= federation.schemas
    groups = {group: federation.silos for group, federation in linked.items()}
    kinds = agreed(grouped(schemas, list(map(tuple, groups.values()))))
    schemas = {silo: kinds.select(own.names) for silo, own in tables.items()}
    first = next(iter(linked.values()))
    return _in_groups(groups, tables, schemas, kinds, first.flavour, first.types)


def _named_once(group: str, tables: Mapping[str, Table], before: Mapping[str, Table]) -> dict[str, Table]:
    if again := [silo for silo in tables if silo in before]:
        rule = "Silos have names of their own, also in different groups"
        raise ConfigError(rule, f"{', '.join(again)} in {group!r} as well", "Rename one of them.")
    return dict(tables)


def _in_groups(
    groups: Mapping[str, Mapping[str, Any]], tables: Mapping[str, Table], schemas: Mapping[str, Schema], kinds: Schema,
    made: str, types: bytes,
) -> Federation:  # fmt: skip
    """A federation of groups, each of which holds all columns."""
    silos = tuple(tuple(held) for held in groups.values())
    linking = {column.name for column in kinds.columns if column.kind == Kind.PSEUDONYM}
    modelled = {silo: own.select([name for name in own.names if name not in linking]) for silo, own in schemas.items()}
    grouped(modelled, silos)
    held = {name for own in tables.values() for name in own.names}
    columns = tuple(name for name in kinds.names if name in held)
    return Federation(tables, schemas, columns, made, True, types, groups=silos)


def _linked(frames: Mapping[str, Any], schema: Mapping[str, Any] | None, by: list[str]) -> Federation:
    """Tables of different columns, linked by identifiers that all have."""
    _check_not_empty(frames, "Name silos and their tables.")
    pandas = {silo: to_pandas(frame).reset_index(drop=True) for silo, frame in frames.items()}
    places, tables, schemas, own = _common_rows(pandas, by), {}, {}, {}
    for silo, frame in pandas.items():
        others = sorted(set(range(len(frame))) - set(places[silo]))
        frame = frame.drop(columns=by).iloc[[*places[silo], *others]].reset_index(drop=True)
        declared = {name: kind for name, kind in (schema or {}).items() if name in frame.columns}
        with _errors_name(silo):
            schemas[silo], table = read_table(frame, declared)
        linked = torch.arange(len(frame)) < len(places[silo])
        tables[silo], own[silo] = (table.take(rows.nonzero().flatten()).own_levels() for rows in (linked, ~linked))
    held = {silo: list(table.names) for silo, table in tables.items()}
    columns = [name for names in held.values() for name in names]
    check_partition(list(dict.fromkeys(columns)), held, pseudonyms(schema or {}))
    whole = Schema(tuple({column.name: column for one in schemas.values() for column in one.columns}.values()))
    return Federation(tables, schemas, whole.names, own=own)


def _common_rows(frames: Mapping[str, pd.DataFrame], by: list[str]) -> dict[str, list[int]]:
    """Places of the rows that all tables have, in the order of the first table.

    Raises:
        DataError: a table lacks an identifier, or no row is in all tables.
    """
    at: dict[str, dict[Any, int]] = {}
    for silo, frame in frames.items():
        for name in by:
            if name not in frame.columns:
                rule = f"The table of silo {silo!r} has the columns by which rows are linked"
                raise DataError(rule, name, nearest(name, map(str, frame.columns)))
        known = frame[by].dropna()
        known = known[~known.duplicated(keep=False)]
        at[silo] = dict(zip(known.itertuples(index=False, name=None), known.index.tolist(), strict=True))
    first, *rest = at.values()
    common = [key for key in first if all(key in others for others in rest)]
    if not common:
        raise DataError("Some rows are in all tables", "none", f"Have identifiers {by} the same form in all of them?")
    return {silo: [places[key] for key in common] for silo, places in at.items()}


def read_table(frame: Any, schema: Mapping[str, Any] | None) -> tuple[Schema, Table]:
    """Kinds and values of all columns of a pandas frame.

    Raises:
        DataError: a column cannot be used as it is.
        SchemaError: a declared kind does not fit its column, or an identifier's dtype can hold no running numbers.
    """
    frame = without_marks(frame, schema)
    kinds = infer(frame, schema)
    table = to_table(frame, kinds)
    _check_identifiers(frame, kinds, table)
    return kinds, table


def _check_not_empty(silos: Mapping[str, Any], remedy: str) -> None:
    if not isinstance(silos, Mapping):
        raise DataError("Silos are given by name, in a dictionary", type(silos).__name__, remedy)
    if not silos:
        raise DataError("A federation needs at least one silo", dict(silos), remedy)


@contextmanager
def _errors_name(name: str, what: str = "Silo") -> Iterator[None]:
    """Errors in a silo's own table name the silo; in those of a group, the group."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"{what} {name!r}: {error.rule}", error.value, error.remedy) from error


def _positions(silo: str, rows: Any, n: int) -> torch.Tensor:
    """(k,) int64 positions of a silo's rows in a table of ``n``.

    Raises:
        DataError: neither positions nor a slice nor a mask of n booleans; no row; or a row that does not exist.
    """
    try:
        items = list(range(n)[rows] if isinstance(rows, slice) else rows)
    except TypeError:
        items = [None]
    if items and all(isinstance(item, bool | np.bool_) for item in items):
        if len(items) != n:
            raise DataError(
                f"The mask of silo {silo!r} must say of every row whether the silo holds it",
                f"{len(items)} booleans for {n} rows",
                "Make it from the same frame.",
            )
        items = np.flatnonzero(items).tolist()
    _check_positions(silo, items, n)
    return torch.tensor([int(item) for item in items])


def _check_positions(silo: str, items: Sequence[Any], n: int) -> None:
    if not items:
        raise DataError(f"Silo {silo!r} holds no row", f"0 of {n} rows", "Give it at least one, or leave it out.")
    for item in items:
        if not isinstance(item, int | np.integer) or isinstance(item, bool):
            raise DataError(
                f"Silo {silo!r} needs positions of rows, a slice, or a mask of booleans",
                type(item).__name__,
                "Write for instance range(100), slice(100), or (frame['city'] == 'Bern').to_numpy().",
            )
        if not 0 <= item < n:
            raise DataError(f"Silo {silo!r} names a row that the table lacks", item, f"Positions are 0 to {n - 1}.")


def _check_identifiers(frame: Any, schema: Schema, table: Table) -> None:
    """Refuse identifiers and pseudonyms whose dtype cannot hold what synthetic tables have there, before training."""
    for column in schema.columns:
        if column.kind in UNMODELLED and not _numberable(frame[column.name], table[column.name]):
            raise SchemaError(
                f"{column.kind.capitalize()} column {column.name!r} must be text, or numbers in a number dtype: "
                "synthetic tables number its rows, or have substitutes",
                column.dtype,
                f"{TO_TEXT} Or declare another kind, or leave it out.",
            )


def _numberable(series: Any, column: Column) -> bool:
    kind = nature_of(series, column.dtype)
    if kind is Nature.LEVELS:
        return all(isinstance(level, str) for level in column.levels or ())
    boxed = column.dtype.startswith("object|")
    return kind in (Nature.WHOLE, Nature.REAL, Nature.TEXT, Nature.NONE) and not boxed
