"""Tables in databases: what all kinds share, and SQLite and DuckDB files. PostgreSQL has a module of its own.

Shared are addresses, statements, plain column types, and errors that reveal nothing. A driver's error may quote cell
values, the statement or the user. None of that is shown, nor chained as cause or context: `guarded` raises one of our
own errors, made of fixed sentences, in its place. Files are opened for reading only.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from silosynth.core.errors import ConfigError, DataError, SilosynthError, StorageError, UnavailableError, nearest
from silosynth.core.files import existing
from silosynth.data.dtypes import plain_arrow

Kind = Literal["postgresql", "sqlite", "duckdb"]
NAMES: dict[Kind, str] = {"postgresql": "PostgreSQL", "sqlite": "SQLite", "duckdb": "DuckDB"}
OPTIONS = (
    "application_name", "channel_binding", "connect_timeout", "host", "sslcert", "sslcrl", "sslkey", "sslmode",
    "sslrootcert", "target_session_attrs",
)  # fmt: skip
"""Options allowed after the ``?`` of a PostgreSQL address; libpq's documentation describes them."""

_FORMS = "postgresql://host:5432/name, sqlite:///file.db or duckdb:///file.duckdb"


@dataclass(frozen=True)
class Address:
    """Where a database is, from its URL. It holds no password; ``user`` is not shown."""

    kind: Kind
    name: str
    """PostgreSQL: the database's name. Otherwise the path of its file."""
    host: str = ""
    port: int | None = None
    user: str | None = field(default=None, repr=False)
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if self.kind != "postgresql":
            return self.name
        host = self.host or dict(self.options).get("host", "local server")
        return f"{host}{'' if self.port is None else f':{self.port}'}/{self.name}"


@dataclass(frozen=True)
class Selection:
    """What to read: columns of a table, or of a query's result; None for all."""

    table: tuple[str, ...] | None
    """Schema and name, or the name alone."""
    query: str | None = field(repr=False)
    columns: tuple[str, ...] | None
    batch_rows: int


def address(url: str) -> Address:
    """The parts of a database URL.

    Raises:
        ConfigError: it is no such URL, or holds a password. The error does not show the URL, which may hold one.
    """
    kind, separator, rest = url.partition("://")
    if separator and kind in ("postgresql", "postgres"):
        return _server(rest)
    if not separator or kind not in NAMES or not rest.startswith("/") or len(rest) < 2 or "?" in rest or "#" in rest:
        remedy = f"Write {_FORMS}; four slashes before an absolute path."
        raise ConfigError("A database's address must be a URL of a known form", "another text", remedy)
    return Address("sqlite" if kind == "sqlite" else "duckdb", unquote(rest[1:]))


def _server(rest: str) -> Address:
    user, at, place = rest.rpartition("@")
    if at and re.search(r"[:/?#]", user):
        raise _holds_password()
    try:
        parts = urlsplit(f"//{place}")
        host, port, options = parts.hostname or "", parts.port, dict(_options(parts.query))
    except ValueError:
        parts = None
    if parts is None or parts.fragment or not re.fullmatch(r"/[^/]+", parts.path):
        remedy = "Write postgresql://host:5432/name, with options such as ?sslmode=verify-full."
        raise ConfigError("The address of a PostgreSQL database must be well formed", "another text", remedy)
    if {"password", "passfile", "sslpassword"} & set(options):
        raise _holds_password()
    for name in options:
        if name not in OPTIONS:
            shown = name if re.fullmatch(r"[a-z_]{1,30}", name) else "another text"
            raise ConfigError("The address holds an option that is not supported", shown, nearest(shown, OPTIONS))
    return Address("postgresql", unquote(parts.path[1:]), host, port, unquote(user) or None, tuple(options.items()))


def _options(query: str) -> list[tuple[str, str]]:
    return parse_qsl(query, strict_parsing=True, keep_blank_values=True) if query else []


def _holds_password() -> ConfigError:
    return ConfigError(
        "A database's address must not hold a password: addresses end up in logs and process lists",
        remedy="Leave it out, and give password_file or password_env, and user.",
    )


def table_name(text: str) -> tuple[str, ...]:
    """Schema and name of ``schema.table``, or the name alone; a part with a dot stands in double quotes.

    Raises:
        ConfigError: it is malformed.
    """
    part = r'"(?:[^"]|"")+"|[^".]+'
    if "\0" in text or not re.fullmatch(rf"(?:{part})(?:\.(?:{part}))?", text):
        raise ConfigError("A table is named table or schema.table", text, 'Quote parts with dots: public."a.b".')
    parts = re.findall(part, text)
    return tuple(part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts)


def quoted(*names: str) -> str:
    """Names as an SQL identifier: ``"schema"."table"``."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def select(columns: Iterable[str], table: tuple[str, ...]) -> str:
    """The query for columns of a table."""
    return f"SELECT {', '.join(quoted(column) for column in columns)} FROM {quoted(*table)}"


_NO_CODE = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$""", re.DOTALL
)


def statement(query: str) -> str:
    """The query without comments and final semicolon: drivers put it into brackets.

    Raises:
        ConfigError: it is not one statement that reads. This is for a clear message: read-only transactions and
            connections see to it that nothing is written.
    """
    code = _NO_CODE.sub(" ", query).strip()
    word = re.match(r"\(*\s*(\w*)", code)
    if word is None or word.group(1).lower() not in ("select", "with", "values"):
        raise ConfigError("A query must read: it starts with SELECT, WITH or VALUES", remedy="Rewrite it.")
    if ";" in code.rstrip("; \t\r\n"):
        raise ConfigError("A query must be one statement", "several, separated by semicolons", "Leave one.")
    bare = _NO_CODE.sub(lambda match: " " if match[0].startswith(("--", "/*")) else match[0], query)
    return bare.rstrip("; \t\r\n")


def library(rule: str, *modules: str, extra: str) -> list[ModuleType]:
    """Optional modules, imported.

    Raises:
        UnavailableError: one is not installed.
    """
    with suppress(ImportError):
        return [import_module(module) for module in modules]
    raise UnavailableError(rule, "it is not installed", f"Install it: pip install 'silosynth[{extra}]'.")


def guarded(
    batches: Iterator[pa.Table], kinds: tuple[type[Exception], ...], translate: Callable[[Any], SilosynthError]
) -> Iterator[pa.Table]:
    """The same batches; an error of these ``kinds`` is replaced by its translation, and not chained."""
    try:
        yield from batches
        return
    except kinds as error:
        refused = translate(error)
    raise refused  # outside the handler, so that the driver's error is not its context


def no_table(table: Sequence[str], readable: Iterable[Sequence[str]], what: str = "The database") -> DataError:
    """The error for a missing table; names the nearest readable one."""
    known = sorted({".".join(names[-len(table) :]) for names in readable})
    return DataError(f"{what} must hold the table, and let the user see it", ".".join(table), nearest_of(table, known))


def nearest_of(name: Sequence[str], known: Sequence[str]) -> str:
    """`nearest`, but without a list of very many names."""
    hint = nearest(".".join(name), known)
    return hint if len(hint) < 300 else f"{len(known)} others are there; none has a similar name."


def chosen(columns: Sequence[str] | None, available: Sequence[str], what: str = "table") -> list[str]:
    """The ``columns``, in that order; for None, all that are ``available``.

    Raises:
        DataError: one is not there, or a name occurs repeated.
    """
    if len(set(available)) < len(available):
        repeated = sorted({name for name in available if available.count(name) > 1})
        raise DataError("Every column needs a name of its own", ", ".join(repeated), "Rename with AS in the query.")
    for name in columns or ():
        if name not in available:
            raise DataError(f"The {what} must hold every column asked for", name, nearest_of([name], available))
    return list(available if columns is None else columns)


def plain(table: pa.Table, natives: Mapping[str, str], refused: Collection[str] = ()) -> pa.Table:
    """The same columns, cast to types of training tables.

    Decimals become integers if their scale is 0, else floats; instants with a time zone are in UTC.

    Args:
        table: a batch.
        natives: the database's name for each column's type, for errors.
        refused: names of types that cannot be used although their Arrow type could be.

    Raises:
        DataError: a column's type cannot be used, or a value does not fit; names column and type, never a value.
    """
    fields = [(field.name, natives.get(field.name, str(field.type)), field.type) for field in table.schema]
    refused_columns = [f"{name} ({native})" for name, native, kind in fields if native in refused or not _usable(kind)]
    if refused_columns:
        raise unusable(", ".join(refused_columns))
    return pa.table(
        [cast(table[name], _target(table[name].type), name) for name in table.column_names], table.column_names
    )


def unusable(columns: str) -> DataError:
    """The error for ``columns`` (with their types) that cannot be modelled."""
    return DataError(
        "A column must hold numbers, booleans, dates, instants or text",
        columns,
        "Name the other columns with columns = […], or convert in a query: SELECT CAST(… AS …) AS ….",
    )


def cast(column: pa.ChunkedArray, target: pa.DataType, name: str) -> pa.ChunkedArray:
    """``column`` as type ``target``.

    Raises:
        DataError: a value does not fit into it.
    """
    try:
        done = column if column.type == target else column.cast(target)
        fits = not pa.types.is_temporal(target) or pa.types.is_duration(target) or _in_calendar(done)
    except pa.ArrowException:
        fits = False
    if fits:
        return done
    spans = "the years 1 to 9999, no infinity" if pa.types.is_temporal(target) else f"the range of {target}"
    raise DataError(f"Every value of a column must fit into {spans}", f"column {name}", "Convert it in a query.")


def _in_calendar(column: pa.ChunkedArray) -> bool:
    """Whether Python's dates can hold all values; PostgreSQL's infinity arrives as a year far outside."""
    numbers = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    ends = pc.min_max(numbers).as_py()
    unit = 1 if pa.types.is_date32(column.type) else 86_400 * _PER_SECOND[column.type.unit]
    return ends["min"] is None or (-719_162 * unit <= ends["min"] and ends["max"] < 2_932_897 * unit)


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _usable(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return bool(pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type))
    return plain_arrow(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind)


def _target(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.float64() if kind.scale > 0 else pa.int64()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_date64(kind):
        return pa.date32()
    return pa.string() if pa.types.is_large_string(kind) else kind


_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_CLOSED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
"""Settings of DuckDB that restrict a query to the database: no other files, no network."""


def read_sqlite(address: Address, selection: Selection) -> Iterator[pa.Table]:
    """The rows in batches. SQLite has integers, floats and text only; dates and booleans come as they were stored.

    Raises:
        StorageError: no such file, or it is damaged or no SQLite database.
        DataError: no such table or column, or a column's values are of several types.
        ConfigError: the query cannot be run, or would write.
    """
    path = existing(address.name)
    return guarded(_sqlite(path, selection), (sqlite3.Error, sqlite3.Warning), lambda e: _sqlite_error(str(e), path))


def _sqlite(path: Path, selection: Selection) -> Iterator[pa.Table]:
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(
        sqlite3.connect(uri, uri=True, timeout=2, isolation_level=None, check_same_thread=False)
    ) as connection:
        connection.execute("BEGIN")  # both passes see the same rows
        available = _sqlite_columns(connection, selection) if selection.table else []
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY)
        if selection.table:
            names = chosen(selection.columns, available)
            query = select(names, selection.table)
        else:
            query = str(selection.query)
            names = [column[0] for column in connection.execute(query).description]
        columns = chosen(selection.columns, names, "query")
        types = _sqlite_types(connection, query, names, columns)
        places = [names.index(name) for name in columns]
        cursor = connection.execute(query)
        while rows := cursor.fetchmany(selection.batch_rows):
            across = list(zip(*rows, strict=True))
            arrays = [_array(across[i], types[name], name) for i, name in zip(places, columns, strict=True)]
            yield pa.table(arrays, columns)


def _sqlite_columns(connection: sqlite3.Connection, selection: Selection) -> list[str]:
    schema, name = ("main", *(selection.table or ()))[-2:]
    rows = connection.execute("SELECT name FROM pragma_table_xinfo(?, ?) WHERE hidden <> 1", (name, schema))
    names = [column for (column,) in rows]
    if not names:
        tables = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT GLOB 'sqlite_*'"
        raise no_table((name,), connection.execute(tables).fetchall(), "The file")
    return names


def _sqlite_types(
    connection: sqlite3.Connection, query: str, names: list[str], columns: list[str]
) -> dict[str, pa.DataType]:
    """The type of each column. In SQLite each value has its own type, so all values are examined."""
    numbered = ", ".join(f"c{i}" for i in range(len(names)))
    type_lists = ", ".join(f"group_concat(DISTINCT typeof(c{names.index(name)}))" for name in columns)
    (row,) = connection.execute(f"WITH silo({numbered}) AS (\n{query}\n) SELECT {type_lists} FROM silo").fetchall()
    types = {}
    for name, stored in zip(columns, row, strict=True):
        value_types = set((stored or "").split(",")) - {"", "null"}
        if "blob" in value_types:
            raise unusable(f"{name} (BLOB)")
        if len(value_types) > 1 and value_types != {"integer", "real"}:
            raise DataError(
                "All values of a column must be of one type",
                f"column {name} holds {' and '.join(sorted(value_types))}",
                "Convert it in a query: SELECT CAST(NULLIF(…, '') AS INTEGER) AS ….",
            )
        types[name] = _STORED["real" if len(value_types) > 1 else value_types.pop() if value_types else "null"]
    return types


_STORED = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "null": pa.null()}


def _array(values: tuple[Any, ...], kind: pa.DataType, name: str) -> pa.Array:
    try:
        return pa.array(values, kind)
    except pa.ArrowException:
        pass
    raise DataError(f"Every value of a column must fit into {kind}", f"column {name}", "Convert it in a query.")


def _sqlite_error(text: str, path: Path) -> SilosynthError:
    """The error for a message of SQLite, which may quote a value and is not shown."""
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


def read_duckdb(address: Address, selection: Selection) -> Iterator[pa.Table]:
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
    return guarded(_duckdb(duckdb, path, selection), kinds, lambda error: _duckdb_error(error, path))


def _duckdb(duckdb: Any, path: Path, selection: Selection) -> Iterator[pa.Table]:
    with closing(duckdb.connect(str(path), read_only=True, config=_CLOSED)) as connection:
        connection.execute("SET python_enable_replacements = false")  # nor variables of this program
        connection.execute("SET lock_configuration = true")
        if selection.table:
            available = _duckdb_columns(connection, selection.table)
            query = select(chosen(selection.columns, available), selection.table)
        else:
            query = str(selection.query)
        if [parsed.type for parsed in duckdb.extract_statements(query)] != [duckdb.StatementType.SELECT]:
            raise _writes()
        relation = connection.sql(query)
        columns = chosen(selection.columns, relation.columns, "query")
        natives = dict(zip(relation.columns, map(str, relation.types), strict=True))
        start = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
        with closing(start(selection.batch_rows)) as reader:
            for batch in reader:
                yield plain(pa.Table.from_batches([batch]).select(columns), natives)


def _duckdb_columns(connection: Any, table: tuple[str, ...]) -> list[str]:
    schema, name = ("main", *table)[-2:]
    rows = connection.execute(
        "SELECT column_name FROM duckdb_columns() WHERE database_name = current_database() AND table_name = ?"
        " AND schema_name = ? ORDER BY column_index",
        [name, schema],
    ).fetchall()
    if not rows:
        tables = connection.execute(
            "SELECT DISTINCT schema_name, table_name FROM duckdb_columns()"
            " WHERE database_name = current_database() AND NOT internal"
        ).fetchall()
        raise no_table(table, tables, "The file")
    return [column for (column,) in rows]


def _duckdb_error(error: Exception, path: Path) -> SilosynthError:
    """The error for the class of DuckDB's error, whose message may quote a value and is not shown."""
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
