"""Where numbers lie, by counts of cells that are known beforehand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from silosynth.core.schema import Column
from silosynth.encoders import ranges
from silosynth.encoders.table import histogram

_RNG = np.random.default_rng(7)
SHAPES = {
    "ages": _RNG.normal(40, 13, 30_000).clip(17, 90).round(),
    "years": _RNG.integers(1995, 2024, 30_000),
    "incomes": np.exp(_RNG.normal(10, 1, 30_000)),
    "balances": _RNG.normal(0, 1e4, 30_000),
    "debts": -np.exp(_RNG.normal(8, 0.5, 30_000)),
    "shares": _RNG.beta(2, 5, 30_000),
    "zeros and gains": np.where(_RNG.random(30_000) < 0.9, 0, _RNG.lognormal(8, 1, 30_000)),
    "visits": _RNG.poisson(3, 30_000),
    "instants": _RNG.integers(1_400_000_000, 1_700_000_000, 30_000) * 1e6,
}


def found(values: np.ndarray, deviation: float = 1.0) -> tuple[float, float] | None:
    return ranges.noised_range(counted(values), deviation, True)


def counted(values: np.ndarray, missing: int = 0) -> torch.Tensor:
    absent = torch.arange(len(values) + missing) >= len(values)
    numbers = torch.from_numpy(np.concatenate([values, np.zeros(missing)]).astype(np.float64))
    return histogram(Column("x", "float64", numbers, absent), ranges.EDGES)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1, max_size=30))
@settings(deadline=None)
def test_each_value_is_in_the_one_cell_that_holds_it(values: list[float]) -> None:
    counts = counted(np.array(values), missing=3)
    edges = ranges.EDGES.numpy()
    inner = [np.searchsorted(edges[1:-1], value, side="right") for value in values if value != 0]
    expected = np.bincount(inner, minlength=len(edges) - 1) if inner else np.zeros(len(edges) - 1)
    assert counts[:-2].tolist() == expected.tolist()
    assert counts[-2:].tolist() == [values.count(0), 3]
    assert counts.sum() == len(values) + 3


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("normal", [True, False])
def test_the_range_holds_nearly_all_rows_and_little_more(name: str, normal: bool) -> None:
    values, deviation = SHAPES[name], 10.0
    rng = np.random.default_rng(len(name))
    noise = rng.normal(0, deviation, 10_000) if normal else rng.laplace(0, deviation / math.sqrt(2), 10_000)
    counts = counted(values)
    noised = counts + torch.from_numpy(noise[: len(counts)]).round().long()
    ends = ranges.noised_range(noised, deviation, normal)
    assert ends is not None
    low, high = ends
    assert np.mean((values >= low) & (values <= high)) > 0.985
    assert high - low <= 2.6 * (np.quantile(values, 0.999) - min(0, np.quantile(values, 0.001)))


@pytest.mark.parametrize("normal", [True, False])
def test_noise_alone_is_no_range(normal: bool) -> None:
    rng, empty = np.random.default_rng(3), counted(np.zeros(0))
    for _ in range(50):
        noise = rng.normal(0, 20, len(empty)) if normal else rng.laplace(0, 20 / math.sqrt(2), len(empty))
        assert ranges.noised_range(empty + torch.from_numpy(noise), 20.0, normal) is None


def test_zero_is_taken_in_where_that_costs_little() -> None:
    assert found(np.full(100, 3.0)) == (2.5, 4.0)
    assert found(np.repeat([3.0, 9.0], 100)) == (0.0, 12.0)
    assert found(np.repeat([-3.0, -9.0], 100)) == (-12.0, 0.0)
    assert found(np.repeat([-3.0, 9.0], 100)) == (-3.5, 12.0)
    assert found(np.zeros(100)) == (
        0.0,
        float(ranges.EDGES[len(ranges.EDGES) // 2 + 2]),
    )


def test_an_octave_is_clear_though_none_of_its_cells_is() -> None:
    values = np.repeat([0.0, 8.0, 10.0, 12.0, 14.0], [2000, 15, 15, 15, 15])
    assert found(values, 4.0) == (0.0, 16.0)
    assert found(values[:-30], 4.0) == found(np.zeros(2000), 4.0)


ENDS = (True, True)


@pytest.mark.parametrize(("low", "high", "found", "beyond"), [
    (0.0, 4.0, ENDS, 5), (1.0, 4.0, ENDS, 25), (-2.0, 9.0, ENDS, 0), (0.0, 2.0, ENDS, 35),
    (0.0, 2.0, (True, False), 0), (1.0, 4.0, (False, True), 5),
])  # fmt: skip
def test_values_beyond_a_range_are_counted_by_themselves(
    low: float, high: float, found: tuple[bool, bool], beyond: int
) -> None:
    values = np.repeat([0.0, 1.0, 2.5, 5.0], [20, 30, 30, 5])
    edges = torch.linspace(low, high, 9, dtype=torch.float64)
    column = Column("x", "float64", torch.from_numpy(values), torch.zeros(85, dtype=torch.bool))
    counts, plain = histogram(column, ranges.and_beyond(edges)), histogram(column, edges)
    inner = ranges.within(counts, (low, high), found, 1000, 1.0)
    if beyond < 33:  # half of those that are not zero
        assert inner is not None and torch.equal(inner, plain)
    assert (ranges.within(counts, (low, high), found, 85, 0.0) is None) == (beyond > 0.1 * 85)
    assert ranges.within(counts, (low, high), found, 85, 10.0) is None, "too much noise to say"


def test_bins_are_put_together_where_values_clearly_are() -> None:
    edges = torch.linspace(1536, 2560, 1025, dtype=torch.float64)
    years = np.repeat(np.arange(2010.0, 2021.0), 100)
    counts = histogram(Column("x", "float64", torch.from_numpy(years), torch.zeros(1100, dtype=torch.bool)), edges)
    narrow, held, deviation = ranges.narrowed(edges, counts, 50, 10.0, True)
    assert (float(narrow[0]), float(narrow[-1])) == (2009, 2022) and deviation == 10
    assert held.tolist() == [0, *[100] * 11, 0, 0, 0]
    narrow, held, deviation = ranges.narrowed(edges, counts, 5, 10.0, True)
    assert narrow.tolist() == [2009, 2012, 2015, 2018, 2021, 2024] and held.tolist() == [200, 300, 300, 300, 0, 0, 0]
    assert deviation == pytest.approx(10 * math.sqrt(3))
    assert ranges.narrowed(edges, counts, 2000, 10.0, True)[1] is counts


def test_an_exact_range_ends_where_enough_rows_lie() -> None:
    values = np.concatenate([np.full(10, 3.0), [1000.0], np.full(10, 40.0)])
    assert ranges.exact_range(counted(values), 5) == (3.0, 48.0)
    assert ranges.exact_range(counted(values), 1) == (3.0, 1024.0)
    assert ranges.exact_range(counted(np.zeros(0)), 5) == (0.0, 1.0)
