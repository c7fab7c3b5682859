"""What an operator does for a job to go well: check a site before it, and resume what was suspended."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from silosynth.commands.session import Session, add_command
from silosynth.commands.startkit import COORDINATOR, JobName, KitFolder, job_folder, open_kit
from silosynth.core.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "check", check, "Example: silosynth check --kit kits/bank")
    add_command(app, "resume", resume, "Example: silosynth resume JOB --kit kits/coordinator")


def check(ui: Session, kit: KitFolder = Path()) -> None:
    """Check a site before its jobs: clock, certificate, keys, disk, ports, rows, columns, memory, policy.

    Nothing is changed, and nobody else is told. At a silo its rows are read. The exit code is 2 if something would keep
    the site from its jobs.
    """
    from silosynth.deployment.preflight import findings

    found = list(findings(open_kit(kit)))
    ui.table(f"{kit}", ("", "", ""), [(one.what, one.verdict, one.said) for one in found])
    ui.facts["findings"] = [asdict(one) for one in found]
    if faults := [one for one in found if one.verdict == "fault"]:
        named = ", ".join(dict.fromkeys(one.what for one in faults))
        raise ConfigError("A site is ready for jobs", f"faults of {named}", "See the lines above.")
    ui.show("Ready for jobs.")


def resume(ui: Session, job: JobName, kit: KitFolder = Path()) -> None:
    """Have a suspended job go on from its last checkpoint, once what `silosynth status` says of it is mended."""
    from silosynth.deployment import coordinator

    site = open_kit(kit)
    if site.name != COORDINATOR:
        raise ConfigError("Jobs are resumed at the coordinator's machine", site.name, "Use the coordinator's kit.")
    coordinator.resume(job_folder(site, job))
    ui.show(f"{job} goes on as soon as the coordinator runs and its silos are connected: silosynth status --kit {kit}")
    ui.facts["job"] = job
