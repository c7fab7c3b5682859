"""Rows are held out at random, the same ones in every silo that has a part of them."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import silosynth as ss
from silosynth.commands.tables import gather
from silosynth.core.errors import ConfigError, DataError
from silosynth.data import splits
from silosynth.experiment.grammar import read


def people(n: int = 100) -> pd.DataFrame:
    return pd.DataFrame(
        {"person": [f"P-{i:05d}" for i in range(n)], "age": np.arange(n), "city": list("ab") * (n // 2)}
    )


def test_every_row_is_on_one_side_in_the_tables_order() -> None:
    frame = people()
    train, holdout = ss.split(frame, holdout=0.25, seed=3)
    assert (len(train), len(holdout)) == (75, 25)
    assert sorted([*train["age"], *holdout["age"]]) == list(range(100))
    assert train["age"].is_monotonic_increasing and holdout["age"].is_monotonic_increasing
    assert holdout["age"].max() - holdout["age"].min() > 60  # not a stretch of the table
    assert (
        train["age"].tolist()
        == ss.split(frame, 0.25, 3)[0]["age"].tolist()
        != ss.split(frame, 0.25, 4)[0]["age"].tolist()
    )


def test_a_run_draws_the_same_rows_with_the_same_seed(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "people.csv", index=False)
    plan = tmp_path / "plan.toml"
    plan.write_text('[data]\npath = "people.csv"\n[silos.a]\ncolumns = ["age", "city"]\n[split]\nseed = 5\n')
    material = gather(read(plan))
    train, holdout = ss.split(people()[["age", "city"]], 0.2, seed=5)
    assert material.holdout is not None
    assert material.train["age"].tolist() == train["age"].tolist()
    assert material.holdout["age"].tolist() == holdout["age"].tolist()
    assert material.held == {"table": holdout["age"].tolist()}


def test_frames_of_all_libraries_are_split_alike() -> None:
    frame = people()
    expected = ss.split(frame)
    arrow, polars = ss.split(pa.Table.from_pandas(frame)), ss.split(pl.from_pandas(frame))
    assert all(isinstance(part, pa.Table) for part in arrow) and all(isinstance(part, pl.DataFrame) for part in polars)
    for parts in (arrow, polars):
        assert [part["age"].to_pylist() if isinstance(part, pa.Table) else part["age"].to_list() for part in parts] == [
            part["age"].tolist() for part in expected
        ]


def test_silos_with_other_columns_hold_out_the_same_people_by_their_identifier() -> None:
    frame = people()
    bank, clinic = frame[["person", "age"]], frame[["person", "city"]].sample(frac=1, random_state=0).head(90)
    train, holdout = ss.split({"bank": bank, "clinic": clinic}, holdout=0.3)
    assert set(train) == set(holdout) == {"bank", "clinic"}
    assert not set(train["bank"]["person"]) & set(holdout["clinic"]["person"])
    assert not set(holdout["bank"]["person"]) & set(train["clinic"]["person"])
    assert len(train["clinic"]) + len(holdout["clinic"]) == 90
    assert len(holdout["bank"]) == 30


def test_silos_with_other_columns_and_no_identifier_hold_out_the_same_places() -> None:
    frame = people()
    train, holdout = ss.split({"bank": frame[["age"]], "clinic": frame[["city"]]})
    assert train["bank"].index.tolist() == train["clinic"].index.tolist()
    assert holdout["bank"].index.tolist() == holdout["clinic"].index.tolist()
    with pytest.raises(DataError, match="bank: 100 rows, clinic: 99 rows"):
        ss.split({"bank": frame[["age"]], "clinic": frame[["city"]][1:]})


def test_silos_with_the_same_columns_are_split_on_their_own() -> None:
    train, holdout = ss.split({"north": people(100), "south": people(50)})
    assert {silo: len(table) for silo, table in holdout.items()} == {"north": 20, "south": 10}
    assert {silo: len(table) for silo, table in train.items()} == {"north": 80, "south": 40}
    assert ss.simulate(train).horizontal


def test_rows_of_one_person_stay_together() -> None:
    visits = pd.concat([people(40)] * 3, ignore_index=True)
    train, holdout = ss.split(visits, 0.25, identifier="person")
    assert not set(train["person"]) & set(holdout["person"])
    assert (len(train), len(holdout)) == (90, 30)


@pytest.mark.parametrize("share", [0, 1, 0.0, 1.0, -0.2, 20, True, "a fifth"])
def test_the_share_lies_between_0_and_1(share: Any) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        ss.split(people(), holdout=share)


def test_errors_say_what_to_do() -> None:
    frame = people()
    for rows, share in ((2, 0.4), (2, 0.5), (4, 0.1), (4, 0.9)):
        with pytest.raises(DataError, match="at least 1 row to hold out and 2 to train on"):
            ss.split(frame.head(rows), share)
    with pytest.raises(DataError, match="Did you mean 'person'"):
        ss.split(frame, identifier="persons")
    with pytest.raises(DataError, match="1 missing"):
        ss.split(frame.assign(person=[None, *frame["person"][1:]]), identifier="person")
    with pytest.raises(DataError, match="at least one silo"):
        ss.split({})
    with pytest.raises(DataError, match=r"'city'.*identifier=…"):
        ss.split({"a": frame[["age", "city"]], "b": frame[["city"]]})
    with pytest.raises(DataError, match=r"A table is a pandas\.DataFrame"):
        ss.split([1, 2, 3])


def test_the_example_is_right() -> None:
    assert doctest.testmod(splits).failed == 0
