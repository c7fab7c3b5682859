"""Encoders of silos with different rows: what is counted, which names are told, and what follows from sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from silosynth.core.errors import ProtocolError
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.encoders import summed
from silosynth.encoders.column import CategoricalEncoder, EncoderConfig, NumericEncoder

KEY = bytes(range(32))
DELTA = 1e-6


def levels(counts: dict[str, int], missing: int = 0, name: str = "city") -> Column:
    """A column with so many rows on each level."""
    held = tuple(level for level, count in counts.items() if count)
    values = torch.repeat_interleave(
        torch.arange(len(held)), torch.tensor([counts[level] for level in held], dtype=torch.int64)
    )
    absent = torch.arange(len(values) + missing) >= len(values)
    return Column(name, "str", torch.nn.functional.pad(values, (0, missing)), absent, held)


def sums(columns: Sequence[Column], key: bytes = KEY) -> torch.Tensor:
    found = torch.stack([summed.sketch(column, key) for column in columns]).sum(0)
    return found.reshape(summed.TABLES, -1)


def told(columns: Sequence[Column], places: Sequence[torch.Tensor], key: bytes = KEY) -> summed.Told:
    words = sum((summed.name_words(column, places, key) for column in columns), np.zeros(0, np.uint64).sum())
    return summed.told_names(words, places)


def test_names_are_told_of_levels_that_pass_in_the_sum_only() -> None:
    """Oslo has 12 rows in no silo; Bonn is held once. Names that are long, or not of ASCII, come through."""
    silos = [levels({"Zürich": 40, "Oslo": 6, '"\\\u2028': 30}), levels({"Zürich": 1, "Oslo": 6, "Bonn": 1})]
    counts = sums(silos)
    places = summed.passing(counts[:, : summed.BUCKETS], 1.0, 10)
    assert sorted(told(silos, places)) == ['"\\\u2028', "Oslo", "Zürich"]
    known = summed.KnownSums(Schema((ColumnSchema("city", "categorical", "str"),)), (), 84, 0.0, "no noise")
    encoder, share = known.of_names("city", counts, told(silos, places))
    assert isinstance(encoder, CategoricalEncoder) and encoder.rare and not encoder.missing
    assert torch.allclose(share * 84, torch.tensor([30.0, 12, 41, 1]))


def test_declared_levels_are_counted_by_themselves() -> None:
    """No name is told."""
    schema = Schema((ColumnSchema("city", "categorical", "str", levels=("Bern", "Oslo", "Bonn", "Rome")),))
    silos = [levels({"Oslo": 30, "Bonn": 2}, missing=4), levels({"Bern": 9, "Oslo": 1})]
    cells = [summed.first_cells(Table((column,)), schema, KEY)[1] for column in silos]
    assert cells[0].counts.tolist() == [0, 30, 2, 0, 4] and not any(one.names for one in cells)
    assert cells[0].times == cells[0].factor == 1 and not summed.named(schema)
    counts = cells[0].counts + cells[1].counts
    encoder, share = summed.KnownSums(schema, (), 46, 0.5, "little").of_public("city", counts)
    assert isinstance(encoder, CategoricalEncoder) and encoder.kept == ("Bern", "Oslo", "Bonn") and not encoder.rare
    assert torch.allclose(share * 46, torch.tensor([9.0, 31, 2, 4]))
    noised, _ = summed.KnownSums(schema, (), 46, 10.0, "little").of_public("city", counts)
    assert isinstance(noised, CategoricalEncoder) and noised.kept == ("Oslo",)


def test_a_name_that_is_too_long_is_pooled() -> None:
    column = levels({"x" * (summed.LONGEST - 2): 9, "y" * (summed.LONGEST - 1): 9})
    places = summed.passing(sums([column])[:, : summed.BUCKETS], 1.0, 5)
    assert list(told([column], places)) == ["x" * (summed.LONGEST - 2)]


def test_one_row_is_in_one_bucket_of_each_table() -> None:
    one = levels({"Bern": 5, "Oslo": 1}, missing=2)
    more = sums([levels({"Bern": 5, "Oslo": 2}, missing=2)]) - sums([one])
    assert more.sum(1).tolist() == [1] * summed.TABLES and more.abs().max() == 1
    missing = sums([levels({"Bern": 5, "Oslo": 1}, missing=3)]) - sums([one])
    assert missing.sum(1).tolist() == [1] * summed.TABLES == missing[:, summed.BUCKETS].tolist()


def noised(seed: int, frequent: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    counts = sums([levels({f"level {number}": 1000 for number in range(frequent)})])[:, : summed.BUCKETS]
    return counts + torch.from_numpy(np.rint(rng.normal(0, 50, counts.shape)).astype(np.int64))


@pytest.mark.parametrize("frequent", [0, 5, 40])
def test_a_single_rows_level_passes_with_delta_at_most(frequent: int) -> None:
    """Of a level with any buckets, whatever others hold there: counted over all buckets, with one row more in each."""
    counts = noised(frequent, frequent)
    low = int(min(row[places].min() for row, places in zip(counts, summed.passing(counts, DELTA, 1), strict=True)))
    passes = [(row + 1 >= low).double().mean() for row in counts]
    assert math.prod(map(float, passes)) <= DELTA
    lower = [(row + 1 >= low - 3).double().mean() for row in counts]
    assert math.prod(map(float, lower)) > DELTA / 2  # the threshold is no higher than need be
    summed.check_passing(summed.passing(counts, DELTA, 1), DELTA)


def test_a_silo_refuses_buckets_that_are_too_many_or_no_buckets() -> None:
    every = torch.arange(summed.BUCKETS)
    with pytest.raises(ProtocolError, match="a single row's level is named with a probability of 1e-06 at most"):
        summed.check_passing([every] * summed.TABLES, DELTA)
    with pytest.raises(ProtocolError, match="a single row's level is named"):
        summed.check_passing([every[:100]] * (summed.TABLES - 1), DELTA)
    for bad in (torch.tensor([3, 3]), torch.tensor([-1]), torch.tensor([summed.BUCKETS]), torch.tensor([0.5])):
        with pytest.raises(ProtocolError, match="some of a sketch's, in order"):
            summed.check_passing([bad] * summed.TABLES, DELTA)


def test_slots_say_what_passes_and_not_who_or_how_many_hold_it() -> None:
    """One silo or five: the first word of a slot is any word, and the others follow from it and the name."""
    column = levels({"Bern": 50})
    places = summed.passing(sums([column])[:, : summed.BUCKETS], 1.0, 5)
    for count in (1, 5):
        drawn = [sum(summed.name_words(column, places, KEY) for _ in range(count)) for _ in range(200)]
        first = np.stack([words.reshape(-1, summed.SLOT)[:, 0] for words in drawn]).reshape(-1)
        assert abs((first >> np.uint64(63)).mean() - 0.5) < 0.1 and abs((first & np.uint64(1)).mean() - 0.5) < 0.1
        assert all(list(summed.told_names(words, places)) == ["Bern"] for words in drawn[:20])
    assert not summed.name_words(levels({"Oslo": 50}), places, KEY).any()  # it does not pass


def test_slots_with_two_names_are_of_no_use() -> None:
    """All names in one bucket of the first table, and one of them alone in the others."""
    bern, oslo = (summed._as_words(name) for name in ("Bern", "Oslo"))
    assert bern is not None and oslo is not None
    both = np.uint64(7919) * bern + np.uint64(104729) * oslo
    words = np.concatenate([both, np.uint64(12) * bern, np.zeros(summed.SLOT, np.uint64)])
    assert dict(summed.told_names(words, [torch.tensor([4]), torch.tensor([8, 9])])) == {"Bern": [(1, 8)]}


NUMBER = ColumnSchema("x", "continuous", "float64", decimals=2)


def number(values: Sequence[float]) -> Column:
    x = torch.tensor(values, dtype=torch.float64)
    return Column("x", "float64", torch.nan_to_num(x), x.isnan())


def test_ranges_of_numbers_without_bounds_come_from_sums() -> None:
    schema = Schema((NUMBER,))
    silos = [Table((number([-3.5, 0.25, math.nan]),)), Table((number([7.75, 2.0]),))]
    firsts = [summed.first_cells(table, schema, KEY) for table in silos]
    assert [cells.column for cells in firsts[0]] == ["", "x"]
    known = summed.KnownSums(schema, (), 5, 0.0, "no noise")
    grid = known.grid("x", [firsts[0][1].counts + firsts[1][1].counts])
    assert (grid.unit, grid.low, grid.high) == (0.01, -3.5, 8.0)
    seconds = [summed.second_cells(table, schema, [grid], known.bins)[0].counts for table in silos]
    config = EncoderConfig(dependencies="ignore", min_count=1)
    encoder, share = known.of_bins("x", grid, known.bins, seconds[0] + seconds[1], config, np.random.default_rng(0))
    assert isinstance(encoder, NumericEncoder) and encoder.missing
    assert float(share[-1]) == pytest.approx(0.2)  # one value in five is missing


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([*range(10, 40), 98.77e6], (14.0, 40.0)),  # as for any other lone value
        ([*range(10, 40), 402e6], (14.0, 40.0)),
        ([-7e9, *[0.0] * 20, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (0.0, 2.5)),  # zeros are values of the range
        ([1.0, 2.0, 1e9], (2.0, 2.5)),  # so few that only the middle is left
        ([], (0.0, 1.0)),
    ],
)
def test_no_end_of_a_range_that_silos_find_is_a_lone_extreme(values: list[float], ends: tuple[float, float]) -> None:
    counts = summed.first_cells(Table((number(values),)), Schema((NUMBER,)), KEY)[1].counts
    grid = summed.KnownSums(Schema((NUMBER,)), (), len(values), 0.0, "no noise", 5).grid("x", [counts])
    assert (grid.low, grid.high) == ends


def test_declared_bounds_are_taken_and_cost_no_sum() -> None:
    declared = ColumnSchema("x", "continuous", "float64", low=0.0, high=9.0)
    cells = summed.first_cells(Table((number([1.0]),)), Schema((declared,)), KEY)
    assert [one.column for one in cells] == [""]
    grid = summed.KnownSums(Schema((declared,)), (), 1, 3.0, "").grid("x", [])
    assert (grid.unit, grid.low, grid.high) == (0.0, 0.0, 9.0)


def test_histograms_have_as_many_bins_as_stand_out() -> None:
    declared = Schema((NUMBER,))
    assert summed.KnownSums(declared, (), 10**6, 0.0, "").bins == summed.FINE
    few, many = (summed.KnownSums(declared, (), rows, 20.0, "").bins for rows in (100, 10**6))
    assert few == 8 and many == 100
    table, grid = Table((number([1.0]),)), summed.Grid(0.0, 0.0, 9.0)
    for bins in (0, summed.FINE + 1):
        with pytest.raises(ProtocolError, match="Each column of numbers gets a histogram"):
            summed.second_cells(table, declared, [grid], bins)


def test_each_column_is_read_by_its_own_noise() -> None:
    schema = Schema((ColumnSchema("x", "boolean", "bool"), ColumnSchema("y", "boolean", "bool")))
    known = summed.KnownSums(schema, (), 84, 1.0, "little", deviations={"x": 50.0})
    counts = torch.tensor([60, 24, 0])
    assert [len(known.of_public(name, counts)[1]) for name in "xy"] == [1, 2]  # 24 rows are noise in one
