"""A run over a simulated federation: its folder, its silos, its progress; what it needs to be taken up again."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import platformdirs
import torch

from silosynth.catalog import party_of
from silosynth.core.conversation import Progress
from silosynth.core.errors import StorageError
from silosynth.core.files import make_folder, read, storage_error, write_atomic
from silosynth.core.messages import Struct
from silosynth.core.schema import Table
from silosynth.core.state import to_state
from silosynth.core.streams import Streams
from silosynth.core.version import VERSION
from silosynth.privacy.sealed import Seat
from silosynth.runtime.checkpoint import CheckpointStore, PartStore
from silosynth.runtime.link import Link
from silosynth.runtime.progress import RichProgress
from silosynth.simulation.federation import Federation
from silosynth.simulation.inprocess import InProcess
from silosynth.simulation.silo_process import spawn

RUNTIMES = ("inprocess", "processes")
SEED = "seed"


def connect(
    runtime: str, limit: float | None, name: str, federation: Federation, seated: Mapping[str, Seat],
    streams: Streams, device: torch.device, store: CheckpointStore,
) -> Link:  # fmt: skip
    """The way to silos that answer for ``name``: here, or each in a process of its own. Their parts go to ``store``."""
    if runtime == "processes":
        return spawn(name, federation, seated, streams.seed, str(device), store.parties, limit)
    make = party_of(name)
    parties = {
        silo: make(table, federation.schemas[silo], seated[silo], streams.party(silo), device)
        for silo, table in federation.tables.items()
    }
    return InProcess(parties, store.parties)


def trained(
    link: Link, store: CheckpointStore, name: str, federation: Federation, seated: Mapping[str, Seat],
    device: torch.device,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Each silo's part: it writes its state to its own folder, from which this simulation reads it."""
    last, make = store.latest(), party_of(name)
    number = 1 if last is None else last.number + 1
    link.save(number)
    parts = {}
    for silo, schema in federation.schemas.items():
        party = make(Table(()), schema, seated[silo], Streams(0), device)
        party.restore(PartStore(store.parties / silo).load(number))
        parts[silo] = party.trained()
    return parts


def watching(progress: bool | Callable[[Progress], None]) -> Any:
    """A context that shows progress as ``progress`` says."""
    if callable(progress):
        return nullcontext(progress)
    return RichProgress() if progress else nullcontext(None)


def secret_seed(folder: Path, again: bool) -> int:
    """128 bits that nobody knows, kept in the run's folder: drawn anew, or those of before where there are some."""
    path = folder / SEED
    if not (again and path.exists()):
        write_atomic(path, str(secrets.randbits(128)).encode())
    path.chmod(0o600)  # each time: a process may have been killed in between
    return int(read(path))


def secret_run(secret: int, mark: str) -> tuple[int, str]:
    """The seed and the fingerprint of a run with a secret seed, from the secret and the fingerprint without it.

    On other data, or with other options, noise is another: two releases with the same noise tell their difference.
    """
    digest = hashlib.sha256(f"{secret} {mark}".encode()).digest()
    return int.from_bytes(digest[:16], "big"), digest[16:].hex()


def fingerprint(
    name: str, config: Struct, federation: Federation, seed: int, threads: int, device: torch.device
) -> str:
    """What a checkpoint must agree with: version, algorithm, options, seed, arithmetic, silos and every value."""
    arithmetic = [threads, device.type, torch.backends.cpu.get_cpu_capability()]
    about = [VERSION, name, to_state(config), seed, arithmetic, federation.silos, federation.digest()]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


@contextmanager
def run_folder(folder: str | Path | None, mark: str) -> Iterator[Path]:
    """The folder of a run, for this run alone; the default one goes at the end unless it can be resumed from."""
    place = _default_folder(mark) if folder is None else make_folder(folder)
    with _locked(place):
        try:
            yield place
        except BaseException:
            if folder is None and not any((place / "coordinator").glob("*.ckpt")):
                shutil.rmtree(place, ignore_errors=True)
            raise
        if folder is None:
            shutil.rmtree(place)


def _default_folder(mark: str) -> Path:
    """A folder that its user alone may read: checkpoints hold what silos keep to themselves."""
    place = Path(platformdirs.user_state_dir("silosynth")) / "runs" / mark[:16]
    make_folder(place.parent)
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        place.chmod(0o700)  # where it was there before
    except OSError as error:
        raise storage_error(error, "made", place) from error
    return place


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Keep a second run out of the folder. The lock is advisory, and ends with the process however that ends."""
    if sys.platform == "win32":  # has no such locks
        yield
        return
    path = place / "lock"
    handle = _lock(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before others can have it: see `_lock`
        os.close(handle)


def _lock(path: Path) -> int:
    """A handle of the locked file; opened anew where whoever held the lock has removed the file meanwhile."""
    while True:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise storage_error(error, "written", path) from error
        try:
            _take(handle, path.parent)
            if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _take(handle: int, place: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl  # where there is one

    with suppress(OSError):  # a file system without locks
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageError(
                "One run at a time works in a folder; another is going on",
                str(place),
                "Wait until it has ended, or name another folder.",
            ) from error
