"""Levels that silos hold, and their union."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from silosynth.core.schema import Column, Table
from silosynth.data.partition import common_levels, own_levels


def coded(values: list[int], levels: tuple[Any, ...] | None, gaps: int = 0) -> Table:
    """A table of one column; the last ``gaps`` rows have no value."""
    missing = torch.arange(len(values)) >= len(values) - gaps
    return Table((Column("x", "category", torch.tensor(values), missing, levels),))


def test_levels_that_no_row_holds_are_forgotten() -> None:
    column = own_levels(coded([3, 1, 3, 0], ("a", "b", "c", "d"), gaps=1))["x"]
    assert (column.values.tolist(), column.levels) == ([1, 0, 1, 0], ("b", "d"))
    assert own_levels(coded([0, 0], ("a", "b"), gaps=2))["x"].levels == ()
    assert own_levels(coded([7, 8], None))["x"].values.tolist() == [7, 8]
    assert own_levels(coded([1, 1], (False, True)))["x"].levels == (False, True)


@pytest.mark.parametrize(
    ("known", "union"),
    [
        ([("a", "c"), ("b", "c")], ("a", "b", "c")),
        ([(3,), (1, 2)], (1, 2, 3)),
        ([("low", "high"), ("low", "mid", "high")], ("low", "mid", "high")),
        ([("z", "a"), ("a", "b")], ("z", "a", "b")),
        ([("a", "b"), ("b", "a", "c")], ("a", "c", "b")),
        ([(), ("b", "a")], ("b", "a")),
        ([(), ()], ()),
    ],
)
def test_tables_are_coded_by_the_levels_of_all(known: list[tuple[Any, ...]], union: tuple[Any, ...]) -> None:
    tables = [coded([*range(len(levels)), 0], levels, gaps=1) for levels in known]
    for table, levels in zip(common_levels(tables), known, strict=True):
        column = table["x"]
        assert column.levels == union
        assert [union[code] for code in column.values[:-1].tolist()] == list(levels)


def test_numbers_stay_numbers_where_a_silo_has_none() -> None:
    numbers, none = common_levels([coded([5, 6], None), coded([0, 0], (), gaps=2)])
    assert numbers["x"].levels is none["x"].levels is None
    assert numbers["x"].values.tolist() == [5, 6]
