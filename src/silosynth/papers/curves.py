"""Figures along a training: taken, read off at equal times, and drawn as lines over rounds and over time.

`fit` is `silosynth.fit` to the last bit, with silos asked one after the other. A look draws a table from the model as
it is, where the conversation reports progress and a safe point to stop, and its time is not counted.

Time is counted twice: all work added up, which is the wall clock of this machine where it does one thing at a time; and
the critical path, on which only the slowest silo of each exchange counts, as if every silo had a machine of its own.
Messages take no time on their way, but are encoded and decoded.

A curve is a row's list of looks: round, seconds in both counts, JSD and WD, and F1 where it is asked for. Lines are
means over seeds, whose looks come at the same rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

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
from silosynth.papers import drawings
from silosynth.papers.drawings import Panel
from silosynth.papers.experiment import Row
from silosynth.papers.results import average, spread, table
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import Link, Received, resolve_device
from silosynth.simulation.federation import Federation
from silosynth.simulation.model import Model
from silosynth.simulation.silos import InProcess, make_parties

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = {"round": "round", "seconds": "s, silos in turn", "side by side": "s, silos side by side"}
CLOCKS = ("seconds", "side by side")
Published = Mapping[str, Mapping[str, tuple[float, ...]]]  # table -> setting -> JSD, WD and F1 lost
FIGURES = {"JSD": "Avg-JSD", "WD": "Avg-WD", "F1": "F1 lost"}  # the last one where it is asked for
SIZES = ("silos", "gan", "rate", "rows", "epochs", "version")


def mean_curves(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Table (with its rows, if sizes differ) -> setting -> looks: means over the rows that have it, and deviations."""
    curves: dict[str, dict[str, list[list[Row]]]] = {}
    for row in rows:
        if row.get("curve"):
            curves.setdefault(_place(row, rows), {}).setdefault(_name(row, rows), []).append(row["curve"])
    return {
        table: {name: [_mean(looks) for looks in zip(*own, strict=False)] for name, own in settings.items()}
        for table, settings in curves.items()
    }


def at_equal_time(rows: Sequence[Row], until: str) -> list[list[str]]:
    """Per table and setting: figures of the last look until the setting ``until`` ends, by both counts of time."""
    ends = {_run(row): row for row in rows if row.get("curve") and row["setting"] == until}
    reads: dict[tuple[str, str], list[Row]] = {}
    figures = taken(rows)
    for row in rows:
        end = ends.get(_run(row))
        if end is not None and row.get("curve"):
            read = {f"{clock} {k}": v for clock in CLOCKS for k, v in _until(row, clock, end[clock], figures).items()}
            reads.setdefault((_place(row, rows), _name(row, rows)), []).append(read)
    keys = [f"{clock} {figure}" for clock in CLOCKS for figure in figures]
    return [[*where, *(_shown(average([read[key] for read in own])) for key in keys)] for where, own in reads.items()]


def taken(rows: Sequence[Row]) -> list[str]:
    """The figures that looks of these rows have."""
    return [key for key in FIGURES if any(key in look for row in rows for look in row.get("curve") or ())]


def paragraphs(rows: Sequence[Row], page: Path, until: str, published: Published = MappingProxyType({})) -> list[str]:
    """Draw the curves beside a page, and describe them for it; nothing where no row has a curve.

    What is ``published`` of the tables that are there stands below, as it was read when the setting ``until`` ends.
    """
    curves = mean_curves(rows)
    if not curves:
        return []
    keys = taken(rows)
    heads = ["table", "setting", *(f"{FIGURES[key]}, {AXES[clock]}" for clock in CLOCKS for key in keys)]
    equal = at_equal_time(rows, until)
    at_end = [f"## When {until!r} ends", "As the paper reads its figures off; blank: no look until then."]
    along = [
        [name, setting, f"{look['round']:.1f}", *(_shown(look.get(key)) for key in (*CLOCKS, *keys))]
        for name, settings in curves.items()
        for setting, looks in settings.items()
        for look in looks
    ]
    beside = [
        [name, setting, *(f"{value:.3f}" for value in figures)]
        for name in dict.fromkeys(row["table"] for row in rows)
        for setting, figures in published.get(name, {}).items()
    ]
    theirs = [
        "## Published",
        "By the clock of the paper's machines.",
        table(["table", "setting", *FIGURES.values()], beside),
    ]
    return [
        *([*at_end, table(heads, equal)] if equal else []),
        *(theirs if beside else []),
        "## Along the training",
        "A round ends with an average of models; where nothing is averaged, a round is an epoch.",
        *drawings.written(page, figure(curves), "Figures along the training"),
        table(["table", "setting", *AXES.values(), *(FIGURES[key] for key in keys)], along),
    ]


def figure(curves: dict[str, dict[str, list[Row]]]) -> Figure:
    """Below each other the tables' figures, beside each other rounds and both counts of time."""
    return drawings.drawn([
        [
            Panel(
                "" if i else f"{name}: {FIGURES[key]}", unit,
                {setting: [(look[axis], look[key], look["spread"].get(key) or 0.0) for look in looks
                           if look.get(key) is not None]
                 for setting, looks in settings.items()},
            )
            for i, (axis, unit) in enumerate(AXES.items())
        ]
        for name, settings in curves.items()
        for key in FIGURES
        if any(look.get(key) is not None for looks in settings.values() for look in looks)
    ])  # fmt: skip


def _run(row: Row) -> tuple[Any, ...]:
    """What rows of one table and seed have in common."""
    return tuple((key, row.get(key)) for key in ("table", "seed", *SIZES) if key not in ("gan", "rate"))


def _place(row: Row, rows: Sequence[Row]) -> str:
    """The table, with the number of its rows where that is not the same in all."""
    alike = len({other.get("rows") for other in rows}) == 1
    return str(row["table"]) if alike else f"{row['table']}, {row['rows']} rows"


def _name(row: Row, rows: Sequence[Row]) -> str:
    """The setting, with the sizes that tell rows of it apart, but for the number of rows."""
    own = [other for other in rows if _place(other, rows) == _place(row, rows)]
    sizes = [key for key in SIZES if len({other.get(key) for other in own}) > 1]
    said = [key for key in sizes if row.get(key) not in (None, "")]
    named = (f"rate {row[key]}" if key == "rate" else f"{row[key]} {key}" for key in said)
    return ", ".join([str(row["setting"]), *named])


def _until(row: Row, clock: str, end: float, keys: Sequence[str]) -> Row:
    looks = [look for look in row["curve"] if look[clock] <= end * (1 + 1e-9)]
    return {key: looks[-1].get(key) if looks else None for key in keys}


def _mean(looks: Sequence[Row]) -> Row:
    values = {key: [look.get(key) for look in looks] for key in looks[0]}
    return {**{key: average(own) for key, own in values.items()}, "spread": {k: spread(v) for k, v in values.items()}}


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:,.1f}"


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
    parties = make_parties(entry, config, federation, streams, device)

    def model(state: State) -> Model:
        """The model where the training is now."""
        parts = {silo: party.trained() for silo, party in parties.items()}
        return Model(
            algorithm=name, preset=preset, seed=seed, config=config, roster=federation.roster,
            columns=federation.columns, schemas=federation.schemas, flavour=federation.flavour, coordinator=state,
            parts=parts, rows=federation.rows, ledger=ledger.entries(), device=device,
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
