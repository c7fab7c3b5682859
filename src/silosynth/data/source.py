"""Where a silo's rows live: a file, or a table or query of a database; read in batches, credentials kept to itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa

from silosynth.core.errors import ConfigError, DataError, nearest
from silosynth.core.files import storage_error
from silosynth.data import sources
from silosynth.data.databases import NAMES, Address, Wanted, address, statement, table_name
from silosynth.data.embedded import read_duckdb, read_sqlite
from silosynth.data.frames import from_arrow, to_pandas
from silosynth.data.postgresql import Login, read_postgresql

_LOGIN = ("user", "user_env", "password_env", "password_file")


@dataclass(frozen=True, repr=False)
class Source:
    """Where a silo's rows live. Exactly one of ``path`` and ``database``.

    Its representation is `describe`: it can stand in a log.
    """

    path: Path | None = None
    """A CSV, Parquet or Arrow file."""
    database: str | None = None
    """``postgresql://host:5432/name``, ``sqlite:///file.db`` or ``duckdb:///file.duckdb``; a fourth slash begins an
    absolute path."""
    table: str | None = None
    """``schema.table``, or the table alone; with a database, exactly one of this and ``query``."""
    query: str | None = None
    """One SELECT statement. It cannot write."""
    columns: tuple[str, ...] | None = None
    """Only these, in this order; None for all."""
    user: str | None = None
    """The PostgreSQL user; otherwise ``user_env``, the one in the URL, or libpq's usual ``PGUSER``."""
    user_env: str | None = None
    """Name of an environment variable that holds the user."""
    password_env: str | None = None
    """Name of an environment variable that holds the password."""
    password_file: Path | None = None
    """File that holds the password and nothing else; nobody but its owner may read it."""
    batch_rows: int = 50_000
    """Rows per batch."""

    def __repr__(self) -> str:
        return f"Source({self.describe()})"

    def check(self) -> None:
        """Look at the settings before anything is read.

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
        """All rows, with the dtypes that `silosynth.data.sources.read` gives the same table in Parquet.

        Raises:
            SilosynthError: what `check` raises, and what reading the file or the database does. Nothing of a
                credential, a statement or a cell stands in it.
        """
        self.check()
        if self.path is not None:
            frame = sources.read(self.path, self.columns)
            return frame if self.columns is None else frame[list(self.columns)]
        tables = list(self._tables())
        if not tables:
            raise _empty()
        return to_pandas(from_arrow(pa.concat_tables(tables)))

    def batches(self) -> Iterator[pd.DataFrame]:
        """The rows in frames of ``batch_rows`` rows, the last one shorter; one in memory at a time.

        Columns of whole numbers and booleans have nullable dtypes throughout, since a later batch may lack values. Two
        things cannot be read in parts: a CSV file is read whole, since all of a column says what it holds; and
        categories are those of a batch.

        Raises:
            SilosynthError: as `load`.
        """
        self.check()
        if self.path is not None:
            for frame in sources.read_batches(self.path, self.batch_rows, self.columns):
                yield _steady(frame if self.columns is None else frame[list(self.columns)])
            return
        none = True
        for table in sources.sized(self._tables(), self.batch_rows):
            none = False
            yield _steady(from_arrow(table))
        if none:
            raise _empty()

    def describe(self) -> str:
        """For logs: kind, host, table or file; no user, password or text of a query."""
        if self.path is not None:
            return f"file {self.path}"
        try:
            place = address(self.database or "")
        except ConfigError:
            return "database (its address is not valid)"
        return f"{NAMES[place.kind]} {place}, " + ("a query" if self.table is None else f"table {self.table}")

    def within(self, folder: Path) -> Source:
        """The same source with relative paths taken from ``folder``, such as that of the file it is written in.

        Raises:
            ConfigError: the database's address is malformed or holds a password.
        """
        found = replace(
            self,
            path=None if self.path is None else folder / self.path,
            password_file=None if self.password_file is None else folder / self.password_file,
        )
        place = None if self.database is None else address(self.database)
        if place is None or place.kind == "postgresql":
            return found
        return replace(found, database=f"{place.kind}:///{quote((folder / place.name).as_posix(), safe='/:')}")

    def _check_columns(self) -> None:
        if self.columns is not None and not self.columns:
            raise ConfigError("At least one column is read", "columns = []", "Leave columns out for all of them.")
        twice = sorted({name for name in self.columns or () if (self.columns or ()).count(name) > 1})
        if twice:
            raise ConfigError("A column is named once", ", ".join(twice), "Remove it from columns.")

    def _check_file(self) -> None:
        spare = [name for name in ("table", "query", *_LOGIN) if getattr(self, name) is not None]
        if spare:
            raise ConfigError("Only a database has this setting", spare[0], "Remove it, or give database, not path.")
        suffix = Path(self.path or "").suffix.lower()
        if suffix not in sources.SUFFIXES:
            rule = "A table's file name ends in " + ", ".join(sources.SUFFIXES)
            raise ConfigError(rule, str(self.path), nearest(suffix, sources.SUFFIXES))

    def _check_database(self) -> None:
        place = address(self.database or "")
        if (self.table is None) == (self.query is None):
            raise ConfigError("From a database, one of table and query is read", "both" if self.table else "neither")
        _ = self._wanted()
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

    def _wanted(self) -> Wanted:
        table = None if self.table is None else table_name(self.table)
        query = None if self.query is None else statement(self.query)
        return Wanted(table, query, self.columns, self.batch_rows)

    def _tables(self) -> Iterator[pa.Table]:
        place, wanted = address(self.database or ""), self._wanted()
        if place.kind == "postgresql":
            return read_postgresql(place, self._login(place), wanted)
        return (read_sqlite if place.kind == "sqlite" else read_duckdb)(place, wanted)

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
    """A file descriptor of a file that others cannot read."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would have us wait
    except OSError as error:
        raise ConfigError(
            "The password's file must be readable", f"{path}: {error.strerror}", "Check password_file."
        ) from None
    about = os.fstat(handle)
    if stat.S_ISREG(about.st_mode) and (os.name == "nt" or not about.st_mode & (0o037 if about.st_uid == 0 else 0o077)):
        return handle
    os.close(handle)
    raise ConfigError(
        "The password's file is an ordinary file that only its owner can read (where root owns it, also its group)",
        f"{path}: mode {stat.S_IMODE(about.st_mode):04o}",
        f"chmod 600 {path}",
    )


def _secret(path: Path) -> str:
    """The password in a file, without the line end."""
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


def _steady(frame: pd.DataFrame) -> pd.DataFrame:
    """The batch with nullable dtypes where a missing value would otherwise change the dtype."""
    nullable = {
        str(name): "boolean" if dtype.kind == "b" else ("U" if dtype.kind == "u" else "") + f"Int{8 * dtype.itemsize}"
        for name, dtype in frame.dtypes.items()
        if isinstance(dtype, np.dtype) and dtype.kind in "biu"
    }
    return frame.astype(nullable) if nullable else frame
