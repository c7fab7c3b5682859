"""``silosynth appraise``: what silos' columns are worth to each other, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silosynth.commands.session import ReportOptions, Session, add_command
from silosynth.core.errors import ConfigError

EXAMPLE = """Example: silosynth appraise experiment.toml --report appraisal.html

Of the file it takes the tables, the silos and what is declared about columns; silos hold different columns of the same
rows. With more epsilon it sees weaker associations: silosynth appraise experiment.toml --epsilon 2"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "appraise", appraise, EXAMPLE)


def appraise(
    ui: Session,
    to: ReportOptions,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="An experiment file: tables and silos.")],
    epsilon: Annotated[float, typer.Option(help="What all of it costs, for each row.")] = 0.5,
    delta: Annotated[float, typer.Option(help="The delta that goes with it; well below one over the rows.")] = 1e-6,
    groups: Annotated[int, typer.Option(help="Most groups of a column, from 2 to 20.")] = 5,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="The same seed draws the same noise; who knows it knows the noise."),
    ] = None,
) -> None:
    """Say what silos' columns are worth to each other, with differential privacy and before anything is trained."""
    from silosynth.commands import tables
    from silosynth.experiment import grammar
    from silosynth.runtime.ledger import Ledger
    from silosynth.simulation import appraisal

    to.check()
    plan = grammar.read(file)
    if plan.shares:
        rule = f"{file.name}: an appraisal is of silos that hold different columns of the same rows"
        raise ConfigError(rule, "shares of rows", "Give each silo columns, or a path, instead of a share.")
    material = tables.gather(plan)
    federation = material.federation(plan.overrides())
    rows, silos = f"{federation.rows:,}", len(federation.silos)
    ui.note(f"Appraising {len(federation.schema.modelled)} columns of {rows} rows in {silos} silos …")
    ledger = Ledger()
    with ui.progress("Appraising") as progress:
        found = appraisal.appraise(
            federation, epsilon, delta, groups=groups, seed=seed, ledger=ledger, progress=progress
        )  # fmt: skip
    to.write(ui, found)
    ui.show(str(found))
