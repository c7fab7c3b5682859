"""What the papers' experiments share: one setting and one table in, one row of figures out.

An experiment is a tuple of settings. Each is trained on each table, once per repeat; a repeat has its own seed, for the
split, the division of columns, the training and the evaluation.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from silosynth import catalog
from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError
from silosynth.core.version import VERSION
from silosynth.evaluation import Report, evaluate
from silosynth.papers import watching
from silosynth.papers.tables import Split, load
from silosynth.simulation import training as api
from silosynth.simulation.federation import simulate
from silosynth.simulation.pace import seconds_of

Fit = Callable[..., Any]  # as `silosynth.fit`
Silos = dict[str, list[str]]
Rows = dict[str, list[int]]
Row = dict[str, Any]
Tell = Callable[[str, float], None]  # the stage, and the share of a row's work that is done

BATCH = 500  # of the paper's public code; smaller tables are one batch
TRAINING = 0.85  # share of a row's work that training is taken for, in progress bars
FIGURES = {  # a row's column -> the report's score
    "accuracy": "gan_accuracy_difference",
    "F1": "gan_f1_difference",
    "AUC": "gan_auc_difference",
    "JSD": "gan_jsd",
    "WD": "gan_wasserstein",
    "diff. corr.": "gan_correlation",
    "avg-client": "gan_correlation_avg_client",
    "across-client": "gan_correlation_across_client",
}
SHOWN = {"gan": tuple(FIGURES), "gdts": ("F1", "JSD", "WD")}  # a paper's figures -> those of a row
LEGEND = (
    "Accuracy, F1 and AUC: what classifiers lose by learning from synthetic rows, averaged over five. JSD and WD are "
    "mean distances of columns, the next three norms of correlation differences. 0 is best for all. MB are those "
    "of all messages of the training."
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is computed.

    Attributes:
        tables: names of data sets, or "demo".
        rows: of each table, training and hold-out together; None for all.
        epochs: of every training.
        repeats: how often, with the seeds ``seed``, ``seed`` + 1, …
    """

    tables: tuple[str, ...] = ("loan",)
    rows: int | None = 1500
    epochs: int = 10
    repeats: int = 1
    seed: int = 0


SMALL = Sizes()
PAPER = Sizes(
    ("adult", "covertype_50k", "intrusion_nsl_kdd_20pct", "creditcard_sample", "loan"), rows=None, epochs=300, repeats=3
)  # section 4.1; the tables' own notes say how they differ from the paper's samples


def plain(epochs: int, rows: int) -> dict[str, Any]:
    """Options that say so many epochs, for silos of so many rows at least."""
    return {"epochs": epochs, "batch": min(BATCH, rows)}


@dataclass(frozen=True)
class Setting:
    """One line of a paper's table: who holds what, and the algorithm's options.

    Attributes:
        divide: (split, seed) -> what each silo holds: names of columns, or (``by`` "rows") positions of rows.
        sized: (epochs, rows of the smallest silo) -> options that follow from sizes; ``options`` have precedence.
        watched: whether the model is looked at along the training, and silos train one after the other: see `watching`.
    """

    labels: Mapping[str, str | int]
    divide: Callable[[Split, int], Silos | Rows]
    options: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = "vtgan"
    preset: str = "paper"
    by: Literal["columns", "rows"] = "columns"
    sized: Callable[[int, int], Mapping[str, Any]] = plain
    watched: bool = False

    @property
    def central(self) -> bool:
        """Whether it is a baseline that has everything in one place."""
        return catalog.algorithm(self.algorithm).central


@dataclass(frozen=True)
class Experiment:
    """A paper's table.

    Attributes:
        figures: which paper's; see `SHOWN`.
        paper: its sizes.
        legend: what its figures mean.
        until: the setting at whose end the paper reads off all figures; "" for each at its own end.
    """

    name: str
    title: str
    settings: tuple[Setting, ...]
    figures: Literal["gan", "gdts"] = "gan"
    paper: Sizes = PAPER
    legend: str = LEGEND
    until: str = ""


@dataclass(frozen=True)
class Job:
    """One row that is to be computed."""

    setting: Setting
    table: str
    sizes: Sizes
    seed: int
    figures: Literal["gan", "gdts"] = "gan"

    @property
    def identity(self) -> Row:
        """Everything that decides the figures: a row with the same identity is not computed again."""
        sizes = {"rows": self.sizes.rows, "epochs": self.sizes.epochs, "seed": self.seed, "version": VERSION}
        return {"table": self.table, **self.setting.labels, **sizes}

    @property
    def title(self) -> str:
        """For people who wait for it."""
        return " · ".join([self.table, *map(str, self.setting.labels.values()), f"seed {self.seed}"])


def jobs(experiment: Experiment, sizes: Sizes) -> list[Job]:
    """All rows, table by table and repeat by repeat.

    Raises:
        ConfigError: a size is not a positive number, or there is no table.
    """
    for name in ("rows", "epochs", "repeats"):
        value = getattr(sizes, name)
        if value is not None and value < 1:
            raise ConfigError(f"The number of {name} must be at least 1", value)
    if not sizes.tables:
        raise ConfigError("An experiment needs at least one table", sizes.tables)
    return [
        Job(setting, table, sizes, sizes.seed + repeat, experiment.figures)
        for table in dict.fromkeys(sizes.tables)
        for repeat in range(sizes.repeats)
        for setting in experiment.settings
    ]


def splits() -> Callable[[Job], Split]:
    """A function that loads and splits a job's table, and keeps the last one: jobs of a table follow one another."""
    last: dict[tuple[Any, ...], Split] = {}

    def of(job: Job) -> Split:
        key = (job.table, job.sizes.rows, job.seed)
        if key not in last:
            last.clear()
            last[key] = load(job.table, job.sizes.rows, job.seed)
        return last[key]

    return of


def measure(job: Job, data: Split, fit: Fit | None = None, tell: Tell = lambda stage, share: None) -> Row:
    """Train one setting on one table, sample as many rows as it was trained on, and compare them.

    Bytes are those of all messages of the training; a baseline that pools all columns has none. Seconds are those of
    the training.
    """
    setting, held = job.setting, job.setting.divide(data, job.seed)
    start = time.perf_counter()
    model = train(job, data, held, fit, lambda stage, share: tell(stage, TRAINING * share))
    seconds, sent = time.perf_counter() - start, sum(record["bytes"] for record in model.ledger)
    tell("evaluating", TRAINING)
    synthetic = model.sample(len(data.train), seed=job.seed)
    report = evaluate(
        data.train, data.holdout, synthetic, data.target, _columns(setting, held), job.seed, figures=job.figures,
        progress=lambda stage, share: tell("evaluating", TRAINING + (1 - TRAINING) * share),
    )  # fmt: skip
    cost = {"seconds": seconds, "bytes": None if setting.central else sent}
    cost |= model.beside if isinstance(model, watching.Watched) else {}
    return {
        **job.identity,
        **{name: _value(report, FIGURES[name]) for name in SHOWN[job.figures]},
        **cost,
        **_more(report),
    }


def train(job: Job, data: Split, held: Mapping[str, Sequence[Any]], fit: Fit | None, tell: Tell) -> Any:
    """Fit the setting's model. What a stopped training leaves goes with it: a row is computed as a whole."""
    setting = job.setting
    federation = simulate(data.train, _columns(setting, held), data.kinds, held if setting.by == "rows" else None)
    if setting.central:
        federation = federation.central()
    options = {**setting.sized(job.sizes.epochs, min(map(len, federation.tables.values()))), **setting.options}
    usual = partial(watching.fit, real=data.train) if setting.watched else api.fit
    with tempfile.TemporaryDirectory(prefix="silosynth-bench-") as folder:
        return (fit or usual)(
            setting.algorithm, federation, preset=setting.preset, seed=job.seed, options=options, folder=folder,
            progress=lambda progress: tell(progress.stage, _share(progress)),
        )  # fmt: skip


def _columns(setting: Setting, held: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[str]] | None:
    """Columns by silo; None where silos hold rows."""
    return held if setting.by == "columns" else None


def _share(progress: Progress) -> float:
    return progress.done / max(1, progress.total)


def _value(report: Report, name: str) -> float | None:
    """A score's value; None where it could not be computed."""
    return next((score.value for score in report.scores if score.name == name), None)


def _more(report: Report) -> Row:
    """What files keep beside a row's figures: all scores with floors and intervals, and why some are absent."""
    scores = {s.name: {"value": s.value, "floor": s.floor, "low": s.low, "high": s.high} for s in report.scores}
    return {"scores": scores, "skipped": {s.name: s.why for s in report.skipped}}


def each(pending: list[Job], fit: Fit | None = None, tell: Tell = lambda stage, share: None) -> Iterator[Row]:
    """The rows, one after the other."""
    split_of = splits()
    yield from in_turn(lambda job, inner: measure(job, split_of(job), fit, inner), pending, tell)


def in_turn(
    measure: Callable[[Any, Tell], Row], pending: Sequence[Any], tell: Tell = lambda stage, share: None
) -> Iterator[Row]:
    """The rows of jobs, one after the other; ``tell`` hears which one it is, and the share of all that is done."""
    for number, job in enumerate(pending):
        title = f"{number + 1}/{len(pending)} {job.title}"
        tell(title, number / len(pending))

        def inner(stage: str, share: float, title: str = title, number: int = number) -> None:
            tell(f"{title}: {stage}", (number + share) / len(pending))

        yield measure(job, inner)


def expected(pending: list[Job], fit: Fit | None = None, seconds: float = 15.0) -> float:
    """About how many seconds these rows take, from the pace of the first training of each table, stopped early."""
    pace: dict[str, float] = {}
    split_of = splits()
    for job in pending:
        if job.table not in pace:
            data = split_of(job)
            held = job.setting.divide(data, job.seed)
            pace[job.table] = seconds_of(partial(train, job, data, held, fit), seconds)
    return sum(pace[job.table] for job in pending) / TRAINING
