"""The kind of each column of a frame, with the reason in words, and the user's overrides.

The second half looks at columns of numbers: their grid, their special codes, and single values that hold many rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from silosynth.core.errors import DataError, SchemaError, nearest
from silosynth.core.schema import ColumnSchema, Kind, Schema, Table
from silosynth.data.dtypes import Nature, nature_of, spell
from silosynth.data.frames import Frame, categories, encode, line_values, nanoseconds, parse_text, to_pandas

FEW = 20  # in numeric columns with no more distinct values than this, none stands out as special
_ID_ENDS = {"id", "ids", "uuid", "guid", "key", "number", "no", "nr", "index", "idx", "ssn", "iban", "email", "imsi"}
_ID_STARTS = {"id", "uuid", "guid"}
_ID_SHAPES = {
    "a UUID": re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}"),
    "an e-mail address": re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+"),
    "a code with digits": re.compile(r"(?=(?:.*\d){4})[A-Z]{0,4}[-_]?\d+[-_]?[A-Z0-9]{0,4}"),
    "a hash": re.compile(r"[0-9a-f]{32,64}"),
}
TEXT_DATES = (
    (re.compile(r"\d{4}-\d\d-\d\d"), "%Y-%m-%d"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"), "%Y-%m-%d %H:%M"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "%Y-%m-%d %H:%M:%S"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}"), "%Y-%m-%d %H:%M:%S.%f"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d"), "%Y-%m-%dT%H:%M"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"), "%Y-%m-%dT%H:%M:%S"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "%Y-%m-%dT%H:%M:%SZ"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}"), "%Y-%m-%dT%H:%M:%S.%f"),
)


@dataclass(frozen=True, slots=True)
class ColumnOverride:
    """The user's declarations about a column; None leaves a property to inference.

    Attributes:
        kind: a value of `Kind`.
        decimals: decimal places of the values; negative means tens, hundreds….
        low, high: the range that synthetic values may take; for dates also as text or a timestamp.
    """

    kind: str | None = None
    decimals: int | None = None
    low: Any = None
    high: Any = None


def infer(frame: Frame, overrides: Mapping[str, ColumnOverride | Mapping[str, Any] | str] | None = None) -> Schema:
    """The schema of a frame: inferred, except for ``overrides`` (a kind, or several properties, by column).

    Raises:
        DataError: the frame or one of its columns cannot be used.
        SchemaError: an override names an unknown column, property or kind, or contradicts the values.
    """
    pandas = to_pandas(frame)
    declared = {name: _override(name, value) for name, value in (overrides or {}).items()}
    for name in declared:
        if name not in set(pandas.columns):
            raise SchemaError("An override must name a column of the table", name, nearest(str(name), pandas.columns))
    return Schema(tuple(_column(pandas[name], declared.get(name)) for name in pandas.columns))


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """A line of `describe`: ``missing`` and ``distinct`` are a share of rows and a count."""

    name: str
    kind: str
    dtype: str
    missing: float
    distinct: int
    reason: str


def describe(schema: Schema, table: Table) -> list[ColumnSummary]:
    """A summary of each column, for the silo itself: distinct counts are exact."""
    rows = []
    for column in schema.columns:
        entries = table[column.name]
        missing = float(entries.missing.double().mean()) if len(entries) else 0.0
        distinct = len(np.unique(entries.values[~entries.missing].numpy()))
        rows.append(ColumnSummary(column.name, column.kind, column.dtype, missing, distinct, column.reason))
    return rows


def _override(name: str, value: ColumnOverride | Mapping[str, Any] | str) -> ColumnOverride:
    known = [field.name for field in fields(ColumnOverride)]
    if isinstance(value, str | Kind):
        value = ColumnOverride(kind=value)
    elif isinstance(value, Mapping):
        for key in value:
            if key not in known:
                raise SchemaError(f"The override of column {name!r} has an unknown property", key, nearest(key, known))
        value = ColumnOverride(**value)
    kinds = [kind.value for kind in Kind]
    if value.kind is not None and value.kind not in kinds:
        raise SchemaError(f"Column {name!r} is declared of an unknown kind", value.kind, nearest(value.kind, kinds))
    return value if value.kind is None else replace(value, kind=Kind(value.kind).value)


def _column(series: pd.Series, override: ColumnOverride | None) -> ColumnSchema:
    dtype = spell(series)
    nature = nature_of(series, dtype)
    schema = _guess(series, dtype, nature)
    if override is None:
        return schema
    if override.kind is not None and override.kind != schema.kind:
        schema = replace(schema, kind=override.kind, dtype=dtype, decimals=_decimals(series, nature))
        if override.kind == Kind.DATETIME.value and nature is Nature.TEXT:
            schema = replace(schema, dtype=f"{dtype}|{text_format(series) or ''}")
    schema = replace(schema, reason="declared", **_range(series, schema, override))
    encode(series, schema)
    return _checked_boolean(series, schema)


def _range(series: pd.Series, schema: ColumnSchema, override: ColumnOverride) -> dict[str, Any]:
    low, high = (_number(series, schema, bound) for bound in (override.low, override.high))
    if not Kind(schema.kind).numeric and (low, high, override.decimals) != (None, None, None):
        raise SchemaError(
            f"Only number and date columns have a range and decimals; {schema.name!r} is of kind", schema.kind,
            "Leave low, high and decimals out, or declare a numeric kind.",
        )  # fmt: skip
    if low is not None and high is not None and low > high:
        raise SchemaError(f"Column {schema.name!r}: low must not exceed high", (low, high), "Swap them.")
    decimals = schema.decimals if override.decimals is None else override.decimals
    return {"low": low, "high": high, "decimals": decimals}


def _number(series: pd.Series, schema: ColumnSchema, bound: Any) -> float | None:
    if bound is None:
        return None
    try:
        if schema.kind != Kind.DATETIME.value or isinstance(bound, int | float):
            number = float(bound)
        else:
            stamp = pd.Timestamp(bound)
            zone = getattr(series.dtype, "tz", None)
            if zone is not None and stamp.tzinfo is None:
                stamp = stamp.tz_localize(zone)
            number = float(stamp.as_unit("ns").value)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"Column {schema.name!r}: a bound must be a number or a date", str(bound)) from error
    if not np.isfinite(number):
        raise SchemaError(f"Column {schema.name!r}: a bound must be finite", bound, "Leave it out for the data's own.")
    return number


def _checked_boolean(series: pd.Series, schema: ColumnSchema) -> ColumnSchema:
    distinct = series.nunique(dropna=True)
    if schema.kind == Kind.BOOLEAN.value and distinct > 2:
        raise SchemaError(
            f"Column {schema.name!r} cannot be of kind 'boolean': it has more than two values", distinct,
            "Declare it categorical.",
        )  # fmt: skip
    return schema


def _guess(series: pd.Series, dtype: str, nature: Nature) -> ColumnSchema:
    name = str(series.name)
    present = series[series.notna().to_numpy(dtype=bool)]
    if len(present) == 0:
        return ColumnSchema(name, Kind.CATEGORICAL.value, dtype, reason="no value at all: stays missing in every row")
    if nature is Nature.LEVELS:
        reason = f"category dtype with {len(categories(series))} levels"
        return ColumnSchema(name, Kind.CATEGORICAL.value, dtype, reason=reason)
    if nature is Nature.BOOL:
        return ColumnSchema(name, Kind.BOOLEAN.value, dtype, reason="true and false")
    if nature in (Nature.INSTANT, Nature.DURATION):
        nanoseconds(present, nature, np.zeros(len(present), dtype=bool))
        return ColumnSchema(name, Kind.DATETIME.value, dtype, reason=nature.value)
    if nature is Nature.TEXT:
        return _guess_text(present, dtype)
    return _guess_number(present, dtype, nature)


def _guess_text(present: pd.Series, dtype: str) -> ColumnSchema:
    name, n, distinct = str(present.name), len(present), present.nunique()
    form = text_format(present)
    if form is not None:
        reason = f"text, and every value is a date written as {form}"
        return ColumnSchema(name, Kind.DATETIME.value, f"{dtype}|{form}", reason=reason)
    why = _text_identifier(present) if distinct == n and n > 1 else None
    if why:
        return ColumnSchema(name, Kind.IDENTIFIER.value, dtype, reason=f"all {n} values differ, and {why}")
    reason = f"text with {distinct} distinct values"
    if _looks_numeric(present):
        reason += "; they look like numbers: convert with pd.to_numeric to have them modelled as such"
    elif distinct == n and n > FEW:
        reason += ", no two alike: declare it identifier to leave it out"
    return ColumnSchema(name, Kind.CATEGORICAL.value, dtype, reason=reason)


def _guess_number(present: pd.Series, dtype: str, nature: Nature) -> ColumnSchema:
    name, n = str(present.name), len(present)
    values = line_values(present, nature, np.zeros(n, dtype=bool))
    distinct, counts = np.unique(values, return_counts=True)
    why = _number_identifier(name, values, distinct) if nature is Nature.WHOLE and len(distinct) == n else None
    if why:
        return ColumnSchema(name, Kind.IDENTIFIER.value, dtype, reason=f"all {n} values differ, and {why}")
    if len(distinct) == 2 and counts.min() >= FEWEST_ROWS:
        reason = "only {:g} and {:g}".format(*distinct.tolist())
        return ColumnSchema(name, Kind.BOOLEAN.value, dtype, reason=reason)
    if distinct.tolist() == [0, 1]:
        return ColumnSchema(name, Kind.BOOLEAN.value, dtype, reason=f"false and true stored as {dtype}")
    decimals = _decimals(present, nature)
    special = special_codes(distinct, counts) or (point_mass(distinct, counts) if len(distinct) > FEW else None)
    whole = decimals is not None and decimals <= 0
    if special:
        kind, reason = Kind.MIXED, special
    elif whole:
        kind, reason = Kind.INTEGER, "whole numbers" + ("" if nature is Nature.WHOLE else f" stored as {dtype}")
    else:
        kind, reason = Kind.CONTINUOUS, "numbers" + ("" if decimals is None else f" with {decimals} decimal places")
    return ColumnSchema(name, kind.value, dtype, decimals=decimals, reason=reason)


def _decimals(series: pd.Series, nature: Nature) -> int | None:
    """Decimal places of a number column; None for all other columns."""
    if nature not in (Nature.WHOLE, Nature.REAL):
        return None
    present = series[series.notna().to_numpy(dtype=bool)]
    values = line_values(present, nature, np.zeros(len(present), dtype=bool))
    return grid_decimals(values, single=str(series.dtype).lower() in ("float32", "float16", "float[pyarrow]"))


def text_format(series: pd.Series) -> str | None:
    """The ISO format in which every text is a date; None if there is none."""
    present = series[series.notna().to_numpy(dtype=bool)]
    first = str(present.iloc[0]) if len(present) else ""
    form = next((form for shape, form in TEXT_DATES if shape.fullmatch(first)), None)
    if form is None:
        return None
    try:
        parse_text(present, form)
    except DataError:  # some value is no such date: the column is text
        return None
    return form


def _looks_numeric(present: pd.Series) -> bool:
    if not re.fullmatch(r"\s*[+-]?\d[\d.,]*(e[+-]?\d+)?\s*", str(present.iloc[0]), re.IGNORECASE):
        return False
    return bool(pd.to_numeric(pd.Series(present.unique(), dtype=object), errors="coerce").notna().all())


def _hinted(name: str) -> bool:
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    parts = [part for part in re.split(r"[^a-z0-9]+", words) if part]
    return bool(parts) and (parts[-1] in _ID_ENDS or parts[0] in _ID_STARTS)


def _text_identifier(present: pd.Series) -> str | None:
    if _hinted(str(present.name)):
        return "the name says that it is an identifier"
    if len(present) < FEW:
        return None
    return next(
        (f"each is written like {what}" for what, shape in _ID_SHAPES.items() if present.str.fullmatch(shape).all()),
        None,
    )


def _number_identifier(name: str, values: np.ndarray, distinct: np.ndarray) -> str | None:
    """Why integers that all differ are identifiers: by name, or by numbering the rows without a gap."""
    if len(values) > 1 and _hinted(name):
        return "the name says that it is an identifier"
    if len(values) >= FEW and int(distinct[-1]) - int(distinct[0]) == len(values) - 1:
        return "they number the rows without a gap"
    return None


MOST_DECIMALS = 6
LARGEST_WHOLE = 2.0**53  # larger floats have no decimals
MASS = 0.2  # share of rows on one value that makes a column mixed
_MOST_CODES = 5  # more special codes than this are a range of values
FEWEST_ROWS = 5  # values of fewer rows are outliers, and are never named
_LEAST_DISTINCT = 10  # with no more distinct values than this, all are levels and none is special
_CODES = {-1, -2, -3, -4, -5, -6, -7, -8, -9, *(-(10**k - j) for k in (2, 3, 4, 5) for j in range(1, 4))}
_HIGH_CODES = {10**k - j for k in (3, 4, 5, 6) for j in (1, 2, 3)}


def grid_decimals(values: np.ndarray, single: bool = False) -> int | None:
    """The smallest d in -6…6 for which all values are multiples of 10^-d up to rounding; None if there is none.

    Tens, hundreds… (d < 0) need at least five different non-zero values. ``single``: values were stored as float32.
    """
    distinct = np.unique(values)
    whole = distinct.dtype.kind == "i"
    if not whole and np.abs(distinct).max(initial=0) > LARGEST_WHOLE:
        return None
    lowest = -MOST_DECIMALS if np.count_nonzero(distinct) >= 5 else 0
    for d in range(lowest, 1 if whole else MOST_DECIMALS + 1):
        if _on_grid(distinct[:200], d, single) and _on_grid(distinct, d, single):
            return d
    return 0 if whole else None


def special_codes(distinct: np.ndarray, counts: np.ndarray) -> str | None:
    """Which values are codes such as -9 or 999 rather than measurements, in words; None if there are none.

    Codes are negative (with all other values at 0 or above) or stand far above the rest, and are shared by at least
    ``FEWEST_ROWS`` rows; rarer ones are not named.
    """
    if len(distinct) <= _LEAST_DISTINCT:
        return None
    below = distinct < 0
    if 0 < below.sum() <= _MOST_CODES and set(distinct[below].tolist()) <= _CODES:
        shared = below & (counts >= FEWEST_ROWS)
        return f"numbers, with the special values {_listed(distinct[shared])}" if shared.any() else None
    top = distinct[-1].item()
    apart = top > 3 * abs(distinct[-2].item()) and distinct[-2] > 0
    if top in _HIGH_CODES and apart and counts[-1] >= FEWEST_ROWS:
        return f"numbers, with the special value {_listed(distinct[-1:])}"
    return None


def point_mass(distinct: np.ndarray, counts: np.ndarray) -> str | None:
    """The value that at least a fifth of the rows share, in words; None if there is none."""
    share = counts.max() / counts.sum()
    if share < MASS:
        return None
    return f"numbers, and {share:.0%} of the rows are {_listed(distinct[[counts.argmax()]])}"


def _on_grid(values: np.ndarray, d: int, single: bool) -> bool:
    if values.dtype.kind == "i":
        return not (values % 10**-d).any()
    rounded = np.round(values, d)
    if single:
        return bool((rounded.astype(np.float32) == values.astype(np.float32)).all())
    near = np.abs(rounded - values) <= 4 * np.spacing(np.abs(values))
    return bool((near & ((rounded != 0) | (values == 0))).all())  # denormal numbers are not 0


def _listed(values: np.ndarray) -> str:
    return ", ".join(f"{value:g}" for value in values.tolist())
