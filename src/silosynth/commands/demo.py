"""``silosynth demo``: writes an experiment file with two silos' tables, and runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silosynth.commands.session import Session, add_command

EXPERIMENT = """\
# Two organisations hold different columns on the same people, row by row.
# Change what you like and run it again: silosynth run {file}

[silos.insurer]
path = "insurer.csv"

[silos.clinic]
path = "clinic.csv"

[algorithm]
name = "silofuse"
preset = "fast" # better and slower: "balanced", "best"
seed = 7

[split]
holdout = 0.2 # the generator never sees these rows: the report needs them

[evaluate]
target = "{target}"

[output]
folder = "." # beside this file
"""

Out = Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "demo", demo, "Example: silosynth demo --out /tmp/demo")


def demo(ui: Session, out: Out = Path("silosynth-demo")) -> None:
    """Train on two silos, sample and evaluate: takes under two minutes, needs no network and no configuration."""
    from silosynth.commands.run import forget, perform

    forget(out)  # left by an interrupted demonstration, perhaps of another version
    perform(ui, prepare(ui, out))


def prepare(ui: Session, out: Path) -> Path:
    """Write the silos' tables and the experiment file."""
    from silosynth.data import datasets, sources

    table = datasets.demo()
    out.mkdir(parents=True, exist_ok=True)
    for silo, columns in table.silos.items():
        sources.write(table.frame[columns], out / f"{silo}.csv")
    file = out / "experiment.toml"
    file.write_text(EXPERIMENT.format(file=file, target=table.target), encoding="utf-8")
    ui.note(f"{table.about}\nTwo silos, one experiment file: {file}\n")
    return file
