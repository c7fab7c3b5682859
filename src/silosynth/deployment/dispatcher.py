"""Supervises the coordinator's jobs: starts them, and resumes interrupted ones, when all silos are connected.

It runs beside the coordinator's daemon. A job is interrupted when a silo is lost that it cannot do without, or when the
coordinator itself stopped: then its status still says "running", and the engine says that it has failed, or does not
know it. Otherwise only an operator ends a job: the engine calls nothing else "aborted".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from silosynth.core.errors import ConfigError, SilosynthError
from silosynth.core.files import read, write_atomic
from silosynth.deployment.coordinator import ORDER, STATUS, Order, Status, read_status, unpack_order
from silosynth.deployment.flare.console import ABORTED, ENDED, Console, JobInfo

STOP = "stop"
"""The file in a job's folder by which the coordinator's operator stops it."""
_EVERY = 2.0  # seconds between two checks
_SLOWEST = 60.0  # longest pause in seconds between attempts that make no progress
_TRIES = 3  # how often a job is offered to silos that do not accept it
_UNFINISHED = ("submitted", "running", "interrupted")


class Dispatcher:
    """Supervises the jobs in a folder.

    Args:
        jobs: their folder.
        console: opens a session with the engine; called again when the session breaks.
        say: called with one line per event.
        clock: seconds since 1970.
    """

    def __init__(
        self, jobs: Path, console: Callable[[], Console], say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._jobs, self._open, self._say, self._clock = jobs, console, say, clock
        self._begun = clock()
        self._console: Console | None = None
        self._last_line: dict[str, str] = {}  # by job
        self._tried: dict[str, tuple[str, int, float]] = {}  # newest checkpoint, attempts since it, when the last was

    def run(self, stop: threading.Event) -> None:
        """Check the jobs periodically until ``stop`` is set."""
        while not stop.wait(_EVERY):
            try:
                self.check()
            except SilosynthError:  # the engine has not started yet, or has ended: the daemon reports that
                self.close()
        self.close()

    def check(self) -> None:
        """Submit jobs that can run; give up those that waited too long or that an operator stopped."""
        if not (unfinished := list(self._unfinished())):
            return
        self._console = console = self._console or self._open()
        last = {info.name: info for info in sorted(console.jobs(), key=lambda info: info.submitted)}
        connected = console.parties()
        for folder, status in unfinished:
            info = last.get(folder.name)
            if info is not None and info.state not in ENDED:
                continue
            if (why := self._why_not(folder, status, info)) is not None:
                self._give_up(folder, status, why)
            else:
                self._submit_when_ready(folder, status, console, connected)

    def close(self) -> None:
        """End the session with the engine."""
        if self._console is not None:
            self._console.close()
        self._console = None

    def _unfinished(self) -> Iterator[tuple[Path, Status]]:
        for path in sorted(self._jobs.glob(f"*/{STATUS}")):
            status = read_status(path.parent)
            if (path.parent / ORDER).exists() and status.state in _UNFINISHED:
                yield path.parent, status

    def _why_not(self, folder: Path, status: Status, info: JobInfo | None) -> str | None:
        """Why a job that the engine has ended is not to be submitted again, or None."""
        if (folder / STOP).exists():
            return "The coordinator's operator has stopped it."
        if info is not None and info.state == ABORTED:
            return f"An operator has stopped it ({info.operator} had started this attempt)."
        tries = self._tried.get(folder.name, ("", 0, 0.0))[1]
        if info is not None and info.details and not status.attempts and tries >= _TRIES:
            return f"Silos have not accepted it: {'; '.join(info.details)}"
        return None

    def _submit_when_ready(self, folder: Path, status: Status, console: Console, connected: Mapping[str, bool]) -> None:
        order = unpack_order(read(folder / ORDER))
        away = ", ".join(silo for silo in order.job.silos if not connected.get(silo))
        since = max(status.since, self._begun)  # silos could not connect while the coordinator was down
        if away and status.attempts and self._clock() - since > order.patience:
            self._give_up(folder, status, f"{away} did not come back within {order.patience:g} s. {status.error}")
        elif away:
            if status.stage != (stage := f"waiting for {away}"):
                replace(status, stage=stage).write(folder)
            self._say_once(folder.name, f"job {folder.name} waits for {away}. {status.error}".rstrip())
        elif self._due(folder):
            action = f"resumes, attempt {status.attempts + 1}" if status.attempts else "begins"
            self._say_once(folder.name, f"job {folder.name} {action}")
            submit(console, order)

    def _due(self, folder: Path) -> bool:
        """Whether it is time for the next attempt: pauses double while attempts make no progress."""
        newest = max((path.name for path in (folder / "coordinator").glob("*.ckpt")), default="")
        before, count, at = self._tried.get(folder.name, (newest, 0, float("-inf")))
        count = count if before == newest else 0
        if self._clock() < at + min(2.0 ** min(count, 10), _SLOWEST):
            return False
        self._tried[folder.name] = newest, count + 1, self._clock()
        return True

    def _give_up(self, folder: Path, status: Status, why: str) -> None:
        replace(status, state="failed", error=why, since=self._clock()).write(folder)
        self._say_once(folder.name, f"job {folder.name} has failed: {why}")

    def _say_once(self, job: str, line: str) -> None:
        """Report a line once."""
        if self._last_line.get(job) != line:
            self._last_line[job] = line
            self._say(line)


def submit(console: Console, order: Order) -> str:
    """Submit an order to the engine; returns the engine's id of this attempt."""
    return console.submit(order.pack(), order.job.silos, order.job.name)


def enqueue(order: Order, folder: Path) -> None:
    """Put an order into the job's folder on the coordinator's machine, for the dispatcher to find.

    Raises:
        ConfigError: a job of this name exists.
        StorageError: the folder cannot be written.
    """
    if (folder / STATUS).exists():
        raise ConfigError("A job's name is used only once", order.job.name, "Submit it under another name.")
    order.keep(folder)
    Status(since=time.time()).write(folder)


def request_stop(folder: Path) -> None:
    """Stop a job of the coordinator's: its process does that, or the dispatcher if the job is not running.

    Raises:
        ConfigError: it has ended.
    """
    if (state := read_status(folder).state) not in _UNFINISHED:
        raise ConfigError("Only a job that has not ended can be stopped", f"{folder.name} is {state}")
    write_atomic(folder / STOP, b"")
