"""One table among several silos: columns dealt out to them, or the levels of tables that hold different rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from silosynth.core.errors import DataError
from silosynth.core.schema import Column, Table, union

PAPER_SEED = 12343
"""Seed of the permuted partition in the SiloFuse paper (which does not name its generator)."""


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


def own_levels(table: Table) -> Table:
    """The table coded by the levels of its own rows, since its silo must not know those of other rows.

    Boolean columns always have the levels false and true.
    """
    return Table(tuple(_own(column) for column in table.columns))


def common_levels(tables: Sequence[Table]) -> list[Table]:
    """Tables of the same columns, coded by the levels of all of them (`union`)."""
    columns = [_alike(column) for column in zip(*(table.columns for table in tables), strict=True)]
    return [Table(row) for row in zip(*columns, strict=True)]


def _own(column: Column) -> Column:
    if column.levels is None or all(isinstance(level, bool) for level in column.levels):
        return column
    codes = torch.unique(column.values[~column.missing]).tolist()
    return _recoded(column, [column.levels[code] for code in codes])


def _alike(columns: Sequence[Column]) -> list[Column]:
    levels_of = [column.levels for column in columns]
    if None in levels_of:  # numbers; only columns without values have (empty) levels nonetheless
        return [replace(column, levels=None) for column in columns]
    levels = union([own for own in levels_of if own is not None])
    return [_recoded(column, levels) for column in columns]


def _recoded(column: Column, levels: Sequence[Any]) -> Column:
    """The column coded by other levels, which include all that occur in it."""
    places = {level: code for code, level in enumerate(levels)}
    codes = torch.tensor([places.get(level, 0) for level in column.levels or ()] or [0])
    values = codes[column.values].masked_fill(column.missing, 0)
    return replace(column, values=values, levels=tuple(levels))
