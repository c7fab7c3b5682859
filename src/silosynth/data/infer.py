"""The kind of each column of a frame, with the reason in words, and the user's overrides.

The second half looks at columns of numbers: their grid, their special codes, and single values that hold many rows.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch

from silosynth.core.errors import SchemaError, SilosynthError, nearest
from silosynth.core.schema import DURATIONS, UNMODELLED, Column, ColumnSchema, Kind, Schema, Table, beyond_bounds
from silosynth.data.dtypes import TO_TEXT, Nature, detail, nature_of, resolve, spell
from silosynth.data.frames import Frame, categories, decode, encode, line_values, nanoseconds, parse_text, to_pandas
from silosynth.data.personal import EMAIL, check_form, common_forms, looks_personal, words_of
from silosynth.data.texts import (
    MARKS,
    Written,
    date_form,
    is_date_form,
    is_number_form,
    number_form,
    parse_dates,
)

MUCH = 0.2  # share of rows with rare levels of which a column's owner is warned
_PUBLISH = "declare another kind to publish its values"
POOLED = '"(rare)", or other levels where these are no text'
_SINGLE = ("float32", "float16", "float[pyarrow]")  # dtypes whose numbers have fewer digits than Python's
FEW = 20  # in numeric columns with no more distinct values than this, none stands out as special
_ID_ENDS = {"id", "ids", "uuid", "guid", "key", "number", "no", "nr", "index", "idx", "ssn", "iban", "email", "imsi"}
_ID_STARTS = {"id", "uuid", "guid"}
_ID_SHAPES = {
    "a UUID": re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}"),
    "an e-mail address": EMAIL,
    "a code with digits": re.compile(r"(?=(?:.*\d){4})[A-Z]{0,4}[-_]?\d+[-_]?[A-Z0-9]{0,4}"),
    "a hash": re.compile(r"[0-9a-f]{32,64}"),
}


@dataclass(frozen=True, slots=True)
class ColumnOverride:
    """The user's declarations about a column; None leaves a property to inference.

    Attributes:
        kind: a value of `Kind`.
        decimals: decimal places of the values; negative means tens, hundreds….
        low, high: the range that synthetic values may take; for dates also as text or a timestamp;
            for durations as text with a unit ("37 days", "12 h") or a Timedelta.
        format: how numbers, dates or pseudonyms are written as text (see `silosynth.data.texts`, `personal`).
        decimal: the decimal mark of numbers that are written as text, "." or ",".
        missing: texts or numbers that stand for missing values.
        levels: all categories that there may be, whether or not a row holds them. They count as public.
    """

    kind: str | None = None
    decimals: int | None = None
    low: Any = None
    high: Any = None
    format: str | None = None
    decimal: str | None = None
    missing: Sequence[Any] = ()
    levels: Sequence[Any] = ()


Overrides: TypeAlias = Mapping[str, ColumnOverride | Mapping[str, Any] | str] | None


def infer(frame: Frame, overrides: Overrides = None) -> Schema:
    """The schema of a frame: inferred, except for ``overrides`` (a kind, or several properties, by column).

    Where ``missing`` is declared, the schema is that of `without_marks`.

    Raises:
        DataError: the frame or one of its columns cannot be used.
        SchemaError: an override names an unknown column, property or kind, or contradicts the values.
    """
    declared = _overrides(to_pandas(frame), overrides)
    pandas = without_marks(frame, overrides)
    return Schema(tuple(_column(pandas[name], declared.get(name, ColumnOverride())) for name in pandas.columns))


def without_marks(frame: Frame, overrides: Overrides = None) -> pd.DataFrame:
    """The frame in pandas, with missing values instead of what is declared to stand for them (``missing``).

    Integer and boolean columns become nullable where that is needed.

    Raises:
        DataError: the frame cannot be used.
        SchemaError: an override names an unknown column or property, or ``missing`` is no list.
    """
    pandas = to_pandas(frame)
    for name, override in _overrides(pandas, overrides).items():
        if override.missing:
            pandas = pandas.assign(**{name: _unmarked(pandas[name], override.missing)})
    return pandas


class ColumnWarning(UserWarning):
    """A column is not modelled, or not as its owner may expect."""


def cautions(schema: Schema, table: Table, least: int = 5, pool: bool = True, most: int = 0) -> list[str]:
    """What the owner of a table should know about its columns before training, with the remedy.

    Args:
        schema, table: from `infer` and `to_table`.
        least, pool: levels of fewer rows are pooled, if they are at all.
        most: as many categories of a column are learnt; 0 for all.
    """
    said, beyond = [], beyond_bounds(table, schema)
    for column in schema.columns:
        known, _, note = column.reason.partition("; ")
        if column.name in beyond:
            said.append(
                f"Column {column.name!r}: {beyond[column.name]:,} of {len(table):,} values lie beyond its declared "
                "bounds, which no synthetic value passes. Declare wider ones if these values are real"
            )
        share = pooled_share(table[column.name], least) if pool and column.kind not in UNMODELLED else 0.0
        if note == _PUBLISH:
            said.append(f"Column {column.name!r} is not published: {column.reason}")
        elif share > MUCH:
            said.append(
                f"Column {column.name!r}: {share:.0%} of its rows hold values of fewer than {least} rows each; these "
                f"become {POOLED}. Declare format, decimal or missing if they are dates or numbers; kind "
                '"pseudonym" or "identifier" if they say who somebody is; or join them into fewer values'
            )
        elif note and Kind(column.kind).numeric:
            said.append(f"Column {column.name!r}: {known.removeprefix('text, and ')}; {note}")
        learnt = most and note != _PUBLISH and column.kind not in UNMODELLED
        if learnt and (more := table[column.name].common_levels(least) - most) > 0:
            said.append(
                f"Column {column.name!r}: {more:,} of its values are drawn by how common they are, whatever else is in "
                f"a row but columns that they determine; the {most:,} most common ones are learnt. Join values, or "
                "raise most_categories of encoders"
            )
    return said


def pooled_share(column: Column, least: int) -> float:
    """The share of rows whose level fewer than ``least`` rows hold; 0 for numbers and instants."""
    if column.levels is None or set(column.levels) <= {0, 1} or not len(column):
        return 0.0
    counts = np.bincount(column.values[~column.missing].numpy(), minlength=1)
    return float(counts[counts < least].sum() / len(column))


def _overrides(pandas: pd.DataFrame, overrides: Overrides) -> dict[str, ColumnOverride]:
    declared = {name: _override(name, value) for name, value in (overrides or {}).items()}
    for name in declared:
        if name not in set(pandas.columns):
            raise SchemaError("An override must name a column of the table", name, nearest(str(name), pandas.columns))
    return declared


def _mark(value: Any) -> str:
    """A value as text, as marks are compared: -9 and -9.0 are the same, and all digits count."""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value).strip()


def _plain(series: pd.Series) -> pd.Series:
    """The values as objects; of short floats those that are written alike: 0.1, not 0.10000000149."""
    values, dtype = series.astype(object), str(series.dtype).lower()
    if dtype not in _SINGLE:
        return values
    short = np.float16 if dtype == "float16" else np.float32
    return values.map(lambda value: value if pd.isna(value) else float(str(short(value))))


def _unmarked(series: pd.Series, marks: Sequence[Any]) -> pd.Series:
    texts = _plain(series).map(_mark)
    marked = texts.isin([_mark(mark) for mark in marks])
    marked &= series.notna().astype(bool)
    dtype = series.dtype
    if marked.any() and isinstance(dtype, np.dtype) and dtype.kind in "biu":
        nullable: Any = "boolean" if dtype.kind == "b" else str(dtype).replace("i", "I").replace("u", "U")
        series = series.astype(nullable)
    kept = series.mask(marked)
    if isinstance(dtype, pd.CategoricalDtype):
        gone = [level for level in dtype.categories if str(level).strip() in set(texts[marked])]
        return kept.cat.remove_categories(gone)
    return kept


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
    if value.decimal not in (None, ".", ","):
        raise SchemaError(f"Column {name!r}: the decimal mark is a point or a comma", value.decimal, 'decimal = ","')
    if isinstance(value.missing, str) or not isinstance(value.missing, Sequence):
        raise SchemaError(f"Column {name!r}: missing is a list", value.missing, 'Write missing = ["?"], say.')
    if isinstance(value.levels, str) or not isinstance(value.levels, Sequence):
        raise SchemaError(f"Column {name!r}: levels is a list", value.levels, 'Write levels = ["no", "yes"], say.')
    return value if value.kind is None else replace(value, kind=Kind(value.kind).value)


def _column(series: pd.Series, override: ColumnOverride) -> ColumnSchema:
    marks = tuple(map(_mark, override.missing))
    return replace(_typed(series, replace(override, missing=())), missing=marks)


def _typed(series: pd.Series, override: ColumnOverride) -> ColumnSchema:
    dtype = spell(series)
    nature = nature_of(series, dtype)
    if override == ColumnOverride():
        return _guess(series, dtype, nature)
    _check_written(series, nature, override)
    if override.levels and override.kind is None:
        override = replace(override, kind=Kind.CATEGORICAL.value)
    if override.kind == Kind.PSEUDONYM.value:
        schema = replace(_pseudonym(series, dtype, "declared"), dtype=f"{dtype}|{override.format or ''}".rstrip("|"))
    else:
        schema = _guess(series, dtype, nature, override)
    if override.kind not in (None, schema.kind):
        form = detail(schema.dtype)
        written = nature is Nature.TEXT and Kind(override.kind).numeric
        if form and is_date_form(form) is not (override.kind == Kind.DATETIME.value):
            form = ""
        known = schema.decimals if written else _decimals(series, nature)
        decimals = known if Kind(override.kind).numeric else None  # of levels they would tell of rows, for nothing
        schema = replace(
            schema, kind=override.kind, dtype=f"{dtype}|{form}" if written else dtype, decimals=decimals, forms=()
        )
    schema = replace(schema, reason="declared", **_range(series, schema, override))
    column = encode(series, schema)
    if override.levels:
        schema = replace(schema, levels=_declared_levels(schema, override.levels, column))
    return _checked_boolean(series, schema)


def _declared_levels(schema: ColumnSchema, levels: Sequence[Any], column: Column) -> tuple[Any, ...]:
    """The levels that the user has declared, as the column's dtype holds them; first those that it lists, in its order.

    Raises:
        SchemaError: it is no column of categories; a level is given twice, or the dtype cannot hold it; or a row holds
            another.
    """
    name = schema.name
    if schema.kind not in (Kind.CATEGORICAL.value, Kind.BOOLEAN.value):
        rule = f"Only columns of categories have levels to declare; {name!r} is of kind"
        raise SchemaError(rule, schema.kind, 'Leave levels out, or declare kind = "categorical".')
    found = tuple(_as_held(schema, level) for level in levels)
    if len(set(found)) < len(found):
        raise SchemaError(f"Column {name!r}: each level is declared once", list(levels))
    if len({isinstance(level, str) for level in found}) > 1:
        raise SchemaError(f"Column {name!r}: declared levels are all texts, or all numbers", list(levels))
    if others := set(column.own_levels().levels or ()) - set(found):
        raise SchemaError(
            f"Column {name!r}: rows hold no level but those that are declared", f"{len(others)} others",
            "Declare all that there may be, and under missing what stands for missing values.",
        )  # fmt: skip
    listed = column.levels or () if schema.dtype.startswith("category") else ()
    return (*(level for level in listed if level in found), *(level for level in found if level not in listed))


def _as_held(schema: ColumnSchema, level: Any) -> Any:
    """A declared level as a column of this dtype holds it.

    Raises:
        SchemaError: it cannot.
    """
    level = level.item() if isinstance(level, np.generic) else level
    if isinstance(level, str | int) or (isinstance(level, float) and np.isfinite(level)):
        column = Column(schema.name, schema.dtype, torch.zeros(1, dtype=torch.int64), torch.tensor([False]), (level,))
        with contextlib.suppress(ValueError, TypeError, OverflowError, ArithmeticError, SilosynthError):
            (back,) = decode(column).tolist()
            short = np.float32(level) if isinstance(back, float) else level  # of short floats: 0.1 is not 0.1
            if isinstance(back, str) is isinstance(level, str) and back in (level, short):
                return back
    raise SchemaError(
        f"Column {schema.name!r} of dtype {schema.dtype!r} cannot hold a level that is declared", repr(level),
        'Write texts as "1", and numbers as 1.',
    )  # fmt: skip


def _check_written(series: pd.Series, nature: Nature, override: ColumnOverride) -> None:
    """Refuse a ``format`` or ``decimal`` that says nothing of this column."""
    name, form, kind = str(series.name), override.format, override.kind
    if (form or override.decimal) and nature not in (Nature.TEXT, Nature.NONE):
        raise SchemaError(
            f"Column {name!r}: format and decimal say how text is written, and the values are {nature.value}",
            form or override.decimal,
            "Leave them out.",
        )
    if kind == Kind.PSEUDONYM.value:
        if nature not in (Nature.TEXT, Nature.WHOLE, Nature.LEVELS, Nature.NONE):
            raise SchemaError(
                f"Column {name!r} cannot be of kind 'pseudonym': its values are {nature.value}",
                str(series.dtype),
                f"Pseudonyms are text, categories or whole numbers. {TO_TEXT} Or declare it identifier.",
            )
        if form:
            check_form(name, form)
    elif form and not (is_date_form(form) or is_number_form(form)):
        raise SchemaError(
            f"Column {name!r}: a format is a form of dates or of numbers",
            form,
            'Write it as in "%d.%m.%Y" or "#,##0.00 €".',
        )
    elif form and kind is not None and (not Kind(kind).numeric or is_date_form(form) is not (kind == "datetime")):
        raise SchemaError(f"Column {name!r}: this is no format of kind {kind!r}", form, "Leave out one of the two.")


def _range(series: pd.Series, schema: ColumnSchema, override: ColumnOverride) -> dict[str, Any]:
    if not Kind(schema.kind).numeric and (override.low, override.high, override.decimals) != (None, None, None):
        raise SchemaError(
            f"Only number and date columns have a range and decimals; {schema.name!r} is of kind", schema.kind,
            "Leave low, high and decimals out, or declare it continuous, integer or datetime.",
        )  # fmt: skip
    low, high = (_number(series, schema, bound) for bound in (override.low, override.high))
    if low is not None and high is not None and low > high:
        raise SchemaError(f"Column {schema.name!r}: low must not exceed high", (low, high), "Swap them.")
    decimals = schema.decimals if override.decimals is None else override.decimals
    return {"low": low, "high": high, "decimals": decimals}


def read_number(schema: ColumnSchema, value: Any) -> float:
    """The number, or the nanoseconds, that a user's value stands for in a column of numbers, instants or durations.

    Raises:
        SchemaError: it stands for none.
    """
    number = _number(pd.Series([], dtype=resolve(schema.dtype), name=schema.name), schema, value)
    if number is None:
        raise SchemaError(f"Column {schema.name!r}: a bound must be a number or an instant", value)
    return number


def _number(series: pd.Series, schema: ColumnSchema, bound: Any) -> float | None:
    if bound is None:
        return None
    if schema.kind == Kind.DATETIME.value:
        read = _duration if schema.dtype.startswith(DURATIONS) else _instant
        return read(series, bound)
    try:
        number = float(bound)
    except (TypeError, ValueError) as error:
        rule = f"Column {schema.name!r} holds numbers: a bound must be a number"
        raise SchemaError(rule, str(bound), "Write it without quotes, as in low = 0.") from error
    if not np.isfinite(number):
        raise SchemaError(f"Column {schema.name!r}: a bound must be finite", bound, "Leave it out for the data's own.")
    return number


def _instant(series: pd.Series, bound: Any) -> float:
    """The nanoseconds since 1970 of a bound of instants; a plain number would be taken for nanoseconds."""
    try:
        if _is_number(bound):
            raise ValueError("a number")
        stamp = pd.Timestamp(bound)
        if pd.isna(stamp):
            raise ValueError("no date")
        zone = getattr(series.dtype, "tz", None)
        if zone is not None and stamp.tzinfo is None:
            stamp = stamp.tz_localize(zone)
        return float(stamp.as_unit("ns").value)
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"Column {series.name!r} holds dates or times: a bound must be a date or time",
            str(bound),
            'Write it as in "2020-01-31" or "2020-01-31 12:00"; in Python also pd.Timestamp or datetime.',
        ) from error


def _is_number(bound: Any) -> bool:
    """Whether a bound is a plain number; NumPy's durations are numbers, too, but have a unit."""
    return isinstance(bound, int | float | np.number) and not isinstance(bound, np.timedelta64)


def _duration(series: pd.Series, bound: Any) -> float:
    """The nanoseconds of a bound of durations; it needs a unit, for pandas takes 37 and "20200101" for nanoseconds."""
    try:
        if _is_number(bound) or (isinstance(bound, str) and not re.search("[A-Za-z:]", bound)):
            raise ValueError("no unit")
        length = pd.Timedelta(bound)
        if pd.isna(length):
            raise ValueError("no duration")
        return float(length.as_unit("ns").value)
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"Column {series.name!r} holds durations: a bound must be a duration",
            str(bound),
            'Write a number and its unit, as in "0 days", "37 days" or "12 h"; in Python also pd.Timedelta.',
        ) from error


def _checked_boolean(series: pd.Series, schema: ColumnSchema) -> ColumnSchema:
    distinct = series.nunique(dropna=True)
    if schema.kind == Kind.BOOLEAN.value and distinct > 2:
        raise SchemaError(
            f"Column {schema.name!r} cannot be of kind 'boolean': it has more than two values", distinct,
            "Declare it categorical.",
        )  # fmt: skip
    return schema


def _guess(series: pd.Series, dtype: str, nature: Nature, override: ColumnOverride | None = None) -> ColumnSchema:
    name = str(series.name)
    present = series[series.notna().to_numpy(dtype=bool)]
    if len(present) == 0:
        return ColumnSchema(name, Kind.CATEGORICAL.value, dtype, reason="no value at all: stays missing in every row")
    if nature is Nature.LEVELS:
        return _guess_levels(present, dtype)
    if nature is Nature.BOOL:
        return ColumnSchema(name, Kind.BOOLEAN.value, dtype, reason="true and false")
    if nature in (Nature.INSTANT, Nature.DURATION):
        nanoseconds(present, nature, np.zeros(len(present), dtype=bool))
        return ColumnSchema(name, Kind.DATETIME.value, dtype, reason=nature.value)
    if nature is Nature.TEXT:
        return _guess_text(present, dtype, override or ColumnOverride())
    return _guess_number(present, dtype, nature)


def _guess_levels(present: pd.Series, dtype: str) -> ColumnSchema:
    levels = categories(present)
    occurring = [levels[code] for code in np.unique(present.cat.codes.to_numpy()).tolist()]
    texts = [str(level) for level in occurring if isinstance(level, str) or type(level) is int]
    why = looks_personal(str(present.name), texts)
    if why:
        return _pseudonym(present, dtype, f"{why}: replaced by substitutes; {_PUBLISH}")
    reason = f"category dtype with {len(levels)} levels"
    return ColumnSchema(str(present.name), Kind.CATEGORICAL.value, dtype, reason=reason)


def _guess_text(present: pd.Series, dtype: str, override: ColumnOverride) -> ColumnSchema:
    name, n = str(present.name), len(present)
    texts = [str(text) for text in present.unique()]
    distinct = len(texts)
    written = _written([text for text in texts if text not in MARKS], override, marked=not MARKS.isdisjoint(texts))
    if written is not None and is_date_form(written.form):
        reason = f"text, and every value is a date written as {written.form}"
        return _noted(ColumnSchema(name, Kind.DATETIME.value, f"{dtype}|{written.form}", reason=reason), written, texts)
    if override.format is None:
        why = _text_identifier(present) if distinct == n and n > 1 else None
        if why:
            return ColumnSchema(name, Kind.IDENTIFIER.value, dtype, reason=f"all {n} values differ, and {why}")
        why = looks_personal(name, texts)
        if why:
            return _pseudonym(present, dtype, f"{why}: replaced by substitutes; {_PUBLISH}")
    number = None if written is None else _guess_written(present, dtype, written)
    if number is not None and written is not None:
        return _noted(number, written, texts)
    reason = f"text with {distinct} distinct values"
    if number_form(texts, plain=True):
        reason += '; they look like numbers: declare kind = "integer", or convert with pd.to_numeric'
    elif distinct == n and n > FEW:
        reason += ", no two alike: declare it identifier to leave it out"
    return ColumnSchema(name, Kind.CATEGORICAL.value, dtype, reason=reason)


def _written(texts: list[str], override: ColumnOverride, marked: bool) -> Written | None:
    """The declared form, or that in which all texts are dates or numbers."""
    if override.format is not None:
        return Written(override.format)
    if not texts or not (override.kind is None or Kind(override.kind).numeric):
        return None
    numeric = override.kind is not None and override.kind != Kind.DATETIME.value
    date = None if numeric else date_form(texts)
    return date or number_form(texts, override.decimal, plain=numeric or marked or override.decimal is not None)


def _guess_written(present: pd.Series, dtype: str, written: Written) -> ColumnSchema | None:
    """The schema of a column of numbers that are written as text; None if it is better seen as categories."""
    name, form = str(present.name), written.form
    values, missing = parse_text(present, Kind.MIXED.value, form)
    numbers = pd.Series(values[~missing], name=name)
    guess = _guess_number(numbers, dtype, Nature.REAL if numbers.dtype.kind == "f" else Nature.WHOLE)
    if not Kind(guess.kind).numeric:
        return None
    return replace(guess, dtype=f"{dtype}|{form}", reason=f"text, and every value is a number written as {form}")


def _noted(schema: ColumnSchema, written: Written, texts: Sequence[str]) -> ColumnSchema:
    marks = sorted(repr(text) for text in texts if text in MARKS)
    notes = [written.note] * bool(written.note) + [f"{', '.join(marks)} stands for missing"] * bool(marks)
    return replace(schema, reason="; ".join([schema.reason, *notes]))


def _pseudonym(series: pd.Series, dtype: str, reason: str) -> ColumnSchema:
    counts = series[series.notna().to_numpy(dtype=bool)].astype(object).value_counts()
    forms = common_forms([str(value) for value in counts.index], counts.tolist(), FEWEST_ROWS)
    return ColumnSchema(str(series.name), Kind.PSEUDONYM.value, dtype, forms=forms, reason=reason)


def _guess_number(present: pd.Series, dtype: str, nature: Nature) -> ColumnSchema:
    name, n = str(present.name), len(present)
    values = line_values(present, nature, np.zeros(n, dtype=bool))
    distinct, counts = np.unique(values, return_counts=True)
    why = _number_identifier(name, values, distinct) if nature is Nature.WHOLE and len(distinct) == n else None
    if why:
        return ColumnSchema(name, Kind.IDENTIFIER.value, dtype, reason=f"all {n} values differ, and {why}")
    whole_numbers = nature is Nature.WHOLE or bool((distinct == np.round(distinct)).all())
    personal = looks_personal(name, [f"{value:.0f}" for value in distinct.tolist()]) if whole_numbers else None
    if personal and nature is Nature.WHOLE:
        return _pseudonym(present, dtype, f"{personal}: replaced by substitutes; {_PUBLISH}")
    if personal:
        return ColumnSchema(name, Kind.IDENTIFIER.value, dtype, reason=f"{personal}: numbered; {_PUBLISH}")
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
        reason += _DAYS if len(distinct) > FEW and _are_days(distinct) else ""
    else:
        kind, reason = Kind.CONTINUOUS, "numbers" + ("" if decimals is None else f" with {decimals} decimal places")
    return ColumnSchema(name, kind.value, dtype, decimals=decimals, reason=reason)


_DAYS = (
    "; they look like dates such as 20200131, and synthetic ones may be no days: write them as 2020-01-31, or convert "
    'them in Python with pd.to_datetime(…, format="%Y%m%d")'
)


def _are_days(numbers: np.ndarray) -> bool:
    """Whether all whole numbers are days since 1900, written as %Y%m%d."""
    if numbers[0] < 19_000_101 or numbers[-1] > 21_001_231:
        return False
    texts = np.array([f"{number:.0f}" for number in numbers.tolist()], dtype=object)
    return parse_dates(texts, "%Y%m%d") is not None


def _decimals(series: pd.Series, nature: Nature) -> int | None:
    """Decimal places of a number column; None for all other columns."""
    if nature not in (Nature.WHOLE, Nature.REAL):
        return None
    present = series[series.notna().to_numpy(dtype=bool)]
    values = line_values(present, nature, np.zeros(len(present), dtype=bool))
    return grid_decimals(values, single=str(series.dtype).lower() in _SINGLE)


def _hinted(name: str) -> bool:
    parts = words_of(name)
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
    """The value that at least a fifth of the numbers are, in words; None if there is none."""
    share = counts.max() / counts.sum()
    if share < MASS:
        return None
    return f"numbers, and {share:.0%} of them are {_listed(distinct[[counts.argmax()]])}"


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
