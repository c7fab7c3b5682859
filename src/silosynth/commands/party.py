"""``silosynth party``: a silo's machine. Also, unlisted, one silo of the runtime ``processes``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from silosynth.commands.session import Debug, Json, Quiet, Session, session

KitFolder = Annotated[
    Path, typer.Option("--kit", "-k", help="The folder that provisioning made for this machine.", show_default="here")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="A silo's own machine.", epilog="Example: silosynth party start --kit kits/bank")
    group.command("start", epilog="Example: silosynth party start --kit kits/bank")(start)
    group.command("key", epilog="Example: silosynth party key --out sealing.key")(key)
    app.add_typer(group, name="party", no_args_is_help=True)
    app.command("silo-process", hidden=True, epilog="Example: silosynth silo-process /run/silo")(silo_process)


def start(kit: KitFolder = Path(), quiet: Quiet = False, debug: Debug = False) -> None:
    """Take part in jobs, as silo.toml and policy.toml allow, until Ctrl-C."""
    with session(False, quiet, debug) as say:
        from silosynth.deployment.flare.daemon import serve_party
        from silosynth.deployment.kits import read_kit
        from silosynth.deployment.settings import read_policy, read_silo

        found = read_kit(kit)
        found.seat()  # its key is there, and is the one that is pinned
        rows, policy = read_silo(found.folder), read_policy(found.folder)
        say.on_interrupt = f"Start again with: silosynth party start --kit {kit}"
        say.note(f"Silo {found.name!r} of {found.federation!r}; rows from {rows.source().describe()}.")
        say.note(f"Allowed: {', '.join(policy.algorithms)}; at least {policy.least_rows} rows. Jobs go to {found.jobs}")
        serve_party(found.folder, say=timed(say))


def key(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the private key goes; nobody else needs it.")],
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw this silo's own sealing key, so that whoever provisions never has it."""
    with session(as_json, quiet, debug) as say:
        from silosynth.deployment.kits import KEY, draw_key

        public = draw_key(out)
        say.show(f'Put this into federation.toml: key = "{public}"\nPut {out} into the kit later, as {KEY}.')
        say.facts |= {"public": public, "private": out}


def timed(say: Session) -> Callable[[str], None]:
    """Lines with the time, as logs have them."""
    import time

    return lambda line: say.note(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")


def silo_process(place: Annotated[Path, typer.Argument(metavar="FOLDER", help="What the runtime prepared.")]) -> None:
    """Be one silo of a run on this machine, until its coordinator says goodbye."""
    with session(as_json=False, quiet=True, debug=False):
        from silosynth.simulation.processes import serve

        serve(place)
