"""How columns are described so that rows keep rules: nothing is lost, and nothing can be broken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import torch

import silosynth as ss
from silosynth import rules
from silosynth.core.rules import Rule, break_rates
from silosynth.core.schema import Column, Schema, Table
from silosynth.core.streams import Streams
from silosynth.simulation.ruling import Keeping, Ruling, under_rules

ROWS = 400


def stays(rows: int = ROWS) -> pd.DataFrame:
    """Stays in a hospital, with all that rules can say of them."""
    rng = np.random.default_rng(3)
    first = pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 300, rows), unit="D")
    parts = rng.gamma(2, 30, (rows, 2)).round(2)
    school = rng.integers(0, 5, rows)
    low = rng.normal(0, 1, rows).round(3)
    smokes = rng.choice(["yes", "no"], rows)
    frame = pd.DataFrame(
        {
            "school": [f"s{i}" for i in school],
            "years": 2 * school + 6,
            "first": first,
            "last": first + pd.to_timedelta(rng.integers(0, 20, rows), unit="D"),
            "drugs": parts[:, 0],
            "beds": parts[:, 1],
            "cost": parts.sum(1).round(2),
            "low": np.where(rng.random(rows) < 0.1, np.nan, low),
            "high": (low + rng.gamma(2, 0.5, rows) + 0.001).round(3),
            "smokes": smokes,
            "packs": np.where(smokes == "no", np.nan, rng.integers(1, 30, rows)),
            "ward": [f"W{i}" for i in rng.integers(10, 30, rows)],
        }
    )
    return frame


RULES = [
    rules.FixedCombination(["school", "years"], [[f"s{i}", 2 * i + 6] for i in range(6)]),
    rules.Inequality("first", "last"),
    rules.Sum(["drugs", "beds"], "cost"),
    rules.Inequality("low", "high", strict=True),
    rules.NullTogether(["packs"], when="smokes", level="no"),
    rules.ValueRange("drugs", low=0, high=1000),
    rules.Pattern("ward", "W[0-9]+"),
]
BOUNDS = {
    "years": {"low": 0, "high": 30},
    "first": {"low": "2021-01-01", "high": "2021-12-31"},
    "last": {"low": "2021-01-01", "high": "2022-06-30"},
    **{name: {"low": 0, "high": 2000} for name in ("drugs", "beds", "cost")},
    **{name: {"low": -10, "high": 30} for name in ("low", "high")},
    "packs": {"low": 0, "high": 40},
}


def described(frame: pd.DataFrame, given: Sequence[Rule], private: bool = False) -> tuple[Table, Table, Schema, Ruling]:
    """The table, how it is learnt, with which schema, and the rules."""
    held = ss.simulate(frame, schema=BOUNDS if private else None)
    own, ruling, _ = under_rules(held, given, private=private, partitioned=False, least=5)
    return held.tables["silo1"], own.tables["silo1"], own.schemas["silo1"], ruling


def values(column: Column) -> list[object]:
    held = column.values.tolist() if column.levels is None else [column.levels[code] for code in column.values]
    return [None if gone else value for value, gone in zip(held, column.missing.tolist(), strict=True)]


def shuffled(table: Table, seed: int = 1) -> Table:
    """Columns of rows that have nothing to do with each other: what the worst generator would draw."""
    draws = torch.Generator().manual_seed(seed)
    return Table(tuple(column.take(torch.randperm(len(column), generator=draws)) for column in table.columns))


@pytest.mark.parametrize("private", [False, True])
def test_a_description_is_undone(private: bool) -> None:
    frame = stays()
    table, own, _, ruling = described(frame, RULES, private)
    again = ruling.restored({"silo1": own}, Streams(1))["silo1"]
    assert again.names == table.names
    for column in table.columns:
        changed = sum(a != b for a, b in zip(values(column), values(again[column.name]), strict=True))
        assert changed <= (0 if private else 4), column.name  # ends of undeclared ranges are means of several rows


@pytest.mark.parametrize("private", [False, True])
def test_no_rule_can_be_broken_whatever_is_drawn(private: bool) -> None:
    _, own, _, ruling = described(stays(), RULES, private)
    drawn = ruling.restored({"silo1": shuffled(own)}, Streams(1))["silo1"]
    assert break_rates(drawn, ruling.rules) == [0] * len(RULES)


def test_differences_are_modelled_in_place_of_the_larger_column() -> None:
    table, own, schema, _ = described(stays(), RULES)
    assert "cost" not in own.names and "years" not in own.names
    assert own["school & years"].levels is not None and len(own["school & years"].levels) == 5
    days = (own["last"].values // 86_400_000_000_000).tolist()
    assert min(days) == 0 and max(days) == 19
    assert schema["last"].dtype == "timedelta64[ns]" and table["last"].dtype.startswith("datetime64")


def test_under_noise_the_description_follows_from_what_is_public_alone() -> None:
    frame = stays()
    other = frame.sample(50, random_state=1).reset_index(drop=True).assign(low=1.125, high=2.125)
    one, two = (described(each, RULES, private=True) for each in (frame, other))
    assert one[3].forms == two[3].forms
    difference = one[2]["last"]
    assert (difference.low, difference.high) != (None, None)
    assert "cost" in one[1].names  # it could be missing, for all that its dtype says


def test_a_row_is_described_by_itself() -> None:
    table, own, _, ruling = described(stays(), RULES, private=True)
    form = ruling.forms["silo1"]
    few = form.describe(table.take(slice(7)))
    for column in few.columns:
        assert values(column) == values(own[column.name])[:7]


@pytest.mark.parametrize("private", [False, True])
def test_a_row_that_breaks_a_rule_changes_how_no_other_is_described(private: bool) -> None:
    frame, rng = stays(), np.random.default_rng(0)
    frame["years"] = rng.permutation(frame.years)
    own = rules.FixedCombination(**(vars(RULES[0]) | {"on_break": "ignore"}))
    whole = described(frame, [own], private)[1]["school & years"]
    less = described(frame.iloc[1:].reset_index(drop=True), [own], private)[1]["school & years"]
    assert frame.years[0] != 2 * int(frame.school[0][1:]) + 6
    assert values(less) == values(whole)[1:]


def test_chains_and_several_bounds_are_kept() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 50, (ROWS, 4)).cumsum(1)
    frame = pd.DataFrame(base, columns=list("abcd")).assign(e=lambda f: f.d * 2 - f.b)
    given = [
        rules.Inequality("a", "b"), rules.Inequality("b", "c", strict=False), rules.Inequality("a", "d"),
        rules.Inequality("c", "d"), rules.Sum(["b", "e"], "twice"),
    ]  # fmt: skip
    _, own, _, ruling = described(frame.assign(twice=frame.b + frame.e), given)
    drawn = ruling.restored({"silo1": shuffled(own)}, Streams(1))["silo1"]
    assert break_rates(drawn, ruling.rules) == [0] * 5


def test_grids_of_different_width_leave_no_row_below() -> None:
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 50, ROWS).round(2)
    frame = pd.DataFrame({"low": low, "high": np.ceil(low + rng.gamma(1, 1, ROWS)).astype(int)})
    _, own, _, ruling = described(frame, [rules.Inequality("low", "high")])
    drawn = ruling.restored({"silo1": shuffled(own)}, Streams(1))["silo1"]
    assert break_rates(drawn, ruling.rules) == [0]
    assert not drawn["high"].values.is_floating_point()


def test_pooled_and_unknown_levels_become_allowed_combinations_without_a_name() -> None:
    _, _, _, ruling = described(stays(), RULES[:1])
    (joined,) = ruling.forms["silo1"].joined
    levels = (*joined.allowed[:3], "(rare)")
    drawn = Column(joined.name, "object", torch.arange(200) % 4, torch.arange(200) % 7 == 0, levels)
    school, years = joined.restore(drawn, np.random.default_rng(0))
    assert set(zip(values(school), values(years), strict=True)) == {(f"s{i}", 2 * i + 6) for i in range(6)}
    assert school.levels == tuple(f"s{i}" for i in range(6))  # the same in every batch


def test_rows_that_break_a_rule_end_the_training_or_are_counted_and_repaired() -> None:
    frame = stays()
    frame.loc[:9, "years"] = 6
    frame.loc[:9, "school"] = "s3"
    with pytest.raises(ss.SilosynthError, match=r"Silo 'silo1'.*10 of 400 rows break it.*on_break = \"ignore\""):
        described(frame, RULES[:1])
    held = ss.simulate(frame)
    for one, private in (
        (rules.FixedCombination(**(vars(RULES[0]) | {"on_break": "ignore"})), False),
        (RULES[0], True),
    ):
        own, ruling, said = under_rules(held, [one], private=private, partitioned=False, least=5)
        assert [text for text in said if "10 of 400 rows break the rule" in text]
        assert break_rates(ruling.restored(own.tables, Streams(0))["silo1"], ruling.rules) == [0]
    with pytest.raises(ss.SilosynthError, match="whether they break a rule is not told"):
        under_rules(held, [rules.Inequality("low", "high", on_break="error")], private=True, partitioned=False, least=5)


def test_rows_of_all_batches_have_different_keys() -> None:
    table = described(stays(), RULES)[0]
    keeping = Keeping(Ruling((rules.UniqueKey(["drugs", "beds"]),)))
    assert bool(keeping.accepts({"silo1": table.take(slice(300))}).all())
    assert keeping.accepts({"silo1": table.take(slice(200, 400))}).tolist() == [False] * 100 + [True] * 100
    twice = Table(tuple(column.take(torch.tensor([0, 0])) for column in shuffled(table).columns))
    assert keeping.accepts({"silo1": twice}).sum() <= 1


def test_across_silos_totals_are_added_and_the_rest_is_refused_where_columns_stay() -> None:
    frame = stays()
    silos = {"a": ["first", "drugs"], "b": ["last", "beds", "cost"]}
    held = ss.simulate(frame, silos=silos)
    given = [RULES[1], RULES[2]]
    own, ruling, _ = under_rules(held, given, private=False, partitioned=False, least=5)
    drawn = ruling.restored(
        {silo: shuffled(table, seed) for seed, (silo, table) in enumerate(own.tables.items())}, Streams(1)
    )
    assert {silo: list(table.names) for silo, table in drawn.items()} == silos
    together = Table(tuple(column for table in drawn.values() for column in table.columns))
    late, wrong = break_rates(together, ruling.rules)
    assert wrong == 0 and 0 < late < ROWS
    assert int(Keeping(ruling).accepts(drawn).sum()) == ROWS - late
    with pytest.raises(ss.SilosynthError, match=r"stay in their silos.*\"shared\" for the option synthesis"):
        under_rules(held, given, private=False, partitioned=True, least=5)


def test_rules_are_stored_and_read() -> None:
    _, own, _, ruling = described(stays(), RULES)
    again = Ruling.from_state(ruling.to_state())
    one, two = (each.restored({"silo1": own}, Streams(2))["silo1"] for each in (ruling, again))
    assert again.rules == ruling.rules
    assert [values(column) for column in one.columns] == [values(column) for column in two.columns]
