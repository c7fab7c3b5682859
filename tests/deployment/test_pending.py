"""Exchanges that wait to be written into a silo's ledger: lines are those of the slow way, and no kill loses one."""

from __future__ import annotations

import json
import mmap
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from tests.oracles.silo_ledger import PlainLedger

from silosynth.algorithms.vflgan import protocol as vflgan
from silosynth.core.errors import ProtocolError, StorageError
from silosynth.core.messages import Done, Message
from silosynth.core.streams import Streams
from silosynth.deployment import pending
from silosynth.deployment.pending import AskAndReply, Pending, Place, read_pending
from silosynth.deployment.protocol import DrawnNonce, PrepareRows
from silosynth.deployment.silo_ledger import EVERY, FILE, HEAD, SiloLedger, Verdict, public_key, verify_file, whole_text
from silosynth.privacy.events import Event
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import encode

SEATS = seats(["bank", "shop"], Streams(3))
NOON = 1_700_000_000_123_456_000
Talk = list[str]


def _pair(kind: str, step: int) -> tuple[Message, Message]:
    some = torch.full((1, 1), float(step))
    spent = (Event("discrete laplace", 1.0, 0.0, "counts"),)
    return {
        "own": (PrepareRows(), DrawnNonce(step.to_bytes(4, "big"))),
        "batch": (vflgan.CriticiseBatch(), vflgan.BatchFeatures(some, some)),
        "descend": (vflgan.DescendLocalCritic(some, some, True), vflgan.BatchFeatures(some, some)),
        "generate": (vflgan.DescendLocalGenerator(some, True), Done()),
        "charged": (vflgan.VFLGANPrepare(), vflgan.VFLGANPreparedPrivately(10, "n", spent)),
    }[kind]


PAIRS = "own", "batch", "descend", "generate", "charged"
OTHERS = "saved", "restored", "refused", "head", "settled"


def book(folder: Path, clock: Callable[[], int] = lambda: NOON) -> SiloLedger:
    return SiloLedger(folder, "trial", SEATS["bank"], clock)


def exchange(ledger: SiloLedger, step: int, kind: str) -> None:
    ask, reply = _pair(kind, step)
    ledger.asked(step, ask, encode(ask))
    ledger.replied(step, reply, encode(reply))


def talk(ledger: SiloLedger, said: Talk, first: int = 1) -> None:
    for step, kind in enumerate(said, first):
        if kind in PAIRS:
            exchange(ledger, step, kind)
        elif kind == "refused":
            ledger.asked(step, PrepareRows(), encode(PrepareRows()))
            ledger.refused(step, ProtocolError("No", "x"))
        else:
            {
                "saved": lambda: ledger.saved(1), "restored": lambda: ledger.restored(1), "head": ledger.head,
                "settled": ledger.settle,
            }[kind]()  # fmt: skip


def plainly(said: Talk) -> bytes:
    """The same, each line by itself."""
    slow = PlainLedger("trial", SEATS["bank"], NOON)
    for step, kind in enumerate(said, 1):
        if kind in PAIRS:
            ask, reply = _pair(kind, step)
            slow.exchange(step, ask, reply, encode(ask), encode(reply))
        elif kind == "refused":
            slow.message(step, "coordinator", "bank", PrepareRows(), encode(PrepareRows()))
            slow.add({"kind": "refused", "step": step, "error": "ProtocolError"})
            slow.sign()
        elif kind == "restored":
            slow.add({"kind": "restored", "number": 1})
            slow.sign_if_due()
        elif kind == "saved":
            slow.add({"kind": "saved", "number": 1})
            slow.sign()
        elif kind == "head":
            slow.sign()
    return slow.text


def verified(folder: Path) -> Verdict:
    return verify_file(folder / FILE, key=public_key(SEATS["bank"]), job="trial", silo="bank")


LONG = ["batch", *["descend"] * 5, "generate"] * 8


@settings(max_examples=15, deadline=None)
@given(said=st.lists(st.sampled_from([*PAIRS, *OTHERS, "descend", "batch", "descend"]), max_size=60))
@example(said=LONG)
@example(said=["descend"] * (EVERY + 3))
@example(said=["descend", "descend", "refused", "descend", "charged", "descend", "head", "descend", "saved", "descend"])
@example(said=["charged", "charged", "batch", "batch", "own", "batch", "settled", "batch"])
def test_lines_are_those_that_each_would_be_by_itself(said: Talk) -> None:
    """Also what lies beside the ledger after any message, and what the next process goes on with."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        talk(book(folder), said)
        expected = plainly(said)
        assert whole_text(folder / FILE) == expected
        assert not verified(folder).faults
        written = book(folder).asks, (folder / FILE).read_bytes()
        assert written[1].startswith(expected) and not (folder / pending.FILE).exists()


def test_what_waits_is_bounded_and_nothing_that_charges_waits(tmp_path: Path) -> None:
    ledger = book(tmp_path)
    sizes = []
    for step in range(1, 200):
        exchange(ledger, step, "descend")
        sizes.append(len(whole_text(tmp_path / FILE)[(tmp_path / FILE).stat().st_size :].splitlines()))
    assert 0 < max(sizes) < EVERY
    for kind in ("charged", "own"):
        exchange(ledger, step := step + 1, "descend")
        exchange(ledger, step := step + 1, kind)
        last = (tmp_path / FILE).read_bytes().splitlines()[-1]
        assert json.loads(last)["step"] == step and whole_text(tmp_path / FILE) == (tmp_path / FILE).read_bytes()


def test_with_the_next_message_after_a_second_it_is_written(tmp_path: Path) -> None:
    now = [NOON]
    ledger = book(tmp_path, lambda: now[0])
    talk(ledger, ["descend"] * 3)
    before = len((tmp_path / FILE).read_bytes())
    now[0] += 2 * 10**9
    exchange(ledger, 4, "descend")
    assert len((tmp_path / FILE).read_bytes()) > before and len(whole_text(tmp_path / FILE)) == ledger._size


def test_a_process_that_ends_anywhere_loses_no_exchange(tmp_path: Path) -> None:
    """A copy of both files after each exchange is what a kill would leave then."""
    ledger = book(tmp_path / "job")
    for step, kind in enumerate(LONG, 1):
        exchange(ledger, step, kind)
        again = tmp_path / str(step)
        again.mkdir()
        for file in (tmp_path / "job").iterdir():
            (again / file.name).write_bytes(file.read_bytes())
        next_one = book(again)
        steps = [json.loads(line).get("step") for line in (again / FILE).read_bytes().splitlines()]
        assert max(filter(None, steps)) == step and next_one.asks == ledger.asks


def test_a_process_killed_while_it_wrote_them_is_continued(tmp_path: Path) -> None:
    talk(book(tmp_path), ["descend"] * 9)
    whole, start = whole_text(tmp_path / FILE), (tmp_path / FILE).stat().st_size
    beside, head = (tmp_path / pending.FILE).read_bytes(), (tmp_path / HEAD).read_bytes()
    for cut in range(start, len(whole) + 1, 97):
        (tmp_path / FILE).write_bytes(whole[:cut])
        (tmp_path / pending.FILE).write_bytes(beside)
        (tmp_path / HEAD).write_bytes(head)
        assert whole_text(tmp_path / FILE) == whole
        book(tmp_path)
        assert (tmp_path / FILE).read_bytes()[: len(whole)] == whole
        assert not verified(tmp_path).faults


@pytest.mark.parametrize("how", ["of another ledger", "cut", "rubbish", "frames", "of other lines"])
def test_a_file_that_does_not_fit_the_ledger_adds_nothing(tmp_path: Path, how: str) -> None:
    talk(book(tmp_path / "bank"), ["descend"] * 5)
    path, beside = tmp_path / "bank" / FILE, tmp_path / "bank" / pending.FILE
    text, held = path.read_bytes(), beside.read_bytes()
    size, last = len(text), held[8:40]
    wrong = AskAndReply(1, NOON, 5, bytes(32), NOON, 5, bytes(32), b"[" * 30_000)
    if how == "of another ledger":
        held = held[:8] + bytes(32) + held[40:]
    elif how == "cut":
        held = held[:30]
    elif how == "rubbish":
        held = b"\xff" * len(held)
    elif how == "frames":
        Pending(beside).add(wrong, Place(size, last.hex()))
        held = beside.read_bytes()
    else:
        held = (1).to_bytes(8, "little") + held[8:]
    beside.write_bytes(held)
    assert whole_text(path) == text and not verified(tmp_path / "bank").faults
    book(tmp_path / "bank")
    assert path.read_bytes().startswith(text)


def test_exchanges_that_were_stored_after_the_head_was_read_do_not_count(tmp_path: Path) -> None:
    waiting, path = Pending(tmp_path / "x"), tmp_path / "x"
    one = AskAndReply(1, NOON, 5, bytes(32), NOON, 5, bytes(32), b"[]")
    assert waiting.add(one, Place(100, "00" * 32)) and waiting.add(one, Place(100, "00" * 32))
    early = path.read_bytes()
    waiting.written()
    assert waiting.add(one, Place(900, "11" * 32))
    path.write_bytes(early[:41] + path.read_bytes()[41:])
    assert read_pending(path) == (Place(100, "00" * 32), [])


def test_a_changed_line_that_waited_is_found(tmp_path: Path) -> None:
    ledger = book(tmp_path)
    talk(ledger, ["descend"] * 9)
    ledger.sign()
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    for text in ([*lines[:7], *lines[8:]], [*lines[:7], lines[8], lines[7], *lines[9:]]):
        (tmp_path / FILE).write_bytes(b"".join(text))
        assert verified(tmp_path).faults
    (tmp_path / FILE).write_bytes(b"".join(lines).replace(b'"step": 5,', b'"step": 6,'))
    assert verified(tmp_path).faults


def test_where_no_file_can_be_mapped_each_is_written_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*args: object) -> None:
        raise OSError("No such device")

    monkeypatch.setattr(mmap, "mmap", unable)
    talk(book(tmp_path), LONG)
    assert (tmp_path / FILE).read_bytes() == plainly(LONG)


def test_what_a_full_disk_refuses_goes_on_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, write = book(tmp_path), os.write
    talk(ledger, ["descend"] * 5)
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda handle, text: write(handle, text[:20]))
        with pytest.raises(StorageError, match="disk is full"):
            ledger.sign()
        ledger.settle()
    assert len(whole_text(tmp_path / FILE).splitlines()) == 2 + 10
    ledger.sign()
    assert len((tmp_path / FILE).read_bytes().splitlines()) == 2 + 10 + 1 and not verified(tmp_path).faults


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_others_cannot_read_it(tmp_path: Path) -> None:
    talk(book(tmp_path), ["descend"] * 2)
    assert stat.S_IMODE((tmp_path / pending.FILE).stat().st_mode) == 0o600


@pytest.mark.live
def test_a_killed_process_has_told_all_that_left(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.deployment.test_pending import LONG, book, talk\n"
        "talk(book(Path(sys.argv[1])), LONG); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / FILE).read_bytes() != plainly(LONG) == whole_text(tmp_path / FILE)
    book(tmp_path)
    assert (tmp_path / FILE).read_bytes().startswith(plainly(LONG)) and not verified(tmp_path).faults
