"""The public face: `simulate`, `fit`, `evaluate`, `load`."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import platformdirs
import torch

from silosynth import __version__
from silosynth.catalog import Algorithm, algorithm
from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.messages import Struct
from silosynth.core.schema import Table
from silosynth.core.state import to_state
from silosynth.core.streams import Streams
from silosynth.evaluation import evaluate
from silosynth.federation import Federation, simulate
from silosynth.model import Model, as_dict, load, resolve_device
from silosynth.party import spawn
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
        folder: where checkpoints and the ledger are kept; None for a folder of the user's that is emptied on success.
        resume: continue from the last checkpoint in ``folder``, after Ctrl-C or a crash, to the same bytes.
        progress: show a progress bar, or a function to call with each `Progress`.
        device: "auto", "cpu" or "cuda".
        threads: torch threads of the coordinator; each silo has one. More pay on machines with idle cores only.
        checkpoint_every: least seconds between two checkpoints; 0 writes one at every safe point.

    Raises:
        ConfigError: unknown algorithm, preset, option, runtime or device.
        DataError: the federation's tables cannot be learnt from.
        CheckpointError: the checkpoints in ``folder`` belong to another experiment or are damaged.
    """
    entry, where = algorithm(algorithm_name), resolve_device(device)
    config = entry.configure(preset, options)
    entry.check(federation.roster)
    if runtime not in RUNTIMES:
        raise ConfigError("There is no such runtime", runtime, nearest(runtime, RUNTIMES))
    mark = _fingerprint(algorithm_name, config, federation, seed, threads)
    place = Path(folder) if folder is not None else _default_folder(mark)
    store, ledger, streams = CheckpointStore(place, mark), Ledger(place / "ledger.jsonl"), Streams(seed)
    with _link(runtime, entry, algorithm_name, federation, streams, where, store) as link, _watching(progress) as watch:
        coordinator = drive(
            lambda state: entry.coordinate(federation.roster, config, streams.child("coordinator"), where, state),
            link, ledger, store, watch, resume, threads=threads, seconds=checkpoint_every,
        )  # fmt: skip
        parts = _trained(link, store, entry, federation, where)
    if folder is None:
        shutil.rmtree(place)
    return Model(
        algorithm_name, preset, seed, config, federation.roster, federation.columns, federation.schemas,
        federation.flavour, coordinator, parts, federation.rows, [as_dict(record) for record in ledger.records], where,
    )  # fmt: skip


def _link(
    runtime: str, entry: Algorithm, name: str, federation: Federation, streams: Streams, device: torch.device,
    store: CheckpointStore,
) -> Link:  # fmt: skip
    if runtime == "processes":
        return spawn(name, federation, streams.seed, str(device), store.parties)
    parties = {
        silo: entry.party(table, federation.schemas[silo], streams.child("party", silo), device)
        for silo, table in federation.tables.items()
    }
    return InProcess(parties, store.parties)


def _trained(
    link: Link, store: CheckpointStore, entry: Algorithm, federation: Federation, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Each silo's part of the model: it writes its state to its own folder, from which this simulation reads it."""
    last = store.latest()
    number = 1 if last is None else last.number + 1
    link.save(number)
    parts = {}
    for silo, schema in federation.schemas.items():
        party = entry.party(Table(()), schema, Streams(0), device)
        party.restore(PartStore(store.parties / silo).load(number))
        parts[silo] = party.trained()
    return parts


def _watching(progress: bool | Callable[[Progress], None]) -> Any:
    if callable(progress):
        return nullcontext(progress)
    return RichProgress() if progress else nullcontext(None)


def _fingerprint(name: str, config: Struct, federation: Federation, seed: int, threads: int) -> str:
    """What a checkpoint must agree with: version, algorithm, options, seed, silos and every value."""
    about = [__version__, name, to_state(config), seed, threads, federation.silos, federation.digest()]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _default_folder(mark: str) -> Path:
    return Path(platformdirs.user_state_dir("silosynth")) / "runs" / mark[:16]
