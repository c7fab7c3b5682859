"""Columns as levels, against pandas; and columns that are not what was declared."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from silosynth.core.errors import ConfigError, DataError
from silosynth.core.schema import Column
from silosynth.counting import CountedColumn, CountRequest, bits_for, padded
from silosynth.counting.levels import crossed
from silosynth.counting.plan import Plan

TEXT = CountedColumn("bank", "city", ("Bern", "Oslo"))
NUMBER = CountedColumn("bank", "age", edges=(18, 65.5))


def column(values: torch.Tensor, missing: list[bool] | None = None, levels: tuple | None = None) -> Column:
    return Column("x", "?", values, torch.tensor(missing or [False] * len(values)), levels)


@settings(max_examples=25)
@given(
    st.lists(st.one_of(st.none(), st.floats(-9, 9), st.sampled_from([0.0, 1.0, 2.5])), max_size=20),
    st.lists(st.sampled_from([-3.0, 0.0, 1.0, 1.5, 2.5, 7.0]), min_size=1, max_size=5, unique=True).map(sorted),
)
def test_bins_are_those_of_pandas(values: list[float | None], edges: list[float]) -> None:
    counted = CountedColumn("bank", "x", edges=tuple(edges))
    missing = [value is None for value in values]
    numbers = torch.tensor([value or 0.0 for value in values], dtype=torch.float64)
    cut = pd.cut(pd.Series(values, dtype="float64"), [-np.inf, *edges, np.inf], right=False, labels=False)
    expected = cut.fillna(len(edges) + 1).astype(int).tolist()
    assert counted.codes(column(numbers, missing)).tolist() == expected
    assert counted.size == len(edges) + 2


@settings(max_examples=25)
@given(st.lists(st.integers(-5, 5), max_size=20), st.sampled_from([(0,), (-1.5, 2), (0.0, 0.5, 1.0), (-2, 1e300)]))
def test_whole_numbers_are_compared_exactly(values: list[int], edges: tuple[float, ...]) -> None:
    shift = 2**61  # beyond what floats tell apart
    counted = CountedColumn("bank", "x", edges=tuple(edge + shift if isinstance(edge, int) else edge for edge in edges))
    numbers = torch.tensor([value + shift for value in values], dtype=torch.int64)
    expected = [sum(value + shift >= edge for edge in counted.edges) for value in values]
    assert counted.codes(column(numbers)).tolist() == expected


def test_levels_are_those_declared_in_their_order_and_missing_is_the_last() -> None:
    own = column(torch.tensor([0, 1, 0, 0]), [False, False, False, True], ("Oslo", "Bern"))
    assert TEXT.codes(own).tolist() == [1, 0, 1, 2]


def test_a_boolean_is_no_number() -> None:
    counted = CountedColumn("bank", "x", (0, 1, False, True))
    assert counted.codes(column(torch.tensor([0, 1]), levels=(False, True))).tolist() == [2, 3]
    assert counted.codes(column(torch.tensor([0, 1]), levels=(0, 1))).tolist() == [0, 1]


def test_other_values_are_a_level_of_their_own_or_refused_unnamed() -> None:
    own = column(torch.tensor([0, 1, 0]), [False, False, True], ("Zug", "Bern"))
    counted = CountedColumn("bank", "city", ("Bern",), others=True)
    assert (counted.codes(own).tolist(), counted.size) == ([1, 0, 2], 3)
    with pytest.raises(DataError, match="holds no values but those that are counted") as raised:
        TEXT.codes(own)
    assert "Zug" not in str(raised.value)


def test_levels_that_no_row_has_may_be_any() -> None:
    own = column(torch.tensor([1, 1]), levels=("Zug", "Bern"))
    assert TEXT.codes(own).tolist() == [0, 0]


@pytest.mark.parametrize("counted", [TEXT, NUMBER])
def test_a_column_without_values_is_all_missing(counted: CountedColumn) -> None:
    for levels in ((), None):
        own = column(torch.zeros(2, dtype=torch.int64), [True, True], levels)
        assert counted.codes(own).tolist() == [counted.size - 1] * 2
        assert counted.codes(column(torch.zeros(0, dtype=torch.int64), [], levels)).tolist() == []


def test_a_column_of_another_kind_is_refused() -> None:
    with pytest.raises(DataError, match="counted by what it holds"):
        TEXT.codes(column(torch.tensor([1.0, 2.0])))
    with pytest.raises(DataError, match="counted by what it holds"):
        NUMBER.codes(column(torch.tensor([0, 0]), levels=("Bern",)))


def test_crossed_columns_are_cells_of_their_table() -> None:
    a, b = np.array([0, 1, 2, 2]), np.array([1, 0, 1, 0])
    assert crossed([a, b], [3, 2]).tolist() == [1, 2, 5, 4]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "either levels or edges"),
        ({"levels": ("a",), "edges": (1,)}, "either levels or edges"),
        ({"levels": ("a", "a")}, "each level once"),
        ({"edges": (2, 1)}, "finite and rise"),
        ({"edges": (1, 1)}, "finite and rise"),
        ({"edges": (float("nan"),)}, "finite and rise"),
        ({"edges": (float("inf"),)}, "finite and rise"),
        ({"edges": (1,), "others": True}, "hold all numbers"),
    ],
)
def test_declarations_that_make_no_sense(fields: dict, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        CountedColumn("bank", "x", **fields)


def asked(**changes: object) -> CountRequest:
    columns = tuple(CountedColumn(silo, "x", ("a", "b")) for silo in "abcd")
    fields = {"silos": tuple("abcd"), "columns": columns, "sets": ((0, 1),), "rows": 1000, "bits": 16}
    return CountRequest(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sets": ()}, "At least one set"),
        ({"sets": ((),)}, "each once"),
        ({"sets": ((0, 0),)}, "each once"),
        ({"sets": ((0, 4),)}, "each once"),
        ({"sets": ((-1,),)}, "each once"),
        ({"sets": ((0, 1, 2, 3),)}, "at most 3 silos"),
        ({"silos": ("a", "b", "c")}, "silos that take part"),
        ({"silos": tuple("abcda")}, "different names"),
        ({"rows": 1 << 16}, "more bits"),
        ({"rows": 0}, "above zero"),
        ({"block": 0}, "above zero"),
        ({"block": (1 << 20) + 1}, "fewer rows at a time"),
        ({"columns": (CountedColumn("a", "x", tuple(range(70_000))), CountedColumn("b", "x", (1,)))}, "at most 65536"),
        ({"columns": (CountedColumn("a", "x", tuple(range(4999))), CountedColumn("b", "x", tuple(range(4999))))},
         "cells"),
    ],
)  # fmt: skip
def test_requests_that_are_refused(changes: dict, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        asked(**changes)


def test_products_of_all_levels_that_two_silos_hide_are_bounded() -> None:
    """Though each table by itself is small."""
    columns = tuple(CountedColumn(silo, f"{i}", tuple(range(999))) for silo in "ab" for i in range(5))
    with pytest.raises(ConfigError, match="two silos hide"):
        asked(columns=columns, sets=tuple((i, i + 5) for i in range(5)))


def test_blocks_have_fewer_rows_where_rows_have_many_flags() -> None:
    narrow, wide = (CountedColumn("a", "x", tuple(range(many - 1))) for many in (20, 8192))
    other, third = (CountedColumn(silo, "x", tuple(range(99))) for silo in "bc")
    assert [len(Plan(asked(columns=(one, other), rows=9000)).blocks) for one in (narrow, wide)] == [2, 18]
    three = Plan(asked(columns=(narrow, other, third), rows=9000, sets=((0, 1, 2),)))
    sizes = [block.stop - block.start for block in three.blocks]
    assert sum(sizes) == 9000 and max(sizes) == 419  # of products of 100 levels and 100


def test_numbers_of_rows_are_rounded_up_and_bits_suffice() -> None:
    assert [padded(rows) for rows in (0, 1, 1024, 1025)] == [1024, 1024, 1024, 2048]
    assert [bits_for(rows) for rows in (65_535, 65_536, 1 << 32)] == [16, 32, 64]
