"""``silosynth sample``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands.session import Debug, Json, Quiet, Session, session

if TYPE_CHECKING:
    from silosynth.simulation.model import Model

Rows = Annotated[int, typer.Option("--rows", "-n", min=1, help="How many rows to draw.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="File to write; .csv or .parquet.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Draw the same rows again; without it, new ones.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sample", epilog="Example: silosynth sample adult.silosynth -n 10000 -o synthetic.csv")(sample)


def sample(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A file that a run or model.save wrote.")],
    rows: Rows,
    out: Out,
    seed: Seed = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw synthetic rows from a model file."""
    with session(as_json, quiet, debug) as say:
        import silosynth

        draw(say, silosynth.load(model), rows, seed, out)


def draw(say: Session, model: Model, rows: int, seed: int | None, out: Path) -> None:
    """Draw a synthetic table into a file, batch by batch; into one file per silo where its columns stay there."""
    from silosynth.data import sources

    if stays_in_silos(model):
        written = write_parts(model.sample_parts(rows, seed=seed), out)
    else:
        sources.write_batches(model.sample_batches(rows, seed=seed), out)
        written = [out]
    say.facts |= {"rows": rows, "columns": len(model.columns), "synthetic": [str(path) for path in written]}
    say.show(f"{rows:,} synthetic rows of {len(model.columns)} columns: {', '.join(map(str, written))}")


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
