"""``silosynth console``: a site's facts as web pages, and as metrics, on this machine."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from silosynth.commands.session import Session, add_command
from silosynth.commands.startkit import COORDINATOR, KitFolder, open_kit
from silosynth.core.errors import ConfigError
from silosynth.core.files import make_folder


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "console", console, "Example: silosynth console --kit kits/bank", as_json=False)


def console(
    ui: Session,
    kit: KitFolder,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="To listen on.")] = 8710,
    address: Annotated[
        str, typer.Option("--address", help="To listen at. Any but this machine's own is without encryption.")
    ] = "127.0.0.1",
    host_name: Annotated[
        list[str] | None,
        typer.Option("--host-name", help="Another name by which browsers call the console; repeatable."),
    ] = None,
) -> None:
    """Show jobs, approvals, ledgers, policy and budget of a coordinator or silo in a browser, until Ctrl-C.

    Who has the token of work/console.token may come in. Programs read /metrics and /api/facts.json with it.
    """
    from silosynth.deployment.console import REPORTS, TOKEN, Desk, known_hosts, listen, site_token
    from silosynth.deployment.facts import KnownSite

    site = open_kit(kit)
    if site.name not in (COORDINATOR, *site.roster):
        raise ConfigError("The coordinator and silos have a console", site.name, "Use one of their kits.")
    token = site_token(site.folder / "work")
    make_folder(site.folder / "work" / REPORTS)
    server = listen(Desk(KnownSite(site), token, known_hosts(address, port, tuple(host_name or ()))), address, port)
    place = f"http://{f'[{address}]' if ':' in address else address}:{port}/"
    if sys.stderr.isatty():
        ui.note(f"Open {place}login#{token}")
    else:  # logs keep what is written here
        ui.note(f"Open {place}; the token is in {site.folder / 'work' / TOKEN}")
    if address not in ("127.0.0.1", "::1", "localhost"):
        ui.note(f"warning: others can reach {address}, and read along what is not encrypted")
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
