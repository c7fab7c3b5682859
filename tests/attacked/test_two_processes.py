"""A coordinator that replays a signed job, so that a silo has two processes at work on it: one alone answers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.attacked.desk import Desk, a_job

from silosynth.core.errors import ProtocolError, SilosynthError
from silosynth.core.messages import Message
from silosynth.deployment import forgetting
from silosynth.deployment.protocol import Begin, PrepareRows

pytestmark = pytest.mark.live
HOSTILE = 'algorithms = ["silofuse"]\nleast_rows = 10\nrequire_alignment = false\n'


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "PATIENCE", 0.5)


class Elsewhere:
    """A process of the silo that opens a job and asks itself what the test sends; it says which error came of it."""

    def __init__(self, folder: Path) -> None:
        self._line, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=_serve, args=(folder, theirs))
        self.process.start()
        theirs.close()

    def ask(self, message: Message | None) -> str:
        """Ask something, or open the job: the error's class and text, "" if it was answered."""
        self._line.send(message)
        return str(self._line.recv())

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(folder: Path, line: Connection) -> None:
    forgetting.PATIENCE = 0.5  # it is another process: the fixture does not reach it
    desk = Desk(folder, HOSTILE)
    while True:
        message = line.recv()
        try:
            desk.open() if message is None else desk.ask(message)
        except SilosynthError as error:
            line.send(f"{type(error).__name__}: {error}")
        else:
            line.send("")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Callable[[], Elsewhere]]:
    found = list[Elsewhere]()

    def start() -> Elsewhere:
        found.append(Elsewhere(tmp_path / "bank"))
        return found[-1]

    yield start
    for one in found:
        one.kill()


def test_a_second_process_of_a_silo_does_not_answer_for_a_job(
    tmp_path: Path, elsewhere: Callable[[], Elsewhere]
) -> None:
    """Opened before the first has refused, the second one would not know of the refusal."""
    first = elsewhere()
    assert first.ask(None) == ""
    second = Desk(tmp_path / "bank", HOSTILE)
    with pytest.raises(ProtocolError, match="One process of a silo answers for a job"):
        second.open()
    assert first.ask(Begin(a_job("vtgan"))).startswith("PolicyError")  # a refusal, which ends the job
    with pytest.raises(ProtocolError):
        second.ask(Begin(a_job()))
    first.kill()
    with pytest.raises(ProtocolError, match="ends at a silo with the first message that it refuses"):
        second.open().ask(Begin(a_job()))


def test_a_process_that_was_killed_keeps_nobody_out(tmp_path: Path, elsewhere: Callable[[], Elsewhere]) -> None:
    first = elsewhere()
    assert first.ask(None) == "" and first.ask(Begin(a_job())) == ""
    first.kill()
    resumed = Desk(tmp_path / "bank", HOSTILE).begin(a_job())
    resumed.ask(PrepareRows())


def test_an_earlier_process_that_ends_in_time_is_waited_for(
    tmp_path: Path, elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = elsewhere()
    assert first.ask(None) == ""
    waited = list[float]()

    def pause(seconds: float) -> None:
        waited.append(seconds)
        first.kill()

    monkeypatch.setattr(forgetting.time, "sleep", pause)
    Desk(tmp_path / "bank", HOSTILE).open().ask(Begin(a_job()))
    assert len(waited) == 1


def test_the_name_of_a_forgotten_job_is_opened_by_one_process(
    tmp_path: Path, elsewhere: Callable[[], Elsewhere]
) -> None:
    """What stays of the forgotten job is moved aside with its lock, and the new folder is locked anew."""
    desk = Desk(tmp_path / "bank", HOSTILE).begin(a_job())
    assert desk.answer._endpoint is not None
    desk.answer._endpoint.retire()
    forgetting.forget(desk.kit.jobs, "trial", "bank", desk.kit.seat())
    desk.hand("open", b'{"job": "trial", "attempt": "2", "stream": null, "fresh": true}')
    assert "One process of a silo answers" in elsewhere().ask(None)
    desk.ask(Begin(a_job()))
