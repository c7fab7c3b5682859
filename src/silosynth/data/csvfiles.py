"""CSV files, read strictly: what pandas would silently repair is an error that names the line."""

from __future__ import annotations

import csv
import mmap
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pandas as pd

from silosynth.core.errors import DataError, nearest

_SEPARATORS = (",", ";", "\t", "|")
_SNIFFED = 20
_EXACT = {"float_precision": "round_trip"} if int(pd.__version__.split(".")[0]) < 3 else {}  # pandas 3 is always exact
_LEADING_ZERO = re.compile(rb"(?:^|[\n\r,;\t|\" ])[+-]?0\d")


def read_csv(path: Path, separator: str | None, decimal: str, encoding: str) -> pd.DataFrame:
    """The table in a CSV file with a header.

    Raises:
        DataError: empty, not text in ``encoding``, names missing or repeated, or lines with other numbers of fields.
    """
    encoding = _checked_encoding(encoding)
    separator = separator or (_sniff(path, encoding) if path.stat().st_size else ",")
    names = _check_lines(path, separator, encoding)
    options = {"sep": separator, "decimal": decimal, "encoding": encoding}
    try:
        frame = pd.read_csv(path, index_col=False, low_memory=False, **_EXACT, **options)  # type: ignore[call-overload]
    except (pd.errors.ParserError, ValueError) as error:
        raise DataError(f"{path.name} must be a CSV file", str(error)[:120], "Check quotes and separator.") from error
    frame.columns = pd.Index(names)
    return _leading_zeros_kept(frame, path, options)


def _checked_encoding(encoding: str) -> str:
    try:
        "".encode(encoding)
    except LookupError as error:
        known = ("utf-8", "utf-16", "latin-1", "cp1252")
        raise DataError("The encoding must be one that Python knows", encoding, nearest(encoding, known)) from error
    return "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding


def _sniff(path: Path, encoding: str) -> str:
    """The separator that splits the first records into most fields; preferably the same number in each."""

    def fields(separator: str) -> tuple[bool, int, int]:
        first = [len(record) for _, record in islice(_records(path, separator, encoding), _SNIFFED)] or [0]
        return len(set(first)) == 1 and first[0] > 1, first[0], len(first)

    return max(_SEPARATORS, key=fields)


def _records(path: Path, separator: str, encoding: str) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields of the non-empty records."""
    try:
        with open(path, encoding=encoding, newline="") as lines:
            reader = csv.reader(lines, delimiter=separator)
            for fields in reader:
                if fields:
                    yield reader.line_num, fields
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path.name} must be text in the encoding {encoding.removesuffix('-sig')}",
            f"byte offset {_bad_byte(path, encoding)}",
            "Convert the file to UTF-8, or pass its encoding: encoding='latin-1', for example.",
        ) from error
    except csv.Error as error:
        raise DataError(f"{path.name} must be a CSV file", str(error), "Is a quote left open?") from error


def _bad_byte(path: Path, encoding: str) -> int:
    try:
        path.read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        return error.start
    return -1


def _check_lines(path: Path, separator: str, encoding: str) -> list[str]:
    """Check the number of fields of every line; returns the names in the header."""
    records = _records(path, separator, encoding)
    _, names = next(records, (0, []))
    if not names:
        raise DataError("A CSV file needs a header and rows", f"{path.name} is empty", "Was the export cut off?")
    for place, name in enumerate(names, start=1):
        if not name.strip():
            raise DataError(
                "Every column needs a name in the first line",
                f"{path.name}: column {place} has none",
                "Write one; with pandas, write without index: to_csv(…, index=False).",
            )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            "Every column needs a name of its own", ", ".join(repeated), "Rename one of them in the header."
        )
    rows = 0
    for line, fields in records:
        rows += 1
        if len(fields) != len(names):
            raise DataError(
                f"Every line of {path.name} has as many fields as the header, {len(names)}",
                f"line {line} has {len(fields)}",
                "Put fields that hold the separator into quotes, or pass separator=.",
            )
    if rows == 0:
        raise DataError("A table needs at least one row", f"{path.name} holds a header only", "Was the export cut off?")
    return names


def _leading_zeros_kept(frame: pd.DataFrame, path: Path, options: dict[str, str]) -> pd.DataFrame:
    """The frame with columns of numbers such as 00123 (postcodes, account numbers) read again as text."""
    suspects = [
        i
        for i, dtype in enumerate(frame.dtypes)
        if pd.api.types.is_integer_dtype(dtype) or pd.api.types.is_float_dtype(dtype)
    ]
    if not suspects or not _has_leading_zeros(path):
        return frame
    texts = pd.read_csv(path, index_col=False, dtype=str, usecols=suspects, **options)  # type: ignore[call-overload]
    for i, place in enumerate(suspects):
        column = texts.iloc[:, i]
        if column.str.fullmatch(r"\s*[+-]?0\d+\s*", na=False).any():
            frame[frame.columns[place]] = column
    return frame


def _has_leading_zeros(path: Path) -> bool:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return _LEADING_ZERO.search(text) is not None
