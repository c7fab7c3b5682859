"""Columns through their encoders: what comes back, and what must never come back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from silosynth.core.messages import Struct, from_state, to_state
from silosynth.core.schema import Column, ColumnSchema, Table
from silosynth.data.frames import to_table
from silosynth.data.infer import infer
from silosynth.encoders.column import (
    RARE,
    CategoricalEncoder,
    Codes,
    EncoderConfig,
    HeadEncoder,
    NumericEncoder,
    decode_table,
    encode_table,
    fit_encoder,
    head,
    without_dominance,
)
from silosynth.encoders.normalised import ModeConfig, fit_mode_encoder, fit_standard_encoder
from silosynth.runtime.wire import pack


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


FITS = {"normal scores": (fit_encoder, EncoderConfig()), "modes": (fit_mode_encoder, ModeConfig()),
        "standardised": (fit_standard_encoder, EncoderConfig())}  # fmt: skip


@pytest.mark.parametrize(("fit", "config"), FITS.values(), ids=FITS)
@pytest.mark.parametrize("others", ["integers", "floats"])
def test_the_value_of_a_lone_extreme_row_is_nowhere_in_an_encoder(fit, config, others):
    """5 times the range's end, less what four others usually are, gave a lone income to a thousandth."""
    usual = np.random.default_rng(5).lognormal(10, 0.5, 400)
    usual = np.rint(usual).astype(np.int64) if others == "integers" else usual

    def fitted(income):
        return to_state(fit(*numbers(np.append(usual, income).astype(usual.dtype)), config, np.random.default_rng(0)))

    one, other = fitted(98_770_000), fitted(-51_230_000)
    assert pack(one) != pack(other)  # on which side it lies may show
    assert pack(one) == pack(fitted(402_000_000))
    assert pack(other) == pack(fitted(-4_000_000))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30), st.integers(1, 6))
def test_no_row_makes_up_more_than_half_of_an_ends_distance(values, least):
    before = np.array(values)
    moved = without_dominance(before, least).tolist()
    assert sum(a != b for a, b in zip(values, moved, strict=True)) <= (2 if least > 1 else 0)
    if least == 1 or len(values) < 3:
        return
    if len(values) <= 2 * least:
        middle = sorted(values)[(len(values) - 1) // 2]
        distances = [[abs(value - middle) for value in moved]]
    else:
        low, high = sorted(moved)[: least + 1], sorted(moved)[-least - 1 :]
        distances = [[low[-1] - value for value in low], [value - high[0] for value in high]]
    for of_end in distances:
        assert 2 * max(of_end) <= sum(of_end)


@settings(max_examples=60)
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


@pytest.mark.parametrize("law", ["normal", "uniform", "exponential"])
def test_nothing_that_is_kept_is_the_value_of_fewer_rows_than_min_count(law):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        column, schema = numbers(getattr(rng, law)(size=400))
        encoder = fit_encoder(column, schema, EncoderConfig(min_count=8), rng)
        assert len(encoder.quantile.values) <= 400 // 8 + 2
        kept = {*encoder.quantile.values.tolist(), encoder.low, encoder.high}
        assert not kept & set(column.values.tolist())


@pytest.mark.parametrize("extreme", [10_000_000, 91])
def test_the_extreme_of_one_person_is_neither_kept_nor_published(extreme):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = rng.integers(18, 90, size=2000)
        values[0] = extreme
        column, schema = numbers(values)
        encoder, back = there_and_back(column, schema, seed=seed)
        assert encoder.high < extreme
        assert back.values.max() < extreme


def test_few_rows_beside_an_atom_are_given_up():
    column, schema = numbers(np.array([0] * 500 + [731_942] * 2), kind="mixed")
    encoder, back = there_and_back(column, schema)
    assert set(back.values.tolist()) == {0}
    assert "731942" not in repr(to_state(encoder))


def test_two_valued_numbers_do_not_name_a_rare_one():
    column = Column("c", "int64", torch.tensor([0] * 500 + [1]), torch.zeros(501, dtype=torch.bool), (0, 731_942))
    encoder, back = there_and_back(column, ColumnSchema("c", "boolean", "int64"))
    assert encoder.kept == (0,)
    assert set(back.levels) == {0}


def drawn(column, schema, n=3000):
    """Values for scores and levels that a generator made up."""
    rng = np.random.default_rng(9)
    encoder = fit_encoder(column, schema, EncoderConfig(), rng)
    levels = torch.from_numpy(rng.integers(0, encoder.width, n)) if encoder.width > 1 else None
    scores = torch.from_numpy(rng.normal(0, 3, n).astype(np.float32)) if encoder.continuous else None
    return encoder.decode(Codes(levels, scores), n, rng)


@pytest.mark.parametrize(
    ("unit", "grid"), [("ms", 1_000_000), ("us", 1_000), ("s", 1_000_000_000), ("D", 86_400_000_000_000)]
)
def test_generated_instants_lie_on_the_grid(unit, grid):
    start = np.datetime64("2023-11-14T00:00:00").astype("datetime64[ns]").astype(np.int64)
    values = start + np.random.default_rng(0).integers(0, 1000, 2000) * grid
    frame = pd.DataFrame({"t": pd.to_datetime(values)})
    schema = infer(frame)
    made = drawn(to_table(frame, schema)["t"], schema["t"]).values
    assert not bool((made % grid).any())
    assert made.min() >= values.min()
    assert made.max() <= values.max()


@pytest.mark.parametrize("centre", [0, 2**60, 2**63 - 10**7, -(2**62)])
def test_large_whole_numbers_keep_their_last_digits(centre):
    values = centre + np.random.default_rng(0).integers(-(10**6), 10**6, 3000)
    column, schema = numbers(values)
    made = drawn(column, schema).values
    assert made.min() >= values.min()
    assert made.max() <= values.max()
    assert len(set((made % 2).tolist())) == 2


def test_a_declared_range_holds_for_atoms_and_is_taken_inwards():
    column, schema = numbers(np.repeat(np.arange(14, 30), 30), low=18.0, high=25.5)
    made = drawn(column, schema).values
    assert (int(made.min()), int(made.max())) == (18, 25)


def test_negative_decimals_and_small_floats_stay_on_the_grid():
    values = np.random.default_rng(0).integers(1, 5000, 2000) * 100
    column, schema = numbers(values, decimals=-2)
    assert not bool((drawn(column, schema).values % 100).any())


def test_a_label_that_is_already_there_is_used():
    column = Column("c", "category", torch.tensor([0] * 20 + [1] * 20 + [2]), torch.zeros(41, dtype=torch.bool),
                    ("a", RARE, "b"))  # fmt: skip
    _, back = there_and_back(column, ColumnSchema("c", "categorical", "category"))
    assert back.levels == ("a", RARE)
    assert int((back.values == 1).sum()) == 21


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


def many_levels(rows=60_000, levels=3000, config=None):
    """A column of which level i is the i-th most common, with some rare and missing ones, and its encoder."""
    codes = np.minimum(np.random.default_rng(3).exponential(levels / 4, rows).astype(np.int64), levels - 1)
    column, schema = categories(codes, [f"level {i:05d}" for i in range(levels)])
    column = replace(column, missing=torch.arange(rows) % 50 == 0)
    config = config or EncoderConfig()
    return column, head(fit_encoder(column, schema, config, np.random.default_rng(0)), column, config)


def test_of_very_many_categories_the_most_common_are_levels_and_others_are_drawn():
    column, encoder = many_levels(config=EncoderConfig(most_categories=200))
    assert isinstance(encoder, HeadEncoder) and encoder.width == 200 + 3  # others, *rare* and missing
    encoder = from_state(Struct, to_state(encoder))
    levels = encoder.encode(column, np.random.default_rng(0)).levels
    back = encoder.decode(Codes(levels, None), len(column), np.random.default_rng(1))
    assert torch.equal(back.missing, column.missing) and back.levels == (*encoder.every.kept, RARE)
    names, made = (np.array([*one.levels], dtype=object)[one.values] for one in (column, back))
    present = ~column.missing.numpy()
    alike = names[present] == made[present]
    kept = encoder.every.kept
    common = np.isin(names[present], [kept[level] for level in encoder.common.tolist() if level < len(kept)])
    assert alike[common].all() and 0 < alike[~common].mean() < 0.05
    counts = [pd.Series(one[present]).value_counts() for one in (names, made)]
    for name in counts[0].index[200:1200:50]:  # drawn by how common they are
        assert counts[1].get(name, 0) == pytest.approx(counts[0][name], abs=5 * counts[0][name] ** 0.5)


def test_few_categories_or_all_by_name_have_no_head():
    assert isinstance(many_levels(config=EncoderConfig(most_categories=5000))[1], CategoricalEncoder)
    assert isinstance(many_levels(config=EncoderConfig(pool_rare=False, most_categories=5))[1], CategoricalEncoder)
    column, schema = numbers(np.arange(500.0))
    encoder = fit_encoder(column, schema, EncoderConfig(), np.random.default_rng(0))
    assert head(encoder, column, EncoderConfig(most_categories=5)) is encoder


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
