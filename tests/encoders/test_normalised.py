"""Mode-specific normalisation: what comes back, which modes are found, and what must never show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare, norm

from silosynth.core.errors import ConfigError
from silosynth.core.messages import from_state, to_state
from silosynth.core.schema import Column, ColumnSchema
from silosynth.data.frames import to_table
from silosynth.data.infer import infer
from silosynth.encoders.column import CategoricalEncoder, Codes, Encoder, decode_table, encode_table, fit_encoder
from silosynth.encoders.normalised import (
    SCORE_LIMIT,
    ModeConfig,
    ModeEncoder,
    draw,
    fit_mixture,
    fit_mode_encoder,
    fit_standard_encoder,
    posterior,
)
from silosynth.runtime.wire import pack, unpack

DAY = 86_400_000_000_000


def numbers(values, name="x", kind=None, **more):
    values = torch.as_tensor(values)
    missing = torch.isnan(values) if values.is_floating_point() else torch.zeros(len(values), dtype=torch.bool)
    kind = kind or ("continuous" if values.is_floating_point() else "integer")
    decimals = more.pop("decimals", None if values.is_floating_point() else 0)
    column = Column(name, str(values.dtype).removeprefix("torch."), torch.where(missing, 0, values), missing)
    return column, ColumnSchema(name, kind, column.dtype, decimals=decimals, **more)


def fitted(column, schema, config=None, seed=0):
    encoder = fit_mode_encoder(column, schema, config or ModeConfig(), np.random.default_rng(seed))
    assert isinstance(encoder, ModeEncoder)
    return encoder


def there_and_back(column, schema, config=None, seed=0):
    rng = np.random.default_rng(seed)
    encoder = fitted(column, schema, config, seed)
    codes = encoder.encode(column, rng)
    return encoder, codes, encoder.decode(codes, len(column), rng)


def drawn(encoder, n=3000, seed=9):
    """What an untrained generator makes: any level, any score that a tanh reaches."""
    rng = np.random.default_rng(seed)
    levels = torch.from_numpy(rng.integers(0, encoder.width, n)) if encoder.width > 1 else None
    scores = torch.from_numpy(rng.uniform(-1, 1, n).astype(np.float32)) if encoder.continuous else None
    return encoder.decode(Codes(levels, scores), n, rng)


def three_modes(n=6000, seed=0):
    rng = np.random.default_rng(seed)
    mode = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    return rng.normal(np.array([-20.0, 0.0, 50.0])[mode], np.array([1.0, 3.0, 2.0])[mode])


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e200])
def test_the_modes_of_a_mixture_are_found(scale):
    encoder = fitted(*numbers(three_modes() * scale))
    weights, means, stds = (part.numpy() for part in (encoder.weights, encoder.means / scale, encoder.stds / scale))
    truth = np.array([-20.0, 0.0, 50.0])
    nearest = np.abs(means[:, None] - truth).argmin(axis=1)  # one bell may be found as two that lie upon each other
    assert len(means) <= 6 and np.all(np.diff(means) >= 0)
    assert np.abs(means - truth[nearest]).max() < 1.5
    assert np.bincount(nearest, weights) == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    assert np.sqrt(np.bincount(nearest, weights * stds**2) / np.bincount(nearest, weights)) == pytest.approx(
        [1, 3, 2], abs=0.7
    )


def test_posterior_agrees_with_bayes_rule_term_by_term():
    values, weights = np.linspace(-10, 10, 41), np.array([0.2, 0.5, 0.3])
    means, stds = np.array([-3.0, 0.0, 4.0]), np.array([0.5, 2.0, 1.0])
    joint = np.array([[w * norm.pdf(v, m, s) for w, m, s in zip(weights, means, stds, strict=True)] for v in values])
    found = posterior(*(torch.from_numpy(part) for part in (values, weights, means, stds)))
    assert found.numpy() == pytest.approx(joint / joint.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("value", [0.0, 60.0, -1e9, 1e300, -1.7e308])
def test_posterior_is_defined_however_far_a_value_is(value):
    found = posterior(*(torch.tensor(part).double() for part in ([value], [0.5, 0.5], [0.0, 10.0], [1e-9, 1e-3])))
    assert float(found.sum()) == pytest.approx(1)


def test_modes_are_drawn_from_their_posterior():
    shares = torch.tensor([[0.1, 0.2, 0.7]], dtype=torch.float64)
    counts = torch.bincount(draw(shares.expand(20_000, 3), np.random.default_rng(0)), minlength=3)
    assert chisquare(counts.numpy(), 20_000 * shares[0].numpy()).pvalue > 0.001


def test_encode_draws_the_mode_or_takes_the_likeliest():
    encoder = replace(
        fitted(*numbers(three_modes())), weights=torch.tensor([0.3, 0.7]).double(),
        means=torch.tensor([0.0, 1.0]).double(), stds=torch.tensor([1.0, 1.0]).double(),
    )  # fmt: skip
    column, _ = numbers(np.full(20_000, 0.2))
    shares = posterior(torch.tensor([0.2]).double(), encoder.weights, encoder.means, encoder.stds)[0].numpy()
    counts = torch.bincount(encoder.encode(column, np.random.default_rng(1)).levels, minlength=2)
    assert chisquare(counts.numpy(), 20_000 * shares).pvalue > 0.001
    surest = replace(encoder, sample_mode=False).encode(column, np.random.default_rng(1)).levels
    assert set(surest.tolist()) == {int(shares.argmax())}


@pytest.mark.parametrize("law", ["normal", "uniform", "exponential", "lognormal", "standard_cauchy"])
def test_a_value_within_the_spread_of_its_mode_comes_back(law):
    values = getattr(np.random.default_rng(1), law)(size=4000)
    column, schema = numbers(values, low=float(values.min()), high=float(values.max()))
    encoder, codes, back = there_and_back(column, schema)
    reach = encoder.spread * encoder.stds[codes.levels].numpy() if codes.levels is not None else encoder.stds.numpy()
    inside = np.abs(codes.scores.numpy()) < SCORE_LIMIT
    assert np.all(np.abs(back.values.numpy() - values)[inside] <= 1e-6 * np.broadcast_to(reach, len(values))[inside])
    assert inside.mean() > (0.98 if law == "standard_cauchy" else 0.998)
    assert codes.scores.abs().max() <= np.float32(SCORE_LIMIT)


@settings(max_examples=40)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60), st.integers(0, 3))
def test_values_stay_on_their_grid_and_in_their_range(values, decimals):
    rounded = np.round(np.array(values, dtype=np.float64), decimals)
    column, schema = numbers(rounded, decimals=decimals)
    encoder = fitted(column, schema)
    made = drawn(encoder, 200).values.numpy()
    assert np.array_equal(np.round(made, decimals), made)
    assert made.min() >= rounded.min() and made.max() <= rounded.max()


SHAPES = {
    "constant": lambda v: np.full(37, v[0]),
    "missing": lambda v: np.full(9, np.nan),
    "few": lambda v: np.array(v[:3]),
    "duplicates": lambda v: np.repeat(v, 7),
    "holes": lambda v: np.where(np.arange(20) % 3 == 0, np.nan, np.resize(v, 20)),
    "near": lambda v: np.nextafter(np.resize(v, 30), np.resize([-np.inf, np.inf], 30)),
    "outlier": lambda v: np.append(np.linspace(0, 1, 50), v),
}


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(SHAPES)),
    st.lists(st.floats(-1e300, 1e300) | st.floats(-3, 3), min_size=1, max_size=12),
    st.sampled_from(["continuous", "mixed"]),
    st.sampled_from(["mixed", "all", "none"]),
)
def test_poor_columns_are_encoded_and_made(shape, values, kind, atoms):
    column, schema = numbers(SHAPES[shape](values), kind=kind)
    encoder, codes, back = there_and_back(column, schema, ModeConfig(atoms=atoms))
    assert (codes.levels is None) == (encoder.width == 1) and (codes.scores is None) == (not encoder.continuous)
    assert codes.scores is None or bool((codes.scores.abs() <= np.float32(SCORE_LIMIT)).all())
    assert bool(back.missing[column.missing].all())
    for made in (back, drawn(encoder, 50)):
        held = made.values[~made.missing]
        assert bool(held.isfinite().all())
        assert len(held) == 0 or (held.min() >= encoder.low and held.max() <= encoder.high)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e300, 5e-324])
def test_a_constant_column_comes_back_constant(value):
    column, schema = numbers(np.full(30, value))
    encoder, _, back = there_and_back(column, schema)
    assert (encoder.width, encoder.lines) == (1, 1)
    assert torch.equal(back.values, column.values) and set(drawn(encoder).values.tolist()) == {value}


def test_an_all_missing_column_has_one_level_and_no_scores():
    encoder, codes, back = there_and_back(*numbers(np.full(30, np.nan)))
    assert (encoder.width, encoder.continuous, codes) == (1, False, Codes(None, None))
    assert bool(back.missing.all())


@pytest.mark.parametrize("config", [ModeConfig(), ModeConfig(min_count=25), ModeConfig(fit_rows=400, modes=30)])
def test_no_mode_is_held_by_fewer_rows_than_min_count(config):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        values = np.concatenate([rng.normal(size=1000), rng.normal(30, 0.1, 6), [500.0, -900.0], rng.normal(60, 1, 40)])
        column, schema = numbers(values)
        encoder = fitted(column, schema, replace(config, sample_mode=False), seed)
        counts = torch.bincount(encoder.encode(column, rng).levels, minlength=encoder.lines)
        assert int(counts.min()) >= config.min_count


@pytest.mark.parametrize("extreme", [10_000_000, 91])
def test_the_extreme_of_one_person_is_neither_kept_nor_published(extreme):
    for seed in range(2):
        values = np.random.default_rng(seed).integers(18, 90, size=2000)
        values[0] = extreme
        encoder, _, back = there_and_back(*numbers(values), seed=seed)
        assert encoder.high < extreme and back.values.max() < extreme
        assert float(encoder.means.max()) < 91 and float(encoder.stds.max()) < 72


def test_fewer_rows_than_min_count_show_their_mean_alone():
    encoder, _, _ = there_and_back(*numbers(np.array([1.0, 2.0, 6.0])))
    assert encoder.means.tolist() == [2.0] and float(encoder.stds[0]) < 1e-9  # of 1, 2, and 3 in place of 6
    assert set(drawn(encoder).values.tolist()) == {2.0}


def test_few_rows_beside_an_atom_are_given_up():
    encoder, _, back = there_and_back(*numbers(np.array([0] * 500 + [731_942] * 2), kind="mixed"))
    assert set(back.values.tolist()) == {0} and not encoder.continuous
    assert "731942" not in repr(to_state(encoder))


@pytest.mark.parametrize(
    ("atoms", "kind", "some"),
    [("mixed", "mixed", True), ("mixed", "integer", False), ("all", "integer", True), ("none", "mixed", False)],
)
def test_special_values_are_levels_where_asked_for(atoms, kind, some):
    rng = np.random.default_rng(3)
    values = np.where(rng.random(4000) < 0.6, 0, rng.integers(100, 99_999, size=4000))
    values[:200] = -9
    column, schema = numbers(values, kind=kind)
    encoder, codes, back = there_and_back(column, schema, ModeConfig(atoms=atoms))
    assert encoder.atoms.tolist() == ([-9, 0] if some else [])
    if some:
        special = column.values <= 0
        assert torch.equal(back.values[special], column.values[special]) and bool((back.values[~special] > 0).all())
        assert bool((codes.scores[special] == 0).all()) and bool((codes.levels[special] >= encoder.lines).all())


def test_missing_is_the_last_level_and_keeps_its_rate():
    values = np.random.default_rng(0).normal(size=1000)
    values[:300] = np.nan
    column, schema = numbers(values)
    encoder, codes, back = there_and_back(column, schema)
    assert torch.equal(back.missing, column.missing)
    assert set(codes.levels[:300].tolist()) == {encoder.width - 1} and not bool(codes.scores[:300].any())


@pytest.mark.parametrize("centre", [0, 2**60, 2**63 - 10**6 - 5, -(2**63) + 10**6 + 5])
def test_large_whole_numbers_keep_their_last_digits(centre):
    values = centre + np.random.default_rng(0).integers(-(10**6), 10**6, 3000)
    column, schema = numbers(values)
    encoder, codes, back = there_and_back(column, schema)
    inside = (codes.scores.abs() < SCORE_LIMIT) & (column.values > encoder.low) & (column.values < encoder.high)
    assert torch.equal(back.values[inside], column.values[inside])
    made = drawn(encoder).values
    assert made.min() >= values.min() and made.max() <= values.max() and len(set((made % 2).tolist())) == 2


def test_whole_numbers_over_the_whole_line_stay_in_range():
    top = 2**63 - 1
    values = np.concatenate([np.full(40, -top), np.full(40, top), np.arange(40)])
    encoder = fitted(*numbers(values))
    made = drawn(encoder)
    assert (encoder.low, encoder.high) == (-(2**63), top) and made.values.dtype == torch.int64
    assert min(made.values.tolist()) < -top // 2 and max(made.values.tolist()) > top // 2


def test_means_count_from_zero_where_float64_allows_it():
    assert fitted(*numbers(np.arange(1000, 2000))).origin == 0
    assert fitted(*numbers(2**60 + np.arange(1000))).origin != 0


@pytest.mark.parametrize("grid", [1_000, 1_000_000_000, DAY])
def test_instants_stay_on_their_grid(grid):
    start = np.datetime64("2023-11-14T00:00:00").astype("datetime64[ns]").astype(np.int64)
    values = start + np.random.default_rng(0).integers(0, 1000, 2000) * grid
    frame = pd.DataFrame({"t": pd.to_datetime(values)})
    schema = infer(frame)
    column = to_table(frame, schema)["t"]
    _, codes, back = there_and_back(column, schema["t"])
    inside = codes.scores.abs() < SCORE_LIMIT
    assert int((back.values - column.values)[inside].abs().max()) <= 5 * grid  # the ends are means of five rows
    made = drawn(fitted(column, schema["t"])).values
    assert not bool((made % grid).any()) and made.min() >= values.min() and made.max() <= values.max()


def test_a_declared_range_is_reached_but_never_left():
    column, schema = numbers(np.random.default_rng(0).integers(16, 24, 800), low=18.0, high=21.5)
    made = drawn(fitted(column, schema)).values
    assert (int(made.min()), int(made.max())) == (18, 21)


@pytest.mark.parametrize("fit", [fit_mode_encoder, fit_standard_encoder])
@pytest.mark.parametrize("ends", [{"low": 45.0, "high": 55.0}, {"low": 45.0}, {"high": 55.0}])
def test_no_mass_gathers_on_declared_bounds(fit, ends):
    rng = np.random.default_rng(0)
    column, schema = numbers(rng.normal(50, 10, 3000).round(2), decimals=2, **ends)
    encoder = fit(column, schema, ModeConfig(), rng)
    made = encoder.decode(encoder.encode(column, rng), len(column), rng).values.numpy()
    assert made.min() >= ends.get("low", -np.inf) and made.max() <= ends.get("high", np.inf)
    assert np.isin(made, [45, 55]).mean() < 0.005


@pytest.mark.parametrize("fit", [fit_encoder, fit_mode_encoder, fit_standard_encoder])
def test_whole_numbers_next_to_a_bound_are_drawn_again_as_well(fit):
    rng = np.random.default_rng(0)
    column, schema = numbers(rng.poisson(30, 4000), high=30)
    encoder = fit(column, schema, ModeConfig(), rng)
    made = encoder.decode(encoder.encode(column, rng), len(column), rng).values.numpy()
    within = column.values.numpy()[column.values.numpy() <= 30]
    assert made.max() == 30 and abs((made == 30).mean() - (within == 30).mean()) < 0.03


@pytest.mark.parametrize("whole", [True, False])
def test_standardised_numbers_beyond_a_declared_bound_fill_its_share(whole):
    """Black pixels: a generator puts half of them below 0, and none of these becomes ink."""
    rng = np.random.default_rng(0)
    ink = rng.uniform(100, 255, 4000)
    values = np.where(rng.random(4000) < 0.7, 0.0, np.where(ink > 240, 255.0, ink))
    values = np.rint(values).astype(np.int64) if whole else values
    column, schema = numbers(values, low=0.0, high=255.0)
    encoder = fit_standard_encoder(column, schema, ModeConfig(), rng)
    codes = encoder.encode(column, rng)
    blurred = Codes(codes.levels, codes.scores + 0.1 * torch.from_numpy(rng.normal(size=4000)).float())
    made = encoder.decode(blurred, 4000, rng).values.numpy()
    for end, of_end in ((0, values == 0), (255, values == 255)):
        assert 0.45 * of_end.mean() < (made == end).mean() <= of_end.mean()
        assert (np.abs(made[of_end] - end) < 60).all()


def test_a_bound_that_too_few_rows_are_on_has_no_share_of_its_own():
    values = np.concatenate([np.zeros(4), np.random.default_rng(0).uniform(1, 9, 400)])
    column, schema = numbers(values, low=0.0, high=9.0)
    encoder = fit_standard_encoder(column, schema, ModeConfig(min_count=5), np.random.default_rng(0))
    assert (encoder.on_low, encoder.on_high) == (0.0, 0.0)


def test_a_table_goes_there_and_back_with_kinds_and_dtypes():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "price": np.round(rng.lognormal(3, 1, 600), 2),
            "flag": rng.random(600) < 0.3,
            "word": rng.choice(["a", "b", "c"], 600),
            "count": rng.integers(0, 200, 600),
            "day": pd.to_datetime(rng.integers(0, 3000, 600) * DAY),
            "same": np.full(600, 3),
        }
    )
    schema = infer(frame)
    table = to_table(frame, schema)
    encoders = [fit_mode_encoder(column, schema[column.name], ModeConfig(), rng) for column in table.columns]
    levels, scores = encode_table(table, encoders, rng)
    back = decode_table(levels, scores, encoders, rng)
    assert [(c.name, c.dtype, c.values.dtype) for c in back.columns] == [
        (c.name, c.dtype, c.values.dtype) for c in table.columns
    ]
    assert levels.shape == (600, sum(e.width > 1 for e in encoders)) and scores.dtype == torch.float32
    assert torch.equal(back["word"].values, table["word"].values) and back["word"].levels == table["word"].levels
    assert torch.equal(back["same"].values, table["same"].values)
    near = (back["price"].values - table["price"].values).abs() < 0.001
    assert float(near.double().mean()) > 0.98


def test_rare_levels_are_pooled_as_configured():
    column = Column("c", "str", torch.tensor([0] * 50 + [1]), torch.zeros(51, dtype=torch.bool), ("common", "me"))
    schema = ColumnSchema("c", "categorical", "str")
    for pool, kept in ((True, ("common",)), (False, ("common", "me"))):
        encoder = fit_mode_encoder(column, schema, ModeConfig(pool_rare=pool), np.random.default_rng(0))
        assert isinstance(encoder, CategoricalEncoder) and encoder.kept == kept


def test_encoders_and_settings_survive_storage():
    values = np.where(np.arange(900) % 4 == 0, 0, three_modes(900))
    column, schema = numbers(values, kind="mixed")
    for struct in (fitted(column, schema), ModeConfig(modes=3, atoms="none")):
        again = from_state(type(struct), unpack(pack(to_state(struct))))
        assert repr(again) == repr(struct)
    encoder = fitted(column, schema)
    again = from_state(Encoder, unpack(pack(to_state(encoder))))
    first, second = (e.encode(column, np.random.default_rng(5)) for e in (encoder, again))
    assert torch.equal(first.levels, second.levels) and torch.equal(first.scores, second.scores)


def test_the_same_stream_gives_the_same_modes():
    values = three_modes()
    first, second = (fit_mixture(values, 0.0, ModeConfig(fit_rows=500), np.random.default_rng(4)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("wrong", [{"modes": 0}, {"spread": 0.0}, {"fit_rows": -1}, {"least_weight": 1.0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError):
        ModeConfig(**wrong)
