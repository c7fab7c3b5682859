"""Combinations that training rows never hold are found without a declared rule, and counted in other rows."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import silosynth as ss
from silosynth.evaluation.coding import code_tables, plain_table
from silosynth.evaluation.combinations import Combination, Combinations, find, ruled_rows
from silosynth.evaluation.report import render


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    town = rng.integers(0, 8, rows)
    role = rng.choice(["husband", "wife", "child"], rows)
    return pd.DataFrame(
        {
            "town": [f"t{i}" for i in town],
            "land": np.where(town < 3, "north", "south"),
            "rent": np.where(town == 5, np.nan, town * 1.5),
            "role": role,
            "sex": np.where(role == "husband", "m", np.where(role == "wife", "f", rng.choice(["f", "m"], rows))),
            "weight": rng.normal(0, 1, rows),
        }
    )


def found_in(synthetic: pd.DataFrame, holdout: pd.DataFrame | None = None, owners=None) -> Combinations:
    frames = {"training": people(1000, 1), "synthetic": synthetic}
    coded = code_tables(frames if holdout is None else frames | {"hold-out": holdout})
    return find(coded["training"], coded.get("hold-out"), coded["synthetic"], owners)


def rule(found: Combinations, first: str, second: str) -> Combination:
    (one,) = [one for one in found.found if {one.first, one.second} == {first, second}]
    return one


def test_real_rows_break_nothing_and_dependencies_are_listed() -> None:
    found = found_in(people(500, 2), people(400, 3))
    assert (found.rate, found.holdout, found.columns) == (0.0, 0.0, 5)
    assert [(one.first, one.second, one.kind) for one in found.found] == [
        ("rent", "land", "dependency"), ("town", "land", "dependency"), ("town", "rent", "dependency"),
    ]  # fmt: skip


def test_broken_dependencies_and_pairs_are_counted_beside_the_hold_outs_rate() -> None:
    made, holdout = people(500, 2), people(400, 3)
    made.loc[:49, ["town", "land", "rent"]] = "t0", "south", 0.0
    made.loc[50:59, "rent"] = 77.25  # a number that no training row has
    made.loc[60:99, ["role", "sex"]] = "husband", "f"
    holdout.loc[:3, ["role", "sex"]] = "husband", "f"
    found = found_in(made, holdout, ["a", "b", "a", "a", "a", "b"])
    assert rule(found, "town", "land") == Combination("town", "land", "dependency", True, 0.1, 0.0, ("t0 with south",))
    rent = rule(found, "town", "rent")
    assert rent.rate == 0.02 and rent.across is False and all(text.endswith("with another") for text in rent.examples)
    sexes = rule(found, "role", "sex")
    assert (sexes.kind, sexes.rate, sexes.holdout, sexes.across) == ("pairs", 0.08, 0.01, False)
    assert sexes.examples == ("husband with f",)
    assert found.rate == pytest.approx(0.2) and found.holdout == pytest.approx(0.01)
    rates = [one.rate for one in found.found]
    assert rates == sorted(rates, reverse=True)


def test_what_training_rows_do_not_know_breaks_nothing() -> None:
    made = people(500, 2)
    made.loc[:9, ["town", "role"]] = "elsewhere", "cousin"
    made.loc[10:19, "role"] = "cousin"
    assert found_in(made).rate == 0.0


def test_missing_is_a_value_of_its_own() -> None:
    made = people(500, 2)
    made.loc[:24, ["town", "land", "rent"]] = "t6", "south", np.nan
    assert rule(found_in(made), "town", "rent").examples == ("t6 with (missing)",)


def test_all_rows_are_counted_whatever_the_other_figures_are_computed_on() -> None:
    train, made = people(1500, 1), people(1500, 2)
    train.loc[700, ["town", "land", "rent"]] = "t1", "south", 1.5  # town and land are no dependency, because of one row
    made.loc[800, ["town", "land", "rent"]] = "t0", "south", 0.0
    made.loc[900, ["role", "sex"]] = "husband", "f"
    found = ss.evaluate(train, people(900, 3), made, figures="gan", max_rows=60).combinations
    assert {(one.first, one.second) for one in found.found if one.kind == "dependency"} == {("town", "rent")}
    assert rule(found, "role", "sex").rate == pytest.approx(1 / 1500)
    assert rule(found, "town", "land").kind == "pairs"
    assert found.rate == pytest.approx(2 / 1500) and found.holdout == 0.0


def test_instants_and_durations_are_named_as_such() -> None:
    day = np.arange(1000) % 8
    train = pd.DataFrame(
        {
            "day": pd.Timestamp("2024-02-01") + pd.to_timedelta(day, unit="D"),
            "stay": pd.to_timedelta(day % 4 * 6, unit="h"),
            "land": np.where(day % 4 < 2, "north", "south"),
        }
    )
    made = train.assign(stay=pd.to_timedelta((day + 2) % 4 * 6, unit="h"))
    coded = code_tables({"training": train, "synthetic": made})
    found = find(coded["training"], None, coded["synthetic"])
    assert rule(found, "day", "stay").examples[0] == "2024-02-01 with 12 h"
    assert rule(found, "stay", "land").examples[0] == "0 s with south"


def test_chance_is_not_reported() -> None:
    """Pairs that happen not to occur, and columns that happen to go together, in small tables of nothing."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        train, other = (pd.DataFrame(rng.integers(0, 2, (12, 4)), columns=list("abcd")) for _ in range(2))
        coded = code_tables({"training": train, "synthetic": other})
        found = find(coded["training"], None, coded["synthetic"])
        assert (found.found, found.rate) == ((), 0.0)


def test_the_report_lists_them() -> None:
    made = people(300, 2)
    made.loc[:29, ["role", "sex"]] = "husband", "<b>f"
    made.loc[30:59, ["role", "sex"]] = "husband", "f"
    report = ss.evaluate(people(300, 1), people(300, 3), made, figures="gan", silos={"a": ["town", "role", "sex"],
                         "b": ["land", "rent", "weight"]})  # fmt: skip
    assert report.combinations.rate == pytest.approx(0.1)
    assert (
        "rows that break a rule which was declared, or which training rows keep: 10.00% of synthetic rows, 0.00%"
        in str(report)
    )
    assert "role + sex: 10.00% of synthetic rows, 0.00% of hold-out rows (husband with f)" in str(report)
    page = render(report)
    assert (
        "Rules, and rows that break them" in page
        and '<a href="#combinations">' in page
        and "husband with f" in page
        and "two silos" in page
    )
    assert json.loads(json.dumps(report.to_dict()))["combinations"]["found"][0]["first"] == "role"


def test_declared_rules_and_those_that_training_rows_keep_are_in_one_list() -> None:
    rng = np.random.default_rng(0)
    low = rng.normal(0, 1, 300).round(2)
    frame = pd.DataFrame({"low": low, "high": low + rng.gamma(2, 1, 300).round(2), "n": rng.integers(0, 900, 300)})
    made = frame.assign(high=np.where(frame.index < 30, frame["low"] - 1.0, frame["high"]))
    schema, given = ss.simulate(frame).schema, (ss.rules.ValueRange("n", low=100.0),)
    coded = code_tables({"training": frame, "synthetic": made}, schema)
    ruled = ruled_rows([plain_table(each, schema) for each in (frame, made)], given)
    found = find(coded["training"], None, coded["synthetic"], ["a", "b", "b"], ruled)
    declared, order = sorted(found.found, key=lambda one: one.kind, reverse=True)
    assert (order.rule, order.declared, order.rate, order.across) == ("low < high", False, 0.1, True)
    assert (declared.rule, declared.declared, declared.across) == ("n from 100.0", True, False)
    assert declared.rate == float((made["n"] < 100).mean())
