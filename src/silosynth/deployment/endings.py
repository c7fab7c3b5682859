"""What a silo is told of how a job ended: the coordinator's word, in a small file of the job's folder.

Beyond the state nothing is told: why a job failed may be another silo's policy. The silo's own log and ledger say what
happened here, and the coordinator's `status` why the job ended.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from silosynth.core import files
from silosynth.core.errors import ProtocolError, StorageError

FILE = "ended.json"
IN_WORDS = {
    "done": "is done",
    "failed": "has failed: the coordinator knows why",
    "suspended": "is suspended: the coordinator knows what is missing",
    "interrupted": "is interrupted, and goes on by itself",
}

FOR_GOOD = ("done", "failed")
"""States after which a job is not gone on with."""


def note_attempt(folder: Path, attempt: str) -> None:
    """Record that an attempt of the job in ``folder`` has begun, and nothing is known of its end.

    Raises:
        StorageError: the disk is full…
    """
    _write(folder, attempt, "")


def note_end(folder: Path, attempt: str, state: str) -> str:
    """Record how the coordinator says that it ended; returns that in words.

    Raises:
        ProtocolError: there is no such state.
        StorageError: the disk is full…
    """
    if state not in IN_WORDS:
        raise ProtocolError("A job ends in a known state", state[:40], "Compare versions.")
    _write(folder, attempt, state)
    return IN_WORDS[state]


def how_it_ended(folder: Path) -> str:
    """The state in which the coordinator says that the job ended; empty if it has not said so."""
    return str(_read(folder).get("state", ""))


def drop_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a job that is not gone on with. What later draws need is in files of its own.

    Raises:
        StorageError: one cannot be removed.
    """
    for path in (*folder.glob("coordinator/*.ckpt"), *folder.glob("checkpoints/*.ckpt"), *folder.glob("*.ckpt")):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise files.storage_error(error, "removed", path) from error


def tidy(jobs: Path) -> None:
    """At a silo: remove checkpoints that a killed process, or an earlier version, has left of jobs that have ended.

    Raises:
        StorageError: one cannot be removed.
    """
    for path in jobs.glob(f"*/{FILE}"):
        if how_it_ended(path.parent) in FOR_GOOD:
            drop_checkpoints(path.parent)


def said_of(jobs: Path, attempt: str) -> str:
    """How the job ended of which this was an attempt, in words, with its name."""
    for path in jobs.glob(f"*/{FILE}"):
        told = _read(path.parent)
        if told.get("attempt") == attempt:
            said = IN_WORDS.get(str(told.get("state")), "ended, and the coordinator has not said how")
            return f"job {path.parent.name} {said}"
    return f"job {attempt} ended"


def _write(folder: Path, attempt: str, state: str) -> None:
    files.write_atomic(folder / FILE, json.dumps({"attempt": attempt, "state": state}).encode(), files.PRIVATE)


def _read(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(files.read(folder / FILE))
    except (StorageError, ValueError):
        return {}  # none, or of a process that is killed
    return found if isinstance(found, dict) else {}
