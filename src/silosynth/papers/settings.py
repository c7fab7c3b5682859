"""VT-GAN's and GDTS's experiments: settings that are each trained on each table, once per repeat, and compared.

A repeat has its own seed, for the split, the division of columns, the training and the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd

from silosynth.core.version import VERSION
from silosynth.evaluation import Report, evaluate
from silosynth.papers import curves, drawings, experiment, results, tables
from silosynth.papers.experiment import TRAINING, Ask, PaperExperiment, Repeats, Row, Section, Seed, Tell
from silosynth.runtime.progress import seconds_of
from silosynth.simulation.federation import simulate

Fit = Callable[..., Any]  # as `silosynth.fit`
Load = Callable[[str, int | None, int], tables.TableSplit]  # (table, rows, seed) -> its rows
Columns = dict[str, list[str]]
Rows = dict[str, list[int]]

BATCH = 500  # of VT-GAN's public code; smaller tables are one batch
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
ATTACK = "attack AUC"  # a figure beside those, of some experiments
COSTS = ("seconds", "side by side", "bytes")
HEADS = {
    "diff. corr.": "Diff.Corr", "avg-client": "Avg-cl.", "across-client": "Across-cl.", "seconds": "s",
    "side by side": "s side by side", "bytes": "MB",
}  # fmt: skip
SHOWN = {"gan": tuple(FIGURES), "gdts": ("F1", "JSD", "WD")}  # a paper's figures -> those of a row
LEGEND = (
    "Accuracy, F1 and AUC: what classifiers lose by learning from synthetic rows, averaged over five. JSD and WD are "
    "mean distances of columns, the next three norms of correlation differences. 0 is best for all. MB are those "
    "of all messages of the training."
)
PAPER = {  # VT-GAN, section 4.1; the tables' own notes say how they differ from the paper's samples
    "tables": ("adult", "covertype_50k", "intrusion_nsl_kdd_20pct", "creditcard_sample", "loan"),
    "rows": None, "epochs": 300, "repeats": 3,
}  # fmt: skip

QUICKLY: Mapping[str, Any] = {"rate": 1e-3, "betas": (0.0, 0.99), "average": 0.99}  # as our presets have it
QUICK_BATCH = 100
KEPT = ({"tables": ("loan",), "rows": 1500, "epochs": 10, "trained": "quickly", "repeats": 3},)

TableNames = Annotated[Sequence[str], Ask("A data set, or demo, which needs no network.", ("--table", "-t"))]
RowCount = Annotated[int | None, Ask("Rows of each table, a fifth of them held out.", least=1)]
Epochs = Annotated[int, Ask("Epochs of each training.", least=1)]
Partitions = Annotated[Sequence[str] | None, Ask("One of those compared; all if none is named.", ("--partition",))]
Trained = Annotated[
    Literal["published", "quickly"],
    Ask("How: published; or quickly, with our rate, betas and average, in batches of 100, for few epochs."),
]


def plain(epochs: int, rows: int, batch: int = BATCH) -> dict[str, Any]:
    """Options for this many epochs, in silos with at least this many rows."""
    return {"epochs": epochs, "batch": min(batch, rows)}


@dataclass(frozen=True)
class Setting:
    """One line of a paper's table: who holds what, and the algorithm's options.

    Attributes:
        divide: (split, seed) -> what each silo holds: names of columns, or (``by`` "rows") positions of rows.
        sized: (epochs, rows of the smallest silo) -> options that follow from sizes; ``options`` have precedence.
        watched: whether figures are taken along the training, with silos one after the other: see `fit`.
    """

    labels: Mapping[str, str | int]
    divide: Callable[[tables.TableSplit, int], Columns | Rows]
    options: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = "vtgan"
    preset: str = "paper"
    by: Literal["columns", "rows"] = "columns"
    sized: Callable[[int, int], Mapping[str, Any]] = plain
    watched: bool = False


def as_trained(how: str, setting: Setting) -> Setting:
    """The setting with a label for how it is trained, and (quickly) options of ours that need fewer steps."""
    labels = {**setting.labels, "trained": how}
    if how == "published":
        return replace(setting, labels=labels)
    return replace(
        setting, labels=labels, options={**QUICKLY, **setting.options}, sized=partial(plain, batch=QUICK_BATCH)
    )


@dataclass(frozen=True)
class SettingJob:
    """One setting on one table with one seed; ``load`` gives its rows.

    With ``f1_along`` what classifiers lose is among the figures along a watched training.
    """

    setting: Setting
    table: str
    rows: int | None
    epochs: int
    seed: int
    figures: Literal["gan", "gdts"] = "gan"
    load: Load = tables.load
    f1_along: bool = False

    @property
    def identity(self) -> Row:
        """Everything that decides the figures."""
        sizes = {"rows": self.rows, "epochs": self.epochs, "seed": self.seed, "version": VERSION}
        return {"table": self.table, **self.setting.labels, **sizes}

    @property
    def title(self) -> str:
        """What progress calls it."""
        return " · ".join([self.table, *map(str, self.setting.labels.values()), f"seed {self.seed}"])

    @property
    def split(self) -> tables.TableSplit:
        """Its rows; those of the last job are kept, for jobs of a table follow one another."""
        return _split(self.load, self.table, self.rows, self.seed)


Also = Callable[[SettingJob, tables.TableSplit, pd.DataFrame], Row]


@lru_cache(maxsize=1)
def _split(load: Load, table: str, rows: int | None, seed: int) -> tables.TableSplit:
    return load(table, rows, seed)


def jobs(
    settings: Sequence[Setting], tables: TableNames = ("loan",), rows: RowCount = 1500, epochs: Epochs = 10,
    trained: Trained = "published", partition: Partitions = None, repeats: Repeats = 1, seed: Seed = 0,
) -> list[SettingJob]:  # fmt: skip
    """VT-GAN's rows: `each` setting whose partition is named, trained in one of two ways.

    Raises:
        ConfigError: as `each`, or there is no such partition.
    """
    names = list(dict.fromkeys(str(one.labels["partition"]) for one in settings))
    experiment.check_known("partition", partition or names, names)
    chosen = [as_trained(trained, one) for one in settings if one.labels["partition"] in (partition or names)]
    return each(chosen, tables, rows, epochs, repeats, seed)


def each(
    settings: Sequence[Setting], tables: Sequence[str], rows: int | None, epochs: int, repeats: int, seed: int
) -> list[SettingJob]:
    """All rows, table by table and repeat by repeat.

    Raises:
        ConfigError: a size is not positive, or there is no table.
    """
    experiment.check_positive(rows=rows, epochs=epochs, repeats=repeats, tables=len(tables))
    return [
        SettingJob(setting, table, rows, epochs, seed + repeat)
        for table in dict.fromkeys(tables)
        for repeat in range(repeats)
        for setting in settings
    ]


def measure(
    job: SettingJob, tell: Tell = lambda stage, share: None, fit: Fit | None = None, also: Also | None = None
) -> Row:
    """Train one setting on one table, sample as many rows as it was trained on, and compare them.

    ``also`` gives further figures of the job, its rows and the synthetic ones.
    """
    setting, data = job.setting, job.split
    held = setting.divide(data, job.seed)
    model, costs = train(job, data, held, fit, tell)
    synthetic = model.sample(len(data.train), seed=job.seed)
    report = evaluate(
        data.train, data.holdout, synthetic, data.target, _columns(setting, held), job.seed, figures=job.figures,
        progress=lambda stage, share: tell("evaluating", TRAINING + (1 - TRAINING) * share),
    )  # fmt: skip
    return {
        **job.identity,
        **{name: _value(report, FIGURES[name]) for name in SHOWN[job.figures]},
        **(also(job, data, synthetic) if also is not None else {}),
        **costs,
        **(model.extra if isinstance(model, curves.Watched) else {}),
        **_details(report),
    }


def train(
    job: SettingJob, data: tables.TableSplit, held: Mapping[str, Sequence[Any]], fit: Fit | None, tell: Tell
) -> tuple[Any, Row]:
    """The setting's model, and what its training took."""
    setting = job.setting
    federation = simulate(data.train, _columns(setting, held), data.kinds, held if setting.by == "rows" else None)
    options = {**setting.sized(job.epochs, min(map(len, federation.tables.values()))), **setting.options}
    compare = partial(_figures_along, job, data) if job.f1_along else None
    usual = partial(curves.fit, real=data.train, compare=compare) if setting.watched else None
    return experiment.train(setting.algorithm, federation, setting.preset, job.seed, options, tell, fit or usual)


def _figures_along(
    job: SettingJob, data: tables.TableSplit, real: pd.DataFrame, drawn: pd.DataFrame
) -> dict[str, float | None]:
    """Of a look: JSD, WD, and what classifiers lose in F1."""
    report = evaluate(real, data.holdout, drawn, data.target, None, job.seed, figures="gdts")
    return {name: _value(report, FIGURES[name]) for name in curves.FIGURES}


def _columns(setting: Setting, held: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[str]] | None:
    """Columns by silo; None where silos hold rows."""
    return held if setting.by == "columns" else None


def _value(report: Report, name: str) -> float | None:
    """A score's value; None where it could not be computed."""
    return next((score.value for score in report.scores if score.name == name), None)


def _details(report: Report) -> Row:
    """What files keep beside a row's figures: all scores with floors and intervals, and why some are absent."""
    scores = {s.name: {"value": s.value, "floor": s.floor, "low": s.low, "high": s.high} for s in report.scores}
    return {"scores": scores, "skipped": {absent.name: absent.why for absent in report.skipped}}


def forecast(pending: Sequence[SettingJob], fit: Fit | None = None, seconds: float = 15.0) -> float:
    """About how many seconds these rows take, from the pace of a training of each table, stopped early.

    Privacy makes steps slower, so that trainings with it and without have each their own.
    """
    kinds = [(job.table, "dp" in job.setting.options) for job in pending]
    pace: dict[tuple[str, bool], float] = {}
    for kind, job in zip(kinds, pending, strict=True):
        if kind not in pace:
            data = job.split
            held = job.setting.divide(data, job.seed)
            pace[kind] = seconds_of(partial(train, job, data, held, fit), seconds)
    return sum(pace[kind] for kind in kinds)


def means(rows: Sequence[Row]) -> list[Row]:
    """The mean over repeats of each setting and table; with several tables also the mean over these.

    Tables are averaged over only for settings that every table has, in the same sizes.
    """
    figures = (*FIGURES, ATTACK, *COSTS)
    by_table = results.means(rows, figures)
    names = {row["table"] for row in by_table}
    if len(names) < 2:
        return by_table
    over = results.means([{**row, "tables": 1} for row in by_table], figures, ("table",), "tables")
    complete = [{**row, "spread": {}} for row in over if row["tables"] == len(names)]
    return by_table + [{"table": "mean", **{k: v for k, v in row.items() if k != "tables"}} for row in complete]


def sections(rows: Sequence[Row]) -> list[Section]:
    """One, whose heading has the sizes that all rows share; the others are columns."""
    if not rows:
        return []
    same = [key for key in ("rows", "epochs", "repeats", "version") if len({row.get(key) for row in rows}) == 1]
    keys = [key for key in rows[0] if key not in (*same, "spread", "lacking")]
    cells = [[_cell(row, key) for key in keys] for row in rows]
    heading = ", ".join(f"{results.shown(key, rows[0].get(key))} {key}" for key in same if key != "version")
    return [(heading.replace("1 repeats", "one repeat"), [HEADS.get(key, key) for key in keys], cells)]


def _cell(row: Row, key: str) -> str:
    """A value, with its spread where that is known."""
    return results.shown(key, row.get(key)) + (results.deviation(row, key) if key in (*FIGURES, ATTACK) else "")


def pictures(
    rows: Sequence[Row], page: Path, x: str, averaged: bool, joined: bool = False
) -> list[str]:  # fmt: skip
    """A panel for each figure over the label ``x``, and a line of panels for each partition if ``x`` is another label.

    With ``averaged``, as the paper shows them, means over tables alone where there are any.
    """
    found = means(rows)
    over = [row for row in found if row["table"] == "mean"]
    found = over if averaged and over else found
    labels = list(found[0])[1 : list(found[0]).index("rows")]
    others = [label for label in labels if label not in (x, "partition")]
    lines: list[list[drawings.Panel]] = []
    for part in [None] if x == "partition" else dict.fromkeys(row["partition"] for row in found):
        own = [row for row in found if part is None or row["partition"] == part]
        lines += drawings.wrapped(
            drawings.panels(
                own, {key: HEADS.get(key, key) for key in (*FIGURES, ATTACK)}, lambda row: row[x],
                lambda row: ", ".join(str(row[key]) for key in ("table", *others)), x, part or "", joined,
            ), 4,
        )  # fmt: skip
    return drawings.beside(page, lines, "Figures of each setting")


def line(row: Row) -> str:
    """A row for those who wait."""
    labels = [str(row[key]) for key in list(row)[: list(row).index("rows")]]
    figures = [f"{key} {results.shown(key, row[key])}" for key in (*FIGURES, "seconds", "side by side") if key in row]
    return f"{' · '.join(labels)} · seed {row['seed']}: {', '.join(figures)}"


def comparison(
    name: str, title: str, jobs: Callable[..., Sequence[SettingJob]], legend: str = LEGEND,
    kept: Sequence[Mapping[str, Any]] = KEPT, published: Mapping[str, Any] = PAPER,
    pictures: Callable[[Sequence[Row], Path], list[str]] | None = None, also: Also | None = None,
    small: Mapping[str, Any] | None = None,
) -> PaperExperiment:  # fmt: skip
    """An experiment that compares settings."""
    return PaperExperiment(
        name, title, legend, jobs, partial(measure, also=also), sections, means, small or {}, kept, published, line,
        pictures, forecast, example="--table adult --rows 5000 --epochs 50", figures=experiment.named(*FIGURES, ATTACK),
    )  # fmt: skip
