"""Synthetic columns that a person approves of before they leave, and coordinators that would go round it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from tests.deployment.common import OPEN, SMALL, Rows, customers, job, seated
from tests.deployment.sites import ABSENT, COLUMNS, carry_out, more, same_rows, sides, trained_once
from typer.testing import CliRunner

from silosynth.algorithms.silofuse.protocol import SynthesiseFromLatents
from silosynth.cli import app
from silosynth.commands import outcomes
from silosynth.core.conversation import Roster, SyntheticColumns
from silosynth.core.errors import ConfigError, PolicyError, ProtocolError
from silosynth.deployment import approval
from silosynth.deployment.approval import HELD, decide, looked_at
from silosynth.deployment.coordinator import Order
from silosynth.deployment.exposure import exposures
from silosynth.deployment.protocol import Begin, Greet, PrepareSynthesis, installed, purpose
from silosynth.deployment.silo_ledger import verify_file
from silosynth.privacy import agreement

PERSON = OPEN.model_copy(update={"approval": "person"})


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sites, after a job under a policy without approval."""
    return trained_once(tmp_path_factory.mktemp("once"))


@pytest.fixture
def here(once: Path, tmp_path: Path) -> Path:
    """A copy."""
    return Path(shutil.copytree(once, tmp_path / "sites"))


def officer(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[int]:
    """Somebody who acts whenever a silo waits; how often it has."""
    looks: list[int] = []

    def wait() -> None:
        looks.append(len(looks))
        assert len(looks) < 20, "it waits for ever"
        act()

    monkeypatch.setattr(approval, "wait", wait)
    return looks


def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a silo would wait, end its process."""

    def wait() -> None:
        raise MemoryError("held")

    monkeypatch.setattr(approval, "wait", wait)


def held_by(folder: Path, name: str) -> list[Path]:
    """The folders of silos that hold columns of a job."""
    return [folder / silo / name for silo in COLUMNS if (folder / silo / name / HELD).exists()]


def approve_all(folder: Path, name: str, **more: Any) -> Callable[[], None]:
    """Look at and approve what any silo holds."""

    def act() -> None:
        for place in held_by(folder, name):
            looked_at(place)
            decide(place, True, "fine", **more)

    return act


def decisions(place: Path) -> list[dict[str, Any]]:
    """Those in a silo's signed ledger, after it was checked."""
    assert not verify_file(place / "ledger.jsonl").faults
    lines = map(json.loads, (place / "ledger.jsonl").read_text().splitlines())
    return [line for line in lines if line.get("kind") == "decided"]


def test_columns_are_held_until_a_person_approves(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[pd.DataFrame] = []

    def act() -> None:
        (place,) = held_by(here, "late")  # one silo wants it
        assert not (here / "coordinator" / "late" / "synthetic.parquet").exists()
        looked_at(place)
        seen.append(pd.read_parquet(place / HELD))
        decide(place, True, "no close copies")

    looks = officer(monkeypatch, act)
    late = carry_out(more(here, 30, 1, "late"), ABSENT, here, shop=PERSON)
    made = pd.read_parquet(late / "synthetic.parquet")
    assert len(looks) == 1 and seen[0].equals(made[COLUMNS["shop"]])  # she has seen what has left
    (decided,) = decisions(here / "shop" / "late")
    assert (decided["verdict"], decided["reason"], decided["rows"]) == ("approved", "no close copies", 30)
    assert decided["by"] and decided["at"] and not held_by(here, "late")
    assert decisions(here / "bank" / "late") == []


def test_a_refusal_is_the_last_word(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        for place in held_by(here, "late"):
            decide(place, False, "row 3 is Mr X")

    officer(monkeypatch, act)
    asked = more(here, 30, 1, "late")
    with pytest.raises(PolicyError, match="'approval': a person at this silo has refused") as refused:
        carry_out(asked, ABSENT, here, shop=PERSON)
    assert "Mr X" not in str(refused.value.public())  # which is what the coordinator reads
    assert decisions(here / "shop" / "late")[-1]["reason"] == "row 3 is Mr X"
    for _ in range(2):  # whatever the coordinator does
        with pytest.raises(ProtocolError):
            carry_out(asked, ABSENT, here, shop=PERSON)
    assert not (here / "coordinator" / "late" / "synthetic.parquet").exists()


def test_without_a_word_the_answer_is_no(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(approval.Approvals.__init__, "__defaults__", (lambda: now[0],))

    def later() -> None:
        now[0] += 3600

    looks = officer(monkeypatch, later)
    hours = PERSON.model_copy(update={"approval_hours": 5.0})
    with pytest.raises(PolicyError, match="a person approves within 5 hours"):
        carry_out(more(here, 30, 1, "late"), ABSENT, here, bank=hours)
    assert len(looks) == 6 and not held_by(here, "late")
    assert decisions(here / "bank" / "late")[-1]["reason"] == "nobody has decided in time"


def taken_up(here: Path, rows: int = 30) -> tuple[Any, int]:
    """A silo of a job of so many rows that has taken up its part, and how many latents it decodes."""
    order, chairs = more(here, rows, 1, "late"), seated(ABSENT)
    silo = sides(ABSENT, here, "late", PERSON)["bank"]
    silo.answer(Greet("silofuse", "alice", *installed()))
    silo.answer(Begin(order.job))
    other, offer = agreement.Group(chairs["shop"]), agreement.OfferShares(purpose(order.job), fresh=True)
    own: Any = silo.answer(offer)
    theirs: Any = other.answer(offer)
    tags: list[Any] = [
        silo.answer(agreement.RelayedShares(theirs.envelopes)), other.answer(agreement.RelayedShares(own.envelopes)),
    ]  # fmt: skip
    silo.answer(agreement.Confirmations(tuple(tag.tag for tag in tags)))
    silo.answer(PrepareSynthesis())
    party: Any = silo._party
    return silo, party.coder.latents


def latents(width: int, seed: int, rows: int = 20) -> SynthesiseFromLatents:
    """What a coordinator of its own mind has decoded."""
    z_GL = 2 * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return SynthesiseFromLatents(z_GL, rows, "sample/call 0/0")


def test_a_yes_is_to_the_rows_that_were_looked_at_and_to_no_others(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that goes back to a checkpoint after a yes, and has latents of its own choice decoded."""
    silo, width = taken_up(here)
    before = silo.state()
    officer(monkeypatch, approve_all(here, "late"))
    first = silo.answer(latents(width, 1))
    nobody(monkeypatch)
    again = sides(ABSENT, here, "late", PERSON)["bank"]
    again.restore(before)
    same = again.answer(latents(width, 1))
    assert isinstance(same, SyntheticColumns) and torch.equal(same.table["age"].values, first.table["age"].values)
    with pytest.raises(MemoryError, match="held"):
        again.answer(latents(width, 2))
    assert held_by(here, "late")


def test_a_yes_to_further_rows_is_to_those_of_its_job(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that begins a job of the same name, which says that it has more rows."""
    silo, width = taken_up(here)
    officer(monkeypatch, approve_all(here, "late", further=True))
    silo.answer(latents(width, 1))
    nobody(monkeypatch)
    silo.answer(latents(width, 2, rows=10))
    other, _ = taken_up(here, rows=800)
    with pytest.raises(MemoryError, match="held"):
        other.answer(latents(width, 3, rows=700))


def test_what_nobody_has_looked_at_is_not_approved(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody(monkeypatch)
    silo, width = taken_up(here)
    with pytest.raises(MemoryError, match="held"):
        silo.answer(latents(width, 1))
    place = here / "bank" / "late"
    with pytest.raises(ConfigError, match="was looked at"):
        decide(place, True, "")
    looked_at(place)
    asked = json.loads((place / "held.json").read_text())
    (place / "held.json").write_text(json.dumps({**asked, "digest": "0" * 64}))  # something else is held by now
    with pytest.raises(ConfigError, match="it has changed since"):
        decide(place, True, "")
    (place / HELD).unlink()
    with pytest.raises(ConfigError, match="late holds none"):
        decide(place, True, "")


def test_a_job_that_is_cut_while_it_waits_goes_on_once_it_is_approved(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(approval, "wait", wait)
    asked = more(here, 30, None, "late")
    with pytest.raises(KeyboardInterrupt):
        carry_out(asked, ABSENT, here, shop=PERSON)
    approve_all(here, "late")()
    place = carry_out(asked, ABSENT, here, shop=PERSON)
    assert len(pd.read_parquet(place / "synthetic.parquet")) == 30
    assert [one["verdict"] for one in decisions(here / "shop" / "late")] == ["approved"]


def test_further_rows_are_approved_up_to_those_of_the_job(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silo, width = taken_up(here)
    officer(monkeypatch, approve_all(here, "late", further=True))
    silo.answer(latents(width, 1, rows=10))
    nobody(monkeypatch)
    silo.answer(latents(width, 2, rows=20))  # unseen, but within what the job has said
    assert [one["rows"] for one in decisions(here / "bank" / "late")] == [10, 20]
    with pytest.raises(MemoryError, match="held"):
        silo.answer(latents(width, 3, rows=1))


def test_another_job_takes_another_yes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    officer(monkeypatch, approve_all(here, "late"))
    carry_out(more(here, 30, 1, "late"), ABSENT, here, shop=PERSON)
    nobody(monkeypatch)
    with pytest.raises(Exception, match="MemoryError"):
        carry_out(more(here, 30, 1, "later"), ABSENT, here, shop=PERSON)  # even of the same rows
    assert not (here / "coordinator" / "later" / "synthetic.parquet").exists()


def test_partitioned_columns_need_no_yes_and_those_that_the_coordinator_draws_get_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody(monkeypatch)
    asked = Order(job(same_rows(), align=None, options={**SMALL, "synthesis": "partitioned"}))
    carry_out(asked, same_rows(), tmp_path / "a", policy=PERSON)
    whole = customers(60).drop(columns="customer")
    silos = {"north": Rows(whole[:30]), "south": Rows(whole[30:].reset_index(drop=True))}
    with pytest.raises(PolicyError, match="'approval'"):
        carry_out(Order(job(silos, algorithm="gdts", align=None, options={})), silos, tmp_path / "b", policy=PERSON)


# The start of a job.


START = OPEN.model_copy(update={"approve_start": True})


def waiting(folder: Path, silo: str, name: str) -> Path:
    """The folder of a job whose start a silo holds."""
    asked = approval.held(folder / silo / name)
    assert any(line.startswith('algorithm = "silofuse"') for line in asked["terms"]) and asked["rows"] == 0
    return folder / silo / name


def test_a_job_begins_once_a_person_approves_of_its_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silos, read = same_rows(), list[str]()

    class Watched(Rows):
        def read(self) -> pd.DataFrame:
            read.append("rows")
            return super().read()

    silos["shop"] = Watched(silos["shop"].frame)

    def act() -> None:
        assert not read
        place = waiting(tmp_path, "shop", "trial")
        with pytest.raises(ConfigError, match="was looked at"):
            decide(place, True, "")
        (tmp_path / "synthetic.csv").touch()
        shown = call("fetch", "trial", "--held", "--kit", place.parent, "--out", tmp_path / "synthetic.csv")
        assert shown.exit_code == 0 and 'algorithm = "silofuse"' in shown.stdout, shown.output
        decide(place, True, "as agreed", further=True)

    monkeypatch.setattr(outcomes, "open_kit", lambda folder: SimpleNamespace(name="shop", jobs=folder))
    looks = officer(monkeypatch, act)
    carry_out(Order(job(silos, align=None)), silos, tmp_path, shop=START)
    assert len(looks) == 1 and read
    (decided,) = decisions(tmp_path / "shop" / "trial")
    assert (decided["verdict"], decided["what"], decided["reason"]) == ("approved", "start", "as agreed")


def test_a_yes_to_a_start_is_to_its_terms_and_to_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that begins another job under the same name, or has rows decoded that nobody has seen."""
    silos = same_rows()
    strict = START.model_copy(update={"approval": "person"})

    def act() -> None:
        place = waiting(tmp_path, "shop", "trial")
        looked_at(place)
        decide(place, True, "as agreed", further=True)

    officer(monkeypatch, act)
    agreed = job(silos, align=None)

    def begun(asked: Any) -> None:
        silo = sides(silos, tmp_path, "trial", strict)["shop"]
        silo.answer(Greet("silofuse", "alice", *installed()))
        silo.answer(Begin(asked))

    begun(agreed)
    nobody(monkeypatch)
    begun(agreed)  # once more, as after an interruption
    for other in (job(silos, align=None, rows=51), job(silos, align=None, submitter="mallory")):
        with pytest.raises(MemoryError, match="held"):
            begun(other)
    with pytest.raises(Exception, match="MemoryError"):
        carry_out(Order(agreed), silos, tmp_path, shop=strict)
    assert (tmp_path / "shop" / "trial" / HELD).exists()  # its rows, which take a yes of their own


def test_a_start_that_is_refused_or_forgotten_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silos = same_rows()
    officer(monkeypatch, lambda: decide(waiting(tmp_path / "a", "shop", "trial"), False, "not with Mr X"))  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="'approve_start': a person at this silo has refused") as refused:
        carry_out(Order(job(silos, align=None)), silos, tmp_path / "a", shop=START)
    assert "Mr X" not in str(refused.value.public())
    now = [0.0]
    monkeypatch.setattr(approval.Approvals.__init__, "__defaults__", (lambda: now[0],))

    def later() -> None:
        now[0] += 80 * 3600

    officer(monkeypatch, later)
    with pytest.raises(PolicyError, match="'approve_start': a person approves within 72 hours"):
        carry_out(Order(job(silos, align=None)), silos, tmp_path / "b", shop=START)


def test_the_policy_in_words() -> None:
    told = [one for one in exposures(PERSON) if "synthetic rows" in one.learns]
    assert "once a person here has approved them" in told[0].learns
    assert all("approved" not in one.learns for one in exposures(OPEN))


# The commands.


def call(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_commands_show_and_decide(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kit(folder: Path, coordinator: bool = False) -> Any:
        return SimpleNamespace(name=folder.name, folder=folder, jobs=folder, roster=Roster(("bank", "shop")))

    monkeypatch.setattr(outcomes, "open_kit", kit)
    said: list[Any] = []

    def act() -> None:
        for place in held_by(here, "late"):
            words = ("late", "--kit", place.parent)
            said.append(call("approve", *words))
            said.append(call("fetch", *words, "--held", "--out", here / f"{place.parent.name}.csv"))
            said.append(call("approve", *words, "--reason", "ok", "--json"))

    officer(monkeypatch, act)
    carry_out(more(here, 30, 1, "late"), ABSENT, here, shop=PERSON)
    assert [one.exit_code for one in said] == [2, 0, 0], [one.output for one in said]
    assert "was looked at" in said[0].stderr and json.loads(said[2].stdout)["reason"] == "ok"
    assert list(pd.read_csv(here / "shop.csv").columns) == COLUMNS["shop"]
    assert call("refuse", "late", "--kit", here / "bank", "--reason", "late").exit_code == 2  # nothing is held
    assert call("refuse", "late", "--kit", here / "coordinator", "--reason", "x").exit_code == 2
