"""Rules that all rows keep are found, and written as an experiment file has them; chance is no rule."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.encoders.test_ruled import stays

import silosynth as ss
from silosynth.core.rules import Rule, break_rates, read_rules, to_mapping
from silosynth.data.rules import bind
from silosynth.evaluation.proposals import propose, to_toml
from silosynth.experiment.grammar import tomllib


def proposed(frame: pd.DataFrame, schema: dict[str, str] | None = None) -> tuple[ss.Federation, tuple[Rule, ...]]:
    held = ss.simulate(frame, schema=schema)
    return held, propose(held.tables["silo1"], held.schema)


@pytest.fixture(scope="module")
def found() -> tuple[ss.Federation, tuple[Rule, ...]]:
    return proposed(stays(600))


def test_all_kinds_are_found_and_nothing_else(found: tuple[ss.Federation, tuple[Rule, ...]]) -> None:
    assert [rule.in_words for rule in found[1]] == [
        "combinations of school, years: 5 allowed", "low < high", "first <= last", "drugs + beds = cost",
        "packs missing exactly where smokes is no",
    ]  # fmt: skip


def test_what_is_proposed_can_be_read_again_and_is_kept(found: tuple[ss.Federation, tuple[Rule, ...]]) -> None:
    held, rules = found
    again = bind(read_rules(tomllib.loads(to_toml(rules, held.schema))["rules"]), held.schema, held.tables["silo1"])
    assert [one.in_words for one in again] == [one.in_words for one in rules]
    assert break_rates(held.tables["silo1"], again) == [0] * len(rules)


def test_columns_in_random_order_keep_no_rule() -> None:
    frame = stays(600)
    draws = np.random.default_rng(0)
    mixed = frame.apply(lambda column: column.sample(frac=1, random_state=draws).to_numpy())
    assert proposed(mixed)[1] == ()


def test_combinations_that_few_rows_hold_are_not_written_down() -> None:
    frame = stays(600)[["school", "years"]]
    frame.loc[0] = ["somebody's", 31]
    (rule,) = proposed(frame)[1]
    assert to_mapping(rule)["on_break"] == "ignore" and "somebody's" not in to_toml([rule], ss.simulate(frame).schema)


def test_keys_and_columns_missing_together_are_found() -> None:
    rng = np.random.default_rng(0)
    gone = rng.random(600) < 0.3
    frame = pd.DataFrame(
        {
            "account": np.repeat([f"a{i}" for i in range(100)], 6),
            "month": np.tile(range(1, 7), 100),
            "street": np.where(gone, None, rng.choice(["x", "y", "z"], 600)),
            "zip": np.where(gone, np.nan, rng.integers(0, 9, 600)),
        }
    )
    _, rules = proposed(frame, {"account": "categorical", "month": "integer"})
    assert {rule.in_words for rule in rules} == {"street, zip missing together", "account, month unique"}


def test_dates_are_written_as_dates() -> None:
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(300) % 3, unit="D")
    frame = pd.DataFrame({"day": days, "name": [f"d{i % 3}" for i in range(300)]})
    held, rules = proposed(frame)
    text = to_toml(rules, held.schema)
    assert '["2024-01-01 00:00:00", "d0"]' in text
    assert bind(read_rules(tomllib.loads(text)["rules"]), held.schema, held.tables["silo1"]) == rules
