"""Erasure of jobs: what goes, what stays, and receipts for it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.deployment.common import OPEN, job, seated
from tests.deployment.sites import ABSENT, COLUMNS, carry_out, more, same_rows, sides, trained_once
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.commands import jobs, outcomes
from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import to_state
from silosynth.deployment import coordinator, entry, forgetting, silo_ledger
from silosynth.deployment.coordinator import KEPT, MODEL, Order, forget_here, forget_requests, read_status
from silosynth.deployment.kept import FORGOTTEN, JOB, PART
from silosynth.deployment.label import LABEL
from silosynth.deployment.protocol import Begin, Forget, Greet, KeepPart, installed
from silosynth.deployment.rows import read_silo
from silosynth.deployment.rows_used import ROWS_USED
from silosynth.runtime.wire import unpack


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sites, after a job and a draw from it."""
    folder = trained_once(tmp_path_factory.mktemp("once"))
    carry_out(more(folder, 20, 1, "late"), ABSENT, folder)
    return folder


@pytest.fixture
def here(once: Path, tmp_path: Path) -> Path:
    """A copy."""
    return Path(shutil.copytree(once, tmp_path / "sites"))


def chair(silo: str) -> Any:
    """A silo's seat."""
    return seated(ABSENT)[silo]


def names(folder: Path) -> set[str]:
    """What lies in a folder."""
    return {path.name for path in folder.iterdir()}


def test_a_silo_forgets_a_job_and_what_was_drawn_from_it(here: Path) -> None:
    assert {PART, "synthetic.parquet", "reference.silosynth"} <= names(here / "bank" / "trial")
    (here / "bank" / "trial" / "checkpoints").mkdir()
    (here / "bank" / "trial" / "checkpoints" / "000001.ckpt").touch()
    receipts = forgetting.forget(here / "bank", "trial", "bank", chair("bank"))
    assert [receipt["job"] for receipt in receipts] == ["trial", "late"]
    assert receipts[0]["removed"] == [
        "began-with.json",
        "checkpoints",
        PART,
        "reference.silosynth",
        ROWS_USED,
        "synthetic.parquet",
    ]
    assert names(here / "bank" / "trial") == {
        "ledger.jsonl", "ledger.head", "drawn.jsonl", "label.json", JOB, FORGOTTEN,
    }  # fmt: skip
    assert "synthetic.parquet" not in names(here / "bank" / "late")
    assert PART in names(here / "shop" / "trial")  # other sites are left alone
    for receipt in receipts:
        forgetting.check_receipt(receipt, receipt["job"], "bank")
        assert receipt["key"] == silo_ledger.public_key(chair("bank")).hex()
        ledger = here / "bank" / receipt["job"] / "ledger.jsonl"
        verdict = silo_ledger.verify_file(ledger, key=bytes.fromhex(receipt["key"]), silo="bank")
        assert not verdict.faults and verdict.lines > receipt["ledger"]["lines"]
        assert any(json.loads(line).get("kind") == "forgotten" for line in ledger.read_text().splitlines())


@pytest.mark.parametrize("field", ["job", "site", "by", "at", "removed", "stays", "ledger", "key", "signature"])
def test_a_changed_receipt_is_noticed(here: Path, field: str) -> None:
    receipt = forgetting.forget(here / "bank", "late", "bank", chair("bank"))[0]
    forgetting.check_receipt(receipt, "late", "bank")
    other = forgetting.forget(here / "shop", "late", "shop", chair("shop"))[0]
    changed = other["key"] if field == "key" else "x" if isinstance(receipt[field], str) else type(receipt[field])()
    with pytest.raises(ProtocolError, match="has signed its receipt"):
        forgetting.check_receipt({**receipt, field: changed}, "late", "bank")
    with pytest.raises(ProtocolError, match="the job and the silo that were asked"):
        forgetting.check_receipt(other, "late", "bank")


def test_a_ledger_that_cannot_be_continued_keeps_nothing_alive(here: Path) -> None:
    ledger = here / "bank" / "trial" / "ledger.jsonl"
    ledger.write_bytes(text := ledger.read_bytes().replace(b"opened", b"closed"))
    receipts = forgetting.forget(here / "bank", "trial", "bank", chair("bank"))
    assert [receipt["ledger"] is None for receipt in receipts] == [True, False] and ledger.read_bytes() == text
    assert PART not in names(here / "bank" / "trial")
    forgetting.check_receipt(receipts[0], "trial", "bank")


def test_nothing_is_drawn_from_a_forgotten_job_nor_is_it_begun_again(here: Path) -> None:
    asked = more(here, 20, 2, "later")
    forgetting.forget(here / "shop", "trial", "shop", chair("shop"))
    with pytest.raises(ProtocolError, match=r"Silo 'shop'.*has forgotten the job"):
        carry_out(asked, ABSENT, here)
    again = sides(same_rows(), here, "trial")["shop"]
    with pytest.raises(ProtocolError, match="has forgotten the job"):
        again.answer(Greet("silofuse", "alice", *installed()))
    assert PART not in names(here / "shop" / "trial")


def test_a_draw_that_has_begun_ends_with_the_job(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting between taking up the part and drawing from it."""
    prepare = coordinator.redraw

    def late(*args: Any) -> Any:
        talk = prepare(*args)
        step = next(talk)
        while True:
            if any(type(ask).__name__ == "SynthesiseFromLatents" for ask in getattr(step, "asks", {}).values()):
                forgetting.forget(here / "bank", "trial", "bank", chair("bank"))
            step = talk.send((yield step))

    monkeypatch.setattr(coordinator, "redraw", late)
    with pytest.raises(ProtocolError, match="has forgotten the job"):
        carry_out(more(here, 20, 2, "later"), ABSENT, here)
    assert "synthetic.parquet" not in names(here / "bank" / "later")


def test_a_job_at_work_is_not_forgotten(here: Path) -> None:
    running = forgetting.mark_running(here / "bank" / "late")
    with pytest.raises(ConfigError, match=r"at work is not forgotten.*late"):
        forgetting.forget(here / "bank", "trial", "bank", chair("bank"))
    assert PART in names(here / "bank" / "trial")
    running.close()
    forgetting.forget(here / "bank", "trial", "bank", chair("bank"))
    coordinator.Status("running").write(here / "coordinator" / "trial")
    with pytest.raises(ConfigError, match="trial is running"):
        forget_here(here / "coordinator", "trial", "coordinator")


def test_the_coordinator_asks_each_silo_and_gets_receipts(here: Path) -> None:
    place = here / "coordinator" / "trial"
    asked = forget_requests(place, "coordinator")
    receipts = forget_here(here / "coordinator", "trial", "coordinator")
    assert [receipt["job"] for receipt in receipts] == ["trial", "late"]
    assert KEPT not in names(place) and "synthetic.parquet" not in names(place)
    assert read_status(place).state == read_status(here / "coordinator" / "late").state == "forgotten"
    with pytest.raises(ConfigError, match="trial is forgotten"):
        more(here, 10, 1, "later")
    for order in asked:  # one may be away for long: it keeps none of the others from it
        silo = order.job.silos[0]
        carry_out(order, {silo: ABSENT[silo]}, here)
        for name in ("trial", "late"):
            receipt = json.loads((here / "coordinator" / name / f"receipt-{silo}.json").read_text())
            forgetting.check_receipt(receipt, name, silo)
            assert receipt["by"] == "coordinator"
        assert PART not in names(here / silo / "trial") and order.forget == "trial"
    again = forget_requests(place, "coordinator")[0]
    carry_out(again, {"bank": ABSENT["bank"]}, here)  # nothing is left; receipts come all the same
    assert "receipt-bank.json" in names(place)


def test_what_was_not_removed_yet_goes_when_the_name_is_used_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a silo that was killed while it forgot; a coordinator begins a job of the same name before that ends."""

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(forgetting, "_remove", killed)
    with pytest.raises(KeyboardInterrupt):
        forgetting.forget(here / "bank", "trial", "bank", chair("bank"))
    monkeypatch.undo()
    assert PART in names(here / "bank" / "trial") and forgetting.when_forgotten(here / "bank" / "trial") == "in part"
    forgetting.set_aside(here / "bank" / "trial")
    left = names(here / "bank" / "trial~1")
    assert PART not in left and "synthetic.parquet" not in left and "ledger.jsonl" in left


def test_a_request_to_forget_comes_alone(here: Path) -> None:
    asked = more(here, 20, 1, "wrong").job
    silo = sides(ABSENT, here, "wrong")["bank"]
    silo.answer(Greet("silofuse", "alice", *installed()))
    silo.answer(Begin(asked))
    with pytest.raises(ProtocolError, match="has no other forgotten"):
        silo.answer(Forget("late"))
    with pytest.raises(ConfigError, match="job's name"):
        Forget("../shop")
    nothing = sides(ABSENT, here, "ask")["bank"].answer(Forget("never"))
    assert to_state(nothing)["fields"]["receipts"] == "[]"


def test_training_does_not_go_on_in_a_forgotten_job(tmp_path: Path) -> None:
    silo = sides(same_rows(), tmp_path, "trial")["bank"]
    silo.answer(Greet("silofuse", "alice", *installed()))
    silo.answer(Begin(job(same_rows(), align=None)))
    forgetting.forget(tmp_path / "bank", "trial", "bank", chair("bank"))
    with pytest.raises(ProtocolError, match="has forgotten the job"):
        silo.answer(KeepPart())


def test_receipts_of_others_are_not_kept(here: Path) -> None:
    receipt = forgetting.forget(here / "bank", "late", "bank", chair("bank"))[0]
    with pytest.raises(ProtocolError):
        coordinator.keep_receipts(here / "coordinator", "trial", "shop", [receipt])
    with pytest.raises(ProtocolError):
        coordinator.keep_receipts(here / "coordinator", "another", "bank", [receipt])


def test_jobs_are_forgotten_by_themselves_days_after_their_last_use(here: Path) -> None:
    jobs, said, day = here / "bank", list[str](), 86400.0
    now, old = time.time(), time.time() - 31 * day
    for name in ("trial", "late"):
        os.utime(jobs / name / "ledger.jsonl", (old, old))
    assert list(forgetting.too_old(jobs, 32, now)) == []
    os.utime(jobs / "late" / "ledger.jsonl", (now, now))
    assert list(forgetting.too_old(jobs, 30, now)) == []  # a draw has used it since
    os.utime(jobs / "late" / "ledger.jsonl", (old, old))
    stop = threading.Event()
    stop.set()
    forgetting.keep_no_longer(jobs, 30, chair("bank"), said.append, stop)
    assert PART not in names(jobs / "trial") and "older than 30 days: 2 receipts" in said[-1]
    assert json.loads((jobs / "trial" / FORGOTTEN).read_text())["by"] == "retention_days = 30"
    assert list(forgetting.too_old(jobs, 30, now + 99 * day)) == []
    (here / "silo.toml").write_text("retention_days = 30\n")
    assert read_silo(here).retention_days == 30


def test_what_stays_is_called_as_sites_call_it() -> None:
    assert {coordinator.ORDER, coordinator.STATUS, coordinator.LEDGER, entry.LOG, LABEL} <= set(forgetting.STAYS)
    assert not {KEPT, MODEL, PART, coordinator.RESULT, coordinator.SYNTHETIC} & set(forgetting.STAYS)


# The commands.


@pytest.fixture
def kits(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kits whose jobs are these."""

    def kit(folder: Path, coordinator: bool = False) -> Any:
        roster = Roster(("bank", "shop"))
        seat = (lambda: chair(folder.name)) if folder.name in COLUMNS else None
        return SimpleNamespace(name=folder.name, folder=folder, jobs=folder, roster=roster, stream_port=None, seat=seat)

    for module in (jobs, outcomes):
        monkeypatch.setattr(module, "open_kit", kit)
    return here


def call(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_commands_forget_and_refuse_what_was_forgotten(kits: Path) -> None:
    done = call("forget", "trial", "--kit", kits / "bank", "--json")
    assert done.exit_code == 0, done.output
    assert [one["job"] for one in json.loads(done.stdout)["receipts"]] == ["trial", "late"]
    for words in (("fetch", "trial"), ("fetch", "late")):
        refused = call(*words, "--kit", kits / "bank", "--out", kits / "x.csv")
        assert refused.exit_code == 2 and "is kept at bank (got: forgotten, 20" in refused.stderr
    asked = call("forget", "trial", "--kit", kits / "coordinator", "--no-wait", "--json")
    assert asked.exit_code == 0, asked.output
    waiting = [path for path in (kits / "coordinator").glob("forget-trial-*")]
    assert sorted(unpack((path / "order").read_bytes())["fields"]["forget"] for path in waiting) == ["trial"] * 2
    refused = call("draw", "trial", "--rows", "5", "--kit", kits / "coordinator")
    assert refused.exit_code == 2 and "forgotten, 20" in refused.stderr
    assert call("forget", "trial", "--kit", kits / "alice").exit_code == 2


def test_the_command_waits_for_receipts(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(ui: Any, name: str, folder: Path) -> None:
        order = coordinator.unpack_order((folder / "order").read_bytes())
        silo = order.job.silos[0]
        if silo == "shop":
            raise ProtocolError(f"Job {name} has failed: shop is on fire")
        carry_out(order, {silo: ABSENT[silo]}, kits)

    monkeypatch.setattr(jobs, "_wait_here", run)
    done = call("forget", "trial", "--kit", kits / "coordinator")
    assert done.exit_code == 3 and "shop is on fire" in done.stderr and "receipt-bank.json" in done.stdout


def test_policies_do_not_matter_to_forgetting(here: Path) -> None:
    order: Order = forget_requests(here / "coordinator" / "trial", "coordinator")[0]
    strict = OPEN.model_copy(update={"algorithms": ["gdts"], "largest_epsilon": 1.0, "jobs_per_day": 0})
    carry_out(order, {"bank": ABSENT["bank"]}, here, policy=strict)
    assert PART not in names(here / "bank" / "trial")
