"""SiloFuse with autoencoders of their own in the silos, beside the same with one joint representation across silos.

"silofuse" has independent autoencoders, "silofuse-joint" latents of all silos together (TabVFL's split), "latentdiff"
all columns in one place. All have as many latents; two silos, columns in their order. The figure to look at is the
trend error of pairs of columns that lie in different silos; its floor is that of a second sample of real rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from silosynth.evaluation import evaluate
from silosynth.papers import experiment, results, tables
from silosynth.papers.experiment import Ask, PaperExperiment, PaperJob, Repeats, Row, Section, Seed, Tell

TABLES = ("airline_satisfaction", "bank_marketing", "adult", "covertype_50k")
METHODS = ("silofuse", "silofuse-joint", "latentdiff")
FIGURES = {
    "column_shape_error": "shape",
    "pair_trend_error_within": "trend within",
    "pair_trend_error_across": "trend across",
}
HEADS = ("table", "rows", "seeds", "method", "shape %", "trend within %", "trend across %", "floor", "fit s", "MB")


@dataclass(frozen=True)
class JointLatentsJob(PaperJob):
    """One training; ``latents`` are per column."""

    table: str
    method: str
    rows: int
    preset: str
    latents: int
    seed: int


def jobs(
    tables: Annotated[Sequence[str], Ask(f"One of {', '.join(TABLES)}.", ("--table", "-t"))] = TABLES,
    methods: Annotated[Sequence[str], Ask(f"One of {', '.join(METHODS)}.", ("--method", "-m"))] = METHODS,
    rows: Annotated[int, Ask("Rows to train on; as many are held out.", least=2)] = 6000,
    preset: Annotated[str, Ask("Of all methods.")] = "balanced",
    latents: Annotated[Sequence[int], Ask("Per column.", ("--latents",))] = (1, 2),
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[JointLatentsJob]:
    """All rows, seed by seed.

    Raises:
        ConfigError: there is no such table or method, or a size is not positive.
    """
    experiment.check_known("table", tables, TABLES)
    experiment.check_known("method", methods, METHODS)
    experiment.check_positive(rows=rows, repeats=repeats)
    return [
        JointLatentsJob(table, method, rows, preset, count, seed + repeat)
        for repeat in range(repeats)
        for count in latents
        for table in tables
        for method in methods
    ]


def measure(job: JointLatentsJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on half of the rows, sample as many, compare with the other half."""
    frame = tables.modelled(job.table).sample(frac=1.0, random_state=job.seed).head(2 * job.rows).reset_index(drop=True)
    train, holdout = frame.head(len(frame) // 2), frame.tail(len(frame) // 2).reset_index(drop=True)
    federation = tables.in_silos(train, 2)
    options = {"coder.latents_per_column": job.latents}
    model, costs = experiment.train(job.method, federation, job.preset, job.seed, options, tell)
    report = evaluate(train, holdout, model.sample(len(train)), silos=federation.silos)
    scores = {name: report.score(score) for score, name in FIGURES.items()}
    return {
        **job.identity,
        **{name: score.value for name, score in scores.items()},
        "floor": scores["trend across"].floor,
        "seconds": costs["seconds"],
        "bytes": experiment.sent(model),
    }


def means(rows: Sequence[Row]) -> list[Row]:
    """Over seeds."""
    return results.means(rows, (*FIGURES.values(), "floor", "seconds", "bytes"), count="seeds")


def sections(rows: Sequence[Row]) -> list[Section]:
    """One for each preset and number of latents."""
    ordered = results.in_order(rows, "preset", "latents", "table", "rows", "method", table=TABLES, method=METHODS)
    return results.sectioned(ordered, HEADS, _cells, "Preset {preset}, {latents} latents per column".format_map)


def _cells(row: Row) -> list[str]:
    figures = [f"{row[name]:.2f}{results.deviation(row, name, 2)}" for name in (*FIGURES.values(), "floor")]
    first = [row["table"], str(row["rows"]), str(row["seeds"]), row["method"]]
    return [*first, *figures, f"{row['seconds']:.0f}", f"{row['bytes'] / 1e6:.1f}"]


FEW: Mapping[str, Any] = {"preset": "fast", "rows": 3000}
EXPERIMENT = PaperExperiment(
    "joint-latents", "Joint and independent latents",
    "Means over seeds, with standard deviations. Seconds are of a machine that does other things as well.",
    jobs, measure, sections, means,
    small={"tables": ("airline_satisfaction",), "rows": 1000, "preset": "fast", "latents": (1,)},
    kept=(
        {**FEW, "latents": (1,)},
        {**FEW, "latents": (1,), "tables": ("airline_satisfaction", "adult"), "repeats": 2},
        {**FEW, "latents": (1,), "tables": ("airline_satisfaction",), "methods": METHODS[:2], "repeats": 3},
        {**FEW, "latents": (2,), "tables": ("airline_satisfaction",)},
    ),
    figures=experiment.named(*FIGURES.values()),
)  # fmt: skip
