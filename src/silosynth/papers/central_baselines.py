"""The central baselines beside each other: how faithful their tables are, and what they take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from silosynth.algorithms.central.options import PRESETS
from silosynth.evaluation import evaluate
from silosynth.papers import results, tables
from silosynth.papers.experiment import Ask, PaperExperiment, PaperJob, Row, Seed, Tell, check_known, named, train
from silosynth.simulation.federation import simulate

FIGURES = {
    "column_shape_error": "shape %",
    "pair_trend_error": "trend %",
    "two_sample_auc_logistic": "logistic two-sample",
    "two_sample_auc_xgboost": "XGB two-sample",
    "downstream_auc": "AUC",
}
TABLES = {"loan": "personal_loan", "adult": "income"}


@dataclass(frozen=True)
class CentralBaselineJob(PaperJob):
    """One training."""

    table: str
    algorithm: str
    preset: str
    seed: int


def jobs(
    tables: Annotated[Sequence[str], Ask("loan or adult.", ("--table", "-t"))] = tuple(TABLES),
    algorithms: Annotated[Sequence[str], Ask(f"One of {', '.join(PRESETS)}.", ("--algorithm", "-a"))] = tuple(PRESETS),
    preset: Annotated[str, Ask("Of each algorithm.")] = "fast",
    seed: Seed = 0,
) -> list[CentralBaselineJob]:
    """A row for each table and algorithm.

    Raises:
        ConfigError: there is no such table or algorithm.
    """
    check_known("table", tables, tuple(TABLES))
    check_known("algorithm", algorithms, tuple(PRESETS))
    return [CentralBaselineJob(table, algorithm, preset, seed) for table in tables for algorithm in algorithms]


def measure(job: CentralBaselineJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on two thirds, sample as many rows, evaluate on the rest."""
    real, holdout = tables.thirds(tables.modelled(job.table))
    model, costs = train(job.algorithm, simulate(real), job.preset, job.seed, {}, tell)
    start = time.perf_counter()
    synthetic = model.sample(len(real))
    seconds = {"fit s": costs["seconds"], "sample s": time.perf_counter() - start}
    report = evaluate(real, holdout, synthetic, target=TABLES[job.table])
    figures = {title: report.score(name).value for name, title in FIGURES.items()}
    floors = {f"{title} floor": report.score(name).floor for name, title in list(FIGURES.items())[:2]}
    return {**job.identity, **figures, **floors, **seconds}


EXPERIMENT = PaperExperiment(
    "central", "Central baselines", "Errors in %; the floor is what two real samples differ by.", jobs, measure,
    results.plain, small={"tables": ("loan",), "algorithms": ("ctgan", "tvae")}, kept=({},),
    example="--table loan --algorithm ctabgan --preset balanced",
    figures=named("shape %", "trend %", "logistic two-sample", "XGB two-sample", "AUC"),
)  # fmt: skip
