"""Rows of a PostgreSQL table or query, through ADBC, in a transaction that cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from silosynth.core.errors import ConfigError, DataError, SilosynthError, StorageError, UnavailableError
from silosynth.data import databases

_DRIVER = "adbc-driver-postgresql 1.13 or newer (Python 3.11 or newer)"


@dataclass(frozen=True)
class Login:
    """The user. None leaves it to libpq: ``PGUSER``, ``PGPASSWORD``, ``~/.pgpass``, a client certificate."""

    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


def read_postgresql(address: databases.Address, login: Login, selection: databases.Selection) -> Iterator[pa.Table]:
    """The rows in batches, from one snapshot; in the same order each time, as long as nobody writes to the table.

    Raises:
        UnavailableError: the driver is not installed.
        StorageError: the server cannot be reached, or refuses this user.
        DataError: no such table or column, or a column's type or value cannot be used.
        ConfigError: the query cannot be run, or would write.
    """
    modules = ("adbc_driver_postgresql.dbapi", "adbc_driver_manager")
    driver, manager = databases.library(f"PostgreSQL is read by {_DRIVER}", *modules, extra="postgresql")
    kinds = (manager.Error, manager.Warning, pa.ArrowException, OSError)
    return databases.guarded(_rows(driver, address, login, selection), kinds, lambda error: _refusal(error, address))


def _rows(driver: Any, address: databases.Address, login: Login, selection: databases.Selection) -> Iterator[pa.Table]:
    with ExitStack() as stack:
        connection = stack.enter_context(closing(driver.connect(_conninfo(address, login))))
        cursor = stack.enter_context(closing(connection.cursor()))
        _restrain(cursor)
        if selection.table:
            available = _columns(cursor, selection.table)
            query = databases.select(databases.chosen(selection.columns, available), selection.table)
        else:
            query = str(selection.query)
        cursor.execute(query)
        reader = stack.enter_context(closing(_reader(cursor)))
        columns = databases.chosen(selection.columns, reader.schema.names, "query")
        _check_driver(reader.schema)
        for batch in reader:
            yield _plain(pa.Table.from_batches([batch]).select(columns))


def _reader(cursor: Any) -> Any:
    """The result in batches. The public reader drops the SQLSTATE of later errors; the driver's own reader keeps it."""
    public = cursor.fetch_record_batch()
    return getattr(getattr(cursor, "_results", None), "reader", public)


def _restrain(cursor: Any) -> None:
    """One snapshot, read-only, rows in table order, and no server notices on our stderr."""
    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    cursor.execute("SET LOCAL client_min_messages = error")
    cursor.execute("SET LOCAL synchronize_seqscans = off")
    cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")


def _conninfo(address: databases.Address, login: Login) -> str:
    """libpq's connection string of keywords and values."""
    keywords: dict[str, str | None] = {
        "connect_timeout": "20",
        "application_name": "silosynth",
        "host": address.host or None,
        "port": None if address.port is None else str(address.port),
        "dbname": address.name,
        "user": login.user,
        "password": login.password,
        **dict(address.options),
    }
    escaped = {
        key: value.replace("\\", r"\\").replace("'", r"\'") for key, value in keywords.items() if value is not None
    }
    return " ".join(f"{key}='{value}'" for key, value in escaped.items())


_HELD = """
SELECT a.attname::text FROM pg_catalog.pg_attribute a
WHERE a.attrelid = pg_catalog.to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_READABLE = """
SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT')
"""


def _columns(cursor: Any, table: tuple[str, ...]) -> list[str]:
    names = [name for (name,) in cursor.execute(_HELD, (databases.quoted(*table),)).fetchall()]
    if not names:
        raise databases.no_table(table, cursor.execute(_READABLE).fetchall())
    return names


def _plain(table: pa.Table) -> pa.Table:
    """A batch with PostgreSQL's own types (numeric, uuid) cast to plain ones."""
    natives = {wire.name: _native(wire) for wire in table.schema}
    for place, wire in enumerate(table.schema):
        column = table[wire.name]
        if natives[wire.name] == "numeric":
            column = databases.cast(_stored(column), pa.int64() if _whole(wire) else pa.float64(), wire.name)
        elif natives[wire.name] == "uuid":
            column = pa.chunked_array([pa.array([v and str(v) for v in column.to_pylist()], pa.string())])
        else:
            continue
        table = table.set_column(place, wire.name, column)
    return databases.plain(table, natives, _ONLY_LOOK_PLAIN)


_ONLY_LOOK_PLAIN = {"json", "jsonb", "money", "xml"}
"""Types stored as text or integers that mean something else."""


def _check_driver(schema: pa.Schema) -> None:
    """Raise if the driver does not report PostgreSQL's type names: money, say, would pass for an integer."""
    if not all(b"POSTGRESQL:type" in (wire.metadata or {}) for wire in schema):
        remedy = "Update it: pip install --upgrade 'silosynth[postgresql]'."
        raise UnavailableError(f"PostgreSQL is read by {_DRIVER}", "an older one", remedy)


def _native(wire: pa.Field) -> str:
    return str(wire.metadata[b"POSTGRESQL:type"].decode())


def _whole(wire: pa.Field) -> bool:
    """Whether ``numeric(precision, scale)`` was declared with scale 0; an undeclared scale allows any decimals."""
    modifier = int((wire.metadata or {}).get(b"POSTGRESQL:typmod", b"-1"))
    scale = ((modifier - 4) & 0x7FF ^ 1024) - 1024  # eleven bits with a sign
    return modifier >= 4 and scale <= 0


def _stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The storage of an extension type; numeric arrives as text, so that no digit is lost."""
    chunks = [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.string())


_STATES: dict[str, tuple[type[SilosynthError], str, str]] = {
    "25": (ConfigError, "A query must only read", "It runs in a read-only transaction; write with another program."),
    "28": (StorageError, "PostgreSQL must accept user and password", "Check user and password_file or password_env."),
    "3D000": (StorageError, "The database must exist", "Check the last part of the address."),
    "42501": (
        StorageError,
        "The user must be allowed to read the table and all columns asked for",
        "Have the owner GRANT SELECT on the columns needed, and name them with columns = […].",
    ),
    "42P01": (DataError, "All tables of the query must exist and be visible", "Check its names; write schema.table."),
    "42703": (
        DataError,
        "All columns of the query must exist",
        'Check names; "Mixed" case needs double quotes.',
    ),
    "22": (DataError, "The query must run on all values", "Look for a division, a cast or a date that one row breaks."),
    "42": (ConfigError, "The query must be one valid SELECT", "Try it with psql."),
    "57014": (StorageError, "The server must let the statement end", "Raise its statement_timeout for this user."),
    "53": (StorageError, "The server must have connections and memory left", "Try again later."),
}
_TEXTS: dict[str, tuple[str, str]] = {
    "does not support SSL": ("08", "The server must speak TLS, which sslmode asks for"),
    "certificate": ("08", "The server's certificate or ours must exist and be accepted"),
    "SSL error": ("08", "The server's certificate or ours must exist and be accepted"),
    "no pg_hba.conf entry": ("28", "PostgreSQL must take this user, database and way of connecting from this machine"),
    "password authentication failed": ("28", ""),
    "no password supplied": ("28", ""),
    "authentication failed": ("28", ""),
    'role "': ("28", ""),
    'database "': ("3D000", ""),
    "could not translate host name": ("08", "The server's name must be known"),
    "Connection refused": ("08", "A server must listen at this address"),
    "timeout expired": ("08", "The server must answer in time"),
    "invalid": ("08", "Options after the ? must have values that libpq takes"),
}
"""Failures to connect, which have no SQLSTATE, by a part of their message: state, and rule."""


def _refusal(error: Exception, address: databases.Address) -> SilosynthError:
    """The error for a driver's error, by its SQLSTATE; nothing of its message is shown."""
    state = getattr(error, "sqlstate", None) or ""
    rule = ""
    if not state and "Failed to connect" in str(error):
        text = str(error).split("failed: ", 1)[-1]
        state, rule = next((known for part, known in _TEXTS.items() if part in text), ("08", ""))
    for known in (state, state[:2]):
        if known in _STATES:
            kind, usual, remedy = _STATES[known]
            return kind(rule or usual, _place(address, state), remedy)
    remedy = "Check address, network and the server's log; the driver's message may hold secrets and is not shown."
    rule = rule or (
        "The server must be reachable, and stay so" if state in ("", "08") else "The server must do what is asked"
    )
    return StorageError(rule, _place(address, state), remedy)


def _place(address: databases.Address, state: str) -> str:
    return f"{address}, SQLSTATE {state}" if len(state) == 5 else str(address)
