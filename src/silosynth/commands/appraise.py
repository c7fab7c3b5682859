"""``silosynth appraise``: what silos' columns are worth to each other, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silosynth.commands import jobs, startkit
from silosynth.commands.session import ReportOptions, Session, add_command
from silosynth.core.errors import ConfigError

if TYPE_CHECKING:
    from silosynth.evaluation.appraisal import Appraisal
    from silosynth.privacy.events import Target

EXAMPLE = """\
Example: silosynth appraise experiment.toml --report appraisal.html

Of the file it takes tables, silos and what is declared about columns: all silos on this machine, as in a simulation.

Across organisations: silosynth appraise --kit kits/coordinator --rows 100000 --report appraisal.html

At a silo, of a job that has ended: silosynth appraise --kit kits/bank --name NAME --report appraisal.html"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "appraise", appraise, EXAMPLE)


def appraise(
    ui: Session,
    to: ReportOptions,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE.toml]", help="An experiment file: a simulation's tables and silos."),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="What all of it costs, for each row.")] = 0.5,
    delta: Annotated[float, typer.Option(help="The delta that goes with it; well below one over the rows.")] = 1e-6,
    groups: Annotated[int, typer.Option(help="Most groups of a column, from 2 to 20.")] = 5,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="With a file: the same seed draws the same noise, which is no secret then."),
    ] = None,
    kit: Annotated[
        Path | None, typer.Option("--kit", "-k", help="This machine's start kit: silos of a federation.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="With a kit: a public bound of the rows that a silo holds.")
    ] = None,
    silo: Annotated[list[str] | None, typer.Option(help="With a kit: who takes part; repeatable.")] = None,
    align: Annotated[str, typer.Option(help="With a kit: how rows are linked: psi, keyed-hash or none.")] = "psi",
    name: Annotated[
        str | None, typer.Option(help="With a kit: of the job; one that is there is not started again, but shown.")
    ] = None,
) -> None:
    """Say what silos' columns are worth to each other, with differential privacy and before anything is trained."""
    from silosynth.privacy.events import Target

    if (file is None) == (kit is None):
        rule = "An appraisal is of an experiment file's silos, or of a federation's (--kit)"
        raise ConfigError(rule, "both" if kit else "neither", "Name one of them.")
    to.check()
    target = Target(epsilon, delta)
    if file is not None:
        given = {"--rows": rows, "--silo": silo, "--name": name}
        for option, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"Option {option} is for silos of a federation", value, "Give --kit, or leave it out."
                )
        found = _simulated(ui, file, target, groups, seed)
    else:
        assert kit is not None
        if seed is not None:
            raise ConfigError("Silos of a federation draw their own secret noise", f"--seed {seed}", "Leave it out.")
        found = _deployed(ui, kit, target, groups, rows, silo or (), align, name)
    to.write(ui, found)
    ui.show(str(found))


def _simulated(ui: Session, file: Path, target: Target, groups: int, seed: int | None) -> Appraisal:
    from silosynth.commands import tables
    from silosynth.experiment import grammar
    from silosynth.simulation import appraisal

    plan = grammar.read(file)
    if plan.shares:
        rule = f"{file.name}: an appraisal is of silos that hold different columns of the same rows"
        raise ConfigError(rule, "shares of rows", "Give each silo columns, or a path, instead of a share.")
    simulated = tables.gather(plan).federation(plan.overrides())
    columns, silos = len(simulated.schema.modelled), len(simulated.silos)
    ui.note(f"Appraising {columns} columns of {simulated.rows:,} rows in {silos} silos …")
    with ui.progress("Appraising") as progress:
        return appraisal.appraise(
            simulated, target.epsilon, target.delta, groups=groups, seed=seed, progress=progress
        )  # fmt: skip


def _deployed(
    ui: Session, kit: Path, target: Target, groups: int, rows: int | None, silos: list[str] | tuple[str, ...],
    align: str, name: str | None,
) -> Appraisal:  # fmt: skip
    from silosynth.core.conversation import COORDINATOR
    from silosynth.deployment import appraising, judging

    site = startkit.open_kit(kit)
    folder = site.jobs / (named := name or appraising.appraising_name())
    ui.on_interrupt = f"The job goes on. Later: silosynth appraise --kit {kit} --name {named}"
    ui.facts |= {"job": named}
    if folder.exists():
        jobs.wait_for_counted(ui, site, named)
        return _of_job(ui, folder)
    if site.name != COORDINATOR:
        rule = "Jobs that appraise start at the coordinator's machine; elsewhere those are shown that have ended"
        remedy = "Name one that `silosynth status` shows with --name, or use the coordinator's kit."
        raise ConfigError(rule, site.name, remedy)
    terms = judging.changed(judging.terms(site.roster.parties, site.stream_port), silos, align, None)
    order = appraising.appraising_order(terms, site.roster, site.name, named, target, groups, rows)
    jobs.submit_here(ui, site, order, wait=True)
    return _of_job(ui, folder)


def _of_job(ui: Session, folder: Path) -> Appraisal:
    """What a job has opened; and to whoever asks, what linking rows has told."""
    from silosynth.deployment import appraising

    if (common := appraising.in_common(folder)) is not None:
        ui.note(f"Silos have {common:,} rows in common, as linking them has told; it is exact, and not on the page.")
        ui.facts["common"] = common
    return appraising.appraised(folder)
