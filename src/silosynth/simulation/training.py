"""`fit` and `represent`: train over a simulated federation, in this process or in one per silo.

A run has a folder, for itself alone: checkpoints, from which it can be resumed to the same bytes, and the ledger.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
import torch

from silosynth.algorithms.tabvfl.networks import Label, fit_label
from silosynth.catalog import Algorithm, AlgorithmKind, algorithm, fewest_rows, partitioned
from silosynth.core import files, messages, version
from silosynth.core.conversation import Conversation, Progress, State
from silosynth.core.errors import ConfigError, StorageError, nearest
from silosynth.core.rules import Rule, read_rules
from silosynth.core.schema import LEAST_ROWS, Column, Table, modelled_columns
from silosynth.core.streams import Streams
from silosynth.core.threads import Threads, check_threads, torch_threads_of
from silosynth.data.infer import ColumnWarning
from silosynth.encoders.table import check_bounds
from silosynth.models.latent import fast_bfloat16
from silosynth.privacy.events import Target, draws_noise
from silosynth.privacy.sealed import Seat, seats
from silosynth.runtime.checkpoint import CheckpointStore, PartStore, secret_seed
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import Link, resolve_device
from silosynth.runtime.progress import RichProgress
from silosynth.simulation.federation import Federation, check_federation, digest
from silosynth.simulation.model import Model, seed_number
from silosynth.simulation.representation import Representation, read_labels
from silosynth.simulation.ruling import Ruling, across, under_rules
from silosynth.simulation.silos import InProcess, make_parties, spawn

RUNTIMES = ("inprocess", "processes")


def fit(
    algorithm_name: str,
    federation: Federation,
    preset: str = "balanced",
    seed: int | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[Rule | Mapping[str, Any]] = (),
    runtime: str = "inprocess",
    limit: float | None = None,
    missing: str | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | Callable[[Progress], None] = True,
    device: str = "auto",
    threads: Threads = "auto",
    checkpoint_every: float = 15.0,
) -> Model:
    """Train a generator of synthetic tables on a federation.

    Args:
        algorithm_name: "silofuse", or a baseline: see `silosynth.catalog.ALGORITHMS`.
        federation: from `simulate`.
        preset: "fast", "balanced", "best", or "paper" for the published settings.
        seed: the same seed on the same machine gives the same bytes, in either runtime. None means 0; where noise
            protects rows (``dp``; GDTS's ``epsilon``), a secret seed, which ``folder`` keeps as long as checkpoints:
            whoever has that folder knows the noise. A model whose noise follows from a seed that was given states no
            epsilon.
        options: changes to the preset, nested or dotted: ``{"latent.steps": 4000}``.
        rules: what all rows keep: `silosynth.rules`, or mappings with a ``kind``, as in experiment files.
        runtime: "inprocess", or "processes" for one process per silo that shares nothing but messages (mTLS).
        limit: seconds that a silo has for an answer, or to write its part of a checkpoint, in runtime "processes"; None
            waits as long as it lives.
        missing: what happens when a silo died or was too slow: "fail" ends the run, "wait" waits for slow ones, "omit"
            continues without it, if the algorithm can. None is the algorithm's default: "omit" or "fail".
        folder: where checkpoints and the ledger are kept, for one run at a time; None for a temporary one.
        resume: continue from the last checkpoint in ``folder``, after Ctrl-C or a crash, to the same bytes.
        overwrite: start again although ``folder`` holds checkpoints, and remove them.
        progress: show a progress bar, or a function to call with each `Progress`.
        device: "auto", "cpu" or "cuda".
        threads: threads of the coordinator. Each silo has one; they train side by side, or in one process in turn
            where that is faster: of `gdts`, `ctgan`, `ctabgan`, `tvae` and `tabddpm` all of the model. With "auto"
            the batches of SiloFuse's steps share as many threads as are fastest, and all else has one: the bytes are
            those of 1. With a number operations share threads too, and results may differ in the last bits.
        checkpoint_every: minimum seconds between two checkpoints; 0 writes one at every safe point.

    Raises:
        ConfigError, DataError: the arguments are not valid; the federation's tables cannot be trained on.
        PartyLostError: a silo failed; or it died or was too slow, and the run cannot continue without it.
        StorageError: ``folder`` holds another run; checkpoints, without ``resume`` or ``overwrite``; or checkpoints to
            resume from that are damaged, or of another experiment.
    """
    how = _TrainingRun(
        runtime,
        limit,
        folder,
        resume,
        overwrite,
        progress,
        resolve_device(device),
        check_threads(threads),
        checkpoint_every,
    )
    whole = federation
    federation, ruling = _under_rules(algorithm_name, federation, preset, options, rules)
    entry, config = how.prepared(algorithm_name, "generator", federation, preset, options)
    coordinate = entry.under(missing)
    secret = seed is None and draws_noise(config)
    drawn = seed_number(0 if seed is None else seed)
    fingerprint = how.fingerprint(algorithm_name, config, federation, drawn)
    if secret:
        drawn, fingerprint = secret_run(_secret(folder, resume), fingerprint)
    streams = Streams(drawn)
    start = partial(coordinate, federation.roster, config, streams.child("coordinator"), how.device)
    if entry.ruled:
        start = partial(start, rules=across(ruling.rules, whole.silos))
    trained = how.carry_out(algorithm_name, entry, config, federation, streams, fingerprint, start)
    listed = getattr(config, "dp", Target()).private and federation.flavour == "pandas"  # categories may list values
    types = b"" if listed else federation.types
    return Model(
        algorithm=algorithm_name, preset=preset, seed=-1 if secret else drawn, config=config,
        roster=federation.roster, columns=whole.columns, schemas=whole.schemas, flavour=federation.flavour,
        types=types, rows=federation.rows, ruling=ruling, **trained,
    )  # fmt: skip


def _under_rules(
    name: str, federation: Federation, preset: str, options: Mapping[str, Any] | None,
    rules: Sequence[Rule | Mapping[str, Any]],
) -> tuple[Federation, Ruling]:  # fmt: skip
    """The federation as its silos describe it under rules, and the rules; with warnings of rows that break them."""
    if not rules:
        return federation, Ruling()
    check_federation(federation, grouped=True)
    config = algorithm(name, "generator").configure(preset, options)
    if getattr(config, "own_rows", False):
        raise ConfigError(
            "In a simulation rules are about rows that all silos have", "own_rows and rules", "Leave out one of them."
        )
    ruled, ruling, said = under_rules(
        federation, read_rules(rules), private=draws_noise(config), partitioned=partitioned(config),
        least=fewest_rows(config),
    )  # fmt: skip
    for text in said:
        warnings.warn(text, ColumnWarning, stacklevel=3)
    return ruled, ruling


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
    overwrite: bool = False,
    progress: bool | Callable[[Progress], None] = True,
    device: str = "auto",
    threads: Threads = "auto",
    checkpoint_every: float = 15.0,
) -> Representation:
    """Train one latent representation of a federation's rows, and a predictor of a label from it.

    Args:
        name: "tabvfl".
        federation: from `simulate`; silos hold different columns of the same rows.
        label: what to predict: a column of one silo, which is taken from it and **given to the coordinator**; or labels
            that no silo holds, aligned with the rows. None only with ``finetune = False``.
        preset: "fast", "balanced", or "paper" for the published settings.
        seed: the same seed on the same machine gives the same bytes, in either runtime.
        options: changes to the preset (docs/algorithms/tabvfl.md), nested or dotted.
        runtime, folder, resume, overwrite, progress, device, threads, checkpoint_every: see `silosynth.fit`.
        limit: seconds that a silo has for an answer, in runtime "processes". The option ``missing`` says what happens
            then: "cache" and "zeros" continue without the silo, "wait" waits for it as long as it lives, with a
            warning, "fail" ends the run.

    Raises:
        ConfigError, DataError, SchemaError: the arguments are not valid; tables or labels cannot be trained on.
        PartyLostError: a silo failed, or was lost and training cannot continue without it.
        StorageError: ``folder`` holds another run; checkpoints, without ``resume`` or ``overwrite``; or checkpoints to
            resume from that are damaged, or of another experiment.
    """
    how = _TrainingRun(
        runtime,
        limit,
        folder,
        resume,
        overwrite,
        progress,
        resolve_device(device),
        check_threads(threads),
        checkpoint_every,
    )
    entry, config = how.prepared(name, "representation", federation, preset, options)
    seed = seed_number(seed)
    features, target, column = _without_label(federation, label)
    labels = None if target is None or column is None else target.labels(column)
    streams, label_table = Streams(seed), Table(() if column is None else (column,))
    fingerprint = f"{how.fingerprint(name, config, features, seed)} {digest({'label': label_table})}"
    fingerprint = hashlib.sha256(fingerprint.encode()).hexdigest()
    start = partial(entry.coordinate, features.roster, config, labels, streams.child("coordinator"), how.device)
    trained = how.carry_out(name, entry, config, features, streams, fingerprint, start)
    return Representation(
        algorithm=name, preset=preset, seed=seed, config=config, roster=features.roster, schemas=features.schemas,
        label=target, rows=features.rows, **trained,
    )  # fmt: skip


def _without_label(federation: Federation, label: Any) -> tuple[Federation, Label | None, Column | None]:
    """The federation without the label, the label's description, and its column."""
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
    features = replace(
        federation,
        tables={**federation.tables, silo: table.select(rest)},
        schemas={**federation.schemas, silo: schema.select(rest)},
        columns=tuple(name for name in federation.columns if name != label),
    )
    return features, fit_label(table[label], schema[label].kind, silo), table[label]


@dataclass(frozen=True)
class _TrainingRun:
    """How a training is carried out: the arguments that `fit` and `represent` share."""

    runtime: str
    limit: float | None
    folder: str | Path | None
    resume: bool
    overwrite: bool
    progress: bool | Callable[[Progress], None]
    device: torch.device
    threads: Threads
    checkpoint_every: float

    def prepared(
        self, name: str, kind: AlgorithmKind, federation: Federation, preset: str, options: Mapping[str, Any] | None
    ) -> tuple[Algorithm, Any]:
        """The catalog's entry and the config, after all checks that can be made before anything starts."""
        both = algorithm(name, kind)
        check_federation(federation, grouped=True)
        entry = both.divided(federation.horizontal)
        entry.check(federation.roster, federation.horizontal, bool(federation.groups))
        config = entry.configure(preset, with_groups(options, federation))
        both.of(config).check(federation.roster, federation.horizontal)
        if self.runtime not in RUNTIMES:
            raise ConfigError("There is no such runtime", self.runtime, nearest(self.runtime, RUNTIMES))
        if self.limit is not None and self.runtime != "processes":
            rule = "A time limit is for silos in processes of their own"
            raise ConfigError(rule, self.runtime, "Set runtime='processes'.")
        if self.limit is not None and not self.limit > 0:
            rule = "A time limit is above zero seconds"
            raise ConfigError(rule, self.limit, "Leave it out to wait as long as silos live.")
        if getattr(config, "own_rows", False) and not federation.own:
            raise ConfigError(
                "Rows that only one silo has come from tables that are linked", "own_rows, and no such rows",
                "Make the federation with simulate({name: table}, identifier=…), or leave own_rows out.",
            )  # fmt: skip
        dp: Target = getattr(config, "dp", Target())
        if dp.private and dp.bounds == "declared":  # of all silos at once: each would refuse by itself
            schemas = federation.schemas
            check_bounds([(modelled_columns(t, schemas[silo]), schemas[silo]) for silo, t in federation.tables.items()])
        self._check_folder()
        _warn(entry, config, federation)
        return entry, config

    def _check_folder(self) -> None:
        """Refuse to start again over checkpoints, unless that is asked for."""
        if self.folder is None or self.resume or self.overwrite:
            return
        if any((Path(self.folder) / "coordinator").glob("*.ckpt")):
            raise StorageError(
                "The folder must not hold checkpoints of an earlier run",
                str(self.folder),
                "Continue that run with resume=True, start again with overwrite=True, or name another folder.",
            )

    def fingerprint(self, name: str, config: messages.Struct, federation: Federation, seed: int) -> str:
        """What a checkpoint must agree with: version, algorithm, options, seed, arithmetic, silos and every value."""
        capability = torch.backends.cpu.get_cpu_capability()
        arithmetic = [torch_threads_of(self.threads), self.device.type, capability, fast_bfloat16(self.device)]
        options = messages.to_state(config)
        content = [version.VERSION, name, options, seed, arithmetic, federation.silos, federation.digest()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def carry_out(
        self, name: str, entry: Algorithm, config: Any, federation: Federation, streams: Streams, fingerprint: str,
        start: Callable[[State | None], Conversation[dict[str, Any]]],
    ) -> dict[str, Any]:  # fmt: skip
        """Train in the run's folder; ``start`` begins the coordinator's side from a checkpoint's state, or None.

        Returns the fields of `TrainedModel` that a training leaves.
        """
        with run_folder(self.folder, fingerprint) as place:
            store, ledger = CheckpointStore(place, fingerprint), Ledger(place / "ledger.jsonl")
            if self.overwrite and not self.resume:
                store.discard()
            seated = seats(federation.roster, streams.child("seats"))
            link = self._connect(name, entry, config, federation, seated, streams, store)
            with link, _watching(self.progress) as watch:
                coordinator = drive(
                    start, link, ledger, store, watch, self.resume, threads=self.threads, seconds=self.checkpoint_every
                )
                parts = coordinator.pop("parts", None)  # where silos have handed them over
                if parts is None:
                    parts = self._parts(entry, config, link, store, federation, seated) if entry.parts else {}
        parts = {silo: parts.get(silo, {}) for silo in federation.schemas}
        used = {"device": self.device, "threads": torch_threads_of(self.threads)}
        return {"coordinator": coordinator, "parts": parts, "ledger": ledger.entries(), **used}

    def _connect(
        self, name: str, entry: Algorithm, config: Any, federation: Federation, seated: Mapping[str, Seat],
        streams: Streams, store: CheckpointStore,
    ) -> Link:  # fmt: skip
        """The way to the silos: here, or each in a process of its own. Their parts of checkpoints go to ``store``."""
        if self.runtime == "processes":
            return spawn(name, config, federation, seated, streams.seed, str(self.device), store.parties, self.limit)
        return InProcess(make_parties(entry, config, federation, streams, self.device), store.parties)

    def _parts(
        self, entry: Algorithm, config: Any, link: Link, store: CheckpointStore, federation: Federation,
        seated: Mapping[str, Seat],
    ) -> dict[str, dict[str, Any]]:  # fmt: skip
        """Each silo's part: it writes its state to its own folder, from which this simulation reads it."""
        last = store.latest()
        number = 1 if last is None else last.number + 1
        link.save(number)
        parts = {}
        for silo, schema in federation.schemas.items():
            party = entry.party(Table(()), schema, seated[silo], Streams(0), self.device, config)
            party.restore(PartStore(store.parties / silo).load(number))
            parts[silo] = party.trained()
        return parts


def with_groups(options: Mapping[str, Any] | None, federation: Federation) -> dict[str, Any]:
    """Options with the groups of silos that a federation has.

    Raises:
        ConfigError: they name others.
    """
    given, groups = dict(options or {}), federation.groups
    named = given.get("silo_groups", groups)
    if [list(group) for group in named] != [list(group) for group in groups]:
        rule = "Groups of silos are those of the federation"
        raise ConfigError(rule, named, "Leave the option silo_groups out: simulate makes groups.")
    return given | ({"silo_groups": groups} if groups else {})


def _warn(entry: Algorithm, config: Any, federation: Federation) -> None:
    """Say which columns are not published, or not as their owner may expect."""
    if min(map(len, federation.tables.values())) < LEAST_ROWS:  # refused below
        return
    whole = federation.central() if federation.horizontal else federation
    told = [entry.cautions(config, whole.schemas[silo], table) for silo, table in whole.tables.items()]
    for text in dict.fromkeys(text for own in told for text in own):
        warnings.warn(text, ColumnWarning, stacklevel=4)


def _watching(progress: bool | Callable[[Progress], None]) -> Any:
    """A context that shows progress: a bar, a function of the caller's, or nothing."""
    if callable(progress):
        return nullcontext(progress)
    return RichProgress() if progress else nullcontext(None)


# Secret seeds.


def _secret(folder: str | Path | None, resume: bool) -> int:
    if folder is not None:
        with _alone(place := files.make_folder(folder)):  # not the seed of a run that is going on
            return secret_seed(place, again=resume)
    if resume:
        raise ConfigError("A run with a secret seed is resumed from the folder that keeps it", None, "Name the folder.")
    return secrets.randbits(256)


def secret_run(secret: int, fingerprint: str) -> tuple[int, str]:
    """The seed and the fingerprint of a run with a secret seed, from the secret and the fingerprint without it.

    Other data or options must get other noise: two releases with the same noise reveal their difference.
    """
    seed, name = (hashlib.sha256(f"{use} {secret} {fingerprint}".encode()) for use in ("seed", "fingerprint"))
    return int.from_bytes(seed.digest(), "big"), name.hexdigest()


# The folder of a run.


@contextmanager
def run_folder(folder: str | Path | None, fingerprint: str) -> Iterator[Path]:
    """The run's folder, locked for this run. The default folder is deleted in the end unless it holds checkpoints."""
    place = _default_folder(fingerprint) if folder is None else files.make_folder(folder)
    with _alone(place):
        try:
            yield place
        except BaseException:
            if folder is None and not any((place / "coordinator").glob("*.ckpt")):
                shutil.rmtree(place, ignore_errors=True)
            raise
        if folder is None:
            shutil.rmtree(place)


def _alone(place: Path) -> AbstractContextManager[None]:
    """A lock on a run's folder, unless another run has it."""
    rule, remedy = "One run at a time works in a folder", "Wait until it has ended, or name another folder."
    return files.locked(place / "lock", StorageError(f"{rule}; another is going on", str(place), remedy))


def _default_folder(fingerprint: str) -> Path:
    """A folder that only its user may read: checkpoints hold what silos keep to themselves."""
    place = Path(platformdirs.user_state_dir("silosynth")) / "runs" / fingerprint[:16]
    files.make_folder(place.parent)
    return files.private_folder(place)
