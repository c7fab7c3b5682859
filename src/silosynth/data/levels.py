"""Levels of tables that hold different rows of the same columns: each its own, or all of them those of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from silosynth.core.schema import Column, Table, union


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
