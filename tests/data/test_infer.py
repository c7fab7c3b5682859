"""Kinds are inferred with a reason, and the user has the last word where the values allow it."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from typing import Any

import numpy as np
import pandas as pd
import pytest

from silosynth.core.errors import SchemaError
from silosynth.core.schema import ColumnSchema
from silosynth.data.frames import as_flavour, to_table
from silosynth.data.infer import ColumnOverride, cautions, describe, grid_decimals, infer, without_marks

RNG = np.random.default_rng(5)


def found(values: Any, name: str = "x", dtype: Any = None) -> ColumnSchema:
    return infer(pd.DataFrame({name: pd.Series(values, dtype=dtype)}))[name]


def test_plain_kinds() -> None:
    assert found(RNG.normal(size=100)).kind == "continuous"
    assert found(RNG.integers(0, 500, 300)).kind == "integer"
    assert found(["a", "b"] * 20).kind == "categorical"
    assert found([True, False]).kind == "boolean"
    assert found([0, 1, 1] * 5).reason == "only 0 and 1"
    assert found([1.0, 2.0, None] * 5).kind == "boolean"
    assert found(pd.date_range("2020", periods=3)).kind == "datetime"
    assert found(pd.to_timedelta([1, 2], unit="h")).kind == "datetime"
    assert found([3, 4, 5] * 9).kind == "integer"  # few levels stay integer: encoders decide about levels


def test_two_values_are_a_boolean_only_if_neither_gives_away_a_row() -> None:
    assert (found([3] * 40 + [7] * 5).kind, found([3] * 40 + [7] * 5).reason) == ("boolean", "only 3 and 7")
    few = found([3] * 40 + [7] * 4)
    assert (few.kind, few.reason) == ("integer", "whole numbers")
    assert found([1.5] * 40 + [2.5]).kind == "continuous"
    flag = found([0] * 40 + [1] * 4)
    assert (flag.kind, flag.reason) == ("boolean", "false and true stored as int64")


def test_whole_numbers_stored_as_floats_are_integers() -> None:
    column = found([1.0, 7.0, None, 12.0])
    assert (column.kind, column.reason) == ("integer", "whole numbers stored as float64")


def test_a_point_mass_makes_a_column_mixed() -> None:
    values = np.where(np.arange(300) % 3 == 0, 0.0, RNG.normal(size=300))
    column = found(values)
    assert (column.kind, column.reason) == ("mixed", "numbers, and 33% of them are 0")
    assert found(np.where(np.arange(300) % 6 == 0, 0.0, RNG.normal(size=300))).kind == "continuous"


@pytest.mark.parametrize(("codes", "words"), [((-9, -8, -7), "-9, -8, -7"), ((-1,), "-1"), ((9999,), "9999")])
def test_special_codes_make_a_column_mixed(codes: tuple[int, ...], words: str) -> None:
    column = found([*RNG.integers(0, 200, 400), *codes * 8])
    assert column.kind == "mixed"
    assert column.reason.endswith(words)


def test_codes_that_few_rows_hold_are_not_named() -> None:
    column = found([*RNG.integers(0, 200, 400), *[-9] * 5, *[-8] * 4, -7])
    assert (column.kind, column.reason) == ("mixed", "numbers, with the special values -9")
    assert found([*RNG.integers(0, 200, 400), *[-9] * 4, *[-8] * 4]).kind == "integer"


def test_values_that_are_no_codes() -> None:
    assert found([*RNG.integers(0, 200, 400), -1]).kind == "integer"  # one row only
    assert found(RNG.integers(-200, 200, 400)).kind == "integer"  # a range of negative values
    assert found([*RNG.integers(500, 990, 400), *[999] * 8]).kind == "integer"  # not apart from the rest


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("customer_id", list(RNG.permutation(1000)[:50] * 17)),
        ("customerId", [f"K{i}x" for i in range(50)]),
        ("anything", [str(uuid.UUID(int=i * 7919)) for i in range(50)]),
        ("contact", [f"p{i}@example.org" for i in range(50)]),
        ("account", [f"DE{i:012d}" for i in range(50)]),
        ("row", list(range(7, 57))),
        ("row", list(RNG.permutation(50))),
    ],
)
def test_identifiers(name: str, values: list[Any]) -> None:
    column = found(values, name)
    assert column.kind == "identifier"
    assert column.reason.startswith("all 50 values differ, and ")


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("income", list(RNG.permutation(10_000)[:50] * 3), "integer"),  # all different by chance
        ("time", list(np.cumsum(RNG.integers(1, 9, 50))), "integer"),  # increasing, with gaps
        ("patient_id", list(RNG.normal(size=50)), "continuous"),  # floats number nothing
        ("patient_id", [1, 2, 3, 3] * 10, "integer"),  # repeated
        ("age", [23, 24, 25], "integer"),  # too few rows to believe it
        ("remark", [f"said {'x' * i}" for i in range(50)], "categorical"),
    ],
)
def test_what_is_no_identifier(name: str, values: list[Any], kind: str) -> None:
    assert found(values, name).kind == kind


def test_reasons_say_what_was_not_done() -> None:
    assert "pd.to_numeric" in found(["1", "2", None, "3"] * 9).reason
    assert "declare it identifier" in found([f"said {'x' * i}" for i in range(50)]).reason
    assert found([None, None]).reason.startswith("no value at all")


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["2020-01-31", "2021-12-01"], "datetime"),
        (["2020-01-31", "2021-13-01"], "categorical"),  # no such month
        (["2020-01-31", "soon"], "categorical"),
        (["2020-01-31", "2021-12-01 10:00"], "categorical"),  # two formats
        (["31.01.2020", "01.12.2021"], "datetime"),
        (["31.01.2020", "01.13.2021"], "categorical"),  # day or month first?
        (["20200131", "20211201"], "datetime"),
        (["9999-12-31", "2020-01-31"], "categorical"),  # beyond 64-bit nanoseconds
    ],
)
def test_dates_written_as_text(texts: list[str], kind: str) -> None:
    assert found(texts * 2).kind == kind


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([0.0, 5e-324], None),
        ([0.1, 0.25, 3.0], 2),
        ([1.0, 2.0, 0.1 + 0.2], 1),
        ([100, 200, 300, 1100, 1200], -2),
        ([100, 200, 300], 0),  # too few to believe in hundreds
        ([1234567.891], 3),
        (list(RNG.normal(size=50)), None),
        ([1e300, 1.0], None),
        ([0, 0], 0),
    ],
)
def test_decimals(values: list[float], decimals: int | None) -> None:
    assert grid_decimals(np.array(values)) == decimals
    assert found(values * 2).decimals == decimals


def test_decimals_of_single_precision() -> None:
    assert found([0.1, 12.7, 3.3, 5.5], dtype="float32").decimals == 1


def test_overrides() -> None:
    frame = pd.DataFrame(
        {"n": range(30), "t": ["2020-01-01"] * 30, "k": [3, 5] * 15, "d": pd.date_range("2020", periods=30)}
    )
    schema = infer(
        frame,
        {
            "n": {"kind": "continuous", "low": -5, "high": 99.5, "decimals": 1},
            "t": "categorical",
            "k": ColumnOverride(kind="categorical"),
            "d": {"high": "2030-01-01"},
        },
    )
    assert schema["n"] == ColumnSchema("n", "continuous", "int64", 1, -5.0, 99.5, "declared")
    assert (schema["t"].kind, "|" in schema["t"].dtype) == ("categorical", False)
    assert to_table(frame, schema)["k"].levels == (3, 5)
    assert schema["d"].high == pd.Timestamp("2030-01-01").value


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ({"salry": "integer"}, ["must name a column", "salry", "Did you mean 'salary'"]),
        ({"salary": "integr"}, ["unknown kind", "integr", "Did you mean 'integer'"]),
        ({"salary": {"knd": "integer"}}, ["unknown property", "Did you mean 'kind'"]),
        ({"salary": "integer"}, ["'salary' cannot be of kind 'integer'", "not whole"]),
        ({"salary": "boolean"}, ["'boolean'", "more than two values", "Declare it categorical"]),
        ({"salary": {"low": 3, "high": 2}}, ["low must not exceed high"]),
        ({"salary": {"low": float("nan")}}, ["finite"]),
        ({"salary": {"low": "much"}}, ["must be a number", "much"]),
        ({"city": {"low": 1}}, ["range and decimals", "categorical"]),
        ({"city": "continuous"}, ["'city' cannot be of kind 'continuous'", "text"]),
        ({"city": "datetime"}, ["'city' cannot be of kind 'datetime'", "pd.to_datetime"]),
    ],
)
def test_overrides_that_cannot_be(override: dict[str, Any], words: list[str]) -> None:
    frame = pd.DataFrame({"salary": [1.5, 2.5, 3.25], "city": ["a", "b", "c"]})
    with pytest.raises(SchemaError) as caught:
        infer(frame, override)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_bounds_of_dates_are_taken_in_the_columns_zone() -> None:
    frame = pd.DataFrame({"d": pd.date_range("2020", periods=3, tz="Europe/Berlin")})
    low = infer(frame, {"d": {"low": dt.date(2019, 1, 1)}})["d"].low
    assert low == pd.Timestamp("2019-01-01", tz="Europe/Berlin").value


def test_describe() -> None:
    frame = pd.DataFrame({"a": [1.5, None, 2.5, 2.5], "b": ["x", "y", "x", None]})
    schema = infer(frame)
    first, second = describe(schema, to_table(frame, schema))
    assert (first.name, first.kind, first.missing, first.distinct) == ("a", "continuous", 0.25, 2)
    assert (second.dtype, second.distinct, second.reason) == (str(frame["b"].dtype), 2, "text with 2 distinct values")


@pytest.mark.parametrize("dtype", ["timedelta64[ns]", "timedelta64[s]", "duration[us][pyarrow]"])
@pytest.mark.parametrize(
    "bound", ["37 days", "888 h", pd.Timedelta(days=37), dt.timedelta(days=37), np.timedelta64(37, "D")]
)
def test_bounds_of_durations_are_durations(dtype: str, bound: Any) -> None:
    stays = pd.DataFrame({"stay": pd.Series(pd.to_timedelta([1, 40], unit="D")).astype(dtype)})
    column = infer(stays, {"stay": {"low": "0 h", "high": bound}})["stay"]
    assert (column.low, column.high) == (0, 37 * 86_400 * 10**9)


@pytest.mark.parametrize(
    "bound",
    [
        37,
        37.0,
        np.int64(37),
        "2020-01-31",
        "20200131",
        "37",
        "",
        "NaT",
        pd.NaT,
        dt.date(2020, 1, 31),
        pd.Timestamp("2020-01-31"),
    ],
)
def test_dates_are_no_bounds_of_durations(bound: Any) -> None:
    stays = pd.DataFrame({"stay": pd.to_timedelta([1, 40], unit="D")})
    with pytest.raises(SchemaError, match=r"'stay' holds durations: a bound must be a duration.*37 days"):
        infer(stays, {"stay": {"high": bound}})


@pytest.mark.parametrize("bound", ["NaT", pd.NaT, "", 2020, 2020.5, np.int64(20200131), float("nan"), "yesterday week"])
def test_what_is_no_date_is_no_bound_of_dates(bound: Any) -> None:
    days = pd.DataFrame({"day": pd.date_range("2020", periods=9)})
    with pytest.raises(SchemaError, match=r"'day' holds dates or times: a bound must be a date or time.*2020-01-31"):
        infer(days, {"day": {"low": bound}})


def test_all_digits_of_what_stands_for_missing_values_count() -> None:
    numbers = pd.DataFrame({"n": [1234567.0, 1234568.0, -9.0, 0.5], "s": np.array([-9.9, 0.1, 0.25, 3], np.float32)})
    left = without_marks(numbers, {"n": {"missing": [1234567, "-9"]}, "s": {"missing": [-9.9, "0.1"]}})
    assert left["n"].isna().tolist() == [True, False, True, False]
    assert left["s"].isna().tolist() == [True, True, False, False]


def test_levels_can_be_declared() -> None:
    frame = pd.DataFrame({"code": [1, 2, 2, 9], "word": ["no", "yes", None, "no"], "score": [0.5, 1.0, 1.0, 2.0]})
    declared = {"code": {"levels": [9, 2, 1, 0]}, "word": {"levels": ["yes", "no"]}, "score": {"levels": [0.5, 1, 2.0]}}
    schema = infer(frame, {**declared, "code": {"levels": [2, 1, 0], "missing": [9]}})
    assert [column.kind for column in schema.columns] == ["categorical"] * 3
    assert [column.levels for column in schema.columns] == [(2, 1, 0), ("yes", "no"), (0.5, 1, 2)]
    assert infer(frame, declared)["code"].levels == (9, 2, 1, 0)


@pytest.mark.parametrize(
    ("values", "declared", "found"),
    [
        (pd.Series([0.1, 0.2], dtype="float32"), [0.1, 0.2, 0.3], [np.float32(one).item() for one in (0.1, 0.2, 0.3)]),
        (pd.Series([1, 2], dtype="uint8"), list(np.array([2, 1, 255])), [2, 1, 255]),
        (pd.Series(["a", "b"], dtype="category"), ["c", "b", "a"], ["a", "b", "c"]),
        (pd.Series(pd.Categorical(["lo"], ["lo", "hi"], ordered=True)), ["hi", "lo"], ["lo", "hi"]),
        (pd.Series([True, False], dtype="category"), [1, 0], [False, True]),
        (pd.Series([True, False], dtype="category"), [True, False], [False, True]),
        (pd.Series([None, None]), ["a", "b"], ["a", "b"]),
    ],
)
def test_declared_levels_are_as_the_dtype_holds_them(values: pd.Series, declared: list[Any], found: list[Any]) -> None:
    levels = infer(pd.DataFrame({"x": values}), {"x": {"levels": declared}})["x"].levels
    assert [(type(level), level) for level in levels] == [(type(level), level) for level in found]


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({"levels": [1, 2]}, "but those that are declared.*1 others"),
        ({"levels": [1, 2, 9, 9.0]}, "each level is declared once"),
        *(({"levels": [1, 2, 9, one]}, "cannot hold a level") for one in (None, "3", 0.5, math.inf, 2**70, [3])),
        ({"levels": "129"}, "levels is a list"),
        ({"levels": [1, 2, 9], "kind": "integer"}, 'Only columns of categories.*kind = "categorical"'),
    ],
)
def test_declared_levels_are_checked(declared: dict[str, Any], match: str) -> None:
    with pytest.raises(SchemaError, match=match):
        infer(pd.DataFrame({"code": [1, 2, 2, 9]}), {"code": declared})


def test_whole_numbers_as_categories_have_no_decimals() -> None:
    """Which a single row would decide."""
    for values in ([10, 20, 30], [10, 20, 1]):
        assert infer(pd.DataFrame({"code": values}), {"code": "categorical"})["code"].decimals is None


def test_numbers_that_look_like_days_are_said_to() -> None:
    days = pd.date_range("2020", periods=60).strftime("%Y%m%d").astype(int)
    frame = pd.DataFrame({"day": days, "no day": days + 50, "pay": range(20_000_000, 20_000_600, 10)})
    schema = infer(frame, {"no day": "integer", "day": {}})
    assert "they look like dates such as 20200131" in schema["day"].reason
    assert not any("dates" in schema[name].reason for name in ("no day", "pay"))
    assert any("write them as 2020-01-31" in text for text in cautions(schema, to_table(frame, schema)))


def test_values_beyond_declared_bounds_are_counted() -> None:
    frame = pd.DataFrame({"n": range(40), "m": range(40)})
    declared = {"n": {"kind": "integer", "low": 2, "high": 30}, "m": {"kind": "integer", "low": 0}}
    schema = infer(frame, declared)
    (said,) = cautions(schema, to_table(frame, schema))
    assert said.startswith("Column 'n': 11 of 40 values lie beyond its declared bounds")


@pytest.mark.parametrize("library", ["polars", "arrow"])
def test_remedies_are_for_all_libraries(library: str) -> None:
    frame = pd.DataFrame({"n": [0.5, 1.5]})
    with pytest.raises(SchemaError, match=r"\.cast\(pl\.String\) in Polars, \.cast\(pa\.string\(\)\) in Arrow"):
        infer(as_flavour(frame, library), {"n": "pseudonym"})  # type: ignore[arg-type]
