"""`count`: contingency tables across silos of a simulated federation, by the messages of a real one, then opened."""

from __future__ import annotations

import itertools
import math
import operator
import secrets
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from silosynth import counting
from silosynth.core.conversation import COORDINATOR, Conversation
from silosynth.core.errors import ConfigError, DataError, nearest
from silosynth.core.schema import Column, Table, common_levels
from silosynth.core.streams import Streams
from silosynth.counting import CountRequest, TableCounter
from silosynth.counting.products import AnyWords
from silosynth.data import dtypes
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import seats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.federation import Federation, check_federation
from silosynth.simulation.model import seed_number
from silosynth.simulation.silos import InProcess

_DELTA = 1e-9  # of a target that is a sum of epsilons, which need none; the least that targets take


def count(
    federation: Federation,
    sets: Iterable[Sequence[str]],
    edges: Mapping[str, Sequence[Any]] | None = None,
    *,
    epsilon: float | None = None,
    seed: int | None = None,
    dealer: str = "",
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
        epsilon: of each table, which opens with discrete Laplace noise then, to be had in the ledger as an event; None
            for exact counts. Columns are of one or two silos then. Levels and edges are public: those of columns are
            taken from the table itself.
        seed: of the noise: the same seed gives the same tables, and whoever knows it knows the noise. None for the
            operating system's randomness.
        dealer: a silo that holds none of these columns, and deals the random numbers in place of the coordinator.
        ledger: records all messages, if given.

    Returns:
        For each set a frame of counts: the last column's levels across, those of the others down; of a set of one
        column one column "count". Missing values are a level (NaN) of columns that have some, as in
        ``pandas.crosstab(…, dropna=False)``; with noise of all columns. Noised counts may be below zero.

    Raises:
        ConfigError: a set names an unknown column, or columns of more than three silos (with noise, two); a column of
            numbers has no edges, or another has some; tables are too large; or the dealer is no silo, or holds one of
            the columns.
        DataError: all of a column is missing, or a silo holds nothing but identifiers and pseudonyms.

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
    seed = None if seed is None else seed_number(seed)
    if epsilon is not None and not isinstance(epsilon, int | float):
        raise ConfigError("An epsilon is a number above zero", epsilon)
    names, edges = [tuple(columns) for columns in sets], dict(edges or {})
    request = replace(_request(federation, names, edges, epsilon), dealer=dealer)
    tables = _counted(federation, request, epsilon, seed, Ledger() if ledger is None else ledger)
    return [
        _frame(table, columns, [_labels(request.columns[place], edges) for place in places], epsilon is None)
        for table, columns, places in zip(tables, names, request.sets, strict=True)
    ]


def _counted(
    federation: Federation, request: CountRequest, epsilon: float | None, seed: int | None, ledger: Ledger
) -> list[npt.NDArray[np.int64]]:
    """Tables of all sets. Each silo's target affords them all."""
    seated, roster, number = (
        seats(federation.roster, Streams(0).child("counting")),
        federation.roster,
        len(request.sets),
    )
    noises = {} if epsilon is None else dict.fromkeys(range(number), counting.CellNoise(float(epsilon)))
    target = Target(number * epsilon, _DELTA) if epsilon is not None and 0 < epsilon < math.inf else None
    parties = {
        silo: TableCounter(table, federation.schemas[silo], seated[silo], target, _streams(seed, silo))
        for silo, table in zip(federation.tables, _tables(federation), strict=True)
    }

    def whole(_: object) -> Conversation[counting.OpenedTables | None]:
        yield from counting.count(roster, request)
        if not noises:
            return None
        return (yield from counting.open_tables(roster, request, noises, _streams(seed, COORDINATOR).noise()))

    with InProcess(parties) as link:
        noised = drive(whole, link, ledger)
    if noised is not None:
        return list(noised.passed_on.values())
    return [_opened(shares) for shares in zip(*(party.shares for party in parties.values()), strict=True)]


def _streams(seed: int | None, party: str) -> Streams:
    """Of a party's noise."""
    return Streams(secrets.randbits(256) if seed is None else seed).child("counting", party)


def _opened(shares: Sequence[AnyWords]) -> npt.NDArray[np.int64]:
    table: npt.NDArray[np.int64] = np.stack(shares).sum(axis=0, dtype=shares[0].dtype).astype(np.int64)
    return table


def _tables(federation: Federation) -> Iterable[Table]:
    """Tables whose columns have levels in common where silos have the same columns."""
    tables = list(federation.tables.values())
    return common_levels(tables) if federation.horizontal else tables


def _request(
    federation: Federation, sets: Sequence[tuple[str, ...]], edges: Mapping[str, Sequence[Any]], epsilon: float | None
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
        if column.levels == () and name not in edges:
            raise DataError("A column that is counted holds a value", name, "Leave it out: all of it is missing.")
        silo, declared = "" if federation.horizontal else owner[name], _edges(column, edges.get(name, ()))
        columns.append(counting.CountedColumn(silo, name, column.levels or (), declared))
    rows = counting.padded(max(len(table) for table in tables.values()))
    bits = counting.bits_for(rows * len(tables) if federation.horizontal else rows)
    if epsilon is not None and 0 < epsilon < math.inf:
        bits = max(bits, counting.bits_to_open(rows, counting.CellNoise(epsilon)))
    places = [tuple(used.index(name) for name in names) for names in sets]
    return counting.CountRequest(federation.roster.parties, tuple(columns), tuple(places), rows, bits)


def _edges(column: Column, edges: Sequence[Any]) -> tuple[int | float, ...]:
    """Edges as the column's values are: dates and durations in nanoseconds."""
    name = column.name
    if isinstance(edges, str) or not isinstance(edges, Sequence | np.ndarray | pd.Index):
        raise ConfigError(f"The edges of column {name!r} are a list", type(edges).__name__, "Such as [10, 20].")
    if column.levels is None and not len(edges):
        remedy = f'Declare where bins begin, such as edges={{"{name}": [10, 20]}}.'
        raise ConfigError("A column of numbers or dates is counted between edges", name, remedy)
    if column.levels is not None and len(edges):
        raise ConfigError("Only columns of numbers and dates have edges", name, "Leave them out.")
    return tuple(_edge(column, edge) for edge in edges)


def _edge(column: Column, edge: Any) -> int | float:
    kind = dtypes.resolve(column.dtype).kind
    try:
        if kind in "mM":
            made = (pd.Timestamp if kind == "M" else pd.Timedelta)(edge)
            return int(made.as_unit("ns").value) if not pd.isna(made) else math.nan
        if isinstance(edge, str | bool | np.bool_):
            raise TypeError
        return operator.index(edge) if hasattr(edge, "__index__") else float(edge)
    except (TypeError, ValueError, OverflowError) as error:
        what = {"M": "dates", "m": "durations"}.get(kind, "numbers")
        raise ConfigError(f"The edges of column {column.name!r} are {what}, as it holds", str(edge)) from error


def _labels(column: counting.CountedColumn, edges: Mapping[str, Sequence[Any]]) -> list[Hashable]:
    """What a column's levels are called; that of missing values is NaN."""
    if not column.edges:
        return [*column.levels, np.nan]
    given = list(edges[column.name])
    between = [f"[{low}, {high})" for low, high in itertools.pairwise(given)]
    return [f"< {given[0]}", *between, f"≥ {given[-1]}", np.nan]


def _frame(
    table: npt.NDArray[np.int64], names: Sequence[str], labels: Sequence[list[Hashable]], exact: bool
) -> pd.DataFrame:
    """A table with its labels; of an exact one without the level of missing values of columns that have none."""
    for axis in range(table.ndim) if exact else ():
        if not np.take(table, -1, axis).any():
            table = np.take(table, range(table.shape[axis] - 1), axis)
    axes = [pd.Index(own[:size], name=name) for own, size, name in zip(labels, table.shape, names, strict=True)]
    if len(axes) == 1:
        return pd.DataFrame({"count": table}, index=axes[0])
    down = axes[0] if len(axes) == 2 else pd.MultiIndex.from_product(axes[:-1])
    return pd.DataFrame(table.reshape(-1, table.shape[-1]), index=down, columns=axes[-1])
