"""What a sample holds besides modelled values: substitutes, and the training frame's own types and range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import silosynth as ss
from silosynth.core.errors import StorageError
from silosynth.data.infer import ColumnWarning

TINY = {"coder.steps": 20, "latent.steps": 20, "latent.width": 16, "latent.sample_steps": 2}


def test_a_person_has_the_same_substitute_in_all_silos(tmp_path: Path) -> None:
    """Also in batches, and from a file; no real value is among them."""
    people = pd.DataFrame({"name": ["Anna Bo", "Peter Li"] * 30, "age": range(60), "pay": np.arange(60) * 1.5})
    silos = {"bank": ["name", "pay"], "clinic": ["age", "name"]}
    federation = ss.simulate(people, silos, schema={"name": "pseudonym", "age": "integer"})
    model = ss.fit("silofuse", federation, "fast", options=TINY, progress=False)
    model.save(tmp_path / "m.silosynth")
    parts, whole = model.sample_parts(50, seed=3), ss.load(tmp_path / "m.silosynth").sample(50, seed=3)
    assert list(whole.columns) == list(people.columns)
    assert parts["bank"]["name"].tolist() == parts["clinic"]["name"].tolist() == whole["name"].tolist()
    assert whole["name"].str.fullmatch(r"[A-Z][a-z]{3} [A-Z][a-z]|[A-Z][a-z]{4} [A-Z][a-z]").all()
    assert not set(whole["name"]) & set(people["name"])
    drawn = pd.concat(list(model.sample_batches(50, 20, seed=3)))
    assert drawn["name"].tolist() == whole["name"].tolist()
    assert model.sample(50, seed=4)["name"].tolist() != whole["name"].tolist()


def test_types_of_polars_and_arrow_come_back_from_a_file(tmp_path: Path) -> None:
    levels = pl.Enum(["lo", "mid", "hi"])
    frame = pl.DataFrame({"e": pl.Series(["lo", "hi"] * 30, dtype=levels), "i": pl.Series(range(60), dtype=pl.Int16)})
    model = ss.fit("silofuse", ss.simulate(frame, schema={"i": "integer"}), "fast", options=TINY, progress=False)
    model.save(tmp_path / "m.silosynth")
    assert ss.load(tmp_path / "m.silosynth").sample(9).schema == frame.schema


def test_personal_categories_are_in_neither_model_nor_sample(tmp_path: Path) -> None:
    people = ["anna@uni.ch", "b.c@x.org"]
    column = pl.Series(people * 30, dtype=pl.Enum(people))
    federation = ss.simulate(pl.DataFrame({"contact": column, "y": np.arange(60) / 7}))
    with pytest.warns(ColumnWarning, match=r"'contact' is not published.*an e-mail address"):
        model = ss.fit("silofuse", federation, "fast", options=TINY, progress=False)
    model.save(tmp_path / "m.silosynth")
    assert not any(text.encode() in (tmp_path / "m.silosynth").read_bytes() for text in people)
    made = ss.load(tmp_path / "m.silosynth").sample(9)["contact"]
    assert made.dtype == pl.Categorical
    assert made.cast(pl.String).str.contains(r"^[a-z.]+@example\.(org|com|net)$").all()


def test_a_model_is_saved_under_a_name_that_says_so(tmp_path: Path) -> None:
    frame = pd.DataFrame({"y": np.arange(40) / 7})
    model = ss.fit("silofuse", ss.simulate(frame), "fast", options=TINY, progress=False)
    with pytest.raises(StorageError, match=r"must end in \.silosynth.*m\.csv"):
        model.save(tmp_path / "m.csv")


def test_no_mass_gathers_on_declared_bounds() -> None:
    x = np.random.default_rng(0).normal(50, 10, 400).round(2)
    federation = ss.simulate(pd.DataFrame({"x": x}), schema={"x": {"low": 45, "high": 55}})
    with pytest.warns(ColumnWarning, match="beyond its declared bounds"):
        made = ss.fit("silofuse", federation, "fast", options=TINY, progress=False).sample(500)["x"]
    assert made.between(45, 55).all()
    assert made.isin([45, 55]).mean() < 0.02


def test_a_fit_says_which_columns_are_pooled() -> None:
    frame = pd.DataFrame({"remark": [f"said {'x' * i}" for i in range(40)], "y": np.arange(40) / 7})
    with pytest.warns(ColumnWarning, match="'remark': 100% of its rows.*Declare format"):
        ss.fit("silofuse", ss.simulate(frame), "fast", options=TINY, progress=False)
    ss.fit("silofuse", ss.simulate(frame), "fast", options=TINY | {"coder.encoders.pool_rare": False}, progress=False)


def test_a_named_index_is_said_to_be_left_out() -> None:
    frame = pd.DataFrame({"y": np.arange(40) / 7})
    with pytest.warns(ColumnWarning, match=r"index \(person\) is not part of the table: frame.reset_index"):
        ss.simulate(frame.rename_axis("person"))
    ss.simulate(frame.sample(frac=0.5, random_state=1))


def test_a_fit_says_how_many_values_lie_beyond_declared_bounds() -> None:
    federation = ss.simulate(pd.DataFrame({"y": np.arange(40) / 7}), schema={"y": {"high": 4}})
    with pytest.warns(ColumnWarning, match="'y': 11 of 40 values lie beyond its declared bounds"):
        ss.fit("silofuse", federation, "fast", options=TINY, progress=False)


@pytest.mark.slow
def test_levels_that_a_dtype_declares_come_back_though_no_row_holds_them(tmp_path: Path) -> None:
    """Of Polars' Enum and of ordered categories; unordered ones may list what single rows hold."""
    grades, held = ["low", "mid", "high", "top"], ["low", "high"] * 29 + ["top", "low"]
    ordered = pd.Categorical(held, grades, ordered=True)
    frame = pd.DataFrame({"g": ordered, "u": pd.Categorical(held, grades), "y": np.arange(60) / 7})
    model = ss.fit("silofuse", ss.simulate(frame), "fast", options=TINY, progress=False)
    model.save(tmp_path / "m.silosynth")
    made = ss.load(tmp_path / "m.silosynth").sample(30)
    assert made["g"].cat.categories.tolist() == [*grades, "(rare)"] and made["g"].cat.ordered
    assert set(made["g"]) <= {"low", "high", "(rare)"}
    assert made["u"].cat.categories.tolist() == ["low", "high", "(rare)"]
    enum = pl.DataFrame({"g": pl.Series(held, dtype=pl.Enum(grades)), "y": np.arange(60) / 7})
    drawn = ss.fit("silofuse", ss.simulate(enum), "fast", options=TINY, progress=False).sample(30)
    assert drawn.schema["g"] == pl.Enum([*grades, "(rare)"])
