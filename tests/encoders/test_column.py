"""Columns through their encoders: what comes back, and what must never come back."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from silosynth.core.messages import Struct
from silosynth.core.schema import Column, ColumnSchema, Table
from silosynth.core.state import from_state, to_state
from silosynth.data.frames import to_table
from silosynth.data.infer import infer
from silosynth.encoders.column import (
    RARE,
    CategoricalEncoder,
    EncoderConfig,
    NumericEncoder,
    decode_table,
    encode_table,
    fit_encoder,
)


def numbers(values, name="x", kind=None, **more):
    values = torch.as_tensor(values)
    missing = torch.isnan(values) if values.is_floating_point() else torch.zeros(len(values), dtype=torch.bool)
    kind = kind or ("continuous" if values.is_floating_point() else "integer")
    decimals = more.pop("decimals", None if values.is_floating_point() else 0)
    column = Column(name, str(values.dtype).removeprefix("torch."), torch.where(missing, 0, values), missing)
    return column, ColumnSchema(name, kind, column.dtype, decimals=decimals, **more)


def there_and_back(column, schema, config=None, seed=0):
    rng = np.random.default_rng(seed)
    encoder = fit_encoder(column, schema, config or EncoderConfig(), rng)
    return encoder, encoder.decode(encoder.encode(column, rng), len(column), rng)


def test_marginals_survive_a_round_trip():
    rng = np.random.default_rng(1)
    column, schema = numbers(np.exp(rng.normal(size=5000)))
    _, back = there_and_back(column, schema)
    for q in (0.01, 0.1, 0.5, 0.9, 0.99):
        assert np.quantile(back.values, q) == pytest.approx(np.quantile(column.values, q), rel=0.05)


def test_scores_are_standard_normal():
    rng = np.random.default_rng(1)
    column, schema = numbers(rng.exponential(size=4000))
    encoder = fit_encoder(column, schema, EncoderConfig(), rng)
    scores = encoder.encode(column, rng).scores
    assert float(scores.mean()) == pytest.approx(0, abs=0.03)
    assert float(scores.std()) == pytest.approx(1, abs=0.03)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60), st.integers(0, 3))
def test_values_stay_on_their_grid_and_in_their_range(values, decimals):
    rounded = np.round(np.array(values, dtype=np.float64), decimals)
    column, schema = numbers(rounded, decimals=decimals)
    _, back = there_and_back(column, schema)
    assert np.array_equal(np.round(back.values.numpy(), decimals), back.values.numpy())
    assert back.values.min() >= rounded.min() and back.values.max() <= rounded.max()


def test_no_value_that_occurred_once_is_returned():
    rng = np.random.default_rng(2)
    column, schema = numbers(rng.normal(size=3000))
    _, back = there_and_back(column, schema)
    assert not set(column.values.tolist()) & set(back.values.tolist())


def test_no_knot_is_the_value_of_fewer_rows_than_min_count():
    rng = np.random.default_rng(2)
    column, schema = numbers(rng.normal(size=400))
    encoder = fit_encoder(column, schema, EncoderConfig(min_count=8), rng)
    assert len(encoder.quantile.values) <= 400 // 8 + 2
    assert not set(column.values.tolist()) & set(encoder.quantile.values.tolist())


def test_extremes_of_one_person_are_not_published():
    rng = np.random.default_rng(2)
    values = rng.integers(18, 90, size=2000)
    values[0] = 10_000_000
    column, schema = numbers(values)
    _, back = there_and_back(column, schema)
    assert back.values.max() < 10_000_000


def test_declared_range_is_reached_but_never_left():
    column, schema = numbers(np.random.default_rng(0).normal(size=500), low=-50.0, high=50.0)
    encoder = fit_encoder(column, schema, EncoderConfig(), np.random.default_rng(0))
    assert encoder.quantile.values[0] == -50 and encoder.quantile.values[-1] == 50


def test_atoms_keep_their_mass_exactly():
    rng = np.random.default_rng(3)
    values = np.where(rng.random(4000) < 0.9, 0, rng.integers(100, 99_999, size=4000))
    column, schema = numbers(values, kind="mixed")
    encoder, back = there_and_back(column, schema)
    assert 0 in encoder.atoms.tolist() and encoder.continuous
    assert int((back.values == 0).sum()) == int((column.values == 0).sum())


def test_few_common_values_are_levels_only():
    column, schema = numbers(np.repeat([1, 2, 5], 40))
    encoder, back = there_and_back(column, schema)
    assert not encoder.continuous and torch.equal(back.values, column.values)


def test_missing_is_a_level():
    values = np.random.default_rng(0).normal(size=1000)
    values[:300] = np.nan
    column, schema = numbers(values)
    _, back = there_and_back(column, schema)
    assert torch.equal(back.missing, column.missing)


def categories(codes, levels, missing=None):
    codes = torch.as_tensor(codes)
    gone = torch.zeros(len(codes), dtype=torch.bool) if missing is None else torch.as_tensor(missing)
    return Column("c", "str", codes, gone, tuple(levels)), ColumnSchema("c", "categorical", "str")


def test_rare_levels_never_return_by_name():
    column, schema = categories([0] * 50 + [1] * 4 + [2], ["common", "scarce", "somebody"])
    encoder, back = there_and_back(column, schema)
    assert "somebody" not in back.levels and "scarce" not in back.levels
    assert [back.levels[i] for i in back.values[50:].tolist()] == [RARE] * 5
    assert "somebody" not in repr(to_state(encoder))


def test_rare_numbers_as_categories_are_spread_over_common_ones():
    column, schema = categories([0] * 50 + [1] * 2, [10, 77])
    _, back = there_and_back(column, schema)
    assert set(back.levels) == {10} and not bool(back.missing.any())


def test_pooling_can_be_switched_off():
    column, schema = categories([0] * 50 + [1], ["common", "me"])
    _, back = there_and_back(column, schema, EncoderConfig(pool_rare=False))
    assert torch.equal(back.values, column.values) and back.levels == ("common", "me")


def test_all_missing_comes_back_all_missing():
    column, schema = categories([0, 0, 0], [], [True] * 3)
    encoder, back = there_and_back(column, schema)
    assert encoder.width == 1 and bool(back.missing.all())


def test_constant_column_comes_back_constant():
    column, schema = numbers(np.full(30, 7))
    encoder, back = there_and_back(column, schema)
    assert encoder.width == 1 and torch.equal(back.values, column.values)


def test_instants_keep_their_grid():
    days = pd.date_range("2020-01-01", periods=400).repeat(2)
    frame = pd.DataFrame({"day": days})
    schema = infer(frame)
    column = to_table(frame, schema)["day"]
    _, back = there_and_back(column, schema["day"])
    assert not bool((back.values % 86_400_000_000_000).any())


def test_encoders_survive_storage():
    column, schema = numbers(np.random.default_rng(0).normal(size=200))
    encoder, _ = there_and_back(column, schema)
    again = from_state(Struct, to_state(encoder))
    assert isinstance(again, NumericEncoder) and torch.equal(again.quantile.values, encoder.quantile.values)


def test_ten_thousand_levels_are_coded_without_a_matrix_of_that_width():
    codes = np.arange(60_000) % 10_000
    column, schema = categories(codes, [f"level {i}" for i in range(10_000)])
    encoder = fit_encoder(column, schema, EncoderConfig(), np.random.default_rng(0))
    assert isinstance(encoder, CategoricalEncoder) and encoder.width == 10_000
    assert encoder.encode(column, np.random.default_rng(0)).levels.shape == (60_000,)


def test_a_table_goes_there_and_back_in_column_order():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=300),
            "b": rng.choice(["x", "y"], 300),
            "c": np.full(300, 3),
            "d": rng.integers(0, 4, 300),
        }
    )
    schema = infer(frame)
    table = to_table(frame, schema)
    encoders = [fit_encoder(column, schema[column.name], EncoderConfig(), rng) for column in table.columns]
    levels, scores = encode_table(table, encoders, rng)
    back = decode_table(levels, scores, encoders, rng)
    assert back.names == table.names and levels.shape == (300, 2) and scores.shape == (300, 1)
    assert torch.equal(back["d"].values, table["d"].values)
    assert isinstance(back, Table)
