"""Missing cells of rows, filled in by what a model has learnt."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import silosynth as ss
from silosynth.core.errors import ConfigError
from silosynth.core.schema import Table
from silosynth.data import frames
from silosynth.data.infer import infer
from silosynth.simulation import imputing, model as models
from silosynth.simulation.imputing import Filled, filled

SILOS = {"bank": ["income", "key"], "clinic": ["health", "age", "since"]}
TINY = {"coder.steps": 20, "latent.steps": 20, "latent.width": 16, "latent.sample_steps": 2, "least_rows": 64}


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 91, rows)
    return pd.DataFrame(
        {
            "age": age,
            "health": np.where(age > 60, "poor", "good"),
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(age, "D"),
            "income": (100 * age + rng.normal(0, 200, rows)).round(2),
            "key": range(rows),
        }
    )


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """A third of all cells missing, but of the key."""
    rng, cells = np.random.default_rng(9), frame.copy()
    for name in ("age", "health", "since", "income"):
        cells[name] = cells[name].mask(rng.random(len(cells)) < 0.33)
    return cells


def fill(partial: pd.DataFrame, made: pd.DataFrame, draws: int = 4) -> Filled:
    schema = infer(made)
    tables = [frames.to_table(frame, schema) for frame in (partial, made)]
    return filled(*tables, draws, [], np.random.default_rng(0), lambda _: None)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few generated rows, and few trees."""
    monkeypatch.setattr(models, "POOL", 300)
    monkeypatch.setattr(imputing, "_TREES", 5)


@pytest.fixture(scope="module")
def model() -> ss.Model:
    federation = ss.simulate(people(300, 0), SILOS, schema={"key": "identifier", "age": "integer"})
    return ss.fit("silofuse", federation, "fast", seed=1, options=TINY, progress=False)


@pytest.mark.usefixtures("few")
def test_cells_are_filled_in_by_what_the_others_say() -> None:
    whole = people(100, 1).drop(columns="key")
    whole["health"] = whole["health"].mask(whole["age"] < 20)
    partial = gaps(whole)
    made = frames.to_frame(fill(partial, people(400, 2).drop(columns="key")).middle)
    known = partial.notna()
    assert made.notna().all(axis=None)
    assert all((made[name] == whole[name])[known[name]].all() for name in made)
    income = partial["income"].isna() & (partial["age"].notna() | partial["since"].notna())
    assert (made["income"] - whole["income"])[income].abs().median() < 400
    health = partial["health"].isna() & partial["age"].notna() & whole["health"].notna()
    assert (made["health"] == whole["health"])[health].mean() > 0.9


@pytest.mark.usefixtures("few")
def test_draws_differ_where_cells_are_uncertain_and_intervals_hold_the_truth() -> None:
    whole = people(200, 3)[["age", "income"]]
    whole["coin"] = np.random.default_rng(4).normal(0, 1, 200)
    partial = whole.assign(coin=np.nan, income=whole["income"].mask(whole.index % 2 == 0))
    found = fill(partial, whole.assign(coin=np.random.default_rng(5).normal(0, 1, 200)), draws=6)
    told = found.intervals.set_index("column")
    coin, income = told.loc["coin"], told.loc["income"]
    assert np.mean((coin["low"].to_numpy() <= whole["coin"]) & (whole["coin"] <= coin["high"].to_numpy())) > 0.75
    assert (coin["high"] - coin["low"]).median() > 2  # of a normal value that nothing is known of: 3.3
    assert (income["high"] - income["low"]).median() < 3000  # of 1000 to 9000
    draws = np.stack([table["coin"].values.numpy() for table in found.draws])
    assert draws.std(0).mean() > 0.5


@pytest.mark.usefixtures("few")
def test_levels_that_no_generated_row_has_are_known_cells_all_the_same() -> None:
    made = pd.DataFrame({"a": ["x", "y"] * 20, "b": ["u", "v"] * 20})
    found = fill(pd.DataFrame({"a": ["new", "x", None], "b": [None, None, "v"]}), made)
    assert frames.to_frame(found.middle)["a"].tolist() == ["new", "x", "y"]
    assert frames.to_frame(found.middle)["b"].tolist()[1] == "u"
    assert found.intervals.loc[found.intervals["row"] == 2, "share"].tolist() == [1.0]


def test_a_column_without_any_value_is_refused() -> None:
    made = frames.to_table(
        pd.DataFrame({"a": [1.5, 2.5], "b": [1.0, 2.0]}), infer(pd.DataFrame({"a": [1.5], "b": [1.0]}))
    )
    nothing = Table((made["a"].take(slice(0, 0)), made["b"].take(slice(0, 0))))
    partial = Table(tuple(column.__class__(column.name, column.dtype, column.values, column.missing | True)
                          for column in made.columns))  # fmt: skip
    with pytest.raises(ConfigError, match="none has one"):
        filled(partial, nothing, 2, [], np.random.default_rng(0), lambda _: None)


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_model_fills_in_rows_of_one_silo_or_several(model: ss.Model) -> None:
    partial = gaps(people(40, 6)).set_index(pd.RangeIndex(100, 140))
    found = model.impute(partial, draws=3, seed=1)
    assert len(found.draws) == 3
    for table in (*found.draws, found.table):
        assert table.notna().all(axis=None)
        assert table.index.equals(partial.index)
        assert table["key"].tolist() == list(range(40))
        assert table["age"].dtype == np.int64
        assert (table["age"] == partial["age"])[partial["age"].notna()].all()
    assert len(found.intervals) == partial.isna().sum().sum()
    assert found.table.equals(model.impute(partial, draws=3, seed=1).table)
    own = model.impute(partial[["key", "income"]], draws=2, seed=1)
    assert list(own.table.columns) == ["key", "income"]
    assert not {one["to"] for one in model.ledger} - {"coordinator", "bank", "clinic"}


@pytest.mark.usefixtures("few")
def test_rows_without_gaps_come_back_as_they_are(model: ss.Model) -> None:
    whole = people(5, 7)
    found = model.impute(whole, draws=2, seed=1)
    assert found.table.equals(whole)
    assert len(found.intervals) == 0
    assert repr(found) == "Imputation: 0 cells filled in, 2 draws"


@pytest.mark.parametrize(
    ("partial", "says"),
    [
        (pd.DataFrame({"helth": ["good"]}), "Did you mean 'health'"),
        (pd.DataFrame({"key": [3]}), "It models"),
    ],
)
def test_columns_that_cannot_be_filled_in_are_refused_before_anything_is_drawn(
    model: ss.Model, partial: pd.DataFrame, says: str
) -> None:
    before = len(model.ledger)
    with pytest.raises(ConfigError, match=says):
        model.impute(partial)
    assert len(model.ledger) == before


@pytest.mark.slow
def test_columns_of_several_silos_stay_apart_where_the_model_keeps_them_apart() -> None:
    federation = ss.simulate(
        people(60, 0).drop(columns="key"), {"bank": ["income"], "clinic": ["health", "age", "since"]}
    )
    options = TINY | {"synthesis": "partitioned"}
    model = ss.fit("silofuse", federation, "fast", seed=1, options=options, progress=False)
    with pytest.raises(ConfigError, match="one silo at a time"):
        model.impute(pd.DataFrame({"income": [None], "age": [30]}))


def test_a_synthetic_table_fills_gaps_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silosynth.simulation.imputing._TREES", 5)
    whole = people(60, 5)
    found = ss.impute(gaps(whole), people(800, 1), draws=3, seed=1)
    known = gaps(whole).notna()
    for one in (found.table, *found.draws):
        assert one.notna().all().all()
        assert all((one[name] == whole[name])[known[name]].all() for name in one)
    guessed = ~known["health"]
    assert (found.table["health"] == whole["health"])[guessed].mean() > 0.7
    assert found.table.equals(ss.impute(gaps(whole), people(800, 1), draws=3, seed=1).table)
    with pytest.raises(ConfigError, match="Did you mean 'age'"):
        ss.impute(pd.DataFrame({"agee": [None]}), people(50, 1))
