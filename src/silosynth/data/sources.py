"""Tables in files (CSV, Parquet, Arrow, Excel), and `Source`: where a silo's rows are, in a file or a database.

A file is written completely or not at all. Credentials of databases never leave `Source`.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.dataset import dataset

from silosynth.core.errors import ConfigError, DataError, StorageError, UnavailableError, nearest
from silosynth.core.files import existing, replacing, storage_error
from silosynth.data.csvfiles import CsvFormat, FormulaWarning, escaped, missing_marks, quoting, read_csv
from silosynth.data.databases import NAMES, Address, Selection, address, read_duckdb, read_sqlite, statement, table_name
from silosynth.data.frames import Frame, from_arrow, to_pandas
from silosynth.data.postgresql import Login, read_postgresql

_CSV, _PARQUET, _ARROW = (".csv", ".tsv", ".txt"), (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
_PACKED = (".csv.gz", ".tsv.gz", ".txt.gz")
SUFFIXES = (*_CSV, *_PACKED, *_PARQUET, *_ARROW)
"""File name endings that can be read and written."""
_READABLE = (*SUFFIXES, ".xlsx")


def read(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    separator: str | None = None,
    decimal: str = ".",
    encoding: str | None = None,
    missing: Sequence[str] | None = None,
) -> pd.DataFrame:
    """The table in a file, or only its ``columns``, in the file's order.

    A folder of Parquet files is one table, and so is an Excel workbook of one sheet. Numbers with leading zeros
    (``00123``) of CSV files stay text. Integers of Parquet and Arrow files stay integers (``Int64``) if some are
    missing.

    Args:
        path: the file; its ending says what it is.
        columns: names of columns.
        separator, decimal, encoding, missing: of CSV files, see `CsvFormat`. The separator and UTF-8, UTF-16 and
            Western European encodings are recognised.

    Raises:
        StorageError: no such file, or it is damaged.
        DataError: the ending is unknown, the contents are no table, a column is missing, or an argument does not apply.
        UnavailableError: an Excel workbook needs openpyxl, which is not installed.
    """
    path = _found(path)
    form = CsvFormat(separator, decimal, encoding, missing)
    suffix = _suffix(path, _READABLE)
    if form != CsvFormat() and suffix not in (*_CSV, *_PACKED):
        rule = "separator, decimal, encoding and missing say how CSV files are written"
        raise DataError(rule, path.name, "Leave them out; missing can be declared for each column in its schema.")
    try:
        if suffix in (*_CSV, *_PACKED):
            frame = read_csv(path, form)
        elif suffix == ".xlsx":
            frame = _read_workbook(path)
        else:
            frame = _columnar(_read_parquet if suffix in _PARQUET else _read_arrow, path)
    except OSError as error:
        raise storage_error(error, "read", path) from error
    frame = to_pandas(frame)
    return frame if columns is None else frame[_in_file_order(columns, list(frame.columns))]


def missing_texts(path: str | os.PathLike[str], form: CsvFormat) -> dict[str, dict[str, int]]:
    """Of a CSV file, by column: texts that were read as missing values, and in how many rows. Empty for other files."""
    path = Path(path)
    return missing_marks(path, form) if _suffix(path, _READABLE) in (*_CSV, *_PACKED) else {}


def is_csv(path: Path) -> bool:
    """Whether the name of a file says that it is a CSV file."""
    return _ending(path) in (*_CSV, *_PACKED)


def holds_parquet(path: Path) -> bool:
    """Whether this is a folder of Parquet files."""
    return path.is_dir() and any(path.rglob("*.parquet"))


def read_batches(
    path: str | os.PathLike[str], rows: int, columns: Sequence[str] | None = None, **csv: Any
) -> Iterator[pd.DataFrame]:
    """The table in a file in frames of ``rows`` rows, the last one shorter; ``csv`` as in `read`.

    Parquet and Arrow files are read frame by frame. Others are read at once, since all of a column decides its type.

    Raises:
        SilosynthError: as `read`.
    """
    path = _found(path)
    suffix = _suffix(path, _READABLE)
    if suffix not in (*_PARQUET, *_ARROW):
        frame = read(path, columns, **csv)
        for start in range(0, len(frame), rows):
            yield frame.iloc[start : start + rows].reset_index(drop=True)
        return
    tables = _parquet_batches(path, rows) if suffix in _PARQUET else _arrow_batches(path)
    none = True
    try:
        for table in sized(tables, rows):
            frame, none = to_pandas(_to_frame(table)), False
            yield frame if columns is None else frame[_in_file_order(columns, list(frame.columns))]
    except (pa.ArrowInvalid, pa.ArrowKeyError, EOFError) as error:
        raise _damaged(path) from error
    except OSError as error:
        raise storage_error(error, "read", path) from error
    if none:
        raise DataError("A table needs at least one row", "0 rows", "Was the right file or filter used?")


def sized(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of ``rows`` rows each, the last one shorter; none is empty."""
    kept: list[pa.Table] = []
    for table in tables:
        kept.append(table)
        if sum(len(part) for part in kept) < rows:
            continue
        joined = pa.concat_tables(kept)
        cut = len(joined) - len(joined) % rows
        yield from (joined.slice(start, rows) for start in range(0, cut, rows))
        kept = [joined.slice(cut)]
    rest = [part for part in kept if len(part)]
    if rest:
        yield pa.concat_tables(rest)


def write(frame: Frame, path: str | os.PathLike[str], raw_text: bool = False) -> None:
    """Write a frame to a CSV, Parquet or Arrow file, atomically; an existing file is replaced.

    In CSV files, texts that a spreadsheet would run as formulas get an apostrophe before them, with a `FormulaWarning`
    that names their columns; `read` takes it away. ``raw_text`` writes them as they are.

    Raises:
        DataError: the ending is unknown, or the frame cannot be used.
        StorageError: the disk is full, or the folder cannot be written to.
    """
    write_batches([frame], path, raw_text)


def write_batches(batches: Iterable[Frame], path: str | os.PathLike[str], raw_text: bool = False) -> int:
    """Write frames of the same columns as `write` does, one in memory at a time; returns the number of rows.

    Raises:
        DataError: the ending is unknown, there is no batch, or columns differ between batches.
        StorageError: the disk is full, or the folder cannot be written to. No part of the file is kept.
    """
    target = Path(path)
    suffix = _suffix(target, SUFFIXES)
    frames = (to_pandas(batch) for batch in batches)
    with replacing(target) as part:
        if suffix in (*_CSV, *_PACKED):
            separator = "\t" if suffix.startswith(".tsv") else ","
            rows = _write_csv(frames if raw_text else _escaped(frames), part, separator, suffix in _PACKED)
        else:
            rows = _write_arrow(frames, part, parquet=suffix in _PARQUET)
        if rows == 0:
            raise DataError("There must be at least one row to write", "0 rows", "Sample at least one row.")
    return rows


def _found(path: str | os.PathLike[str]) -> Path:
    """A file that exists, or a folder of Parquet files."""
    return Path(path) if holds_parquet(Path(path)) else existing(path)


def _suffix(path: Path, known: Sequence[str]) -> str:
    """The ending of a table's file; ``.parquet`` for a folder of such files."""
    if holds_parquet(path):
        return ".parquet"
    suffix = _ending(path)
    if suffix not in known:
        raise DataError("A table's file name ends in " + ", ".join(known), path.name, nearest(suffix, known))
    return suffix


def _ending(path: Path) -> str:
    return "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]).lower()


def _in_file_order(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    for name in columns:
        if name not in names:
            raise DataError("The file has no such column", name, nearest(name, names))
    return [name for name in names if name in set(columns)]


def _columnar(reader: Callable[[Path], pa.Table], path: Path) -> pd.DataFrame:
    try:
        table = reader(path)
    except (pa.ArrowInvalid, pa.ArrowKeyError, EOFError) as error:
        raise _damaged(path) from error
    return _to_frame(table)


def _damaged(path: Path) -> StorageError:
    rule = "The file must be a whole Parquet or Arrow file, as its name says"
    return StorageError(rule, str(path), "Was it cut off?")


def _to_frame(table: pa.Table) -> pd.DataFrame:
    named = table.schema.pandas_metadata
    if named and len(set(table.column_names)) == table.num_columns:  # written by pandas, with its dtypes
        return cast("pd.DataFrame", table.to_pandas()).reset_index(drop=True)
    return from_arrow(table)


def _read_parquet(path: Path) -> pa.Table:
    if path.is_dir():
        return pq.read_table(path)
    with pq.ParquetFile(path) as file:
        return file.read()


def _read_workbook(path: Path) -> pd.DataFrame:
    try:
        openpyxl = import_module("openpyxl")
    except ImportError as error:
        raise UnavailableError(
            "Excel workbooks are read by the library openpyxl", "not installed", "pip install 'silosynth[excel]'"
        ) from error
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (BadZipFile, KeyError) as error:
        rule = "The file must be a whole Excel workbook, as its name says"
        raise StorageError(rule, str(path), "Was it cut off?") from error
    with closing(book):
        sheets = {sheet.title: [row for row in sheet.values if any(cell is not None for cell in row)] for sheet in book}
    filled = [name for name, rows in sheets.items() if rows]
    if len(filled) != 1:
        remedy = "Save the sheet that you mean as a workbook of its own, or as CSV."
        raise DataError("A workbook is one table: one of its sheets has rows", ", ".join(filled) or "none", remedy)
    names, *rows = sheets[filled[0]]
    if any(name is None for name in names):
        place = names.index(None) + 1
        raise DataError("Every column needs a name in the first row", f"column {place} has none", "Write one.")
    return pd.DataFrame(rows, columns=pd.Index(list(names)))


def _read_arrow(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        return _arrow_reader(file).read_all()


def _arrow_reader(file: pa.NativeFile) -> Any:
    try:
        return pa.ipc.open_file(file)
    except pa.ArrowInvalid:  # not the file format: then it must be the stream format
        file.seek(0)
        return pa.ipc.open_stream(file)


def _parquet_batches(path: Path, rows: int) -> Iterator[pa.Table]:
    if path.is_dir():
        parts = dataset(path, format="parquet", partitioning="hive").to_batches(batch_size=rows)
        yield from (pa.Table.from_batches([batch]) for batch in parts)
        return
    with pq.ParquetFile(path) as file:
        yield from (pa.Table.from_batches([batch]) for batch in file.iter_batches(batch_size=rows))


def _arrow_batches(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file:
        reader = _arrow_reader(file)
        whole = isinstance(reader, pa.ipc.RecordBatchFileReader)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if whole else reader
        yield from (pa.Table.from_batches([batch]) for batch in batches)


def _escaped(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The frames as `escaped` makes them; at the end, a warning that names the columns where it changed something."""
    columns: dict[str, None] = {}
    for frame in frames:
        safe, changed = escaped(frame)
        columns |= dict.fromkeys(changed)
        yield safe
    if columns:
        warnings.warn(
            f"Texts in {', '.join(map(repr, columns))} that a spreadsheet would run as formulas were written with an "
            "apostrophe before them; silosynth reads them without it. To write them as they are, set raw_text",
            FormulaWarning,
            stacklevel=2,
        )


def _write_csv(frames: Iterable[pd.DataFrame], part: Path, separator: str, packed: bool) -> int:
    rows, names = 0, None
    with ExitStack() as files:
        file: Any = files.enter_context(open(part, "wb"))
        if packed:  # without name and time, so that the same table gives the same bytes
            file = files.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        handle = files.enter_context(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        for frame in frames:
            names = _same_columns(names, list(frame.columns))
            form: dict[str, Any] = {"sep": separator, "quoting": quoting(frame), "lineterminator": "\n"}
            frame.to_csv(handle, index=False, header=rows == 0, **form)
            rows += len(frame)
    return rows


def _write_arrow(frames: Iterable[pd.DataFrame], part: Path, parquet: bool) -> int:
    rows, names, writer, schema = 0, None, None, None
    with pa.OSFile(str(part), "wb") as sink:
        try:
            for frame in frames:
                names = _same_columns(names, list(frame.columns))
                table = _arrow(frame, schema)
                if writer is None:
                    schema = table.schema
                    opened = pq.ParquetWriter(sink, schema, compression="zstd") if parquet else None
                    writer = opened or pa.ipc.new_file(sink, schema)
                writer.write_table(table)
                rows += len(frame)
        finally:
            if writer is not None:
                writer.close()
    return rows


def _arrow(frame: pd.DataFrame, schema: Any) -> pa.Table:
    try:
        table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            "Every column of a file has one type, the same in all batches",
            str(error.args[-1])[:80],
            "Convert the column to one type.",
        ) from error
    if schema is not None:
        return table
    for i, field in enumerate(table.schema):  # a batch without values: later batches may hold text
        if pa.types.is_null(field.type):
            table = table.set_column(i, field.with_type(pa.string()), table.column(i).cast(pa.string()))
    return table


def _same_columns(before: list[str] | None, now: list[str]) -> list[str]:
    if before is not None and before != now:
        other = sorted(set(before) ^ set(now)) or now
        raise DataError("All batches have the same columns in the same order", ", ".join(other))
    return now


_LOGIN = ("user", "user_env", "password_env", "password_file")


@dataclass(frozen=True, repr=False)
class Source:
    """Where a silo's rows are: exactly one of ``path`` and ``database``.

    Its representation is `describe`, which is safe to log.
    """

    path: Path | None = None
    """A CSV, Parquet, Arrow or Excel file, or a folder of Parquet files."""
    database: str | None = None
    """``postgresql://host:5432/name``, ``sqlite:///file.db`` or ``duckdb:///file.duckdb``; a fourth slash begins an
    absolute path."""
    table: str | None = None
    """``schema.table``, or the table alone; with a database, exactly one of this and ``query``."""
    query: str | None = None
    """One SELECT statement. It cannot write."""
    columns: tuple[str, ...] | None = None
    """Only these, in this order; None for all."""
    separator: str | None = None
    """Of a CSV file, like ``decimal``, ``encoding`` and ``missing``: see `silosynth.data.csvfiles.CsvFormat`."""
    decimal: str = "."
    encoding: str | None = None
    missing: tuple[str, ...] | None = None
    user: str | None = None
    """The PostgreSQL user; otherwise ``user_env``, the one in the URL, or libpq's usual ``PGUSER``."""
    user_env: str | None = None
    """Name of an environment variable that holds the user."""
    password_env: str | None = None
    """Name of an environment variable that holds the password."""
    password_file: Path | None = None
    """A file with the password and nothing else, readable by its owner only."""
    batch_rows: int = 50_000
    """Rows per batch."""

    def __repr__(self) -> str:
        return f"Source({self.describe()})"

    def check(self) -> None:
        """Check the settings before reading.

        Raises:
            ConfigError: they contradict each other, an address is malformed or holds a password, a password's variable
                is not set, or its file is missing or can be read by others.
        """
        if (self.path is None) == (self.database is None):
            raise ConfigError("A source is one of path and database", "both" if self.path else "neither")
        if self.batch_rows < 1:
            raise ConfigError("A batch has at least one row", self.batch_rows, "Set batch_rows to 50000, say.")
        self._check_columns()
        if self.path is not None:
            self._check_file()
        else:
            self._check_database()

    def load(self) -> pd.DataFrame:
        """All rows, with the dtypes of the same table read from Parquet.

        Raises:
            SilosynthError: as `check`, or reading fails. The error holds nothing of credentials, statements or cells.
        """
        self.check()
        if self.path is not None:
            frame = read(self.path, self.columns, **self._csv)
            return frame if self.columns is None else frame[list(self.columns)]
        tables = list(self._tables())
        if not tables:
            raise _empty()
        return to_pandas(from_arrow(pa.concat_tables(tables)))

    def batches(self) -> Iterator[pd.DataFrame]:
        """The rows in frames of ``batch_rows`` rows, the last one shorter; one in memory at a time.

        Columns of integers and booleans have nullable dtypes throughout, since later batches may lack values. A CSV
        file is read at once, since all of a column decides its type. Categories are those of one batch.

        Raises:
            SilosynthError: as `load`.
        """
        self.check()
        if self.path is not None:
            for frame in read_batches(self.path, self.batch_rows, self.columns, **self._csv):
                yield _nullable(frame if self.columns is None else frame[list(self.columns)])
            return
        none = True
        for table in sized(self._tables(), self.batch_rows):
            none = False
            yield _nullable(from_arrow(table))
        if none:
            raise _empty()

    @property
    def _csv(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in asdict(CsvFormat())}

    def describe(self) -> str:
        """Kind, host, table or file, for logs; no user, password or query."""
        if self.path is not None:
            return f"file {self.path}"
        try:
            place = address(self.database or "")
        except ConfigError:
            return "database (its address is not valid)"
        return f"{NAMES[place.kind]} {place}, " + ("a query" if self.table is None else f"table {self.table}")

    def within(self, folder: Path) -> Source:
        """The same source with relative paths resolved against ``folder``, such as that of the settings file.

        Raises:
            ConfigError: the database's address is malformed or holds a password.
        """
        source = replace(
            self,
            path=None if self.path is None else folder / self.path,
            password_file=None if self.password_file is None else folder / self.password_file,
        )
        place = None if self.database is None else address(self.database)
        if place is None or place.kind == "postgresql":
            return source
        return replace(source, database=f"{place.kind}:///{quote((folder / place.name).as_posix(), safe='/:')}")

    def _check_columns(self) -> None:
        if self.columns is not None and not self.columns:
            raise ConfigError("At least one column is read", "columns = []", "Leave columns out for all of them.")
        repeated = sorted({name for name in self.columns or () if (self.columns or ()).count(name) > 1})
        if repeated:
            raise ConfigError("A column is named once", ", ".join(repeated), "Remove it from columns.")

    def _check_file(self) -> None:
        spare = [name for name in ("table", "query", *_LOGIN) if getattr(self, name) is not None]
        if spare:
            raise ConfigError("Only a database has this setting", spare[0], "Remove it, or give database, not path.")
        path = Path(self.path or "")
        if not holds_parquet(path) and _ending(path) not in _READABLE:
            rule = "A table's file name ends in " + ", ".join(_READABLE)
            raise ConfigError(rule, str(path), nearest(_ending(path), _READABLE))

    def _check_database(self) -> None:
        place = address(self.database or "")
        if (self.table is None) == (self.query is None):
            raise ConfigError("From a database, one of table and query is read", "both" if self.table else "neither")
        _ = self._selection()
        if self._csv != asdict(CsvFormat()):
            rule = "separator, decimal, encoding and missing say how CSV files are written"
            raise ConfigError(rule, NAMES[place.kind], "Leave them out.")
        if place.kind != "postgresql":
            spare = [name for name in _LOGIN if getattr(self, name) is not None]
            if spare:
                raise ConfigError("A database that is a file has no log-in", spare[0], "Remove the setting.")
            return
        if self.password_env is not None and self.password_file is not None:
            raise ConfigError("The password comes from one place", "password_env and password_file", "Remove one.")
        if self.user is not None and self.user_env is not None:
            raise ConfigError("The user comes from one place", "user and user_env", "Remove one.")
        for name in (self.user_env, self.password_env):
            if name is not None:
                _variable(name)
        if self.password_file is not None:
            os.close(_open_secret(self.password_file))

    def _selection(self) -> Selection:
        table = None if self.table is None else table_name(self.table)
        query = None if self.query is None else statement(self.query)
        return Selection(table, query, self.columns, self.batch_rows)

    def _tables(self) -> Iterator[pa.Table]:
        place, selection = address(self.database or ""), self._selection()
        if place.kind == "postgresql":
            return read_postgresql(place, self._login(place), selection)
        return (read_sqlite if place.kind == "sqlite" else read_duckdb)(place, selection)

    def _login(self, place: Address) -> Login:
        user = self.user or (_variable(self.user_env) if self.user_env else place.user)
        if self.password_file is not None:
            return Login(user, _secret(self.password_file))
        return Login(user, _variable(self.password_env) if self.password_env else None)


def _empty() -> DataError:
    return DataError("A table needs at least one row", "0 rows", "Was the right table or query used?")


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value or "\0" in value:
        raise ConfigError("The environment variable must be set", name, "Set it where silosynth is started.")
    return value


def _open_secret(path: Path) -> int:
    """A descriptor of a file that others cannot read."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # opening a pipe would block
    except OSError as error:
        raise ConfigError(
            "The password's file must be readable", f"{path}: {error.strerror}", "Check password_file."
        ) from None
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and (
        os.name == "nt" or not status.st_mode & (0o037 if status.st_uid == 0 else 0o077)
    ):
        return handle
    os.close(handle)
    raise ConfigError(
        "The password's file is an ordinary file that only its owner can read (where root owns it, also its group)",
        f"{path}: mode {stat.S_IMODE(status.st_mode):04o}",
        f"chmod 600 {path}",
    )


def _secret(path: Path) -> str:
    """The password in a file, without the newline."""
    try:
        with open(_open_secret(path), "rb") as file:
            text = file.read(4096).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        text = ""
    except OSError as error:
        raise storage_error(error, "read", path) from None
    if not text or "\0" in text or "\n" in text:
        raise ConfigError("The password's file holds one line of UTF-8 text", str(path), "Write the password into it.")
    return text


def _nullable(frame: pd.DataFrame) -> pd.DataFrame:
    """The batch with nullable dtypes where missing values would otherwise change the dtype."""
    nullable = {
        str(name): "boolean" if dtype.kind == "b" else ("U" if dtype.kind == "u" else "") + f"Int{8 * dtype.itemsize}"
        for name, dtype in frame.dtypes.items()
        if isinstance(dtype, np.dtype) and dtype.kind in "biu"
    }
    return frame.astype(nullable) if nullable else frame
