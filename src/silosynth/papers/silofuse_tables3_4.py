"""SiloFuse's tables III and IV: nine tables with one untuned preset, resemblance and utility beside the published row.

Intrusion is NSL-KDD's 20 % training part and Cover a 50 000-row sample: see the data sets' own notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from silosynth.evaluation import evaluate
from silosynth.papers import results, tables
from silosynth.papers.experiment import Ask, PaperExperiment, PaperJob, Row, Section, Seed, Tell, check_known, train

PAPER = {  # Table III and Table IV, row SiloFuse: resemblance, utility
    "loan": (81.2, 90.0),
    "abalone": (91.0, 97.2),
    "diabetes_pima": (84.0, 95.2),
    "churn": (87.0, 90.4),
    "heloc": (79.0, 74.8),
    "cardio": (71.0, 93.2),
    "intrusion_nsl_kdd_20pct": (67.0, 64.2),
    "covertype_50k": (89.0, 96.4),
    "adult": (73.0, 96.6),
}
FIGURES = {
    "resemblance": "resemblance", "utility": "utility", "column_shape_error": "shape %", "pair_trend_error": "trend %",
    "two_sample_auc_xgboost": "XGB two-sample", "nearest_neighbour_share": "nearer to train %",
}  # fmt: skip


@dataclass(frozen=True)
class NineTablesJob(PaperJob):
    """One training."""

    table: str
    preset: str
    seed: int


def jobs(
    tables: Annotated[Sequence[str], Ask(f"One of {', '.join(PAPER)}.", ("--table", "-t"))] = tuple(PAPER),
    preset: Annotated[str, Ask("Of SiloFuse.")] = "balanced",
    seed: Seed = 0,
) -> list[NineTablesJob]:
    """One row for each table.

    Raises:
        ConfigError: there is no such table.
    """
    check_known("table", tables, tuple(PAPER))
    return [NineTablesJob(table, preset, seed) for table in tables]


def measure(job: NineTablesJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on two thirds in four silos in column order, sample as many rows, evaluate on the rest."""
    real, holdout = tables.thirds(tables.modelled(job.table))
    federation = tables.in_silos(real, 4)
    model, costs = train("silofuse", federation, job.preset, job.seed, {}, tell)
    report = evaluate(real, holdout, model.sample(len(real)), silos=federation.silos, figures="all")
    floors = {"shape floor": "column_shape_error", "trend floor": "pair_trend_error"}
    return {
        **job.identity,
        "training rows": len(real),
        "columns": len(real.columns),
        **{name: report.score(score).value for score, name in FIGURES.items()},
        **{name: report.score(score).floor for name, score in floors.items()},
        "paper's": PAPER[job.table][0],
        "paper's utility": PAPER[job.table][1],
        "fit s": costs["seconds"],
    }


def sections(rows: Sequence[Row]) -> list[Section]:
    """One for each preset, tables in the paper's order."""
    keys = (
        "table", "training rows", "columns", "seed", "resemblance", "paper's", "utility", "paper's utility", "shape %",
        "shape floor", "trend %", "trend floor", "XGB two-sample", "nearer to train %", "fit s",
    )  # fmt: skip
    ordered = results.in_order(rows, "preset", "table", table=list(PAPER))
    heading = "Preset {preset}".format_map
    return results.sectioned(ordered, keys, lambda row: [results.short(row[key]) for key in keys], heading)


EXPERIMENT = PaperExperiment(
    "nine-tables", "SiloFuse on nine tables (tables III and IV)",
    "Resemblance and utility are the paper's, of 100. Errors in %; floors are those of a second real sample.",
    jobs, measure, sections, small={"tables": ("loan",), "preset": "fast"},
    kept=({"tables": tuple(table for table in PAPER if table != "adult")},), published={"preset": "paper"},
    example="--table loan --table abalone --preset fast",
)  # fmt: skip
