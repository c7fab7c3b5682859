"""A site in one file, and a site made from it again.

A backup holds the kit and what lies in ``work``, but for the engine's own files and checkpoints: a job in progress is
not gone on with after a restore. It holds the site's private keys, and is as private as the rows.

Whoever restores goes back in time, and so do the counts by which a silo keeps to its policy. They are not set back in
silence: what has been released and drawn since the backup is stated, and counts from then on. No noise comes twice:
each job draws a secret of its own when it begins.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.files import PRIVATE, private_folder, read, storage_error, write_atomic
from silosynth.core.version import VERSION
from silosynth.deployment import coordinator
from silosynth.deployment.forgetting import at_work
from silosynth.deployment.kept import PART
from silosynth.deployment.kits import KIT, StartKit, read_kit
from silosynth.deployment.policy import Releases
from silosynth.deployment.tallies import DrawnRows
from silosynth.privacy.events import DISCRETE_LAPLACE, Event

_FORM = "silosynth backup 1"
_ABOUT = "about.json"
_LEFT_OUT = ("work/engine", "work/presence.json", "work/console.token")
RESTORED = "restored.jsonl"
"""Where a site notes in ``work`` that it was restored."""


@dataclass(frozen=True)
class Since:
    """What a silo may have given away between a backup and its restore.

    Attributes:
        epsilon: of all noised releases, at most; they count with it, added to all others.
        rows: synthetic rows drawn of any one job, at most.
    """

    epsilon: float
    rows: int


def back_up(kit: StartKit, out: Path) -> dict[str, Any]:
    """Write a site into a file that its owner alone can read; returns what it says of itself.

    Raises:
        ConfigError: a job is at work.
        StorageError: a file cannot be read, or the backup not be written.
    """
    for folder in kit.jobs.glob("*"):
        if at_work(folder):
            raise ConfigError("A site is backed up while no job is at work", folder.name, "Wait for its end.")
    digests = {name: hashlib.sha256(read(path)).hexdigest() for name, path in _files(kit.folder, out.absolute())}
    about = {
        "form": _FORM, "site": kit.name, "federation": kit.federation, "version": VERSION,
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "files": digests,
    }  # fmt: skip

    def pack(file: BinaryIO) -> None:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
            _add(archive, _ABOUT, json.dumps(about, indent=1).encode(), time.time())
            for name in digests:
                _add(archive, name, read(kit.folder / name), (kit.folder / name).stat().st_mtime)

    write_atomic(out, pack, PRIVATE)
    return about


def _files(folder: Path, out: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        left_out = any(name == one or name.startswith(f"{one}/") for one in _LEFT_OUT)
        if path.is_file() and not left_out and path.suffix not in (".ckpt", ".lock") and path != out:
            yield name, path


def _add(archive: tarfile.TarFile, name: str, content: bytes, changed: float) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), PRIVATE, int(changed)
    archive.addfile(member, io.BytesIO(content))


def restore(backup: Path, folder: Path, since: Since | None) -> StartKit:
    """Make a site from a backup.

    Args:
        backup: what `back_up` wrote.
        folder: of the kit; there must be none yet.
        since: what a silo may have given away since; None if no job has begun there since.

    Raises:
        ConfigError: there is something in the folder.
        StorageError: the backup is damaged, or the folder cannot be written.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError("A site is restored into a new folder", str(folder), "Move what is there away.")
    about = about_backup(backup)
    _check(backup, about)
    for name, content, changed in _members(backup):
        if name == _ABOUT:
            continue
        for parent in reversed(PurePosixPath(name).parents):
            private_folder(folder / parent)
        write_atomic(folder / name, content, PRIVATE)
        os.utime(folder / name, (changed, changed))  # retention_days counts from the ledger's
    kit = read_kit(folder)
    if kit.name == COORDINATOR:
        _end_unfinished(kit.jobs)
    elif since is not None:
        _count(kit, since, str(about["at"]))
    note = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "backup": about["at"],
        "by": about["version"],
    }
    told = None if since is None else {"epsilon": since.epsilon, "rows": since.rows}
    path = private_folder(folder / "work") / RESTORED
    before = read(path) if path.exists() else b""
    write_atomic(path, before + json.dumps(note | {"since": told}).encode() + b"\n", PRIVATE)
    return kit


def about_backup(backup: Path) -> dict[str, Any]:
    """What a backup says of itself.

    Raises:
        StorageError: it is damaged, or something else.
    """
    with _damage_told(backup):
        about: dict[str, Any] = json.loads(next(_members(backup))[1])
        if about["form"] != _FORM or not isinstance(about["files"], dict):
            raise ValueError("of another form")
    return about


def _check(backup: Path, about: dict[str, Any]) -> None:
    """Whether all files are those that were backed up.

    Raises:
        StorageError: they are not.
    """
    with _damage_told(backup):
        members = _members(backup)
        next(members)
        found = {name: hashlib.sha256(content).hexdigest() for name, content, _ in members}
        if found != about["files"] or KIT not in found or not all(map(_inside, found)):
            raise ValueError("other files than it lists")


def _members(backup: Path) -> Iterator[tuple[str, bytes, float]]:
    """Name and content of each file, and when it was last changed."""
    with tarfile.open(backup, "r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is None:
                raise ValueError(f"{member.name} is no file")
            yield member.name, file.read(), float(member.mtime)


@contextmanager
def _damage_told(backup: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(error, "read", backup) from error
    except (tarfile.TarError, zlib.error, EOFError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            "A backup can be read", f"{backup}: {error}", "Name another; this one is damaged."
        ) from error


def _inside(name: str) -> bool:
    """Whether a name is of a file below the folder of the kit."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _count(kit: StartKit, since: Since, at: str) -> None:
    """Have what a silo may have given away since a backup count, in all jobs."""
    what = f"whatever was released between the backup of {at} and its restore, as stated"
    if since.epsilon:
        events = [Event(DISCRETE_LAPLACE, since.epsilon, 0.0, what, added=True)]
        Releases(kit.folder / "work").add(f"restored {at}", f"restored {at} {time.time()}", events)
    for folder in kit.jobs.glob("*"):
        if since.rows and (folder / PART).exists():
            DrawnRows(folder).add_unknown(since.rows, f"restored {at} {time.time()}")


def _end_unfinished(jobs: Path) -> None:
    """Jobs whose checkpoints are gone do not begin anew by themselves, which silos would be charged for."""
    for path in jobs.glob(f"*/{coordinator.STATUS}"):
        status = coordinator.read_status(path.parent)
        if status.state not in ("done", "failed", "forgotten"):
            why = "The coordinator was restored from a backup, which holds no checkpoints: submit the job anew."
            replace(status, state="failed", error=why).write(path.parent)
