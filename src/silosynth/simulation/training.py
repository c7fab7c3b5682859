"""The public face: `simulate`, `fit`, `evaluate`, `load`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from silosynth.catalog import Algorithm, algorithm
from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.files import make_folder
from silosynth.core.streams import Streams
from silosynth.evaluation import evaluate
from silosynth.privacy.sealed import seats
from silosynth.privacy.target import Target
from silosynth.runtime.checkpoint import CheckpointStore
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.federation import Federation, check_federation, simulate
from silosynth.simulation.model import Model, as_dict, load, resolve_device, whole_number
from silosynth.simulation.runs import (
    RUNTIMES,
    connect,
    fingerprint,
    run_folder,
    secret_run,
    secret_seed,
    trained,
    watching,
)

__all__ = ["Federation", "Model", "evaluate", "fit", "load", "simulate"]


def fit(
    algorithm_name: str,
    federation: Federation,
    preset: str = "balanced",
    seed: int | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    runtime: str = "inprocess",
    limit: float | None = None,
    missing: str | None = None,
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
        seed: the same seed on the same machine gives the same bytes, in either runtime. None stands for 0; where
            differential privacy is asked for, for a secret one, which ``folder`` keeps as long as checkpoints: who has
            that folder knows the noise.
        options: changes to the preset, nested or dotted: ``{"latent.steps": 4000}``.
        runtime: "inprocess", or "processes" for one process per silo that shares nothing but messages (mTLS).
        limit: seconds that a silo has for an answer, or to write its part of a checkpoint, in runtime "processes"; None
            waits as long as it lives.
        missing: what becomes of a silo that died or was too slow: "fail" ends the run, "wait" waits for slow ones,
            "omit" goes on without, where the algorithm can. None is "fail", or "omit" where the algorithm supports it.
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
    entry, where = algorithm(algorithm_name), resolve_device(device)
    config, coordinate = _checked(entry, federation, preset, options, runtime, limit), entry.under(missing)
    secret = seed is None and getattr(config, "dp", Target()).private
    drawn = whole_number("A seed", 0 if seed is None else seed)
    mark = fingerprint(algorithm_name, config, federation, drawn, threads, where)
    if secret:
        drawn, mark = secret_run(_secret(folder, resume), mark)
    streams = Streams(drawn)
    start = partial(coordinate, federation.roster, config, streams.child("coordinator"), where)
    with run_folder(folder, mark) as place:
        store, ledger = CheckpointStore(place, mark), Ledger(place / "ledger.jsonl")
        seated = seats(federation.roster, streams.child("seats"))
        link = connect(runtime, limit, algorithm_name, federation, seated, streams, where, store)
        with link, watching(progress) as watch:
            coordinator = drive(start, link, ledger, store, watch, resume, threads=threads, seconds=checkpoint_every)
            parts = trained(link, store, algorithm_name, federation, seated, where) if entry.parts else {}
    parts = {silo: parts.get(silo, {}) for silo in federation.schemas}
    return Model(
        algorithm_name, preset, -1 if secret else drawn, config, federation.roster, federation.columns,
        federation.schemas, federation.flavour, coordinator, parts, federation.rows,
        [as_dict(record) for record in ledger.records], where,
    )  # fmt: skip


def _secret(folder: str | Path | None, resume: bool) -> int:
    if folder is not None:
        return secret_seed(make_folder(folder), again=resume)
    if resume:
        raise ConfigError("What is resumed with a secret seed has a folder that keeps it", None, "Name the folder.")
    return secrets.randbits(128)


def _checked(
    entry: Algorithm, federation: Federation, preset: str, options: Mapping[str, Any] | None, runtime: str,
    limit: float | None,
) -> Any:  # fmt: skip
    """The config, if all that can be refused before anything starts is right."""
    check_federation(federation)
    config = entry.configure(preset, options)
    entry.check(federation.roster, federation.horizontal)
    if runtime not in RUNTIMES:
        raise ConfigError("There is no such runtime", runtime, nearest(runtime, RUNTIMES))
    if limit is not None and runtime != "processes":
        raise ConfigError("A time limit is for silos in processes of their own", runtime, "Set runtime='processes'.")
    if limit is not None and not limit > 0:
        raise ConfigError("A time limit is above zero seconds", limit, "Leave it out to wait as long as silos live.")
    return config
