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
    """Neighbouring columns to each of ``silo1`` … ``siloM``: d // M of d each, and the last takes the remainder.

    Raises:
        DataError: fewer columns than silos, or no silo.
    """
    names = list(columns)
    if not 1 <= parts <= len(names):
        raise DataError(
            f"{len(names)} columns can be dealt out to 1 to {len(names)} silos", parts, "Ask for fewer silos."
        )
    share = len(names) // parts
    edges = [*(share * part for part in range(parts)), len(names)]
    return {f"silo{part + 1}": names[edges[part] : edges[part + 1]] for part in range(parts)}


def permuted(columns: Sequence[str], parts: int, seed: int = PAPER_SEED) -> dict[str, list[str]]:
    """As `in_order`, after the columns were shuffled by ``numpy.random.default_rng(seed)``.

    Raises:
        DataError: as `in_order`.
    """
    order = np.random.default_rng(seed).permutation(len(columns))
    return in_order([columns[place] for place in order.tolist()], parts)


def own_levels(table: Table) -> Table:
    """The table coded by the levels that its own rows hold: what other rows hold is not its silo's to know.

    False and true are levels of every column of truth values.
    """
    return Table(tuple(_own(column) for column in table.columns))


def common_levels(tables: Sequence[Table]) -> list[Table]:
    """Tables of the same columns, coded by the levels of all of them (`union`)."""
    columns = [_alike(column) for column in zip(*(table.columns for table in tables), strict=True)]
    return [Table(row) for row in zip(*columns, strict=True)]


def _own(column: Column) -> Column:
    if column.levels is None or all(isinstance(level, bool) for level in column.levels):
        return column
    held = torch.unique(column.values[~column.missing]).tolist()
    return _recoded(column, [column.levels[code] for code in held])


def _alike(columns: Sequence[Column]) -> list[Column]:
    known = [column.levels for column in columns]
    if None in known:  # numbers: where there are levels nonetheless, there are none, as the column has no value
        return [replace(column, levels=None) for column in columns]
    levels = union([own for own in known if own is not None])
    return [_recoded(column, levels) for column in columns]


def _recoded(column: Column, levels: Sequence[Any]) -> Column:
    """The column coded by other levels, among them all that occur in it."""
    places = {level: code for code, level in enumerate(levels)}
    codes = torch.tensor([places.get(level, 0) for level in column.levels or ()] or [0])
    values = codes[column.values].masked_fill(column.missing, 0)
    return replace(column, values=values, levels=tuple(levels))
