"""``silosynth provision | coordinator | submit | status | stop | ledger | fetch``: federations across organisations."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands.party import KitFolder, timed
from silosynth.commands.session import Debug, Json, Quiet, Session, session
from silosynth.core.errors import ConfigError, ProtocolError, nearest

if TYPE_CHECKING:
    from silosynth.deployment.coordinator import Order
    from silosynth.deployment.kits import StartKit

COORDINATOR = "coordinator"  # `silosynth.core.roster` would load PyTorch
_LOOK = 1.0  # seconds between two looks at a job that is waited for
_WEEK = 7 * 86400.0  # seconds for which an operator's session waits
_AT_HOME = "At the coordinator's machine: silosynth stop JOB"
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A name that `silosynth status` shows.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("provision", epilog="Example: silosynth provision federation.toml --out kits")(provision)
    group = typer.Typer(help="The coordinator's machine.", epilog="Example: silosynth coordinator start")
    group.command("start", epilog="Example: silosynth coordinator start --kit kits/coordinator")(start)
    app.add_typer(group, name="coordinator", no_args_is_help=True)
    app.command("submit", epilog="Example: silosynth submit experiment.toml --kit kits/coordinator")(submit)
    app.command("status", epilog="Example: silosynth status --kit kits/coordinator")(status)
    app.command("stop", epilog="Example: silosynth stop JOB --kit kits/coordinator")(stop)
    app.command("ledger", epilog="Example: silosynth ledger JOB --kit kits/bank")(ledger)
    app.command("fetch", epilog="Example: silosynth fetch JOB --kit kits/bank --out synthetic.csv")(fetch)


def provision(
    file: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="Who takes part.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder that gets a kit for everybody.")] = Path("kits"),
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make start kits: certificates, keys and settings for each organisation."""
    with session(as_json, quiet, debug) as say:
        from silosynth.deployment import kits
        from silosynth.deployment.flare.provisioning import AUTHORITY

        plan = kits.read_plan(file)
        folders = kits.write_kits(plan, out)
        say.table("Start kits", ("for", "folder"), [(folder.name, folder) for folder in folders])
        say.show(
            f"Hand each organisation its own folder over a channel that it trusts: kits hold private keys.\n"
            f"{out / AUTHORITY} issues certificates for this federation: keep it safe, and offline.\n"
            "Silos then write silo.toml and policy.toml in their kit, and run: silosynth party start"
        )
        say.facts |= {"kits": {folder.name: folder for folder in folders}, "authority": out / AUTHORITY}


def start(kit: KitFolder = Path(), quiet: Quiet = False, debug: Debug = False) -> None:
    """Serve silos and jobs until Ctrl-C; jobs that were interrupted go on when their silos are there."""
    with session(False, quiet, debug) as say:
        from silosynth.deployment.dispatcher import Dispatcher
        from silosynth.deployment.flare.console import Console
        from silosynth.deployment.flare.daemon import serve_coordinator

        found = _kit(kit, coordinator=True)
        tell, stop = timed(say), threading.Event()
        dispatcher = Dispatcher(found.jobs, lambda: Console(found.dispatcher), tell)
        watcher = threading.Thread(target=dispatcher.run, args=(stop,), daemon=True, name="silosynth-dispatcher")
        watcher.start()
        say.on_interrupt = f"Jobs go on after: silosynth coordinator start --kit {kit}"
        say.note(f"Coordinator of {found.federation!r} at {found.host}:{found.port}; silos: {', '.join(found.roster)}.")
        try:
            serve_coordinator(found.folder, say=tell)
        finally:
            stop.set()
            watcher.join(10)


def submit(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="What is to be trained.")],
    kit: KitFolder = Path(),
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the job has ended.")] = True,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Start a job, and wait for its end; at the coordinator's machine also show how it goes."""
    with session(as_json, quiet, debug) as say:
        from silosynth.commands.run import note_unused
        from silosynth.deployment import coordinator
        from silosynth.experiment import grammar as experiment

        found, plan = _kit(kit), experiment.read(file)
        order = coordinator.order(plan, found.roster, found.name)
        note_unused(say, plan, "submit")
        say.on_interrupt = f"The job goes on. See: silosynth status --kit {kit}"
        say.facts |= {"job": order.job.name}
        (_submit_here if found.name == COORDINATOR else _submit_from_elsewhere)(say, found, order, wait)


def _submit_here(say: Session, kit: StartKit, order: Order, wait: bool) -> None:
    """At the coordinator's machine: the daemon finds the order in the job's folder."""
    import time

    from silosynth.deployment.coordinator import read_status
    from silosynth.deployment.dispatcher import enqueue

    job, folder = order.job, kit.jobs / order.job.name
    enqueue(order, folder)
    say.note(f"Submitted {job.name}: it begins when the coordinator runs and {', '.join(job.silos)} are connected.")
    if not wait:
        return
    with say.progress(job.name) as bar:
        while (now := read_status(folder)).state not in ("done", "failed"):
            bar(f"{now.state} {now.stage}", now.done / max(1, now.total))
            time.sleep(_LOOK)
    if now.state == "failed":
        raise ProtocolError(f"Job {job.name} ends well: {now.error}")
    say.show(f"Done: {folder}\nGet the synthetic table with: silosynth fetch {job.name} --kit …")
    say.facts |= {"folder": folder, "attempts": now.attempts}


def _submit_from_elsewhere(say: Session, kit: StartKit, order: Order, wait: bool) -> None:
    """At an operator's machine: over the engine, which says of a job no more than whether it runs."""
    from silosynth.deployment import dispatcher
    from silosynth.deployment.flare.console import FINISHED, Console

    name, tell = order.job.name, timed(say)
    with Console(kit.dispatcher) as console:
        if any(info.name == name for info in console.jobs()):
            raise ConfigError("A job's name is used once", name, "Submit it under another name.")
        console.wait_for_parties(order.job.silos, _WEEK, lambda away: tell(f"waiting for {away}") if away else None)
        number = dispatcher.submit(console, order)
        tell(f"submitted {name}")
        say.facts |= {"number": number}
        if not wait:
            return
        state = console.wait(number, _WEEK, lambda state: tell(f"{name} is {state}"))
        if state != FINISHED:
            raise ProtocolError(
                "A job runs to its end at once", "; ".join(console.describe(number).details) or state,
                "If a silo was lost it goes on by itself: see silosynth status, at the coordinator's machine.",
            )  # fmt: skip


def status(kit: KitFolder = Path(), as_json: Json = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """Show jobs and how far they are: those of this machine, or, with an operator's kit, all that the engine knows."""
    with session(as_json, quiet, debug) as say:
        found = _kit(kit)
        at_site = found.name in (COORDINATOR, *found.roster)
        rows = _jobs(found) if at_site else _engine_jobs(found)
        heads = tuple(rows[0]) if rows else ("job", "state")
        if rows:
            say.table(f"Jobs at {found.name}", heads, [tuple(row.values()) for row in rows])
        else:
            say.show(f"No job at {found.name} yet.")
        say.facts["jobs"] = rows


def _jobs(kit: StartKit) -> list[dict[str, Any]]:
    from silosynth.deployment.coordinator import STATUS, read_status
    from silosynth.deployment.entry import LOG

    rows = []
    for folder in sorted(path for path in kit.jobs.glob("*") if path.is_dir()):
        if kit.name == COORDINATOR and (folder / STATUS).exists():
            now = asdict(read_status(folder))
            rows.append({"job": folder.name, **{key: value for key, value in now.items() if key != "since"}})
        elif (folder / LOG).exists():
            rows.append({"job": folder.name, "last": (folder / LOG).read_text("utf-8").splitlines()[-1]})
    return rows


def _engine_jobs(kit: StartKit) -> list[dict[str, Any]]:
    from silosynth.deployment.flare.console import Console

    with Console(kit.dispatcher) as console:
        return [{"job": j.name, "state": j.state, "by": j.operator, "submitted": j.submitted} for j in console.jobs()]


def stop(job: JobName, kit: KitFolder = Path(), quiet: Quiet = False, debug: Debug = False) -> None:
    """Stop a job: any one at the coordinator's machine, with an operator's kit those that it has started."""
    with session(False, quiet, debug) as say:
        from silosynth.deployment.dispatcher import request_stop
        from silosynth.deployment.flare.console import ENDED, Console

        found = _kit(kit)
        if found.name == COORDINATOR:
            request_stop(_job(found, job))
            say.show(f"{job} is being stopped. See: silosynth status --kit {kit}")
            return
        with Console(found.dispatcher) as console:
            known = sorted(console.jobs(), key=lambda info: info.submitted)
            attempts = [info for info in known if info.name == job]
            if not attempts:
                raise ConfigError("The coordinator knows the job", job, nearest(job, [info.name for info in known]))
            if attempts[-1].state in ENDED:
                raise ConfigError("A job can be stopped while it runs", f"{job} is {attempts[-1].state}", _AT_HOME)
            if attempts[-1].operator != found.name:
                raise ConfigError("Operators stop what they started", f"{job}: {attempts[-1].operator}", _AT_HOME)
            console.abort(attempts[-1].job)
        say.show(f"{job} is being stopped.")


def ledger(
    job: JobName, kit: KitFolder = Path(), as_json: Json = False, quiet: Quiet = False, debug: Debug = False
) -> None:
    """Show what left each silo in a job, and what it gives away: as this machine has recorded it."""
    with session(as_json, quiet, debug) as say:
        from silosynth.commands.run import show_ledger, totals
        from silosynth.deployment.coordinator import LEDGER
        from silosynth.privacy.statement import statement

        lines = (_job(_kit(kit), job) / LEDGER).read_text("utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        show_ledger(say, records)
        said = statement(records)
        say.show(f"Guarantee: {said['summary']}")
        say.facts |= {"job": job, "totals": totals(records), "privacy": said}


def fetch(
    job: JobName,
    kit: KitFolder = Path(),
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the table goes: .csv or .parquet.")] = Path(
        "synthetic.csv"
    ),
    report: Annotated[
        Path | None, typer.Option("--report", help="Also judge it by this silo's own rows: report.html or .json.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The column that models are trained to predict.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a job's synthetic table to a file; at a silo also a report, which stays there."""
    with session(as_json, quiet, debug) as say:
        from silosynth.data import sources
        from silosynth.deployment.coordinator import SYNTHETIC

        found = _kit(kit)
        place = _job(found, job) / SYNTHETIC
        if not place.exists():
            raise ConfigError(
                f"Job {job} has left a synthetic table at {found.name}", "none",
                "Is it done (silosynth status)? Partitioned columns stay in their silo.",
            )  # fmt: skip
        table = sources.read(place)
        sources.write(table, out)
        say.show(f"{len(table):,} rows, {len(table.columns)} columns: {out}")
        say.facts |= {"rows": len(table), "columns": list(table.columns), "synthetic": out}
        if report is not None:
            _report(say, found, table, report, target)


def _report(say: Session, kit: StartKit, table: Any, out: Path, target: str | None) -> None:
    """Judge the silo's own columns of a synthetic table by its own rows."""
    from silosynth.commands.evaluate import measure
    from silosynth.deployment.settings import read_silo

    if kit.name == COORDINATOR:
        raise ConfigError("A report needs real rows, which silos have", kit.name, "Use a silo's kit.")
    rows = read_silo(kit.folder)
    real = rows.read().drop(columns=rows.identifiers)
    own = [name for name in real.columns if name in table.columns]
    made = measure(say, {"train": real[own], "synthetic": table[own], "holdout": None}, target, None, None)
    made.save(out)
    say.show(f"{made}\n\nreport {out}")
    say.facts |= {"report": out, "scores": made.to_dict()["scores"]}


def _kit(folder: Path, coordinator: bool = False) -> StartKit:
    from silosynth.deployment.kits import read_kit

    found = read_kit(folder)
    if coordinator and found.name != COORDINATOR:
        raise ConfigError("The coordinator is started with its own kit", found.name, "Use: silosynth party start")
    return found


def _job(kit: StartKit, name: str) -> Path:
    """The folder of a job at this machine."""
    known = sorted(path.name for path in kit.jobs.glob("*") if path.is_dir())
    if name not in known:
        raise ConfigError(f"There is no such job at {kit.name}", name, nearest(name, known))
    return kit.jobs / name
