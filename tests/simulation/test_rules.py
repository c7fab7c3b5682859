"""Synthetic rows keep declared rules: of models of every kind, within silos and across them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import silosynth as ss
from silosynth import rules
from silosynth.core.errors import ConfigError
from silosynth.simulation import accepting

TINY = {"coder.steps": 20, "latent.steps": 20, "latent.width": 16, "latent.sample_steps": 2, "least_rows": 64}
SILOS = {"bank": ["school", "years", "first", "key"], "clinic": ["last", "rent", "heat", "cost"]}
PAIRS = [[f"s{i}", 2 * i + 6] for i in range(4)]
BOUNDS = {
    "key": "identifier",
    "years": {"kind": "integer", "low": 0, "high": 20},
    **{name: {"low": "2024-01-01", "high": "2025-12-31"} for name in ("first", "last")},
    **{name: {"low": 0, "high": 2000} for name in ("rent", "heat", "cost")},
}
RULES = [
    rules.FixedCombination(["school", "years"], PAIRS),
    rules.Inequality("first", "last"),
    rules.Sum(["rent", "heat"], "cost"),
]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    school = rng.integers(0, 4, 300)
    first = pd.Timestamp("2024-03-01") + pd.to_timedelta(rng.integers(0, 200, 300), "D")
    parts = rng.gamma(3, 50, (300, 2)).round(2)
    return pd.DataFrame(
        {
            "school": [f"s{i}" for i in school],
            "years": 2 * school + 6,
            "first": first,
            "last": first + pd.to_timedelta(rng.integers(0, 90, 300), "D"),
            "rent": parts[:, 0],
            "heat": parts[:, 1],
            "cost": parts.sum(1).round(2),
            "key": range(300),
        }
    )


def broken(made: pd.DataFrame) -> dict[str, int]:
    pairs = {tuple(pair) for pair in PAIRS}
    return {
        "pairs": sum((a, b) not in pairs for a, b in zip(made["school"], made["years"], strict=True)),
        "order": int((made["last"] < made["first"]).sum()),
        "sum": int(((made["rent"] + made["heat"] - made["cost"]).abs() > 0.0051).sum()),
    }


KEPT = {"pairs": 0, "order": 0, "sum": 0}


def fitted(frame: pd.DataFrame, given: list[Any] = RULES, **options: Any) -> ss.Model:
    federation = ss.simulate(frame, SILOS, schema={"key": "identifier"})
    return ss.fit("silofuse", federation, "fast", seed=1, options=TINY | options, rules=given, progress=False)


@pytest.fixture(scope="module")
def model(frame: pd.DataFrame) -> ss.Model:
    return fitted(frame)


def test_rows_keep_rules_within_silos_and_across_them(model: ss.Model, frame: pd.DataFrame) -> None:
    made = model.sample(300, seed=2)
    assert broken(made) == KEPT
    assert list(made.columns) == list(frame.columns) and made.dtypes.to_dict() == frame.dtypes.to_dict()
    assert model.acceptance is not None and 0.1 < model.acceptance < 1
    parts = model.sample_parts(50, seed=3)
    assert {silo: list(part.columns) for silo, part in parts.items()} == SILOS


def test_conditions_and_rules_hold_together(model: ss.Model) -> None:
    made = model.sample(20, seed=4, given={"school": ["s1", "s2"], "years": (0, 9), "cost": (10, None)})
    assert broken(made) == KEPT
    assert set(made["school"]) == {"s1"} and (made["cost"] >= 10).all()


def test_a_stored_model_keeps_its_rules(model: ss.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "m.silosynth")
    again = ss.load(tmp_path / "m.silosynth")
    pd.testing.assert_frame_equal(again.sample(60, seed=5), model.sample(60, seed=5))
    assert again.describe() == model.describe()
    assert set(model.describe()["ranges"]) == {"first", "last", "rent", "heat"}


def test_rules_that_no_row_keeps_end_in_an_error_and_not_in_waiting(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "FIRST_TRIES", 2000)
    late = frame.assign(last=frame["last"] - pd.Timedelta("400D"))
    federation = ss.simulate(late, SILOS, schema={"key": "identifier"})
    made = ss.fit("silofuse", federation, "fast", seed=1, options=TINY, rules=RULES[1:2], progress=False)
    with pytest.raises(ConfigError, match=r"So few rows are accepted.*keeps the rules \(got: 0 of"):
        made.sample(10, tries=1)


def test_columns_that_stay_in_silos_keep_the_rules_of_their_silo(frame: pd.DataFrame) -> None:
    model = fitted(frame, [RULES[0], RULES[2]], synthesis="partitioned")
    made = pd.concat(model.sample_parts(100, seed=1).values(), axis=1)
    assert broken(made) | {"order": 0} == KEPT


def test_columns_that_stay_in_silos_keep_rules_across_silos(frame: pd.DataFrame) -> None:
    model = fitted(frame, RULES, synthesis="partitioned")
    assert broken(pd.concat(model.sample_parts(100, seed=1).values(), axis=1)) == KEPT
    assert model.acceptance is not None and model.acceptance < 1
    with pytest.raises(ConfigError, match="stay in their silos are neither added up nor told apart"):
        fitted(frame, [rules.UniqueKey(["rent", "first"])], synthesis="partitioned")


def test_keys_are_unique_over_all_batches(frame: pd.DataFrame) -> None:
    model = fitted(frame, [rules.UniqueKey(["rent", "first"], on_break="ignore"), rules.UniqueKey(["cost", "heat"])])
    made = pd.concat(model.sample_batches(3000, batch=1024, seed=1))
    assert not made.duplicated(["rent", "first"]).any() and not made.duplicated(["cost", "heat"]).any()


@pytest.mark.slow
def test_keys_are_unique_over_all_groups_of_rows(frame: pd.DataFrame) -> None:
    """About 200 days among 80 rows of four levels: each level's rows by themselves would share some."""
    with pytest.warns(UserWarning, match="rows break the rule"):
        model = fitted(frame, [rules.UniqueKey(["first"], on_break="ignore")])
    made = model.sample(80, seed=1, balance="school")
    assert set(made["school"].value_counts()) == {20}
    assert not made.duplicated(["first"]).any()
    assert model.acceptance is not None
    assert 0 < model.acceptance < 1


def test_without_rules_nothing_is_drawn_again(frame: pd.DataFrame) -> None:
    model = fitted(frame, [])
    model.sample(10)
    assert model.acceptance is None


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["gdts", "mst", "silofuse"])
def test_declared_rules_hold_where_noise_protects_rows_or_silos_hold_other_rows(
    frame: pd.DataFrame, algorithm: str
) -> None:
    """A declared dependency is public: it holds in all rows."""
    if algorithm == "gdts":
        federation = ss.simulate(frame, rows={"north": slice(0, 150), "south": slice(150, 300)}, schema=BOUNDS)
        options: dict[str, Any] = {}
    else:
        federation = ss.simulate(frame, SILOS, schema=BOUNDS)
        options = {"dp.epsilon": 5.0, "dp.delta": 1e-5}
    model = ss.fit(algorithm, federation, "fast", options=options, rules=RULES, progress=False)
    assert broken(model.sample(2000)) == KEPT
