"""When jobs are given to the engine, again, or not any more. The engine is played; `test_taken_up` has the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.deployment.common import job, two_silos

from silosynth.core.errors import ConfigError
from silosynth.deployment.coordinator import Dispatcher, Order, Status, enqueue, read_status, request_stop, resume
from silosynth.deployment.flare.console import ABORTED, FAILED, RUNNING, JobInfo

LATE = 1e10  # later than any status is written


class Engine:
    """Knows its jobs and who is connected; takes whatever is submitted."""

    def __init__(self) -> None:
        self.there = {"bank": True, "shop": True}
        self.known: list[JobInfo] = []

    def jobs(self) -> list[JobInfo]:
        return self.known

    def parties(self) -> dict[str, bool]:
        return self.there

    def submit(self, payload: bytes, parties: Any, name: str) -> str:
        self.known.append(JobInfo(str(len(self.known)), name, RUNNING, "dispatcher", f"{len(self.known):04d}", ()))
        return self.known[-1].job

    def ends(self, state: str, *details: str) -> None:
        last = self.known.pop()
        self.known.append(JobInfo(last.job, last.name, state, last.operator, last.submitted, details))

    def close(self) -> None:
        """Nothing to close."""


class Trial:
    """One job, its engine, and a clock."""

    def __init__(self, folder: Path, **order: Any) -> None:
        self.jobs, self.engine, self.now, self.said = folder, Engine(), LATE, list[str]()
        self.folder = folder / "trial"
        enqueue(Order(job(two_silos()), **order), self.folder)
        self.restart()

    def restart(self) -> None:
        self.dispatcher = Dispatcher(self.jobs, lambda: self.engine, self.said.append, lambda: self.now)  # type: ignore[arg-type,return-value]

    def look(self, seconds: float = 0.0) -> Status:
        self.now += seconds
        self.dispatcher.check()
        return read_status(self.folder)

    def becomes(self, state: str, attempts: int) -> None:
        Status(state, attempts=attempts, error="Silo 'shop', step 7", since=self.now).write(self.folder)


def test_a_job_is_submitted_when_all_silos_are_there_however_late(tmp_path: Path) -> None:
    trial = Trial(tmp_path, patience=60.0)
    trial.engine.there["shop"] = False
    for _ in range(3):
        waiting = trial.look(1000)
    assert waiting.state == "submitted" and waiting.stage == "waiting for shop" and trial.engine.known == []
    assert trial.said == ["job trial waits for shop."]
    trial.engine.there["shop"] = True
    trial.look()
    trial.look(5)  # it runs
    assert [info.name for info in trial.engine.known] == ["trial"]


def test_a_lost_silo_has_patience_seconds_of_the_coordinators_presence(tmp_path: Path) -> None:
    trial = Trial(tmp_path, patience=60.0)
    trial.look()
    trial.becomes("interrupted", 1)
    trial.engine.ends(FAILED)
    trial.engine.there = {"bank": True}
    assert trial.look(50).state == "interrupted"
    trial.now += 1e6  # the coordinator is away
    trial.restart()
    assert trial.look(50).state == "interrupted"
    ended = trial.look(20)
    assert ended.state == "failed" and ended.error == "shop did not come back within 60 s. Silo 'shop', step 7"


def test_attempts_that_come_no_further_follow_each_other_ever_more_slowly(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.look()
    times = []
    for attempt in range(1, 10):
        trial.becomes("running", attempt)  # the coordinator's process was killed, and could not say so
        trial.engine.ends(FAILED)
        begun, count = trial.now, len(trial.engine.known)
        while len(trial.engine.known) == count:
            trial.look(1)
        times.append(trial.now - begun)
    assert times == [2, 4, 8, 16, 32, 60, 60, 60, 60]
    (trial.folder / "coordinator").mkdir()
    (trial.folder / "coordinator" / "000001.ckpt").touch()
    trial.becomes("running", 10)
    trial.engine.ends(FAILED)
    count = len(trial.engine.known)
    trial.look(1)
    assert len(trial.engine.known) == count + 1


def test_only_an_operator_ends_a_job(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "a")
    trial.look()
    trial.becomes("interrupted", 1)
    trial.engine.ends(ABORTED)
    assert "An operator has stopped it" in trial.look(10).error
    other = Trial(tmp_path / "b")
    other.look()
    other.becomes("running", 1)
    request_stop(other.folder)
    assert other.look(10).state == "running"  # its process has not left yet
    other.engine.ends(FAILED)
    ended = other.look(10)
    assert ended.state == "failed" and "coordinator's operator" in ended.error and len(other.engine.known) == 1
    with pytest.raises(ConfigError, match="Only a job that has not ended can be stopped"):
        request_stop(other.folder)


def test_a_job_that_silos_do_not_take_fails_with_what_they_said(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    for _ in range(3):
        trial.look(100)
        trial.engine.ends(FAILED, "shop: BYOC not permitted")
    assert len(trial.engine.known) == 3
    assert trial.look(100).error == "Silos have not accepted it: shop: BYOC not permitted"


def test_a_job_with_a_checkpoint_is_suspended_and_goes_on_when_told(tmp_path: Path) -> None:
    trial = Trial(tmp_path, patience=60.0)
    trial.look()
    (trial.folder / "coordinator").mkdir()
    (trial.folder / "coordinator" / "000001.ckpt").touch()
    trial.becomes("interrupted", 1)
    trial.engine.ends(FAILED)
    trial.engine.there = {"bank": True}
    with pytest.raises(ConfigError, match="trial is interrupted"):
        resume(trial.folder)
    assert trial.look(70).state == "suspended" and "is suspended: shop did not come back" in trial.said[-1]
    trial.engine.there["shop"] = True
    trial.look(100)
    assert len(trial.engine.known) == 1  # nobody has said that it is to go on
    resume(trial.folder)
    trial.look(100)
    assert len(trial.engine.known) == 2
    trial.becomes("suspended", 2)
    request_stop(trial.folder)
    assert read_status(trial.folder).state == "failed"


def test_a_forgotten_jobs_name_is_free(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.look()
    trial.engine.ends(ABORTED)
    Status("forgotten", attempts=1).write(trial.folder)
    enqueue(Order(job(two_silos())), trial.folder)
    assert read_status(tmp_path / "trial~1").state == "forgotten"
    trial.restart()
    trial.look(10)  # the engine's last word was of the forgotten one
    assert len(trial.engine.known) == 2
    trial.engine.ends(ABORTED)
    assert "An operator has stopped it" in trial.look(10).error


def test_a_name_is_used_once(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    with pytest.raises(ConfigError, match="A job's name is used only once"):
        enqueue(Order(job(two_silos())), trial.folder)


@pytest.mark.parametrize(("state", "said"), [
    ("done", "job trial is done"), ("failed", "job trial has failed: Silo 'shop', step 7"),
    ("suspended", "job trial is suspended: Silo 'shop', step 7"),
])  # fmt: skip
def test_how_a_job_ended_is_said_once(tmp_path: Path, state: str, said: str) -> None:
    trial = Trial(tmp_path)
    trial.look()
    trial.becomes(state, 1)
    for _ in range(3):
        trial.look(10)
    assert trial.said == ["job trial begins", said]
