"""Generators to audit: an algorithm of the catalogue, or a program that reads a table and writes one.

Each is a callable ``fit(train, seed) -> synthetic`` on pandas frames, and can be pickled for other processes.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pandas as pd
import torch

from silosynth.algorithms.vflgan.networks import LocalGAN, SharedCritic
from silosynth.algorithms.vflgan.protocol import begin
from silosynth.algorithms.vflgan.silo import VFLGANSilo
from silosynth.attacks import lockstep
from silosynth.attacks.shadows import Train
from silosynth.catalog import algorithm
from silosynth.core.conversation import Party, Progress
from silosynth.core.errors import ConfigError, UnavailableError
from silosynth.core.streams import Streams
from silosynth.data import sources
from silosynth.evaluation.scores import Floats
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.progress import Watch, seconds_of
from silosynth.simulation.federation import Federation, simulate
from silosynth.simulation.model import Model
from silosynth.simulation.silos import InProcess, make_parties

Fit = Callable[[pd.DataFrame, int], pd.DataFrame]

CPU = torch.device("cpu")
SENDING = ("vflgan", "vflgan-base")  # algorithms whose silos send their critic's features
TRIAL = 5.0  # seconds of a training that only serves to estimate how long it would take


def _unwatched(stage: str, share: float) -> None:
    """Ignore progress."""


def _part(watch: Watch, before: float, size: float) -> Watch:
    """Report progress within a part of the work: ``size`` is its share, ``before`` the share that precedes it."""
    return lambda stage, share: watch(stage, before + size * share)


@dataclass(frozen=True)
class Catalogued:
    """An algorithm of the catalogue, trained on one thread.

    Attributes:
        name, preset, options: as for `silosynth.fit`.
        silos: columns of each silo; None for one silo that holds all.
        kinds: of the columns: ``schema`` of `silosynth.simulate`. They count as public: otherwise each training would
            infer its own, and these might reveal whether a record was present.
        rows: number of synthetic rows per training.
    """

    name: str
    preset: str = "balanced"
    options: Mapping[str, Any] = field(default_factory=dict)
    silos: Mapping[str, Sequence[str]] | None = None
    kinds: Mapping[str, Any] | None = None
    rows: int = 1000

    def __call__(self, train: pd.DataFrame, seed: int) -> pd.DataFrame:
        """A synthetic table."""
        return self._drawn(self._trained(train, seed))

    @property
    def in_lockstep(self) -> bool:
        """Whether several trainings can run in lockstep."""
        return lockstep.fits(self.config)

    def together(self, trains: Sequence[Train]) -> list[pd.DataFrame]:
        """A synthetic table for each table and seed, trained in lockstep if possible."""
        return [self._drawn(run) for run in self._runs(trains)]

    def with_features(self, trains: Sequence[Train], whole: pd.DataFrame) -> list[tuple[pd.DataFrame, Floats]]:
        """The same, with the features (rows, features) that the silos' trained critics send for ``whole``.

        Raises:
            ConfigError: the algorithm has no intermediate features.
        """
        sending(self)
        return [(self._drawn(run), self._features(run, whole)) for run in self._runs(trains)]

    def seconds(self, trains: Sequence[Train], limit: float = TRIAL) -> float:
        """Estimated seconds of these trainings, from the pace of the first few; sampling is not included."""
        apart = 1 if self.in_lockstep else len(trains)
        return apart * seconds_of(partial(self._runs, trains[: len(trains) // apart]), limit)

    def _runs(self, trains: Sequence[Train], watch: Watch = _unwatched) -> list[_Trained]:
        if len(trains) == 1 or not self.in_lockstep:
            return [self._trained(train, seed, watch) for train, seed in trains]
        begun = [self._begun(train, seed) for train, seed in trains]
        alike: dict[Any, list[lockstep.LockstepTraining]] = {}
        for _, training in begun:
            alike.setdefault(training.likeness, []).append(training)
        done = 0
        for trainings in alike.values():
            lockstep.train(trainings, _part(watch, done / len(begun), len(trainings) / len(begun)))
            done += len(trainings)
        return [run for run, _ in begun]

    def _trained(self, train: pd.DataFrame, seed: int, watch: Watch = _unwatched) -> _Trained:
        """Train as `silosynth.fit` does, without writing to disk."""

        def report(progress: Progress) -> None:
            watch(progress.stage, progress.done / max(1, progress.total))

        entry, federation, streams = algorithm(self.name), self._federation(train), Streams(seed)
        parties, coordinator = self._parties(federation, seed), streams.child("coordinator")
        start = partial(entry.coordinate, federation.roster, self.config, coordinator, CPU)
        with InProcess(parties) as link:
            return _Trained(federation, seed, parties, drive(start, link, Ledger(), watch=report))

    def _begun(self, train: pd.DataFrame, seed: int) -> tuple[_Trained, lockstep.LockstepTraining]:
        """A training of VFLGAN, up to its first step."""
        federation, config = self._federation(train), self.config
        parties = self._parties(federation, seed)
        with InProcess(parties) as link:
            state = drive(lambda _: begin(federation.roster, config), link, Ledger())
        silos = [_networks(party) for party in parties.values() if isinstance(party, VFLGANSilo)]
        shared = SharedCritic(len(silos), config, None, Streams(seed).child("coordinator"), CPU)
        run = _Trained(federation, seed, parties, {name: state[name] for name in ("rows", "run")})
        return run, lockstep.LockstepTraining(silos, shared)

    @property
    def config(self) -> Any:
        """All options."""
        return algorithm(self.name).configure(self.preset, self.options)

    def _federation(self, frame: pd.DataFrame) -> Federation:
        federation = simulate(frame, silos=self.silos, schema=self.kinds)
        entry = algorithm(self.name)
        federation = federation.central() if entry.central else federation
        entry.check(federation.roster, federation.horizontal)
        return federation

    def _parties(self, federation: Federation, seed: int) -> dict[str, Party]:
        return make_parties(algorithm(self.name), self.config, federation, Streams(seed), CPU)

    def _drawn(self, run: _Trained) -> pd.DataFrame:
        held = run.federation
        parts = {name: party.trained() if algorithm(self.name).parts else {} for name, party in run.parties.items()}
        model = Model(
            algorithm=self.name, preset=self.preset, seed=run.seed, config=self.config, roster=held.roster,
            columns=held.columns, schemas=held.schemas, flavour=held.flavour, coordinator=run.coordinator, parts=parts,
            rows=held.rows, device=CPU,
        )  # fmt: skip
        drawn: pd.DataFrame = model.sample(self.rows, seed=run.seed)
        return drawn

    def _features(self, run: _Trained, whole: pd.DataFrame) -> Floats:
        parts = []
        for silo, party in self._parties(self._federation(whole), run.seed).items():
            assert isinstance(party, VFLGANSilo)  # checked
            party.restore(run.parties[silo].state())
            parts.append(party.features().numpy().astype(np.float64))
        return np.concatenate(parts, axis=1)


def _networks(silo: VFLGANSilo) -> LocalGAN:
    silo.features()  # creates them
    assert silo.training is not None
    return silo.training


@dataclass(frozen=True)
class _Trained:
    """A finished training: its federation, its parties and the coordinator's state."""

    federation: Federation
    seed: int
    parties: Mapping[str, Party]
    coordinator: dict[str, Any]


@dataclass(frozen=True)
class Command:
    """Any program that trains on a table and writes a synthetic one.

    Attributes:
        template: the command line, with the placeholders ``{train}`` and ``{out}`` for the two CSV files and, if the
            program takes them, ``{seed}`` and ``{rows}``. It is split as a shell would split it, but runs without one.
        rows: the value of ``{rows}``.

    Raises:
        ConfigError: the template lacks ``{train}`` or ``{out}``.
    """

    template: str
    rows: int = 1000

    def __post_init__(self) -> None:
        for place in ("{train}", "{out}"):
            if place not in self.template:
                raise ConfigError(f"The command must say where {place} stands", self.template, f"Add {place} to it.")

    def __call__(self, train: pd.DataFrame, seed: int) -> pd.DataFrame:
        """A synthetic table.

        Raises:
            UnavailableError: the program does not exist, or fails.
            StorageError: the program did not write the table.
        """
        with tempfile.TemporaryDirectory(prefix="silosynth-audit-") as folder:
            places = {"{train}": str(Path(folder, "train.csv")), "{out}": str(Path(folder, "synthetic.csv"))}
            places |= {"{seed}": str(seed), "{rows}": str(self.rows)}
            train.to_csv(places["{train}"], index=False)
            _run([_filled(word, places) for word in shlex.split(self.template)], self.template)
            return sources.read(places["{out}"])


def _filled(word: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        word = word.replace(place, value)
    return word


def _run(command: Sequence[str], shown: str) -> None:
    """Run a command, hiding its output, which may contain rows of the table."""
    remedy = "Run it by hand on the training table: its output is hidden here, since it may contain rows."
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        raise UnavailableError("The command must exist and may be run", shown, "Check its first word.") from error
    if done.returncode:
        raise UnavailableError(f"The command must end without an error, not with {done.returncode}", shown, remedy)


def tables(fit: Fit, trains: Sequence[Train]) -> list[pd.DataFrame]:
    """A synthetic table of each training."""
    return fit.together(trains) if isinstance(fit, Catalogued) else [fit(train, seed) for train, seed in trains]


def sending(fit: Fit) -> Catalogued:
    """The same generator, provided that its silos send features during training.

    Raises:
        ConfigError: they do not.
    """
    if isinstance(fit, Catalogued) and fit.name in SENDING:
        return fit
    name = fit.name if isinstance(fit, Catalogued) else described(fit)
    remedy = f"Audit {' or '.join(SENDING)}, or leave out asif."
    raise ConfigError("Only VFLGAN's silos send intermediate features", name, remedy)


def expected(fit: Fit, trains: Sequence[Train]) -> float | None:
    """Estimated seconds of these trainings; None if there is no way to estimate them."""
    return fit.seconds(trains) if isinstance(fit, Catalogued) else None


def described(fit: Fit) -> str:
    """Identifies a generator wherever trainings are kept: equal in every process."""
    if isinstance(fit, partial):
        return f"{described(fit.func)} {fit.args!r} {fit.keywords!r}"
    if isinstance(fit, Catalogued):  # presets change, and keep their name
        return f"{fit!r} {fit.config!r}"
    return f"{fit.__module__}.{fit.__qualname__}" if isinstance(fit, FunctionType) else repr(fit)


def in_lockstep(fit: Fit) -> bool:
    """Whether training several at once is cheaper than one after the other."""
    return isinstance(fit, Catalogued) and fit.in_lockstep
