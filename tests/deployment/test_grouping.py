"""Tables with several rows of a subject, summed up to one."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from tests import postgres
from tests.deployment.common import job, parties, run
from tests.oracles.grouping import subjects, summary
from tests.postgres import READER, READER_PASSWORD, Postgres

from silosynth.core.errors import ConfigError, DataError, SilosynthError
from silosynth.deployment.grouping import HOWS, summed_up
from silosynth.deployment.rows import SILO, check_rows, read_silo, repeated_identifiers

HEAD = '[data]\npath = "rows.csv"\nidentifiers = ["customer"]\n'
ORDERS = """customer,amount,paid,day
a,10,card,2024-03-01
b,5,cash,2024-01-01
a,20,cash,2024-02-01
,7,card,2024-01-05
a,,cash,
,8,card,2024-01-06
"""
AGGREGATE = """group = "aggregate"
[data.aggregate]
amount = ["sum", "mean", "count"]
paid = "most frequent"
day = "max"
"""


def plain(value: Any) -> Any:
    """A cell as the oracle has it."""
    return None if pd.isna(value) else value


def rows_of(rng: Any, n: int) -> list[tuple[Any, ...]]:
    """Rows of few subjects, with missing values."""
    choices = ["a", "b", "c", None], [1, 2, None], [-2, 3, 4, None], ["x", "y", "z", None], [True, False, None]
    return [tuple(rng.choice(of) for of in choices) for _ in range(n)]


@pytest.mark.parametrize("how", HOWS)
def test_summaries_are_those_of_loops_over_rows(how: str) -> None:
    text = how if how in ("count", "most frequent") else "count"
    flag = f"flag_{how.replace(' ', '_')}"
    for seed in range(12):
        rng = random.Random(seed)
        rows = rows_of(rng, rng.randint(1, 12))
        frame = pd.DataFrame(rows, columns=["who", "where", "n", "text", "flag"]).astype(
            {"who": "string", "where": "Int64", "n": "Int64", "text": "string", "flag": "boolean"}
        )
        made = summed_up(frame, ["who", "where"], {"n": how, "text": text, "flag": [how]})
        together = subjects([row[:2] for row in rows])
        assert [plain(made[name][k]) for k, of in enumerate(together) for name in ("who", "where")] == [
            cell for of in together for cell in rows[of[0]][:2]
        ]
        for place, column, asked in ((2, "n", how), (3, "text", text), (4, flag, how)):
            in_table = [row[place] for row in rows]
            for got, of in zip(map(plain, made[column]), together, strict=True):
                assert got == summary(sorted((rows[row][place] for row in of), key=in_table.index), asked)


def test_types_are_kept() -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 1, 2], "whole": [1, 2, 3], "real": [0.5, np.nan, np.nan],
            "day": pd.to_datetime(["2024-01-01", "2024-01-03", None]), "level": pd.Categorical(["u", "v", "v"]),
        }
    )  # fmt: skip
    made = summed_up(frame, ["id"], {"whole": "sum", "real": "mean", "day": "min", "level": "most frequent"})
    assert made.dtypes.tolist() == frame.dtypes.tolist()
    assert made["whole"].tolist() == [3, 3] and made["real"].isna().tolist() == [False, True]
    assert made["level"].tolist() == ["u", "v"] and made["day"].isna().tolist() == [False, True]
    assert len(summed_up(frame[:0], ["id"], {name: "count" for name in frame if name != "id"})) == 0


def test_silo_toml_sums_up_and_renames(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ORDERS)
    (tmp_path / SILO).write_text(HEAD + 'prefix = "shop_"\nprefixed = ["paid"]\n' + AGGREGATE)
    silo = read_silo(tmp_path)
    check_rows(silo)
    frame = silo.read()
    assert list(frame) == ["customer", "amount_sum", "amount_mean", "amount_count", "shop_paid", "day"]
    assert [plain(name) for name in frame["customer"]] == ["a", "b", None, None]
    assert frame["amount_sum"].tolist() == [30, 5, 7, 8] and frame["amount_count"].tolist() == [2, 1, 1, 1]
    assert frame["shop_paid"].tolist() == ["cash", "cash", "card", "card"]
    assert frame["day"].tolist()[:2] == ["2024-03-01", "2024-01-01"]
    assert "share" not in repeated_identifiers(frame, silo.identifiers)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('group = "aggregate"\n', "come together"),
        ('[data.aggregate]\namount = "sum"\n', "come together"),
        (AGGREGATE.replace("amount", "amont"), "Did you mean 'amount'"),
        (AGGREGATE.replace("amount", "customer"), "no identifiers"),
        (AGGREGATE.replace('day = "max"\n', ""), 'day = "mean", say'),
        (AGGREGATE.replace('"most frequent"', '"sum"'), "A sum is of numbers, and column 'paid'"),
        (AGGREGATE.replace('"most frequent"', '"max"'), "A max is of numbers, dates or times, and column 'paid'"),
        (AGGREGATE.replace('"most frequent"', '"mode"'), "most frequent"),
        (AGGREGATE.replace('["sum", "mean", "count"]', "[]"), "amount"),
    ],
)
def test_what_does_not_fit_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ORDERS)
    (tmp_path / SILO).write_text(HEAD + text)
    with pytest.raises(SilosynthError) as error:
        check_rows(read_silo(tmp_path))
    assert said in str(error.value)


def test_groups_are_of_identifiers(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ORDERS)
    (tmp_path / SILO).write_text('[data]\npath = "rows.csv"\ngroup = "first"\n')
    with pytest.raises(ConfigError, match="no identifiers"):
        read_silo(tmp_path)


def test_a_job_links_and_trains_on_what_was_summed_up(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"c{k:03d}" for k in range(80)]
    for silo, column in (("bank", "amount"), ("shop", "visits")):
        (tmp_path / silo).mkdir()
        who = np.repeat(names, rng.integers(1, 4, 80))
        pd.DataFrame({"customer": who, column: rng.integers(1, 90, len(who))}).sample(frac=1, random_state=1).to_csv(
            tmp_path / silo / "rows.csv", index=False
        )
        (tmp_path / silo / SILO).write_text(HEAD + f'group = "aggregate"\n[data.aggregate]\n{column} = "sum"\n')
    silos: Any = {silo: read_silo(tmp_path / silo) for silo in ("bank", "shop")}
    place = run(job(silos, rows=None), parties(silos, tmp_path / "sites"), tmp_path / "sites")
    made = pd.read_parquet(place / "synthetic.parquet")
    assert list(made) == ["amount", "visits"] and len(made) == 80  # as many as rows were linked


# Out of databases.


STAYS = [("a", 3, "red", 1.5), ("b", 4, "red", None), ("a", 5, "blue", 2.5), ("a", None, "blue", None)]
STAYS_SUMMED = {
    "customer": ["a", "b"], "days_sum": [8, 4], "days_max": [5, 4], "colour": ["blue", "red"], "cost": [2.0, None],
}  # fmt: skip
STAYS_HOW = """group = "aggregate"
[data.aggregate]
days = ["sum", "max"]
colour = "most frequent"
cost = "mean"
"""


def check_stays(folder: Path, source: str) -> None:
    """That the stays out of a database are summed up as they should be."""
    (folder / SILO).write_text(f'[data]\n{source}\nidentifiers = ["customer"]\n{STAYS_HOW}')
    silo = read_silo(folder)
    check_rows(silo)
    made = silo.read()
    assert {str(name): list(map(plain, made[name])) for name in made} == STAYS_SUMMED


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_out_of_databases_that_are_files(kind: str, tmp_path: Path) -> None:
    connect: Any = sqlite3.connect if kind == "sqlite" else duckdb.connect
    with closing(connect(str(tmp_path / "stays.db"))) as base:
        base.execute("CREATE TABLE stays (customer text, days integer, colour text, cost double)")
        base.executemany("INSERT INTO stays VALUES (?, ?, ?, ?)", STAYS)
        base.commit()
    check_stays(tmp_path, f'database = "{kind}:///stays.db"\ntable = "stays"')
    check_stays(tmp_path, f'database = "{kind}:///stays.db"\nquery = "SELECT * FROM stays ORDER BY customer, days"')


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres.running() as started:
        values = ", ".join(
            "(" + ", ".join("NULL" if v is None else f"'{v}'" if isinstance(v, str) else str(v) for v in row) + ")"
            for row in STAYS
        )
        started.run(
            "CREATE TABLE stays (customer text, days integer, colour text, cost numeric(6, 2))",
            f"INSERT INTO stays VALUES {values}", f"GRANT SELECT ON stays TO {READER}",
        )  # fmt: skip
        yield started


@pytest.mark.live
def test_out_of_postgresql(server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAYS_PASSWORD", READER_PASSWORD)
    login = f'user = "{READER}"\npassword_env = "STAYS_PASSWORD"\n'
    check_stays(tmp_path, f'database = "{server.url}"\n{login}table = "stays"')
    (tmp_path / SILO).write_text(
        f'[data]\ndatabase = "{server.url}"\n{login}table = "stays"\nidentifiers = ["customer"]\n'
        + STAYS_HOW.replace('"most frequent"', '"sum"')
    )
    with pytest.raises(DataError, match="'colour'"):
        check_rows(read_silo(tmp_path))
