"""Frames (pandas, Polars, Arrow) ⇄ tables of tensors, with names, order and dtypes kept.

Missing entries come back as the dtype holds them: NaN in floats and ``str``, NaT in instants and durations, NA in
nullable and Arrow dtypes, None in objects, null in Polars and Arrow. A dtype that holds none (``int64``, ``bool``) had
none. The index is not kept. Polars and Arrow go through pandas: nested types are refused, Polars' Enum comes back as
Categorical, decimals with as many digits as they need, and NaN as null.
"""

from __future__ import annotations

import sys
from typing import Any, Literal, TypeAlias, cast

import pandas as pd
import pyarrow as pa

from silosynth.core.errors import DataError, SchemaError, nearest
from silosynth.core.schema import Schema, Table
from silosynth.data.decode import decode
from silosynth.data.encode import encode

Flavour: TypeAlias = Literal["pandas", "polars", "arrow"]
Frame: TypeAlias = Any
"""A pandas.DataFrame, polars.DataFrame or pyarrow.Table."""


def flavour(frame: Frame) -> Flavour:
    """Which library a frame belongs to.

    Raises:
        DataError: it is not a frame of a known library.
    """
    if isinstance(frame, pd.DataFrame):
        return "pandas"
    if isinstance(frame, pa.Table):
        return "arrow"
    polars = sys.modules.get("polars")  # whoever holds a Polars frame has imported Polars
    if polars is not None and isinstance(frame, polars.DataFrame):
        return "polars"
    lazy = polars is not None and isinstance(frame, polars.LazyFrame)
    raise DataError(
        "A table is a pandas.DataFrame, a polars.DataFrame or a pyarrow.Table",
        f"{type(frame).__module__}.{type(frame).__name__}",
        "Call .collect() first." if lazy else "Convert it, or read a file with silosynth.data.sources.read.",
    )


def to_pandas(frame: Frame) -> pd.DataFrame:
    """A pandas view of any frame. Whole and boolean columns of Polars and Arrow keep their type despite nulls.

    Raises:
        DataError: not a frame; no rows; no columns; a name that is not text or occurs twice.
    """
    kind = flavour(frame)
    if kind == "polars":
        frame = frame.to_arrow()
    converted = from_arrow(frame) if isinstance(frame, pa.Table) else frame
    _check_names(list(converted.columns))
    if len(converted) == 0:
        raise DataError("A table needs at least one row", "0 rows", "Was the right file or filter used?")
    return cast("pd.DataFrame", converted)


def to_table(frame: Frame, schema: Schema) -> Table:
    """The columns of ``frame`` that ``schema`` names, as tensors, in the schema's order.

    Raises:
        DataError: the frame or one of its columns cannot be used.
        SchemaError: a column is absent, or its values are not of the declared kind.
    """
    pandas = to_pandas(frame)
    held = set(pandas.columns)
    for name in schema.names:
        if name not in held:
            raise SchemaError("The table lacks a column of the schema", name, nearest(name, pandas.columns))
    return Table(tuple(encode(pandas[column.name], column) for column in schema.columns))


def to_frame(table: Table, flavour: Flavour = "pandas") -> Frame:
    """A frame with the table's columns, each with the dtype it came with.

    Raises:
        DataError: an entry is missing in a column whose dtype cannot hold that, or the flavour is unknown.
    """
    return as_flavour(pd.DataFrame({column.name: decode(column) for column in table.columns}), flavour)


def as_flavour(frame: pd.DataFrame, flavour: Flavour) -> Frame:
    """A pandas frame as a frame of another library.

    Raises:
        DataError: the flavour is unknown.
    """
    if flavour == "pandas":
        return frame
    if flavour not in ("polars", "arrow"):
        raise DataError("A frame is of flavour pandas, polars or arrow", flavour, nearest(flavour, ("polars", "arrow")))
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    if flavour == "arrow":
        return table
    import polars

    return polars.from_arrow(table)


def _check_names(names: list[Any]) -> None:
    if not names:
        raise DataError("A table needs at least one column", "0 columns", "Was the right file or selection used?")
    strange = [name for name in names if not isinstance(name, str)]
    if strange:
        raise DataError(
            "Column names are text", repr(strange[0]), "Rename them: frame.columns = frame.columns.map(str)."
        )
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DataError("Every column needs a name of its own", ", ".join(twice), "Rename or drop one of them.")


_WIDTHS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
_NULLABLE = {pa.bool_(): "boolean", **{pa.type_for_alias(name.lower()): name for name in _WIDTHS}}


def from_arrow(table: pa.Table) -> pd.DataFrame:
    """Arrow to ordinary pandas dtypes; nullable ones only where a null would otherwise change the type."""
    _check_names(table.column_names)
    columns = {name: _series(name, table.column(i)) for i, name in enumerate(table.column_names)}
    return pd.DataFrame(columns)


def _series(name: str, column: pa.ChunkedArray) -> pd.Series:
    nullable = _NULLABLE.get(column.type) if column.null_count else None
    if nullable is not None:
        dtype = pd.api.types.pandas_dtype(nullable)
        return pd.Series(dtype.__from_arrow__(column), name=name)  # type: ignore[union-attr]
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return cast("pd.Series", column.to_pandas(date_as_object=True)).rename(name)
