"""What the papers' experiments share: tables and splits, one setting in, one row of figures out.

An experiment is a tuple of settings. Each is trained on each table, once per repeat; a repeat has its own seed, for the
split, the division of columns, the training and the evaluation.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from silosynth import __version__, api, datasets
from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError, DataError, UnavailableError
from silosynth.evaluation import Report

Fit = Callable[..., Any]  # as `silosynth.fit`
Silos = dict[str, list[str]]
Row = dict[str, Any]
Tell = Callable[[str, float], None]  # the stage, and the share of a row's work that is done

HOLDOUT = 0.2  # the papers on tabular GANs hold a fifth out; this one does not say
BATCH = 500  # of the paper's public code; smaller tables are one batch
NAMES_OF_PEOPLE = ("surname",)
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


@dataclass(frozen=True, eq=False)
class Split:
    """A table's training and hold-out rows."""

    train: pd.DataFrame
    holdout: pd.DataFrame
    target: str
    kinds: Mapping[str, str]  # declared column kinds

    @property
    def columns(self) -> list[str]:
        """All columns, in file order."""
        return list(self.train.columns)


@dataclass(frozen=True)
class Setting:
    """One line of a paper's table: who holds what, and the algorithm's options."""

    labels: Mapping[str, str | int]
    divide: Callable[[Split, int], Silos]  # (split, seed) -> silos
    options: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = "vtgan"


@dataclass(frozen=True)
class Experiment:
    """A paper's table."""

    name: str
    title: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Job:
    """One row that is to be computed."""

    setting: Setting
    table: str
    sizes: Sizes
    seed: int

    @property
    def identity(self) -> Row:
        """Everything that decides the figures: a row with the same identity is not computed again."""
        sizes = {"rows": self.sizes.rows, "epochs": self.sizes.epochs, "seed": self.seed, "version": __version__}
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
        Job(setting, table, sizes, sizes.seed + repeat)
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


def load(name: str, rows: int | None, seed: int) -> Split:
    """A data set by name ("demo": the one that needs no network), stratified by its target into two parts.

    Identifiers and names of people are left out: nobody synthesises these.

    Raises:
        DataError: there is no such data set, or its target is a number.
        UnavailableError: it is not on this machine and cannot be fetched.
    """
    if name == "demo":
        demo = datasets.demo()
        return split(demo.frame, demo.target, {}, rows, seed)
    try:
        frame, info = datasets.load(name, return_info=True)
    except UnavailableError as error:
        remedy = f"{error.remedy} Or take the table 'demo', which needs no network."
        raise UnavailableError(error.rule, error.value, remedy) from error
    if info.task == "regression":
        raise DataError("The papers' experiments need a table with classes to predict", name, "Choose another one.")
    dropped = {*NAMES_OF_PEOPLE, *(column for column, kind in info.kinds.items() if kind == "identifier")}
    kinds = {column: kind for column, kind in info.kinds.items() if column not in dropped}
    return split(frame.drop(columns=[*dropped], errors="ignore"), info.target, kinds, rows, seed)


def split(frame: pd.DataFrame, target: str, kinds: Mapping[str, str], rows: int | None, seed: int) -> Split:
    """``rows`` random rows, of each class a fifth held out.

    Raises:
        DataError: too few rows for two parts.
    """
    order = np.random.default_rng(seed).permutation(len(frame))
    shuffled = frame.iloc[order]
    if rows is not None and rows < len(frame):
        shuffled = shuffled[_evenly(shuffled[target], rows / len(frame))]
    held = _evenly(shuffled[target], HOLDOUT)
    if min(held.sum(), (~held).sum()) < 2:
        raise DataError("Training and hold-out need two rows each", len(shuffled), "Ask for more rows.")
    train, holdout = (part.reset_index(drop=True) for part in (shuffled[~held], shuffled[held]))
    return Split(train, holdout, target, kinds)


def _evenly(classes: pd.Series[Any], share: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Marks that share of every class: of the rows sorted by class, each where the running share passes a whole."""
    codes = pd.factorize(classes, use_na_sentinel=False)[0]
    place = np.empty(len(codes), np.int64)
    place[np.argsort(codes, kind="stable")] = np.arange(len(codes))
    return np.asarray(np.floor((place + 1) * share + 1e-9) > np.floor(place * share + 1e-9))


def measure(job: Job, data: Split, fit: Fit | None = None, tell: Tell = lambda stage, share: None) -> Row:
    """Train one setting on one table, sample as many rows as it was trained on, and compare them.

    Bytes are those of all messages of the training; a baseline that pools all columns has none. Seconds are those of
    the training.
    """
    silos = job.setting.divide(data, job.seed)
    start = time.perf_counter()
    model = train(job, data, silos, fit, lambda stage, share: tell(stage, TRAINING * share))
    seconds, sent = time.perf_counter() - start, sum(record["bytes"] for record in model.ledger)
    tell("evaluating", TRAINING)
    synthetic = model.sample(len(data.train), seed=job.seed)
    report = api.evaluate(
        data.train, data.holdout, synthetic, data.target, silos, job.seed, figures="gan",
        progress=lambda stage, share: tell("evaluating", TRAINING + (1 - TRAINING) * share),
    )  # fmt: skip
    cost = {"seconds": seconds, "bytes": None if _central(job.setting) else sent}
    return {**job.identity, **{name: _value(report, score) for name, score in FIGURES.items()}, **cost, **_more(report)}


def train(job: Job, data: Split, silos: Silos, fit: Fit | None, tell: Tell) -> Any:
    """Fit the setting's model. What a stopped training leaves goes with it: a row is computed as a whole."""
    federation = api.simulate(data.train, silos, data.kinds)
    if _central(job.setting):
        federation = federation.central()
    options = {"epochs": job.sizes.epochs, "batch": min(BATCH, federation.rows), **job.setting.options}
    with tempfile.TemporaryDirectory(prefix="silosynth-bench-") as folder:
        return (fit or api.fit)(
            job.setting.algorithm, federation, preset="paper", seed=job.seed, options=options, folder=folder,
            progress=lambda progress: tell(progress.stage, _share(progress)),
        )  # fmt: skip


def _central(setting: Setting) -> bool:
    return setting.algorithm != "vtgan"


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
    for number, job in enumerate(pending):
        title = f"{number + 1}/{len(pending)} {job.title}"
        tell(title, number / len(pending))

        def inner(stage: str, share: float, title: str = title, number: int = number) -> None:
            tell(f"{title}: {stage}", (number + share) / len(pending))

        yield measure(job, split_of(job), fit, inner)
