"""``silosynth evaluate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands.session import Session, add_command

if TYPE_CHECKING:
    from silosynth.evaluation.report import Report

EXAMPLE = """Example: silosynth evaluate --train train.csv --holdout holdout.csv --synthetic synthetic.csv
--target income --report report.html"""

Table = Path
Train = Annotated[Path, typer.Option("--train", help="The real rows that the generator was trained on.")]
Synthetic = Annotated[Path, typer.Option("--synthetic", help="The synthetic rows.")]
Holdout = Annotated[
    Path | None,
    typer.Option("--holdout", help="Real rows not trained on; some figures need them."),
]
Target = Annotated[str | None, typer.Option("--target", help="The column that models learn to predict.")]
Silos = Annotated[
    Path | None,
    typer.Option("--silos", help="An experiment file, to tell column pairs within a silo from others."),
]
Out = Annotated[Path | None, typer.Option("--report", help="File to write: .html, or .json.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The seed of subsamples and models.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "evaluate", evaluate, EXAMPLE)


def evaluate(
    ui: Session,
    train: Train,
    synthetic: Synthetic,
    holdout: Holdout = None,
    target: Target = None,
    silos: Silos = None,
    report: Out = None,
    seed: Seed = 0,
) -> None:
    """Measure how useful a synthetic table is, and what it reveals."""
    from silosynth.commands import tables

    frames: dict[str, Any] = {"train": tables.read(train), "synthetic": tables.read(synthetic)}
    frames["holdout"] = None if holdout is None else tables.read(holdout)
    result = measure(ui, frames, target=target, silos=_silos(silos, list(frames["train"].columns)), seed=seed)
    if report is not None:
        result.save(report)
        ui.note(f"Report: {report}")
    ui.facts |= result.to_dict() | ({} if report is None else {"path": str(report)})
    ui.show(str(result))


def measure(
    ui: Session,
    frames: Mapping[str, Any],
    target: str | None,
    silos: Mapping[str, Sequence[str]] | None,
    ledger: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> Report:
    """Evaluate, with a progress bar."""
    import silosynth

    with ui.progress("Evaluating") as progress:
        return silosynth.evaluate(**frames, target=target, silos=silos, seed=seed, ledger=ledger, progress=progress)


def _silos(file: Path | None, columns: Sequence[str]) -> dict[str, list[str]] | None:
    """The columns that each silo of an experiment file lists; None if silos hold rows."""
    if file is None:
        return None
    from silosynth import catalog
    from silosynth.core.errors import ConfigError
    from silosynth.experiment import grammar as experiment

    plan = experiment.read(file)
    if plan.shares or catalog.algorithm(plan.algorithm.name).horizontal:
        return None
    silos = plan.participants
    bare = [name for name, silo in silos.items() if silo.columns is None]
    if bare:
        raise ConfigError(f"Silo {bare[0]!r} of {file.name} must list its columns", remedy="Add columns = […].")
    return {name: [c for c in silo.columns or () if c in columns] for name, silo in silos.items()}
