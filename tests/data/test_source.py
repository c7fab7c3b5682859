"""Settings of a source: checked before anything is read, silent about credentials; files in batches."""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

from silosynth.core.errors import ConfigError, DataError, SilosynthError, StorageError
from silosynth.data.sources import Source, read, write

PG = "postgresql://db.internal:5432/crm"
SECRET = "s3cr3t-Pa55"


def refused(source: Source, *words: str) -> None:
    for ask in (source.check, source.load, lambda: list(source.batches())):
        with pytest.raises(ConfigError) as caught:
            ask()
        assert all(word in str(caught.value) for word in words), str(caught.value)
        shown = "".join(traceback.format_exception(caught.value)) + repr(source)
        assert "s3cr3t" not in shown and "Pa55" not in shown


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ("one of path and database", "neither")),
        ({"path": Path("a.csv"), "database": PG}, ("one of path and database", "both")),
        ({"path": Path("a.csv"), "table": "t"}, ("Only a database", "table")),
        ({"path": Path("a.csv"), "password_env": "X"}, ("Only a database", "password_env")),
        ({"path": Path("a.xls")}, ("ends in", "a.xls")),
        ({"path": Path("a.csv"), "batch_rows": 0}, ("at least one row", "0")),
        ({"path": Path("a.csv"), "columns": ()}, ("At least one column",)),
        ({"path": Path("a.csv"), "columns": ("a", "b", "a")}, ("named once", "got: a")),
        ({"database": PG}, ("one of table and query", "neither")),
        ({"database": PG, "table": "t", "query": "SELECT 1"}, ("one of table and query", "both")),
        ({"database": PG, "table": "a.b.c"}, ("schema.table", "a.b.c")),
        ({"database": PG, "table": ""}, ("schema.table",)),
        ({"database": PG, "query": "DELETE FROM t"}, ("must read", "SELECT")),
        ({"database": PG, "query": f"COPY t FROM '{SECRET}'"}, ("must read",)),
        ({"database": PG, "query": ""}, ("must read",)),
        ({"database": PG, "query": f"SELECT '{SECRET}'; DROP TABLE t"}, ("one statement",)),
        ({"database": PG, "table": "t", "password_env": "A", "password_file": Path("b")}, ("one place", "Remove one")),
        ({"database": PG, "table": "t", "user_env": "A", "user": SECRET}, ("one place", "user and user_env")),
        ({"database": PG, "table": "t", "password_env": "NOT_SET_HERE"}, ("must be set", "NOT_SET_HERE")),
        ({"database": PG, "table": "t", "password_file": Path("nowhere/pw")}, ("must be readable", "nowhere/pw")),
        ({"database": "sqlite:///a.db", "table": "t", "user": "x"}, ("no log-in", "user")),
        ({"database": "sqlite:///", "table": "t"}, ("known form", "sqlite:///file.db")),
        ({"database": "sqlite:///a.db?mode=rwc", "table": "t"}, ("known form",)),
        ({"database": "mysql://h/d", "table": "t"}, ("known form",)),
        ({"database": f"host=db password={SECRET}", "table": "t"}, ("known form",)),
        ({"database": "postgresql://h:5432", "table": "t"}, ("well formed",)),
        ({"database": "postgresql://h:port/d", "table": "t"}, ("well formed",)),
        ({"database": "postgresql://h/d?sslmod=require", "table": "t"}, ("not supported", "sslmod", "'sslmode'")),
        ({"database": "postgresql://h/d?options=-crole%3Dx", "table": "t"}, ("not supported", "options")),
    ],
)
def test_settings_that_contradict_each_other(given: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(Source(**given), *words)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://reader:{SECRET}@db.internal/crm",
        f"postgres://reader:{SECRET}@db.internal:5432/crm",
        f"postgresql://:{SECRET}@db.internal/crm",
        f"postgresql://reader:{SECRET}/x@db.internal/crm",
        f"postgresql://reader:{SECRET}?x@db.internal/crm",
        f"postgresql://reader:{SECRET}#x@db.internal/crm",
        f"postgresql://reader:{SECRET}@x@db.internal/crm",
        f"postgresql://db.internal/crm?password={SECRET}",
        f"postgresql://db.internal/crm?user=a&password={SECRET}&sslmode=require",
        f"postgresql://db.internal/crm?passfile=/{SECRET}",
        f"postgresql://db.internal:{SECRET}/crm",
        f"postgresql://db.internal/crm?{SECRET}",
        f"postgresql://db.internal/crm?{SECRET}=1",
        f"postgresql://db.internal/crm#{SECRET}",
        f"postgresql://[{SECRET}/crm",
        f"sqlserver://sa:{SECRET}@h/d",
    ],
)
def test_no_password_in_an_address(url: str, caplog: pytest.LogCaptureFixture) -> None:
    source = Source(database=url, table="t")
    refused(source)
    with pytest.raises(ConfigError) as caught:
        source.within(Path("/etc"))
    logging.getLogger("test").warning("reading %s: %s", source, caught.value)
    assert "s3cr3t" not in caplog.text
    if f":{SECRET}" in url and "@db" in url:
        with pytest.raises(ConfigError, match=r"logs and process lists.*password_file or password_env"):
            source.check()


@pytest.mark.parametrize(
    "query",
    [
        "select 1 ; ",
        "-- which rows;\n WITH t AS (SELECT ';' AS a) SELECT * FROM t",
        "/* ; */ (SELECT 1) UNION (SELECT 2);;",
        "VALUES ('it''s; fine'), (E'\\';'), ($x$;$x$), (\";\")",
    ],
)
def test_one_statement_with_semicolons_that_end_nothing(query: str) -> None:
    Source(database=PG, query=query).check()


@pytest.mark.skipif(os.name == "nt", reason="no file modes")
def test_the_password_file_is_the_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    source = Source(database="postgresql://127.0.0.1:1/crm", table="t", user="u", password_file=file)
    for mode in (0o644, 0o604, 0o666, 0o660, 0o620):
        file.chmod(mode)
        refused(source, "only its owner", f"mode {mode:04o}", "chmod 600")
    for mode in (0o600, 0o400):
        file.chmod(mode)
        source.check()
    for content in (b"", b"\n", b"two\nlines", b"\xff\xfe", b"a\0b"):
        file.chmod(0o600)
        file.write_bytes(content)
        pytest.importorskip("adbc_driver_postgresql")
        with pytest.raises(ConfigError, match="one line of UTF-8") as caught:
            source.load()
        assert caught.value.__context__ is None
    refused(Source(database=PG, table="t", password_file=tmp_path), "ordinary file")


def test_what_is_said_of_a_source(tmp_path: Path) -> None:
    query = f"SELECT * FROM t WHERE name = '{SECRET}'"
    given = {"user": "reader_7", "password_env": "X"}
    assert Source(path=Path("rows.parquet")).describe() == "file rows.parquet"
    assert Source(database=PG, table="public.customers", **given).describe() == (
        "PostgreSQL db.internal:5432/crm, table public.customers"
    )
    by_query = Source(database="postgresql://reader_7@db/crm?sslmode=verify-full", query=query, **given)
    assert by_query.describe() == "PostgreSQL db/crm, a query"
    assert repr(by_query) == str(by_query) == "Source(PostgreSQL db/crm, a query)"
    assert Source(database="postgresql:///crm?host=/run/pg", table="t").describe() == "PostgreSQL /run/pg/crm, table t"
    assert Source(database="sqlite:////a/b.db", table="t").describe() == "SQLite /a/b.db, table t"
    assert Source(database="duckdb:///b.duckdb", query=query).describe() == "DuckDB b.duckdb, a query"


def test_paths_are_taken_from_a_folder() -> None:
    folder = Path("/etc/silo")
    assert Source(path=Path("a.csv")).within(folder).path == folder / "a.csv"
    assert Source(path=Path("/b/a.csv")).within(folder).path == Path("/b/a.csv")
    assert Source(database="sqlite:///x/a%20b.db").within(folder).database == "sqlite:////etc/silo/x/a%20b.db"
    assert Source(database="duckdb:////x.db").within(folder).database == "duckdb:////x.db"
    moved = Source(database=PG, password_file=Path("pw")).within(folder)
    assert (moved.database, moved.password_file) == (PG, folder / "pw")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_files_in_batches(tmp_path: Path, people: pd.DataFrame, suffix: str) -> None:
    path = tmp_path / f"people{suffix}"
    write(people, path)
    pd.testing.assert_frame_equal(Source(path=path).load(), read(path))
    source = Source(path=path, columns=("region", "age", "income"), batch_rows=150)
    pd.testing.assert_frame_equal(source.load(), people[["region", "age", "income"]])
    batches = list(source.batches())
    assert [len(batch) for batch in batches] == [150, 150, 100]
    assert {tuple(map(str, batch.dtypes)) for batch in batches} == {("str", "Int64", "float64")}
    pd.testing.assert_frame_equal(
        pd.concat(batches, ignore_index=True).astype({"age": "int64"}), people[["region", "age", "income"]]
    )
    for ask in (source.load, lambda: list(source.batches())):
        path.unlink(missing_ok=True)
        with pytest.raises(StorageError, match="must exist"):
            ask()


def test_values_that_are_missing_late_do_not_change_a_batch(tmp_path: Path) -> None:
    late = [None if i == 90 else i for i in range(100)]
    frame = pl.DataFrame({"n": late, "b": [None if i is None else i > 3 for i in late], "s": ["x"] * 100})
    frame.write_parquet(tmp_path / "t.parquet", row_group_size=7)
    frame.write_ipc_stream(tmp_path / "t.arrow")
    for name in ("t.parquet", "t.arrow"):
        batches = list(Source(path=tmp_path / name, batch_rows=32).batches())
        assert [len(batch) for batch in batches] == [32, 32, 32, 4]
        assert {tuple(map(str, batch.dtypes)) for batch in batches} == {("Int64", "boolean", "str")}
        assert pd.concat(batches)["n"].isna().sum() == 1


def test_bad_files_in_batches(tmp_path: Path) -> None:
    def fails(name: str, kind: type[SilosynthError], words: str, **given: Any) -> None:
        with pytest.raises(kind, match=words):
            list(Source(path=tmp_path / name, **given).batches())

    pl.DataFrame({"a": [1, 2]}).write_parquet(tmp_path / "t.parquet")
    fails("t.parquet", DataError, "Did you mean 'a'", columns=("aa",))
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    fails("cut.parquet", StorageError, "whole Parquet")
    (tmp_path / "cut.arrow").write_bytes(b"ARROW1 no")
    fails("cut.arrow", StorageError, "whole Parquet or Arrow")
    pl.DataFrame({"a": []}).write_parquet(tmp_path / "none.parquet")
    fails("none.parquet", DataError, "at least one row")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    fails("t.csv", DataError, "no such column", columns=("c",))
