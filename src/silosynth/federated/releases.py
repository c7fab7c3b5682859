"""What a silo has released with noise, in all jobs: a file of its own, by which its policy's budget is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from silosynth.core.errors import StorageError
from silosynth.core.files import make_folder, read, write_atomic
from silosynth.privacy.events import Event

FILE = "releases.jsonl"


class Releases:
    """Events by job, attempt and number. After a crash the same noise may be released again: that counts once.

    Args:
        folder: of the silo.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def but(self, attempt: str, number: int) -> list[Event]:
        """All events, without those of release ``number`` of an attempt.

        Raises:
            StorageError: the file cannot be read.
        """
        return [event for key, events in self._read().items() if key != (attempt, number) for event in events]

    def add(self, job: str, attempt: str, number: int, events: Sequence[Event]) -> None:
        """Write down a release; it is on the disk when this returns.

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
