"""Conditions: read alike from Python, JSON, TOML and the command line; which rows fulfil them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from silosynth.core.conditions import Condition, Made, from_text, fulfils, parse
from silosynth.core.errors import ConfigError
from silosynth.core.schema import Column, Table

COLUMNS = {
    "health": Made("health", ("good", "fair", "poor"), None, None, False, float),
    "age": Made("age", None, 17, 90, True, float),
    "member": Made("member", (False, True), None, None, False, float),
    "rooms": Made("rooms", (1, 2, 3), None, None, False, float),
}
WHOLE = {"age": Made("age", None, 17, 90, True, float, whole=True)}
NONE = torch.zeros(4, dtype=torch.bool)
TABLE = Table(
    (
        Column("health", "str", torch.tensor([0, 1, 2, 2]), NONE, ("good", "fair", "poor")),
        Column("age", "float64", torch.tensor([17.0, 60, 80, 0]), torch.tensor([False, False, False, True])),
        Column("member", "bool", torch.tensor([0, 1, 1, 0]), NONE, (False, True)),
        Column("rooms", "int64", torch.tensor([0, 1, 2, 2]), NONE, (1, 2, 3)),
    )
)


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"health": "poor"}, [2, 3]),
        ({"health": ["good", "fair"]}, [0, 1]),
        ({"age": (60, 80)}, [1, 2]),
        ({"age": (None, 60)}, [0, 1]),
        ({"age": {"low": 61}}, [2]),
        ({"age": None}, [3]),
        ({"age": {"values": [17], "missing": True}}, [0, 3]),
        ({"age": [17, float("nan")]}, [0, 3]),
        ({"age": np.int64(60)}, [1]),
        ({"member": True}, [1, 2]),
        ({"rooms": (2, None), "health": "poor"}, [2, 3]),
        ({"rooms": {3, 1}}, [0, 2, 3]),
    ],
)
def test_rows_that_fulfil_conditions(given: dict[str, Any], rows: list[int]) -> None:
    assert fulfils(TABLE, parse(given, COLUMNS)).nonzero().flatten().tolist() == rows


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("health=poor", {"health": "poor"}),
        ("health=poor,fair", {"health": ["poor", "fair"]}),
        ("age=60..80", {"age": (60, 80)}),
        ("age=60..", {"age": (60, None)}),
        ("age=..80", {"age": (None, 80)}),
        ("age=", {"age": None}),
        ("age=17,18", {"age": [17, 18]}),
        ("member=True", {"member": True}),
        ("rooms=2..3", {"rooms": (2, 3)}),
        ('{"age": {"low": 60}, "health": ["poor"]}', {"age": (60, None), "health": ["poor"]}),
    ],
)
def test_the_command_line_says_the_same_as_python(text: str, given: dict[str, Any]) -> None:
    assert parse(from_text([text], COLUMNS), COLUMNS) == parse(given, COLUMNS)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"helth": "poor"}, "Did you mean 'health'"),
        ({"health": "pooor"}, "'health' has no level of this name.*Did you mean 'poor'"),
        ({"health": ("poor", "fair")}, "Write a list of levels"),
        ({"health": {"low": 1}}, "levels, which have no range"),
        ({"health": None}, "had a value in every training row"),
        ({"age": (95, 99)}, "is made from 17 to 90"),
        ({"age": (80, 60)}, "low must not exceed high"),
        ({"age": (None, None)}, "at least one end"),
        ({"age": (1, 2, 3)}, r"a range is \(low, high\)"),
        ({"age": {"lo": 1}}, "Did you mean 'low'"),
        ({"age": []}, "at least one"),
        ({"age": {"values": "17"}}, "'values' is a list"),
        ({"age": {"missing": 1}}, "'missing' is true or false"),
        ("health=poor", "given by column"),
    ],
)
def test_what_is_no_condition_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(given, COLUMNS)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["health"], "COLUMN=VALUE"),
        (["{health: poor}"], "one object"),
        (["age=60..", "age=..80"], "each column once"),
    ],
)
def test_texts_that_are_no_condition_are_refused(texts: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_text(texts, COLUMNS)


def test_large_integers_are_compared_exactly() -> None:
    column = Column("n", "int64", torch.tensor([2**60, 2**60 + 1]), NONE[:2])
    assert Condition("n", (2**60,)).holds(column).tolist() == [True, False]


@pytest.mark.parametrize("given", [30.5, [30.5, 40.25], (30.2, 30.8), {"low": 30.2, "high": 30.8, "values": [3.5]}])
def test_no_row_has_half_a_number_of_a_column_of_whole_ones(given: Any) -> None:
    with pytest.raises(ConfigError, match="holds whole numbers"):
        parse({"age": given}, WHOLE)
    assert parse({"age": given}, COLUMNS)


@pytest.mark.parametrize("given", [30, [30.5, 40], (30.2, 31), (30.5, None), (None, 30.5), None])
def test_some_rows_have_a_whole_number(given: Any) -> None:
    assert parse({"age": given}, WHOLE)
