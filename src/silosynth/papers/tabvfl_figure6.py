"""Guests that fail in training, and what stands in for them (TabVFL's figure 6 and table III).

Each guest is away for whole epochs, at random. In its place stands what it sent last, or zeros. Two guests, as many
epochs as are asked for, no early stopping; the figures are those of `silosynth.papers.tabvfl_figure5`.

The loss is of F1, against the same training in which nobody failed, in per cent of the F1 that is left; the gain of the
cache over zeros is in per cent of the cache's F1. The paper does not say of what its per cents are; only so do the
columns of its table III agree with each other, for all of its tables (air: 1.1804 / 1.0301 - 1 = 0.1459 of zeros' F1,
which is 0.1273 of the cache's).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

from silosynth.core.errors import ConfigError
from silosynth.papers import drawings, results, tabvfl_figure5
from silosynth.papers.experiment import Ask, Options, PaperExperiment, Repeats, Row, Section, Seed, named
from silosynth.papers.tabvfl_figure5 import EVALUATIONS, TABLES, Batch, Epochs, LatentsJob, Preset, RowCount, TableNames

PROBABILITIES = (0.2, 0.35, 0.5)
IN_PLACE = ("cache", "zeros")
PUBLISHED = {  # table III: the largest loss of F1 in per cent, cache and zeros
    "airline_satisfaction": (3.01, 18.04),
    "bank_marketing": (0.65, 2.71),
    "covertype_50k": (2.11, 17.59),
    "intrusion_nsl_kdd_20pct": (0.22, 4.78),
}
GAINS = {  # table III: what keeping last values gains over zeros, in per cent, on average and at most
    "airline_satisfaction": (6.31, 12.73),
    "bank_marketing": (1.51, 2.04),
    "covertype_50k": (9.15, 13.16),
    "intrusion_nsl_kdd_20pct": (2.3, 4.37),
}
PAPER = {"tables": tuple(PUBLISHED), "repeats": 8, "rows": 50_000, "epochs": 60}  # of either phase: "120 in total"
MANY: Mapping[str, Any] = {
    "tables": ("bank_marketing", "covertype_50k", "intrusion_nsl_kdd_20pct"), "rows": 24_000, "epochs": 60,
    "batch": 256, "options": (("rate", 0.01), ("patience", 20), ("shuffle", True)),
}  # fmt: skip
FEW: Mapping[str, Any] = {
    "tables": ("airline_satisfaction", "bank_marketing", "intrusion_nsl_kdd_20pct"), "rows": 6000, "epochs": None,
    "options": (("rate", 0.01), ("shuffle", True), ("pretraining_epochs", 30), ("finetuning_epochs", 40)),
}  # fmt: skip
LONGER = (("rate", 0.01), ("shuffle", True), ("pretraining_epochs", 60), ("finetuning_epochs", 80))
KEPT = (
    MANY, {**MANY, "tables": ("bank_marketing",), "probabilities": (0.2,), "seed": 1},
    FEW, {**FEW, "tables": ("covertype_50k",), "probabilities": (0.5,)},
    {**FEW, "tables": ("airline_satisfaction", "bank_marketing"), "probabilities": (0.5,), "repeats": 3},
    *({**FEW, "tables": (table,), "probabilities": (0.5,), "options": LONGER, "repeats": repeats}
      for table, repeats in (("intrusion_nsl_kdd_20pct", 4), ("covertype_50k", 3))),
)  # fmt: skip
GUESTS = 2
LEGEND = (
    "p: probability with which a guest is away for an epoch. Loss: of F1, mean of six learners, against p = 0 and the "
    "same seed, in per cent of the F1 that is left, as the paper's; below 0 it is a gain. Published: the paper's "
    "largest loss at p up to 0.5, pooled. Cache over zeros: what F1, pooled, the cache has more, in per cent of its "
    "own, over the probabilities that are named."
)
GAIN_HEADS = ("table", "p", "mean gain", "published", "largest gain", "published")
HEADS = ("table", "p", "in place", "seeds", "clean F1", "loss", "pooled F1", "loss", "published", "s")


def jobs(
    tables: TableNames = ("bank_marketing",),
    probabilities: Annotated[
        Sequence[float], Ask("That a guest is away for an epoch.", ("--probability", "-p"))
    ] = PROBABILITIES,
    in_place: Annotated[Sequence[str], Ask("What stands in a failed guest's place: cache or zeros.")] = IN_PLACE,
    rows: RowCount = 2000,
    epochs: Epochs = 20,
    batch: Batch = 128,
    preset: Preset = "paper",
    options: Options = (),
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[LatentsJob]:
    """For each table and seed the training without failures, then all others.

    Raises:
        ConfigError: there is no such table, a probability is not between 0 and 1, or nothing stands in.
    """
    if not probabilities or not all(0 < p < 1 for p in probabilities):
        raise ConfigError("A guest fails with a probability above 0 and below 1", tuple(probabilities))
    if not in_place or not set(in_place) <= set(IN_PLACE):
        raise ConfigError(f"In a failed guest's place stands one of {', '.join(IN_PLACE)}", tuple(in_place))
    settings = [{}, *({"absence": p, "missing": kind} for p in probabilities for kind in in_place)]
    return [
        replace(job, options=(("validation", 0.0), *job.options, *setting.items()))
        for job in tabvfl_figure5.jobs(
            tables, ("tabvfl",), (GUESTS,), rows, epochs, batch, preset, options, repeats, seed
        )
        for setting in settings
    ]  # fmt: skip


def losses(rows: Sequence[Row]) -> list[Row]:
    """The rows, each with p, what stands in, and its loss of F1 in per cent (None without the row to compare with)."""
    return [_with_loss(row, rows) for row in rows]


def _with_loss(row: Row, rows: Sequence[Row]) -> Row:
    options = json.loads(row["options"])
    p, kind = options.pop("absence", 0.0), options.pop("missing", "")
    row = {**row, "options": json.dumps(options, sort_keys=True)}
    names = (*(field.name for field in fields(LatentsJob)), "version")
    base = next((other for other in rows if all(other[name] == row[name] for name in names)), None)
    lost = {f"{how} loss": _loss(row, base, how) for how in EVALUATIONS}
    return {**row, "p": p, "in place": kind, **lost}


def _loss(row: Row, base: Row | None, how: str) -> float | None:
    return None if base is None else 100 * (base[f"{how} F1"] / row[f"{how} F1"] - 1)


def means(rows: Sequence[Row]) -> list[Row]:
    """Over seeds."""
    losses_ = tuple(f"{how} loss" for how in EVALUATIONS)
    figures = (*tabvfl_figure5.FIGURES, *losses_, "seconds", "bytes")
    return results.means(losses(rows), figures, ("seed", "predicted", "published"), "seeds")


def sections(rows: Sequence[Row]) -> list[Section]:
    """One for each way to train, and below it what the cache gains over zeros."""
    ordered = results.in_order(rows, "table", "p", "in place", table=TABLES, **{"in place": IN_PLACE})
    found: list[Section] = []
    for heading, heads, lines in results.sectioned(ordered, HEADS, _cells, tabvfl_figure5.heading):
        own = [row for row in ordered if tabvfl_figure5.heading(row) == heading]
        gains = [line for table in dict.fromkeys(row["table"] for row in own) if (line := _gains(table, own))]
        found += [
            (heading, heads, lines),
            *([(f"Cache over zeros (table III); {heading}", GAIN_HEADS, gains)] if gains else []),
        ]
    return found


def _gains(table: str, rows: Sequence[Row]) -> list[str]:
    """How much more F1, pooled, the cache has than zeros, in per cent of its own; over all p that have both."""
    f1 = {(row["p"], row["in place"]): row["paper F1"] for row in rows if row["table"] == table and row["p"]}
    both = [p for p, kind in f1 if kind == "cache" and (p, "zeros") in f1]
    gains = [100 * (1 - f1[p, "zeros"] / f1[p, "cache"]) for p in both]
    if not gains:
        return []
    mean, most = GAINS[table]
    shown = [f"{value:.2f}" for value in (sum(gains) / len(gains), mean, max(gains), most)]
    return [table, ", ".join(f"{p:g}" for p in both), *shown]


def _cells(row: Row) -> list[str]:
    figures = []
    for how in EVALUATIONS:
        lost = row[f"{how} loss"] if row["p"] else None
        loss = "" if lost is None else f"{lost:.2f}" + results.deviation(row, f"{how} loss")
        figures += [f"{row[f'{how} F1']:.3f}", loss]
    kind, seconds = row["in place"], results.shown("seconds", row["seconds"])
    paper = f"{PUBLISHED[row['table']][IN_PLACE.index(kind)]:.2f}" if kind else ""
    return [row["table"], f"{row['p']:g}", kind, str(row["seeds"]), *figures, paper, seconds]


def pictures(rows: Sequence[Row], page: Path) -> list[str]:
    """Pooled F1 by p, a panel for each table; both lines start where nobody fails."""
    found = [
        replaced
        for row in means(rows)
        for replaced in ([{**row, "in place": kind} for kind in IN_PLACE] if not row["p"] else [row])
    ]
    ways: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        ways.setdefault((row["table"], tabvfl_figure5.heading(row)), []).append(row)
    panels = [
        panel
        for (table, _), own in sorted(ways.items())
        for panel in drawings.panels(
            results.in_order(own, "p"), {"paper F1": "F1"}, lambda row: row["p"],
            lambda row: f"{row['in place']}, {row['rows']} rows", f"p; {_epochs(own[0])}", table, joined=True,
            zero=False,
        )
    ]  # fmt: skip
    return drawings.beside(page, drawings.wrapped(panels), "F1 by the probability that a guest fails")


def _epochs(row: Row) -> str:
    """How long the phases of a training were."""
    options = json.loads(row["options"])
    phases = [row["epochs"] or options.get(f"{phase}_epochs") for phase in ("pretraining", "finetuning")]
    return "{} and {} epochs".format(*phases) if all(phases) else "the preset's epochs"


def line(row: Row) -> str:
    """A row by itself: its loss is known only beside the training without failures."""
    options = json.loads(row["options"])
    which = f"p {options.get('absence', 0):g} {options.get('missing', '')}".strip()
    scores = ", ".join(f"{how} F1 {row[f'{how} F1']:.3f}" for how in EVALUATIONS)
    return f"{row['table']} · {which} · seed {row['seed']}: {scores}, {row['seconds']:.0f} s"


EXPERIMENT = PaperExperiment(
    "failures", "F1 of latent vectors after trainings in which guests fail (TabVFL, figure 6, table III)", LEGEND, jobs,
    tabvfl_figure5.measure, sections, means, kept=KEPT, published=PAPER, line=line,
    pictures=pictures, example="--probability 0.5 --repeats 3",
    figures=named(*tabvfl_figure5.FIGURES),
)  # fmt: skip
