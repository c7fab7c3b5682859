"""What reading from databases has in common: addresses, statements, plain column types, and errors that tell nothing.

A driver's error may quote cell values, the statement or the user. None is shown, and none is the cause or the context
of ours: `guarded` puts an error of our tree, made of fixed sentences, in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from silosynth.core.errors import ConfigError, DataError, SilosynthError, UnavailableError, nearest

Kind = Literal["postgresql", "sqlite", "duckdb"]
NAMES: dict[Kind, str] = {"postgresql": "PostgreSQL", "sqlite": "SQLite", "duckdb": "DuckDB"}
OPTIONS = (
    "application_name", "channel_binding", "connect_timeout", "host", "sslcert", "sslcrl", "sslkey", "sslmode",
    "sslrootcert", "target_session_attrs",
)  # fmt: skip
"""What may follow the ``?`` of a PostgreSQL address; libpq's documentation says what each does."""

_FORMS = "postgresql://host:5432/name, sqlite:///file.db or duckdb:///file.duckdb"


@dataclass(frozen=True)
class Address:
    """Where a database is, taken from its URL. Holds no password; ``user`` is not shown."""

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
class Wanted:
    """What is to be read: the columns of a table, or of a query's result; None for all."""

    table: tuple[str, ...] | None
    """Schema and name, or the name alone."""
    query: str | None = field(repr=False)
    columns: tuple[str, ...] | None
    batch_rows: int


def address(url: str) -> Address:
    """The parts of a database URL.

    Raises:
        ConfigError: it is no such URL, or holds a password. The URL is not shown, since it may hold one.
    """
    kind, found, rest = url.partition("://")
    if found and kind in ("postgresql", "postgres"):
        return _server(rest)
    if not found or kind not in NAMES or not rest.startswith("/") or len(rest) < 2 or "?" in rest or "#" in rest:
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
            raise ConfigError("The address holds an option that is not taken", shown, nearest(shown, OPTIONS))
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
        ConfigError: it is neither.
    """
    part = r'"(?:[^"]|"")+"|[^".]+'
    if "\0" in text or not re.fullmatch(rf"(?:{part})(?:\.(?:{part}))?", text):
        raise ConfigError("A table is named table or schema.table", text, 'Quote parts with dots: public."a.b".')
    parts = re.findall(part, text)
    return tuple(part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts)


def quoted(*names: str) -> str:
    """Names as an SQL identifier: ``"schema"."table"``."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def listed(names: Iterable[str]) -> str:
    """Columns as SQL: ``"a", "b"``."""
    return ", ".join(quoted(name) for name in names)


_NO_CODE = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$""", re.DOTALL
)


def statement(query: str) -> str:
    """The query without comments and the semicolon at its end: drivers put it into brackets.

    Raises:
        ConfigError: it is not one statement that reads. This is for the reader's sake: that nothing is written is seen
            to by a read-only transaction or connection.
    """
    code = _NO_CODE.sub(" ", query).strip()
    word = re.match(r"\(*\s*(\w*)", code)
    if word is None or word.group(1).lower() not in ("select", "with", "values"):
        raise ConfigError("A query must read: it starts with SELECT, WITH or VALUES", remedy="Rewrite it.")
    if ";" in code.rstrip("; \t\r\n"):
        raise ConfigError("A query must be one statement", "several, separated by semicolons", "Leave one.")
    bare = _NO_CODE.sub(lambda found: " " if found[0].startswith(("--", "/*")) else found[0], query)
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
    """The same batches; an error of these ``kinds`` is replaced by its translation, and forgotten."""
    try:
        yield from batches
        return
    except kinds as error:
        refused = translate(error)
    raise refused  # out of the handler: the driver's error is not its context


def no_table(wanted: Sequence[str], readable: Iterable[Sequence[str]], what: str = "The database") -> DataError:
    """The error for a table that is not there; names the nearest that can be read."""
    known = sorted({".".join(names[-len(wanted) :]) for names in readable})
    return DataError(
        f"{what} must hold the table, and let the user see it", ".".join(wanted), nearest_of(wanted, known)
    )


def nearest_of(wanted: Sequence[str], known: Sequence[str]) -> str:
    """`nearest`, but no list of names when there are very many."""
    hint = nearest(".".join(wanted), known)
    return hint if len(hint) < 300 else f"{len(known)} others are there; none has a similar name."


def chosen(columns: Sequence[str] | None, held: Sequence[str], what: str = "table") -> list[str]:
    """The ``columns`` asked for, in that order, or all that are ``held``.

    Raises:
        DataError: one is not there, or a name occurs twice.
    """
    if len(set(held)) < len(held):
        twice = sorted({name for name in held if held.count(name) > 1})
        raise DataError("Every column needs a name of its own", ", ".join(twice), "Rename with AS in the query.")
    for name in columns or ():
        if name not in held:
            raise DataError(f"The {what} must hold every column asked for", name, nearest_of([name], held))
    return list(held if columns is None else columns)


def plain(table: pa.Table, natives: Mapping[str, str], refused: Collection[str] = ()) -> pa.Table:
    """The same columns as types that tables of training rows hold.

    Decimals become whole numbers where their scale is 0, and floats elsewhere; instants with a zone come in UTC.

    Args:
        table: a batch.
        natives: by column, what the database calls its type; for errors.
        refused: types, as the database calls them, that cannot be used although their Arrow type could be.

    Raises:
        DataError: a column's type cannot be used, or a value does not fit; names column and type, never the value.
    """
    fields = [(field.name, natives.get(field.name, str(field.type)), field.type) for field in table.schema]
    strange = [f"{name} ({native})" for name, native, kind in fields if native in refused or not _usable(kind)]
    if strange:
        raise unusable(", ".join(strange))
    return pa.table(
        [cast(table[name], _target(table[name].type), name) for name in table.column_names], table.column_names
    )


def unusable(columns: str) -> DataError:
    """The error for ``columns`` (with their types) that no model is trained on."""
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
    """Whether all lie where Python's dates do; PostgreSQL's infinity arrives as a year far outside."""
    whole = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    ends = pc.min_max(whole).as_py()
    unit = 1 if pa.types.is_date32(column.type) else 86_400 * _PER_SECOND[column.type.unit]
    return ends["min"] is None or (-719_162 * unit <= ends["min"] and ends["max"] < 2_932_897 * unit)


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _usable(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return bool(types.is_string(kind.value_type) or types.is_large_string(kind.value_type))
    tests = (
        types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_string,
        types.is_large_string, types.is_date, types.is_timestamp, types.is_duration,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def _target(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.float64() if kind.scale > 0 else pa.int64()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_date64(kind):
        return pa.date32()
    return pa.string() if pa.types.is_large_string(kind) else kind
