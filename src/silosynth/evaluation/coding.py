"""Frames → columns of numbers and codes, coded alike in all tables. All figures are computed from these.

The *training* table alone decides on kinds, and they are those that generators are fitted with: inferred as
`silosynth.simulate` and ``silosynth inspect`` do (`data.infer`), unless declared. Categories and booleans are
categorical, and so are integers with at most `MAX_INTEGER_LEVELS` levels; other numbers and instants, also those that
are written as text, are numeric. Identifiers and pseudonyms are left out. A column that no generator could be fitted
on, such as one of mixed types, is taken by its dtype.

Legend: n rows, d columns, K levels of one column (code K stands for missing).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from silosynth.core.errors import DataError, SchemaError, nearest
from silosynth.core.schema import UNMODELLED, ColumnSchema, Kind, Schema, Table
from silosynth.data.dtypes import detail, spell
from silosynth.data.frames import encode, to_pandas, to_table
from silosynth.data.infer import infer, without_marks
from silosynth.data.texts import is_date_form, is_number_form
from silosynth.evaluation.scores import ColumnKind, Floats, Ints

ValueType = Literal["number", "instant", "truth", "text"]  # of a frame's column

MAX_INTEGER_LEVELS = 20
BY_DTYPE = ""  # in place of a kind
LARGEST = 1e60  # ratios of squares of larger numbers overflow
SMALLEST = 1 / LARGEST  # smaller numbers count as 0

_DURATIONS = {"timedelta", "timedelta64"}
_NUMBERS = {"integer", "floating", "mixed-integer-float", "decimal", *_DURATIONS}
_WORDS = {"number": "numbers", "instant": "instants", "truth": "truth values", "text": "text"}
_INSTANTS = {"date", "datetime", "datetime64"}


@dataclass(frozen=True, slots=True)
class Field:
    """One column, as all tables have it."""

    name: str
    kind: ColumnKind
    levels: tuple[str, ...] = ()  # labels of the codes 0..K-1, over all tables, sorted
    order: tuple[str, ...] = ()  # of levels that have one, the training table's; shown, and not used by any figure

    @property
    def categorical(self) -> bool:
        """Whether values are level codes."""
        return self.kind == "categorical"


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """One table: per column n float64 numbers (NaN: missing), or n codes 0..K-1 (K: missing)."""

    fields: tuple[Field, ...]
    values: tuple[NDArray[Any], ...]

    def __len__(self) -> int:
        return len(self.values[0])

    def take(self, rows: NDArray[Any]) -> Coded:
        """The table restricted to `rows` (indices or a mask)."""
        return Coded(self.fields, tuple(v[rows] for v in self.values))

    def missing(self, j: int) -> NDArray[np.bool_]:
        """(n,) whether the value of column `j` is missing."""
        field, values = self.fields[j], self.values[j]
        return np.asarray(values == len(field.levels) if field.categorical else np.isnan(values))

    def sample(self, at_most: int, rng: np.random.Generator) -> Coded:
        """At most `at_most` rows, drawn without replacement."""
        return self if len(self) <= at_most else self.take(np.sort(rng.choice(len(self), at_most, replace=False)))


def schema_of(frame: Any, declared: Schema | Mapping[str, Any] | None = None, name: str = "training") -> Schema:
    """The kinds of the columns of a table: declared, or inferred.

    Args:
        frame: the table.
        declared: kinds by column, as for `silosynth.simulate`; or the schema of a federation or a model, of which only
            the table's columns count.
        name: what to call the table in errors.

    Raises:
        DataError: it is no table, or is empty.
        SchemaError: a declared kind does not fit its column.
    """
    table = _frame(frame, name)
    if isinstance(declared, Schema):
        known = {column.name: column for column in declared.columns}
        return Schema(tuple(_column_of(table[c], known.get(c)) for c in table.columns))
    rules = dict(declared or {})
    columns = [_column_schema(table[[c]], {c: rules.pop(c)} if c in rules else {}) for c in table.columns]
    if rules:
        infer(table, rules)  # which refuses names that the table lacks
    return Schema(tuple(columns))


def _column_of(series: pd.Series[Any], known: ColumnSchema | None) -> ColumnSchema:
    """A column of the kind that a schema knows for it; inferred where the schema has none."""
    if known is not None and _settled(series, known):
        return known
    rules = {} if known is None or known.kind == BY_DTYPE else {known.name: _rules(known)}
    column = _column_schema(series.to_frame(), rules)
    return column if known is None else replace(column, reason=known.reason or column.reason)


def _settled(series: pd.Series[Any], known: ColumnSchema) -> bool:
    """Whether the dtype alone says that all values are of the known kind, which spares a look at each of them."""
    if known.kind == BY_DTYPE or spell(series) != known.dtype:
        return False
    sure = {Kind.BOOLEAN.value: types.is_bool_dtype, Kind.INTEGER.value: types.is_integer_dtype}
    return known.kind not in sure or bool(sure[known.kind](series.dtype))


def _rules(column: ColumnSchema) -> dict[str, Any]:
    """Kind, form and missing marks of a column; a form of other text, such as a pseudonym's, plays no part."""
    form = detail(column.dtype)
    written = Kind(column.kind).numeric and (is_date_form(form) or is_number_form(form))
    return {"kind": column.kind, "missing": column.missing} | ({"format": form} if written else {})


def unmarked(table: Any, schema: Schema) -> pd.DataFrame:
    """The table with missing values instead of what is declared to stand for them; it may lack columns."""
    frame = to_pandas(table)
    marks = {column.name: column.missing for column in schema.columns if column.name in frame.columns}
    return without_marks(frame, {name: {"missing": them} for name, them in marks.items() if them})


def plain_table(table: Any, schema: Schema) -> tuple[Table, Schema]:
    """The columns that are modelled, as tables hold them, of the kinds of ``schema`` where values fit these."""
    frame, known = unmarked(table, schema), {column.name: column for column in schema.columns}
    kinds = [_fitting(frame[name], known[name]) for name in frame.columns if known[name].kind not in UNMODELLED]
    own = Schema(tuple(kind for kind in kinds if kind.kind != BY_DTYPE))
    return to_table(frame, own), own


def _fitting(series: pd.Series[Any], known: ColumnSchema) -> ColumnSchema:
    try:
        return _column_of(series, known)
    except SchemaError:  # a synthetic table may hold other values than the training table
        return _column_schema(series.to_frame(), {})


def _column_schema(column: pd.DataFrame, declared: Mapping[str, Any]) -> ColumnSchema:
    try:
        return infer(column, declared).columns[0]
    except DataError:
        if declared:
            raise
        (name,) = column.columns
        return ColumnSchema(name, BY_DTYPE, str(column[name].dtype), reason="no generator can be fitted on it")


def code_tables(frames: Mapping[str, Any], schema: Schema | Mapping[str, Any] | None = None) -> dict[str, Coded]:
    """Code all frames alike. The first is the training table, which decides on columns and (`schema_of`) on kinds.

    What is declared to stand for missing values is missing in all tables.

    Raises:
        DataError: a table is empty, columns differ, none is left without identifiers, or a column's values are not
            comparable with the training table's.
        SchemaError: a declared kind does not fit its column.
    """
    tables = {name: _frame(frame, name) for name, frame in frames.items()}
    first = next(iter(tables))
    declared = schema_of(tables[first], schema, first)
    tables = {name: unmarked(table, declared) for name, table in tables.items()}
    kinds = {column.name: column for column in declared.columns}
    left_out = {name for name, column in kinds.items() if column.kind in UNMODELLED}
    names = [name for name in tables[first].columns if name not in left_out]
    if not names:
        raise DataError(
            f"The {first} table needs a column that is neither an identifier nor a pseudonym",
            sorted(left_out),
            "Declare another kind.",
        )
    for name, table in tables.items():
        _check_columns(names, [c for c in table.columns if c not in left_out], first, name)
    coded = [_code_column(kinds[c], {name: table[c] for name, table in tables.items()}) for c in names]
    fields = tuple(field for field, _ in coded)
    return {name: Coded(fields, tuple(columns[name] for _, columns in coded)) for name in tables}


def check_target(target: str, fields: Sequence[Field]) -> int:
    """The position of the target column. Raises DataError, which names the nearest column."""
    names = [f.name for f in fields]
    if target not in names:
        raise DataError("The target must be a column of the tables", target, nearest(target, names))
    return names.index(target)


def check_silos(silos: Mapping[str, Iterable[str]], fields: Sequence[Field]) -> tuple[str, ...]:
    """Each column's silo, in column order. Raises DataError unless each column has exactly one silo."""
    names = [f.name for f in fields]
    owner: dict[str, str] = {}
    for silo, columns in silos.items():
        if isinstance(columns, str):
            raise DataError("A silo is given as a list of its columns", columns, f"Write {{{silo!r}: [{columns!r}]}}.")
        for column in columns:
            if column not in names:
                raise DataError(
                    f"Silo {silo!r} names a column that the tables lack", column, nearest(str(column), names)
                )
            if column in owner:
                raise DataError(f"A column belongs to one silo, {owner[column]!r} and {silo!r} both name it", column)
            owner[column] = silo
    unowned = [name for name in names if name not in owner]
    if unowned:
        raise DataError("Every column needs a silo", unowned, "Add them to `silos`, or leave `silos` out.")
    return tuple(owner[name] for name in names)


def row_keys(*tables: Coded) -> list[Ints]:
    """A number from 0 for each row of the tables, the same for rows equal in every column; missing equals missing."""
    keys = np.zeros(sum(map(len, tables)), np.int64)
    for columns in zip(*(table.values for table in tables), strict=True):
        codes, levels = pd.factorize(np.concatenate(columns), use_na_sentinel=False)
        keys, _ = pd.factorize(keys * len(levels) + codes)
    return np.split(keys, np.cumsum([len(table) for table in tables])[:-1])


def row_counts(*tables: Coded) -> Ints:
    """How often each distinct row (columns) occurs in each of the tables (rows)."""
    keys = row_keys(*tables)
    size = 1 + int(max(own.max() for own in keys))
    return np.stack([np.bincount(own, minlength=size) for own in keys])


def cut(values: Floats, real: Floats, bins: int) -> Ints:
    """Codes of equal-width bins of the real range: 0..bins-1, outside values in the end bins; `bins` for missing."""
    present = real[~np.isnan(real)]
    low, high = (present.min(), present.max()) if len(present) else (0.0, 0.0)
    width = (high - low) / bins
    if not width > 0:
        return np.where(np.isnan(values), bins, 0).astype(np.int64)
    with np.errstate(over="ignore"):  # far outside a tiny range; clipped below
        scaled = np.clip((values - low) / width, 0, bins - 1)
    return np.where(np.isnan(values), bins, np.nan_to_num(scaled)).astype(np.int64)


def line(values: Floats, ddof: int = 0) -> tuple[float, float]:
    """Mean and standard deviation of the present values; 0 and 1 where they have none, 1 where all are equal."""
    present = values[~np.isnan(values)]
    if len(present) <= ddof:
        return 0.0, 1.0
    return float(present.mean()), float(present.std(ddof=ddof)) or 1.0


def standardised(values: Floats) -> Floats:
    """Values with mean 0 and deviation 1 (0 if constant) where present, so that sums of squares lose no digits."""
    mean, deviation = line(values)
    return np.asarray((values - mean) / deviation)


def _frame(frame: Any, name: str) -> pd.DataFrame:
    try:
        return to_pandas(frame)
    except DataError as error:
        raise DataError(f"The {name} table cannot be evaluated: {error}") from error


def _check_columns(names: list[str], others: list[str], first: str, name: str) -> None:
    lacking = [c for c in names if c not in set(others)]
    extra = [c for c in others if c not in set(names)]
    if lacking:
        raise DataError(
            f"The {name} table lacks columns that the {first} table has", lacking, nearest(lacking[0], others)
        )
    if extra:
        raise DataError(f"The {name} table has columns that the {first} table lacks", extra, "Drop them first.")


def _code_column(column: ColumnSchema, series: Mapping[str, pd.Series[Any]]) -> tuple[Field, dict[str, NDArray[Any]]]:
    name, first = column.name, next(iter(series.values()))
    value_type = _value_type(first, name)
    kind = _kind(first, value_type, column.kind)
    if kind == "categorical" and value_type in ("text", "instant"):
        return _code_texts(name, series)
    if value_type == "text":
        return Field(name, kind), {t: _written(s, column, t) for t, s in series.items()}
    numbers = {t: _numbers(s, value_type, name, t) for t, s in series.items()}
    if kind != "categorical":
        return Field(name, kind), dict(numbers)
    return _code_numbers(name, numbers, value_type == "truth")


def _value_type(series: pd.Series[Any], name: str) -> ValueType:
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return _value_type(pd.Series(dtype.categories), name)
    if types.is_bool_dtype(dtype):
        return "truth"
    if types.is_complex_dtype(dtype):
        raise DataError(f"Column {name!r} holds complex numbers", str(dtype), "Split it into two columns.")
    if types.is_numeric_dtype(dtype) or types.is_timedelta64_dtype(dtype):
        return "number"
    if types.is_datetime64_any_dtype(dtype):
        return "instant"
    inferred = types.infer_dtype(series, skipna=True)
    if inferred in _NUMBERS:
        return "number"
    if inferred in _INSTANTS:
        return "instant"
    return "truth" if inferred == "boolean" else "text"


def _kind(series: pd.Series[Any], value_type: ValueType, kind: str) -> ColumnKind:
    """How a column of a kind (a value of `Kind`, or `BY_DTYPE`) is coded."""
    if kind in (Kind.CATEGORICAL.value, Kind.BOOLEAN.value):
        return "numeric" if value_type == "number" and series.isna().all() else "categorical"
    if value_type == "number" and _lasting(series):
        return "duration"
    if value_type == "number":
        few = kind != Kind.CONTINUOUS.value and series.nunique() <= MAX_INTEGER_LEVELS
        return "categorical" if few and (kind == Kind.INTEGER.value or _integer(series)) else "numeric"
    if kind == BY_DTYPE:
        return "datetime" if value_type == "instant" else "categorical"
    return "datetime" if kind == Kind.DATETIME.value else "numeric"


def _lasting(series: pd.Series[Any]) -> bool:
    """Whether values are durations."""
    return types.is_timedelta64_dtype(series.dtype) or types.infer_dtype(series, skipna=True) in _DURATIONS


def _integer(series: pd.Series[Any]) -> bool:
    if types.is_integer_dtype(series.dtype):
        return True
    if types.is_object_dtype(series.dtype):
        return types.infer_dtype(series, skipna=True) == "integer"
    present = series.dropna()
    return 0 < len(present) < len(series) and bool((present == np.floor(present.to_numpy(np.float64))).all())


def _numbers(series: pd.Series[Any], value_type: ValueType, name: str, table: str) -> Floats:
    """Values as float64 (instants: nanoseconds since 1970), NaN where missing."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.cat.categories.dtype if not series.hasnans else object)
    try:
        values = _instants(series) if value_type == "instant" else _plain_numbers(series, value_type)
    except (TypeError, ValueError, OverflowError) as error:
        rule = f"Column {name!r} holds {_WORDS[value_type]} in the training table; the {table} table must, too"
        raise DataError(rule, str(series.dtype), "Give the column the same dtype in all tables.") from error
    with np.errstate(invalid="ignore"):
        wild = np.abs(values) > LARGEST
    if wild.any():
        raise DataError(
            f"Column {name!r} of the {table} table must hold finite numbers below {LARGEST:g}",
            f"{int(wild.sum())} that are not",
            "Replace infinities by missing values, or clip them.",
        )
    return np.where(np.abs(values) < SMALLEST, 0.0, values)


def _written(series: pd.Series[Any], column: ColumnSchema, table: str) -> Floats:
    """Instants or numbers that the training table has as text; in another table they may be values already."""
    try:
        read = encode(series, column)
    except DataError as error:
        rule = f"Column {column.name!r} of the {table} table must be written as in the training table: {error.rule}"
        raise DataError(rule, error.value, f'Or declare it: schema={{"{column.name}": "categorical"}}.') from error
    return np.where(read.missing.numpy(), np.nan, read.values.numpy().astype(np.float64))


def _plain_numbers(series: pd.Series[Any], value_type: ValueType) -> Floats:
    if types.is_datetime64_any_dtype(series.dtype):
        raise TypeError("instants are no numbers")
    if _lasting(series):
        return np.asarray(pd.to_timedelta(series).dt.total_seconds().to_numpy(np.float64) * 1e9)
    if value_type == "truth" and not types.is_bool_dtype(series.dtype):
        series = series.map(_truth)
    values = pd.to_numeric(series)
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)


def _truth(value: Any) -> Any:
    return {"true": 1.0, "false": 0.0}.get(value.lower(), value) if isinstance(value, str) else value


def _instants(series: pd.Series[Any]) -> Floats:
    if types.is_numeric_dtype(series.dtype) and not series.isna().all():
        raise TypeError("numbers are no instants")
    try:
        moments = pd.to_datetime(series, utc=True).dt.as_unit("us")  # microseconds hold years beyond 2262
    except pd.errors.OutOfBoundsDatetime:  # pandas 2 reads objects as nanoseconds
        moments = series.astype("datetime64[us]")
    values = moments.astype("int64").to_numpy(np.float64) * 1000.0
    return np.where(moments.isna().to_numpy(), np.nan, values)


def _code_numbers(name: str, numbers: Mapping[str, Floats], truth: bool) -> tuple[Field, dict[str, NDArray[Any]]]:
    """Codes of numeric levels: 3, 3.0 and True == 1 are equal whatever the dtype."""
    present = [v[~np.isnan(v)] for v in numbers.values()]
    levels = np.unique(np.concatenate(present)) + 0.0
    labels = tuple(_label(v, truth) for v in levels.tolist())
    codes = {t: np.where(np.isnan(v), len(levels), np.searchsorted(levels, v)) for t, v in numbers.items()}
    return Field(name, "categorical", labels, labels), {t: c.astype(np.int64) for t, c in codes.items()}


def _label(value: float, truth: bool) -> str:
    if truth and value in (0.0, 1.0):
        return str(bool(value))
    return str(int(value)) if value.is_integer() else repr(value)


def _code_texts(name: str, series: Mapping[str, pd.Series[Any]]) -> tuple[Field, dict[str, NDArray[Any]]]:
    raw = {t: _factorise(s, name, t) for t, s in series.items()}
    labels = sorted({label for _, own in raw.values() for label in own})
    place = {label: i for i, label in enumerate(labels)}
    codes = {
        t: np.array([*(place[x] for x in own), len(labels)], np.int64)[own_codes] for t, (own_codes, own) in raw.items()
    }
    return Field(name, "categorical", tuple(labels), _order(next(iter(series.values())).dtype, labels)), dict(codes)


_NUMBERED = re.compile(
    r"(?:(?P<below><=?|≤|under |up to )|(?P<above>>=?|≥|over ))?\s*(?P<number>-?\d+(?:\.\d+)?)", re.I
)


def _order(dtype: Any, labels: Sequence[str]) -> tuple[str, ...]:
    """Levels in order: that of an ordered dtype, or of the numbers they begin with ("<18", "18-29"), if all do."""
    if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
        return tuple(map(str, dtype.categories))
    found = {label: _NUMBERED.match(label) for label in labels if not label.startswith("(")}  # "(rare)" has no place
    keys = {x: (float(m["number"]), bool(m["above"]) - bool(m["below"])) for x, m in found.items() if m}
    return tuple(sorted(keys, key=lambda label: keys[label])) if len(keys) == len(found) else ()


def _factorise(series: pd.Series[Any], name: str, table: str) -> tuple[Ints, list[str]]:
    """Codes of labels, and the labels; -1, which indexes the last one, for missing."""
    try:
        codes, uniques = pd.factorize(series)
    except TypeError as error:
        rule = f"Column {name!r} of the {table} table must hold plain values (text, numbers, booleans, instants)"
        raise DataError(rule, str(series.dtype), "Lists, dicts and arrays need columns of their own.") from error
    labels = [str(value) for value in uniques]
    if any(types.is_list_like(value) for value in uniques):
        raise DataError(
            f"Column {name!r} of the {table} table must hold plain values, not tuples or sets", str(series.dtype)
        )
    return np.asarray(codes, np.int64), labels
