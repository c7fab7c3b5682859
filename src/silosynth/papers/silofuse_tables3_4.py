"""SiloFuse's tables III and IV: seven models on nine tables, resemblance and utility beside the published ones.

Preset "balanced" is ours; "paper" is ours as published, with nothing of ours switched on. Distributed models have four
silos, columns in order. The rivals are those of section V-A: the GANs are CTGAN and CTAB-GAN with layer normalisation
in generator and critic and four layers (of CTAB-GAN: for rows of up to 16 x 16 numbers; more for wider ones), whose
widths the paper does not give; TabDDPM has six layers of 256. Preset "paper" trains both for 500 000 iterations.
Intrusion is NSL-KDD's 20 % training part and Cover a 50 000-row sample: see the data sets' own notes.

`fitted` and `READINGS` serve the paper's other tables as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd

from silosynth import catalog
from silosynth.core.errors import ConfigError, nearest
from silosynth.evaluation import evaluate
from silosynth.papers import drawings, experiment, results, tables
from silosynth.papers.experiment import Ask, Options, PaperExperiment, PaperJob, Repeats, Row, Section, Seed, Tell
from silosynth.simulation.federation import Federation, in_order, simulate

TABLES = (  # in the order in which ours were run first; the paper's is alphabetical
    "loan", "abalone", "diabetes_pima", "churn", "heloc", "cardio", "intrusion_nsl_kdd_20pct", "covertype_50k", "adult",
)  # fmt: skip
SMALLER, LARGER = TABLES[:5], TABLES[5:]  # of up to 10 459 rows, of more
_ORDER = (
    "abalone", "adult", "cardio", "churn", "covertype_50k", "diabetes_pima", "heloc", "intrusion_nsl_kdd_20pct", "loan",
)  # fmt: skip
METHODS = ("silofuse", "latentdiff", "e2e", "e2edistr", "tabddpm", "gan-linear", "gan-conv")
ALGORITHMS: Mapping[str, str] = {"gan-linear": "ctgan", "gan-conv": "ctabgan"}  # others are called as in the catalogue
NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "gan-linear": {"normalised": True, "generator": (256,) * 3, "critic": (256,) * 3, "dropout": 0.0},
    "gan-conv": {"normalised": True},
}
_GAN = {"epochs": 1, "least_rounds": 500_000, "batch": 512, "rate": 1e-3, "critic_steps": 1}
PUBLISHED: Mapping[str, Mapping[str, Any]] = {  # with preset "paper", which is otherwise that of the models' own papers
    "gan-linear": _GAN, "gan-conv": _GAN,
    "tabddpm": {"steps": 500_000, "batch": 512, "rate": 1e-3, "layers": (256,) * 6, "diffusion_steps": 200,
                "sample_steps": 25},
}  # fmt: skip
READINGS: Mapping[str, str] = {"balanced": "ours", "paper": "ours as published"}  # of presets
_RESEMBLANCE = {  # table III, tables in the order of the paper
    "silofuse": (91.0, 73.0, 71.0, 87.0, 89.0, 84.0, 79.0, 67.0, 81.2),
    "latentdiff": (92.0, 78.0, 72.2, 89.0, 92.0, 90.0, 83.4, 68.0, 83.4),
    "e2e": (85.2, 60.0, 60.2, 88.2, 51.0, 72.4, 68.4, 48.0, 81.2),
    "e2edistr": (56.4, 46.0, 44.0, 78.0, 40.8, 61.8, 61.0, 37.0, 49.8),
    "tabddpm": (91.2, 97.0, 98.0, 63.6, 78.0, 94.6, 88.0, 44.0, 98.0),
    "gan-linear": (54.2, 28.6, 29.0, 30.8, 36.0, 51.0, 48.0, 39.0, 40.0),
    "gan-conv": (64.0, 38.0, 59.8, 43.4, 45.2, 75.8, 54.0, 47.2, 76.4),
}
_UTILITY = {  # table IV
    "silofuse": (97.2, 96.6, 93.2, 90.4, 96.4, 95.2, 74.8, 64.2, 90.0),
    "latentdiff": (100.0, 100.0, 86.4, 100.0, 95.8, 99.6, 76.4, 61.2, 94.8),
    "e2e": (70.0, 45.0, 75.2, 87.8, 89.8, 84.2, 39.8, 31.0, 77.0),
    "e2edistr": (70.8, 33.6, 55.3, 87.0, 56.8, 89.0, 39.2, 24.2, 71.2),
    "tabddpm": (98.4, 89.2, 99.6, 44.4, 80.4, 100.0, 96.4, 23.0, 98.8),
    "gan-linear": (65.2, 30.6, 47.6, 78.4, 36.2, 84.6, 38.4, 25.4, 82.0),
    "gan-conv": (71.0, 82.6, 94.0, 85.0, 82.6, 96.2, 45.0, 36.2, 82.6),
}
FIGURES = {
    "resemblance": "resemblance", "utility": "utility", "column_shape_error": "shape %", "pair_trend_error": "trend %",
    "two_sample_auc_xgboost": "XGB two-sample", "nearest_neighbour_share": "nearer to train %",
}  # fmt: skip
FLOORS = {"shape floor": "column_shape_error", "trend floor": "pair_trend_error"}
AVERAGED = (*FIGURES.values(), *FLOORS, "fit s")
HEADS = (
    "table", "training rows", "columns", "model", "silos", "columns are", "reading", "seeds", "resemblance",
    "published", "utility", "published", "shape %", "floor", "trend %", "floor", "XGB two-sample", "nearer to train %",
    "fit s",
)  # fmt: skip
PERMUTED_BY = 12343  # section V-G: what the paper permutes columns with

TableNames = Annotated[Sequence[str], Ask(f"One of {', '.join(TABLES)}.", ("--table", "-t"))]
Methods = Annotated[Sequence[str], Ask(f"One of {', '.join(METHODS)}.", ("--method", "-m"))]
Preset = Annotated[str, Ask("Of each model; paper: with nothing of ours.")]


@dataclass(frozen=True)
class NineTablesJob(PaperJob):
    """One training; ``options`` are of models that have them."""

    table: str
    preset: str
    seed: int
    method: str = "silofuse"
    silos: int = 4
    permuted: bool = False
    options: tuple[tuple[str, Any], ...] = ()


def jobs(
    tables: TableNames = TABLES,
    methods: Methods = METHODS[:1],
    preset: Preset = "balanced",
    silos: Annotated[Sequence[int], Ask("How many; of models in one place it makes no difference.")] = (4,),
    permuted: Annotated[bool, Ask("Columns are permuted before they are dealt out.")] = False,
    options: Options = (),
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[NineTablesJob]:
    """One row for each table, model, number of silos and seed.

    Raises:
        ConfigError: there is no such table or model, or a number is not positive.
    """
    experiment.check_known("table", tables, TABLES)
    experiment.check_known("model", methods, METHODS)
    experiment.check_positive(repeats=repeats, silos=min(silos, default=0))
    configs = [catalog.algorithm(ALGORITHMS.get(method, method)).configure(preset) for method in methods]
    for option, _ in options:
        if not any(hasattr(config, option.split(".")[0]) for config in configs):
            raise ConfigError(
                "An option is one of a model's that is trained", option,
                nearest(option, [name for config in configs for name in vars(config)]),
            )  # fmt: skip
    return [
        NineTablesJob(table, preset, seed + repeat, method, count, permuted, options)
        for table in dict.fromkeys(tables)
        for repeat in range(repeats)
        for method in dict.fromkeys(methods)
        for count in dict.fromkeys(silos)
    ]


def measure(job: NineTablesJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on two thirds, sample as many rows, evaluate on the rest."""
    real, holdout, federation, model, costs = fitted(job, tell)
    report = evaluate(real, holdout, model.sample(len(real)), silos=federation.silos, figures="all")
    return {
        **job.identity,
        "training rows": len(real),
        "columns": len(real.columns),
        **{name: report.score(score).value for score, name in FIGURES.items()},
        **{name: report.score(score).floor for name, score in FLOORS.items()},
        "fit s": costs["seconds"],
    }


def fitted(job: NineTablesJob, tell: Tell) -> tuple[pd.DataFrame, pd.DataFrame, Federation, Any, Row]:
    """Training rows, others, who holds which columns, the model, and what its training took."""
    real, holdout = tables.thirds(tables.modelled(job.table))
    columns = list(real.columns)
    if job.permuted:
        columns = np.random.default_rng(PERMUTED_BY).permutation(np.array(columns, object)).tolist()
    federation = simulate(real, in_order(columns, job.silos))
    name, options = trained_by(job)
    model, costs = experiment.train(name, federation, job.preset, job.seed, options, tell)
    return real, holdout, federation, model, costs


def trained_by(job: NineTablesJob) -> tuple[str, dict[str, Any]]:
    """The algorithm of the catalogue, and the options that it has beside its preset's."""
    name = ALGORITHMS.get(job.method, job.method)
    known = catalog.algorithm(name).configure(job.preset)
    given = {option: value for option, value in job.options if hasattr(known, option.split(".")[0])}
    published = PUBLISHED.get(job.method, {}) if job.preset == "paper" else {}
    return name, {**NETWORKS.get(job.method, {}), **published, **given}


# What is shown


def published(values: Mapping[str, Sequence[float]], table: str, method: str) -> float | None:
    """A model's published figure on a table, where there is one."""
    return values[method][_ORDER.index(table)] if method in values and table in _ORDER else None


def means(rows: Sequence[Row]) -> list[Row]:
    """Over seeds."""
    return results.means(rows, AVERAGED, count="seeds")


def sections(rows: Sequence[Row]) -> list[Section]:
    """One for each preset, tables in order and models below each other."""
    ordered = results.in_order(rows, "preset", "table", "method", "silos", table=TABLES, method=METHODS)
    return results.sectioned(ordered, HEADS, _cells, _heading)


def _heading(row: Row) -> str:
    return f"Preset {row['preset']}" + (f", {row['options']}" if row["options"] != "{}" else "")


def _cells(row: Row) -> list[str]:
    def figure(name: str) -> str:
        value = results.short(row[name])
        return value + results.deviation(row, name, len(value.partition(".")[2]))

    alike = row["silos"] == 4 and not row["permuted"]  # as in both tables; figure 11 is a drawing
    found = [published(values, row["table"], row["method"]) if alike else None for values in (_RESEMBLANCE, _UTILITY)]
    beside = [results.short(value) for value in found]
    what = "permuted" if row["permuted"] else "in order"
    model = [row["method"], str(row["silos"]), what, READINGS.get(row["preset"], row["preset"]), str(row["seeds"])]
    names = ("shape %", "shape floor", "trend %", "trend floor", "XGB two-sample", "nearer to train %", "fit s")
    scores = [figure("resemblance"), beside[0], figure("utility"), beside[1]]
    return [row["table"], str(row["training rows"]), str(row["columns"]), *model, *scores, *map(figure, names)]


LEGEND = (
    "Resemblance and utility are the paper's, of 100. Errors in %; floors are those of a second real sample. Published "
    "figures are means of five trials, with four silos and columns in order. Reading: ours, or ours as published, with "
    "nothing of ours switched on."
)
EXPERIMENT = PaperExperiment(
    "nine-tables", "Resemblance and utility (SiloFuse, tables III and IV, figure 11)", LEGEND,
    jobs, measure, sections, means, small={"tables": ("loan",), "preset": "fast"},
    kept=(
        {"tables": SMALLER, "repeats": 3}, {"tables": LARGER, "repeats": 2},
        {"tables": SMALLER, "methods": METHODS, "preset": "fast", "repeats": 3},
        {"tables": LARGER, "methods": METHODS, "preset": "fast"},
        {"tables": LARGER, "methods": ("silofuse", "latentdiff"), "preset": "fast", "repeats": 3},
    ),
    published={"methods": METHODS, "preset": "paper", "repeats": 5},
    example="--table loan --table abalone --preset fast --method silofuse --method tabddpm",
    figures=experiment.named(*FIGURES.values()),
)  # fmt: skip
ROBUSTNESS_TABLES = ("heloc", "loan", "churn")


def robustness_jobs(
    tables: TableNames = ROBUSTNESS_TABLES, preset: Preset = "balanced",
    silos: Annotated[Sequence[int], Ask("How many; the paper has 4 and 8.")] = (4, 8),
    repeats: Repeats = 1, seed: Seed = 0,
) -> list[NineTablesJob]:  # fmt: skip
    """SiloFuse with columns in order and permuted, and each number of silos.

    Raises:
        ConfigError: there is no such table, or a number is not positive.
    """
    return [
        job
        for permuted in (False, True)
        for job in jobs(tables, ("silofuse",), preset, silos, permuted, (), repeats, seed)
    ]


def robustness_pictures(rows: Sequence[Row], page: Path) -> list[str]:
    """Both scores by silos and order, a setting for each table."""
    found = drawings.panels(
        means(rows), {key: key for key in ("resemblance", "utility")},
        lambda row: f"{row['silos']} {'permuted' if row['permuted'] else 'in order'}",
        lambda row: f"{row['table']}, {row['preset']}", "silos", zero=False,
    )  # fmt: skip
    return drawings.beside(page, drawings.wrapped(found), "Scores by silos and order of columns")


ROBUSTNESS = PaperExperiment(
    "robustness", "Four and eight silos, columns in order and permuted (SiloFuse, figure 11)", LEGEND,
    robustness_jobs, measure, sections, means, small={"tables": ("loan",), "preset": "fast"},
    kept=({"tables": ("loan",), "preset": "fast", "repeats": 3},), published={"preset": "paper", "repeats": 5},
    pictures=robustness_pictures,
    example="--table loan --preset fast --silos 4",
    figures=experiment.named(*FIGURES.values()),
)  # fmt: skip
