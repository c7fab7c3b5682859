"""Central baselines beside each other, and VT-GAN beside the central GAN (its paper's section 4.2).

*VT-GAN*: two silos against the central GAN of the same sizes. "all" updates every bottom critic, as in the paper;
"contributor" only that of the silo that knows the rows anyway, and "none" no one (ours). Rate and betas of Adam and the
moving average of generators are those of the central GAN too; published are rate 2e-4, betas 0.5 and 0.9, average 0.
Rows are pushed as in the peer-to-peer variant: what is trained does not depend on how rows are pushed (a test holds it
to that), only time and bytes do, which ``benchmarks/vtgan_speed.py`` measures.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from silosynth.algorithms.central.options import PRESETS
from silosynth.evaluation import evaluate
from silosynth.papers import experiment
from silosynth.papers.experiment import Ask, PaperExperiment, PaperJob, Repeats, Row, Seed, Tell
from silosynth.papers.results import plain
from silosynth.papers.tables import modelled, thirds
from silosynth.simulation.federation import in_order, simulate

FIGURES = {
    "column_shape_error": "shape %",
    "pair_trend_error": "trend %",
    "two_sample_auc_logistic": "logistic two-sample",
    "two_sample_auc_xgboost": "XGB two-sample",
    "downstream_auc": "AUC",
}
TABLES = {"loan": ("personal_loan", 300), "adult": ("income", 100)}  # target, epochs of VT-GAN's comparison
SETTINGS: Mapping[str, dict[str, Any]] = {
    "central": {},
    **{
        how: {"index_privacy": "none", "bottom_gradients": how, "least_rounds": 0}
        for how in ("all", "none", "contributor")
    },
}  # fmt: skip

TableNames = Annotated[Sequence[str], Ask("loan or adult.", ("--table", "-t"))]


@dataclass(frozen=True)
class CentralBaselineJob(PaperJob):
    """One training."""

    table: str
    algorithm: str
    preset: str
    seed: int


def jobs(
    tables: TableNames = tuple(TABLES),
    algorithms: Annotated[Sequence[str], Ask(f"One of {', '.join(PRESETS)}.", ("--algorithm", "-a"))] = tuple(PRESETS),
    preset: Annotated[str, Ask("Of each algorithm.")] = "fast",
    seed: Seed = 0,
) -> list[CentralBaselineJob]:
    """A row for each table and algorithm.

    Raises:
        ConfigError: there is no such table or algorithm.
    """
    experiment.check_known("table", tables, tuple(TABLES))
    experiment.check_known("algorithm", algorithms, tuple(PRESETS))
    return [CentralBaselineJob(table, algorithm, preset, seed) for table in tables for algorithm in algorithms]


def measure(job: CentralBaselineJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on two thirds, sample as many rows, evaluate on the rest."""
    train, holdout = thirds(modelled(job.table))
    model, costs = experiment.train(job.algorithm, simulate(train), job.preset, job.seed, {}, tell)
    start = time.perf_counter()
    synthetic = model.sample(len(train))
    seconds = {"fit s": costs["seconds"], "sample s": time.perf_counter() - start}
    report = evaluate(train, holdout, synthetic, target=TABLES[job.table][0])
    figures = {title: report.score(name).value for name, title in FIGURES.items()}
    floors = {f"{title} floor": report.score(name).floor for name, title in list(FIGURES.items())[:2]}
    return {**job.identity, **figures, **floors, **seconds}


BASELINES = PaperExperiment(
    "central", "Central baselines", "Errors in %; the floor is what two real samples differ by.", jobs, measure, plain,
    example="--table loan --algorithm ctabgan --preset balanced",
)  # fmt: skip


@dataclass(frozen=True)
class CentralComparisonJob(PaperJob):
    """One training of VT-GAN, or of the central GAN."""

    table: str
    setting: str
    rate: float
    betas: list[float]
    average: float
    seed: int

    @property
    def identity(self) -> Row:
        """With the epochs that the table has."""
        return {**super().identity, "epochs": TABLES[self.table][1]}


def vtgan_jobs(
    tables: TableNames = tuple(TABLES),
    settings: Annotated[Sequence[str], Ask("central, all, none or contributor.", ("--setting",))] = tuple(SETTINGS),
    rate: Annotated[float, Ask("Of Adam; published: 2e-4.")] = 1e-3,
    betas: Annotated[Sequence[float], Ask("Of Adam, twice; published: 0.5 and 0.9.", ("--beta",))] = (0.0, 0.99),
    average: Annotated[float, Ask("Of generators, moving; published: 0.")] = 0.999,
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[CentralComparisonJob]:
    """All settings, table by table.

    Raises:
        ConfigError: there is no such table or setting.
    """
    experiment.check_known("table", tables, tuple(TABLES))
    experiment.check_known("setting", settings, tuple(SETTINGS))
    return [
        CentralComparisonJob(table, setting, rate, list(betas), average, seed + repeat)
        for table in tables
        for repeat in range(repeats)
        for setting in settings
    ]


def measure_vtgan(job: CentralComparisonJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on two thirds, sample as many rows, evaluate on the rest."""
    target, epochs = TABLES[job.table]
    train, holdout = thirds(modelled(job.table))
    silos = in_order(list(train.columns), 2)
    options = {"epochs": epochs, "rate": job.rate, "betas": tuple(job.betas), "average": job.average}
    name, preset = ("ctgan", "best") if job.setting == "central" else ("vtgan", "balanced")
    options |= SETTINGS[job.setting]
    model, costs = experiment.train(name, simulate(train, silos=silos), preset, job.seed, options, tell)
    report = evaluate(train, holdout, model.sample(len(train)), target=target, silos=silos, figures="gan")
    return {**job.identity, **{score.name: score.value for score in report.scores}, "fit s": costs["seconds"]}


VTGAN = PaperExperiment(
    "vtgan-central",
    "VT-GAN beside the central GAN (section 4.2)",
    "Differences are to the table that was trained on; 0 is best.",
    vtgan_jobs, measure_vtgan, plain, example="--table loan --rate 2e-4 --beta 0.5 --beta 0.9 --average 0",
)  # fmt: skip
