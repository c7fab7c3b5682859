"""Guests that fail in training, and what stands in for them (TabVFL's figure 6 and table III).

Each guest is away for whole epochs, by lot. In its place stands what it sent last, or zeros. Two guests, as many epochs
as are asked for, no early stopping; the figures are those of `silosynth.papers.latents`, and the loss is of F1, in per
cent of that of the same training in which nobody failed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from silosynth.core.errors import ConfigError
from silosynth.papers import latents
from silosynth.papers.common import Row
from silosynth.papers.latents import Job, page
from silosynth.papers.results import shown

PROBABILITIES = (0.2, 0.35, 0.5)
IN_PLACE = ("cache", "zeros")
PAPER = {  # table III: the largest loss of F1 in per cent, cache and zeros
    "airline_satisfaction": (3.01, 18.04),
    "bank_marketing": (0.65, 2.71),
    "covertype_50k": (2.11, 17.59),
    "intrusion_nsl_kdd_20pct": (0.22, 4.78),
}
PAPER_EPOCHS, PAPER_BATCH, PAPER_REPEATS, GUESTS = 60, 128, 8, 2  # section V-C2; 120 epochs in both phases together
FORM = "silosynth bench failures"
TITLE = "F1 of latent vectors after trainings in which guests fail (TabVFL, figure 6, table III)"
LEGEND = (
    "p: probability with which a guest is away for an epoch. Loss: of F1, mean of six learners, in per cent of the F1 "
    "with p = 0 and the same seed; below 0 it is a gain. Published: the paper's largest loss at p up to 0.5, pooled."
)
HEADS = ("table", "p", "in place", "seed", "clean F1", "loss", "pooled F1", "loss", "published", "s")


def jobs(
    tables: Sequence[str], probabilities: Sequence[float] = PROBABILITIES, in_place: Sequence[str] = IN_PLACE,
    repeats: int = 1, seed: int = 0, options: tuple[tuple[str, Any], ...] = (), **each: Any,
) -> list[Job]:  # fmt: skip
    """For each table and seed the training without failures, then all others.

    Raises:
        ConfigError: there is no such table, a probability is not between 0 and 1, or nothing stands in.
    """
    if not probabilities or not all(0 < p < 1 for p in probabilities):
        raise ConfigError("A guest fails with a probability above 0 and below 1", tuple(probabilities))
    if not in_place or not set(in_place) <= set(IN_PLACE):
        raise ConfigError(f"In a failed guest's place stands one of {', '.join(IN_PLACE)}", tuple(in_place))
    options = (("validation", 0.0), *options)
    settings: list[dict[str, Any]] = [
        {},
        *({"absence": p, "missing": kind} for p in probabilities for kind in in_place),
    ]
    return [
        replace(job, options=(*options, *setting.items()))
        for job in latents.jobs(tables, ("tabvfl",), (GUESTS,), repeats, seed, **each)
        for setting in settings
    ]


def losses(rows: Sequence[Row]) -> list[Row]:
    """The rows, each with p, what stands in, and its loss of F1 in per cent (None without the row to compare with)."""
    found = []
    for row in rows:
        options = json.loads(row["options"])
        p, kind = options.pop("absence", 0.0), options.pop("missing", "")
        base = _row(rows, {**row, "options": json.dumps(options, sort_keys=True)})
        lost = {f"{how} loss": _loss(row, base, how) for how in latents.EVALUATIONS}
        found.append({**row, "p": p, "in place": kind, **lost})
    return found


def _row(rows: Sequence[Row], wanted: Row) -> Row | None:
    """The row of the same training but for its figures."""
    names = (*Job.__dataclass_fields__, "version")
    return next((row for row in rows if all(row[name] == wanted[name] for name in names)), None)


def _loss(row: Row, base: Row | None, how: str) -> float | None:
    return None if base is None else 100 * (1 - row[f"{how} F1"] / base[f"{how} F1"])


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as people see them, in order."""
    place = {name: i for i, name in enumerate((*latents.TABLES, *IN_PLACE))}
    ordered = sorted(losses(rows), key=lambda r: (place[r["table"]], r["seed"], r["p"], place.get(r["in place"], -1)))
    return [one(row) for row in ordered]


def one(row: Row) -> list[str]:
    """One of the rows that `losses` gives."""
    figures = []
    for how in latents.EVALUATIONS:
        lost = row[f"{how} loss"] if row["p"] else None
        figures += [f"{row[f'{how} F1']:.3f}", "" if lost is None else f"{lost:.2f}"]
    kind = row["in place"]
    paper = f"{PAPER[row['table']][IN_PLACE.index(kind)]:.2f}" if kind else ""
    return [row["table"], f"{row['p']:g}", kind, str(row["seed"]), *figures, paper, shown("seconds", row["seconds"])]


each = latents.each


def cells(row: Row) -> list[str]:
    """A row by itself, as it appears."""
    return one(losses([row])[0])


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table with a stamp."""
    return page(TITLE, LEGEND, HEADS, lines(rows))
