"""Which silosynth a job in progress began with, and whether the one that is installed now goes on with it.

A checkpoint is continued by the sources that wrote it, or by others with the same digest (`protocol.sources`): only
then are results those of a job that nobody interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from silosynth.core import files
from silosynth.core.errors import StorageError
from silosynth.deployment import endings, protocol
from silosynth.deployment.kept import CLOSED

FILE = "began-with.json"


def note(folder: Path) -> None:
    """Record that the job in ``folder`` begins with what is installed now.

    Raises:
        StorageError: the disk is full…
    """
    version, sources = protocol.installed()
    content = {"version": version, "sources": sources}
    files.write_atomic(folder / FILE, json.dumps(content).encode(), files.PRIVATE)


def check(folder: Path, whom: str) -> None:
    """Refuse to go on with a job that began with other sources.

    Raises:
        VersionError: names both.
    """
    if (began := _began_with(folder)) is not None:
        protocol.check_same("the job's checkpoints", began, whom, protocol.installed())


def left_behind(jobs: Path) -> Iterator[str]:
    """What to say of each job in progress with which the installed silosynth does not go on."""
    for folder in sorted(jobs.glob("*")):
        began = _began_with(folder)
        if began is None or began[1] == protocol.sources() or not _in_progress(folder):
            continue
        yield (
            f"job {folder.name} began with silosynth {began[0]}, whose sources (SHA-256 {began[1][:16]}…) are others "
            f"than those installed now ({protocol.sources()[:16]}…): it stands still until that one is installed again"
        )


def _in_progress(folder: Path) -> bool:
    """Whether there is something to go on with, and nobody has said that the job has ended."""
    ended = (folder / CLOSED).exists() or endings.how_it_ended(folder) in endings.FOR_GOOD
    return not ended and any(any(folder.glob(f"{part}/*.ckpt")) for part in ("coordinator", "checkpoints"))


def _began_with(folder: Path) -> tuple[str, str] | None:
    """Version and digest of the sources; None of jobs of earlier versions."""
    try:
        found = json.loads(files.read(folder / FILE))
        return str(found["version"]), str(found["sources"])
    except (StorageError, ValueError, KeyError, TypeError):
        return None
