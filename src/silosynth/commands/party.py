"""``silosynth party``: one silo's side in a process of its own. Started by the runtime ``processes``, not by people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silosynth.commands.session import session


def register(app: typer.Typer) -> None:
    """Add the command; it is not listed."""
    app.command("party", hidden=True, epilog="Example: silosynth party /run/silo")(party)


def party(place: Annotated[Path, typer.Argument(metavar="FOLDER", help="What the runtime prepared.")]) -> None:
    """Be one silo of a run on this machine, until its coordinator says goodbye."""
    with session(as_json=False, quiet=True, debug=False):
        from silosynth.party import serve

        serve(place)
