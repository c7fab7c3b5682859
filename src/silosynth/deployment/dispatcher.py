"""Looks after the coordinator's jobs: begins them, and takes interrupted ones up again, when all silos are connected.

It runs beside the coordinator's daemon. A job is interrupted when a silo is lost that it cannot do without, or when the
coordinator itself was: then its status still says "running", and the engine says that it has failed, or knows nothing
of it. Only an operator's word ends a job otherwise: the engine calls nothing else "aborted".
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
_EVERY = 2.0  # seconds between two looks
_SLOWEST = 60.0  # seconds between two attempts, when one after the other comes no further
_TRIES = 3  # how often a job is given to silos that do not take it
_UNFINISHED = ("submitted", "running", "interrupted")


class Dispatcher:
    """Looks after the jobs in a folder.

    Args:
        jobs: where they lie.
        console: opens a session with the engine; opened anew when it breaks.
        say: told in one line what happens.
        clock: seconds since 1970.
    """

    def __init__(
        self, jobs: Path, console: Callable[[], Console], say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._jobs, self._open, self._say, self._clock = jobs, console, say, clock
        self._begun = clock()
        self._console: Console | None = None
        self._told: dict[str, str] = {}
        self._tried: dict[str, tuple[str, int, float]] = {}  # newest checkpoint, attempts since it, when the last was

    def run(self, stop: threading.Event) -> None:
        """Look again and again, until it is told to stop."""
        while not stop.wait(_EVERY):
            try:
                self.look()
            except SilosynthError:  # the engine is not there yet, or not any more: the daemon says so
                self.close()
        self.close()

    def look(self) -> None:
        """Submit to the engine what can be; give up what was waited for too long, or stopped by an operator."""
        if not (unfinished := list(self._unfinished())):
            return
        self._console = console = self._console or self._open()
        last = {info.name: info for info in sorted(console.jobs(), key=lambda info: info.submitted)}
        there = console.parties()
        for folder, status in unfinished:
            info = last.get(folder.name)
            if info is not None and info.state not in ENDED:
                continue
            if (why := self._why_not(folder, status, info)) is not None:
                self._give_up(folder, status, why)
            else:
                self._take_up(folder, status, console, there)

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
        """Why a job that the engine is through with is not to be submitted once more, or None."""
        if (folder / STOP).exists():
            return "The coordinator's operator has stopped it."
        if info is not None and info.state == ABORTED:
            return f"An operator has stopped it ({info.operator} had started this attempt)."
        tries = self._tried.get(folder.name, ("", 0, 0.0))[1]
        if info is not None and info.details and not status.attempts and tries >= _TRIES:
            return f"Silos have not taken it: {'; '.join(info.details)}"
        return None

    def _take_up(self, folder: Path, status: Status, console: Console, there: Mapping[str, bool]) -> None:
        order = unpack_order(read(folder / ORDER))
        away = ", ".join(silo for silo in order.job.silos if not there.get(silo))
        since = max(status.since, self._begun)  # nobody could come while the coordinator was away itself
        if away and status.attempts and self._clock() - since > order.patience:
            self._give_up(folder, status, f"{away} did not come back within {order.patience:g} s. {status.error}")
        elif away:
            if status.stage != (stage := f"waiting for {away}"):
                replace(status, stage=stage).write(folder)
            self._tell(folder.name, f"job {folder.name} waits for {away}. {status.error}".rstrip())
        elif self._due(folder):
            goes_on = f"goes on, attempt {status.attempts + 1}" if status.attempts else "begins"
            self._tell(folder.name, f"job {folder.name} {goes_on}")
            submit(console, order)

    def _due(self, folder: Path) -> bool:
        """Whether it is time for the next attempt: those that come no further follow each other ever more slowly."""
        mark = max((path.name for path in (folder / "coordinator").glob("*.ckpt")), default="")
        before, count, at = self._tried.get(folder.name, (mark, 0, float("-inf")))
        count = count if before == mark else 0
        if self._clock() < at + min(2.0 ** min(count, 10), _SLOWEST):
            return False
        self._tried[folder.name] = mark, count + 1, self._clock()
        return True

    def _give_up(self, folder: Path, status: Status, why: str) -> None:
        replace(status, state="failed", error=why, since=self._clock()).write(folder)
        self._tell(folder.name, f"job {folder.name} has failed: {why}")

    def _tell(self, job: str, line: str) -> None:
        """Say it once."""
        if self._told.get(job) != line:
            self._told[job] = line
            self._say(line)


def submit(console: Console, order: Order) -> str:
    """Hand an order to the engine; returns the engine's name for this attempt."""
    return console.submit(order.pack(), order.job.silos, order.job.name)


def enqueue(order: Order, folder: Path) -> None:
    """Leave an order for the dispatcher, in the job's folder at the coordinator's machine.

    Raises:
        ConfigError: there is a job of this name.
        StorageError: the folder cannot be written.
    """
    if (folder / STATUS).exists():
        raise ConfigError("A job's name is used once", order.job.name, "Submit it under another name.")
    order.keep(folder)
    Status(since=time.time()).write(folder)


def request_stop(folder: Path) -> None:
    """Have a job of the coordinator's end: its process sees to that, or the dispatcher, if it does not run.

    Raises:
        ConfigError: it has ended.
    """
    if (state := read_status(folder).state) not in _UNFINISHED:
        raise ConfigError("A job can be stopped until it has ended", f"{folder.name} is {state}")
    write_atomic(folder / STOP, b"")
