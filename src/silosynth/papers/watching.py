"""A training that is timed, and whose model is evaluated along the way.

It is `silosynth.fit` to the last bit, with silos asked one after the other. A look draws a table from the model as it
is, where the conversation reports progress and a safe point to stop, and its time is not counted.

Time is counted twice: all work added up, which is the wall clock of this machine where it does one thing at a time; and
the critical path, on which only the slowest silo of each exchange counts, as if every silo had a machine of its own.
Messages take no time on their way, but are written and read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from silosynth.algorithms.gdts.options import GDTSConfig
from silosynth.attacks.listening import Wiretap
from silosynth.catalog import algorithm
from silosynth.core.conversation import Checkpoint, Conversation, Progress, Replies, State, Step
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.evaluation.coding import code_tables
from silosynth.evaluation.fidelity import Dealt, marginals
from silosynth.evaluation.gan_papers import wasserstein
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import Link, Received, resolve_device
from silosynth.simulation.federation import Federation
from silosynth.simulation.model import Model, as_dict
from silosynth.simulation.silos import InProcess, make_parties

Compare = Callable[[pd.DataFrame, pd.DataFrame], dict[str, float | None]]
LOOKS = 20  # at most, the one at the end included


@dataclass
class Clock:
    """Seconds of a training so far: the coordinator's, all silos', and those of the slowest silo of each exchange."""

    coordinator: float = 0.0
    silos: float = 0.0
    slowest: float = 0.0

    @property
    def read(self) -> dict[str, float]:
        """Both ways to count."""
        return {"seconds": self.coordinator + self.silos, "side by side": self.coordinator + self.slowest}


@dataclass
class Watched:
    """A model, and its training's curve: each look is a row of round, seconds, JSD and WD."""

    model: Model
    clock: Clock
    curve: list[dict[str, float | None]] = field(default_factory=list)

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """See `Model`."""
        return self.model.ledger

    @property
    def extra(self) -> dict[str, Any]:
        """What goes into a row of figures."""
        return {**self.clock.read, "curve": self.curve}

    def sample(self, n: int, seed: int) -> Any:
        """See `Model.sample`."""
        return self.model.sample(n, seed)


class OneByOne(Wiretap):
    """A link that asks parties one after the other, and times each."""

    def __init__(self, link: Link, clock: Clock, device: torch.device) -> None:
        super().__init__(link, [])
        self._clock, self._device = clock, device

    def exchange(self, step: int, asks: Mapping[str, Message]) -> Mapping[str, Received]:
        """See `Link.exchange`."""
        received: dict[str, Received] = {}
        taken = []
        for party, ask in asks.items():
            start = time.perf_counter()
            received |= super().exchange(step, {party: ask})
            settle(self._device)
            taken.append(time.perf_counter() - start)
        self._clock.silos += sum(taken)
        self._clock.slowest += max(taken, default=0.0)
        return received


def settle(device: torch.device) -> None:
    """Wait until the device is idle: work still queued would be counted as somebody else's."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fit(
    name: str, federation: Federation, preset: str = "paper", seed: int = 0, *, real: pd.DataFrame,
    options: Mapping[str, Any] | None = None, folder: Any = None,
    progress: Callable[[Progress], None] | None = None, compare: Compare | None = None,
) -> Watched:  # fmt: skip
    """As `silosynth.fit`, in this process, without checkpoints; looks ``compare`` with the ``real`` rows."""
    entry, device, streams, clock = algorithm(name), resolve_device("auto"), Streams(seed), Clock()
    config = entry.configure(preset, options)
    entry.check(federation.roster, federation.horizontal)
    parties = make_parties(entry, federation, streams, device)

    def model(state: State) -> Model:
        """The model where the training is now."""
        parts = {silo: party.trained() for silo, party in parties.items()}
        return Model(
            algorithm=name, preset=preset, seed=seed, config=config, roster=federation.roster,
            columns=federation.columns, schemas=federation.schemas, flavour=federation.flavour, coordinator=state,
            parts=parts, rows=federation.rows, ledger=[as_dict(record) for record in ledger.records], device=device,
        )  # fmt: skip

    def look(share: float, state: State) -> None:
        drawn = model(state).sample(len(real), seed)
        curve.append({"round": share * length(config), **clock.read, **(compare or distances)(real, drawn)})

    def start(state: State | None) -> Conversation[State]:
        talk = entry.coordinate(federation.roster, config, streams.child("coordinator"), device, state)
        return watched(talk, clock, partial(settle, device), Looks(look))

    ledger, curve = Ledger(), list[dict[str, float | None]]()
    with OneByOne(InProcess(parties), clock, device) as link:
        coordinator = drive(start, link, ledger, watch=progress)
        look(1.0, coordinator)
        return Watched(model(coordinator), clock, curve)


class Looks:
    """Calls ``look`` with a share of the training and the coordinator's state, `LOOKS` - 1 times at most.

    It does so where progress and a safe point stand side by side: then both are about the same moment.
    """

    def __init__(self, look: Callable[[float, State], None]) -> None:
        self._look, self._taken = look, 0
        self._together: dict[type, Any] = {}

    def __call__(self, step: Step) -> None:
        """See a step of the conversation."""
        if not isinstance(step, Progress | Checkpoint):
            self._together.clear()
            return
        self._together[type(step)] = step
        if len(self._together) < 2:
            return
        progress, safe = self._together[Progress], self._together[Checkpoint]
        self._together.clear()
        due = progress.done * LOOKS // max(1, progress.total)
        if self._taken < due < LOOKS:
            self._taken = due
            self._look(progress.done / progress.total, safe.state)


def watched(
    talk: Conversation[State], clock: Clock, settled: Callable[[], None], see: Callable[[Step], None]
) -> Conversation[State]:
    """The same conversation; the coordinator's work in it is timed, and each of its steps seen."""
    replies: Replies | None = None
    try:
        while True:
            start = time.perf_counter()
            try:
                step = talk.send(replies)  # type: ignore[arg-type]
            except StopIteration as end:
                result: State = end.value
                return result
            finally:
                settled()
                clock.coordinator += time.perf_counter() - start
            see(step)
            replies = yield step
    finally:
        talk.close()


def length(config: Any) -> float:
    """Rounds of a training: of GDTS's averages, or else epochs."""
    if isinstance(config, GDTSConfig):
        return config.rounds if config.mode == "fl" else config.ctgan.epochs
    return float(config.epochs)


def distances(real: pd.DataFrame, drawn: pd.DataFrame) -> dict[str, float | None]:
    """Average JSD and average WD, as `silosynth.evaluate` has them; None where no column is of that kind."""
    coded = code_tables({"training": real, "synthetic": drawn})
    a, b = (Dealt(coded[name], np.zeros(len(coded[name]), np.int64), 1) for name in ("training", "synthetic"))
    fields = a.table.fields
    words = [j for j, field in enumerate(fields) if field.categorical]
    numbers = [j for j, field in enumerate(fields) if not field.categorical and not a.table.missing(j).all()]
    js = marginals(a, b).js[0, words]
    wd = [wasserstein(a, b, a.table.values[j], j)[0] for j in numbers]
    return {"JSD": float(js.mean()) if words else None, "WD": float(np.mean(wd)) if wd else None}
