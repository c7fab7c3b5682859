from __future__ import annotations

import json
import os
import timeit
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.runtime.toy import Add, Prepare, Total as Answer

from silosynth.core.errors import CheckpointError, StorageError
from silosynth.core.messages import Done, Message, Release
from silosynth.privacy.events import DISCRETE_LAPLACE, Event
from silosynth.runtime import ledger as module
from silosynth.runtime.ledger import Ledger, Position, Record

JOB = Event(DISCRETE_LAPLACE, 0.5, 0.0, "counts of the levels of column 'job'")
PAY = Event(DISCRETE_LAPLACE, 0.1 + 0.2, 1e-6, "a histogram of column “pay”")
ADD, ANSWER = Add.__new__(Add), Answer.__new__(Answer)  # the ledger looks at types only


class Counts(Message, release=Release.NOISED):
    events: tuple[Event, ...]


def fill(ledger: Ledger, first: int, last: int) -> None:
    for step in range(first, last):
        for party in ("bank", "clinic"):
            ledger.add(step, "coordinator", party, ADD, 100 + step)
            ledger.add(step, party, "coordinator", ANSWER, 10 * step)


def test_records() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.add(1, "coordinator", "bank", Prepare(3), 20)
    ledger.add(1, "bank", "coordinator", Done(), 7)
    fill(ledger, 2, 4)
    assert len(ledger.records) == 10
    assert ledger.records[0].type == "tests.runtime.Prepare"
    assert ledger.records[1] == Record(1, "bank", "coordinator", "core.Done", 7, Release.NOTHING.value)
    assert ledger.records[-1].privacy == Release.ROWS.value
    assert ledger.records[2:4][1].sender == "bank"


def test_the_file_holds_a_record_per_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "run" / "ledger.jsonl")
    ledger.start()
    fill(ledger, 1, 3)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == b""  # written at checkpoints and at the end
    assert ledger.flush() == Position(8, os.path.getsize(tmp_path / "run" / "ledger.jsonl"))
    fill(ledger, 3, 4)
    ledger.close()
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert lines == ledger.entries()
    assert [tuple(line.values()) for line in lines] == [tuple(record)[:-1] for record in ledger.records]
    assert list(lines[0]) == ["step", "from", "to", "type", "bytes", "privacy"]


def test_a_resumed_ledger_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ledger = Ledger(whole)
    ledger.start()
    fill(ledger, 1, 9)
    ledger.close()
    first = Ledger(parts)
    first.start()
    fill(first, 1, 5)
    position = first.flush()
    fill(first, 5, 7)
    first.close()  # two steps beyond the checkpoint
    again = Ledger(parts)
    again.resume(position)
    fill(again, 5, 9)
    again.close()
    assert parts.read_bytes() == whole.read_bytes()
    assert list(again.records) == list(ledger.records)


def test_what_was_noised_is_recorded_with_the_message(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.start()
    fill(ledger, 1, 2)
    ledger.add(2, "bank", "coordinator", Counts((JOB, PAY)), 30)
    ledger.add(3, "bank", "coordinator", Counts((JOB,)), 20)
    position = ledger.flush()
    fill(ledger, 4, 5)
    ledger.close()
    noised, again = ledger.records[4:6]
    assert (noised.events, again.events, ledger.records[0].events) == ((JOB, PAY), (JOB,), ())
    assert noised.privacy == "noised statistics, by the events listed"
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert lines == ledger.entries()
    assert lines[4]["events"] == [asdict(JOB), asdict(PAY)]
    assert [i for i, line in enumerate(lines) if "events" in line] == [4, 5]
    resumed = Ledger(tmp_path / "ledger")
    resumed.resume(position)
    fill(resumed, 4, 5)
    resumed.close()
    assert list(resumed.records) == list(ledger.records)
    assert [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()] == lines


def test_noised_content_without_an_event_is_recorded_as_exact() -> None:
    ledger = Ledger()
    ledger.start()
    ledger.add(1, "bank", "coordinator", Counts(()), 20)
    ledger.add(1, "clinic", "coordinator", Counts((JOB,)), 20)
    assert [record.privacy for record in ledger.records] == [Release.STATISTICS.value, Release.NOISED.value]


def test_repeated_records_share_what_they_have_in_common() -> None:
    ledger = Ledger()
    ledger.start()
    for step in range(1000):
        ledger.add(step, "bank", "coordinator", Counts((Event(**asdict(JOB)),)), 20)
        ledger.add(step, "bank", "coordinator", ANSWER, 20)
    assert len(ledger._routes) == 2
    assert ledger.records[998].events is ledger.records[0].events


def test_in_memory_it_resumes_only_where_it_was() -> None:
    ledger = Ledger()
    ledger.start()
    fill(ledger, 1, 3)
    position = ledger.flush()
    fill(ledger, 3, 5)
    ledger.resume(position)
    assert len(ledger.records) == 8
    with pytest.raises(CheckpointError, match="Give the ledger a path"):
        Ledger().resume(position)


@pytest.mark.parametrize("damage", ["missing", "short", "garbage", "fields", "events"])
def test_a_ledger_that_does_not_match_its_checkpoint_is_an_error(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.start()
    fill(ledger, 1, 4)
    position = ledger.flush()
    ledger.close()
    text = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        event = text.replace(b'"}', b'", "events": [{"mechanism": "x", "epsilon": -1, "delta": 0, "what": ""}]}', 1)
        damages = {"short": text[:-50], "garbage": b"x" * len(text), "fields": b'{"a": 1}' + text[8:], "events": event}
        path.write_bytes(damages[damage])
    with pytest.raises(CheckpointError, match=r"ledger\.jsonl") as caught:
        Ledger(path).resume(position)
    assert caught.value.remedy


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder"):
        Ledger(tmp_path / "folder").start()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_an_error() -> None:
    ledger = Ledger("/dev/full")
    ledger.start()
    fill(ledger, 1, 3)
    with pytest.raises(StorageError, match="disk is full"):
        ledger.flush()
    with pytest.raises(StorageError, match="/dev/full"):
        ledger.close()
    assert len(ledger.records) == 8


def test_long_runs_are_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FLUSH_EVERY", 10)
    ledger = Ledger(tmp_path / "ledger")
    ledger.start()
    fill(ledger, 1, 4)
    assert len((tmp_path / "ledger").read_text().splitlines()) == 10
    ledger.close()
    assert len((tmp_path / "ledger").read_text().splitlines()) == 12


def test_a_record_costs_microseconds(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.start()
    best = min(timeit.repeat(lambda: ledger.add(1, "coordinator", "bank", ADD, 1000), number=2000, repeat=5)) / 2000
    ledger.close()
    assert best < 20e-6  # about 0.5 µs on an idle machine
