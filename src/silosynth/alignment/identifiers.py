"""Identifiers as bytes: the same identifier is the same bytes in every silo, whatever its dtype there.

* Integers are written as digits: 7, 7.0 and the text "7" are equal. Other numbers are written as Python writes floats,
  7.5; they match if silos store them with the same precision.
* Text is normalised to Unicode NFC and stripped of white space at both ends. Otherwise it is compared exactly: upper
  and lower case differ, and so do "007" and 7, or "7.0" and 7.0.
* Dates and times are in ISO form: 2020-01-31 for midnight, else 2020-01-31T08:30:00, with as many decimals
  as needed. Those with a time zone are in UTC, always with a time, and end in Z. Text that holds a date in a known
  format counts as a date if the column is declared as one.
* Booleans are true and false.
* Several columns are framed one after the other, so that ("ab", "c") is not ("a", "bc"). Their order matters, their
  names do not.
* If any part is missing or empty, the row has no identifier.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from silosynth.core.errors import DataError
from silosynth.core.schema import Column
from silosynth.privacy.sealed import framed

_EPOCH = datetime(1970, 1, 1)
_INSTANTS = ("datetime64", "timestamp", "date32", "date64")
_DETAILS = ("date", "datetime")  # of dtypes, after "|"
_DURATIONS = ("timedelta64", "duration")
_FLOATS = ("float", "halffloat", "double", "decimal")
_PRECISE = {"float16": 11, "halffloat": 11, "float32": 24, "float[": 24}  # bits; of other floats 53


@dataclass(frozen=True)
class Usable:
    """The rows of a silo that can be aligned.

    Attributes:
        rows: positions of rows whose identifier no other row has.
        identifiers: of these rows.
        duplicated: number of rows that share their identifier with another row.
        empty: number of rows without an identifier.
    """

    rows: Sequence[int]
    identifiers: Sequence[bytes]
    duplicated: int
    empty: int


def usable(identifiers: Sequence[bytes | None]) -> Usable:
    """Leave out rows without an identifier, and all rows with a duplicated one, which is ambiguous."""
    counts = Counter(identifiers)
    empty = counts.pop(None, 0)
    unique = [(row, name) for row, name in enumerate(identifiers) if name is not None and counts[name] == 1]
    rows, kept = [row for row, _ in unique], [name for _, name in unique]
    return Usable(rows, kept, len(identifiers) - empty - len(rows), empty)


def canonical(columns: Sequence[Column]) -> list[bytes | None]:
    """The identifiers of a table's rows, from one column or several; None for an empty one.

    Raises:
        DataError: there is no column; or one holds durations, or floats so large that neighbouring integers are the
            same float. Names the column, but none of its values.
    """
    if not columns:
        raise DataError("Rows are linked by at least one identifier column", "none", "Name one that all silos hold.")
    parts = [_texts(column) for column in columns]
    return [_framed(row) for row in zip(*parts, strict=True)]


def _framed(parts: tuple[str | None, ...]) -> bytes | None:
    present = [part for part in parts if part]
    return framed(*present) if len(present) == len(parts) else None


def _texts(column: Column) -> list[str | None]:
    """Each value of a column as text; None where it is missing."""
    spell = _speller(column)
    values, missing = column.values.tolist(), column.missing.tolist()
    if column.levels is None:
        return [None if absent else spell(value) for value, absent in zip(values, missing, strict=True)]
    levels = [spell(level) for level in column.levels]
    return [None if absent else levels[code] for code, absent in zip(values, missing, strict=True)]


def _speller(column: Column) -> Callable[[str | int | float | bool], str]:
    base, _, detail = column.dtype.partition("|")
    if base.startswith(_DURATIONS):
        raise DataError("Durations cannot identify rows", column.name, "Name another column, or convert it to numbers.")
    is_time = base.startswith(_INSTANTS) or detail in _DETAILS or detail.startswith("%")
    if is_time:
        return partial(_spell_instant, aware="," in base)
    return partial(_spell, column)


def _spell(column: Column, value: str | int | float | bool) -> str:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value).strip()
    if isinstance(value, bool):
        return "true" if value else "false"
    if abs(value) >= _largest(column.dtype, value):
        raise DataError(
            f"Identifiers in column {column.name!r} must be stored exactly; some this large are the same float",
            column.dtype,
            "Read the column as text, or as integers (Int64 allows missing values).",
        )
    return str(int(value)) if value == int(value) else repr(value)


def _largest(dtype: str, value: int | float) -> float:
    """Integers below this are stored exactly. Integers in tensors may have been floats."""
    name = (dtype.partition("|")[2] or dtype).lower()
    if isinstance(value, int) and not name.startswith(_FLOATS):
        return math.inf
    return 2.0 ** next((bits for start, bits in _PRECISE.items() if name.startswith(start)), 53)


def _spell_instant(nanoseconds: str | int | float | bool, aware: bool) -> str:
    assert isinstance(nanoseconds, int)
    seconds, fraction = divmod(nanoseconds, 10**9)
    text = (_EPOCH + timedelta(seconds=seconds)).isoformat()
    if fraction:
        text += f".{fraction:09d}".rstrip("0")
    return text + "Z" if aware else text.removesuffix("T00:00:00")
