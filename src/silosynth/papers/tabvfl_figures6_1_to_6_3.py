"""TabVFL's figures 6.1 to 6.3: the loss, and F1 of held-out rows, along the fine-tuning of four designs.

60 epochs, no early stopping. After each epoch the network's own predictions of rows that it was not trained on are
scored; F1 is weighted by classes' shares, as in `silosynth.papers.tabvfl_figure5`, whose tables and designs these are.
Figure 6.3 shows both curves together, as does the drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from sklearn.metrics import f1_score

from silosynth.algorithms.tabvfl.networks import fit_label
from silosynth.algorithms.tabvfl.options import FINETUNING
from silosynth.catalog import algorithm
from silosynth.core.conversation import Checkpoint, Conversation, Progress, State, Step
from silosynth.core.streams import Streams
from silosynth.papers import curves, drawings, experiment, results, tabvfl_figure5
from silosynth.papers.drawings import Panel
from silosynth.papers.experiment import Ask, Options, PaperExperiment, Repeats, Row, Section, Seed, Tell
from silosynth.papers.tabvfl_figure5 import TABLES, Batch, Epochs, GuestTable, LatentsJob, Preset, RowCount, TableNames
from silosynth.runtime.driver import drive
from silosynth.runtime.ledger import Ledger
from silosynth.runtime.link import resolve_device
from silosynth.simulation.federation import Federation
from silosynth.simulation.representation import Representation, read_labels
from silosynth.simulation.silos import InProcess, make_parties

TUNED = tuple(name for name in tabvfl_figure5.METHODS if name != "without-finetuning")
DESIGNS = ("ct", "lt", "tabvfl-le", "tabvfl")
FIGURES = {"loss": "loss", "F1": "F1 of held-out rows"}
HEADS = ("table", "guests", "method", "seeds", "epoch", *FIGURES.values())
SHOWN = 6  # epochs of a curve that the table shows, the last one among them
KEPT = {"rows": 3000, "repeats": 3, "batch": 256, "options": (("rate", 0.01), ("shuffle", True))}
LEGEND = (
    "After epochs of fine-tuning: the mean loss of the epoch's batches; and F1, weighted by classes' shares, of the "
    "network's own predictions of 15 % of the rows, which no phase was trained on."
)


def jobs(
    tables: TableNames = ("bank_marketing",),
    methods: Annotated[
        Sequence[str], Ask(f"One of {', '.join(tabvfl_figure5.METHODS)}.", ("--method", "-m"))
    ] = DESIGNS,
    guests: Annotated[int, Ask("How many silos.", ("--guests", "-g"), 2)] = 5,
    rows: RowCount = 2000,
    epochs: Epochs = 60,
    batch: Batch = None,
    preset: Preset = "paper",
    options: Options = (),
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[LatentsJob]:
    """All trainings, table by table, without early stopping.

    Raises:
        ConfigError: there is no such table or method, or one that is not fine-tuned.
    """
    experiment.check_known("method", methods, TUNED)
    return [
        replace(job, options=(("validation", 0.0), *job.options))
        for job in tabvfl_figure5.jobs(
            tables, methods, (guests,), rows, epochs, batch, preset, options, repeats, seed
        )
    ]  # fmt: skip


@dataclass
class Curve:
    """What is seen of a conversation: after each epoch of fine-tuning its loss, and the F1 that ``score`` gives."""

    score: Callable[[State], float]
    points: list[dict[str, float]] = field(default_factory=list)
    _last: Progress | None = None

    def __call__(self, step: Step) -> None:
        """See a step: a safe point follows the progress that it belongs to."""
        if isinstance(step, Progress) and step.stage == FINETUNING and step.figures:
            self._last = step
        elif isinstance(step, Checkpoint) and self._last is not None:
            self.take(step.state["host"])

    def take(self, host: State) -> None:
        """The point of the epoch whose progress was seen last."""
        assert self._last is not None
        point = {"epoch": self._last.done, "loss": self._last.figures["loss"], "F1": self.score(host)}
        self.points.append(point)
        self._last = None


@dataclass(frozen=True)
class WatchedTraining:
    """A representation's ledger, and the curve of its training."""

    ledger: list[dict[str, Any]]
    points: list[dict[str, float]]


def watch(
    task: GuestTable, name: str, federation: Federation, *, preset: str, seed: int, options: Mapping[str, Any],
    folder: Any = None, progress: Callable[[Progress], None] | None = None,
) -> WatchedTraining:  # fmt: skip
    """As `silosynth.represent`, in this process and without checkpoints, with a look after each epoch."""
    entry, device, streams = algorithm(name, "representation"), resolve_device("auto"), Streams(seed)
    config = entry.configure(preset, options)
    column, kind = read_labels(task.label(task.train))
    target = fit_label(column, kind)
    parties = make_parties(entry, config, federation, streams, device)
    told: dict[str, Any] = {}

    def score(host: State) -> float:
        made = Representation(
            algorithm=name, preset=preset, seed=seed, config=config, roster=federation.roster,
            schemas=federation.schemas, label=target, rows=federation.rows, device=device,
            coordinator={**told, "host": host}, parts={silo: party.trained() for silo, party in parties.items()},
        )  # fmt: skip
        return weighted_f1(made, task)

    def start(state: State | None) -> Conversation[State]:
        talk = entry.coordinate(
            federation.roster, config, target.labels(column), streams.child("coordinator"), device, state
        )
        return curves.watched(talk, curves.Clock(), lambda: None, see)

    def see(step: Step) -> None:
        if isinstance(step, Checkpoint):
            told.update({key: step.state[key] for key in ("rows", "widths", "classes")})
        curve(step)

    curve, ledger = Curve(score), Ledger()
    with InProcess(parties) as link:
        trained = drive(start, link, ledger, watch=progress)
    curve.take(trained["host"])
    return WatchedTraining(ledger.entries(), curve.points)


def weighted_f1(made: Representation, task: GuestTable) -> float:
    """Of the predictions of test rows, classes weighted by their shares."""
    predicted: pd.Series[Any] = made.predict(made.federation(task.frame.iloc[task.test]))
    return float(f1_score(task.label(task.test), predicted.astype(str), average="weighted", zero_division=0))


def measure(job: LatentsJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train, and keep the curve."""
    task = tabvfl_figure5.load(job.table, job.guests, job.rows, job.seed)
    federation = task.federation(task.train)
    federation = federation.central() if job.method == "ct" else federation
    made, costs = experiment.train(
        "tabvfl", federation, job.preset, job.seed, job.configured, tell, partial(watch, task)
    )
    last = made.points[-1]
    return {**job.identity, **{name: last[name] for name in FIGURES}, **costs, "curve": made.points}


def mean_curves(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Table -> method -> points, means over seeds; with their deviations, and how many there are."""
    found: dict[str, dict[str, list[list[Row]]]] = {}
    for row in rows:
        found.setdefault(row["table"], {}).setdefault(row["method"], []).append(row["curve"])
    return {
        table: {
            method: [
                {
                    **{key: results.average([point[key] for point in points]) for key in points[0]},
                    "spread": {key: results.spread([point[key] for point in points]) for key in FIGURES},
                    "seeds": len(own),
                }
                for points in zip(*own, strict=False)
            ]
            for method, own in methods.items()
        }
        for table, methods in found.items()
    }


def sections(rows: Sequence[Row]) -> list[Section]:
    """One for each way to train: some epochs of each curve."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(tabvfl_figure5.heading(row), []).append(row)
    return [(heading, HEADS, list(_lines(own))) for heading, own in parts.items()]


def _lines(rows: Sequence[Row]) -> Sequence[list[str]]:
    guests = {row["method"]: "" if row["method"] == "ct" else str(row["guests"]) for row in rows}
    found = mean_curves(results.in_order(rows, "table", "method", table=TABLES, method=DESIGNS))
    return [
        [table, guests[method], method, str(point["seeds"]), f"{point['epoch']:.0f}",
         *(f"{point[key]:.3f}{results.deviation(point, key)}" for key in FIGURES)]
        for table, methods in found.items()
        for method, points in methods.items()
        for point in points[(len(points) - 1) % -(-len(points) // SHOWN) :: -(-len(points) // SHOWN)]
    ]  # fmt: skip


def pictures(rows: Sequence[Row], page: Path) -> list[str]:
    """Loss and F1 beside each other, a line for each table."""
    lines = [
        [
            Panel(f"{table}: {what}", "epoch of fine-tuning",
                  {method: [(point["epoch"], point[key], point["spread"][key] or 0.0) for point in points]
                   for method, points in own.items()},
                  zero=False)
            for key, what in FIGURES.items()
        ]
        for table, own in mean_curves(rows).items()
    ]  # fmt: skip
    return drawings.beside(page, lines, "Loss and F1 along fine-tuning")


def line(row: Row) -> str:
    """Where a curve ends."""
    end = ", ".join(f"{name} {row[name]:.3f}" for name in FIGURES)
    return f"{row['table']} · {row['method']} · seed {row['seed']}: {end} after {len(row['curve'])} epochs"


EXPERIMENT = PaperExperiment(
    "fine-tuning", "Loss and F1 along fine-tuning (TabVFL, figures 6.1 to 6.3)", LEGEND, jobs, measure, sections,
    small={"rows": 600, "epochs": 4, "batch": 64}, kept=({"tables": ("bank_marketing",), **KEPT},),
    published={"tables": TABLES, "rows": 50_000, "repeats": 3}, line=line, pictures=pictures,
    example="--table airline_satisfaction --method tabvfl --epochs 20",
    figures=experiment.named(*FIGURES),
)  # fmt: skip
