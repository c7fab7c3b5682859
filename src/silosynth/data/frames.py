"""Frames (pandas, Polars, Arrow) ⇄ tables of tensors, keeping names, order and dtypes.

Missing entries come back as the dtype holds them: NaN in floats and ``str``, NaT in instants and durations, NA in
nullable and Arrow dtypes, None in objects, null in Polars and Arrow. A dtype that cannot hold missing entries
(``int64``, ``bool``) had none. The index is not kept: `reset_index` makes it a column. Polars and Arrow go through
pandas: nested types are refused, and NaN comes back as null. Their own types (`arrow_types`), such as Polars' Enum,
decimals and dictionaries, come back as they were; an Enum has one more category if levels were pooled, and so have
ordered categories of pandas. Unordered ones, which mostly list what the rows hold, only have levels of enough rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal, NoReturn, TypeAlias, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from silosynth.core.errors import DataError, SchemaError, nearest
from silosynth.core.schema import UNMODELLED, Column, ColumnSchema, Kind, Schema, Table
from silosynth.data.dtypes import TO_TEXT, Nature, detail, nature_of, resolve, spell, zone_of
from silosynth.data.texts import (
    MARKS,
    is_date_form,
    is_number_form,
    parse_dates,
    parse_numbers,
    write_dates,
    write_numbers,
)

_LEVELS = b"levels"  # the key of a column's declared levels, in `arrow_types`
Flavour: TypeAlias = Literal["pandas", "polars", "arrow"]
Frame: TypeAlias = Any
"""A pandas.DataFrame, polars.DataFrame or pyarrow.Table."""


def flavour(frame: Frame) -> Flavour:
    """The library of a frame.

    Raises:
        DataError: it is no frame of a supported library.
    """
    if isinstance(frame, pd.DataFrame):
        return "pandas"
    if isinstance(frame, pa.Table):
        return "arrow"
    polars = sys.modules.get("polars")  # if the frame is Polars', Polars has been imported
    if polars is not None and isinstance(frame, polars.DataFrame):
        return "polars"
    lazy = polars is not None and isinstance(frame, polars.LazyFrame)
    raise DataError(
        "A table is a pandas.DataFrame, a polars.DataFrame or a pyarrow.Table",
        f"{type(frame).__module__}.{type(frame).__name__}",
        "Call .collect() first." if lazy else "Convert it, or read a file with silosynth.read.",
    )


def to_pandas(frame: Frame) -> pd.DataFrame:
    """Any frame in pandas. Integer and boolean columns of Polars and Arrow keep their type despite nulls.

    Raises:
        DataError: not a frame; no rows; no columns; names that are not text, or repeated.
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
        SchemaError: a column is missing, or its values are not of the declared kind.
    """
    pandas = to_pandas(frame)
    names = set(pandas.columns)
    for name in schema.names:
        if name not in names:
            raise SchemaError("The table lacks a column of the schema", name, nearest(name, pandas.columns))
    return Table(tuple(encode(pandas[column.name], column) for column in schema.columns))


def to_frame(table: Table, flavour: Flavour = "pandas", types: bytes = b"") -> Frame:
    """A frame with the table's columns, each in its original dtype; ``types`` as `arrow_types` gives them.

    Raises:
        DataError: a dtype cannot hold a missing entry, or the flavour is unknown.
    """
    return as_flavour(pd.DataFrame({column.name: decode(column) for column in table.columns}), flavour, types)


def arrow_types(frame: Frame, kinds: Schema) -> bytes:
    """The types of a Polars or Arrow table's columns, as a serialised Arrow schema; of pandas, the levels of ordered
    categories of text, which are declared as an Enum's are. Empty if there is nothing to restore.

    An Enum that is not modelled, of kind identifier or pseudonym in ``kinds``, becomes a Categorical: its type would
    list its values.
    """
    kind = flavour(frame)
    hidden = {column.name for column in kinds.columns if column.kind in UNMODELLED}
    if kind == "pandas":
        fields = [_declared_levels(column) for name, column in frame.items() if name not in hidden and _ordered(column)]
    else:
        schema = frame.schema if kind == "arrow" else frame.clear().to_arrow().schema
        fields = [field.remove_metadata() if field.name in hidden else field for field in schema]
    return cast("bytes", pa.schema(fields).serialize().to_pybytes()) if fields else b""


def _ordered(column: pd.Series) -> bool:
    """Whether a pandas column has ordered categories of text."""
    dtype = column.dtype
    ordered = isinstance(dtype, pd.CategoricalDtype) and bool(dtype.ordered)
    return ordered and all(isinstance(level, str) for level in column.cat.categories)


def _declared_levels(column: pd.Series) -> pa.Field:
    return pa.field(str(column.name), pa.string(), metadata={_LEVELS: json.dumps(column.cat.categories.tolist())})


def _with_levels(frame: pd.DataFrame, wanted: pa.Schema) -> pd.DataFrame:
    """The frame whose ordered categories have all levels that were declared, and then those of pooled values."""
    for field in wanted:
        if field.name in frame.columns:
            column, levels = frame[field.name], json.loads(field.metadata[_LEVELS])
            more = [level for level in column.cat.categories if level not in levels]
            frame = frame.assign(**{field.name: column.cat.set_categories([*levels, *more])})
    return frame


def as_flavour(frame: pd.DataFrame, flavour: Flavour, types: bytes = b"") -> Frame:
    """A pandas frame converted to another library, with columns of the types that `arrow_types` gave.

    Raises:
        DataError: the flavour is unknown, or a value does not fit its type.
    """
    if flavour == "pandas":
        return _with_levels(frame, pa.ipc.read_schema(pa.py_buffer(types))) if types else frame
    if flavour not in ("polars", "arrow"):
        raise DataError("A frame is of flavour pandas, polars or arrow", flavour, nearest(flavour, ("polars", "arrow")))
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    wanted = pa.ipc.read_schema(pa.py_buffer(types)) if types else table.schema
    return _as_arrow(table, wanted) if flavour == "arrow" else _as_polars(table, wanted)


def _as_arrow(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    for i, field in enumerate(table.schema):
        place = wanted.get_field_index(field.name)
        if place < 0 or wanted.field(place).type == field.type:
            continue
        kind = wanted.field(place).type
        try:
            column = table.column(i).cast(kind, safe=not pa.types.is_decimal(kind))  # digits beyond its scale go
        except pa.ArrowInvalid as error:
            rule = f"The synthetic values of column {field.name!r} must fit its type"
            raise DataError(rule, str(kind), "Declare low and high that fit, or convert the column.") from error
        table = table.set_column(i, pa.field(field.name, kind), column)
    return table


def _as_polars(table: pa.Table, wanted: pa.Schema) -> Frame:
    import polars

    frame, empty = (cast("polars.DataFrame", polars.from_arrow(one)) for one in (table, wanted.empty_table()))
    dtypes = empty.schema
    for name, dtype in dtypes.items():
        if name not in table.column_names or frame[name].dtype == dtype:
            continue
        if isinstance(dtype, polars.Enum):
            levels = frame[name].cast(polars.String)
            more = sorted(set(levels.drop_nulls().to_list()) - set(dtype.categories))
            frame = frame.with_columns(levels.cast(polars.Enum([*dtype.categories, *more])))
        else:
            frame = frame.with_columns(frame[name].cast(dtype))
    return frame


def _check_names(names: list[Any]) -> None:
    if not names:
        raise DataError("A table needs at least one column", "0 columns", "Was the right file or selection used?")
    others = [name for name in names if not isinstance(name, str)]
    if others:
        raise DataError(
            "Column names are text", repr(others[0]), "Rename them: frame.columns = frame.columns.map(str)."
        )
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise DataError("Every column needs a name of its own", ", ".join(repeated), "Rename or drop one of them.")


_WIDTHS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
_NULLABLE = {pa.bool_(): "boolean", **{pa.type_for_alias(name.lower()): name for name in _WIDTHS}}


def from_arrow(table: pa.Table) -> pd.DataFrame:
    """Arrow in ordinary pandas dtypes; nullable ones only where a null would otherwise change the type."""
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


_CODED = (Kind.CATEGORICAL.value, Kind.BOOLEAN.value, *UNMODELLED)
_LEVEL_TYPES = (str, int, float, bool)


def encode(series: pd.Series, schema: ColumnSchema) -> Column:
    """The tensors of a frame's column.

    Integers (by dtype or kind) become int64, other numbers float64, instants and durations int64 nanoseconds, and
    everything else codes of sorted levels. Identifiers that are integers stay numbers.

    Raises:
        DataError: infinities, mixed types, or values that fit in no tensor.
        SchemaError: the values are not of the schema's kind.
    """
    dtype = spell(series)
    kind, nature = schema.kind, nature_of(series, dtype)
    missing = series.isna().to_numpy(dtype=bool)
    if missing.all():
        return _all_absent(series, schema, dtype, nature, missing)
    if Kind(kind).numeric and nature is Nature.TEXT:
        values, missing = parse_text(series, kind, detail(schema.dtype))
        return _make_column(series, f"{dtype}|{detail(schema.dtype)}", values, missing)
    if nature in (Nature.LEVELS, Nature.TEXT, Nature.BOOL):
        if kind not in _CODED:
            _refuse(series, kind, f"its values are {nature.value}")
        values, levels = _codes(series, nature)
        return _make_column(series, dtype, values, missing, levels)
    values = line_values(series, nature, missing)
    _check_kind(series, kind, nature)
    if kind == Kind.INTEGER.value and nature is Nature.REAL:
        values = _as_integers(series, values)
    if kind in _CODED and not (kind in UNMODELLED and nature is Nature.WHOLE):
        distinct, codes = np.unique(values[~missing], return_inverse=True)
        values = np.zeros(len(series), np.int64)
        values[~missing] = codes
        return _make_column(series, dtype, values, missing, tuple(distinct.tolist()))
    return _make_column(series, dtype, values, missing)


def line_values(series: pd.Series, nature: Nature, missing: np.ndarray) -> np.ndarray:
    """(n,) int64 or float64 numbers of a column of numbers, instants or durations, 0 where missing.

    Raises:
        DataError: infinities, integers beyond 64 bits, or instants outside 1677 to 2262.
    """
    if nature in (Nature.INSTANT, Nature.DURATION):
        return nanoseconds(series, nature, missing)
    try:
        values = series.to_numpy(np.int64 if nature is Nature.WHOLE else np.float64, na_value=0)
        if series.dtype == np.uint64 and (values < 0).any():
            raise OverflowError
    except OverflowError as error:
        raise DataError(
            f"Column {series.name!r} holds whole numbers that do not fit into 64 bits with sign",
            str(series.dtype),
            "Convert it to float64, or to text if it is an identifier.",
        ) from error
    infinite = int(np.isinf(values).sum()) if nature is Nature.REAL else 0
    if infinite:
        raise DataError(
            f"Column {series.name!r} must not hold infinities",
            f"{infinite} of {len(series)} rows",
            "Replace them by missing values in the table; in pandas: .replace([numpy.inf, -numpy.inf], numpy.nan).",
        )
    return np.array(values)


def nanoseconds(series: pd.Series, nature: Nature, missing: np.ndarray) -> np.ndarray:
    """(n,) int64 nanoseconds since 1970 UTC, or of durations; 0 where missing.

    Raises:
        DataError: an instant is outside 1677 to 2262, or objects have different time zones.
    """
    unit = "datetime64[ns]" if nature is Nature.INSTANT else "timedelta64[ns]"
    try:
        if zone_of(series.dtype) is not None:
            series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        target: Any = unit
        values = series.astype(target).to_numpy(unit).astype(np.int64)
    except (pd.errors.OutOfBoundsDatetime, pd.errors.OutOfBoundsTimedelta, OverflowError) as error:
        raise DataError(
            f"Column {series.name!r} holds {nature.value} that 64-bit nanoseconds cannot",
            "outside the years 1677 to 2262",
            "Replace such sentinels as 9999-12-31 by missing values.",
        ) from error
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Column {series.name!r} holds {nature.value} that cannot be read", str(series.dtype),
            "Convert it with pd.to_datetime(…, utc=True).",
        ) from error  # fmt: skip
    return np.where(missing, 0, values)


def parse_text(series: pd.Series, kind: str, form: str) -> tuple[np.ndarray, np.ndarray]:
    """(n,) numbers, or nanoseconds of instants, that are written as text in ``form``, 0 where missing; and (n,) bool
    where they are missing: also where the text is one of `MARKS`.

    Raises:
        SchemaError: a value is not in that form.
    """
    missing = series.isna().to_numpy(dtype=bool) | series.astype(object).isin(MARKS).to_numpy()
    texts, place = np.unique(series[~missing].astype(str).to_numpy(dtype=object), return_inverse=True)
    dates = kind == Kind.DATETIME.value
    parse = (
        parse_dates if dates and is_date_form(form) else parse_numbers if not dates and is_number_form(form) else None
    )
    parsed = parse(texts, form) if parse is not None else None
    if parsed is None:
        what, convert = ("date", "pd.to_datetime") if dates else ("number", "pd.to_numeric")
        example = 'format = "%d.%m.%y"' if dates else 'format = "#,##0.00 €"'
        raise SchemaError(
            f"Column {series.name!r} cannot be of kind {kind!r}: not every text is a {what} in one known form",
            form or "no form",
            f"Declare how it is written, such as {example}, and what stands for missing values; "
            f"or convert it with {convert}, or declare it categorical.",
        )
    if kind == Kind.INTEGER.value:
        parsed = _as_integers(series, parsed)
    values = np.zeros(len(series), parsed.dtype)
    values[~missing] = parsed[place]
    return values, missing


def _make_column(
    series: pd.Series, dtype: str, values: np.ndarray, missing: np.ndarray, levels: tuple[Any, ...] | None = None
) -> Column:
    return Column(str(series.name), dtype, torch.tensor(values), torch.tensor(missing), levels)


def _all_absent(series: pd.Series, schema: ColumnSchema, dtype: str, nature: Nature, missing: np.ndarray) -> Column:
    """A column without values; it keeps its type, so that it can be concatenated with a part that has values."""
    real = schema.kind in (Kind.CONTINUOUS.value, Kind.MIXED.value) and nature is not Nature.WHOLE
    zeros = np.zeros(len(series), np.float64 if real else np.int64)
    if Kind(schema.kind).numeric and nature in (Nature.TEXT, Nature.NONE) and detail(schema.dtype):
        dtype = f"{dtype}|{detail(schema.dtype)}"
    levels = categories(series) if nature is Nature.LEVELS else ()
    return _make_column(series, dtype, zeros, missing, None if Kind(schema.kind).numeric else levels)


def _codes(series: pd.Series, nature: Nature) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Codes (0 where missing) and levels: sorted texts, false and true, or the categories in their order."""
    if nature is Nature.LEVELS:
        return np.maximum(series.cat.codes.to_numpy(np.int64), 0), categories(series)
    if nature is Nature.BOOL:
        return series.to_numpy(bool, na_value=False).astype(np.int64), (False, True)
    codes, levels = pd.factorize(series, sort=True, use_na_sentinel=True)
    return np.maximum(codes, 0).astype(np.int64), tuple(map(str, levels))


def categories(series: pd.Series) -> tuple[Any, ...]:
    """Levels of a category column, in their order.

    Raises:
        DataError: a level is neither text nor number nor boolean.
    """
    levels = tuple(series.cat.categories.tolist())
    others = [level for level in levels if not isinstance(level, _LEVEL_TYPES)]
    if others:
        raise DataError(
            f"Column {series.name!r} has categories that are neither text nor numbers nor booleans",
            type(others[0]).__name__,
            TO_TEXT,
        )
    return levels


def _check_kind(series: pd.Series, kind: str, nature: Nature) -> None:
    on_time = nature in (Nature.INSTANT, Nature.DURATION)
    if kind not in _CODED and on_time != (kind == Kind.DATETIME.value):
        _refuse(series, kind, f"its values are {nature.value}")


def _as_integers(series: pd.Series, values: np.ndarray) -> np.ndarray:
    if (values != np.round(values)).any() or (np.abs(values) > 2.0**63 - 1024).any():
        _refuse(series, Kind.INTEGER.value, "some values are not whole 64-bit numbers")
    return values.astype(np.int64)


def _refuse(series: pd.Series, kind: str, why: str) -> NoReturn:
    raise SchemaError(
        f"Column {series.name!r} cannot be of kind {kind!r}: {why}",
        str(series.dtype),
        "Declare another kind, or convert the column first (pd.to_numeric, pd.to_datetime, .astype).",
    )


def decode(column: Column) -> pd.Series:
    """The column in its dtype; missing entries as that dtype holds them (NaN, NaT, NA or None).

    Raises:
        DataError: the dtype cannot hold missing entries, and there are some.
    """
    dtype, base = column.dtype, column.dtype.partition("|")[0]
    values, missing = column.values.numpy(), column.missing.numpy()
    if base == "category":
        codes = np.where(missing, -1, values)
        names = pd.Index(list(column.levels or ()), dtype=None if column.levels else object)
        categories = pd.Categorical.from_codes(codes, categories=names, ordered=detail(dtype) == "ordered")
        return pd.Series(categories, name=column.name)
    if missing.all() and len(missing):
        return _all_missing(column)
    entries = values if column.levels is None else _named(column)
    if detail(dtype):
        objects = _objects(entries, detail(dtype))
        objects[missing] = None
        series: pd.Series = pd.Series(objects, dtype=resolve(dtype), name=column.name)
        return series
    return _plain(column, entries, missing)


def _named(column: Column) -> np.ndarray:
    levels = list(column.levels or ())
    one_type = len({type(level) for level in levels}) == 1 and not isinstance(levels[0], str)
    names = np.array(levels) if one_type else np.array(levels, dtype=object)
    return np.asarray(names[column.values.numpy()])


def _all_missing(column: Column) -> pd.Series:
    dtype = resolve(column.dtype)
    if isinstance(dtype, np.dtype) and dtype.kind not in "fOMm":
        _refuse_missing(column)
    series: pd.Series = pd.Series([None] * len(column), dtype=object, name=column.name).astype(dtype)
    return series


def _refuse_missing(column: Column) -> NoReturn:
    raise DataError(
        f"Column {column.name!r} has missing entries, which its dtype cannot hold",
        column.dtype,
        "Use a dtype that can, such as Int64, boolean or float64.",
    )


def _plain(column: Column, entries: np.ndarray, missing: np.ndarray) -> pd.Series:
    dtype: Any = resolve(column.dtype)
    if missing.any() and isinstance(dtype, np.dtype) and dtype.kind not in "fOMm":
        _refuse_missing(column)
    if entries.dtype == object:
        texts = entries.copy()
        texts[missing] = None
        series: pd.Series = pd.Series(texts, dtype=dtype, name=column.name)
        return series
    if dtype.kind in "Mm":
        return _on_time(column.name, entries, missing, dtype)
    if dtype.kind in "iu":
        entries = _clipped(entries, dtype)
    series = pd.Series(entries, name=column.name).astype(dtype)
    return series.mask(missing) if missing.any() else series


def _clipped(entries: np.ndarray, dtype: Any) -> np.ndarray:
    """Integers clipped to the dtype's range: a declared range may be wider than, say, int8."""
    small = np.iinfo(f"{dtype.kind}{dtype.itemsize}")
    return np.clip(np.round(entries), small.min, min(small.max, 2**63 - 1)).astype(np.int64)


def _on_time(name: str, entries: np.ndarray, missing: np.ndarray, dtype: Any) -> pd.Series:
    if dtype.kind == "m":
        stamps = entries.astype("timedelta64[ns]")
        stamps[missing] = np.timedelta64("NaT")
        return pd.Series(stamps, name=name).astype(dtype)
    instants = entries.astype("datetime64[ns]")
    instants[missing] = np.datetime64("NaT")
    series = pd.Series(instants, name=name)
    zone = zone_of(dtype)
    return (series if zone is None else series.dt.tz_localize("UTC").dt.tz_convert(zone)).astype(dtype)


def _objects(entries: np.ndarray, what: str) -> np.ndarray:
    """Python objects of the type named by a dtype's detail; text for a form of dates or numbers."""
    if is_date_form(what):
        return write_dates(entries, what)
    if is_number_form(what):
        return write_numbers(entries, what)
    if what in ("date", "datetime"):
        instants = pd.Series(entries.astype("datetime64[ns]"))
        if what == "date":
            return _box(list(instants.dt.date))
        return _box([stamp.to_pydatetime() for stamp in instants.dt.floor("us")])
    return _box([_MAKE[what](value) for value in entries.tolist()])


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))  # the shortest digits: exact for up to 15 of them


_MAKE: dict[str, Callable[[Any], Any]] = {"bool": bool, "int": int, "float": float, "decimal": _decimal}


def _box(objects: list[Any]) -> np.ndarray:
    boxed = np.empty(len(objects), dtype=object)
    boxed[:] = objects
    return boxed
