"""``silosynth backup`` and ``restore``: a site in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silosynth.commands.session import Session, add_command
from silosynth.commands.startkit import COORDINATOR, KitFolder, open_kit
from silosynth.core.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "backup", backup, "Example: silosynth backup --kit kits/bank --out bank.backup")
    add_command(app, "restore", restore, "Example: silosynth restore bank.backup --kit kits/bank --nothing-since")


def backup(
    ui: Session,
    out: Annotated[Path, typer.Option("--out", "-o", help="The backup. It holds private keys: encrypt it.")],
    kit: KitFolder = Path(),
) -> None:
    """Write a site into one file: kit, ledgers, budgets, models and tables; not checkpoints of jobs in progress."""
    from silosynth.deployment.backup import back_up

    about = back_up(open_kit(kit), out)
    ui.show(
        f"{out}: {len(about['files'])} files of {about['site']}, as of {about['at']}.\n"
        "It holds private keys and parts of models, and is as private as the rows: encrypt it where it is kept."
    )
    ui.facts |= {"backup": out, "site": about["site"], "at": about["at"], "files": len(about["files"])}


def restore(
    ui: Session,
    file: Annotated[Path, typer.Argument(metavar="BACKUP", help="What `silosynth backup` wrote.")],
    kit: Annotated[Path, typer.Option("--kit", "-k", help="The folder to make; there must be nothing in it.")],
    nothing_since: Annotated[
        bool, typer.Option("--nothing-since", help="No job has begun at this silo since the backup.")
    ] = False,
    spent: Annotated[
        float | None, typer.Option("--spent", min=0.0, help="At most this epsilon was released since, in all jobs.")
    ] = None,
    drawn: Annotated[
        int | None, typer.Option("--drawn", min=0, help="At most so many rows were drawn since, of any one job.")
    ] = None,
) -> None:
    """Make a site from a backup. A silo's budgets are not set back: say what it may have released since."""
    from silosynth.deployment.backup import Since, about_backup, restore as make

    about = about_backup(file)
    stated = spent is not None and drawn is not None
    if about["site"] != COORDINATOR and stated == nothing_since:
        raise ConfigError(
            f"A silo's budgets count what it has released since the backup of {about['at']}", "nothing was said of it",
            "Give --nothing-since if no job has begun since; else --spent EPSILON and --drawn ROWS, at most: metrics, "
            "the coordinator's jobs and other silos' ledgers tell.",
        )  # fmt: skip
    since = Since(spent, drawn) if spent is not None and drawn is not None else None
    site = make(file, kit, since)
    ui.show(
        f"{site.name} is restored into {kit}, as of {about['at']}. Checkpoints are not: jobs in progress begin anew."
    )
    if since is not None:
        ui.show(f"Epsilon {since.epsilon:g} and {since.rows:,} rows of each job count as released since.")
    ui.show("Forget again what was forgotten since, and install the newest list of revoked certificates.")
    ui.facts |= {"site": site.name, "kit": kit, "at": about["at"], "since": since and vars(since)}
