"""What a silo has released with noise, in all jobs: a file of its own, by which its policy's budget is kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from silosynth.core.errors import StorageError
from silosynth.core.files import make_folder, read, storage_error, write_atomic
from silosynth.privacy.events import Event

FILE, LOCK = "releases.jsonl", "releases.lock"


class Releases:
    """Events by job, attempt and number. After a crash the same noise may be released again: that counts once.

    Args:
        folder: of the silo.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have this silo's other processes, which do other jobs, wait: nothing comes between a check and an addition.

        Raises:
            StorageError: the folder cannot be written to.
        """
        path = make_folder(self.path.parent) / LOCK
        try:
            lock = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed below; a process that is killed lets go too
        except OSError as error:
            raise storage_error(error, "written", path) from error
        with lock:
            if sys.platform != "win32":
                import fcntl  # where there is one

                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def but(self, attempt: str, number: int) -> list[Event]:
        """All events, without those of release ``number`` of an attempt.

        Raises:
            StorageError: the file cannot be read.
        """
        return [event for key, events in self._read().items() if key != (attempt, number) for event in events]

    def add(self, job: str, attempt: str, number: int, events: Sequence[Event]) -> None:
        """Write down a release; it is on the disk when this returns. To be called while it is `held`.

        Raises:
            StorageError: the disk is full…
        """
        line = {"job": job, "attempt": attempt, "number": number, "events": [asdict(event) for event in events]}
        make_folder(self.path.parent)
        before = read(self.path) if self.path.exists() else b""
        write_atomic(self.path, before + json.dumps(line).encode() + b"\n")

    def _read(self) -> dict[tuple[str, int], list[Event]]:
        if not self.path.exists():
            return {}
        found: dict[tuple[str, int], list[Event]] = {}
        for line in read(self.path).splitlines():
            try:
                about = json.loads(line)
                events = [Event(**event) for event in about["events"]]
                found[about["attempt"], about["number"]] = events
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(
                    "The record of a silo's releases can be read", str(self.path), "Restore it from a copy."
                ) from error
        return found
