"""SiloFuse's table V: how far associations of synthetic columns are from those of real ones, as pictures.

Each picture has a cell for each ordered pair of columns: the absolute difference of Pearson's correlation (numbers),
the correlation ratio (mixed) or Theil's U (categories) in the synthetic table from that in the training rows. Darker is
worse. The paper prints the pictures only, so nothing published stands beside the means.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pandas as pd

from silosynth.evaluation.coding import code_tables
from silosynth.evaluation.fidelity import Dealt, dependence
from silosynth.evaluation.scores import Floats
from silosynth.papers import drawings, experiment, results, silofuse_tables3_4
from silosynth.papers.experiment import Ask, PaperExperiment, Repeats, Row, Section, Seed, Tell, named
from silosynth.papers.silofuse_tables3_4 import METHODS, READINGS, TABLES, NineTablesJob, Preset, TableNames

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARED = ("tabddpm", "latentdiff", "silofuse")
HEADS = ("table", "columns", "model", "reading", "seeds", "mean difference", "largest", "fit s")
FIGURES = ("mean difference", "largest difference", "fit s")


def jobs(
    tables: TableNames = ("cardio", "intrusion_nsl_kdd_20pct"),
    methods: Annotated[Sequence[str], Ask(f"One of {', '.join(COMPARED)}.", ("--method", "-m"))] = COMPARED,
    preset: Preset = "balanced",
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[NineTablesJob]:
    """One row for each table, model and seed.

    Raises:
        ConfigError: there is no such table or model, or a number is not positive.
    """
    experiment.check_known("model", methods, COMPARED)
    return silofuse_tables3_4.jobs(tables, methods, preset, repeats=repeats, seed=seed)


def measure(job: NineTablesJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on two thirds, sample as many rows, and compare all pairs of columns."""
    real, _, _, model, costs = silofuse_tables3_4.fitted(job, tell)
    apart_dd = differences(real, model.sample(len(real), seed=job.seed))
    off = apart_dd[~np.eye(len(apart_dd), dtype=bool)]
    return {
        **job.identity, "columns": len(apart_dd), "mean difference": float(off.mean()),
        "largest difference": float(off.max()), "fit s": costs["seconds"], "differences": apart_dd.round(3).tolist(),
    }  # fmt: skip


def differences(real: pd.DataFrame, drawn: pd.DataFrame) -> Floats:
    """Absolute differences of associations (d, d), 0 on the diagonal."""
    coded = code_tables({"training": real, "synthetic": drawn})
    one, other = (Dealt(coded[name], np.zeros(len(coded[name]), np.int64), 1) for name in ("training", "synthetic"))
    compared = dependence(one, other)
    return np.asarray(np.abs(compared.real[0] - compared.other[0]))


def means(rows: Sequence[Row]) -> list[Row]:
    """Over seeds."""
    return results.means(rows, FIGURES, count="seeds")


def sections(rows: Sequence[Row]) -> list[Section]:
    """One, tables in order and models below each other."""
    ordered = results.in_order(rows, "table", "method", "preset", table=TABLES, method=METHODS)
    return [("", HEADS, [_cells(row) for row in ordered])] if rows else []


def _cells(row: Row) -> list[str]:
    first = [row["table"], str(row["columns"]), row["method"], READINGS.get(row["preset"], row["preset"])]
    figures = [f"{row[name]:.3f}{results.deviation(row, name)}" for name in FIGURES[:2]]
    return [*first, str(row["seeds"]), *figures, f"{row['fit s']:.0f}"]


def pictures(rows: Sequence[Row], page: Path) -> list[str]:
    """All pictures in one file: a line for each table, a picture for each model, means over seeds."""
    found: dict[str, dict[str, Floats]] = {}
    for row in rows:
        model = f"{row['method']}, {READINGS.get(row['preset'], row['preset'])}"
        alike = [r["differences"] for r in rows if all(r[k] == row[k] for k in ("table", "method", "preset"))]
        found.setdefault(row["table"], {})[model] = np.mean(alike, axis=0)
    return drawings.written(page, figure(found), "Differences of associations, darker is worse")


def figure(found: dict[str, dict[str, Floats]]) -> Figure:
    """Pictures (d, d) by table and model, all with the same scale."""
    models = list(dict.fromkeys(model for own in found.values() for model in own))
    drawn: Figure = drawings.library("figure").Figure((3.0 * len(models), 3.0 * len(found)), layout="constrained")
    places = drawn.subplots(len(found), len(models), squeeze=False)
    for line, (table, own) in zip(places, found.items(), strict=True):
        for place, model in zip(line, models, strict=True):
            place.set(xticks=[], yticks=[], title=f"{table}\n{model}" if model in own else "")
            if model in own:
                shown = place.imshow(own[model], cmap="Greys", vmin=0.0, vmax=1.0)
    drawn.colorbar(shown, ax=places, shrink=0.6)
    return drawn


LEGEND = (
    "Absolute differences of associations of all ordered pairs of columns, synthetic from real, between 0 and 1; 0 is "
    "best."
)
EXPERIMENT = PaperExperiment(
    "associations", "Differences of associations (SiloFuse, table V)", LEGEND, jobs, measure, sections, means,
    small={"tables": ("diabetes_pima",), "preset": "fast"},
    kept=({"preset": "fast", "repeats": 3},), published={"preset": "paper", "repeats": 5},
    pictures=pictures, example="--table cardio --preset fast",
    figures=named("mean difference", "largest difference"),
)  # fmt: skip
