"""Erasure of a job at a site: what it leaves behind, and the receipt for it.

Whatever lies in a job's folder goes, but for what `STAYS` lists: the ledger, the policy's tallies, what the job was,
its log, the label of a table that was published. So do the jobs that have drawn from it. What other jobs have made of
the same rows, such as one that judged its table, is forgotten by their own names.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from silosynth.core.conversation import COORDINATOR
from silosynth.core.errors import ConfigError, ProtocolError, SilosynthError, StorageError
from silosynth.core.files import PRIVATE, locked, read, storage_error, write_atomic
from silosynth.core.messages import from_state
from silosynth.deployment import pending, silo_ledger
from silosynth.deployment.kept import CLOSED, FORGOTTEN, JOB, kept_job
from silosynth.deployment.protocol import Job, check_name
from silosynth.deployment.signed import check, sign
from silosynth.deployment.tallies import ComparedIdentifiers, DrawnRows
from silosynth.privacy.sealed import Seat
from silosynth.runtime.wire import unpack

RECEIPT = "receipt"
STAYS = (
    silo_ledger.FILE, silo_ledger.HEAD, pending.FILE, DrawnRows.FILE, ComparedIdentifiers.FILE, CLOSED, JOB, FORGOTTEN,
    "log.txt", "order", "status.json", "label.json",
)  # fmt: skip
"""Files of a job that stay: those by which a silo keeps to its policy, and by which it can be told what was done."""
PATIENCE = 60.0  # seconds for which a job waits for an earlier process that is at work on it
_RUNNING, _POLL = "running.lock", 0.2  # seconds
_DAY = 86400.0  # seconds


def mark_running(folder: Path, patience: float | None = None) -> ExitStack:
    """Be the one process that is at work on a job, until what is returned is closed, or the process ends.

    Two at once would not know what the other has refused and released. An earlier process may be about to end: it gets
    ``patience`` seconds, `PATIENCE` by default. On Windows, which has no such locks, nobody is kept out.

    Raises:
        ProtocolError: another process is still at work.
        StorageError: the folder cannot be written to, or locked.
    """
    held, until = ExitStack(), time.monotonic() + (PATIENCE if patience is None else patience)
    busy = ProtocolError(
        "One process of a silo answers for a job", "another is at work", "Wait for its end, or stop that attempt."
    )
    while True:
        try:
            held.enter_context(locked(folder / _RUNNING, busy, needed=True))
            return held
        except ProtocolError:
            if time.monotonic() > until:
                raise
        time.sleep(_POLL)


def at_work(folder: Path) -> bool:
    """Whether a job is at work in this folder; without locks nobody can tell, and it counts as not."""
    if sys.platform == "win32" or not (folder / _RUNNING).exists():
        return False
    import fcntl  # where there is one

    with open(folder / _RUNNING, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed at once; whoever begins meanwhile waits for it
        except OSError:
            return True
    return False


def forget(jobs: Path, name: str, by: str, seat: Seat | None) -> list[dict[str, Any]]:
    """Remove what a job has left at this site, and what was drawn from it; returns the receipts.

    Args:
        jobs: the folder of all jobs.
        name: of the job.
        by: who wants it.
        seat: the silo's, which signs; None at the coordinator.

    Raises:
        ConfigError: a job is at work here; nothing was removed then.
        StorageError: a file cannot be removed.
    """
    check_name(name)
    found = [folder for folder in (jobs / name, *drawn_from(jobs, name)) if folder.is_dir()]
    with ExitStack() as locks:
        for folder in found:
            busy = ConfigError("A job that is at work is not forgotten", folder.name, "Stop it, or wait for its end.")
            locks.enter_context(locked(folder / _RUNNING, busy))
        return [_forgotten(folder, by, seat) for folder in found]


def drawn_from(jobs: Path, name: str) -> list[Path]:
    """The folders of jobs that have drawn from a job."""
    return [folder for folder in sorted(jobs.glob("*")) if _source(folder) == name]


def _source(folder: Path) -> str | None:
    """The job that a job has drawn from; None if it trained or counted, or is of another version."""
    try:
        job = _job(folder)
    except SilosynthError:
        return None
    return None if job is None or job.drawing is None else job.drawing.job


def _job(folder: Path) -> Job | None:
    """What a job was, at a silo or at the coordinator, whose order holds it."""
    order = folder / "order"
    return from_state(Job, unpack(read(order))["fields"]["job"]) if order.exists() else kept_job(folder)


def _forgotten(folder: Path, by: str, seat: Seat | None) -> dict[str, Any]:
    """Remove a job's traces, write the receipt, and return it."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_atomic(folder / FORGOTTEN, b"{}", PRIVATE)  # from now on nothing is drawn from it, even if this ends here
    removed = [path for path in sorted(folder.iterdir()) if not _stays(path.name)]
    for path in removed:
        _remove(path)
    facts: dict[str, Any] = {
        "job": folder.name, "site": COORDINATOR if seat is None else seat.name, "by": by, "at": now,
        "removed": [path.name for path in removed],
    }  # fmt: skip
    if seat is not None:
        try:
            head = silo_ledger.SiloLedger(folder, folder.name, seat).forgotten(by)
            facts |= {"ledger": {"lines": head.lines, "hash": head.hash}}
        except StorageError:  # damaged, or of an earlier version: it stays as it is, and keeps nothing else from going
            facts |= {"ledger": None}
    facts |= {"stays": sorted(path.name for path in folder.iterdir() if path.name != _RUNNING)}
    if seat is not None:
        facts |= sign(seat, RECEIPT, facts)
    write_atomic(folder / FORGOTTEN, json.dumps(facts, indent=2).encode(), PRIVATE)
    return facts


def _stays(name: str) -> bool:
    return name in (*STAYS, _RUNNING) or name.startswith(f"{RECEIPT}-")


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, "removed", path) from error


def set_aside(folder: Path) -> None:
    """Make a forgotten job's name free: what stays of it moves into a folder beside, NAME~1, NAME~2 …

    What should not stay, since whoever removed it was killed, goes now: nobody could have it forgotten there.

    Raises:
        StorageError: it cannot be removed, or moved.
    """
    for path in sorted(folder.iterdir()):
        if not _stays(path.name):
            _remove(path)
    number = uses_before(folder) + 1
    try:
        folder.rename(folder.with_name(f"{folder.name}~{number}"))
    except OSError as error:
        raise storage_error(error, "moved", folder) from error


def uses_before(folder: Path) -> int:
    """How many forgotten jobs have had the name of this job's folder."""
    return len(list(folder.parent.glob(f"{folder.name}~*")))


def check_receipt(receipt: dict[str, Any], job: str, silo: str) -> None:
    """Check a silo's receipt.

    Raises:
        ProtocolError: it is of something else, or its signature is not of the key that it names.
    """
    facts = {name: value for name, value in receipt.items() if name not in ("key", "signature")}
    check(RECEIPT, silo, facts, str(receipt.get("key")), str(receipt.get("signature")))
    if (facts.get("job"), facts.get("site")) != (job, silo):
        raise ProtocolError("A receipt is of the job and the silo that were asked", f"{facts.get('job')}, of another")


def when_forgotten(folder: Path) -> str | None:
    """When a job was forgotten here; None if it was not.

    Raises:
        StorageError: the receipt cannot be read.
    """
    if not (folder / FORGOTTEN).exists():
        return None
    try:
        return str(json.loads(read(folder / FORGOTTEN)).get("at", "in part"))
    except ValueError as error:
        raise StorageError("A receipt can be read", str(folder / FORGOTTEN), "Forget the job again.") from error


def too_old(jobs: Path, days: float, now: float) -> Iterator[str]:
    """The jobs that have not been used for so many days: neither themselves, nor by jobs that draw from them."""
    for folder in sorted(jobs.glob("*")):
        used = [path.stat().st_mtime for one in (folder, *drawn_from(jobs, folder.name)) for path in _used(one)]
        if used and max(used) < now - days * _DAY and not (folder / FORGOTTEN).exists():
            yield folder.name


def _used(folder: Path) -> list[Path]:
    return [path for path in (folder / silo_ledger.FILE,) if path.exists()]


def keep_no_longer(
    jobs: Path, days: float, seat: Seat, say: Callable[[str], None], stop: threading.Event, every: float = 3600.0
) -> None:
    """Forget jobs that have become too old, until ``stop`` is set; one that is at work, later."""
    while True:
        for name in list(too_old(jobs, days, time.time())):
            try:
                receipts = forget(jobs, name, f"retention_days = {days:g}", seat)
            except SilosynthError as error:
                say(f"job {name} is older than {days:g} days, and not forgotten yet: {error}")
            else:
                say(f"job {name} was forgotten, as it is older than {days:g} days: {len(receipts)} receipts")
        if stop.wait(every):
            return
