"""Columns that lie in several silos, summarised and merged: what one table would give, and what stays with a silo."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import ks_2samp

from silosynth.core.errors import DataError
from silosynth.core.schema import Column, ColumnSchema
from silosynth.data.frames import to_table
from silosynth.data.infer import infer
from silosynth.encoders.column import RARE, CategoricalEncoder, EncoderConfig, NumericEncoder
from silosynth.encoders.federated import MOST_DRAWN, Merged, Summary, draw, merge, of_bins, of_counts, summarise
from silosynth.encoders.normalised import ModeConfig, ModeEncoder

CONFIGS = pytest.mark.parametrize("config", [ModeConfig(modes=4), EncoderConfig()], ids=["modes", "scores"])
Parts = list[Column]


def divided(values, *sizes: int, **declared) -> tuple[Parts, ColumnSchema]:
    """A column's consecutive parts, each with the levels that its own rows hold, and the kind inferred from all."""
    frame = pd.DataFrame({"x": values})
    schema = infer(frame, {"x": declared} if declared else {})
    table, start, parts = to_table(frame, schema), 0, []
    for size in sizes or (len(frame),):
        parts.append(table.take(slice(start, start + size)).columns[0].own_levels())
        start += size
    assert start == len(frame)
    return parts, schema["x"]


def merged(parts: Parts, schema: ColumnSchema, config=None, seed: int = 0) -> Merged:
    config, rng = config or EncoderConfig(), np.random.default_rng(seed)
    return merge([summarise(part, schema, config, rng) for part in parts], [len(p) for p in parts], schema, config, rng)


def drawn(found: Merged) -> np.ndarray:
    assert found.drawn is not None
    return np.concatenate(found.drawn)


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """The Kolmogorov-Smirnov distance of two samples."""
    return float(ks_2samp(one, other, method="asymp").statistic)


def skewed(n: int = 3000, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < 0.4, rng.normal(-20, 2, n), rng.gamma(2.0, 9.0, n))


@CONFIGS
def test_numbers_of_all_silos_have_the_law_of_one_column(config):
    values = np.sort(skewed())  # so that silos differ as much as they can
    found = merged(*divided(values, 200, 1000, 1800), config)
    assert apart(drawn(found), values) < 0.04
    for own, part in zip(found.drawn, np.split(values, [200, 1200]), strict=True):
        assert apart(own, part) < 0.1


@CONFIGS
def test_a_merged_encoder_brings_rows_back(config):
    parts, schema = divided(skewed(), 1000, 2000)
    found, rng = merged(parts, schema, config), np.random.default_rng(1)
    for part in parts:
        back = found.encoder.decode(found.encoder.encode(part, rng), len(part), rng)
        inside = (part.values > found.encoder.low) & (part.values < found.encoder.high)
        assert inside.float().mean() > 0.98
        assert (back.values - part.values)[inside].abs().max() < 0.5


def test_categories_are_counted_as_in_one_table():
    values = np.random.default_rng(0).choice(["a", "b", "c", None], 900, p=[0.5, 0.3, 0.1, 0.1])
    (whole,), schema = divided(values)
    parts, _ = divided(values, 300, 600)
    one, found = merged([whole], schema), merged(parts, schema)
    assert found.encoder == one.encoder
    assert torch.equal(found.counts.sum(dim=0), one.counts[0])
    assert one.counts[0].tolist() == [int((values == v).sum()) for v in "abc"] + [sum(v is None for v in values)]
    for own, part in zip(found.counts, parts, strict=True):
        levels = found.encoder.encode(part, np.random.default_rng(0)).levels
        assert torch.equal(own, torch.bincount(levels, minlength=4))


def test_a_category_that_one_silo_has_is_one_of_all():
    found = merged(*divided(["a"] * 30 + ["b"] * 30 + ["b"] * 10 + ["c"] * 20, 60, 30))
    assert found.encoder.kept == ("a", "b", "c")
    assert found.counts.tolist() == [[30, 30, 0], [0, 10, 20]]


def test_a_declared_order_of_categories_stays():
    ordered = pd.Categorical(["mid"] * 20 + ["low"] * 20 + ["high"] * 30 + ["mid"] * 10, ["low", "mid", "high"], True)
    found = merged(*divided(ordered, 40, 40))
    assert found.encoder.kept == ("low", "mid", "high") and found.encoder.dtype == "category|ordered"
    assert found.counts.tolist() == [[20, 20, 0], [0, 10, 30]]


def test_levels_that_are_rare_in_a_silo_are_counted_as_rare_there_and_by_name_elsewhere():
    found = merged(*divided(["a"] * 30 + ["b"] * 3 + ["a"] * 10 + ["b"] * 20 + ["c"] * 2, 33, 32))
    assert found.encoder.kept == ("a", "b") and found.encoder.rare
    assert found.counts.tolist() == [[30, 0, 3], [10, 20, 2]]


def test_a_level_that_few_rows_of_all_silos_hold_is_pooled():
    config, (column,), schema = EncoderConfig(), *divided(["a"] * 9)
    summaries = [of_counts(column, {"a": 9, "b": 2}, None, None), of_counts(column, {"b": 2, "c": 9}, None, 4)]
    found = merge(summaries, [11, 15], schema, config, np.random.default_rng(0))
    assert (found.encoder.kept, found.encoder.rare, found.encoder.missing) == (("a", "c"), True, True)
    assert found.counts.tolist() == [[9, 0, 2, 0], [0, 9, 2, 4]]


def test_without_pooling_every_name_that_was_told_is_kept():
    (column,), schema = divided(["a"] * 9)
    summaries = [of_counts(column, {"a": 9, "b": 0}, None, None), of_counts(column, {"a": 4, "b": -3}, None, None)]
    found = merge(summaries, [9, 4], schema, EncoderConfig(pool_rare=False), np.random.default_rng(0))
    assert found.encoder.kept == ("a", "b") and not found.encoder.rare
    assert found.counts.tolist() == [[9, 0], [4, 0]]


def test_where_no_text_is_named_all_rows_are_rare():
    (column,), schema = divided(["a"] * 3 + ["b"] * 3)
    nothing = of_counts(column, {}, None, None)
    found, rng = merge([nothing] * 2, [6, 6], schema, EncoderConfig(), np.random.default_rng(0)), None
    back = found.encoder.decode(found.encoder.encode(column, rng), 6, rng)
    assert back.levels == (RARE,) and back.values.tolist() == [0] * 6


def test_numbers_as_categories_of_which_none_is_named_are_refused():
    parts, schema = divided([7, 7, 7, 8, 8, 8], kind="categorical")
    nothing = of_counts(parts[0], {}, 6, None)
    with pytest.raises(DataError, match="'x' is categorical"):
        merge([nothing] * 2, [6, 6], schema, EncoderConfig(), np.random.default_rng(0))


@CONFIGS
def test_special_values_of_numbers_keep_their_shares(config):
    rng = np.random.default_rng(0)
    values = np.where(rng.random(2000) < 0.4, 0.0, rng.gamma(2.0, 50.0, 2000).round(2))
    found = merged(*divided(values, 800, 1200), config)
    assert np.mean(drawn(found) == 0) == pytest.approx(np.mean(values == 0), abs=0.01)
    if found.encoder.atoms.numel():
        assert found.encoder.atoms.tolist() == [0.0]
        place = found.encoder.lines
        assert found.counts[:, place].sum() == pytest.approx((values == 0).sum(), abs=20)


@CONFIGS
def test_missing_numbers_keep_their_shares_silo_by_silo(config):
    values = skewed(1000)
    values[:150] = np.nan
    found = merged(*divided(values, 300, 700), config)
    assert found.encoder.missing
    assert found.counts[:, -1].tolist() == [150, 0]
    assert [len(own) for own in found.drawn] == [150, 700]


@CONFIGS
def test_a_silo_without_a_single_value_joins_the_others(config):
    values = np.concatenate([np.full(100, np.nan), skewed(900)])
    found = merged(*divided(values, 100, 900), config)
    assert found.counts[0].tolist() == [0] * (found.encoder.width - 1) + [100]
    assert len(found.drawn[0]) == 0 and apart(found.drawn[1], values[100:]) < 0.06


@CONFIGS
@pytest.mark.parametrize("values", [[None] * 40, [3.5] * 40], ids=["missing", "constant"])
def test_columns_of_one_value_stay_what_they_are(config, values):
    parts, schema = divided(pd.Series(values, dtype="float64"), 10, 30)
    found, rng = merged(parts, schema, config), np.random.default_rng(0)
    assert found.encoder.width == 1 and found.counts.tolist() == [[10], [30]]
    back = found.encoder.decode(found.encoder.encode(parts[1], rng), 30, rng)
    assert torch.equal(back.missing, parts[1].missing) and torch.equal(back.values, parts[1].values)


@CONFIGS
def test_whole_numbers_stay_on_their_grid(config):
    values = np.random.default_rng(0).integers(0, 400, 1500) * 5
    found = merged(*divided(values, 500, 1000), config)
    assert not (drawn(found) % 5).any()
    assert found.encoder.step == 5 and values.min() <= found.encoder.low < found.encoder.high <= values.max()


@CONFIGS
def test_days_stay_days(config):
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.random.default_rng(0).integers(0, 900, 1000), unit="D")
    parts, schema = divided(days, 300, 700)
    found = merged(parts, schema, config)
    assert not (drawn(found).astype(np.int64) % 86_400_000_000_000).any()
    assert (
        found.encoder.dtype == parts[0].dtype
        and apart(drawn(found), torch.cat([part.values for part in parts]).numpy()) < 0.06
    )


@CONFIGS
def test_one_silo_is_a_federation_too(config):
    values = skewed(1000)
    found = merged(*divided(values), config)
    assert found.counts.sum() == 1000 and apart(drawn(found), values) < 0.05


def test_no_more_values_are_drawn_than_an_encoder_needs():
    (column,), schema = divided(skewed(100))
    summary = summarise(column, schema, EncoderConfig(), np.random.default_rng(0))
    found = merge([summary] * 2, [MOST_DRAWN, 3 * MOST_DRAWN], schema, EncoderConfig(), np.random.default_rng(0))
    assert [len(own) for own in found.drawn] == [MOST_DRAWN // 4, 3 * MOST_DRAWN // 4]


@settings(max_examples=40)
@given(st.lists(st.integers(-3, 40), min_size=1, max_size=6).filter(lambda c: max(c) > 0), st.integers(0, 500))
def test_drawing_keeps_shares_to_the_row(counts, rows):
    names = {chr(97 + i): count for i, count in enumerate(counts)}
    encoder = CategoricalEncoder("x", "str", tuple(names), True, False, False)
    column = draw(Summary(encoder, torch.tensor(counts)), rows, np.random.default_rng(0))
    got = torch.bincount(column.values, minlength=len(counts)).numpy()
    shares = np.clip(counts, 0, None) / np.clip(counts, 0, None).sum()
    assert len(column) == rows
    assert np.all(np.abs(got - shares * rows) <= 1.0 + 1e-9)


def test_drawing_from_no_counts_at_all_gives_rows_all_the_same():
    (column,), _ = divided(["a"] * 9)
    assert (
        draw(of_counts(column, {"a": -1, "b": -2}, None, None), 7, np.random.default_rng(0)).values.tolist() == [0] * 7
    )


def bounds(values, low, high) -> tuple[Column, ColumnSchema]:
    (column,), schema = divided(values, low=low, high=high)
    return column, schema


@settings(max_examples=40)
@given(st.lists(st.integers(-4, 30), min_size=1, max_size=12), st.none() | st.integers(1, 20), st.booleans())
def test_what_is_drawn_of_bins_stays_within_bounds(counts, missing, whole):
    column, schema = bounds([2, 9, 4] * 5 if whole else [2.25, 9.5, 3.0] * 5, 2, 17)
    summary = of_bins(column, schema, torch.tensor(counts), missing)
    assert isinstance(summary.encoder, NumericEncoder)
    made = draw(summary, 200, np.random.default_rng(0))
    held = made.values[~made.missing]
    assert made.values.dtype == column.values.dtype and bool(((held >= 2) & (held <= 17)).all())
    total = sum(max(0, c) for c in counts) + (missing or 0)
    assert int(made.missing.sum()) == pytest.approx(200 * (missing or 0) / max(1, total), abs=1)


def test_a_histogram_has_the_law_of_its_rows():
    values = np.clip(np.random.default_rng(0).gamma(2.0, 9.0, 5000), 0, 100)
    column, schema = bounds(values, 0, 100)
    counts = torch.from_numpy(np.histogram(values, 64, (0, 100))[0])
    found = merge([of_bins(column, schema, counts, None)], [5000], schema, ModeConfig(), np.random.default_rng(0))
    assert isinstance(found.encoder, ModeEncoder)
    assert apart(found.drawn[0], values) < 0.03
    assert (found.encoder.low, found.encoder.high) == (0, 100)


values = st.one_of(
    st.lists(st.sampled_from(["u", "v", "w", None]), min_size=6, max_size=60),
    st.lists(st.none() | st.floats(-1e6, 1e6, width=32), min_size=6, max_size=60),
    st.lists(st.integers(-50, 50), min_size=6, max_size=60),
    st.lists(st.booleans(), min_size=6, max_size=60),
)


@settings(max_examples=60)
@given(values, st.integers(1, 5), st.booleans())
def test_any_small_column_is_merged_and_encoded(cells, first, modes):
    parts, schema = divided(pd.Series(cells), first, len(cells) - first)
    found = merged(parts, schema, ModeConfig(modes=3) if modes else EncoderConfig())
    assert found.counts.shape == (2, max(1, found.encoder.width)) and int(found.counts.min()) >= 0
    assert found.counts.sum(dim=1).tolist() == [first, len(cells) - first]
    rng = np.random.default_rng(0)
    for part in parts:
        codes = found.encoder.encode(part, rng)
        if codes.levels is not None:
            assert 0 <= int(codes.levels.min()) <= int(codes.levels.max()) < found.encoder.width
        back = found.encoder.decode(codes, len(part), rng)
        assert len(back) == len(part) and back.dtype == part.dtype
