"""Dealing out columns: every column once, in the paper's proportions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silosynth.core.errors import DataError
from silosynth.core.schema import check_partition
from silosynth.data.partition import in_order, permuted


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
