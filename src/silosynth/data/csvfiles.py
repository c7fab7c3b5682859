"""CSV files, read strictly: what pandas would silently repair is an error that names the line."""

from __future__ import annotations

import codecs
import csv
import gzip
import mmap
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pandas as pd

from silosynth.core.errors import DataError, StorageError, nearest

_SEPARATORS = (",", ";", "\t", "|")
_SNIFFED = 20
_EXACT: dict[str, Any] = (
    {"float_precision": "round_trip"} if int(pd.__version__.split(".")[0]) < 3 else {}
)  # pandas 3 is always exact
_BYTE_ORDER = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_LEADING_ZERO = re.compile(rb"(?:^|[\n\r,;\t|\" ])[+-]?0\d")


MISSING = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
"""Texts that stand for missing values unless others are declared: those of pandas."""


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written; None where the file itself shows it.

    Attributes:
        separator: between fields; None for the one of ``, ; tab |`` that splits the header into most names.
        decimal: the decimal mark of fields that hold nothing but a number.
        encoding: None for UTF-8, for UTF-16 and UTF-32 with a byte order mark, and else, with a warning, for cp1252.
        missing: texts that stand for missing values, beside empty fields; None for `MISSING`.
    """

    separator: str | None = None
    decimal: str = "."
    encoding: str | None = None
    missing: Sequence[str] | None = None

    def check(self) -> None:
        """Check the settings.

        Raises:
            DataError: a separator is not one character, a decimal mark is neither point nor comma, or Python does not
                know the encoding.
        """
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '\r\n"'):
            rule = "A separator is one character, and no quote or line end"
            raise DataError(rule, self.separator, 'separator = ";"')
        if self.decimal not in (".", ","):
            raise DataError("The decimal mark is a point or a comma", self.decimal, 'Write decimal = ",", say.')
        if isinstance(self.missing, str):
            raise DataError("missing is a list of texts", self.missing, f'Write missing = ["{self.missing}"].')
        try:
            "".encode(self.encoding or "utf-8")
        except LookupError as error:
            known = ("utf-8", "utf-16", "latin-1", "cp1252")
            rule = "The encoding must be one that Python knows"
            raise DataError(rule, self.encoding, nearest(str(self.encoding), known)) from error


class EncodingWarning(UserWarning):
    """``files`` are not in UTF-8, and how their letters are read was guessed."""

    def __init__(self, *files: str) -> None:
        self.files = tuple(dict.fromkeys(files))
        are = "is not in UTF-8 and is" if len(self.files) == 1 else "are not in UTF-8 and are"
        super().__init__(
            f"{', '.join(self.files)} {are} read as cp1252 (Western European); if letters look wrong, declare the "
            'encoding: encoding = "latin-2", say'
        )


def read_csv(path: Path, form: CsvFormat) -> pd.DataFrame:
    """The table in a CSV file with a header; the file may be compressed (``.gz``).

    Raises:
        DataError: empty, not text in its encoding, names missing or repeated, or lines with other numbers of fields.
        StorageError: a compressed file is damaged.
    """
    with _unpacked(path) as plain:
        encoding = _encoding(plain, path.name, form)
        separator = form.separator or (_sniff(plain, encoding) if plain.stat().st_size else ",")
        names = _check_lines(plain, path.name, separator, encoding)
        options: dict[str, Any] = {"sep": separator, "decimal": form.decimal, "encoding": encoding, "index_col": False}
        options |= {"keep_default_na": False, "na_values": _marks(form)}
        try:
            frame = pd.read_csv(plain, low_memory=False, **_EXACT, **options)
        except (pd.errors.ParserError, ValueError) as error:
            raise DataError(
                f"{path.name} must be a CSV file", str(error)[:120], "Check quotes and separator."
            ) from error
        frame.columns = pd.Index(names)
        frame = _leading_zeros_kept(frame, plain, options)
        return unescaped(frame) if not encoding.startswith("utf-8") or _has(plain, _ESCAPED) else frame


def missing_marks(path: Path, form: CsvFormat) -> dict[str, dict[str, int]]:
    """Which texts were read as missing values, by column, and in how many rows; the empty text for empty fields."""
    with _unpacked(path) as plain, warnings.catch_warnings():
        warnings.simplefilter("ignore", EncodingWarning)  # said when the table was read
        encoding = _encoding(plain, path.name, form)
        separator = form.separator or _sniff(plain, encoding)
        texts = pd.read_csv(plain, index_col=False, sep=separator, encoding=encoding, dtype=str, keep_default_na=False)
        counts = {str(name): column[column.isin(_marks(form))].value_counts() for name, column in texts.items()}
    return {name: {str(mark): int(n) for mark, n in found.items()} for name, found in counts.items() if len(found)}


def _marks(form: CsvFormat) -> list[str]:
    return ["", *(MISSING if form.missing is None else form.missing)]


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """The file itself; of a compressed one, a decompressed copy as long as the block lasts."""
    if path.suffix.lower() != ".gz":
        yield path
        return
    with TemporaryDirectory(prefix="silosynth-") as folder:
        plain = Path(folder) / path.stem
        try:
            with gzip.open(path) as packed, open(plain, "wb") as file:
                shutil.copyfileobj(packed, file)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            rule = "The file must be a whole gzip file, as its name says"
            raise StorageError(rule, str(path), "Was it cut off?") from error
        yield plain


def _encoding(plain: Path, name: str, form: CsvFormat) -> str:
    """The declared encoding, or the one that the file's first bytes, or bytes that are not UTF-8, suggest."""
    form.check()
    if form.encoding is not None:
        return "utf-8-sig" if form.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else form.encoding
    with open(plain, "rb") as file:
        start = file.read(4)
    for mark, encoding in _BYTE_ORDER:
        if start.startswith(mark):
            return encoding
    if _decodes(plain, "utf-8"):
        return "utf-8-sig"
    if plain.read_bytes().decode("utf-8", errors="ignore").isascii() and _decodes(plain, "cp1252"):
        warnings.warn(EncodingWarning(name), stacklevel=2)
        return "cp1252"
    return "utf-8-sig"  # damaged: an error names the place


def _sniff(path: Path, encoding: str) -> str:
    """The separator that splits the first records into most fields; preferably the same number in each."""

    def fields(separator: str) -> tuple[bool, int, int]:
        first = [len(record) for _, record in islice(_records(path, path.name, separator, encoding), _SNIFFED)] or [0]
        return len(set(first)) == 1 and first[0] > 1, first[0], len(first)

    return max(_SEPARATORS, key=fields)


def _records(path: Path, name: str, separator: str, encoding: str) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields of the non-empty records."""
    try:
        with open(path, encoding=encoding, newline="") as lines:
            reader = csv.reader(lines, delimiter=separator)
            for fields in reader:
                if fields:
                    yield reader.line_num, fields
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} must be text in the encoding {encoding.removesuffix('-sig')}",
            f"byte offset {_bad_byte(path, encoding)}",
            'Convert the file to UTF-8, or declare its encoding: encoding = "latin-1", say.',
        ) from error
    except csv.Error as error:
        raise DataError(f"{name} must be a CSV file", str(error), "Is a quote left open?") from error


def _decodes(path: Path, encoding: str) -> bool:
    try:
        with open(path, encoding=encoding) as text:
            while text.read(1 << 20):
                pass
    except UnicodeDecodeError:
        return False
    return True


def _bad_byte(path: Path, encoding: str) -> int:
    try:
        path.read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        return error.start
    return -1


def _check_lines(path: Path, file_name: str, separator: str, encoding: str) -> list[str]:
    """Check the number of fields of every line; returns the names in the header."""
    records = _records(path, file_name, separator, encoding)
    _, names = next(records, (0, []))
    if not names:
        raise DataError("A CSV file needs a header and rows", f"{file_name} is empty", "Was the export cut off?")
    for place, name in enumerate(names, start=1):
        if not name.strip():
            raise DataError(
                "Every column needs a name in the first line",
                f"{file_name}: column {place} has none",
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
                f"Every line of {file_name} has as many fields as the header, {len(names)}",
                f"line {line} has {len(fields)}",
                'Put fields that hold the separator into quotes, or declare it: separator = ";", say.',
            )
    if rows == 0:
        raise DataError("A table needs at least one row", f"{file_name} holds a header only", "Was the export cut off?")
    return names


def _leading_zeros_kept(frame: pd.DataFrame, path: Path, options: dict[str, Any]) -> pd.DataFrame:
    """The frame with columns of numbers such as 00123 (postcodes, account numbers) read again as text."""
    suspects = [
        i
        for i, dtype in enumerate(frame.dtypes)
        if pd.api.types.is_integer_dtype(dtype) or pd.api.types.is_float_dtype(dtype)
    ]
    if not suspects or not (options["encoding"].startswith(("utf-16", "utf-32")) or _has(path, _LEADING_ZERO)):
        return frame
    texts = pd.read_csv(path, dtype=str, usecols=suspects, **options)
    for i, place in enumerate(suspects):
        column = texts.iloc[:, i]
        if column.str.fullmatch(r"\s*[+-]?0\d+\s*", na=False).any():
            frame[frame.columns[place]] = column
    return frame


def _has(path: Path, pattern: re.Pattern[bytes]) -> bool:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return pattern.search(text) is not None


# Formulas. A spreadsheet takes a text that begins with one of these signs for a formula, and runs it; with an
# apostrophe before it, it is text. `escaped` writes one apostrophe more, `unescaped` takes one away: files that
# silosynth has written are read as they were.

_SIGNS = "=+\\-@\t\r\n＝＋－＠"
_FORMULA = re.compile(rf"'*[{_SIGNS}].*\w", re.DOTALL)
_NUMBER = re.compile(r"'*[+-]?(\d[\d.,]*|[.,]\d+)([eE][+-]?\d+)?\s*%?\s*")
_ESCAPED = re.compile(rb"'[=+\-@\t\r\n]|'\xef\xbc")


class FormulaWarning(UserWarning):
    """Texts that a spreadsheet would run as formulas were written with an apostrophe before them."""


def quoting(frame: pd.DataFrame) -> Literal[0, 2]:
    """Which cells to quote: Python leaves a carriage return as it is, which begins a new line for everybody else."""
    texts = (column for _, column in frame.items() if not pd.api.types.is_numeric_dtype(column.dtype))
    found = any("\r" in text for column in texts for text in column.dropna().unique() if isinstance(text, str))
    return csv.QUOTE_NONNUMERIC if found else csv.QUOTE_MINIMAL


def escaped(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """A frame without texts that are formulas to a spreadsheet, and the names of the columns that had any."""
    return _retold(frame, lambda text: "'" + text)


def unescaped(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame that `escaped` was given."""
    return _retold(frame, lambda text: text.removeprefix("'"))[0]


def _formula(text: object) -> bool:
    return isinstance(text, str) and bool(_FORMULA.match(text)) and not _NUMBER.fullmatch(text)


def _retold(frame: pd.DataFrame, change: Callable[[str], str]) -> tuple[pd.DataFrame, list[str]]:
    """The frame with another text for each formula, in cells and names, and which columns have one."""
    made, changed = frame.copy(deep=False), dict[str, None]()
    for name, column in frame.items():
        if pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_datetime64_any_dtype(column.dtype):
            continue
        texts = {text: change(text) for text in column.dropna().unique() if _formula(text)}
        if texts:
            made[name] = [texts[cell] if _formula(cell) else cell for cell in column.astype(object)]
            changed[str(name)] = None
    changed |= dict.fromkeys(str(name) for name in frame.columns if _formula(name))
    made.columns = pd.Index([change(name) if _formula(name) else name for name in frame.columns])
    return (made if changed else frame), list(changed)
