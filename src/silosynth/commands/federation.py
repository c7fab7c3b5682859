"""Federations across organisations: their kits, the machines that run, and one silo of the runtime ``processes``."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from silosynth.commands.jobs import draw, forget, status, stop, submit
from silosynth.commands.ledgers import ledger, releases, verify_ledger
from silosynth.commands.outcomes import JUDGE, approve, fetch, judge, label, refuse, verify
from silosynth.commands.session import Session, add_command, session
from silosynth.commands.startkit import COORDINATOR, KitFolder, Log, LogFormat, open_kit, timed, warn_of_site
from silosynth.core.errors import ConfigError, SilosynthError
from silosynth.core.files import read

if TYPE_CHECKING:
    from silosynth.deployment import kits
    from silosynth.deployment.rows import SiloFile


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
    add_command(group, "releases", releases, "Example: silosynth ledger releases --kit kits/bank")
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
    requests: Annotated[
        Path | None,
        typer.Option("--requests", help="A folder of NAME.request files, of sites that have drawn their own keys."),
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option("--again", help="Who gets a new certificate, as the kit was lost or has expired."),
    ] = None,
) -> None:
    """Make start kits: certificates and settings for each organisation, and keys where it has not drawn its own."""
    from silosynth.deployment import kits
    from silosynth.deployment.flare.authority import issued_by, request_fingerprint
    from silosynth.deployment.flare.provisioning import AUTHORITY

    plan = kits.read_plan(file)
    asked = {} if requests is None else {path.stem: read(path) for path in sorted(requests.glob("*.request"))}
    folders = kits.write_kits(plan, out, asked, again or [])
    own = [one.sha256 for one in issued_by(out / AUTHORITY) if one.name == COORDINATOR][-1]
    ui.table("Start kits", ("for", "folder"), [(folder.name, folder) for folder in folders])
    keys = {name: request_fingerprint(request) for name, request in asked.items()}
    if keys:
        ui.table("Keys that sites have drawn: have each confirm its own", ("by", "SHA-256"), list(keys.items()))
    secret = [folder.name for folder in folders if any(folder.rglob("*.key"))]
    ui.show(
        "Hand each organisation its own folder; those that hold private keys over a channel that it alone can read: "
        f"{', '.join(secret) or 'none'}.\n"
        f"{out / AUTHORITY} issues certificates for this federation: keep it safe, and offline.\n"
        "Silos then write silo.toml and policy.toml in their kit, and run: silosynth party start\n"
        f'The coordinator\'s certificate, for policies: allow_coordinators = ["{own}"]'
    )
    ui.facts |= {"kits": {folder.name: folder for folder in folders}, "authority": out / AUTHORITY, "coordinator": own}
    ui.facts["keys"] = keys


def start_coordinator(ui: Session, kit: KitFolder = Path(), log: Log = LogFormat.TEXT) -> None:
    """Serve silos and jobs until Ctrl-C. Interrupted jobs continue as soon as their silos are connected."""
    from silosynth.deployment.coordinator import Dispatcher
    from silosynth.deployment.flare import console, daemon

    site = open_kit(kit, coordinator=True)
    site.check_private()
    say, stop = timed(ui, site, log), threading.Event()
    tell = say if log is LogFormat.JSON else ui.note
    warn_of_site(site, say)
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
    from silosynth.deployment import endings, forgetting, policy
    from silosynth.deployment.flare import daemon
    from silosynth.deployment.rows import read_silo

    site = open_kit(kit)
    site.check_private()
    say, stop = timed(ui, site, log), threading.Event()
    tell = say if log is LogFormat.JSON else ui.note
    warn_of_site(site, say)
    site.seat()  # raises unless its key is there, and is the pinned one
    endings.tidy(site.jobs)
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
    """Tell in plain words what policy.toml lets the worst coordinator learn, worst first, and which key closes it.

    Below that stand all rules as they are in force, with what each says.
    """
    from silosynth.deployment import exposure, policy

    rules = policy.read_policy(kit)
    found = exposure.exposures(rules)
    rows = [(number, one.learns, one.key or "cannot be closed") for number, one in enumerate(found, 1)]
    ui.table("The worst coordinator can learn", ("", "what", "closed by"), rows)
    ui.show()
    told = exposure.rules_in_force(rules)
    ui.table("Rules in force", ("key", "value", "what it says"), [(one.key, one.value, one.says) for one in told])
    ui.facts["rules"] = [asdict(one) for one in told]
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
