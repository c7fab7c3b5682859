"""What an operator asks before a job: whether a site is ready, and whether silos would take part."""

from __future__ import annotations

from dataclasses import asdict

import typer

from silosynth.commands.federation import KitFolder, open_kit
from silosynth.commands.session import Session, add_command
from silosynth.core.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "check", check, "Example: silosynth check --kit kits/bank")


def check(ui: Session, kit: KitFolder) -> None:
    """Check a site before its jobs: clock, certificate, keys, disk, ports, rows, columns, memory, policy.

    Nothing is changed, and nobody else is told. At a silo its rows are read. The exit code is 2 if something would keep
    the site from its jobs.
    """
    from silosynth.deployment.preflight import findings

    found = list(findings(open_kit(kit)))
    ui.table(f"{kit}", ("", "", ""), [(one.what, one.verdict, one.said) for one in found])
    ui.facts["findings"] = [asdict(one) for one in found]
    if faults := [one for one in found if one.verdict == "fault"]:
        raise ConfigError("A site is ready for jobs", f"{faults[0].what}: {faults[0].said}", "See the lines above.")
    ui.show("Ready for jobs.")
