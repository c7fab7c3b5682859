"""Models of silos that hold different rows: one table, drawn by the coordinator."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests import toy_rows

import silosynth as ss
from silosynth.core.errors import ConfigError


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    toy_rows.register(monkeypatch)


@pytest.fixture
def data(people: pd.DataFrame) -> pd.DataFrame:
    """Nobody's region is missing, and everybody has a number."""
    return people.assign(member_id=[f"M{i:05d}x" for i in range(len(people))])


@pytest.fixture
def model(data: pd.DataFrame) -> ss.Model:
    federation = ss.simulate(data, rows={"north": range(150), "south": range(150, 400)})
    return ss.fit(toy_rows.NAME, federation, preset="fast", progress=False)


def test_samples_are_one_table_like_the_frame(model: ss.Model, data: pd.DataFrame) -> None:
    table = model.sample(30, seed=1)
    assert list(table.columns) == list(data.columns)
    assert table.dtypes.to_dict() == data.dtypes.to_dict()
    assert table["member_id"].tolist() == [f"synthetic-{i}" for i in range(1, 31)]
    pieces = list(model.sample_batches(30, batch=20, seed=1))
    assert [len(piece) for piece in pieces] == [20, 10]
    assert pieces[1]["member_id"].tolist() == [f"synthetic-{i}" for i in range(21, 31)]


def test_there_are_no_parts_to_sample(model: ss.Model) -> None:
    with pytest.raises(ConfigError, match=r"The coordinator has all of a model.*Use sample"):
        model.sample_parts(3)


def test_a_saved_model_draws_the_same_rows_and_says_the_same(model: ss.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "m.silosynth")
    again = ss.load(tmp_path / "m.silosynth")
    assert again.describe() == model.describe()
    pd.testing.assert_frame_equal(again.sample(10), model.sample(10))


def test_a_model_says_how_its_silos_were_divided(model: ss.Model, data: pd.DataFrame) -> None:
    about = model.describe()
    assert about["partition"] == "horizontal"
    assert about["rows"] == model.rows == 400
    assert about["silos"] == {silo: list(data.columns) for silo in ("north", "south")}
    assert about["columns"]["region"] == "categorical"
    assert about["pooled"] == ["age"]  # which the coordinator's encoders say


def test_a_model_of_columns_says_so(people: pd.DataFrame) -> None:
    tiny = {"encoder": [8], "decoder": [8], "embedding": 4, "batch": 30, "epochs": 1, "least_steps": 1}
    model = ss.fit("tvae", ss.simulate(people), preset="fast", options=tiny, progress=False)
    assert model.describe()["partition"] == "vertical"
