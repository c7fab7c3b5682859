"""Jobs of a federation: submit, draw, look at, stop and forget them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands import run
from silosynth.commands.session import Session
from silosynth.commands.startkit import COORDINATOR, JobName, KitFolder, job_folder, local_time, open_kit, timed
from silosynth.core.errors import ConfigError, ProtocolError, nearest

if TYPE_CHECKING:
    from silosynth.data.given import Texts
    from silosynth.deployment import coordinator, kits
    from silosynth.experiment.grammar import Experiment, SampleSection

_LOOK = 1.0  # seconds between two looks at a job that is waited for
_WEEK = 7 * 86400.0  # seconds for which an operator's session waits
_TIMES = ("begun", "last_exchange")
_AT_HOME = "At the coordinator's machine: silosynth stop JOB"


def submit(
    ui: Session,
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")],
    kit: KitFolder = Path(),
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the job has ended.")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only ask all silos whether they would refuse, and why; no row is read.")
    ] = False,
) -> None:
    """Start a job and wait for its end. On the coordinator's machine, progress is shown as well."""
    from silosynth.deployment import coordinator
    from silosynth.experiment import grammar

    site, plan = open_kit(kit), grammar.read(file)
    order = coordinator.order(plan, site.roster, site.name)
    run.note_unused(ui, plan, "submit")
    if dry_run:
        if plan.judge is not None:
            ui.note('[judge] is not asked about: silos allow it by "judge" in algorithms, and by open_tables.')
        _ask_silos(ui, site, order)
        return
    ui.on_interrupt = f"The job goes on. See: silosynth status --kit {kit}"
    ui.facts |= {"job": order.job.name}
    if site.name != COORDINATOR:
        _submit_from_elsewhere(ui, site, order, wait)
    elif submit_here(ui, site, order, wait):
        ui.show(f"Get the synthetic table with: silosynth fetch {order.job.name} --kit …")
    if plan.judge is None:
        return
    if site.name == COORDINATOR and wait:
        _judge_after(ui, site, plan, order.job.name)
    else:
        ui.note(
            "Once the job is done, its table is judged at the coordinator's machine: "
            f"silosynth fetch {order.job.name}, then silosynth judge --job {order.job.name}"
        )


def _ask_silos(ui: Session, kit: kits.StartKit, order: coordinator.Order) -> None:
    """Ask all silos whether they would refuse a job, and show what they say."""
    from silosynth.deployment.coordinator import considering_order, read_refusals

    if kit.name != COORDINATOR:
        raise ConfigError("Silos are asked from the coordinator's machine", kit.name, "Use the coordinator's kit.")
    asked = considering_order(order)
    submit_here(ui, kit, asked, wait=True)
    refusals = read_refusals(kit.jobs / asked.job.name)
    rows = [(silo, "; ".join(said) or "would take part") for silo, said in refusals.items()]
    ui.table(f"{order.job.algorithm}, asked of all silos", ("silo", ""), rows)
    ui.facts |= {"refusals": refusals}
    if refusing := [silo for silo, said in refusals.items() if said]:
        raise ProtocolError("All silos would take part", ", ".join(refusing), "Nothing was read. See the lines above.")


def _judge_after(ui: Session, kit: kits.StartKit, plan: Experiment, job: str) -> None:
    """Judge the table of a job that has trained, in a second job, as the experiment file says."""
    from silosynth.data import sources
    from silosynth.deployment import judging
    from silosynth.deployment.coordinator import SYNTHETIC

    folder = kit.jobs / job
    if not (folder / SYNTHETIC).exists():
        raise ConfigError(
            "A table that is judged across silos is shared", "partitioned", "Leave [judge] out, or share it."
        )
    assert plan.judge is not None
    options = judging.JudgeOptions(**plan.judge.model_dump(exclude={"dealer"}))
    terms = judging.changed(judging.terms_of(folder), (), None, None, plan.judge.dealer)
    order = judging.judging_order(
        sources.read(folder / SYNTHETIC), options, terms, kit.roster, kit.name, job + judging.JUDGED
    )
    submit_here(ui, kit, order, wait=True)
    ui.show(f"Get the report across silos with: silosynth fetch {job} --kit … --report report.html")
    ui.facts |= {"judged": order.job.name}


def submit_here(ui: Session, kit: kits.StartKit, order: coordinator.Order, wait: bool) -> bool:
    """On the coordinator's machine: the daemon finds the order in the job's folder. Whether the job is done."""
    from silosynth.deployment.coordinator import enqueue

    job, folder = order.job, kit.jobs / order.job.name
    enqueue(order, folder)
    ui.note(f"Submitted {job.name}: it begins when the coordinator runs and {', '.join(job.silos)} are connected.")
    if wait:
        _wait_here(ui, job.name, folder)
    return wait


def _wait_here(ui: Session, name: str, folder: Path) -> None:
    from silosynth.deployment.coordinator import read_status

    with ui.progress(name) as bar:
        while (now := read_status(folder)).state not in ("done", "failed", "suspended"):
            bar(f"{now.state} {now.stage}", now.done / max(1, now.total))
            time.sleep(_LOOK)
    if now.state == "suspended":
        text = f"Job {name} is suspended: {now.error}"
        raise ProtocolError(text, remedy=f"Once that is mended, it goes on with: silosynth resume {name}")
    if now.state == "failed":
        raise ProtocolError(f"Job {name} has failed: {now.error}")
    ui.show(f"Done: {folder}")
    ui.facts |= {"folder": folder, "attempts": now.attempts}


def wait_for_counted(ui: Session, kit: kits.StartKit, name: str) -> None:
    """At the coordinator, wait until a job that counts has ended."""
    from silosynth.deployment.coordinator import STATUS

    if (kit.jobs / name / STATUS).exists():
        _wait_here(ui, name, kit.jobs / name)


def _submit_from_elsewhere(ui: Session, kit: kits.StartKit, order: coordinator.Order, wait: bool) -> None:
    """On an operator's machine: over the engine, which only tells whether a job runs."""
    from silosynth.deployment import coordinator
    from silosynth.deployment.flare.console import FINISHED, Console

    name, log = order.job.name, timed(ui)
    with Console(kit.dispatcher) as console:
        if any(info.name == name for info in console.jobs()):
            raise ConfigError("A job's name is used only once", name, "Submit it under another name.")
        console.wait_for_parties(order.job.silos, _WEEK, lambda away: log(f"waiting for {away}") if away else None)
        number = coordinator.submit(console, order)
        log(f"submitted {name}")
        ui.facts |= {"number": number}
        if not wait:
            return
        state = console.wait(number, _WEEK, lambda state: log(f"{name} is {state}"))
        if state != FINISHED:
            raise ProtocolError(
                "A job runs to its end at once", "; ".join(console.describe(number).details) or state,
                "If a silo was lost it goes on by itself: see silosynth status, at the coordinator's machine.",
            )  # fmt: skip
        ui.show(f"Done: {name}. Silos, and the coordinator, get the table with: silosynth fetch {name} --kit …")


def draw(
    ui: Session,
    job: JobName,
    rows: Annotated[int | None, typer.Option("--rows", "-n", min=1, help="How many.")] = None,
    kit: KitFolder = Path(),
    given: Annotated[
        list[str] | None,
        typer.Option("--given", help="A condition, such as age=60..80 or health=poor,fair; repeatable; or JSON."),
    ] = None,
    given_rows: run.GivenFrame = None,
    balance: run.Balance = None,
    shift: run.Shift = None,
    experiment: Annotated[
        Path | None,
        typer.Option("--experiment", help="A file whose [sample] has rows, seed, given, balance or shift."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Public: the same seed draws the same rows. Policies must allow it.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of this job; by default JOB's and the time.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the job has ended.")] = True,
) -> None:
    """Draw more rows from what coordinator and silos keep of a job that has trained, in a job of its own.

    Example: silosynth draw customers-1 --rows 500 --given age=60..80 --balance paid --kit /srv/silosynth/coordinator
    """
    from silosynth.deployment import coordinator

    site = open_kit(kit)
    if site.name != COORDINATOR:
        raise ConfigError("Jobs that draw start at the coordinator's machine", site.name, "Use the coordinator's kit.")
    asked, conditions, framed = _asked(experiment, rows, seed, balance, shift, given, given_rows)
    shares = coordinator.other_shares(asked.balance, asked.shift)
    how = asked.rows, asked.seed, name, site.name, conditions, shares, framed
    order = coordinator.drawing_order(kept_folder(site, job), *how)
    ui.on_interrupt = f"The job goes on. See: silosynth status --kit {kit}"
    ui.facts |= {"job": order.job.name}
    submit_here(ui, site, order, wait)
    ui.show(f"Get the rows with: silosynth fetch {order.job.name} --kit …")


def _asked(
    experiment: Path | None, rows: int | None, seed: int | None, balance: str | None, shift: str | None,
    given: Sequence[str] | None, given_rows: Path | None,
) -> tuple[SampleSection, Sequence[str], Sequence[Texts]]:  # fmt: skip
    """What ``[sample]`` of a file asks for, with options in place of its keys; conditions of all rows, and of each."""
    from silosynth.data.given import in_json, rows_in
    from silosynth.experiment import grammar

    plan = None if experiment is None else grammar.read(experiment)
    section = grammar.SampleSection() if plan is None else plan.sample
    options = {"rows": rows, "seed": seed, "balance": balance, "shift": run.read_shift(shift)}
    section = section.model_copy(update={key: value for key, value in options.items() if value is not None})
    if given or given_rows:
        return section, given or (), rows_in(given_rows) if given_rows else ()
    always = section.given if isinstance(section.given, dict) else {}
    return section, in_json(always), () if plan is None else plan.given_rows()


def kept_folder(kit: kits.StartKit, name: str) -> Path:
    """The folder of a job that was not forgotten on this machine."""
    from silosynth.deployment.forgetting import when_forgotten

    folder = job_folder(kit, name)
    if (when := when_forgotten(folder)) is not None:
        raise ConfigError(
            f"Job {name} is kept at {kit.name}", f"forgotten, {when}",
            f"Its ledger stays: silosynth ledger {name}. For rows train again, under another name.",
        )  # fmt: skip
    return folder


def forget(
    ui: Session,
    job: JobName,
    kit: KitFolder = Path(),
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the silos' receipts.")] = True,
) -> None:
    """Remove a job's model, checkpoints and tables here, and what was drawn from it; the coordinator asks all silos.

    Ledgers stay, and what policies have counted. There is no way back.
    """
    from silosynth.deployment import coordinator, forgetting

    site = open_kit(kit)
    if site.name not in (COORDINATOR, *site.roster):
        raise ConfigError("Jobs are forgotten at the coordinator, or at a silo", site.name, "Use another kit.")
    folder = job_folder(site, job)
    if site.name != COORDINATOR:
        _show_receipts(ui, forgetting.forget(site.jobs, job, site.name, site.seat()))
        return
    asked = coordinator.forget_requests(folder, site.name)
    _show_receipts(ui, coordinator.forget_here(site.jobs, job, site.name))
    for order in asked:
        coordinator.enqueue(order, site.jobs / order.job.name)
    ui.note(f"Each silo is asked as soon as it is connected: {', '.join(order.job.silos[0] for order in asked)}.")
    ui.on_interrupt = f"The rest goes on. See: silosynth status --kit {kit}"
    failed = [text for order in asked if (text := _receipt_of(ui, site, job, order) if wait else "")]
    if failed:
        raise ProtocolError(f"All silos forget {job}", "; ".join(failed), f"Then say again: silosynth forget {job}")


def _receipt_of(ui: Session, kit: kits.StartKit, job: str, order: coordinator.Order) -> str:
    """Wait for a silo's receipts, and show where they are; returns why there are none."""
    from silosynth.deployment.forgetting import RECEIPT

    silo = order.job.silos[0]
    try:
        _wait_here(ui, order.job.name, kit.jobs / order.job.name)
    except ProtocolError as error:
        return f"{silo}: {error}"
    receipt = kit.jobs / job / f"{RECEIPT}-{silo}.json"
    ui.show(f"{silo}: {receipt}" if receipt.exists() else f"{silo}: it had nothing of this job")
    return ""


def _show_receipts(ui: Session, receipts: list[dict[str, Any]]) -> None:
    for receipt in receipts:
        removed, stays = (", ".join(receipt[key]) or "nothing" for key in ("removed", "stays"))
        ui.show(f"{receipt['job']} is forgotten at {receipt['site']}. Removed: {removed}. Stays: {stays}.")
    ui.facts["receipts"] = receipts


def status(ui: Session, kit: KitFolder = Path()) -> None:
    """Show jobs and their progress: this machine's, or, with an operator's kit, all that the engine knows."""
    site = open_kit(kit)
    if site.name in (COORDINATOR, *site.roster):
        _show_site(ui, site)
        return
    rows = _engine_jobs(site)
    ui.table(
        f"Jobs at {site.name}", tuple(rows[0]) if rows else ("job", "state"), [tuple(row.values()) for row in rows]
    )
    ui.facts["jobs"] = rows


def _show_site(ui: Session, kit: kits.StartKit) -> None:
    """The facts of a coordinator or silo, which the console shows as well."""
    from silosynth.deployment.facts import KnownSite

    ui.facts |= (facts := KnownSite(kit).facts())
    here, jobs = kit.name == COORDINATOR, facts["jobs"]
    what = "The coordinator" if here else f"Silo {kit.name}"
    ui.show(f"{what} is {'running' if facts['running'] else 'not running'}.")
    for one in facts["silos"]:
        last = "" if one["connected"] or not one["last_sign"] else f", last seen {local_time(one['last_sign'])}"
        ui.show(f"{one['silo']} is {'connected' if one['connected'] else 'away'}{last}.")
    if warning := facts["certificate"]["warning"]:
        ui.show(f"warning: {warning}")
    if not jobs:
        ui.show(f"No job at {kit.name} yet.")
        return
    own = ("stage", "attempts", "error") if here else ("last", "error")
    rows = [
        (job["job"], job["state"], *(job.get(key, "") for key in own), *(local_time(job.get(key)) for key in _TIMES))
        for job in jobs
    ]
    ui.table(f"Jobs at {kit.name}", ("job", "state", *own, "begun", "last exchange"), rows)


def _engine_jobs(kit: kits.StartKit) -> list[dict[str, Any]]:
    from silosynth.deployment.flare.console import Console

    with Console(kit.dispatcher) as console:
        return [{"job": j.name, "state": j.state, "by": j.operator, "submitted": j.submitted} for j in console.jobs()]


def stop(ui: Session, job: JobName, kit: KitFolder = Path()) -> None:
    """Stop a job: any job on the coordinator's machine; with an operator's kit, a job of the same operator."""
    from silosynth.deployment.coordinator import request_stop
    from silosynth.deployment.flare.console import ENDED, Console

    site = open_kit(kit)
    if site.name == COORDINATOR:
        request_stop(job_folder(site, job))
        ui.show(f"{job} is being stopped. See: silosynth status --kit {kit}")
        return
    with Console(site.dispatcher) as console:
        known = sorted(console.jobs(), key=lambda info: info.submitted)
        attempts = [info for info in known if info.name == job]
        if not attempts:
            raise ConfigError("The coordinator knows the job", job, nearest(job, [info.name for info in known]))
        if attempts[-1].state in ENDED:
            raise ConfigError("A job can be stopped while it runs", f"{job} is {attempts[-1].state}", _AT_HOME)
        if attempts[-1].operator != site.name:
            raise ConfigError("Operators stop what they started", f"{job}: {attempts[-1].operator}", _AT_HOME)
        console.abort(attempts[-1].job)
    ui.show(f"{job} is being stopped.")
