"""One frame column → one `Column` of tensors."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pandas as pd
import torch

from silosynth.core.errors import DataError, SchemaError
from silosynth.core.schema import Column, ColumnSchema, Kind
from silosynth.data.dtypes import Nature, detail, nature, spell, zone_of

_CODED = (Kind.CATEGORICAL.value, Kind.BOOLEAN.value, Kind.IDENTIFIER.value)
_LEVEL_TYPES = (str, int, float, bool)


def encode(series: pd.Series, schema: ColumnSchema) -> Column:
    """The tensors of a frame's column.

    Whole numbers become int64 when the dtype or the kind is integer, other numbers float64, instants and durations
    int64 nanoseconds, all else codes into sorted levels. Identifiers that are whole numbers stay numbers.

    Raises:
        DataError: infinities, mixed types, or values that no tensor can hold.
        SchemaError: the values are not of the schema's kind.
    """
    dtype = spell(series)
    kind, found = schema.kind, nature(series, dtype)
    missing = series.isna().to_numpy(dtype=bool)
    if missing.all():
        return _all_absent(series, schema, dtype, found, missing)
    if kind == Kind.DATETIME.value and found is Nature.TEXT:
        return _column(series, f"{dtype}|{detail(schema.dtype)}", parse_text(series, detail(schema.dtype)), missing)
    if found in (Nature.LEVELS, Nature.TEXT, Nature.BOOL):
        if kind not in _CODED:
            _refuse(series, kind, f"its values are {found.value}")
        values, levels = _codes(series, found)
        return _column(series, dtype, values, missing, levels)
    values = line_values(series, found, missing)
    _check_kind(series, kind, found)
    if kind == Kind.INTEGER.value and found is Nature.REAL:
        values = _whole(series, values)
    if kind in _CODED and not (kind == Kind.IDENTIFIER.value and found is Nature.WHOLE):
        distinct, codes = np.unique(values[~missing], return_inverse=True)
        values = np.zeros(len(series), np.int64)
        values[~missing] = codes
        return _column(series, dtype, values, missing, tuple(distinct.tolist()))
    return _column(series, dtype, values, missing)


def line_values(series: pd.Series, found: Nature, missing: np.ndarray) -> np.ndarray:
    """(n,) int64 or float64 numbers of a column of numbers, instants or durations, 0 where missing.

    Raises:
        DataError: infinities, whole numbers beyond 64 bits, or instants outside 1677 to 2262.
    """
    if found in (Nature.INSTANT, Nature.DURATION):
        return nanoseconds(series, found, missing)
    try:
        values = series.to_numpy(np.int64 if found is Nature.WHOLE else np.float64, na_value=0)
        if series.dtype == np.uint64 and (values < 0).any():
            raise OverflowError
    except OverflowError as error:
        raise DataError(
            f"Column {series.name!r} holds whole numbers that do not fit into 64 bits with sign",
            str(series.dtype),
            "Convert it to float64, or to text if it is an identifier.",
        ) from error
    infinite = int(np.isinf(values).sum()) if found is Nature.REAL else 0
    if infinite:
        raise DataError(
            f"Column {series.name!r} must not hold infinities",
            f"{infinite} of {len(series)} rows",
            "Replace them by missing values: .replace([numpy.inf, -numpy.inf], numpy.nan).",
        )
    return np.array(values)


def nanoseconds(series: pd.Series, found: Nature, missing: np.ndarray) -> np.ndarray:
    """(n,) int64 nanoseconds since 1970 UTC (or of duration), 0 where missing.

    Raises:
        DataError: an instant is outside 1677 to 2262, or an object has a time zone of its own.
    """
    unit = "datetime64[ns]" if found is Nature.INSTANT else "timedelta64[ns]"
    try:
        if zone_of(series.dtype) is not None:
            series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        target: Any = unit
        values = series.astype(target).to_numpy(unit).astype(np.int64)
    except (pd.errors.OutOfBoundsDatetime, pd.errors.OutOfBoundsTimedelta, OverflowError) as error:
        raise DataError(
            f"Column {series.name!r} holds {found.value} that 64-bit nanoseconds cannot",
            "outside the years 1677 to 2262",
            "Replace such sentinels as 9999-12-31 by missing values.",
        ) from error
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Column {series.name!r} holds {found.value} that cannot be read", str(series.dtype),
            "Convert it with pd.to_datetime(…, utc=True).",
        ) from error  # fmt: skip
    return np.where(missing, 0, values)


def parse_text(series: pd.Series, form: str) -> np.ndarray:
    """(n,) int64 nanoseconds of instants written as text in the format ``form``, 0 where missing.

    Raises:
        SchemaError: a value is not written in that format.
    """
    held = series[series.notna()].astype(str)
    texts, place = np.unique(held.to_numpy(dtype=object), return_inverse=True)
    parsed = pd.to_datetime(pd.Series(texts, dtype=object), format=form or "ISO8601", errors="coerce")
    if not form or parsed.isna().any() or (parsed.dt.strftime(form) != texts).any() or _beyond(parsed):
        raise SchemaError(
            f"Column {series.name!r} cannot be of kind 'datetime': not every text is a date in one known format",
            form or "no format",
            "Convert it with pd.to_datetime, or declare it categorical.",
        )
    values = np.zeros(len(series), np.int64)
    values[series.notna().to_numpy()] = parsed.to_numpy("datetime64[ns]").astype(np.int64)[place]
    return values


def _beyond(instants: pd.Series) -> bool:
    years = instants.dt.year
    return bool((years < 1678).any() or (years > 2261).any())


def _column(
    series: pd.Series, dtype: str, values: np.ndarray, missing: np.ndarray, levels: tuple[Any, ...] | None = None
) -> Column:
    return Column(str(series.name), dtype, torch.tensor(values), torch.tensor(missing), levels)


def _all_absent(series: pd.Series, schema: ColumnSchema, dtype: str, found: Nature, missing: np.ndarray) -> Column:
    """A column without a value: numbers stay numbers, so that it can be set below a part that has values."""
    real = schema.kind in (Kind.CONTINUOUS.value, Kind.MIXED.value) and found is not Nature.WHOLE
    zeros = np.zeros(len(series), np.float64 if real else np.int64)
    if schema.kind == Kind.DATETIME.value and found is Nature.TEXT:
        dtype = f"{dtype}|{detail(schema.dtype)}"
    levels = categories(series) if found is Nature.LEVELS else ()
    return _column(series, dtype, zeros, missing, None if Kind(schema.kind).numeric else levels)


def _codes(series: pd.Series, found: Nature) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Codes into levels, 0 where missing: sorted texts, false and true, or the categories in their order."""
    if found is Nature.LEVELS:
        return np.maximum(series.cat.codes.to_numpy(np.int64), 0), categories(series)
    if found is Nature.BOOL:
        return series.to_numpy(bool, na_value=False).astype(np.int64), (False, True)
    codes, levels = pd.factorize(series, sort=True, use_na_sentinel=True)
    return np.maximum(codes, 0).astype(np.int64), tuple(map(str, levels))


def categories(series: pd.Series) -> tuple[Any, ...]:
    """Levels of a category column, in their order.

    Raises:
        DataError: a level is neither text nor number nor boolean.
    """
    levels = tuple(series.cat.categories.tolist())
    strange = [level for level in levels if not isinstance(level, _LEVEL_TYPES)]
    if strange:
        raise DataError(
            f"Column {series.name!r} has categories that are neither text nor numbers nor booleans",
            type(strange[0]).__name__,
            "Convert it with .astype(str).",
        )
    return levels


def _check_kind(series: pd.Series, kind: str, found: Nature) -> None:
    on_time = found in (Nature.INSTANT, Nature.DURATION)
    if kind not in _CODED and on_time != (kind == Kind.DATETIME.value):
        _refuse(series, kind, f"its values are {found.value}")


def _whole(series: pd.Series, values: np.ndarray) -> np.ndarray:
    if (values != np.round(values)).any() or (np.abs(values) > 2.0**63 - 1024).any():
        _refuse(series, Kind.INTEGER.value, "some values are not whole 64-bit numbers")
    return values.astype(np.int64)


def _refuse(series: pd.Series, kind: str, why: str) -> NoReturn:
    raise SchemaError(
        f"Column {series.name!r} cannot be of kind {kind!r}: {why}",
        str(series.dtype),
        "Declare another kind, or convert the column first (pd.to_numeric, pd.to_datetime, .astype).",
    )
