"""A silo's own ledger: what it holds, and what verification finds."""

from __future__ import annotations

import itertools
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from silosynth.cli import app
from silosynth.core.errors import ProtocolError, StorageError
from silosynth.core.messages import Done
from silosynth.core.streams import Streams
from silosynth.deployment.protocol import AskNonce, DrawnNonce, KeepPart, PrepareRows
from silosynth.deployment.silo_ledger import (
    EVERY,
    FILE,
    HEAD,
    CommonAsk,
    CommonAsks,
    SiloLedger,
    Verdict,
    cross_check,
    difference,
    public_key,
    verify_file,
)
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import encode

SEATS = seats(["bank", "shop"], Streams(3))


def book(folder: Path, job: str = "trial", silo: str = "bank") -> SiloLedger:
    return SiloLedger(folder, job, SEATS[silo])


def talk(ledger: SiloLedger, first: int, count: int) -> None:
    for step in range(first, first + count):
        ask, reply = PrepareRows(), DrawnNonce(step.to_bytes(4, "big"))
        ledger.asked(step, ask, encode(ask))
        ledger.replied(step, reply, encode(reply))


def verified(folder: Path, silo: str = "bank") -> Verdict:
    return verify_file(folder / FILE, key=public_key(SEATS[silo]), job="trial", silo=silo)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with a ledger of 12 messages, which has been closed."""
    ledger = book(tmp_path)
    talk(ledger, 1, 6)
    ledger.sign()
    return tmp_path


def lines(folder: Path) -> list[bytes]:
    return (folder / FILE).read_bytes().splitlines(keepends=True)


def test_a_ledger_that_nobody_touched_is_verified(kept: Path) -> None:
    verdict = verified(kept)
    assert (verdict.faults, verdict.notes, verdict.job, verdict.silo) == ((), (), "trial", "bank")
    assert verdict.lines == verdict.signed == len(lines(kept)) == 12 + 3  # opened, and two signatures
    first = json.loads(lines(kept)[2])
    assert {"n", "at", "step", "from", "to", "type", "bytes", "privacy", "digest", "common", "before"} == set(first)
    assert first["type"] == "deployment.PrepareRows" and first["at"].endswith("+00:00")


def rewrite(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    return lambda folder: (folder / FILE).write_bytes(b"".join(change(lines(folder)))) and None


def edited(text: list[bytes]) -> list[bytes]:
    record = json.loads(text[5]) | {"bytes": 1}
    return [*text[:5], json.dumps(record).encode() + b"\n", *text[6:]]


def of_another(text: list[bytes], folder: Path) -> list[bytes]:
    other = book(folder / "other", "elsewhere")
    talk(other, 1, 6)
    other.sign()
    return [*text[:5], lines(folder / "other")[5], *text[6:]]


TAMPERED: dict[str, tuple[Callable[[Path], None], str]] = {
    "changed": (rewrite(edited), "line 5: it was changed"),
    "dropped": (rewrite(lambda text: text[:5] + text[6:]), "line 5: dropped"),
    "several dropped": (rewrite(lambda text: text[:5] + text[8:]), "lines 5 to 7: dropped"),
    "moved": (rewrite(lambda text: [*text[:5], text[6], text[5], *text[7:]]), "line 5: dropped"),
    "repeated": (rewrite(lambda text: [*text[:6], text[5], *text[6:]]), "line 5: it stands after line 5"),
    "tail cut": (rewrite(lambda text: text[:9]), "line 9: the tail was cut; there were 15 lines"),
    "emptied": (rewrite(lambda text: []), "the ledger is empty"),
    "rubbish": (rewrite(lambda text: [*text[:5], b"\x00[[\n", *text[6:]]), "line 5: it is not a line of a ledger"),
    "added": (
        rewrite(lambda text: [*text, b'{"n": 15, "kind": "saved", "before": "00"}\n']),
        "line 14: it was changed",
    ),
    "of another job": (lambda folder: rewrite(lambda text: of_another(text, folder))(folder), "line 4: it was changed"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_what_was_done_to_a_ledger_shows_and_where(kept: Path, how: str) -> None:
    tamper, told = TAMPERED[how]
    tamper(kept)
    assert any(fault.startswith(told) for fault in verified(kept).faults), verified(kept).faults


def test_whoever_chains_anew_cannot_sign(kept: Path) -> None:
    """Every hash made to fit, the key and signatures of somebody else."""
    stranger = book(kept / "stranger")
    stranger._key = SiloLedger(kept / "s", "trial", SEATS["shop"])._key
    talk(stranger, 1, 6)
    stranger.sign()
    faults = verified(kept / "stranger").faults
    assert len(faults) == 1 and "its signature is not of this silo" in faults[0]
    assert verify_file(kept / "s" / FILE, key=public_key(SEATS["bank"])).faults  # of another silo altogether
    assert "line 0: it is of another job: trial" in verify_file(kept / FILE, job="elsewhere").faults


def test_the_tail_that_was_cut_together_with_its_signature_shows_by_what_others_were_told(tmp_path: Path) -> None:
    bank, shop = (book(tmp_path / silo, silo=silo) for silo in SEATS)
    early = (tmp_path / "bank" / FILE).read_bytes(), (tmp_path / "bank" / HEAD).read_bytes()
    talk(bank, 1, 3)
    talk(shop, 1, 3)
    assert shop.compare({"bank": bank.head()}) == bank.compare({"shop": shop.head()}) == ""
    for ledger in (bank, shop):
        ledger.sign()
    texts = {silo: (tmp_path / silo / FILE).read_bytes() for silo in SEATS}
    assert not list(cross_check([(verified(tmp_path / silo, silo), texts[silo]) for silo in SEATS]))
    for name, content in zip((FILE, HEAD), early, strict=True):
        (tmp_path / "bank" / name).write_bytes(content)
    assert not verified(tmp_path / "bank").faults  # by itself it is whole
    both = [(verified(tmp_path / "bank"), early[0]), (verified(tmp_path / "shop", "shop"), texts["shop"])]
    assert list(cross_check(both)) == ["bank, line 7: it is not the one that bank told shop of"]


def test_it_goes_on_where_a_killed_process_left_it(kept: Path) -> None:
    with open(kept / FILE, "ab") as file:
        file.write(b'{"n": 15, "at": "2026-')  # killed while it wrote
    assert "the last line is unfinished" in verified(kept).notes[0]
    again = book(kept)
    again.restored(0)
    talk(again, 3, 2)  # asked again: appended, and nothing is rewritten
    before = (kept / FILE).read_bytes()
    assert len(lines(kept)) == 15 + 2 + 1 + 4
    again.sign()
    assert (kept / FILE).read_bytes().startswith(before)
    assert verified(kept).faults == verified(kept).notes == ()


@pytest.mark.live
def test_a_killed_process_leaves_a_ledger_that_is_verified_up_to_its_last_signature(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.deployment.test_silo_ledger import book, talk\n"
        "talk(book(Path(sys.argv[1])), 1, 50); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    verdict = verified(tmp_path)
    assert not verdict.faults and verdict.lines == 100 + 3 and verdict.signed == EVERY + 1
    assert verdict.notes == (f"lines {EVERY + 1} to 102 come after the last signature",)


def test_a_power_cut_that_took_the_tail_is_told_and_does_not_stop_the_job(kept: Path) -> None:
    rewrite(lambda text: text[:9])(kept)
    again = book(kept)
    again.sign()
    assert "line 9: 6 lines before it were lost, or cut" in verified(kept).faults


def test_a_ledger_that_is_not_its_own_is_not_continued(kept: Path) -> None:
    rewrite(edited)(kept)
    with pytest.raises(StorageError, match="as the silo wrote it"):
        book(kept)


def test_signatures_come_after_so_many_lines(tmp_path: Path) -> None:
    ledger = book(tmp_path)
    talk(ledger, 1, EVERY)
    signed = [json.loads(line)["n"] for line in lines(tmp_path) if b'"signed"' in line]
    assert max(b - a for a, b in itertools.pairwise(signed)) <= EVERY
    ledger.refused(EVERY + 1, ProtocolError("No", "x"))
    assert b'"signed"' in lines(tmp_path)[-1] and b'"ProtocolError"' in lines(tmp_path)[-2]


def test_a_full_disk_leaves_whole_lines_and_the_job_may_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, write = book(tmp_path), os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda handle, text: write(handle, text[:20]))
        with pytest.raises(StorageError, match="disk is full"):
            talk(ledger, 1, 1)
    talk(ledger, 1, 3)
    ledger.sign()
    assert verified(tmp_path).faults == ()


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_others_cannot_read_it(tmp_path: Path) -> None:
    book(tmp_path / "job").sign()
    for name in (FILE, HEAD):
        assert stat.S_IMODE((tmp_path / "job" / name).stat().st_mode) == 0o600


# What silos were asked.


def test_silos_that_were_asked_the_same_agree(tmp_path: Path) -> None:
    bank, shop = (book(tmp_path / silo, silo=silo) for silo in SEATS)
    for ledger in (bank, shop):
        talk(ledger, 1, 2)
    for ledger, nonce in ((bank, b"1"), (shop, b"2")):  # not declared to be common, and a reply
        ledger.asked(3, Done(), nonce)
    assert bank.compare({"shop": shop.head()}) == ""
    ask = KeepPart()
    shop.asked(4, ask, encode(ask))
    told = "silos were asked different things at message 4: nothing here, deployment.KeepPart shop"
    assert bank.compare({"shop": shop.head()}) == told
    bank.asked(4, ask, b"other options")
    assert bank.compare({"shop": shop.head()}).startswith("silos were asked different things at message 4")
    bank.sign()
    assert any(told in fault for fault in verified(tmp_path / "bank").faults)


def test_a_head_that_another_silo_did_not_sign_is_refused(tmp_path: Path) -> None:
    bank, shop = (book(tmp_path / silo, silo=silo) for silo in SEATS)
    head = shop.head()
    for forged in (replace(head, lines=1), replace(head, hash="0" * 64), replace(head, key=public_key(SEATS["bank"]))):
        with pytest.raises(ProtocolError, match="with its own key"):
            bank.compare({"shop": forged})


def test_of_asks_that_came_again_the_last_counts() -> None:
    asks = CommonAsks()

    def ask(step: int, digest: str) -> None:
        asks.add({"common": True, "step": step, "type": "t", "digest": digest})

    ask(1, "a")
    asks.add({"kind": "saved", "number": 1})
    ask(3, "b")
    ask(5, "c")
    ask(3, "d")  # the coordinator has gone back
    assert asks.all == (CommonAsk(1, "t", "a"), CommonAsk(3, "t", "d"))
    asks.add({"kind": "restored", "number": 1})
    assert asks.all == (CommonAsk(1, "t", "a"),)
    ask(1, "z")  # a new attempt
    assert asks.all == (CommonAsk(1, "t", "z"),)
    assert difference(asks.all, asks.all, "shop") == ""


def test_the_command_says_what_it_found(kept: Path) -> None:
    assert AskNonce.common  # or nothing would be compared
    fine = CliRunner().invoke(app, ["ledger", "verify", str(kept)])
    assert fine.exit_code == 0 and "No fault was found" in fine.stdout and "no kit was named" in fine.stdout
    rewrite(edited)(kept)
    bad = CliRunner().invoke(app, ["ledger", "verify", str(kept / FILE), "--json"])
    assert bad.exit_code != 0 and "line 5: it was changed" in bad.stdout
    assert CliRunner().invoke(app, ["ledger", "verify"]).exit_code != 0
