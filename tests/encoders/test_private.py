from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import silosynth as ss
from silosynth.core.errors import ConfigError, DataError, SchemaError
from silosynth.core.messages import to_state
from silosynth.core.schema import Schema, Table, beyond_bounds
from silosynth.core.streams import Keystream, Streams
from silosynth.encoders import table as private_encoders
from silosynth.encoders.column import CategoricalEncoder, Encoder, EncoderConfig, decode_table, encode_table
from silosynth.encoders.normalised import ModeConfig
from silosynth.encoders.table import learn
from silosynth.privacy.accounting import spent
from silosynth.runtime.wire import pack

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIGS = [EncoderConfig(), ModeConfig(modes=4)]
BOUNDS = {
    "age": {"low": 0, "high": 120},
    "pay": {"low": 0, "high": 200_000},
    "gap": {"low": -10, "high": 10},
    "day": {"low": "2010-01-01", "high": "2025-01-01"},
    "ward": {"levels": ["north", "south", "east", "west"]},
}


def frame(rows: int = 4000) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "age": rng.integers(17, 90, rows),
            "pay": np.where(rng.random(rows) < 0.4, 0, np.round(np.exp(rng.normal(9, 1, rows)), 2)),
            "gap": np.where(rng.random(rows) < 0.3, np.nan, rng.normal(0, 1, rows)),
            "job": rng.choice(["clerk", "nurse", "smith", *(f"rare {i}" for i in range(20))], rows, p=_SHARES),
            "owns": rng.random(rows) < 0.2,
            "day": pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 2000, rows), unit="D"),
            "ward": rng.choice(["north", "south", "east"], rows, p=[0.6, 0.3, 0.1]),
        }
    )


_SHARES = [0.5, 0.3, 0.19, *(0.0005 for _ in range(20))]


def held(data: pd.DataFrame, declared: dict[str, Any] | None = None) -> tuple[Table, Schema]:
    federation = ss.simulate(data, silos={"a": list(data)}, schema=declared)
    table, schema = federation.tables["a"], federation.schemas["a"]
    return table.select([name for name in table.names if name in schema.modelled]), schema


def learned(*given, **named):
    """Encoders, noised row count, and events."""
    learnt = learn(*given, **named)
    return learnt.encoders, learnt.rows, learnt.events


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(seed: int = 0) -> Keystream:
    return Streams(seed).noise()


WARDS = {"ward": BOUNDS["ward"]}
EPSILON = {"declared": 1.0, "noised": 100.0}  # of 500 rows in seven columns, little epsilon hides the ranges
BOUNDED = [("declared", BOUNDS), ("noised", WARDS), ("noised", WARDS | {"age": {"low": 0}, "pay": BOUNDS["pay"]})]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("bounds", "declared"), BOUNDED)
def test_the_bill_is_what_was_allowed(config: EncoderConfig, bounds: Any, declared: dict[str, Any]) -> None:
    table, schema = held(frame(), declared)
    epsilon = 2.0 * EPSILON[bounds]
    encoders, rows, events = learned(table, schema, config, epsilon, 1e-6, noise(), target=1e-5, bounds=bounds)
    budget = spent(events, 0.0)
    assert (budget.pure_epsilon, budget.own_delta) == (pytest.approx(epsilon), pytest.approx(1e-6))
    assert {(event.scope, event.target) for event in events} == {("all", 1e-5)}
    assert [encoder.name for encoder in encoders] == list(table.names)
    assert abs(rows - len(table)) < 300
    searched = sum(name in BOUNDS and not {"low", "high"} <= declared.get(name, {}).keys() for name in table.names[:-1])
    assert len(events) == 1 + len(table.columns) + 1 + searched  # instants ask for their grid


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("bounds", "declared"), BOUNDED)
def test_rows_come_back_much_as_they_were(config: EncoderConfig, bounds: Any, declared: dict[str, Any]) -> None:
    data = frame()
    table, schema = held(data, declared)
    encoders, _, _ = learned(table, schema, config, 10.0, 1e-6, noise(), bounds=bounds)
    back = decode_table(*encode_table(table, encoders, rng(1)), encoders, rng(2))
    for name in ("age", "pay", "gap", "day"):
        real, made = table[name], back[name]
        assert float(made.missing.double().mean()) == pytest.approx(float(real.missing.double().mean()), abs=0.01)
        real_q, made_q = (
            torch.quantile(column.values[~column.missing].double(), torch.tensor([0.1, 0.5, 0.9]).double())
            for column in (real, made)
        )
        spread = float(real_q[2] - real_q[0])
        assert torch.allclose(real_q, made_q, atol=0.05 * spread)
    assert bool((back["day"].values % 86_400_000_000_000 == 0).all())
    jobs = next(encoder for encoder in encoders if encoder.name == "job")
    assert isinstance(jobs, CategoricalEncoder)
    assert jobs.kept == ("clerk", "nurse", "smith")
    assert jobs.rare and not jobs.missing
    assert torch.equal(back["owns"].values, table["owns"].values)
    wards = next(encoder for encoder in encoders if encoder.name == "ward")
    assert isinstance(wards, CategoricalEncoder) and wards.kept == ("north", "south", "east") and not wards.text


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("row", [0, 17, 333])
@pytest.mark.parametrize(("bounds", "declared"), BOUNDED[:2])
def test_noised_counts_are_all_that_is_learnt(
    config: EncoderConfig, row: int, bounds: Any, declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours: each count differs by one row in one cell, and with the same noised counts all else is the same."""
    table, schema = held(frame(500), declared)
    fewer = table.take(torch.arange(500) != row)
    said: list[tuple[Tensor, Any]] = []

    def noting(real: Callable[..., Any], at: int) -> Callable[..., Any]:
        def replaced(*args: Any) -> Any:
            said.append((args[at], real(*args)))
            return said[-1][1]

        return replaced

    def repeating(at: int) -> Callable[..., Any]:
        def replaced(*args: Any) -> Any:
            counts, found = said.pop(0)
            assert float((args[at] - counts).abs().sum()) <= 1
            return found

        return replaced

    counts, levels = private_encoders.noised_counts, private_encoders.noised_levels
    monkeypatch.setattr(private_encoders, "noised_counts", noting(counts, 0))
    monkeypatch.setattr(private_encoders, "noised_levels", noting(levels, 1))
    first = learned(table, schema, config, EPSILON[bounds], 1e-6, noise(), bounds=bounds)
    monkeypatch.setattr(private_encoders, "noised_counts", repeating(0))
    monkeypatch.setattr(private_encoders, "noised_levels", repeating(1))
    second = learned(fewer, schema, config, EPSILON[bounds], 1e-6, noise(), bounds=bounds)
    assert not said
    assert packed(first) == packed(second)


def packed(found: tuple[tuple[Encoder, ...], int, Any]) -> bytes:
    return pack({"encoders": [to_state(encoder) for encoder in found[0]], "rows": found[1]})


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("rows", [2, 3, 30])
@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_small_tables_and_little_epsilon(config: EncoderConfig, rows: int, epsilon: float) -> None:
    table, schema = held(frame(200), BOUNDS)
    table = table.take(slice(rows))
    for seed in range(2):
        encoders, found, _ = learned(table, schema, config, epsilon, 1e-6, noise(seed))
        back = decode_table(*encode_table(table, encoders, rng(1)), encoders, rng(2))
        assert found >= 1
        assert len(back) == rows
        assert all(bool(torch.isfinite(column.values.double()).all()) for column in back.columns)


@pytest.mark.parametrize("config", CONFIGS)
def test_odd_columns(config: EncoderConfig) -> None:
    data = pd.DataFrame(
        {
            "one": np.full(300, 7),
            "gone": pd.Series([None] * 300, dtype="float64"),
            "no": np.zeros(300, dtype=bool),
            "huge": np.linspace(-1e300, 1e300, 300),
            "tiny": np.linspace(0, 1e-12, 300),
            "codes": pd.Categorical(np.arange(300) % 3),
        }
    )
    declared = {
        "one": {"low": 0, "high": 10}, "gone": {"kind": "continuous", "low": 0, "high": 1}, "codes": "categorical",
        "huge": {"low": -1e300, "high": 1e300}, "tiny": {"low": 0, "high": 1e-12},
    }  # fmt: skip
    table, schema = held(data, declared)
    encoders, _, _ = learned(table, schema, config, 20.0, 1e-4, noise())
    back = decode_table(*encode_table(table, encoders, rng(1)), encoders, rng(2))
    assert set(back["one"].values.tolist()) == {7}
    assert bool(back["gone"].missing.all())
    assert back["codes"].levels == (0, 1, 2)


def test_numbers_as_categories_of_which_none_is_released() -> None:
    table, schema = held(pd.DataFrame({"code": pd.Categorical(np.arange(100) // 2)}), {"code": "categorical"})
    with pytest.raises(DataError, match="no level of it has enough rows to be released") as caught:
        learned(table, schema, EncoderConfig(), 1.0, 1e-6, noise())
    assert "dp.epsilon" in str(caught.value)


def test_declared_levels_are_no_secret() -> None:
    """They take no delta, are counted whatever their number of rows, and those that noise hides are drawn alike."""
    data = pd.DataFrame({"code": np.arange(100) // 25, "word": [f"w{i}" for i in [0] * 60 + [*range(1, 21)] * 2]})
    declared = {"code": {"levels": [*range(40)]}, "word": {"levels": [f"w{i}" for i in range(40)]}}
    table, schema = held(data, declared)
    encoders, _, events = learned(table, schema, EncoderConfig(), 1.0, 1e-6, noise())
    code, word = (encoder for encoder in encoders if isinstance(encoder, CategoricalEncoder))
    assert spent(events, 0.0).own_delta == 0 and private_encoders.named_columns(table, schema) == 0
    assert code.kept == (0, 1, 2, 3) and word.kept[0] == "w0" and word.rare
    assert private_encoders.most_values(schema["code"]) == 40
    back = decode_table(*encode_table(table, encoders, rng(1)), encoders, rng(2))
    assert {*word.kept, *word.hidden} == set(schema["word"].levels) and len(set(word.kept) & set(word.hidden)) == 0
    drawn = back["word"].own_levels().levels or ()
    assert set(drawn) <= set(schema["word"].levels) and len(set(drawn) & set(word.hidden)) > 5
    with pytest.raises(DataError, match="Declare its levels"):
        learned(*held(data, {"code": "categorical"}), EncoderConfig(), 1.0, 1e-6, noise())


def test_of_many_declared_levels_few_stand_out_by_chance() -> None:
    empty = torch.zeros(501, dtype=torch.int64)
    shown = [private_encoders.shown_levels(_laplace(empty, seed), math.sqrt(2) * 30)[0] for seed in range(40)]
    assert np.mean([len(places) for places in shown]) < 2


def _laplace(counts: Tensor, seed: int) -> Tensor:
    return counts + torch.from_numpy(rng(seed).laplace(0, 30, len(counts)).round()).long()


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (-1.0, 1e-6), (1.0, 0.0), (math.nan, 1e-6)])
def test_the_budget_is_checked(epsilon: float, delta: float) -> None:
    table, schema = held(frame(50), BOUNDS)
    with pytest.raises(ConfigError):
        learned(table, schema, EncoderConfig(), epsilon, delta, noise())


@pytest.mark.parametrize(
    ("values", "dtype", "more"),
    [
        ([0, 1] * 200, "int64", 2),
        ([None] * 400, "boolean", True),
        ([None] * 400, "float64", 1.0),
        ([1] * 400, "int64", 2),
    ],
)
def test_which_levels_occur_decides_on_no_mechanism(values: list[Any], dtype: str, more: Any) -> None:
    """One row more, with a level that no other row has, changes nothing but counts."""
    told = []
    for rows in (values, [*values, more]):
        data = pd.DataFrame({"x": pd.Series(rows, dtype=dtype), "job": pd.Categorical(["clerk"] * len(rows))})
        table, schema = held(data, {"x": {"kind": "boolean" if dtype == "boolean" else "categorical"}})
        encoders, _, events = learned(table, schema, EncoderConfig(), 50.0, 1e-6, noise())
        told.append((events, [encoder.text for encoder in encoders if isinstance(encoder, CategoricalEncoder)]))
    assert told[0] == told[1]


def test_numbers_and_dates_without_declared_bounds_are_refused_with_what_to_write() -> None:
    data = frame(50).rename(columns={"gap": "the gap"})
    table, schema = held(data, {"pay": {"low": 0}})
    with pytest.raises(DataError, match="need declared bounds") as caught:
        learned(table, schema, EncoderConfig(), 1.0, 1e-6, noise())
    assert str(caught.value).partition("(got: ")[2].partition(")")[0] == "4 without: age, pay, the gap, day"
    _, block, _, mapping, _ = caught.value.remedy.split("\n\n")
    filled = {"age": (0, 120), "pay": (0, 200_000), "the gap": (-10, 10)}
    for name, (low, high) in filled.items():
        blank = rf'^("?){name}("?) = {{ low = \S+, high = \S+ }}$'
        block = re.sub(blank, rf"\1{name}\2 = {{ low = {low}, high = {high} }}", block, flags=re.MULTILINE)
    block = block.replace('"YYYY-MM-DD"', '"2010-01-01"', 1).replace('"YYYY-MM-DD"', '"2025-01-01"')
    assert "pay = { low = 0, high = 200000 }" in block
    declared = tomllib.loads(block)["schema"]
    assert set(declared) == {*filled, "day"}
    learned(*held(data, declared), EncoderConfig(), 1.0, 1e-6, noise())
    python = ast.literal_eval(mapping.removeprefix("schema=").replace("…", "0"))
    assert set(python) == set(declared) and python["day"] == {"low": "YYYY-MM-DD", "high": "YYYY-MM-DD"}


def test_the_block_for_durations_works_once_it_is_filled_in() -> None:
    days = np.random.default_rng(3).integers(1, 37, 400)
    data = pd.DataFrame({"stay": pd.to_timedelta(days, unit="D"), "job": ["clerk", "nurse"] * 200})
    with pytest.raises(DataError, match="need declared bounds") as caught:
        learned(*held(data), EncoderConfig(), 10.0, 1e-6, noise())
    _, block, _, mapping, _ = caught.value.remedy.split("\n\n")
    for blank in (tomllib.loads(block)["schema"], ast.literal_eval(mapping.removeprefix("schema="))):
        assert blank == {"stay": {"low": "… days", "high": "… days"}}
        with pytest.raises(SchemaError, match=r"'stay' holds durations: a bound must be a duration.*… days"):
            held(data, blank)
    filled = tomllib.loads(block.replace('low = "…', 'low = "0').replace('high = "…', 'high = "40'))["schema"]
    encoders, _, _ = learned(*(told := held(data, filled)), EncoderConfig(), 10.0, 1e-6, noise())
    back = decode_table(*encode_table(told[0], encoders, rng(1)), encoders, rng(2))["stay"].values
    assert 0 <= int(back.min()) < int(back.max()) <= pd.Timedelta("40 days").value


def test_values_beyond_declared_bounds_are_counted_and_not_made() -> None:
    data = frame()
    table, schema = held(data, BOUNDS | {"age": {"low": 20, "high": 80}})
    beyond = int(((data["age"] < 20) | (data["age"] > 80)).sum())
    assert beyond_bounds(table, schema)["age"] == beyond and beyond > 100
    encoders, _, _ = learned(table, schema, EncoderConfig(), 5.0, 1e-6, noise())
    back = decode_table(*encode_table(table, encoders, rng(1)), encoders, rng(2))["age"].values
    assert (int(back.min()), int(back.max())) == (20, 80)


DECLARED = {
    "visits": {"kind": "integer", "low": 0, "high": 100},
    "gain": {"kind": "integer", "low": 0, "high": 100_000},
}


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize("bounds", ["declared", "noised"])
def test_numbers_stay_near_what_they_were_at_a_thousand_rows(bounds: Any, epsilon: float) -> None:
    """A search for bounds once made -8e8 of `visits`, 0 to 69, and 0 to 1 of a column of zeros and gains."""
    source = rng(3)
    visits = source.poisson(8, 1000).clip(0, 69)
    gain = np.where(source.random(1000) < 0.9, 0, source.integers(100, 99_999, 1000))
    table, schema = held(pd.DataFrame({"visits": visits, "gain": gain}), DECLARED if bounds == "declared" else None)
    refused = 0
    for seed in range(10):
        try:
            encoders, _, _ = learned(table, schema, EncoderConfig(), epsilon, 1e-6, noise(seed), bounds=bounds)
        except DataError as error:
            refused += "an end that is not declared, and noise hides where its values lie" in str(error)
            continue
        back = decode_table(*encode_table(table, encoders, rng(1)), encoders, rng(2))
        for name, real in (("visits", visits), ("gain", gain)):
            made = back[name].values.numpy()
            assert made.min() >= 0 and made.max() <= {"visits": 100, "gain": 2**17}[name]
            assert abs(np.median(made) - np.median(real)) <= 10
        assert float((back["gain"].values > 1).double().mean()) > 0.02
    assert (refused > 0) == (bounds == "noised" and epsilon == 1)


def made_of(values: np.ndarray, epsilon: float, seed: int, **declared: Any) -> np.ndarray | None:
    """Values that come back under noised bounds; None where they are refused."""
    table, schema = held(pd.DataFrame({"x": values}), {"x": declared} if declared else None)
    try:
        encoders, _, _ = learned(table, schema, EncoderConfig(), epsilon, 1e-6, noise(seed), bounds="noised")
    except DataError as error:
        assert "noise hides where its values lie" in str(error)  # noqa: PT017
        return None
    made: np.ndarray = decode_table(*encode_table(table, encoders, rng(1)), encoders, rng(2))["x"].values.numpy()
    return made


FAR = {
    "years": rng(5).integers(2010, 2021, 20_000),
    "readings": np.round(1e6 + rng(5).normal(170, 80, 20_000), 1),
    "heights": rng(5).normal(170, 8, 20_000),
}


@pytest.mark.parametrize("name", FAR)
def test_numbers_far_from_zero_keep_their_spread_where_bounds_are_noised(name: str) -> None:
    made = made_of(FAR[name], 2.0, 0)
    assert made is not None
    assert made.mean() == pytest.approx(FAR[name].mean(), abs=0.1 * FAR[name].std())
    assert made.std() == pytest.approx(FAR[name].std(), rel=0.1)


@pytest.mark.parametrize(("rows", "share", "epsilon"), [(300, 0.1, 0.5), (1000, 0.08, 0.3), (1000, 0.04, 1.0)])
def test_few_values_among_zeros_are_not_lost_without_a_word(rows: int, share: float, epsilon: float) -> None:
    source, lost = rng(4), 0
    values = np.where(np.arange(rows) < share * rows, source.integers(100, 99_999, rows), 0)
    for seed in range(30):
        made = made_of(values, epsilon, seed)
        lost += made is not None and not (made > 1).any()
    assert lost <= 3, "noise hides all of them with a probability of some per cent"


@pytest.mark.parametrize("declared", [{"high": 100}, {"low": 40}, {"low": 0}])
def test_values_beyond_the_end_that_is_declared_are_clamped(declared: dict[str, float]) -> None:
    values = rng(6).exponential(60, 20_000).round(2).clip(None, 300)
    made = made_of(values, 5.0, 0, **declared)
    assert made is not None
    low, high = declared.get("low", 0), declared.get("high", 1000)
    assert made.min() >= low and made.max() <= high
    assert np.mean(made) == pytest.approx(np.mean(values.clip(low, high)), rel=0.05)
