"""What rules say of rows, and what they may not say."""

from __future__ import annotations

import pandas as pd
import pytest

import silosynth as ss
from silosynth import rules
from silosynth.core.errors import ConfigError
from silosynth.core.rules import Rule, read_rules, to_mapping
from silosynth.core.schema import Table
from silosynth.data.rules import bind
from silosynth.simulation.federation import Federation

FRAME = pd.DataFrame(
    {
        "town": ["x", "x", "y", None, "y"],
        "land": ["n", "s", "s", None, "s"],
        "first": pd.to_datetime(["2024-01-02", "2024-01-03", "2024-01-05", None, "2024-01-01"]),
        "last": pd.to_datetime(["2024-01-02", "2024-01-01", "2024-01-09", "2024-01-01", None]),
        "a": [1.1, 2.2, None, 0.0, 1.0],
        "b": [2.2, 3.3, 1.0, 0.0, 1.0],
        "c": [3.3, 5.6, 9.0, 0.0, 2.0],
        "code": ["A1", "B2", "cc", None, "A1"],
    }
)
KINDS = {"town": "categorical", "land": "categorical", "code": "categorical"}


@pytest.fixture(scope="module")
def held() -> Federation:
    """The frame, in one silo."""
    return ss.simulate(FRAME, schema=KINDS)


def table_of(held: Federation) -> Table:
    return held.tables["silo1"]


BROKEN = [
    (rules.FixedCombination(["town", "land"], [["x", "n"], ["y", "s"], [None, None]]), [1]),
    (rules.Inequality("first", "last"), [1]),
    (rules.Inequality("first", "last", strict=True), [0, 1]),
    (rules.Sum(["a", "b"], "c"), [1]),
    (rules.Sum(["a", "b"], "c", tolerance=0.2), []),
    (rules.NullTogether(["town", "land"]), []),
    (rules.NullTogether(["first", "last"]), [3, 4]),
    (rules.NullTogether(["last"], when="town", level="y"), [2]),
    (rules.UniqueKey(["code"]), [4]),
    (rules.UniqueKey(["code", "b"]), []),
    (rules.ValueRange("b", low=0.5, high=3), [1, 3]),
    (rules.ValueRange("last", low="2024-01-02"), [1, 3]),
    (rules.Pattern("code", "[A-Z][0-9]"), [2]),
]


@pytest.mark.parametrize(("rule", "rows"), BROKEN, ids=lambda one: one.in_words if isinstance(one, Rule) else "")
def test_rows_that_break_a_rule_are_found(held: Federation, rule: Rule, rows: list[int]) -> None:
    (bound,) = bind([rule], held.schema, table_of(held))
    assert bound.broken(table_of(held)).nonzero().flatten().tolist() == rows


@pytest.mark.parametrize("rule", [rule for rule, _ in BROKEN], ids=lambda rule: rule.in_words)
def test_a_rule_is_read_from_what_it_is_written_as(rule: Rule) -> None:
    assert read_rules([to_mapping(rule)]) == (rule,)


WRONG = [
    ({"kind": "sums", "parts": ["a", "b"], "total": "c"}, r"A rule has a kind that exists \(got: sums\).*sum"),
    ({"kind": "sum", "parts": ["a", "b"], "totals": "c"}, "no such key.*totals.*Did you mean 'total'"),
    ({"kind": "sum", "parts": ["a", "b"]}, "lacks a key.*total"),
    ({"kind": "sum", "parts": "a", "total": "c"}, "parts must be"),
    ({"kind": "combination", "columns": ["town", "land"]}, "one of 'allowed', 'file' and 'learn'"),
    ({"kind": "combination", "columns": ["town"], "learn": True}, "at least 2 different columns"),
    ({"kind": "pattern", "column": "code", "pattern": "("}, "regular expression"),
    ({"kind": "range", "column": "a"}, "low or a high bound"),
    ({"kind": "inequality", "low": "first", "high": "frist"}, "no silo has such a column.*'first'"),
    ({"kind": "inequality", "low": "a", "high": "last"}, "can be compared.*a: continuous, last: datetime"),
    ({"kind": "range", "column": "town", "low": 0}, "only numbers, dates and durations have a range"),
    ({"kind": "range", "column": "last", "low": "never"}, "must be a date or time"),
    ({"kind": "range", "column": "a", "low": 3, "high": 1}, "it leaves no value.*Correct the bounds"),
    ({"kind": "pattern", "column": "a", "pattern": "."}, "only texts match a pattern"),
    ({"kind": "combination", "columns": ["town", "a"], "allowed": [["x", "much"]]}, "holds no such values.*much"),
    ({"kind": "combination", "columns": ["town", "land"], "allowed": [["x"]]}, "a value for each column"),
    ({"kind": "combination", "columns": ["town", "land"], "file": "none.csv"}, "none.csv"),
]


@pytest.mark.parametrize(("given", "error"), WRONG, ids=lambda one: one if isinstance(one, str) else "")
def test_what_cannot_be_read_or_kept_is_refused_with_the_remedy(held: Federation, given: dict, error: str) -> None:
    with pytest.raises(ss.SilosynthError, match=error):
        bind(read_rules([given]), held.schema, table_of(held))


def test_rules_that_contradict_each_other_or_bounds_are_refused() -> None:
    frame = FRAME[["a", "b", "c", "town", "land", "code"]]
    bounds = {"a": {"low": 5, "high": 9}, "b": {"low": 0, "high": 4}, "c": {"low": 0, "high": 3}}
    held = ss.simulate(frame, schema=KINDS | bounds)
    pairs = [
        ([rules.Inequality("a", "b")], "bounds let no row keep it"),
        ([rules.Sum(["a", "b"], "c")], "parts add up to.*5 to 13"),
        ([rules.Inequality("a", "c"), rules.Inequality("c", "a")], "let no row|circle"),
        ([rules.Inequality("b", "c"), rules.Inequality("c", "b")], "rules form no circle"),
        ([rules.FixedCombination(["town", "a"], [["x", 1.0]])], "lie within the column's bounds, 5"),
        (
            [rules.FixedCombination(["town", "code"], [["x", "c"]]), rules.Pattern("code", "[A-Z].")],
            "allowed combinations match it as well.*c",
        ),
        (
            [
                rules.FixedCombination(["town", "code"], [["x", "c"]]),
                rules.FixedCombination(["town", "land"], learn=True),
            ],
            "Join them into one rule",
        ),
    ]
    for given, error in pairs:
        with pytest.raises(ConfigError, match=error):
            bind(given, held.schema, table_of(held))


def test_a_column_that_cannot_be_missing_is_in_no_rule_of_missing_values() -> None:
    held = ss.simulate(pd.DataFrame({"n": range(50), "m": range(50)}), schema={"n": "integer", "m": "integer"})
    with pytest.raises(ConfigError, match=r"column 'n' cannot be missing.*Int64"):
        bind([rules.NullTogether(["n", "m"])], held.schema, table_of(held))


def test_identifiers_are_not_ruled() -> None:
    held = ss.simulate(FRAME.assign(id=[f"P{i}" for i in range(5)])[["id", "b"]], schema={"id": "identifier"})
    with pytest.raises(ConfigError, match=r"of kind 'identifier': no values of it are learnt"):
        bind([rules.UniqueKey(["id"])], held.schema, table_of(held))


def test_combinations_lie_in_a_file_as_they_are_written(tmp_path, held: Federation) -> None:
    (tmp_path / "pairs.csv").write_text("land,town,note\nn,x,1\ns,y,2\n,,3\n", encoding="utf-8")
    rule = rules.FixedCombination(["town", "land"], file="pairs.csv")
    (bound,) = bind([rule], held.schema, table_of(held), tmp_path)
    assert bound.allowed == (("x", "n"), ("y", "s"), (None, None))
    (tmp_path / "pairs.csv").write_text("town\nx\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"pairs.csv lacks a column.*land"):
        bind([rule], held.schema, table_of(held), tmp_path)
