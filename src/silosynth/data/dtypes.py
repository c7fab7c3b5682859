"""What a pandas dtype means, and how it is spelled, so that columns can be returned in it.

The spelling is pandas' own; where that does not suffice, a detail follows after ``|``:

====================  ====================================================================================
spelling              frame column
====================  ====================================================================================
``object|bool``       Python objects: also ``int``, ``float``, ``decimal``, ``date``, ``datetime``
``str|%Y-%m-%d``      text that is an instant in this form (only where the column's kind is datetime)
``str|#,##0.00``      text that is a number in this form (only where the column's kind is numeric)
``str|Aaaa-00``       text that is a pseudonym in this declared form
``category|ordered``  categories with an order
``string|arrow``      pandas' Arrow string dtype, which pandas spells like another
====================  ====================================================================================
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import pandas as pd
import pyarrow as pa
from pandas.api import types

from silosynth.core.errors import DataError

_OBJECTS = {
    "string": "",
    "empty": "",
    "boolean": "bool",
    "integer": "int",
    "floating": "float",
    "mixed-integer-float": "float",
    "decimal": "decimal",
    "date": "date",
    "datetime": "datetime",
    "datetime64": "datetime",
}
_ARROW_TEXT = re.compile(r"string\|arrow(?=\||$)")
_MIXED = {"mixed-integer", "mixed", "mixed-integer-float"}


class Nature(Enum):
    """What the values of a column are, whatever the dtype."""

    WHOLE = "whole numbers"
    REAL = "numbers"
    BOOL = "booleans"
    TEXT = "text"
    LEVELS = "categories"
    INSTANT = "dates or times"
    DURATION = "durations"
    NONE = "no value at all"


def spell(series: pd.Series) -> str:
    """The dtype of a column, spelled as in the table above.

    Raises:
        DataError: the dtype, or the type of its objects, cannot be modelled.
    """
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return "category|ordered" if dtype.ordered else "category"
    if types.is_object_dtype(dtype):
        return _spell_objects(series)
    if isinstance(dtype, pd.StringDtype):
        usual = str(dtype) == "str" or dtype == pd.StringDtype()
        return str(dtype) if usual else f"string[{dtype.storage}]"
    if isinstance(dtype, pd.ArrowDtype) and dtype.pyarrow_dtype == pa.string():
        return "string|arrow"
    return str(dtype)


def resolve(dtype: str) -> Any:
    """The pandas dtype for a spelling, without the detail."""
    base = dtype.partition("|")[0]
    return pd.ArrowDtype(pa.string()) if _ARROW_TEXT.match(dtype) else types.pandas_dtype(base)


def bare(dtype: str) -> str:
    """A spelling of text without how it is written."""
    return dtype.removesuffix(f"|{detail(dtype)}")


def detail(dtype: str) -> str:
    """The detail after the ``|`` of a spelling; empty if there is none."""
    return _ARROW_TEXT.sub("", dtype).partition("|")[2]


def nature_of(series: pd.Series, dtype: str) -> Nature:
    """What a column's values are; ``dtype`` is its spelling.

    Raises:
        DataError: values of that dtype cannot be modelled.
    """
    if dtype.startswith("object"):
        if not detail(dtype) and bool(series.isna().all()):
            return Nature.NONE
        return _NATURE_OF_DETAIL.get(detail(dtype), Nature.TEXT)
    if dtype.startswith("category"):
        return Nature.LEVELS
    nature = _nature_of_dtype(series.dtype)
    if nature is None:
        raise DataError(
            f"Column {series.name!r} has a dtype that cannot be modelled", dtype, _REMEDIES.get(dtype[:6], _CONVERT)
        )
    return nature


def zone_of(dtype: Any) -> Any:
    """The time zone of a pandas or Arrow dtype, if it has one."""
    return getattr(dtype, "tz", None) or getattr(getattr(dtype, "pyarrow_dtype", None), "tz", None)


_NATURE_OF_DETAIL = {
    "bool": Nature.BOOL,
    "int": Nature.WHOLE,
    "float": Nature.REAL,
    "decimal": Nature.REAL,
    "date": Nature.INSTANT,
    "datetime": Nature.INSTANT,
}
TO_TEXT = "Convert it to text: .astype(str) in pandas, .cast(pl.String) in Polars, .cast(pa.string()) in Arrow."
_CONVERT = "Convert it to numbers, text, categories or dates, or drop it."
_REMEDIES = {"period": "Convert it with .dt.to_timestamp()."}


def _nature_of_dtype(dtype: Any) -> Nature | None:
    if isinstance(dtype, pd.ArrowDtype) and not plain_arrow(dtype.pyarrow_dtype):
        return None
    tests = {
        Nature.BOOL: types.is_bool_dtype,
        Nature.WHOLE: types.is_integer_dtype,
        Nature.REAL: types.is_float_dtype,
        Nature.INSTANT: types.is_datetime64_any_dtype,
        Nature.DURATION: types.is_timedelta64_dtype,
        Nature.TEXT: types.is_string_dtype,
    }
    if isinstance(dtype, pd.SparseDtype | pd.IntervalDtype | pd.PeriodDtype):
        return None
    if isinstance(dtype, pd.ArrowDtype) and dtype.kind in "Mm":
        return Nature.INSTANT if dtype.kind == "M" else Nature.DURATION
    return next((nature for nature, test in tests.items() if test(dtype)), None)


def plain_arrow(dtype: pa.DataType) -> bool:
    """Whether values of an Arrow type are numbers, booleans, text, instants or durations."""
    kinds = ("boolean", "integer", "floating", "string", "large_string", "timestamp", "date", "duration")
    return any(getattr(pa.types, f"is_{kind}")(dtype) for kind in kinds)


def _spell_objects(series: pd.Series) -> str:
    inferred = types.infer_dtype(series, skipna=True)
    if inferred in _OBJECTS:
        return f"object|{_OBJECTS[inferred]}".rstrip("|")
    type_names = sorted({type(value).__name__ for value in series.dropna()})
    if inferred in _MIXED and len(type_names) > 1:
        raise DataError(
            f"Column {series.name!r} mixes values of several types",
            ", ".join(type_names),
            "Make it one type: .astype(str) for text, or pd.to_numeric(…, errors='coerce') for numbers.",
        )
    raise DataError(
        f"Column {series.name!r} holds objects that cannot be modelled",
        ", ".join(type_names),
        "Take the numbers or texts out of the objects into columns of their own, or drop the column.",
    )
