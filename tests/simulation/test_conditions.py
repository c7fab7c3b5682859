"""Rows that fulfil conditions, of a model of each kind."""

from __future__ import annotations

import sys
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import silosynth as ss
from silosynth.algorithms.silofuse.networks import Coder
from silosynth.core.errors import ConfigError
from silosynth.core.streams import Streams
from silosynth.simulation.groups import grouped
from silosynth.simulation.model import Model

TINY = {"coder.steps": 20, "latent.steps": 20, "latent.width": 16, "latent.sample_steps": 2, "least_rows": 64}
SILOS = {"bank": ["income", "job", "since"], "clinic": ["health", "age"]}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(18, 91, 300)
    income = np.where(rng.random(300) < 0.2, np.nan, (rng.gamma(2, 1000, 300)).round(2))
    return pd.DataFrame(
        {
            "age": age,
            "health": np.where(age + rng.normal(0, 15, 300) > 65, "poor", rng.choice(["good", "fair"], 300)),
            "income": income,
            "job": rng.choice([1, 2, 3], 300),
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, 300), "D"),
            "key": range(300),
        }
    )


def fitted(frame: pd.DataFrame, **options: Any) -> ss.Model:
    silos = SILOS | {"bank": [*SILOS["bank"], "key"]}
    federation = ss.simulate(frame, silos, schema={"key": "identifier", "age": "integer"})
    return ss.fit("silofuse", federation, "fast", seed=1, options=TINY | options, progress=False)


@pytest.fixture(scope="module")
def model(frame: pd.DataFrame) -> ss.Model:
    return fitted(frame)


@pytest.fixture(scope="module")
def partitioned(frame: pd.DataFrame) -> ss.Model:
    return fitted(frame, synthesis="partitioned")


def test_rows_fulfil_conditions_in_several_silos(model: ss.Model, frame: pd.DataFrame) -> None:
    made = model.sample(40, seed=2, given={"health": ["poor", "fair"], "age": (40, 80), "income": (0, None)})
    assert len(made) == 40
    assert list(made.columns) == list(frame.columns)
    assert made["health"].isin(["poor", "fair"]).all()
    assert made["age"].between(40, 80).all()
    assert made["income"].notna().all()
    assert made["key"].tolist() == list(range(1, 41))


def test_missing_values_and_dates_are_conditions_too(model: ss.Model) -> None:
    made = model.sample(10, seed=2, given={"income": None, "since": ("2020-06-01", pd.Timestamp("2021-06-01"))})
    assert made["income"].isna().all()
    assert made["since"].between("2020-06-01", "2021-06-01").all()


def test_the_same_seed_gives_the_same_rows_and_batches(model: ss.Model) -> None:
    given = {"health": "good"}
    whole = model.sample(30, seed=3, given=given)
    assert whole.equals(model.sample(30, seed=3, given=given))
    parts = pd.concat(list(model.sample_batches(30, seed=3, given=given)), ignore_index=True)
    assert whole.equals(parts)
    assert all(len(part) <= 20 for part in model.sample_batches(30, 20, seed=3, given=given))


def test_columns_that_stay_apart_fulfil_conditions_of_all_silos(partitioned: ss.Model) -> None:
    parts = partitioned.sample_parts(25, seed=4, given={"health": "good", "job": [1, 2]})
    assert (parts["clinic"]["health"] == "good").all()
    assert parts["bank"]["job"].isin([1, 2]).all()
    assert len(parts["bank"]) == len(parts["clinic"]) == 25
    with pytest.raises(ConfigError, match="sample_parts"):
        partitioned.sample(5, given={"health": "good"})


@pytest.mark.slow
def test_conditions_charge_nothing_under_differential_privacy(frame: pd.DataFrame) -> None:
    """They are post-processing: what is stated, and every message with noise, is as before."""
    low_high = {"age": {"low": 18, "high": 90}, "income": {"low": 0, "high": 10_000}, "job": {"low": 1, "high": 3}}
    dates = {"since": {"low": "2020-01-01", "high": "2022-01-01"}}
    federation = ss.simulate(frame.drop(columns="key"), SILOS, schema=low_high | dates)
    options = {"dp": {"epsilon": 5.0, "delta": 1e-3}, "dp_training": {"coder_steps": 3, "latent_steps": 3}}
    model = ss.fit("silofuse", federation, "fast", seed=1, options=options | {"least_rows": 64}, progress=False)
    model.sample(4)
    stated, noised = model.describe()["privacy"], [one for one in model.ledger if one.get("events")]
    assert noised
    model.sample(4, given={"age": (20, None)})
    assert model.describe()["privacy"] == stated
    assert [one for one in model.ledger if one.get("events")] == noised


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"helth": "good"}, "Did you mean 'health'"),
        ({"key": 3}, "names a column that is modelled"),
        ({"health": "god"}, "Did you mean 'good'"),
        ({"age": (100, 120)}, "no row fulfils"),
        ({"age": 30.5}, "holds whole numbers"),
        ({"age": (30.2, 30.8)}, "holds whole numbers"),
        ({"since": (5, 6)}, "holds dates or times"),
    ],
)
def test_conditions_are_checked_before_anything_is_drawn(model: ss.Model, given: dict[str, Any], says: str) -> None:
    before = len(model.ledger)
    with pytest.raises(ss.SilosynthError, match=says):
        model.sample(5, given=given)
    assert len(model.ledger) == before


def test_a_column_is_named_once_by_conditions_and_shares(model: ss.Model) -> None:
    for how in ({"balance": "health"}, {"shift": {"health": {"poor": 0.4}}}):
        with pytest.raises(ConfigError, match=r"named once.*\(got: health\)"):
            model.sample(20, given={"health": "poor"}, **how)


def test_progress_is_of_all_rows_whatever_groups_they_are_of(model: ss.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, int]]()

    class Seen:
        def __init__(self, quiet: bool) -> None: ...
        def __enter__(self) -> Any:
            return lambda progress: seen.append((progress.done, progress.total))

        def __exit__(self, *_: Any) -> None: ...

    monkeypatch.setattr("silosynth.simulation.model.RichProgress", Seen)
    model.sample(30, balance="health", progress=True)
    assert seen[-1] == (30, 30) and seen == sorted(seen) and {total for _, total in seen} == {30}


def test_a_frame_of_conditions_gives_a_row_for_each(model: ss.Model) -> None:
    asked = pd.DataFrame({"health": ["poor", None, "good", "poor"], "job": [1, 2, None, 1]})
    made = model.sample(given=asked, seed=5)
    assert made["health"].tolist()[0] == made["health"].tolist()[3] == "poor"
    assert made["health"].tolist()[2] == "good"
    assert made["job"].tolist()[:2] == [1, 2]
    assert len(made) == 4
    assert made["key"].tolist() == [1, 2, 3, 4]


def test_a_frame_of_many_conditions_is_drawn_together(model: ss.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind's rows are the first of their kind among rows without conditions, and only what is rare is led."""
    kinds = [(health, job) for health in ("poor", "good", "fair") for job in (1, 2, 3)]
    frame = pd.DataFrame(kinds * 40, columns=["health", "job"]).sample(frac=1, random_state=0).reset_index(drop=True)
    sizes, plain = list[int](), Model._tables

    def counted(self: Model, n: int, *how: Any) -> Any:
        sizes.append(n)
        return plain(self, n, *how)

    monkeypatch.setattr(Model, "_tables", counted)
    made = model.sample(given=frame, seed=3)
    pd.testing.assert_frame_equal(made[["health", "job"]], frame, check_dtype=False)
    assert sizes[0] == 1024 and len(sizes) < 9  # in the place of nine draws
    streams = model._sampling(360, 3).child("pool", 0)
    with model._wanted(None, 1000, False) as wanted:
        first = model._frame(list(plain(model, 1024, 16384, streams, wanted)), model.schema, streams)
    for health, job in kinds:
        asked = ((frame["health"] == health) & (frame["job"] == job)).to_numpy()
        own = first[(first["health"] == health) & (first["job"] == job)]["age"].tolist()[:40]
        assert made[asked]["age"].tolist()[: len(own)] == own


def test_only_groups_that_no_row_shares_are_drawn_together(model: ss.Model) -> None:
    def apart(frame: pd.DataFrame) -> bool:
        return grouped(len(frame), frame, None, None, model.makes(), Streams(0)).apart

    ages = pd.DataFrame({"age": range(20, 40), "health": ["good", "poor"] * 10})
    assert apart(ages) and not apart(ages[:8])
    assert not apart(ages.assign(health=[*["good"] * 19, None]))  # of whom some are others' too
    assert not apart(ages.assign(age=[(age, age + 5) for age in ages["age"]]))
    many = pd.DataFrame({"income": [200.0 + 10 * k for k in range(600)]})
    assert apart(many)
    with pytest.raises(ConfigError, match=r"at most 500 different rows"):
        model.sample(given=many)


@pytest.mark.slow
def test_levels_are_balanced_and_shifted_exactly(model: ss.Model) -> None:
    assert model.sample(32, seed=6, balance="health")["health"].value_counts().to_dict() == {
        "fair": 11, "good": 11, "poor": 10,
    }  # fmt: skip
    made = model.sample(40, seed=6, shift={"health": {"poor": 0.75}}, given={"age": (30, None)})
    assert (made["health"] == "poor").sum() == 30
    assert set(made["health"]) == {"poor", "good", "fair"}
    assert (made["age"] >= 30).all()
    assert not made["health"].head(30).eq("poor").all()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({}, "number of rows to sample"),
        ({"n": 5, "given": pd.DataFrame({"job": [1]})}, "one row for each"),
        ({"n": 5, "balance": "helth"}, "Did you mean 'health'"),
        ({"n": 5, "balance": ["health"]}, "by one column"),
        ({"n": 5, "balance": "age"}, "at least two levels"),
        ({"n": 5, "balance": "health", "shift": {"health": {"poor": 1}}}, "in one way"),
        ({"n": 5, "shift": {"health": 0.5}}, "3 levels, so a share needs a level"),
        ({"n": 5, "shift": {"health": {"poor": 1.5}}}, "from 0 to 1"),
        ({"n": 5, "shift": {"health": {"poor": 0.9, "good": 0.9}}}, "add up to 1"),
        ({"n": 5, "shift": {"health": {"por": 0.9}}}, "Did you mean 'poor'"),
        ({"n": 5, "shift": {}}, "one column"),
    ],
)
def test_groups_that_are_none_are_refused(model: ss.Model, how: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        model.sample(**how)


def test_a_column_and_one_that_it_determines_cannot_contradict_each_other(frame: pd.DataFrame) -> None:
    graded = frame.assign(grade=frame["health"].map({"good": 1, "fair": 2, "poor": 3}).astype(float))
    federation = ss.simulate(graded[["age", "health", "grade"]], {"clinic": ["age", "health", "grade"]})
    model = ss.fit("latentdiff", federation, "fast", seed=1, options=TINY, progress=False)
    together = model.sample(10, given={"health": "poor", "grade": 3})
    assert (together["health"] == "poor").all() and (together["grade"] == 3).all()
    with pytest.raises(ConfigError, match="'health' and 'grade' together: one column determines the other"):
        model.sample(10, given={"health": "poor", "grade": 1})


def test_what_no_latents_lead_to_ends_at_once(model: ss.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coder, "_chances", lambda coder, z_BL: torch.zeros(len(z_BL)))
    with pytest.raises(ConfigError, match=r"none was found \(got: 0 of 1,024 rows\)"):
        model.sample(10, given={"health": "poor"})


OF_CONDITIONS = ("core/conditions.py", "models/chains.py", "simulation/groups.py")
BY_NAME = {"restrict", "restricted", "weigh", "_believed", "synthesise_given"}  # `carried` makes all latents (0062)


CTGAN = {"epochs": 1, "batch": 50, "least_rounds": 0, "generator": [8], "critic": [8], "encoders.modes": 2}


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        pytest.param("silofuse", TINY, marks=pytest.mark.slow),
        pytest.param("latentdiff", TINY, marks=pytest.mark.slow),
        pytest.param("ctgan", CTGAN, marks=pytest.mark.slow),
        ("mst", {}),
    ],
)
def test_nothing_of_conditions_runs_in_training_or_in_rows_without_any(
    frame: pd.DataFrame, algorithm: str, options: dict[str, Any]
) -> None:
    """So both cost, and are, what they were before there were conditions: fidelity and time."""
    silos = None if algorithm in ("latentdiff", "ctgan") else SILOS
    federation = ss.simulate(frame.drop(columns="key"), silos)
    ran, root = set[str](), str(Path(ss.__file__).parent)

    def note(call: FrameType, event: str, _: Any) -> None:
        code = call.f_code
        if event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(root):  # of a function
            if code.co_filename.endswith(OF_CONDITIONS) or code.co_name in BY_NAME:
                ran.add(f"{code.co_filename}:{code.co_name}")
            ran.add("sampling" if code.co_name == "_tables" else "")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        made = ss.fit(algorithm, federation, "fast", seed=1, options=options, progress=False)
        made.sample(20, seed=1)
        assert ran == {"", "sampling"}
        made.sample(20, seed=1, given={"health": "good"})
        assert len(ran) > 2  # it would have been seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
