"""Whether silos would refuse a job, asked before it; and rows that share an identifier."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.deployment.common import OPEN, job, parties, run, two_silos
from tests.deployment.sites import ABSENT, carry_out, same_rows

from silosynth.core.errors import ConfigError, DataError, ProtocolError, SilosynthError
from silosynth.deployment import protocol
from silosynth.deployment.coordinator import Order, considering_order, read_refusals, read_status
from silosynth.deployment.rows import SILO, SiloFile, check_rows, read_silo, repeated_identifiers


def test_all_silos_say_whether_they_would_refuse_and_nothing_is_read_or_counted(tmp_path: Path) -> None:
    asked = considering_order(Order(job(same_rows(), align=None)))
    strict = OPEN.model_copy(update={"require_dp": True, "jobs_per_day": 0})
    place = carry_out(asked, ABSENT, tmp_path, shop=strict)
    (shop,) = read_refusals(place)["shop"]
    assert read_refusals(place)["bank"] == [] and read_status(place).state == "done"
    assert shop.startswith("Policy rule 'require_dp' forbids it.")
    assert not list(tmp_path.rglob("begun.jsonl")) and not list(tmp_path.rglob("closed"))
    carry_out(Order(job(same_rows(), align=None)), same_rows(), tmp_path)  # its name is free


def test_another_version_is_told(tmp_path: Path) -> None:
    bank = parties(ABSENT, tmp_path)["bank"]
    reply: Any = bank.answer(protocol.Consider(job(same_rows(), align=None), "0.0.1", "none"))
    assert len(reply.refusals) == 1 and "0.0.1" in reply.refusals[0]
    begun = parties(same_rows(), tmp_path)["bank"]
    asked = job(same_rows(), align=None)
    begun.answer(protocol.Greet(asked.algorithm, "alice", *protocol.installed()))
    begun.answer(protocol.Begin(asked))
    with pytest.raises(ProtocolError, match="before any has begun"):
        begun.answer(protocol.Consider(asked, *protocol.installed()))


def test_rows_that_share_an_identifier_are_told_or_grouped(tmp_path: Path) -> None:
    frame = pd.DataFrame({"customer": ["a", "b", "a", None, "c", None], "age": [1, 2, 3, 4, 5, 6]})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    said = repeated_identifiers(frame, ["customer"])
    assert "2 of 6 rows share their identifier" in said and "2 of 6 rows lack an identifier" in said
    assert repeated_identifiers(frame[1:2], ["customer"]) == ""
    text = '[data]\npath = "rows.csv"\nidentifiers = ["customer"]\n'
    for more, ages in (("", [1, 2, 3, 4, 5, 6]), ('group = "first"\n', [1, 2, 4, 5, 6])):
        (tmp_path / SILO).write_text(text + more)
        assert read_silo(tmp_path).read()["age"].tolist() == ages


def test_a_column_that_two_silos_hold_is_found_before_any_row_is_linked(tmp_path: Path) -> None:
    silos = two_silos(60)
    silos["shop"].frame["age"] = 1
    with pytest.raises(SilosynthError, match="age"):
        run(job(silos), parties(silos, tmp_path), tmp_path)
    assert "alignment." not in (tmp_path / "coordinator" / "ledger.jsonl").read_text()


def test_a_silo_is_warned_before_rows_are_linked(tmp_path: Path) -> None:
    silos = two_silos(60)
    bank = silos["bank"].frame
    bank.loc[3, "customer"] = bank.loc[4, "customer"]
    side, said = parties(silos, tmp_path)["bank"], list[str]()
    side._say = said.append
    asked = job(silos)
    side.answer(protocol.Greet(asked.algorithm, "alice", *protocol.installed()))
    side.answer(protocol.Begin(asked))
    assert any(line.startswith("warning: 2 of 50 rows share their identifier") for line in said)


def prefixed(folder: Path, more: str) -> SiloFile:
    frame = pd.DataFrame({"customer": ["a", "b"], "age": [1, 2], "income": [3, 4], "bank_age": [5, 6]})
    frame.to_csv(folder / "rows.csv", index=False)
    head = f'[data]\npath = "rows.csv"\nidentifiers = ["customer"]\n{more}'
    (folder / SILO).write_text(head + '[schema.income]\nkind = "continuous"\n[schema.customer]\nkind = "pseudonym"\n')
    return read_silo(folder)


def test_a_prefix_renames_all_columns_but_identifiers(tmp_path: Path) -> None:
    silo = prefixed(tmp_path, 'prefix = "our_"\n')
    check_rows(silo)
    assert list(silo.read()) == ["customer", "our_age", "our_income", "our_bank_age"]
    assert list(silo.declared) == ["our_income", "customer"] and silo.declared["our_income"]["kind"] == "continuous"


def test_a_prefix_of_some_columns(tmp_path: Path) -> None:
    silo = prefixed(tmp_path, 'prefix = "bank_"\nprefixed = ["income"]\n')
    check_rows(silo)
    assert list(silo.read()) == ["customer", "age", "bank_income", "bank_age"]


@pytest.mark.parametrize(("names", "said"), [
    (["age"], "different names, prefix included (got: bank_age)"), (["incomes"], "no identifiers (got: incomes)"),
    (["customer"], "no identifiers (got: customer)"),
])  # fmt: skip
def test_a_prefix_that_does_not_fit_is_told_at_the_start(tmp_path: Path, names: list[str], said: str) -> None:
    silo = prefixed(tmp_path, f'prefix = "bank_"\nprefixed = {names}\n')
    with pytest.raises(DataError, match=re.escape(said)):
        check_rows(silo)
    with pytest.raises(DataError, match=re.escape(said)):
        silo.read()


def test_columns_that_are_prefixed_need_a_prefix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prefixed needs a prefix"):
        prefixed(tmp_path, 'prefixed = ["age"]\n')


def test_a_clash_says_that_a_prefix_ends_it(tmp_path: Path) -> None:
    silos = two_silos(60)
    silos["shop"].frame["age"] = 1
    with pytest.raises(SilosynthError, match=r"'age' is in 'bank' and in 'shop'.*write a prefix into \[data\]"):
        run(job(silos), parties(silos, tmp_path), tmp_path)
