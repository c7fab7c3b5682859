"""Columns dealt out to silos, every one once and in the paper's proportions; levels of silos, and their union."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from silosynth.core.errors import DataError
from silosynth.core.schema import Column, Table, check_partition, common_levels
from silosynth.simulation.federation import in_order, permuted


def test_the_last_silo_takes_the_remainder() -> None:
    silos = in_order(list("abcdefgh"), 3)
    assert silos == {"silo1": ["a", "b"], "silo2": ["c", "d"], "silo3": ["e", "f", "g", "h"]}


@given(st.integers(1, 40), st.data())
def test_every_column_goes_to_one_silo(d: int, data: st.DataObject) -> None:
    columns = [f"c{i}" for i in range(d)]
    parts = data.draw(st.integers(1, d))
    for silos in (in_order(columns, parts), permuted(columns, parts)):
        check_partition(columns, silos)
        assert len(silos) == parts
        assert sorted(name for names in silos.values() for name in names) == sorted(columns)
        assert [len(names) for names in silos.values()][:-1] == [d // parts] * (parts - 1)


def test_the_permutation_is_a_function_of_its_seed() -> None:
    columns = [f"c{i}" for i in range(12)]
    assert permuted(columns, 3) == permuted(columns, 3, seed=12343)
    assert permuted(columns, 3) != permuted(columns, 3, seed=1)
    assert permuted(columns, 3) != in_order(columns, 3)


@pytest.mark.parametrize("parts", [0, 4, -1])
def test_too_many_silos(parts: int) -> None:
    with pytest.raises(DataError, match="1 to 3 silos"):
        in_order(["a", "b", "c"], parts)


def coded(values: list[int], levels: tuple[Any, ...] | None, gaps: int = 0) -> Table:
    """A table of one column; the last ``gaps`` rows have no value."""
    missing = torch.arange(len(values)) >= len(values) - gaps
    return Table((Column("x", "category", torch.tensor(values), missing, levels),))


def test_levels_that_no_row_holds_are_forgotten() -> None:
    column = coded([3, 1, 3, 0], ("a", "b", "c", "d"), gaps=1).own_levels()["x"]
    assert (column.values.tolist(), column.levels) == ([1, 0, 1, 0], ("b", "d"))
    assert coded([0, 0], ("a", "b"), gaps=2).own_levels()["x"].levels == ()
    assert coded([7, 8], None).own_levels()["x"].values.tolist() == [7, 8]
    assert coded([1, 1], (False, True)).own_levels()["x"].levels == (False, True)


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
