"""`represent`: train as `silosynth.fit` does, with checkpoints and a ledger, in this process or in one per silo."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from silosynth.algorithms.tabvfl.conversation import coordinate
from silosynth.algorithms.tabvfl.label import Label, fit_label
from silosynth.algorithms.tabvfl.messages import PRESETS, TabVFLConfig
from silosynth.catalog import configured
from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.schema import Column, Table
from silosynth.core.streams import Streams
from silosynth.privacy.sealed import seats
from silosynth.runtime.checkpoint import CheckpointStore
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.simulation.federation import Federation, check_federation, digest
from silosynth.simulation.model import as_dict, resolve_device, whole_number
from silosynth.simulation.representation import Representation, read_labels
from silosynth.simulation.runs import RUNTIMES, connect, fingerprint, run_folder, trained, watching

NAMES = ("tabvfl",)


def represent(
    name: str,
    federation: Federation,
    label: Any = None,
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
) -> Representation:
    """Learn one latent representation of a federation's rows, and to predict a label from it.

    Args:
        name: "tabvfl".
        federation: from `simulate`; silos hold different columns of the same rows.
        label: what to predict: a column of one silo, which is taken out there and **given to the coordinator**; or
            labels of their own, aligned with the rows. None only with ``finetune = False``.
        preset: "fast", "balanced", or "paper" for the published settings.
        seed: the same seed on the same machine gives the same bytes, in either runtime.
        options: changes to the preset (docs/algorithms/tabvfl.md), nested or dotted.
        runtime, folder, resume, progress, device, threads, checkpoint_every: see `silosynth.fit`.
        limit: seconds that a silo has for an answer, in runtime "processes". What then becomes of training, option
            ``missing`` says: "cache" and "zeros" go on without the silo, "wait" waits for it as long as it lives, with
            a warning, "fail" ends the run.

    Raises:
        ConfigError, DataError, SchemaError: the arguments are not valid; tables or labels cannot be learnt from.
        PartyLostError: a silo failed, or got lost where training cannot do without it.
        StorageError: ``folder`` holds another run, checkpoints of another experiment, or damaged ones.
    """
    config, where, seed = _configured(name, preset, options), resolve_device(device), whole_number("A seed", seed)
    _check(federation, runtime, limit)
    learnt, about, column = _split(federation, label)
    labels = None if about is None or column is None else about.known(column)
    streams = Streams(seed)
    mark = fingerprint(name, config, learnt, seed, threads, where)
    mark = hashlib.sha256(
        f"{mark} {digest({'label': Table(() if column is None else (column,))})}".encode()
    ).hexdigest()
    start = partial(coordinate, learnt.roster, config, labels, streams.child("coordinator"), where)
    with run_folder(folder, mark) as place:
        store, ledger = CheckpointStore(place, mark), Ledger(place / "ledger.jsonl")
        seated = seats(learnt.roster, streams.child("seats"))
        link = connect(runtime, limit, name, learnt, seated, streams, where, store)
        with link, watching(progress) as watch:
            coordinator = drive(start, link, ledger, store, watch, resume, threads=threads, seconds=checkpoint_every)
            parts = trained(link, store, name, learnt, seated, where)
    return Representation(
        name, preset, seed, config, learnt.roster, learnt.schemas, about, coordinator, parts, learnt.rows,
        [as_dict(record) for record in ledger.records], where,
    )  # fmt: skip


def _configured(name: str, preset: str, options: Mapping[str, Any] | None) -> TabVFLConfig:
    if name not in NAMES:
        raise ConfigError("There is no such representation", name, nearest(name, NAMES))
    if preset not in PRESETS:
        raise ConfigError("There is no such preset", preset, nearest(preset, PRESETS))
    config = configured(PRESETS[preset], options)
    assert isinstance(config, TabVFLConfig)
    return config


def _check(federation: Federation, runtime: str, limit: float | None) -> None:
    check_federation(federation)
    if federation.horizontal:
        raise ConfigError(
            "A representation is for silos that hold different columns of the same rows",
            f"rows in {', '.join(federation.roster)}",
            "Deal out columns: simulate(frame, silos={…}).",
        )
    if runtime not in RUNTIMES:
        raise ConfigError("There is no such runtime", runtime, nearest(runtime, RUNTIMES))
    if limit is not None and (runtime != "processes" or not limit > 0):
        raise ConfigError(
            "A time limit is above zero seconds, for silos in processes of their own", (limit, runtime),
            "Leave it out, or set runtime = 'processes'.",
        )  # fmt: skip


def _split(federation: Federation, label: Any) -> tuple[Federation, Label | None, Column | None]:
    """The federation without the label; what is known of the label; and the labels."""
    if label is None:
        return federation, None, None
    if not isinstance(label, str):
        column, kind = read_labels(label)
        return federation, fit_label(column, kind), column
    holders = [silo for silo, names in federation.silos.items() if label in names]
    if not holders:
        raise ConfigError("The label is a column of a silo", label, nearest(label, federation.columns))
    silo = holders[0]
    table, schema = federation.tables[silo], federation.schemas[silo]
    rest = [name for name in table.names if name != label]
    if not rest:
        raise ConfigError(f"Silo {silo!r} holds a column besides the label", label, "Pass the labels by themselves.")
    learnt = replace(
        federation,
        tables={**federation.tables, silo: table.select(rest)},
        schemas={**federation.schemas, silo: schema.select(rest)},
        columns=tuple(name for name in federation.columns if name != label),
    )
    return learnt, fit_label(table[label], schema[label].kind, silo), table[label]
