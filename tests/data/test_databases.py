"""Rows out of real databases: types, order, names; refusals that say what to do and give nothing away."""

from __future__ import annotations

import datetime as dt
import socket
import sqlite3
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests import postgres
from tests.postgres import READER, READER_PASSWORD, Postgres

from silosynth.core.errors import ConfigError, DataError, SilosynthError, StorageError, UnavailableError
from silosynth.data.sources import Source, read, write
from silosynth.runtime.tls import Authority

SECRET = "Zweig-7741"  # stands for a cell value in tables and queries; must not be seen in an error


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with postgres.running() as started:
        started.run(
            "CREATE SCHEMA sales",
            f"GRANT USAGE ON SCHEMA sales TO {READER}",
            "CREATE TYPE sales.mood AS ENUM ('low', 'high')",
            "CREATE DOMAIN sales.age AS int CHECK (value > 0)",
            """CREATE TABLE sales.plain (
                i2 smallint, i4 integer, i8 bigint, f4 real, f8 double precision, n numeric, n0 numeric(10, 0),
                n2 numeric(10, 2), b boolean, d date, ts timestamp, tz timestamptz, tx text, vc varchar(9),
                u uuid, e sales.mood, a sales.age)""",
            """INSERT INTO sales.plain VALUES
                (1, 2, 9007199254740993, 1.5, 0.1, 1.25, 12, 3.75, true, '2020-01-02', '2020-01-02 03:04:05.6',
                '2020-01-02 03:04:05+02', 'ä', 'v', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'low', 30),
                (-1, NULL, -5, 'NaN', 'Infinity', 'NaN', NULL, 0.01, NULL, '1899-12-31', '1969-12-31 23:59:59', NULL,
                '', NULL, NULL, NULL, NULL)""",
            """CREATE TABLE sales.odd (id int, photo bytea, tags text[], facts jsonb, price money, span interval,
                at time, place point)""",
            f'INSERT INTO sales.odd (id, facts) VALUES (1, \'{{"name": "{SECRET}"}}\')',
            "CREATE TABLE sales.customers (customer_id int, age int, note text)",
            f"INSERT INTO sales.customers SELECT i, i % 90, '{SECRET}' FROM generate_series(1, 1000) i",
            "CREATE TABLE sales.hidden (x int)",
            "CREATE TABLE sales.empty (x int, s text)",
            'CREATE TABLE sales."Odd.Name" ("Mixed ""case""" int)',
            'INSERT INTO sales."Odd.Name" VALUES (7)',
            "CREATE TABLE sales.ends (d date, ts timestamp)",
            "INSERT INTO sales.ends VALUES ('infinity', '-infinity')",
            f'GRANT SELECT ON sales.plain, sales.odd, sales.empty, sales.ends, sales."Odd.Name" TO {READER}',
            f"GRANT SELECT (customer_id, age) ON sales.customers TO {READER}",
            f"GRANT INSERT, DELETE ON sales.empty TO {READER}",
        )
        yield started


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(READER_PASSWORD + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def ask(server: Postgres, secret_file: Path) -> Any:
    return lambda **settings: Source(
        **{"database": server.url, "user": READER, "password_file": secret_file} | settings
    )


def refused(source: Source, kind: type[SilosynthError], *words: str) -> None:
    """Loading fails with an error of this kind that has these words, and gives nothing away."""
    with pytest.raises(kind) as caught:
        source.load()
    assert all(word in str(caught.value) for word in words), str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(private in shown for private in (READER_PASSWORD, READER, SECRET, "s3cr3t", "Zweig")), shown
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.live
def test_postgresql_types(ask: Any, tmp_path: Path) -> None:
    frame = ask(table="sales.plain").load()
    expected = {
        "i2": "int16", "i4": "Int32", "i8": "int64", "f4": "float32", "f8": "float64", "n": "float64", "n0": "Int64",
        "n2": "float64", "b": "boolean", "d": "object", "ts": "datetime64[us]", "tz": "datetime64[us, UTC]",
        "a": "Int32",
    }  # fmt: skip
    assert {name: str(frame.dtypes[name]) for name in expected} == expected
    first = frame.iloc[0]
    assert (first["i8"], first["n"], first["n0"], first["n2"], first["b"]) == (2**53 + 1, 1.25, 12, 3.75, True)
    assert (first["d"], first["tx"], first["e"], first["a"]) == (dt.date(2020, 1, 2), "ä", "low", 30)
    assert first["tz"] == pd.Timestamp("2020-01-02 01:04:05", tz="UTC")
    assert first["u"] == "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    second = frame.iloc[1]
    assert second["tx"] == "" and np.isinf(second["f8"]) and second["d"] == dt.date(1899, 12, 31)
    assert pd.isna(second[["i4", "f4", "n", "n0", "b", "tz", "vc", "u", "e", "a"]]).all()
    write(frame, tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read(tmp_path / "t.parquet"), frame)


@pytest.mark.live
def test_columns_in_the_order_asked_for_and_only_those_that_may_be_read(ask: Any) -> None:
    frame = ask(table="sales.customers", columns=("age", "customer_id")).load()
    assert list(frame.columns) == ["age", "customer_id"] and len(frame) == 1000
    refused(ask(table="sales.customers"), StorageError, "must be allowed", "42501", "GRANT SELECT", "columns")
    refused(ask(table="sales.customers", columns=("ages",)), DataError, "must hold every column", "Did you mean 'age'?")
    refused(ask(table="sales.hidden"), StorageError, "must be allowed")
    odd = ask(table='sales."Odd.Name"').load()
    assert odd.to_dict("list") == {'Mixed "case"': [7]}


@pytest.mark.live
def test_postgresql_batches_are_of_one_size_and_one_kind(ask: Any) -> None:
    source = ask(query="SELECT i, nullif(i, 800) AS n, i > 5 AS b FROM generate_series(1, 1000) i", batch_rows=300)
    batches = list(source.batches())
    assert [len(batch) for batch in batches] == [300, 300, 300, 100]
    assert {tuple(map(str, batch.dtypes)) for batch in batches} == {("Int32", "Int32", "boolean")}
    assert pd.concat(batches)["i"].tolist() == list(range(1, 1001))
    part = source.batches()
    next(part)
    part.close()  # a reader that stops early leaves nothing open
    with ThreadPoolExecutor(2) as pool:  # silos' processes read in threads
        assert [len(frame) for frame in pool.map(lambda _: source.load(), range(2))] == [1000, 1000]


@pytest.mark.live
def test_many_rows_cross_in_several_messages(ask: Any) -> None:
    rows = 300_000
    frame = ask(query=f"SELECT i, repeat('x', 90) AS s FROM generate_series(1, {rows}) i").load()
    assert len(frame) == rows and frame["i"].is_monotonic_increasing


@pytest.mark.live
def test_postgresql_queries(ask: Any) -> None:
    frame = ask(query="WITH t AS (SELECT age FROM sales.customers) SELECT avg(age) AS m, count(*) AS n FROM t;").load()
    assert frame.to_dict("list") == {"m": [pytest.approx(44.4, abs=0.5)], "n": [1000]}
    commented = "SELECT '-- /* ; ' AS a, 2 AS b /* two; */ -- not; this\n; -- nor this;"
    assert ask(query=commented).load().to_dict("list") == {"a": ["-- /* ; "], "b": [2]}
    refused(ask(query="SELECT age, age FROM sales.customers"), DataError, "a name of its own", "age", "AS")
    refused(ask(query="SELECT 1 AS a", columns=("b",)), DataError, "query must hold", "Known: a.")
    refused(ask(query=f"SELECT '{SECRET}'::int AS x"), DataError, "22P02", "run on all values")
    refused(ask(query=f"SELECT note::int FROM (VALUES ('1'), ('{SECRET}')) v (note)"), DataError, "run on all values")
    refused(ask(query="SELECT 1/(i - 70000) FROM generate_series(1, 100000) i"), DataError, "22012")
    refused(ask(query=f"SELECT '{SECRET}' FROM nowhere"), DataError, "42P01")
    refused(ask(query="SELECT nothing FROM sales.empty"), DataError, "42703")
    refused(ask(query=f"SELECT FROM WHERE '{SECRET}'"), ConfigError, "one valid SELECT", "42601")


@pytest.mark.live
@pytest.mark.parametrize(
    "query",
    [
        "WITH w AS (INSERT INTO sales.empty VALUES (1) RETURNING x) SELECT * FROM w",
        "WITH w AS (DELETE FROM sales.empty RETURNING x) SELECT * FROM w",
        "SELECT set_config('transaction_read_only', 'off', false) AS x",
        "SELECT nextval('sales.counter') AS x",
    ],
)
def test_a_query_cannot_write(ask: Any, server: Postgres, query: str) -> None:
    server.run("CREATE SEQUENCE IF NOT EXISTS sales.counter", f"GRANT USAGE ON sales.counter TO {READER}")
    refused(ask(query=query), ConfigError, "must only read", "SQLSTATE 2500")
    refused(ask(table="sales.empty"), DataError, "at least one row")


@pytest.mark.live
def test_postgresql_types_that_no_model_is_trained_on(ask: Any) -> None:
    refused(
        ask(table="sales.odd"), DataError, "photo (bytea)", "tags (_text)", "facts (jsonb)", "price (money)",
        "span (interval)", "at (time)", "place (point)", "CAST",
    )  # fmt: skip
    assert ask(table="sales.odd", columns=("id",)).load()["id"].tolist() == [1]
    refused(ask(table="sales.ends", columns=("d",)), DataError, "column d", "infinity")
    refused(ask(table="sales.ends", columns=("ts",)), DataError, "column ts", "infinity")
    refused(ask(query="SELECT 12345678901234567890::numeric(20) AS n"), DataError, "column n", "int64")
    refused(ask(query="SELECT 'NaN'::numeric(5, 0) AS n"), DataError, "column n")


@pytest.mark.live
def test_tables_that_are_not_there(ask: Any) -> None:
    refused(ask(table="sales.costumers"), DataError, "must hold the table", "Did you mean 'sales.customers'?")
    refused(ask(table="plainn"), DataError, "must hold the table", "plain")
    refused(ask(table="sales.empty"), DataError, "at least one row")
    with pytest.raises(DataError, match="at least one row"):
        list(ask(table="sales.empty").batches())


@pytest.mark.live
def test_wrong_credentials(ask: Any, server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    wrong = tmp_path / "wrong"
    wrong.write_text("s3cr3t-but-another")
    wrong.chmod(0o600)
    refused(
        ask(table="sales.plain", password_file=wrong), StorageError, "must accept user and password", "password_file"
    )
    refused(ask(table="sales.plain", user=READER + "x"), StorageError, "must accept user and password")
    refused(ask(table="sales.plain", password_file=None), StorageError, "must accept user and password")
    monkeypatch.setenv("CRM_PASSWORD", READER_PASSWORD)
    monkeypatch.setenv("CRM_USER", READER)
    by_name = {"password_file": None, "password_env": "CRM_PASSWORD", "user": None}
    assert len(ask(table="sales.plain", user_env="CRM_USER", **by_name).load()) == 2
    assert len(ask(database=server.url.replace("//", f"//{READER}@"), table="sales.plain", **by_name).load()) == 2
    monkeypatch.setenv("PGUSER", READER)
    assert len(ask(table="sales.plain", **by_name).load()) == 2


@pytest.mark.live
def test_servers_that_are_not_there(ask: Any, server: Postgres) -> None:
    there = f"127.0.0.1:{server.port}"
    refused(
        ask(table="t", database=server.url.replace("/crm", "/erp")),
        StorageError,
        "database must exist",
        f"{there}/erp",
    )
    refused(ask(table="t", database="postgresql://127.0.0.1:1/crm"), StorageError, "must listen", "127.0.0.1:1/crm")
    refused(ask(table="t", database="postgresql://db.invalid/crm"), StorageError, "must be known", "db.invalid/crm")


@pytest.mark.live
def test_tls(ask: Any, server: Postgres, tmp_path: Path) -> None:
    query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    for options, encrypted in (
        (f"?sslmode=verify-full&sslrootcert={server.authority}&connect_timeout=9", True),
        ("?sslmode=require", True),
        ("?sslmode=disable", False),
    ):
        assert ask(query=query, database=server.url + options).load()["ssl"].tolist() == [encrypted]
    (tmp_path / "ca.pem").write_bytes(Authority().coordinator().authority)
    wrong = f"?sslmode=verify-full&sslrootcert={tmp_path}/ca.pem"
    refused(ask(query=query, database=server.url + wrong), StorageError, "certificate", "be accepted")
    with closing(socket.create_server(("127.0.0.1", 0))) as plain:
        Thread(target=_speak_no_tls, args=[plain], daemon=True).start()
        url = f"postgresql://127.0.0.1:{plain.getsockname()[1]}/crm?sslmode=require"
        refused(ask(query=query, database=url), StorageError, "must speak TLS", "sslmode")


def _speak_no_tls(listening: socket.socket) -> None:
    """Answer as a server without TLS does, once."""
    with listening.accept()[0] as client:
        client.recv(8)
        client.send(b"N")
        client.recv(1)


@pytest.mark.live
def test_notices_do_not_reach_our_output(ask: Any, server: Postgres, capfd: pytest.CaptureFixture[str]) -> None:
    server.run(
        f"CREATE OR REPLACE FUNCTION sales.loud() RETURNS int STABLE LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE WARNING '{SECRET}'; RETURN 1; END $$"
    )
    assert ask(query="SELECT sales.loud() AS x").load()["x"].tolist() == [1]
    assert capfd.readouterr() == ("", "")


@pytest.mark.live
def test_a_server_that_goes_away_while_rows_come(ask: Any, server: Postgres) -> None:
    batches = ask(query="SELECT i, repeat('y', 900) AS s FROM generate_series(1, 100000) i", batch_rows=5000).batches()
    next(batches)
    server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{READER}'")
    with pytest.raises(StorageError, match="stay so"):
        list(batches)


@pytest.fixture
def lite(tmp_path: Path) -> Path:
    path = tmp_path / "rows #1?.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            f"""CREATE TABLE plain (n INTEGER, x REAL, s TEXT, gap INTEGER, none INTEGER, loose NUMERIC);
            INSERT INTO plain VALUES (9007199254740993, 0.5, 'ä', 1, NULL, 1), (2, 1e300, '', NULL, NULL, 1.5);
            CREATE TABLE mixed (id INTEGER, age INTEGER, photo BLOB);
            INSERT INTO mixed VALUES (1, 30, x'00'), (2, '{SECRET}', NULL);
            CREATE TABLE empty (a INTEGER);
            CREATE TABLE many (i INTEGER, late INTEGER);
            CREATE TABLE bad (t TEXT);
            INSERT INTO bad VALUES (CAST(x'5a77656967ff' AS TEXT));
            CREATE VIEW seen AS SELECT n * 2 AS twice FROM plain;"""
        )
        connection.executemany("INSERT INTO many VALUES (?, ?)", [(i, i if i > 90 else None) for i in range(100)])
    return path


def _lite(path: Path, **given: Any) -> Source:
    url = "sqlite:///" + str(path).replace("?", "%3F").replace("#", "%23")
    return Source(database=url, **given)


def test_sqlite(lite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = _lite(lite, table="plain").load()
    assert frame.dtypes.astype(str).tolist() == ["int64", "float64", "str", "Int64", "object", "float64"]
    assert frame["n"].tolist() == [2**53 + 1, 2] and frame["s"].tolist() == ["ä", ""]
    assert _lite(lite, table="main.seen").load()["twice"].tolist() == [2**54 + 2, 4]
    batches = list(_lite(lite, table="many", batch_rows=40, columns=("late", "i")).batches())
    assert [len(batch) for batch in batches] == [40, 40, 20] and list(batches[0].columns) == ["late", "i"]
    assert {tuple(map(str, batch.dtypes)) for batch in batches} == {("Int64", "Int64")}
    monkeypatch.chdir(tmp_path)
    assert len(Source(database="sqlite:///rows %231%3F.db", query="SELECT i FROM many -- all\n; -- done").load()) == 100
    assert Source(database="sqlite:///rows %231%3F.db", table="many").within(Path("/x")).describe().startswith(
        "SQLite /x/rows #1?.db"
    )  # fmt: skip


def test_sqlite_refusals(lite: Path, tmp_path: Path) -> None:
    refused(
        _lite(lite, table="mixed", columns=("age",)), DataError, "one type", "column age", "integer and text", "CAST"
    )
    refused(_lite(lite, table="mixed"), DataError, "one type")
    refused(_lite(lite, table="mixed", columns=("photo",)), DataError, "photo (BLOB)")
    refused(_lite(lite, table="plane"), DataError, "must hold the table", "Did you mean 'plain'?")
    refused(_lite(lite, table="plain", columns=("gaps",)), DataError, "must hold every column", "'gap'")
    refused(_lite(lite, table="empty"), DataError, "at least one row")
    refused(_lite(lite, table="bad"), DataError, "UTF-8")
    refused(_lite(lite, query="SELECT n, n FROM plain"), DataError, "a name of its own")
    refused(_lite(lite, query=f"SELECT '{SECRET}' FROM nowhere"), ConfigError, "query must run")
    refused(_lite(lite, query="SELECT 1 AS a) SELECT (2"), ConfigError, "query must run")
    refused(_lite(lite, query="WITH t AS (SELECT 1) DELETE FROM plain"), ConfigError, "only read")
    refused(_lite(tmp_path / "no.db", table="t"), StorageError, "must exist")
    (tmp_path / "text.db").write_text("no database " * 200)
    refused(_lite(tmp_path / "text.db", table="t"), StorageError, "whole SQLite database")
    (tmp_path / "void.db").touch()
    refused(_lite(tmp_path / "void.db", table="t"), DataError, "must hold the table")
    assert len(_lite(lite, table="plain").load()) == 2


def test_sqlite_while_another_program_writes(lite: Path) -> None:
    with closing(sqlite3.connect(lite, isolation_level=None)) as writer:
        batches = _lite(lite, table="many", batch_rows=10).batches()
        next(batches)
        batches.close()
        writer.execute("BEGIN EXCLUSIVE")
        refused(_lite(lite, table="many"), StorageError, "another program holds it")


@pytest.fixture
def duck(tmp_path: Path) -> Path:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "rows.duckdb"
    with closing(duckdb.connect(str(path))) as connection:
        connection.execute(
            f"""CREATE SCHEMA sales;
            CREATE TYPE mood AS ENUM ('low', 'high');
            CREATE TABLE sales.plain AS SELECT 1::TINYINT AS i1, 2::HUGEINT AS h, 1.5::DECIMAL(10, 2) AS d2,
                5::DECIMAL(20, 0) AS d0, true AS b, DATE '2020-01-01' AS d, TIMESTAMP '2020-01-01 01:02:03' AS ts,
                '2020-01-01 01:02:03+02'::TIMESTAMPTZ AS tz, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID AS u,
                'low'::mood AS e, 'ä' AS s;
            INSERT INTO sales.plain (i1) VALUES (2);
            CREATE TABLE odd AS SELECT 1 AS id, [1, 2] AS l, '\\x00'::BLOB AS bl, TIME '01:02:03' AS t;
            CREATE TABLE people AS SELECT i AS id, '{SECRET}' AS note FROM range(5000) r (i);
            CREATE TABLE ends AS SELECT 'infinity'::TIMESTAMP AS ts, 170141183460469231731687303715884105727 AS h;
            CREATE VIEW seen AS SELECT sum(id) AS total FROM people;
            CREATE TABLE empty (a INTEGER);"""
        )
    return path


def _duck(path: Path, **given: Any) -> Source:
    return Source(database=f"duckdb:///{path}", **given)


def test_duckdb(duck: Path, tmp_path: Path) -> None:
    frame = _duck(duck, table="sales.plain").load()
    assert frame.dtypes.astype(str).tolist() == [
        "int8", "Int64", "float64", "Int64", "boolean", "object", "datetime64[us]", "datetime64[us, UTC]", "str",
        "category", "str",
    ]  # fmt: skip
    assert frame["tz"][0] == pd.Timestamp("2019-12-31 23:02:03", tz="UTC") and frame["d"][0] == dt.date(2020, 1, 1)
    assert (frame["h"][0], frame["d2"][0], frame["d0"][0], frame["e"][0]) == (2, 1.5, 5, "low")
    batches = list(_duck(duck, table="people", batch_rows=2100, columns=("id",)).batches())
    assert [len(batch) for batch in batches] == [2100, 2100, 800]
    assert pd.concat(batches)["id"].tolist() == list(range(5000))
    assert _duck(duck, table="seen").load()["total"].tolist() == [5000 * 4999 // 2]
    write(frame, tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read(tmp_path / "t.parquet"), frame)


def test_duckdb_refusals(duck: Path, tmp_path: Path) -> None:
    refused(_duck(duck, table="odd"), DataError, "l (INTEGER[])", "bl (BLOB)", "t (TIME)")
    refused(_duck(duck, table="peeple"), DataError, "must hold the table", "Did you mean 'people'?")
    refused(_duck(duck, table="people", columns=("ix",)), DataError, "must hold every column")
    refused(_duck(duck, table="empty"), DataError, "at least one row")
    refused(_duck(duck, table="ends", columns=("ts",)), DataError, "column ts", "infinity")
    refused(_duck(duck, table="ends", columns=("h",)), DataError, "column h", "int64")
    refused(_duck(duck, query="SELECT id, id FROM people"), DataError, "a name of its own")
    refused(_duck(duck, query="SELECT note::INT AS n FROM people"), ConfigError, "query must run", "Conversion")
    refused(_duck(duck, query="SELECT * FROM nowhere"), ConfigError, "query must run")
    refused(_duck(duck, query="WITH t AS (SELECT 1) DELETE FROM people"), ConfigError, "only read")
    (tmp_path / "other.csv").write_text("a\n1\n")
    refused(_duck(duck, query=f"SELECT * FROM read_csv('{tmp_path}/other.csv')"), ConfigError, "this database alone")
    refused(_duck(tmp_path / "no.duckdb", table="t"), StorageError, "must exist")
    for content in (b"", b"no database " * 500, duck.read_bytes()[:5000]):
        (tmp_path / "bad.duckdb").write_bytes(content)
        refused(_duck(tmp_path / "bad.duckdb", table="t"), StorageError, "whole DuckDB database")


def test_a_query_sees_no_variable_of_this_program(duck: Path) -> None:
    secrets_of_ours = pd.DataFrame({"a": [1]})
    assert len(secrets_of_ours) == 1
    refused(_duck(duck, query="SELECT * FROM secrets_of_ours"), ConfigError, "query must run")


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [
        ("adbc_driver_postgresql", "postgresql://127.0.0.1:1/x", "postgresql"),
        ("duckdb", "duckdb:///x.duckdb", "duckdb"),
    ],
)
def test_what_is_not_installed(module: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    refused(Source(database=url, table="t"), UnavailableError, f"pip install 'silosynth[{extra}]'")


@pytest.mark.live
def test_no_connection_is_left_open(ask: Any, server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(table="sales.plain").load()
    part = ask(query="SELECT i FROM generate_series(1, 1000000) i", batch_rows=10).batches()
    next(part)
    part.close()
    monkeypatch.setenv("PGPASSWORD", postgres.ADMIN_PASSWORD)
    count = f"SELECT count(*) AS n FROM pg_stat_activity WHERE usename = '{READER}'"
    admin = ask(user=postgres.ADMIN, password_file=None, query=count)
    assert any(admin.load()["n"].tolist() == [0] for _ in range(200))  # the server takes a moment to notice
