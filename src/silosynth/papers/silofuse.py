"""SiloFuse: nine tables, the privacy limit of its latents, and latents per silo beside joint ones.

*Nine tables* (tables III and IV): one untuned preset, resemblance and utility beside the published row. Intrusion is
NSL-KDD's 20 % training part and Cover a 50 000-row sample: see the data sets' own notes.

*Inversion*: what a coordinator infers from latents when it knows some rows. It holds the latents of all training rows
anyway; it trains an inversion on the rows that it knows, and applies it to the rest. Every column of Adult, in four
silos, is inferred from its own silo's latents.

*Joint latents*: "silofuse" has independent autoencoders, "silofuse-joint" latents of all silos together (TabVFL's
split), "latentdiff" all columns in one place. All have as many latents; two silos, columns in their order. The figure
to look at is the trend error of pairs of columns that lie in different silos; its floor is that of a second sample of
real rows.

Shapes: N rows, L latents of a silo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

from silosynth.algorithms.silofuse.protocol import Latents
from silosynth.catalog import algorithm
from silosynth.core.conversation import Exchange
from silosynth.core.streams import Streams
from silosynth.evaluation import evaluate
from silosynth.evaluation.scores import Floats
from silosynth.papers import experiment, results
from silosynth.papers.experiment import Ask, PaperExperiment, PaperJob, Repeats, Row, Section, Seed, Tell
from silosynth.papers.tables import modelled, thirds
from silosynth.runtime.link import resolve_device
from silosynth.simulation.federation import Federation, in_order, simulate
from silosynth.simulation.silos import make_parties

# Nine tables

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
HEADS = (
    "table", "training rows", "columns", "seed", "resemblance", "paper's", "utility", "paper's utility", "shape %",
    "shape floor", "trend %", "trend floor", "XGB two-sample", "nearer to train %", "fit s",
)  # fmt: skip


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
    experiment.check_known("table", tables, tuple(PAPER))
    return [NineTablesJob(table, preset, seed) for table in tables]


def measure(job: NineTablesJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on two thirds in four silos in column order, sample as many rows, evaluate on the rest."""
    train, holdout = thirds(modelled(job.table))
    silos = in_order(list(train.columns), 4)
    model, costs = experiment.train("silofuse", simulate(train, silos=silos), job.preset, job.seed, {}, tell)
    report = evaluate(train, holdout, model.sample(len(train)), silos=silos, figures="all")
    floors = {"shape floor": "column_shape_error", "trend floor": "pair_trend_error"}
    return {
        **job.identity,
        "training rows": len(train),
        "columns": len(train.columns),
        **{name: report.score(score).value for score, name in FIGURES.items()},
        **{name: report.score(score).floor for name, score in floors.items()},
        "paper's": PAPER[job.table][0],
        "paper's utility": PAPER[job.table][1],
        "fit s": costs["seconds"],
    }


def sections(rows: Sequence[Row]) -> list[Section]:
    """One for each preset, tables in the paper's order."""
    ordered = results.in_order(rows, "preset", "table", table=list(PAPER))
    return results.sectioned(
        ordered, HEADS, lambda row: [results.short(row[key]) for key in HEADS], lambda row: f"Preset {row['preset']}"
    )


NINE_TABLES = PaperExperiment(
    "nine-tables", "SiloFuse on nine tables (tables III and IV)",
    "Resemblance and utility are the paper's, of 100. Errors in %; floors are those of a second real sample.",
    jobs, measure, sections, paper={"tables": tuple(PAPER)}, example="--table loan --table abalone --preset fast",
)  # fmt: skip

# Inversion

ROWS = 10_000
TREES = 200
TESTED = 2000  # rows that guesses are scored on, the last ones
LEVELS = 20  # numbers with no more values than this are guessed as levels


@dataclass(frozen=True)
class InversionJob(PaperJob):
    """An attack on one column, by a coordinator that knows this many rows."""

    silo: str
    column: str
    known: list[int]


def inversion_jobs(
    known: Annotated[Sequence[int], Ask("Rows that the coordinator knows.", ("--known",))] = (20, 200, 2000),
) -> list[InversionJob]:
    """A row for each column."""
    silos = in_order(list(modelled("adult").columns), 4)
    return [InversionJob(silo, column, list(known)) for silo, columns in silos.items() for column in columns]


@lru_cache(maxsize=1)
def _adult_and_latents() -> tuple[pd.DataFrame, dict[str, Floats]]:
    frame = modelled("adult").sample(ROWS, random_state=0).reset_index(drop=True)
    return frame, latents(simulate(frame, silos=in_order(list(frame.columns), 4)))


def latents(federation: Federation, preset: str = "balanced", seed: int = 0) -> dict[str, Floats]:
    """What each silo sends (N, L): the conversation is driven by hand up to that message."""
    entry, cpu, streams = algorithm("silofuse"), resolve_device("cpu"), Streams(seed)
    parties = make_parties(entry, federation, streams, cpu)
    talk = entry.coordinate(federation.roster, entry.configure(preset), streams, cpu)
    step = next(talk)
    while True:
        replies = {}
        if isinstance(step, Exchange):
            replies = {silo: parties[silo].answer(ask) for silo, ask in step.asks.items()}
        sent = {silo: reply.z_NL.numpy() for silo, reply in replies.items() if isinstance(reply, Latents)}
        if replies and len(sent) == len(replies):
            return sent
        step = talk.send(replies)


def invert(z_NL: Floats, column: pd.Series, known: int) -> tuple[float, float]:
    """Success on the last rows by inverting the first ``known``, and without latents, guessing blindly.

    Categories: shares of rows guessed right, blindly the most frequent level. Numbers: R², blindly 0.
    """
    if pd.api.types.is_numeric_dtype(column) and column.nunique() > LEVELS:
        values = column.to_numpy(float)
        guess = ExtraTreesRegressor(TREES, random_state=0).fit(z_NL[:known], values[:known]).predict(z_NL[-TESTED:])
        rest = values[-TESTED:]
        return 1 - float(((guess - rest) ** 2).sum() / ((rest - rest.mean()) ** 2).sum()), 0.0
    codes = pd.factorize(column.astype("object").fillna("missing").astype(str))[0]
    guess = ExtraTreesClassifier(TREES, random_state=0).fit(z_NL[:known], codes[:known]).predict(z_NL[-TESTED:])
    blind = np.bincount(codes[:known]).argmax()
    return float((guess == codes[-TESTED:]).mean()), float((codes[-TESTED:] == blind).mean())


def measure_inversion(job: InversionJob, tell: Tell = lambda stage, share: None) -> Row:
    """Attack."""
    frame, sent = _adult_and_latents()
    success = {known: invert(sent[job.silo], frame[job.column], known) for known in job.known}
    own = {f"{known} rows known": right for known, (right, _) in success.items()}
    return {**job.identity, "blind": success[job.known[-1]][1], **own}


INVERSION = PaperExperiment(
    "inversion", "What SiloFuse's coordinator infers from latents when it knows some rows",
    "Categorical columns: share of rows guessed right; blind: by the most frequent level. Numbers: R² of the guess.",
    inversion_jobs, measure_inversion, partial(results.plain, hidden=(*results.STAMP, "known", "version")),
    example="--known 20 --known 200",
)  # fmt: skip

# Joint latents

TABLES = ("airline_satisfaction", "bank_marketing", "adult", "covertype_50k")
METHODS = ("silofuse", "silofuse-joint", "latentdiff")
ERRORS = {
    "column_shape_error": "shape",
    "pair_trend_error_within": "trend within",
    "pair_trend_error_across": "trend across",
}
JOINT_HEADS = (
    "table",
    "rows",
    "seeds",
    "method",
    "shape %",
    "trend within %",
    "trend across %",
    "floor",
    "fit s",
    "MB",
)


@dataclass(frozen=True)
class JointLatentsJob(PaperJob):
    """One training; ``latents`` are per column."""

    table: str
    method: str
    rows: int
    preset: str
    latents: int
    seed: int


def joint_jobs(
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


def measure_joint(job: JointLatentsJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on half of the rows, sample as many, compare with the other half."""
    frame = modelled(job.table).sample(frac=1.0, random_state=job.seed).head(2 * job.rows).reset_index(drop=True)
    train, holdout = frame.head(len(frame) // 2), frame.tail(len(frame) // 2).reset_index(drop=True)
    silos, options = in_order(list(train.columns), 2), {"coder.latents_per_column": job.latents}
    model, costs = experiment.train(job.method, simulate(train, silos=silos), job.preset, job.seed, options, tell)
    report = evaluate(train, holdout, model.sample(len(train)), silos=silos)
    scores = {name: report.score(score) for score, name in ERRORS.items()}
    return {
        **job.identity,
        **{name: score.value for name, score in scores.items()},
        "floor": scores["trend across"].floor,
        "seconds": costs["seconds"],
        "bytes": experiment.sent(model),
    }


def joint_sections(rows: Sequence[Row]) -> list[Section]:
    """One for each preset and number of latents."""
    ordered = results.in_order(rows, "preset", "latents", "table", "rows", "method", table=TABLES, method=METHODS)
    return results.sectioned(
        ordered, JOINT_HEADS, _cells, lambda row: f"Preset {row['preset']}, {row['latents']} latents per column"
    )


def _cells(row: Row) -> list[str]:
    figures = [f"{row[name]:.2f}{results.deviation(row, name, 2)}" for name in (*ERRORS.values(), "floor")]
    first = [row["table"], str(row["rows"]), str(row["seeds"]), row["method"]]
    return [*first, *figures, f"{row['seconds']:.0f}", f"{row['bytes'] / 1e6:.1f}"]


JOINT_LATENTS = PaperExperiment(
    "joint-latents", "Joint and independent latents",
    "Means over seeds, with standard deviations. Seconds are of a machine that does other things as well.",
    joint_jobs, measure_joint, joint_sections,
    partial(results.means, figures=(*ERRORS.values(), "floor", "seconds", "bytes"), count="seeds"),
    example="--preset fast --rows 3000 --latents 1 --repeats 3",
)  # fmt: skip
