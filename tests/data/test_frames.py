"""Frames ⇄ tables: names, order, dtypes and missing entries survive; what cannot is refused with a reason."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings, strategies as st

from silosynth.core.errors import DataError, SchemaError
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.data.frames import as_flavour, flavour, to_frame, to_pandas, to_table
from silosynth.data.infer import infer

INSTANTS = ["2020-01-01 00:00:00", "2021-10-31 02:30:00", None, "2020-01-01 12:13:14", "1930-01-01 00:00:00"]


def one(values: object, dtype: object = None) -> pd.DataFrame:
    return pd.DataFrame({"x": pd.Series(values, dtype=dtype)})


def schema(kind: str, dtype: str = "", name: str = "x") -> Schema:
    return Schema((ColumnSchema(name, kind, dtype),))


def there_and_back(frame: pd.DataFrame, kind: str, dtype: str = "") -> Column:
    table = to_table(frame, schema(kind, dtype))
    pd.testing.assert_frame_equal(to_frame(table), frame, check_exact=True)
    return table["x"]


WHOLE = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("kind", ["integer", "mixed", "categorical", "continuous", "identifier"])
def test_whole_numbers(dtype: str, kind: str) -> None:
    column = there_and_back(one([1, 2, 3, 100, 0], dtype), kind)
    assert column.values.dtype == torch.int64


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "Float32", "Float64", "double[pyarrow]"])
@pytest.mark.parametrize("kind", ["continuous", "integer", "categorical"])
def test_floats_with_missing(dtype: str, kind: str) -> None:
    column = there_and_back(one([1.0, None, 3.0, 0.0], dtype), kind)
    assert column.values.dtype == (torch.float64 if kind == "continuous" else torch.int64)
    assert column.missing.tolist() == [False, True, False, False]


@pytest.mark.parametrize("dtype", ["Int8", "Int64", "UInt16", "int64[pyarrow]", "object"])
def test_nullable_whole_numbers(dtype: str) -> None:
    assert there_and_back(one([1, None, 3], dtype), "integer").values.tolist() == [1, 0, 3]


@pytest.mark.parametrize("dtype", ["boolean", "object", "bool[pyarrow]"])
def test_booleans(dtype: str) -> None:
    there_and_back(one([True, False, True], "bool"), "boolean")
    assert there_and_back(one([True, None, False], dtype), "boolean").levels == (False, True)


@pytest.mark.parametrize(
    "dtype",
    [
        "str",
        "object",
        "string",
        "string[python]",
        "string[pyarrow]",
        "large_string[pyarrow]",
        pd.ArrowDtype(pa.string()),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["categorical", "identifier"])
def test_texts(dtype: object, kind: str) -> None:
    if dtype == "str" and pd.__version__ < "3":
        pytest.skip("pandas 2 has no str dtype")
    column = there_and_back(one(["b", "a", None, "zz"], dtype), kind)
    assert column.levels == ("a", "b", "zz")


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("levels", [["lo", "mid", "hi"], [3, 1, 2], [0.5, 1.5, 0.1], [True, False]], ids=str)
def test_categories_keep_their_levels_and_order(levels: list[object], ordered: bool) -> None:
    values = pd.Categorical([levels[0], levels[1], None, levels[0]], categories=levels, ordered=ordered)
    assert there_and_back(one(values), "categorical").levels == tuple(levels)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "UTC+02:00"])
@pytest.mark.parametrize("kind", ["datetime", "categorical"])
def test_instants(unit: str, zone: str | None, kind: str) -> None:
    instants = pd.Series(pd.to_datetime(INSTANTS)).astype(f"datetime64[{unit}]")
    if zone:
        instants = instants.dt.tz_localize("UTC").dt.tz_convert(zone)
    column = there_and_back(one(instants), kind)
    if kind == "datetime":
        assert column.values[0] == 1_577_836_800_000_000_000
        there_and_back(one(instants.astype(pd.ArrowDtype(pa.timestamp(unit, zone)))), kind)


@pytest.mark.parametrize("dtype", ["timedelta64[ns]", "timedelta64[s]", "duration[us][pyarrow]"])
def test_durations(dtype: str) -> None:
    there_and_back(one(pd.to_timedelta([1, None, 5], unit="h"), dtype), "datetime")


@pytest.mark.parametrize("dtype", ["object", "date32[pyarrow]"])
def test_dates(dtype: str) -> None:
    there_and_back(one([dt.date(2020, 1, 1), None, dt.date(1960, 2, 29)], dtype), "datetime")


def test_other_objects() -> None:
    there_and_back(one([dt.datetime(2020, 1, 1, 3, 4, 5, 6), None], object), "datetime")
    there_and_back(one([Decimal("1.23"), None, Decimal("-7.001")], object), "continuous")
    there_and_back(one([1.5, None, 2.0], object), "continuous")


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S.%f"]
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["object", "string"])
def test_dates_written_as_text(form: str, dtype: str) -> None:
    texts = [stamp.strftime(form) for stamp in pd.date_range("1999-12-30", periods=5, freq="36h")]
    frame = one([*texts, None], dtype)
    found = infer(frame)["x"]
    assert (found.kind, found.dtype) == ("datetime", f"{dtype}|{form}")
    there_and_back(frame, "datetime", found.dtype)


ANY_DTYPE = [
    "object",
    "float64",
    "Int64",
    "string",
    "datetime64[ns]",
    "datetime64[us, UTC]",
    "boolean",
    "timedelta64[ns]",
]


@pytest.mark.parametrize("dtype", ANY_DTYPE)
def test_columns_without_any_value_stay_so(dtype: str) -> None:
    frame = one([None] * 3, dtype)
    assert infer(frame)["x"].kind == "categorical"
    column = there_and_back(frame, "categorical")
    assert column.levels == ()
    assert column.missing.all()


@pytest.mark.parametrize(("kind", "dtype"), [("continuous", torch.float64), ("integer", torch.int64)])
def test_a_number_column_whose_values_are_all_missing_stays_numeric(kind: str, dtype: torch.dtype) -> None:
    column = there_and_back(one([None, None], "float64"), kind)
    assert (column.values.dtype, column.levels) == (dtype, None)


cells = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_infinity=False) | st.none(),
    "float32": st.floats(width=32, allow_infinity=False) | st.none(),
    "Int64": st.integers(-(2**63), 2**63 - 1) | st.none(),
    "boolean": st.booleans() | st.none(),
    "string": st.text(st.characters(codec="utf-8")) | st.none(),
    "object": st.text(st.characters(codec="utf-8")) | st.none(),
    "datetime64[ns]": st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1)) | st.none(),
    "category": st.sampled_from(["a", "b", "ü"]) | st.none(),
}


@settings(max_examples=25)
@given(st.data())
def test_any_frame_survives_with_its_inferred_schema(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    columns = {
        dtype: pd.Series(data.draw(st.lists(cell, min_size=n, max_size=n)), dtype=dtype)
        for dtype, cell in cells.items()
    }
    frame = pd.DataFrame(columns)
    frame["category"] = frame["category"].cat.set_categories(["a", "b", "ü"])
    pd.testing.assert_frame_equal(to_frame(to_table(frame, infer(frame))), frame, check_exact=True)


def test_polars_and_arrow() -> None:
    frame = pl.DataFrame(
        {
            "i": pl.Series([1, None, 3], dtype=pl.Int16),
            "u": pl.Series([1, 2, 3], dtype=pl.UInt8),
            "f": pl.Series([1.5, None, 3], dtype=pl.Float32),
            "b": [True, None, False],
            "s": ["a", None, "c"],
            "d": [dt.date(2020, 1, 1), None, dt.date(2021, 1, 1)],
            "t": pl.Series([dt.datetime(2020, 1, 1), None, None], dtype=pl.Datetime("us", "UTC")),
            "c": pl.Series(["x", "y", None], dtype=pl.Categorical),
            "none": pl.Series([None, None, None]),
        }
    )
    table = to_table(frame, infer(frame))
    assert flavour(frame) == "polars"
    back = to_frame(table, "polars")
    assert back.schema == frame.schema
    assert back.equals(frame)
    arrow = pa.table({"i": pa.array([1, None], pa.int32()), "s": ["a", "b"]})
    assert flavour(arrow) == "arrow"
    again = to_frame(to_table(arrow, infer(arrow)), "arrow")
    assert again.column("i").type == pa.int32()
    assert again.to_pydict() == arrow.to_pydict()


def refused(frame: object, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        infer(frame)
    for word in words:
        assert word in str(caught.value)


def test_what_is_no_frame() -> None:
    refused([1, 2], "pandas.DataFrame", "list", "Convert")
    refused(pl.DataFrame({"a": [1]}).lazy(), ".collect()")
    with pytest.raises(DataError, match="flavour"):
        as_flavour(pd.DataFrame({"a": [1]}), "spark")  # type: ignore[arg-type]


def test_bad_frames() -> None:
    refused(pd.DataFrame(), "at least one column")
    refused(pd.DataFrame({"a": []}), "at least one row", "0 rows")
    refused(pd.DataFrame([[1, 2]], columns=["a", "a"]), "a name of its own", "got: a", "Rename")
    refused(pd.DataFrame([[1, 2]]), "Column names are text", "map(str)")
    refused(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), "a name of its own")


def test_bad_columns() -> None:
    refused(one([1.0, np.inf, -np.inf]), "'x'", "infinities", "2 of 3 rows", "Replace")
    refused(one([1, "a"], object), "'x'", "mixes", "int, str", "astype(str)")
    refused(one([True, "a"], object), "mixes", "bool, str")
    refused(one([[1], [2]], object), "'x'", "list", "drop the column")
    refused(one([{"a": 1}], object), "dict")
    refused(one([b"raw"], object), "bytes")
    refused(one([1j, 2j]), "complex128")
    refused(one(pd.period_range("2020", periods=3, freq="M")), "period", "to_timestamp")
    refused(one(pd.cut(pd.Series([1, 2, 3]), 2)), "Interval", "astype(str)")
    refused(one([2**63], "uint64"), "64 bits", "float64")
    refused(one([2**70], object), "64 bits")
    refused(one([dt.date(9999, 12, 31)], object), "1677 to 2262", "sentinels")
    refused(one(pd.Series(["0001-01-01"]).astype("datetime64[s]")), "1677 to 2262")
    refused(one([dt.timedelta(hours=1), dt.date(2020, 1, 1)], object), "mixes")


def test_one_row_and_constant_columns_are_allowed() -> None:
    there_and_back(one([3.5]), "continuous")
    there_and_back(one(["a"] * 4, object), "categorical")


def test_the_frame_must_hold_the_schemas_columns() -> None:
    with pytest.raises(SchemaError, match="Did you mean 'income'"):
        to_table(pd.DataFrame({"income": [1]}), schema("integer", name="incme"))
    frame = pd.DataFrame({"b": [1], "extra": [2], "a": [3]})
    assert to_table(frame, infer(frame).select(["a", "b"])).names == ("a", "b")


@pytest.mark.parametrize(
    ("values", "kind"),
    [(["a"], "continuous"), (["a"], "datetime"), ([1.5], "integer"), ([1], "datetime"), ([True], "integer"),
     (pd.to_datetime(["2020"]), "integer"), (pd.Categorical([1]), "integer")],
)  # fmt: skip
def test_values_must_be_of_the_schemas_kind(values: object, kind: str) -> None:
    with pytest.raises(SchemaError, match=f"'x' cannot be of kind '{kind}'"):
        to_table(one(values), schema(kind))


def test_a_dtype_that_holds_no_missing_entry() -> None:
    missing = torch.tensor([True, False])
    for dtype in ("int64", "bool"):
        column = Column("x", dtype, torch.tensor([0, 1]), missing, (False, True) if dtype == "bool" else None)
        with pytest.raises(DataError, match="its dtype cannot hold"):
            to_frame(Table((column,)))
    nothing = Column("x", "int64", torch.tensor([0, 0]), torch.tensor([True, True]), ())
    with pytest.raises(DataError, match="its dtype cannot hold"):
        to_frame(Table((nothing,)))


def test_synthetic_values_beyond_a_small_dtype_are_clipped() -> None:
    column = Column("x", "int8", torch.tensor([-1000, 1000]), torch.zeros(2, dtype=torch.bool))
    assert to_frame(Table((column,)))["x"].tolist() == [-128, 127]


@pytest.mark.slow
def test_many_levels_and_wide_frames_come_back() -> None:
    rng = np.random.default_rng(0)
    many = one([f"level {i}" for i in rng.integers(0, 12_000, 50_000)], "string")
    wide = pd.DataFrame({f"c{i}": rng.normal(size=200) for i in range(500)})
    tall = pd.DataFrame({f"c{i}": rng.integers(0, 99, 50_000) for i in range(15)})
    for frame in (many, wide, tall):
        pd.testing.assert_frame_equal(to_frame(to_table(frame, infer(frame))), frame)


def test_to_pandas_returns_pandas_as_it_is() -> None:
    frame = one([1, 2])
    assert to_pandas(frame) is frame
