"""Rows under conditions that the coordinator of MST or AIM draws: of silos, or groups, that hold different rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import silosynth as ss
from silosynth.core.errors import ConfigError
from silosynth.simulation import accepting

ROWS = 6000
OPTIONS: dict[str, Any] = {"bins": 8, "groups": 3, "tables": 2.0, "encoders.pool_rare": False}
SILOS = {
    "north": {"clinic": ["job", "age"], "fund": ["pay", "rich"]},
    "south": {"clinic2": ["job", "pay", "rich"], "fund2": ["age"]},
    "west": {"all": ["job", "age", "pay", "rich"]},
}


def people() -> pd.DataFrame:
    """Of whom two are hermits: one in each of two silos."""
    rng = np.random.default_rng(3)
    job = rng.choice(["nurse", "smith", "judge"], ROWS, p=[0.5, 0.3, 0.2]).astype(object)
    job[[10, 3000]] = "hermit"
    pay = np.where(job == "judge", 90, 40) + rng.normal(0, 4, ROWS).round(1)
    pay[rng.random(ROWS) < 0.05] = np.nan
    age = np.where(pay > 60, 40, 20) + rng.integers(0, 30, ROWS)
    return pd.DataFrame({"job": job, "age": age, "pay": pay.round(1), "rich": (pay > 60) ^ (rng.random(ROWS) < 0.02)})


@pytest.fixture(scope="module", params=["rows", "groups"])
def model(request: pytest.FixtureRequest) -> ss.Model:
    rows = {"north": range(2000), "south": range(2000, 4000), "west": range(4000, ROWS)}
    federation = ss.simulate(people(), SILOS if request.param == "groups" else None, rows=rows)
    return ss.fit("aim", federation, options=OPTIONS, seed=3, progress=False)


@pytest.fixture
def in_vain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No more rows may be drawn in vain than twice as many as are wanted."""
    monkeypatch.setattr(accepting, "FIRST_TRIES", 0)
    return monkeypatch


@pytest.mark.parametrize(
    "wanted",
    [
        {"job": "hermit"},
        {"job": "judge", "age": 41, "pay": (93.5, 94.5)},
        {"pay": (99.0, None), "rich": True},
        {"pay": None, "age": [20, 21]},
    ],
)
def test_rows_that_hardly_any_row_is_like_come_in_full(
    model: ss.Model, wanted: dict[str, Any], in_vain: pytest.MonkeyPatch
) -> None:
    made = model.sample(100, given=wanted, tries=2)
    assert len(made) == 100 and fulfilling(made, wanted).all()


def fulfilling(frame: pd.DataFrame, wanted: dict[str, Any]) -> pd.Series:
    """Which rows fulfil conditions, the slow and obvious way."""
    return frame.apply(lambda row: all(holds(row[name], value) for name, value in wanted.items()), axis=1)


def holds(cell: Any, value: Any) -> bool:
    if value is None:
        return bool(cell != cell)
    if isinstance(value, tuple):
        return bool((value[0] or 0) <= cell <= (value[1] or np.inf))
    return bool(cell in value if isinstance(value, list) else cell == value)


@pytest.mark.parametrize(
    "wanted", [{"age": (30, 47)}, {"job": ["nurse", "judge"], "pay": (41.3, None), "age": (None, 52)}, {"rich": True}]
)
def test_rows_under_conditions_are_those_that_rejection_leaves(model: ss.Model, wanted: dict[str, Any]) -> None:
    made = model.sample(3000, seed=1, given=wanted)
    every = model.sample(20_000, seed=2)
    kept = every[fulfilling(every, wanted)]
    assert len(kept) > 1000
    for name in made:
        ours, theirs = (counted(frame[name]) for frame in (made, kept))
        table = [[one[key] for key in {**ours, **theirs}] for one in (ours, theirs)]
        assert len(table[0]) == 1 or stats.chi2_contingency(table).pvalue > 1e-4


def counted(column: pd.Series) -> Counter[str]:
    """Rows of each level, or of each twentieth of the range of numbers."""
    if column.dtype.kind not in "if":
        return Counter(column.astype(str))
    return Counter("none" if value != value else f"{int(value / 5):02}" for value in column)


def test_a_number_that_lies_between_the_parts_of_a_bin_is_found_by_drawing_again() -> None:
    code = np.random.default_rng(0).permutation(60_000)[:60]
    frame = pd.DataFrame({"pay": np.arange(60.0), "code": code})
    rows = {name: range(20 * place, 20 * place + 20) for place, name in enumerate(("a", "b", "c"))}
    model = ss.fit("mst", ss.simulate(frame, rows=rows), "fast", seed=3, progress=False)
    made = model.sample(2, seed=1, given={"code": 30_001, "pay": (5, None)})
    assert set(made["code"]) == {30_001} and (made["pay"] >= 5).all()


def test_other_shares_and_frames_are_drawn_exactly(model: ss.Model, in_vain: pytest.MonkeyPatch) -> None:
    balanced = model.sample(80, seed=1, balance="job", tries=2)
    assert set(Counter(balanced["job"]).values()) == {20}
    shifted = model.sample(100, seed=1, shift={"job": {"hermit": 0.4}}, tries=2)
    assert (shifted["job"] == "hermit").sum() == 40
    wanted = [{"job": "hermit", "age": (30, 40)}, {"job": "judge"}, {"job": "hermit", "age": (30, 40)}]
    framed = model.sample(given=wanted, seed=1, tries=2)
    assert list(framed["job"]) == ["hermit", "judge", "hermit"] and framed["age"][[0, 2]].between(30, 40).all()


def test_what_no_row_fulfils_is_refused(model: ss.Model) -> None:
    with pytest.raises(ConfigError, match="Column 'job' has no level of this name"):
        model.sample(5, given={"job": "hermits"})
    with pytest.raises(ConfigError, match="Column 'pay' is made from"):
        model.sample(5, given={"pay": (1000, None)})


def test_the_same_seed_gives_the_same_rows_and_conditions_change_no_others(model: ss.Model) -> None:
    before = model.sample(50, seed=4)
    one, other = (model.sample(50, seed=4, given={"job": "hermit"}) for _ in range(2))
    assert one.equals(other) and model.sample(50, seed=4).equals(before)
    assert len(one[["age", "pay"]].drop_duplicates()) > 25


@pytest.mark.parametrize("declared", [True, False])
def test_conditions_hold_of_columns_that_rules_describe_anew(declared: bool, in_vain: pytest.MonkeyPatch) -> None:
    """Such rows are looked for, among those that fulfil the other conditions."""
    rng = np.random.default_rng(2)
    heat, rent = rng.integers(20, 200, 900), rng.integers(300, 900, 900)
    town = rng.choice(["Bern", "Oslo"], 900, p=[0.99, 0.01])
    data = pd.DataFrame({"heat": heat, "rent": rent, "cost": rent + heat, "town": town})
    schema = {"rent": {"low": 0, "high": 1000}, "heat": {"low": 0, "high": 300}} if declared else None
    rows = {name: range(300 * place, 300 * place + 300) for place, name in enumerate(("a", "b", "c"))}
    rules = [ss.rules.Sum(["rent", "heat"], "cost"), ss.rules.Inequality("heat", "rent")]
    federation = ss.simulate(data, rows=rows, schema=schema)
    model = ss.fit("mst", federation, "fast", 0, options={"encoders.pool_rare": False}, rules=rules, progress=False)
    made = model.sample(40, given={"town": "Oslo", "rent": (400, 700), "cost": (500, None)}, tries=20)
    assert len(made) == 40 and set(made["town"]) == {"Oslo"} and made["rent"].between(400, 700).all()
    assert (made["rent"] + made["heat"] == made["cost"]).all() and (made["cost"] >= 500).all()
    every, rent = model.sample(4000, seed=1), model.sample(1000, seed=2, given={"rent": (500, 600)}, tries=20)["rent"]
    assert stats.ks_2samp(rent, every["rent"][every["rent"].between(500, 600)]).pvalue > 1e-3
