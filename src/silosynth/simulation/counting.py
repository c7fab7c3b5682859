"""`count`: contingency tables across silos of a simulated federation, by the messages of a real one, then opened."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from silosynth import counting
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.schema import Column, Table
from silosynth.core.streams import Streams
from silosynth.counting import CountRequest, TableCounter
from silosynth.counting.products import AnyWords
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.federation import Federation, check_federation, common_levels
from silosynth.simulation.silos import InProcess


def count(
    federation: Federation,
    sets: Iterable[Sequence[str]],
    edges: Mapping[str, Sequence[Any]] | None = None,
    *,
    ledger: Ledger | None = None,
) -> list[pd.DataFrame]:
    """Count how often levels of columns occur together, whichever silos hold them: one table for each set of columns.

    Silos and coordinator exchange what they would across organisations: each silo ends up with a share of each table,
    which by itself says nothing. Here, in a simulation, the shares are then added up. docs/guide/counting.md says who
    sees what.

    Args:
        federation: from `simulate`.
        sets: columns of each table, in at most three silos.
        edges: of columns of numbers and dates, rising: values are counted below the first edge, from each edge to below
            the next, and from the last on.
        ledger: records all messages, if given.

    Returns:
        For each set a frame of counts: the last column's levels across, those of the others down; of a set of one
        column one column "count". Missing values are a level (NaN) of columns that have some, as in
        ``pandas.crosstab(…, dropna=False)``.

    Raises:
        ConfigError: a set names an unknown column, or columns of more than three silos; a column of numbers has no
            edges, or another has some; tables are too large.

    >>> import pandas as pd, silosynth as ss
    >>> frame = pd.DataFrame({"age": [30, 40, 50], "sex": ["f", "m", "f"], "ill": ["no", None, "yes"]})
    >>> silos = {"bank": ["age", "sex"], "clinic": ["ill"]}
    >>> federation = ss.simulate(frame, silos, schema={"age": "integer"})
    >>> by_sex, by_age = count(federation, [["sex", "ill"], ["age", "ill"]], edges={"age": [40]})
    >>> by_sex  # doctest: +NORMALIZE_WHITESPACE
    ill  no  yes  NaN
    sex
    f     1    1    0
    m     0    0    1
    >>> by_age  # doctest: +NORMALIZE_WHITESPACE
    ill    no  yes  NaN
    age
    < 40    1    0    0
    ≥ 40    0    1    1
    """
    check_federation(federation)
    names, edges = [tuple(columns) for columns in sets], dict(edges or {})
    request = _request(federation, names, edges)
    parties = _counted(federation, request, Ledger() if ledger is None else ledger)
    shares = zip(*(party.shares for party in parties), strict=True)
    return [
        _frame(table, columns, [_labels(request.columns[place], edges) for place in places])
        for table, columns, places in zip(map(_opened, shares), names, request.sets, strict=True)
    ]


def _counted(federation: Federation, request: CountRequest, ledger: Ledger) -> list[TableCounter]:
    """The silos, with their shares."""
    seated, roster = seats(federation.roster, Streams(0).child("counting")), federation.roster
    tables = zip(federation.tables, _tables(federation), strict=True)
    parties = {silo: TableCounter(table, federation.schemas[silo], seated[silo]) for silo, table in tables}
    with InProcess(parties) as link:
        drive(lambda _: counting.count(roster, request), link, ledger)
    return list(parties.values())


def _opened(shares: Sequence[AnyWords]) -> npt.NDArray[np.int64]:
    table: npt.NDArray[np.int64] = np.stack(shares).sum(axis=0, dtype=shares[0].dtype).astype(np.int64)
    return table


def _tables(federation: Federation) -> Iterable[Table]:
    """Tables whose columns have levels in common where silos have the same columns."""
    tables = list(federation.tables.values())
    return common_levels(tables) if federation.horizontal else tables


def _request(
    federation: Federation, sets: Sequence[tuple[str, ...]], edges: Mapping[str, Sequence[Any]]
) -> CountRequest:
    """Levels are those of the table; the number of rows is rounded up, as silos' own would be."""
    owner = {name: silo for silo, names in federation.silos.items() for name in names}
    tables = dict(zip(federation.tables, _tables(federation), strict=True))
    used = list(dict.fromkeys(name for names in sets for name in names))
    for name in [*used, *edges]:
        if name not in federation.schema.modelled:
            rule = "Columns that are counted are in a silo, and neither identifiers nor pseudonyms"
            raise ConfigError(rule, name, nearest(str(name), map(str, federation.schema.modelled)))
    columns = []
    for name in used:
        column = tables[owner[name]][name]
        silo, declared = "" if federation.horizontal else owner[name], _edges(column, edges.get(name, ()))
        columns.append(counting.CountedColumn(silo, name, column.levels or (), declared))
    rows = counting.padded(max(len(table) for table in tables.values()))
    bits = counting.bits_for(rows * len(tables) if federation.horizontal else rows)
    places = [tuple(used.index(name) for name in names) for names in sets]
    return counting.CountRequest(federation.roster.parties, tuple(columns), tuple(places), rows, bits)


def _edges(column: Column, edges: Sequence[Any]) -> tuple[int | float, ...]:
    """Edges as the column's values are: dates in nanoseconds."""
    if column.levels is None and not len(edges):
        remedy = f'Declare where bins begin, such as edges={{"{column.name}": [10, 20]}}.'
        raise ConfigError("A column of numbers or dates is counted between edges", column.name, remedy)
    if column.levels is not None and len(edges):
        raise ConfigError("Only columns of numbers and dates have edges", column.name, "Leave them out.")
    return tuple(map(_edge, edges))


def _edge(edge: Any) -> int | float:
    if isinstance(edge, str | datetime | np.datetime64):
        return int(pd.Timestamp(edge).value)
    if isinstance(edge, timedelta | np.timedelta64):
        return int(pd.Timedelta(edge).value)
    return int(edge) if isinstance(edge, int | np.integer) else float(edge)


def _labels(column: counting.CountedColumn, edges: Mapping[str, Sequence[Any]]) -> list[Hashable]:
    """What a column's levels are called; that of missing values is NaN."""
    if not column.edges:
        return [*column.levels, np.nan]
    given = list(edges[column.name])
    between = [f"[{low}, {high})" for low, high in itertools.pairwise(given)]
    return [f"< {given[0]}", *between, f"≥ {given[-1]}", np.nan]


def _frame(table: npt.NDArray[np.int64], names: Sequence[str], labels: Sequence[list[Hashable]]) -> pd.DataFrame:
    """A table with its labels; without the level of missing values of columns that have none."""
    for axis in range(table.ndim):
        if not np.take(table, -1, axis).any():
            table = np.take(table, range(table.shape[axis] - 1), axis)
    axes = [pd.Index(own[:size], name=name) for own, size, name in zip(labels, table.shape, names, strict=True)]
    if len(axes) == 1:
        return pd.DataFrame({"count": table}, index=axes[0])
    down = axes[0] if len(axes) == 2 else pd.MultiIndex.from_product(axes[:-1])
    return pd.DataFrame(table.reshape(-1, table.shape[-1]), index=down, columns=axes[-1])
