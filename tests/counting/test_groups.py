"""Groups of a column: about equally many rows each, whatever it holds; they follow from noised counts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from silosynth.core.schema import Column, ColumnSchema
from silosynth.core.streams import Streams
from silosynth.counting import CellNoise, groups
from silosynth.counting.groups import grouped, joined
from silosynth.privacy.mechanisms import gaussian_threshold

NUMBERS, LEVELS = ColumnSchema("x", "continuous", "float64"), ColumnSchema("x", "categorical", "str")
LITTLE = CellNoise(half_variance=8)
NAMES = 1e-6


def rng(seed: int = 0) -> Any:
    return Streams(seed).child("groups").noise()


def numbers(values: Any, missing: Any = None) -> Column:
    held = torch.from_numpy(np.asarray(values))
    gaps = torch.zeros(len(held), dtype=torch.bool) if missing is None else torch.from_numpy(np.asarray(missing))
    return Column("x", str(held.numpy().dtype), held, gaps)


def levels(codes: Any, count: int, missing: Any = None) -> Column:
    column = numbers(np.asarray(codes, np.int64), missing)
    return Column("x", "str", column.values, column.missing, tuple(f"level {i}" for i in range(count)))


def sizes(column: Column, declared: ColumnSchema, most: int = 4) -> list[int]:
    codes = grouped(column, declared, most, LITTLE, NAMES, rng())
    assert codes.shape == (len(column),) and codes.min() >= 0 and codes.max() < most
    return np.bincount(codes, minlength=most).tolist()


DRAWN = np.random.default_rng(0)
EVENLY = {
    "normal": DRAWN.normal(40, 10, 8000),
    "years": DRAWN.normal(1930, 60, 8000).round(),
    "heavy tails": np.exp(DRAWN.normal(0, 6, 8000)),
    "both signs": DRAWN.standard_cauchy(8000),
    "instants": DRAWN.integers(1_600_000_000, 1_700_000_000, 8000) * 10**9,
}


@pytest.mark.parametrize("name", EVENLY)
def test_groups_of_numbers_hold_about_as_many_rows(name: str) -> None:
    column = numbers(EVENLY[name])
    codes = grouped(column, NUMBERS, 4, LITTLE, NAMES, rng())
    assert np.bincount(codes, minlength=4) == pytest.approx([2000] * 4, abs=500)
    order = np.argsort(EVENLY[name], kind="stable")
    assert (np.diff(codes[order]) >= 0).all()  # neighbours are together


def test_bounds_tell_values_apart_that_are_alike_for_their_size() -> None:
    column = numbers(DRAWN.normal(2e6, 10, 8000))
    assert sorted(sizes(column, NUMBERS)) == [0, 0, 0, 8000]
    bounded = replace(NUMBERS, low=1_999_000.0, high=2_001_000.0)
    assert sizes(column, bounded) == pytest.approx([2000] * 4, abs=500)


def test_what_many_rows_share_is_a_group_of_its_own() -> None:
    amounts = np.where(np.arange(8000) % 10 < 7, 0.0, np.arange(8000) + 100.0)
    codes = grouped(numbers(amounts), NUMBERS, 4, LITTLE, NAMES, rng())
    assert set(codes[amounts == 0]) == {0} and set(codes[amounts > 0]) == {1, 2, 3}
    gaps = np.arange(8000) % 10 < 4
    codes = grouped(numbers(np.arange(8000), gaps), NUMBERS, 4, LITTLE, NAMES, rng())
    assert set(codes[gaps]) == {0} and 0 not in codes[~gaps]


@pytest.mark.parametrize(
    ("column", "declared", "used"),
    [
        (numbers(np.full(3000, 7)), NUMBERS, 1),
        (numbers(np.zeros(3000), np.ones(3000, bool)), NUMBERS, 1),
        (levels(np.zeros(3000), 1), LEVELS, 1),
        (levels(np.zeros(3000), 0, np.ones(3000, bool)), LEVELS, 1),
        (numbers([1.0, 2.0, 3.0]), NUMBERS, 1),
        (numbers(np.array([1e-300, -1e300, 1e300] * 1000)), NUMBERS, 3),
        (levels(np.arange(10_000), 10_000), LEVELS, 1),
    ],
    ids=["constant", "all missing", "one level", "no level", "three rows", "extremes", "10 000 levels of a row each"],
)
def test_awkward_columns_have_few_groups(column: Column, declared: ColumnSchema, used: int) -> None:
    assert sum(size > 0 for size in sizes(column, declared)) == used


def test_the_most_frequent_levels_are_groups_and_the_others_share_one() -> None:
    codes = np.repeat(np.arange(6), [100, 900, 50, 700, 800, 600])
    found = grouped(levels(codes, 6), LEVELS, 4, LITTLE, NAMES, rng())
    assert [found[codes == level][0] for level in range(6)] == [3, 0, 3, 2, 1, 3]
    assert sizes(levels(codes[codes != 5], 6), LEVELS, 20)[:6] == [900, 800, 700, 100, 50, 0]


def test_a_level_of_one_row_is_shown_as_seldom_as_said() -> None:
    """Of 20 000 single rows, each is in a group of its own with probability ``names``; far fewer than without noise."""
    names = 0.01
    noised = 1 + LITTLE.whole((20_000,), rng(3))
    least = gaussian_threshold(LITTLE.deviation(2), names)
    assert (noised >= least).mean() < names
    assert (noised >= least - 3).mean() > names  # and the threshold is not idle


class Said:
    """Noise with which counts come out as they did before, whatever they are."""

    __array_ufunc__ = None

    def __init__(self, before: Said | None = None) -> None:
        self.counts: list[np.ndarray] = []
        self.replayed = [] if before is None else list(before.counts)

    def whole(self, shape: tuple[int, ...], _: Any) -> Said:
        self.shape = shape
        return self

    def deviation(self, _: int) -> float:
        return 5.0

    def __radd__(self, counts: np.ndarray) -> np.ndarray:
        self.counts.append(self.replayed.pop(0) if self.replayed else counts)
        return self.counts[-1]


@pytest.mark.parametrize("declared", [NUMBERS, LEVELS])
def test_given_the_noised_counts_a_row_changes_no_other_rows_group(declared: ColumnSchema) -> None:
    values = np.random.default_rng(1).integers(0, 50, 3000)
    for more in (0, 49, 17):
        both = [numbers(own) if declared is NUMBERS else levels(own, 50) for own in (values, np.append(values, more))]
        first = Said()
        without = grouped(both[0], declared, 5, first, NAMES, rng())  # type: ignore[arg-type]
        with_one = grouped(both[1], declared, 5, Said(first), NAMES, rng())  # type: ignore[arg-type]
        assert np.array_equal(without, with_one[:-1]) and len(set(without)) == 5


def test_joining_ends_groups_where_they_are_fullest() -> None:
    assert joined(np.array([1, 1, 1, 1]), 2).tolist() == [0, 0, 1, 1]
    assert joined(np.array([0, 90, 5, 5]), 3).tolist() == [0, 0, 1, 2]
    assert joined(np.zeros(3, np.int64), 3).tolist() == [0, 0, 0]
    assert joined(np.array([3, 1]), 5).tolist() == [0, 1]


def test_finding_groups_costs_what_events_say() -> None:
    (of_numbers,) = groups.events_of("x", True, LITTLE, NAMES, 1e-5)
    (of_levels,) = groups.events_of("x", False, LITTLE, NAMES, 1e-5)
    assert (of_numbers.times, of_numbers.delta) == (2, 0) and (of_levels.times, of_levels.delta) == (1, NAMES)
    assert of_numbers.noise == of_levels.noise == 4.0 and not of_numbers.joint
    counted = Said()
    grouped(numbers(np.arange(100)), NUMBERS, 3, counted, NAMES, rng())  # type: ignore[arg-type]
    assert len(counted.counts) == of_numbers.times and all(count.sum() == 100 for count in counted.counts)
