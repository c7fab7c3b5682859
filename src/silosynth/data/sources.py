"""Reading and writing tables as files: CSV, Parquet, Arrow. A file appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from silosynth.core.errors import DataError, StorageError, nearest
from silosynth.core.files import existing, replacing, storage_error
from silosynth.data.csvfiles import read_csv
from silosynth.data.frames import Frame, from_arrow, to_pandas

_CSV, _PARQUET, _ARROW = (".csv", ".tsv", ".txt"), (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
SUFFIXES = (*_CSV, *_PARQUET, *_ARROW)
"""File name endings that can be read and written."""


def read(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    separator: str | None = None,
    decimal: str = ".",
    encoding: str = "utf-8",
) -> pd.DataFrame:
    """The table in a file, or only its ``columns``, in the file's order.

    ``separator``, ``decimal`` and ``encoding`` are for CSV files; without a separator, the one of ``, ; tab |`` that
    splits the header into most names is taken. Numbers written with leading zeros (``00123``) stay text. Whole numbers
    of Parquet and Arrow files stay whole (``Int64``) where some are missing.

    Raises:
        StorageError: no such file, or it is damaged.
        DataError: the ending is unknown, the contents are no table, or a column is absent.
    """
    path = existing(path)
    suffix = _suffix(path)
    try:
        if suffix in _CSV:
            frame = read_csv(path, separator, decimal, encoding)
        else:
            frame = _columnar(_read_parquet if suffix in _PARQUET else _read_arrow, path)
    except OSError as error:
        raise storage_error(error, "read", path) from error
    frame = to_pandas(frame)
    return frame if columns is None else frame[_known(columns, list(frame.columns))]


def read_batches(
    path: str | os.PathLike[str], rows: int, columns: Sequence[str] | None = None
) -> Iterator[pd.DataFrame]:
    """The table in a file in frames of ``rows`` rows, the last one shorter.

    Parquet and Arrow files are read frame by frame. A CSV file is read whole: what a column holds shows at its end.

    Raises:
        StorageError: no such file, or it is damaged.
        DataError: the ending is unknown, the contents are no table, or a column is absent.
    """
    path = existing(path)
    suffix = _suffix(path)
    if suffix in _CSV:
        frame = read(path, columns)
        for start in range(0, len(frame), rows):
            yield frame.iloc[start : start + rows].reset_index(drop=True)
        return
    tables = _parquet_batches(path, rows) if suffix in _PARQUET else _arrow_batches(path)
    none = True
    try:
        for table in sized(tables, rows):
            frame, none = to_pandas(_to_frame(table)), False
            yield frame if columns is None else frame[_known(columns, list(frame.columns))]
    except (pa.ArrowInvalid, pa.ArrowKeyError, EOFError) as error:
        raise _not_whole(path) from error
    except OSError as error:
        raise storage_error(error, "read", path) from error
    if none:
        raise DataError("A table needs at least one row", "0 rows", "Was the right file or filter used?")


def sized(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of ``rows`` rows each, but for the last; no table is empty."""
    kept: list[pa.Table] = []
    for table in tables:
        kept.append(table)
        if sum(len(part) for part in kept) < rows:
            continue
        whole = pa.concat_tables(kept)
        cut = len(whole) - len(whole) % rows
        yield from (whole.slice(start, rows) for start in range(0, cut, rows))
        kept = [whole.slice(cut)]
    rest = [part for part in kept if len(part)]
    if rest:
        yield pa.concat_tables(rest)


def write(frame: Frame, path: str | os.PathLike[str]) -> None:
    """Write a frame to a CSV, Parquet or Arrow file, atomically; an existing file is replaced.

    Raises:
        DataError: the ending is unknown, or the frame cannot be used.
        StorageError: the disk is full, or the folder cannot be written to.
    """
    write_batches([frame], path)


def write_batches(batches: Iterable[Frame], path: str | os.PathLike[str]) -> int:
    """Write frames of the same columns below one another, one in memory at a time; returns the number of rows.

    Raises:
        DataError: the ending is unknown, there is no batch, or a batch has other columns than the first.
        StorageError: the disk is full, or the folder cannot be written to. No part of the file is kept.
    """
    target = Path(path)
    suffix = _suffix(target)
    frames = (to_pandas(batch) for batch in batches)
    with replacing(target) as part:
        if suffix in _CSV:
            rows = _write_csv(frames, part, "\t" if suffix == ".tsv" else ",")
        else:
            rows = _write_arrow(frames, part, parquet=suffix in _PARQUET)
        if rows == 0:
            raise DataError("There must be at least one row to write", "0 rows", "Sample at least one row.")
    return rows


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError("A table's file name ends in " + ", ".join(SUFFIXES), path.name, nearest(suffix, SUFFIXES))
    return suffix


def _known(columns: Sequence[str], held: Sequence[str]) -> list[str]:
    for name in columns:
        if name not in held:
            raise DataError("The file has no such column", name, nearest(name, held))
    wanted = set(columns)
    return [name for name in held if name in wanted]


def _columnar(reader: Callable[[Path], pa.Table], path: Path) -> pd.DataFrame:
    try:
        table = reader(path)
    except (pa.ArrowInvalid, pa.ArrowKeyError, EOFError) as error:
        raise _not_whole(path) from error
    return _to_frame(table)


def _not_whole(path: Path) -> StorageError:
    rule = "The file must be a whole Parquet or Arrow file, as its name says"
    return StorageError(rule, str(path), "Was it cut off?")


def _to_frame(table: pa.Table) -> pd.DataFrame:
    named = table.schema.pandas_metadata
    if named and len(set(table.column_names)) == table.num_columns:  # pandas wrote it: it knows its dtypes best
        return cast("pd.DataFrame", table.to_pandas()).reset_index(drop=True)
    return from_arrow(table)


def _read_parquet(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return file.read()


def _read_arrow(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        try:
            return pa.ipc.open_file(file).read_all()
        except pa.ArrowInvalid:  # not the file format: then it must be the stream format
            file.seek(0)
            return pa.ipc.open_stream(file).read_all()


def _parquet_batches(path: Path, rows: int) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        yield from (pa.Table.from_batches([batch]) for batch in file.iter_batches(batch_size=rows))


def _arrow_batches(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file:
        try:
            whole = pa.ipc.open_file(file)
        except pa.ArrowInvalid:  # not the file format: then it must be the stream format
            file.seek(0)
            yield from (pa.Table.from_batches([batch]) for batch in pa.ipc.open_stream(file))
            return
        yield from (pa.Table.from_batches([whole.get_batch(i)]) for i in range(whole.num_record_batches))


def _write_csv(frames: Iterable[pd.DataFrame], part: Path, separator: str) -> int:
    rows, names = 0, None
    with open(part, "w", encoding="utf-8", newline="") as handle:
        for frame in frames:
            names = _same_columns(names, list(frame.columns))
            frame.to_csv(handle, sep=separator, index=False, header=rows == 0, lineterminator="\n")
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
    for i, field in enumerate(table.schema):  # a batch without a value does not say what later batches will hold
        if pa.types.is_null(field.type):
            table = table.set_column(i, field.with_type(pa.string()), table.column(i).cast(pa.string()))
    return table


def _same_columns(before: list[str] | None, now: list[str]) -> list[str]:
    if before is not None and before != now:
        other = sorted(set(before) ^ set(now)) or now
        raise DataError("All batches have the same columns in the same order", ", ".join(other))
    return now
