"""Federations across organisations: their kits, machines and jobs; and one silo of the runtime ``processes``."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from silosynth.commands import run
from silosynth.commands.session import Force, ReportOptions, Session, add_command, check_free, session
from silosynth.core.errors import ConfigError, DataError, ProtocolError, SilosynthError, nearest
from silosynth.core.files import REPORTS, check_suffix, read

if TYPE_CHECKING:
    from silosynth.deployment import coordinator, kits, silo_ledger
    from silosynth.deployment.rows import SiloFile
    from silosynth.evaluation.report import Report
    from silosynth.experiment.grammar import Experiment

COORDINATOR = "coordinator"  # `silosynth.core.conversation` would load PyTorch
_LOOK = 1.0  # seconds between two looks at a job that is waited for
_WEEK = 7 * 86400.0  # seconds for which an operator's session waits
_AT_HOME = "At the coordinator's machine: silosynth stop JOB"
KitFolder = Annotated[
    Path,
    typer.Option("--kit", "-k", help="This machine's start kit, from `silosynth provision`.", show_default="here"),
]


class LogFormat(str, Enum):
    """How a site that runs shows what happens."""

    TEXT = "text"
    JSON = "json"


Log = Annotated[LogFormat, typer.Option("--log", help="How events are shown, one line each.")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A name that `silosynth status` shows.")]


JUDGE = """\
Example: silosynth judge synthetic.csv --kit kits/coordinator --epsilon 2 --target income

The table that JOB drew, with the rows that it held out: silosynth judge synthetic.csv --kit kits/coordinator --job JOB

The report at a silo, of what the job --name has opened: silosynth judge synthetic.csv --kit kits/bank --name NAME"""


class _ShowByDefault(TyperGroup):
    """`silosynth ledger JOB` is short for `silosynth ledger show JOB`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else "--help"
        return super().parse_args(ctx, args if first == "--help" or first in self.commands else ["show", *args])


def register(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "provision", provision, "Example: silosynth provision federation.toml --out kits")
    group = typer.Typer(help="Run the coordinator on this machine.", epilog="Example: silosynth coordinator start")
    add_command(
        group, "start", start_coordinator, "Example: silosynth coordinator start --kit kits/coordinator", as_json=False
    )
    app.add_typer(group, name="coordinator", no_args_is_help=True)
    group = typer.Typer(help="Run a silo on this machine.", epilog="Example: silosynth party start --kit kits/bank")
    add_command(group, "start", start_party, "Example: silosynth party start --kit kits/bank", as_json=False)
    add_command(group, "key", key, "Example: silosynth party key --out sealing.key")
    app.add_typer(group, name="party", no_args_is_help=True)
    group = typer.Typer(help="Understand a silo's policy.", epilog="Example: silosynth policy check --kit kits/bank")
    add_command(group, "check", check_policy, "Example: silosynth policy check --kit kits/bank")
    app.add_typer(group, name="policy", no_args_is_help=True)
    app.command("silo-process", hidden=True, epilog="Example: silosynth silo-process /run/silo")(silo_process)
    add_command(app, "submit", submit, "Example: silosynth submit experiment.toml --kit kits/coordinator")
    add_command(app, "draw", draw, "Example: silosynth draw JOB --rows 1000 --kit kits/coordinator")
    add_command(app, "forget", forget, "Example: silosynth forget JOB --kit kits/bank")
    add_command(app, "status", status, "Example: silosynth status --kit kits/coordinator")
    add_command(app, "stop", stop, "Example: silosynth stop JOB --kit kits/coordinator", as_json=False)
    what = "What left silos in a job, and whether their ledgers are as they wrote them."
    group = typer.Typer(cls=_ShowByDefault, help=what, epilog="Example: silosynth ledger JOB --kit kits/bank")
    add_command(group, "show", ledger, "Example: silosynth ledger show JOB --kit kits/bank")
    add_command(group, "verify", verify_ledger, "Example: silosynth ledger verify --kit kits/bank")
    app.add_typer(group, name="ledger", no_args_is_help=True)
    add_command(app, "fetch", fetch, "Example: silosynth fetch JOB --kit kits/bank --out synthetic.csv")
    add_command(app, "approve", approve, "Example: silosynth approve JOB --kit kits/bank --reason 'report looked at'")
    add_command(
        app, "refuse", refuse, "Example: silosynth refuse JOB --kit kits/bank --reason 'too close to real rows'"
    )
    add_command(app, "label", label, "Example: silosynth label JOB --kit kits/coordinator --out synthetic.label.json")
    add_command(app, "verify", verify, "Example: silosynth verify synthetic.csv synthetic.label.json --kit kits/bank")
    add_command(app, "judge", judge, JUDGE)


def provision(
    ui: Session,
    file: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="The file that lists who takes part.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write kits to.")] = Path("kits"),
) -> None:
    """Make start kits: certificates, keys and settings for each organisation."""
    from silosynth.deployment import kits
    from silosynth.deployment.flare.provisioning import AUTHORITY

    plan = kits.read_plan(file)
    folders = kits.write_kits(plan, out)
    own = kits.read_kit(out / COORDINATOR).fingerprint()
    ui.table("Start kits", ("for", "folder"), [(folder.name, folder) for folder in folders])
    ui.show(
        f"Hand each organisation its own folder over a channel that it trusts: kits hold private keys.\n"
        f"{out / AUTHORITY} issues certificates for this federation: keep it safe, and offline.\n"
        "Silos then write silo.toml and policy.toml in their kit, and run: silosynth party start\n"
        f'The coordinator\'s certificate, for policies: allow_coordinators = ["{own}"]'
    )
    ui.facts |= {"kits": {folder.name: folder for folder in folders}, "authority": out / AUTHORITY, "coordinator": own}


def start_coordinator(ui: Session, kit: KitFolder = Path(), log: Log = LogFormat.TEXT) -> None:
    """Serve silos and jobs until Ctrl-C. Interrupted jobs continue as soon as their silos are connected."""
    from silosynth.deployment.coordinator import Dispatcher
    from silosynth.deployment.flare import console, daemon

    site = _kit(kit, coordinator=True)
    site.check_private()
    say, stop = _timed(ui, site, log), threading.Event()
    tell = say if log is LogFormat.JSON else ui.note
    _warn_of_certificate(site, say)
    dispatcher = Dispatcher(site.jobs, lambda: console.Console(site.dispatcher), say)
    watcher = threading.Thread(target=dispatcher.run, args=(stop,), daemon=True, name="silosynth-dispatcher")
    watcher.start()
    ui.on_interrupt = f"Jobs go on after: silosynth coordinator start --kit {kit}"
    tell(f"Coordinator of {site.federation!r} at {site.host}:{site.port}; silos: {', '.join(site.roster)}.")
    try:
        daemon.serve_coordinator(site.folder, say=say)
    finally:
        stop.set()
        watcher.join(10)


def start_party(ui: Session, kit: KitFolder = Path(), log: Log = LogFormat.TEXT) -> None:
    """Take part in jobs until Ctrl-C, within what policy.toml allows."""
    from silosynth.deployment import forgetting, policy
    from silosynth.deployment.flare import daemon
    from silosynth.deployment.rows import read_silo

    site = _kit(kit)
    site.check_private()
    say, stop = _timed(ui, site, log), threading.Event()
    tell = say if log is LogFormat.JSON else ui.note
    _warn_of_certificate(site, say)
    site.seat()  # raises unless its key is there, and is the pinned one
    rows, rules = read_silo(site.folder), policy.read_policy(site.folder)
    if rows.data is not None:
        _check_rows(ui, site, rows)
    ui.on_interrupt = f"Start again with: silosynth party start --kit {kit}"
    held = "no rows: it only deals" if rows.data is None else f"rows from {rows.source().describe()}"
    tell(f"Silo {site.name!r} of {site.federation!r}; {held}.")
    tell(f"Allowed: {', '.join(rules.algorithms)}; at least {rules.least_rows} rows. Jobs go to {site.jobs}")
    if rules.allow_coordinators:
        tell("The coordinator's certificate is compared with the policy's at each connection.")
    if rows.retention_days is not None:
        args = (site.jobs, rows.retention_days, site.seat(), say, stop)
        threading.Thread(target=forgetting.keep_no_longer, args=args, daemon=True, name="silosynth-retention").start()
        tell(f"Jobs are forgotten {rows.retention_days:g} days after their last use.")
    try:
        daemon.serve_party(site.folder, say=say)
    finally:
        stop.set()


def _check_rows(ui: Session, site: kits.StartKit, rows: SiloFile) -> None:
    """Whether the rows can be read, and have the identifiers. A database may be away for now, and is only warned of."""
    from silosynth.deployment.kits import SILO_TEMPLATE
    from silosynth.deployment.rows import SILO, check_rows

    if (site.folder / SILO).read_text("utf-8") == SILO_TEMPLATE:
        raise ConfigError(f"{SILO} says where this silo's rows are", "the template, unchanged", f"Fill in {SILO}.")
    try:
        check_rows(rows)
    except SilosynthError as error:
        if rows.source().database is None:
            raise
        ui.note(f"warning: {error}")


def check_policy(ui: Session, kit: KitFolder = Path()) -> None:
    """Tell in plain words what policy.toml lets the worst coordinator learn, worst first, and which key closes it."""
    from silosynth.deployment import exposure, policy

    rules = policy.read_policy(kit)
    found = exposure.exposures(rules)
    rows = [(number, one.learns, one.key or "cannot be closed") for number, one in enumerate(found, 1)]
    ui.table("The worst coordinator can learn", ("", "what", "closed by"), rows)
    ui.facts["exposures"] = [{"learns": one.learns, "key": one.key, "weight": one.weight} for one in found]


def key(
    ui: Session,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file for the private key; keep it to yourself.")],
) -> None:
    """Draw this silo's own sealing key, so that whoever makes the kits never has it."""
    from silosynth.deployment.kits import KEY, draw_key

    public = draw_key(out)
    ui.show(f'Put this into federation.toml: key = "{public}"\nPut {out} into the kit later, as {KEY}.')
    ui.facts |= {"public": public, "private": out}


def silo_process(
    place: Annotated[Path, typer.Argument(metavar="FOLDER", help="Prepared by the runtime.")],
) -> None:
    """Serve one silo of a run on this machine until its coordinator ends."""
    with session(as_json=False, quiet=True, debug=False):
        from silosynth.simulation.silos import serve

        serve(place)


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

    site, plan = _kit(kit), grammar.read(file)
    order = coordinator.order(plan, site.roster, site.name)
    run.note_unused(ui, plan, "submit")
    if dry_run:
        _ask_silos(ui, site, order)
        return
    ui.on_interrupt = f"The job goes on. See: silosynth status --kit {kit}"
    ui.facts |= {"job": order.job.name}
    if site.name != COORDINATOR:
        _submit_from_elsewhere(ui, site, order, wait)
    elif _submit_here(ui, site, order, wait):
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
    _submit_here(ui, kit, asked, wait=True)
    refusals = read_refusals(kit.jobs / asked.job.name)
    rows = [(silo, "; ".join(said) or "would take part") for silo, said in refusals.items()]
    ui.table(f"{order.job.algorithm}, asked of all silos", ("silo", ""), rows)
    ui.facts |= {"refusals": refusals}
    if refusing := [silo for silo, said in refusals.items() if said]:
        raise ProtocolError("All silos would take part", ", ".join(refusing), "Nothing was read. See the lines above.")


def draw(
    ui: Session,
    job: JobName,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="How many.")],
    kit: KitFolder = Path(),
    given: Annotated[
        list[str] | None,
        typer.Option("--given", help="A condition, such as age=60..80 or health=poor,fair; repeatable; or JSON."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Public: the same seed draws the same rows. Policies must allow it.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of this job; by default JOB's and the time.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the job has ended.")] = True,
) -> None:
    """Draw more rows from what coordinator and silos keep of a job that has trained, in a job of its own."""
    from silosynth.deployment import coordinator

    site = _kit(kit)
    if site.name != COORDINATOR:
        raise ConfigError("Jobs that draw start at the coordinator's machine", site.name, "Use the coordinator's kit.")
    order = coordinator.drawing_order(_kept_job(site, job), rows, seed, name, site.name, given or ())
    ui.on_interrupt = f"The job goes on. See: silosynth status --kit {kit}"
    ui.facts |= {"job": order.job.name}
    _submit_here(ui, site, order, wait)
    ui.show(f"Get the rows with: silosynth fetch {order.job.name} --kit …")


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

    site = _kit(kit)
    if site.name not in (COORDINATOR, *site.roster):
        raise ConfigError("Jobs are forgotten at the coordinator, or at a silo", site.name, "Use another kit.")
    folder = _job(site, job)
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


def _kept_job(kit: kits.StartKit, name: str) -> Path:
    """The folder of a job that was not forgotten on this machine."""
    from silosynth.deployment.forgetting import when_forgotten

    folder = _job(kit, name)
    if (when := when_forgotten(folder)) is not None:
        raise ConfigError(
            f"Job {name} is kept at {kit.name}", f"forgotten, {when}",
            f"Its ledger stays: silosynth ledger {name}. For rows train again, under another name.",
        )  # fmt: skip
    return folder


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
    _submit_here(ui, kit, order, wait=True)
    ui.show(f"Get the report across silos with: silosynth fetch {job} --kit … --report report.html")
    ui.facts |= {"judged": order.job.name}


def _submit_here(ui: Session, kit: kits.StartKit, order: coordinator.Order, wait: bool) -> bool:
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


def _submit_from_elsewhere(ui: Session, kit: kits.StartKit, order: coordinator.Order, wait: bool) -> None:
    """On an operator's machine: over the engine, which only tells whether a job runs."""
    from silosynth.deployment import coordinator
    from silosynth.deployment.flare.console import FINISHED, Console

    name, log = order.job.name, _timed(ui)
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


def status(ui: Session, kit: KitFolder = Path()) -> None:
    """Show jobs and their progress: this machine's, or, with an operator's kit, all that the engine knows."""
    site = _kit(kit)
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
        last = "" if one["connected"] or not one["last_sign"] else f", last seen {_local(one['last_sign'])}"
        ui.show(f"{one['silo']} is {'connected' if one['connected'] else 'away'}{last}.")
    if warning := facts["certificate"]["warning"]:
        ui.show(f"warning: {warning}")
    if not jobs:
        ui.show(f"No job at {kit.name} yet.")
        return
    own = ("stage", "attempts", "error") if here else ("last", "error")
    rows = [
        (job["job"], job["state"], *(job.get(key, "") for key in own), *(_local(job.get(key)) for key in _TIMES))
        for job in jobs
    ]
    ui.table(f"Jobs at {kit.name}", ("job", "state", *own, "begun", "last exchange"), rows)


_TIMES = ("begun", "last_exchange")


def _local(text: str | None) -> str:
    """A time in this machine's zone."""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S") if text else ""


def _engine_jobs(kit: kits.StartKit) -> list[dict[str, Any]]:
    from silosynth.deployment.flare.console import Console

    with Console(kit.dispatcher) as console:
        return [{"job": j.name, "state": j.state, "by": j.operator, "submitted": j.submitted} for j in console.jobs()]


def stop(ui: Session, job: JobName, kit: KitFolder = Path()) -> None:
    """Stop a job: any job on the coordinator's machine; with an operator's kit, a job of the same operator."""
    from silosynth.deployment.coordinator import request_stop
    from silosynth.deployment.flare.console import ENDED, Console

    site = _kit(kit)
    if site.name == COORDINATOR:
        request_stop(_job(site, job))
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


def ledger(ui: Session, job: JobName, kit: KitFolder = Path()) -> None:
    """Show what left each silo in a job and what that reveals, as recorded on this machine."""
    from silosynth.deployment import coordinator, silo_ledger
    from silosynth.deployment.kept import guarantee_of, kept_job
    from silosynth.privacy.statement import known_noise, statement

    site = _kit(kit)
    folder = _job(site, job)
    records = run.read_ledger(folder / coordinator.LEDGER)
    here = site.name == COORDINATOR
    work = coordinator.unpack_order(read(folder / coordinator.ORDER)).job if here else kept_job(folder)
    if work is not None and work.training_seed is not None:
        records = known_noise(records)
    totals = run.show_ledger(ui, records)
    conditions = [{"by": work.submitter, "given": [one.text for one in work.given]}] if work and work.given else []
    if not here:
        conditions = silo_ledger.asked_conditions(folder / coordinator.LEDGER)
    for one in conditions:
        ui.show(f"Conditions of {one['by']}: {', '.join(one['given'])}")
    privacy = statement(records)
    run.show_budget(ui, privacy)
    if work is not None and not here and (whole := guarantee_of(work.algorithm, work.config, work.training_seed)):
        privacy["summary"] = whole
        ui.note("The budget is of what this silo noised, the guarantee that of the whole job.")
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

    site = None if kit is None else _kit(kit)
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
        checked.append((verdict, read(file)))
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


def _show_verdict(ui: Session, file: Path, verdict: silo_ledger.Verdict) -> None:
    ui.show(
        f"{file}: job {verdict.job}, silo {verdict.silo}, {verdict.lines:,} lines, {verdict.signed:,} of them signed"
    )
    for text in (*verdict.faults, *(f"note: {note}" for note in verdict.notes)):
        ui.show(f"  {text}")


def fetch(
    ui: Session,
    to: ReportOptions,
    job: JobName,
    kit: KitFolder = Path(),
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, .csv or .parquet.")] = Path(
        "synthetic.csv"
    ),
    target: Annotated[
        str | None, typer.Option("--target", help="The column that models are trained to predict.")
    ] = None,
    raw_text: run.RawText = False,
    own: Annotated[
        bool, typer.Option("--own", help="Report on this silo's own rows, even if the table was judged across silos.")
    ] = False,
    held: Annotated[
        bool, typer.Option("--held", help="What this silo holds until a person approves, in place of the table.")
    ] = False,
) -> None:
    """Write a job's synthetic table to a file, and a report: across silos if it was judged, else of the silo's rows."""
    from silosynth.data import sources
    from silosynth.deployment import approval
    from silosynth.deployment.coordinator import SYNTHETIC
    from silosynth.deployment.label import LABEL

    to.check()
    site = _kit(kit)
    place = _kept_job(site, job) / SYNTHETIC
    labelled = _labels(out) if (place.parent / LABEL).exists() and not held else ()
    check_free([out, *labelled], to.force)
    if held:
        place = approval.looked_at(place.parent)
    if not place.exists():
        raise ConfigError(
            f"Job {job} has left a synthetic table at {site.name}", "none",
            "Is it done (silosynth status)? Partitioned columns stay in their silo.",
        )  # fmt: skip
    table = sources.read(place)
    sources.write(table, out, raw_text)
    ui.show(f"{len(table):,} rows, {len(table.columns)} columns: {out}")
    ui.facts |= {"rows": len(table), "columns": list(table.columns), "synthetic": out}
    if labelled:
        _write_label(ui, place.parent, *labelled)
    if to.report is not None:
        from silosynth.deployment import judging

        judged = site.jobs / (job + judging.JUDGED)
        if judging.has_counted(judged) and not (own or held):
            _show_report(ui, _across(ui, site, judged.name, table, target, job), to.report)
        else:
            _report(ui, site, job, table, to.report, target)


def approve(
    ui: Session,
    job: JobName,
    kit: KitFolder = Path(),
    reason: Annotated[str, typer.Option("--reason", help="For the ledger.")] = "",
    further: Annotated[
        bool, typer.Option("--further", help="Also what the job draws after this, as many rows as it has said; unseen.")
    ] = False,
) -> None:
    """Let the synthetic columns leave that this silo holds, and that somebody has looked at: `fetch JOB --held`."""
    _decide(ui, kit, job, True, reason, further)


def refuse(
    ui: Session,
    job: JobName,
    reason: Annotated[str, typer.Option("--reason", help="For the ledger; nobody else is told.")],
    kit: KitFolder = Path(),
) -> None:
    """Let the synthetic columns not leave that this silo holds: the job ends at this silo."""
    _decide(ui, kit, job, False, reason, False)


def _decide(ui: Session, kit: Path, job: str, approved: bool, reason: str, further: bool) -> None:
    from silosynth.deployment import approval

    site = _kit(kit)
    if site.name not in site.roster:
        raise ConfigError("Silos hold synthetic columns, and persons there decide", site.name, "Use a silo's kit.")
    decided = approval.decide(_kept_job(site, job), approved, reason, further)
    ui.show(f"{decided['rows']:,} rows of {job} are {decided['verdict']}, by {decided['by']}, {decided['at']}.")
    ui.facts |= decided


def _labels(table: Path) -> tuple[Path, Path]:
    """The files of a table's label: signed, and to be read."""
    stem = table.name.removesuffix(".gz")
    return tuple(table.with_name(Path(stem).stem + ending) for ending in (".label.json", ".label.html"))  # type: ignore[return-value]


def _write_label(ui: Session, folder: Path, out: Path, shown: Path) -> None:
    from silosynth.core.files import write_atomic
    from silosynth.deployment.label import LABEL, read_label
    from silosynth.evaluation.pages import page, source

    write_atomic(out, read(folder / LABEL))
    write_atomic(shown, page("label.html.j2", **read_label(out), style=source("report.css")).encode())
    ui.show(f"label {out}, to be read {shown}")
    ui.facts |= {"label": out, "page": shown}


def label(
    ui: Session,
    job: JobName,
    kit: KitFolder = Path(),
    out: Annotated[Path, typer.Option("--out", "-o", help="The signed label, .json; a page lies beside it.")] = Path(
        "synthetic.label.json"
    ),
    force: Force = False,
) -> None:
    """Write the label of a job's published table: what made it, what that gave away, signed by all silos."""
    from silosynth.deployment import silo_ledger
    from silosynth.deployment.label import LABEL

    check_suffix(out, (".json",))
    shown = out.with_suffix(".html")
    check_free([out, shown], force)
    site = _kit(kit)
    folder = _job(site, job)
    if not (folder / LABEL).exists():
        raise ConfigError(
            f"Job {job} has published a table, which silos have signed", "no label",
            "Is it done (silosynth status)? Columns that stay in their silos, and jobs of earlier versions, have none.",
        )  # fmt: skip
    _write_label(ui, folder, out, shown)
    if site.name in site.roster:
        own = silo_ledger.public_key(site.seat()).hex()
        ui.show(f"The key of this silo's signatures, for whoever asks: {site.name}={own}")
        ui.facts["key"] = own


def verify(
    ui: Session,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="The table: .csv, .parquet or .arrow.")],
    path: Annotated[Path, typer.Argument(metavar="LABEL", help="Its label, .json.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", help="A silo's key, from the silo itself: NAME=KEY; repeatable.")
    ] = None,
    kit: Annotated[
        Path | None, typer.Option("--kit", "-k", help="A silo's kit, which knows its own and the others' keys.")
    ] = None,
) -> None:
    """Check a table and its label, without a network: that no row and no field has changed since silos signed."""
    from silosynth.deployment import label as labels

    known = dict(_named_key(text) for text in key or ())
    if kit is not None:
        site = _kit(kit)
        if site.name not in site.roster:
            raise ConfigError("Keys of silos are known at silos", site.name, "Use a silo's kit, or --key NAME=KEY.")
        known = labels.known_keys(site.jobs, site.seat()) | known
    read_label = labels.read_label(path)
    found = [*labels.faults(read_label, known), *labels.table_faults(read_label, table)]
    for fault in found:
        ui.show(f"  {fault}")
    ui.facts |= {"faults": found, "keys": {silo: one["key"] for silo, one in read_label["silos"].items()}}
    if found:
        raise DataError("Table and label are as silos signed them", found[0], "Ask those who published them.")
    facts = read_label["facts"]
    ui.show(
        f"{table} is what {', '.join(read_label['silos'])} have signed: {facts['rows']:,} rows, job {facts['job']}."
    )
    ui.show(f"Guarantee: {facts['guarantee']}")
    for silo, one in read_label["silos"].items():
        by = "known to be its own" if silo in known else "by the label's own word: ask the silo, and give --key"
        ui.show(f"{silo}: key {one['key']}, {by}")


def _named_key(text: str) -> tuple[str, str]:
    silo, _, key = text.partition("=")
    if not silo or len(key) != 64 or not all(char in "0123456789abcdef" for char in key):
        raise ConfigError("A silo's key is given as NAME=KEY, 64 hexadecimal digits", text)
    return silo, key


def _report(ui: Session, kit: kits.StartKit, job: str, table: Any, out: Path, target: str | None) -> None:
    """Evaluate the silo's own columns of a synthetic table against its own rows."""
    from silosynth.data.infer import infer
    from silosynth.deployment.coordinator import LEDGER
    from silosynth.deployment.kept import kept_model, trained_folder
    from silosynth.deployment.rows import read_silo

    if kit.name == COORDINATOR:
        raise ConfigError(
            "A report needs real rows, which silos have, or tables that they counted together", kit.name,
            f"Have the table judged: silosynth judge TABLE --job {job}. Or use a silo's kit.",
        )  # fmt: skip
    rows, place = read_silo(kit.folder), kit.jobs / job
    parts = _rows_of_job(ui, trained_folder(place), rows.read())
    real = parts["train"].drop(columns=rows.identifiers)
    own = [name for name in real.columns if name in table.columns]
    declared = {name: rule for name, rule in rows.declared.items() if name in own}
    held = parts["holdout"]
    frames = {"train": real[own], "synthetic": table[own], "holdout": None if held is None else held[own]}
    known = kept_model(place, kit.name, infer(real[own], declared), run.read_ledger(place / LEDGER))
    about: dict[str, Any] = {"schema": declared, "model": known, "data": f"rows of silo {kit.name!r}, job {job}"}
    _show_report(ui, run.measure(ui, frames, target, None, **about), out)


def _rows_of_job(ui: Session, folder: Path, whole: Any) -> dict[str, Any]:
    """The rows of a silo's table that a job has trained on, and held out; all of them if that is not known."""
    from silosynth.deployment.rows_used import read_rows_used, table_hash

    used = read_rows_used(folder)
    if used is not None and used.table == table_hash(whole):
        return dict(used.frames(whole))
    why = "it is not kept which" if used is None else "the table has changed since the job trained"
    ui.note(f"warning: {why}: the report compares all {len(whole):,} rows of today, not those that were trained on")
    return {"train": whole, "holdout": None}


def _show_report(ui: Session, result: Report, out: Path) -> None:
    result.save(out)
    ui.show(f"{result}\n\nreport {out}")
    ui.facts |= {"report": out, "scores": result.to_dict()["scores"]}


def _across(ui: Session, kit: kits.StartKit, name: str, table: Any, target: str | None, trained: str = "") -> Report:
    """The report of a job that judged this table; ``trained`` is the job that drew it, if that is known."""
    from silosynth.deployment import judging
    from silosynth.deployment.coordinator import LEDGER

    ledger, data = run.read_ledger(kit.jobs / name / LEDGER), f"silos' rows, job {trained or name}"
    drawn_by = None
    if trained:
        drawn_by = judging.made_by(kit.jobs / trained, None if kit.name == COORDINATOR else kit.name)
    with ui.progress("Judging") as progress:
        return judging.judged_report(
            kit.jobs / name, table, target=target, ledger=ledger, progress=progress, model=drawn_by, data=data
        )


def judge(
    ui: Session,
    synthetic: Annotated[Path, typer.Argument(metavar="SYNTHETIC", help="The table to judge, whatever made it.")],
    kit: KitFolder = Path(),
    job: Annotated[
        str | None, typer.Option("--job", help="The job that trained: its silos, links, kinds, and hold-out are used.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="The column to predict.")] = None,
    opening: Annotated[
        str, typer.Option("--opening", help="What opens: noised or exact tables, or figures; as silos' policies allow.")
    ] = "noised",
    epsilon: Annotated[float, typer.Option("--epsilon", help="What all noised tables together cost.")] = 1.0,
    delta: Annotated[float, typer.Option("--delta", help="Well below one over the number of rows.")] = 1e-6,
    levels: Annotated[int | None, typer.Option("--levels", help="Most levels of a column.")] = None,
    rows: Annotated[int | None, typer.Option("--rows", help="A public bound: no silo holds more rows.")] = None,
    holdout: Annotated[float | None, typer.Option("--holdout", help="The share of rows that was held out.")] = None,
    silo: Annotated[list[str] | None, typer.Option("--silo", help="Who takes part; repeatable.")] = None,
    dealer: Annotated[
        str, typer.Option("--dealer", help="A silo that deals in place of the coordinator, without rows.")
    ] = "",
    align: Annotated[str, typer.Option("--align", help="How rows are linked: psi, keyed-hash or none.")] = "psi",
    name: Annotated[str | None, typer.Option("--name", help="Of the job; one that is done is shown again.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The report: .html, or .json.")] = Path("report.html"),
    force: Force = False,
) -> None:
    """Judge a synthetic table across silos: they count joint tables that nobody holds, and a report is made of these.

    Which tables are counted, and by which levels, follows from the synthetic table. What opens, and how, is decided by
    this command and by each silo's policy.
    """
    from silosynth.data import sources
    from silosynth.deployment import judging

    check_suffix(out, REPORTS)
    check_free([out], force)
    site, table = _kit(kit), sources.read(synthetic)
    if name is not None and (site.jobs / name).exists():
        wait_for_counted(ui, site, name)
        _show_report(ui, _across(ui, site, name, table, target), out)
        return
    if site.name != COORDINATOR:
        raise ConfigError(
            "Jobs that judge start at the coordinator's machine; elsewhere reports of those are made that have ended",
            site.name, "Name one that `silosynth status` shows with --name, or use the coordinator's kit.",
        )  # fmt: skip
    named = name or (f"{job}{judging.JUDGED}" if job is not None else judging.judging_name(synthetic))
    terms = (
        judging.terms_of(_kept_job(site, job))
        if job is not None
        else judging.terms(site.roster.parties, site.stream_port)
    )
    terms = judging.changed(terms, silo or (), align if job is None else None, holdout, dealer)
    options = judging.options(opening, epsilon, delta, target, levels, rows)
    ui.on_interrupt = f"The job goes on. Later: silosynth judge {synthetic} --kit {kit} --name {named}"
    ui.facts |= {"job": named}
    _submit_here(ui, site, judging.judging_order(table, options, terms, site.roster, site.name, named), wait=True)
    _show_report(ui, _across(ui, site, named, table, target, job or ""), out)


def open_kit(folder: Path) -> kits.StartKit:
    """The start kit in a folder."""
    return _kit(folder)


def job_folder(kit: kits.StartKit, name: str) -> Path:
    """The folder of a job on this machine.

    Raises:
        ConfigError: there is no such job.
    """
    return _job(kit, name)


def submit_counting(ui: Session, kit: kits.StartKit, order: coordinator.Order) -> None:
    """On the coordinator's machine: start a job that counts, and wait until it has ended."""
    _submit_here(ui, kit, order, wait=True)


def wait_for_counted(ui: Session, kit: kits.StartKit, name: str) -> None:
    """At the coordinator, wait until a job that counts has ended."""
    from silosynth.deployment.coordinator import STATUS

    if (kit.jobs / name / STATUS).exists():
        _wait_here(ui, name, kit.jobs / name)


def _kit(folder: Path, coordinator: bool = False) -> kits.StartKit:
    from silosynth.deployment.kits import read_kit

    site = read_kit(folder)
    if coordinator and site.name != COORDINATOR:
        raise ConfigError("The coordinator is started with its own kit", site.name, "Use: silosynth party start")
    return site


def _job(kit: kits.StartKit, name: str) -> Path:
    """The folder of a job on this machine."""
    known = sorted(path.name for path in kit.jobs.glob("*") if path.is_dir())
    if name not in known:
        raise ConfigError(f"There is no such job at {kit.name}", name, nearest(name, known))
    return kit.jobs / name


def _timed(ui: Session, kit: kits.StartKit | None = None, form: LogFormat = LogFormat.TEXT) -> Callable[[str], None]:
    """A function that shows lines with the time, as in a log; as JSON, one object a line, with the site."""
    if kit is None or form is LogFormat.TEXT:
        return lambda line: ui.note(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")
    site, federation = kit.name, kit.federation

    def say(line: str) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        level = "warning" if line.startswith("warning: ") else "info"
        record = {"at": at, "level": level, "site": site, "federation": federation, "message": line}
        ui.note(json.dumps(record, ensure_ascii=False))

    return say


def _warn_of_certificate(kit: kits.StartKit, say: Callable[[str], None]) -> None:
    """Say that a certificate ends soon, if it does."""
    from silosynth.deployment.certificates import validity

    if warning := validity(kit).warning(time.time()):
        say(f"warning: {warning}")
