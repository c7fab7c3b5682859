"""What a silo that cannot read its rows tells the coordinator: class, rule and silo, and nothing of `silo.toml`.

Each name in the silo's files, and of its folder, holds a word that must not be in any frame that the coordinator gets.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attacked.desk import OPENED, PSI, Desk, a_job

from silosynth.core.errors import DataError, SilosynthError, StorageError, UnavailableError
from silosynth.deployment.protocol import Begin, PrepareRows

WORD = "hush"
ROWS = "hush_customer,hush_age,hush_note\n" + "".join(f"hush-{k},{20 + k % 50},x\n" for k in range(40))
IDS = 'identifiers = ["hush_customer"]\n'
CSV = 'path = "hush.csv"\n'
DATABASE = 'database = "postgresql://hush-host:5432/hush{}"\ntable = "hush"\n'
BROKEN: dict[str, tuple[str, dict[str, str]]] = {
    "a missing file": ('path = "hush-rows.csv"\n', {}),
    "a file of a near name": ('path = "hush-rows.csv"\n', {"hush-rows2.csv": ROWS}),
    "a folder": ('path = "hush-rows.csv"\n', {"hush-rows.csv/hush.txt": ""}),
    "another ending": ('path = "hush-rows.cvs"\n', {"hush-rows.cvs": ROWS}),
    "not what it says": ('path = "hush-rows.parquet"\n', {"hush-rows.parquet": ROWS}),
    "torn quotes": ('path = "hush.csv"\n', {"hush.csv": 'hush_a,hush_b\n"hush,1\n2,3,hush\n'}),
    "a column of a near name": ('path = "hush.csv"\ncolumns = ["hush_aeg"]\n', {"hush.csv": ROWS}),
    "an identifier of a near name": ('path = "hush.csv"\nidentifiers = ["hush_custmer"]\n', {"hush.csv": ROWS}),
    "a declared column of a near name": (CSV + IDS + '[schema.hush_aeg]\nkind = "numeric"\n', {"hush.csv": ROWS}),
    "a kind of a near name": (CSV + IDS + '[schema.hush_note]\nkind = "hush"\n', {"hush.csv": ROWS}),
    "a key of a near name": ('hush_pth = "hush.csv"\n', {"hush.csv": ROWS}),
    "not TOML": ('path = hush "hush.csv"\n', {"hush.csv": ROWS}),
    "a value of a near name": (
        CSV + IDS + 'group = "aggregate"\n[data.aggregate]\nhush_aeg = "mean"\n', {"hush.csv": ROWS},
    ),
    "a missing database": ('database = "duckdb:///hush.db"\ntable = "hush_customers"\n', {}),
    "not a database": ('database = "duckdb:///hush.db"\ntable = "hush_customers"\n', {"hush.db": ROWS}),
    "an address of no kind": ('database = "hushsql://hush-host:5432/hush"\ntable = "hush"\n', {}),
    "an option of a near name": (DATABASE.format("?sslmod=hush"), {}),
    "a missing password": (DATABASE.format("") + 'user = "hush"\npassword_file = "hush-pass"\n', {}),
}  # fmt: skip


def made(folder: Path, data: str, files: dict[str, str]) -> Desk:
    """A silo with these files, in a folder whose name holds the word too."""
    desk = Desk(folder / "hush-site", OPENED)
    (desk.folder / "rows.csv").unlink()
    (desk.folder / "silo.toml").write_text(f"[data]\n{data}")
    for name, content in files.items():
        place = desk.folder / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(content)
    return desk


def told(desk: Desk) -> SilosynthError:
    """What the coordinator is told when it begins a job and has rows prepared."""
    job = a_job(align=PSI if "identifiers" in (desk.folder / "silo.toml").read_text() else None)
    try:
        desk.open().ask(Begin(job))
        desk.agree(job).ask(PrepareRows())
    except SilosynthError as error:
        return error
    raise AssertionError("the silo reads its rows")


@pytest.mark.parametrize("case", BROKEN)
def test_nothing_of_a_silos_files_leaves_it(tmp_path: Path, case: str) -> None:
    data, files = BROKEN[case]
    desk = made(tmp_path, data, files)
    error = told(desk)
    assert not desk.heard(WORD) and not desk.heard(str(tmp_path))
    assert WORD not in str(error) and str(tmp_path) not in str(error)
    assert str(error).endswith("Ask the silo's operator: its log.txt of the job says more.")
    assert f"{type(error).__name__}: " in desk.log


@pytest.mark.live
@pytest.mark.parametrize("address", ["127.0.0.1:9", "hush-host.invalid:5432"])
def test_a_database_that_is_down_is_not_named(tmp_path: Path, address: str) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    where = f'database = "postgresql://{address}/hush_crm?sslmode=disable"\ntable = "hush_customers"\n'
    who = 'user = "hush_reader"\npassword_file = "hush-pass"\n'
    desk = made(tmp_path, where + who, {"hush-pass": "hush-secret"})
    (desk.folder / "hush-pass").chmod(0o600)
    error = told(desk)
    assert isinstance(error, UnavailableError | StorageError | DataError), repr(error)
    shown = str(error)
    assert not any(desk.heard(text) or text in shown for text in (WORD, address, str(tmp_path)))
    assert "hush_crm" in desk.log and "hush-secret" not in desk.log


def test_the_word_would_be_heard(tmp_path: Path) -> None:
    desk = made(tmp_path, 'path = "hush.csv"\n', {"hush.csv": ROWS})
    desk.open().ask(Begin(a_job()))
    desk.agree(a_job()).ask(PrepareRows())  # names of columns are in the schema, which every job tells
    assert desk.heard(WORD)
