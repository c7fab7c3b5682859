"""The public face: `simulate`, `fit`, `evaluate`, `load`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
import torch

from silosynth import __version__
from silosynth.catalog import Algorithm, algorithm
from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError, StorageError, nearest
from silosynth.core.files import make_folder, storage_error
from silosynth.core.messages import Struct
from silosynth.core.schema import Table
from silosynth.core.state import to_state
from silosynth.core.streams import Streams
from silosynth.evaluation import evaluate
from silosynth.federation import Federation, simulate
from silosynth.model import Model, as_dict, load, resolve_device, whole_number
from silosynth.party import spawn
from silosynth.privacy.sealed import Seat, seats
from silosynth.runtime.checkpoint import CheckpointStore, PartStore
from silosynth.runtime.driver import drive
from silosynth.runtime.inprocess import InProcess
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import Link
from silosynth.runtime.progress import RichProgress

__all__ = ["Federation", "Model", "evaluate", "fit", "load", "simulate"]

RUNTIMES = ("inprocess", "processes")


def fit(
    algorithm_name: str,
    federation: Federation,
    preset: str = "balanced",
    seed: int = 0,
    *,
    options: Mapping[str, Any] | None = None,
    runtime: str = "inprocess",
    limit: float | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool | Callable[[Progress], None] = True,
    device: str = "auto",
    threads: int = 1,
    checkpoint_every: float = 15.0,
) -> Model:
    """Train a generator of synthetic tables on a federation.

    Args:
        algorithm_name: "silofuse", or a baseline: see `silosynth.catalog.ALGORITHMS`.
        federation: from `simulate`.
        preset: "fast", "balanced", "best", or "paper" for the published settings.
        seed: the same seed on the same machine gives the same bytes, in either runtime.
        options: changes to the preset, nested or dotted: ``{"latent.steps": 4000}``.
        runtime: "inprocess", or "processes" for one process per silo that shares nothing but messages (mTLS).
        limit: seconds that a silo has for an answer, or to write its part of a checkpoint, in runtime "processes"; None
            waits as long as it lives. Where the algorithm can, training goes on without a silo that died or was too
            slow, with a warning.
        folder: where checkpoints and the ledger are kept, for one run at a time; None for one that goes on success.
        resume: continue from the last checkpoint in ``folder``, after Ctrl-C or a crash, to the same bytes.
        progress: show a progress bar, or a function to call with each `Progress`.
        device: "auto", "cpu" or "cuda".
        threads: torch threads of the coordinator; each silo has one. More pay on machines with idle cores only.
        checkpoint_every: least seconds between two checkpoints; 0 writes one at every safe point.

    Raises:
        ConfigError, DataError: the arguments are not valid; the federation's tables cannot be learnt from.
        PartyLostError: a silo failed; or it died or was too slow, and the algorithm cannot do without it.
        StorageError: ``folder`` holds another run, checkpoints of another experiment, or damaged ones.
    """
    entry, where, seed = algorithm(algorithm_name), resolve_device(device), whole_number("A seed", seed)
    config = _checked(entry, federation, preset, options, runtime, limit)
    mark, streams = _fingerprint(algorithm_name, config, federation, seed, threads, where), Streams(seed)
    start = partial(entry.coordinate, federation.roster, config, streams.child("coordinator"), where)
    with _run_folder(folder, mark) as place:
        store, ledger = CheckpointStore(place, mark), Ledger(place / "ledger.jsonl")
        seated = seats(federation.roster, streams.child("seats"))
        link = _link(runtime, limit, entry, algorithm_name, federation, seated, streams, where, store)
        with link, _watching(progress) as watch:
            coordinator = drive(start, link, ledger, store, watch, resume, threads=threads, seconds=checkpoint_every)
            parts = _trained(link, store, entry, federation, seated, where)
    return Model(
        algorithm_name, preset, seed, config, federation.roster, federation.columns, federation.schemas,
        federation.flavour, coordinator, parts, federation.rows, [as_dict(record) for record in ledger.records], where,
    )  # fmt: skip


def _checked(
    entry: Algorithm, federation: Federation, preset: str, options: Mapping[str, Any] | None, runtime: str,
    limit: float | None,
) -> Any:  # fmt: skip
    """The config, if all that can be refused before anything starts is right."""
    config = entry.configure(preset, options)
    entry.check(federation)
    if runtime not in RUNTIMES:
        raise ConfigError("There is no such runtime", runtime, nearest(runtime, RUNTIMES))
    if limit is not None and runtime != "processes":
        raise ConfigError("A time limit is for silos in processes of their own", runtime, "Set runtime='processes'.")
    if limit is not None and not limit > 0:
        raise ConfigError("A time limit is above zero seconds", limit, "Leave it out to wait as long as silos live.")
    return config


def _link(
    runtime: str, limit: float | None, entry: Algorithm, name: str, federation: Federation,
    seated: Mapping[str, Seat], streams: Streams, device: torch.device, store: CheckpointStore,
) -> Link:  # fmt: skip
    if runtime == "processes":
        return spawn(name, federation, seated, streams.seed, str(device), store.parties, limit)
    parties = {
        silo: entry.party(table, federation.schemas[silo], seated[silo], streams.child("party", silo), device)
        for silo, table in federation.tables.items()
    }
    return InProcess(parties, store.parties)


def _trained(
    link: Link, store: CheckpointStore, entry: Algorithm, federation: Federation, seated: Mapping[str, Seat],
    device: torch.device,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Each silo's part of the model: it writes its state to its own folder, from which this simulation reads it."""
    if not entry.parts:
        return {silo: {} for silo in federation.schemas}
    last = store.latest()
    number = 1 if last is None else last.number + 1
    link.save(number)
    parts = {}
    for silo, schema in federation.schemas.items():
        party = entry.party(Table(()), schema, seated[silo], Streams(0), device)
        party.restore(PartStore(store.parties / silo).load(number))
        parts[silo] = party.trained()
    return parts


def _watching(progress: bool | Callable[[Progress], None]) -> Any:
    if callable(progress):
        return nullcontext(progress)
    return RichProgress() if progress else nullcontext(None)


def _fingerprint(
    name: str, config: Struct, federation: Federation, seed: int, threads: int, device: torch.device
) -> str:
    """What a checkpoint must agree with: version, algorithm, options, seed, arithmetic, silos and every value."""
    arithmetic = [threads, device.type, torch.backends.cpu.get_cpu_capability()]
    about = [__version__, name, to_state(config), seed, arithmetic, federation.silos, federation.digest()]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


@contextmanager
def _run_folder(folder: str | Path | None, mark: str) -> Iterator[Path]:
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
