"""`ss.appraise`: what partners' columns are worth, by messages of a real federation; or why nothing is said."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pandas as pd
import pytest

import silosynth as ss
from silosynth.core.errors import ConfigError, SilosynthError
from silosynth.core.messages import Release
from silosynth.runtime.ledger import Ledger
from silosynth.simulation import appraisal as simulated

ROWS = 6000
KINDS = {"age": "integer", "seen": "datetime"}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    age = rng.integers(18, 90, ROWS)
    return pd.DataFrame(
        {
            "age": age,
            "city": rng.choice(["Bern", "Oslo", "Rome"], ROWS),
            "retired": np.where(age > 64, "yes", "no"),
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), unit="D"),
            "shoe": pd.Series(rng.normal(40, 3, ROWS)).where(rng.random(ROWS) < 0.8),
        }
    )


SILOS = {"bank": ["age", "city"], "clinic": ["retired", "seen"], "shop": ["shoe"]}


@pytest.fixture(scope="module")
def told(frame: pd.DataFrame) -> tuple[ss.Appraisal, Ledger]:
    ledger = Ledger()
    return ss.appraise(ss.simulate(frame, SILOS, schema=KINDS), 4.0, 1e-6, seed=1, ledger=ledger), ledger


def test_it_finds_who_knows_what(told: Any) -> None:
    found, _ = told
    assert len(found.pairs) == 8 and found.silos == {silo: tuple(own) for silo, own in SILOS.items()}
    assert (found.pairs[0].first, found.pairs[0].second) == ("age", "retired") and found.pairs[0].low > 0.7
    assert sum(pair.low > 0 for pair in found.pairs) <= 2
    (retired,) = (one for one in found.predictions if (one.column, one.partner) == ("retired", "bank"))
    assert retired.best == "age" and retired.explained > 0.4 and retired.gain > 0.1
    assert found.rows_low < ROWS < found.rows_high and found.rows_high - found.rows_low < 200


def test_it_costs_what_it_says_and_no_row_leaves(told: Any) -> None:
    found, ledger = told
    known = {Release.NOTHING.value, Release.SCHEMA.value, Release.SEALED.value, Release.NOISED.value}
    assert {entry["privacy"] for entry in ledger.entries()} <= known
    assert found.epsilon is None and "no epsilon can be stated" in str(found)  # a seed was given
    assert any(entry["events"] for entry in ledger.entries() if "events" in entry)


def test_the_same_seed_gives_the_same_bytes(frame: pd.DataFrame, told: Any) -> None:
    again = ss.appraise(ss.simulate(frame, SILOS, schema=KINDS), 4.0, 1e-6, seed=1)
    assert again.to_dict() == told[0].to_dict()
    assert ss.appraise(ss.simulate(frame, SILOS, schema=KINDS), 4.0, 1e-6).to_dict() != again.to_dict()


def test_awkward_columns_are_said_little_of(frame: pd.DataFrame) -> None:
    rare = [f"person {i}" for i in range(ROWS)]
    awkward = frame.assign(same=1, gone=np.nan, rare=rare)
    silos = {"bank": ["age"], "clinic": ["same", "gone", "rare", "retired"]}
    kinds = {"age": "integer", "same": "integer", "gone": "continuous", "rare": "categorical"}
    found = ss.appraise(ss.simulate(awkward, silos, schema=kinds), 4.0, 1e-6, seed=2)
    by = {one.column: one for one in found.predictions}
    assert by["age"].best == "retired"
    for name in ("same", "gone", "rare"):
        assert by[name].best is None and by[name].why == "all but few rows are in one of its groups"
        assert "person" not in str(found)


def test_few_rows_say_nothing(frame: pd.DataFrame) -> None:
    found = ss.appraise(ss.simulate(frame[:50], SILOS, schema=KINDS), seed=4)
    assert "nothing can be said at this epsilon" in str(found) and all(pair.high == 1 for pair in found.pairs)


@pytest.mark.parametrize(
    ("silos", "options", "error"),
    [
        ({"bank": ["age"]}, {}, "different columns of the same rows.*one silo"),
        (SILOS, {"epsilon": 0.0}, "epsilon"),
        (SILOS, {"delta": 0.0}, "delta"),
        (SILOS, {"groups": 1}, "groups"),
        (SILOS, {"epsilon": float("inf")}, "target|delta"),
    ],
)
def test_what_cannot_be_appraised_is_an_error(frame: pd.DataFrame, silos: Any, options: Any, error: str) -> None:
    held = {name for own in silos.values() for name in own}
    federation = ss.simulate(frame[:20], silos, schema={name: kind for name, kind in KINDS.items() if name in held})
    with pytest.raises(SilosynthError, match=error):
        ss.appraise(federation, **options)


def test_silos_with_different_rows_are_refused(frame: pd.DataFrame) -> None:
    rows = {"north": range(10), "south": range(10, 20)}
    with pytest.raises(ConfigError, match="different rows"):
        ss.appraise(ss.simulate(frame[:20], rows=rows, schema=KINDS))


def test_the_docstring_s_example_is_true() -> None:
    assert doctest.testmod(simulated).failed == 0
