"""``silosynth sample``: draws synthetic rows from a model file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands.session import Session, add_command

if TYPE_CHECKING:
    from silosynth.simulation.model import Model

Rows = Annotated[int, typer.Option("--rows", "-n", min=1, help="How many rows to draw.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write, .csv or .parquet.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="The same seed draws the same rows again.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "sample", sample, "Example: silosynth sample adult.silosynth -n 10000 -o synthetic.csv")


def sample(
    ui: Session,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, written by a run or by model.save.")],
    rows: Rows,
    out: Out,
    seed: Seed = None,
) -> None:
    """Draw synthetic rows from a model file."""
    import silosynth

    draw(ui, silosynth.load(model), rows, seed, out)


def draw(ui: Session, model: Model, rows: int, seed: int | None, out: Path) -> None:
    """Draw a synthetic table into a file, batch by batch; or into a file per silo, if columns stay in their silos."""
    from silosynth.data import sources

    if stays_in_silos(model):
        written = write_parts(model.sample_parts(rows, seed=seed), out)
    else:
        sources.write_batches(model.sample_batches(rows, seed=seed), out)
        written = [out]
    ui.facts |= {"rows": rows, "columns": len(model.columns), "synthetic": [str(path) for path in written]}
    ui.show(f"{rows:,} synthetic rows of {len(model.columns)} columns: {', '.join(map(str, written))}")


def stays_in_silos(model: Model) -> bool:
    """Whether the model was trained so that synthetic columns stay where they are decoded."""
    return getattr(model.config, "synthesis", "shared") == "partitioned"


def write_parts(parts: Mapping[str, Any], out: Path) -> list[Path]:
    """Write each silo's synthetic columns to a file of its own: ``synthetic.csv`` becomes ``synthetic-bank.csv``."""
    from silosynth.data import sources

    written = [out.with_name(f"{out.stem}-{name}{out.suffix}") for name in parts]
    for path, frame in zip(written, parts.values(), strict=True):
        sources.write(frame, path)
    return written
