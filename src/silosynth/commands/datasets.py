"""``silosynth datasets``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silosynth.commands.session import Session, add_command

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Also write it to this file, .csv or .parquet.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Public data sets to experiment with.", epilog="Example: silosynth datasets list")
    add_command(group, "list", list_, "Example: silosynth datasets list --json")
    add_command(group, "fetch", fetch, "Example: silosynth datasets fetch adult -o adult.csv")
    app.add_typer(group, name="datasets", no_args_is_help=True)


def list_(ui: Session) -> None:
    """List all known data sets."""
    from silosynth.data import datasets

    known = [datasets.info(name) for name in datasets.names()]
    rows = [(info.name, info.rows, len(info.columns), info.target, info.licence) for info in known]
    heads = ("name", "rows", "columns", "target", "licence")
    ui.table("Data sets", heads, rows)
    ui.facts["datasets"] = [
        dict(zip(heads, row, strict=True)) | {"source": info.source, "citation": info.citation}
        for row, info in zip(rows, known, strict=True)
    ]


def fetch(
    ui: Session,
    name: Annotated[str, typer.Argument(help="A name that `silosynth datasets list` shows.")],
    out: Out = None,
) -> None:
    """Download a data set from its publisher, check it, and keep it."""
    from silosynth.data import datasets, sources

    frame, info = datasets.load(name, return_info=True)
    if out is not None:
        sources.write(frame, out)
    ui.facts |= {"name": name, "rows": len(frame), "columns": list(frame.columns), "path": out}
    ui.show(f"{name}: {len(frame):,} rows, {len(frame.columns)} columns. {info.source}; licence: {info.licence}.")
    ui.show(f"Written to {out}" if out else f'Use it with: [data] dataset = "{name}"')
