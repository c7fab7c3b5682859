"""What left silos in a job, and whether their ledgers are as they wrote them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands import run
from silosynth.commands.session import Session
from silosynth.commands.startkit import COORDINATOR, JobName, KitFolder, job_folder, local_time, open_kit
from silosynth.core.errors import ConfigError, DataError, nearest
from silosynth.core.files import read

if TYPE_CHECKING:
    from silosynth.deployment import silo_ledger

_SHOWN = 3  # kinds of figures of one release that a table names


def ledger(ui: Session, job: JobName, kit: KitFolder = Path()) -> None:
    """Show what left each silo in a job and what that reveals, as recorded on this machine."""
    from silosynth.deployment import coordinator, silo_ledger
    from silosynth.deployment.kept import guarantee_of, kept_job, statement_of
    from silosynth.privacy.statement import statement

    site = open_kit(kit)
    folder = job_folder(site, job)
    here = site.name == COORDINATOR
    file = folder / coordinator.LEDGER
    records = run.read_ledger(file) if here else run.records_in(silo_ledger.whole_text(file).decode())
    work = coordinator.unpack_order(read(folder / coordinator.ORDER)).job if here else kept_job(folder)
    totals = run.show_ledger(ui, records)
    conditions = [{"by": work.submitter, "given": list(work.asked)}] if work and work.asked else []
    if not here:
        conditions = silo_ledger.asked_conditions(file)
    for one in conditions:
        ui.show(f"Conditions of {one['by']}: {', '.join(one['given'])}")
    privacy = statement(records, horizontal=False) if work is None else statement_of(work, records, own=not here)
    run.show_budget(ui, privacy)
    if work is not None and not here and guarantee_of(work.algorithm, work.config, work.training_seed):
        ui.note("The budget lists what this silo noised; the guarantee is that of the whole job.")
    ui.show(f"Guarantee: {privacy['summary']}")
    ui.facts |= {"job": job, "totals": totals, "privacy": privacy, "conditions": conditions}


def verify_ledger(
    ui: Session,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH]…", help="Silos' ledgers, or their folders of a job; by default all of --kit."),
    ] = None,
    kit: Annotated[Path | None, typer.Option("--kit", help="The silo's start kit, whose key must have signed.")] = None,
    job: Annotated[str | None, typer.Option("--job", help="The job whose ledgers they must be.")] = None,
) -> None:
    """Check silos' own ledgers: that no line was changed, dropped, moved or cut off since they were signed."""
    from silosynth.deployment import silo_ledger

    site = None if kit is None else open_kit(kit)
    silo = site if site is not None and site.name != COORDINATOR else None
    found, checked = list(paths or ()), []
    if not found and silo is not None:
        found = sorted(place.parent for place in silo.jobs.glob(f"*/{silo_ledger.FILE}"))
    if not found:
        raise ConfigError("Ledgers are verified that somebody names", "none", "Name files, or a silo's kit: --kit.")
    for path in found:
        file = path / silo_ledger.FILE if path.is_dir() else path
        verdict = silo_ledger.verify_file(file, job=job)
        if silo is not None and (not paths or verdict.silo == silo.name):
            key = silo_ledger.public_key(silo.seat())
            verdict = silo_ledger.verify_file(file, key=key, job=job, silo=silo.name)
        checked.append((verdict, silo_ledger.whole_text(file)))
        _show_verdict(ui, file, verdict)
    faults = [f"{path}: {fault}" for path, (verdict, _) in zip(found, checked, strict=True) for fault in verdict.faults]
    between = list(silo_ledger.cross_check(checked))
    for fault in between:
        ui.show(f"  {fault}")
    ui.facts["ledgers"] = [{"path": path, **asdict(verdict)} for path, (verdict, _) in zip(found, checked, strict=True)]
    ui.facts["between"] = between
    if faults or between:
        raise DataError(
            "Ledgers are as silos wrote them, and silos were asked the same", [*faults, *between][0],
            "Compare them with copies, and with the other silos' ledgers.",
        )  # fmt: skip
    ui.show("No fault was found.")


def releases(
    ui: Session,
    job: Annotated[str | None, typer.Option("--job", help="Only what this job has released.")] = None,
    kit: KitFolder = Path(),
) -> None:
    """Show what a silo has released with noise in all jobs, when, and the epsilon that its policy counts for it."""
    from silosynth.deployment.facts import KnownSite
    from silosynth.privacy.statement import cell

    site = open_kit(kit)
    if site.name not in site.roster:
        raise ConfigError("Silos keep a record of what they release with noise", site.name, "Use a silo's kit.")
    known = KnownSite(site).releases()
    names = [one["job"] for one in known["jobs"]]
    if job is not None and job not in names:
        raise ConfigError(f"There is no release of such a job at {site.name}", job, nearest(job, names))
    for key in ("releases", "jobs"):
        known[key] = [one for one in known[key] if job in (None, one["job"])]
    ui.facts |= known
    if not known["releases"]:
        ui.show(f"{site.name} has released nothing with noise yet.")
        return
    rows = [
        (local_time(one["at"]), one["job"], _in_short(one["what"]), cell(one["epsilon"])) for one in known["releases"]
    ]
    ui.table(f"Released with noise at {site.name}", ("time", "job", "what", "epsilon"), rows)
    rows_of_jobs = [(one["job"], one["releases"], cell(one["epsilon"])) for one in known["jobs"]]
    ui.table("Each job together", ("job", "releases", "epsilon"), rows_of_jobs)
    _show_spent(ui, known["budget"])


def _in_short(what: list[str]) -> str:
    """Some of what was released, and how much more there was."""
    more = len(what) - _SHOWN
    return "; ".join(what[:_SHOWN]) + (f"; and {more:,} more" if more > 0 else "")


def _show_spent(ui: Session, budget: dict[str, Any]) -> None:
    from silosynth.privacy.statement import cell

    limit = "no limit" if budget["limit"] is None else f"{budget['limit']:g} at most"
    ui.show(f"All jobs together: epsilon {cell(budget['epsilon'])} at delta {budget['delta']:g}; the policy: {limit}.")


def _show_verdict(ui: Session, file: Path, verdict: silo_ledger.Verdict) -> None:
    ui.show(
        f"{file}: job {verdict.job}, silo {verdict.silo}, {verdict.lines:,} lines, {verdict.signed:,} of them signed"
    )
    for text in (*verdict.faults, *(f"note: {note}" for note in verdict.notes)):
        ui.show(f"  {text}")
