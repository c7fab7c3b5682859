"""Databases that are a file: SQLite through the standard library, DuckDB. Both are opened for reading only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from silosynth.core.errors import ConfigError, DataError, SilosynthError, StorageError
from silosynth.core.files import existing
from silosynth.data.databases import (
    Address,
    Wanted,
    chosen,
    guarded,
    library,
    listed,
    no_table,
    plain,
    quoted,
    unusable,
)

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_CLOSED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""DuckDB's settings under which a query sees the database alone: no other files, no network."""


def read_sqlite(address: Address, wanted: Wanted) -> Iterator[pa.Table]:
    """The rows in batches. SQLite has whole numbers, numbers and text; dates and booleans are what was stored for them.

    Raises:
        StorageError: no such file, or it is no whole SQLite database.
        DataError: no such table or column, or a column's values are of several types.
        ConfigError: the query cannot be run, or would write.
    """
    path = existing(address.name)
    return guarded(_sqlite(path, wanted), (sqlite3.Error, sqlite3.Warning), lambda e: _sqlite_error(str(e), path))


def _sqlite(path: Path, wanted: Wanted) -> Iterator[pa.Table]:
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(
        sqlite3.connect(uri, uri=True, timeout=2, isolation_level=None, check_same_thread=False)
    ) as connection:
        connection.execute("BEGIN")  # both passes over the rows see the same ones
        held = _sqlite_columns(connection, wanted) if wanted.table else None
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY)
        if wanted.table:
            names = chosen(wanted.columns, held or [])
            query = f"SELECT {listed(names)} FROM {quoted(*wanted.table)}"
        else:
            query = str(wanted.query)
            names = [column[0] for column in connection.execute(query).description]
        columns = chosen(wanted.columns, names, "query")
        types = _sqlite_types(connection, query, names, columns)
        places = [names.index(name) for name in columns]
        cursor = connection.execute(query)
        while rows := cursor.fetchmany(wanted.batch_rows):
            across = list(zip(*rows, strict=True))
            arrays = [_array(across[i], types[name], name) for i, name in zip(places, columns, strict=True)]
            yield pa.table(arrays, columns)


def _sqlite_columns(connection: sqlite3.Connection, wanted: Wanted) -> list[str]:
    schema, name = ("main", *(wanted.table or ()))[-2:]
    found = connection.execute("SELECT name FROM pragma_table_xinfo(?, ?) WHERE hidden <> 1", (name, schema))
    held = [column for (column,) in found]
    if not held:
        tables = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT GLOB 'sqlite_*'"
        raise no_table((name,), connection.execute(tables).fetchall(), "The file")
    return held


def _sqlite_types(
    connection: sqlite3.Connection, query: str, names: list[str], columns: list[str]
) -> dict[str, pa.DataType]:
    """What each column's values are; any value of an SQLite column can be of any type, so all are looked at."""
    numbered = ", ".join(f"c{i}" for i in range(len(names)))
    shown = ", ".join(f"group_concat(DISTINCT typeof(c{names.index(name)}))" for name in columns)
    (found,) = connection.execute(f"WITH silo({numbered}) AS (\n{query}\n) SELECT {shown} FROM silo").fetchall()
    types = {}
    for name, stored in zip(columns, found, strict=True):
        held = set((stored or "").split(",")) - {"", "null"}
        if "blob" in held:
            raise unusable(f"{name} (BLOB)")
        if len(held) > 1 and held != {"integer", "real"}:
            raise DataError(
                "All values of a column must be of one type",
                f"column {name} holds {' and '.join(sorted(held))}",
                "Convert it in a query: SELECT CAST(NULLIF(…, '') AS INTEGER) AS ….",
            )
        types[name] = _STORED["real" if len(held) > 1 else held.pop() if held else "null"]
    return types


_STORED = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "null": pa.null()}


def _array(values: tuple[Any, ...], kind: pa.DataType, name: str) -> pa.Array:
    try:
        return pa.array(values, kind)
    except pa.ArrowException:
        pass
    raise DataError(f"Every value of a column must fit into {kind}", f"column {name}", "Convert it in a query.")


def _sqlite_error(text: str, path: Path) -> SilosynthError:
    """What SQLite's message means; the message itself may quote a value."""
    if "not authorized" in text or "readonly" in text or "prohibited" in text:
        return _writes()
    if "UTF-8" in text:
        return DataError("Text in an SQLite database must be UTF-8", str(path), "Convert the column to UTF-8.")
    if "locked" in text or "busy" in text:
        return StorageError("The database must be free: another program holds it", str(path), "Try again later.")
    if "not a database" in text or "malformed" in text or "disk I/O" in text:
        return StorageError("The file must be a whole SQLite database", str(path), "Was it cut off?")
    if "unable to open" in text:
        return StorageError("The database must be readable", str(path), "Check permissions of the file and its folder.")
    return _bad_query()


def _writes() -> ConfigError:
    return ConfigError("A query must only read", remedy="Write SELECT; let another program change tables.")


def _bad_query(sort: str = "") -> ConfigError:
    remedy = "Run the query in the database's own shell; its message may quote data and is not shown here."
    return ConfigError("The query must run", sort or "the database refused it", remedy)


def read_duckdb(address: Address, wanted: Wanted) -> Iterator[pa.Table]:
    """The rows in batches; enumerations come as categories.

    Raises:
        UnavailableError: duckdb is not installed.
        StorageError: no such file, it is no DuckDB database, or another program writes to it.
        DataError: no such table or column, or a column's type cannot be used.
        ConfigError: the query cannot be run, or would write.
    """
    (duckdb,) = library("DuckDB files are read by duckdb", "duckdb", extra="duckdb")
    path = existing(address.name)
    kinds = (duckdb.Error, RuntimeError, pa.ArrowException)
    return guarded(_duckdb(duckdb, path, wanted), kinds, lambda error: _duckdb_error(error, path))


def _duckdb(duckdb: Any, path: Path, wanted: Wanted) -> Iterator[pa.Table]:
    with closing(duckdb.connect(str(path), read_only=True, config=_CLOSED)) as connection:
        connection.execute("SET python_enable_replacements = false")  # nor any variable of this program
        connection.execute("SET lock_configuration = true")
        if wanted.table:
            held = _duckdb_columns(connection, wanted.table)
            query = f"SELECT {listed(chosen(wanted.columns, held))} FROM {quoted(*wanted.table)}"
        else:
            query = str(wanted.query)
        if [found.type for found in duckdb.extract_statements(query)] != [duckdb.StatementType.SELECT]:
            raise _writes()
        relation = connection.sql(query)
        columns = chosen(wanted.columns, relation.columns, "query")
        natives = dict(zip(relation.columns, map(str, relation.types), strict=True))
        start = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
        with closing(start(wanted.batch_rows)) as reader:
            for batch in reader:
                yield plain(pa.Table.from_batches([batch]).select(columns), natives)


def _duckdb_columns(connection: Any, table: tuple[str, ...]) -> list[str]:
    schema, name = ("main", *table)[-2:]
    found = connection.execute(
        "SELECT column_name FROM duckdb_columns() WHERE database_name = current_database() AND table_name = ?"
        " AND schema_name = ? ORDER BY column_index",
        [name, schema],
    ).fetchall()
    if not found:
        known = connection.execute(
            "SELECT DISTINCT schema_name, table_name FROM duckdb_columns()"
            " WHERE database_name = current_database() AND NOT internal"
        ).fetchall()
        raise no_table(table, known, "The file")
    return [column for (column,) in found]


def _duckdb_error(error: Exception, path: Path) -> SilosynthError:
    """What the class of DuckDB's error means; its message may quote a value."""
    sort = type(error).__name__
    text = str(error)
    if "read-only" in text[:300] and "Cannot execute" in text[:300]:
        return _writes()
    if sort == "PermissionException":
        return ConfigError("A query reads tables of this database alone, no other files", remedy="Load them first.")
    if "lock on file" in text:
        return StorageError("The database must be free: another program writes to it", str(path), "Try again later.")
    if sort in ("IOException", "SerializationException", "InternalException", "FatalException"):
        return StorageError("The file must be a whole DuckDB database", str(path), "Was it cut off, or is it newer?")
    return _bad_query(sort.removesuffix("Exception"))
