"""The command ``silosynth``, from the files of `silosynth.commands`.

Nothing heavy is imported here: a command loads what it needs when it runs, so that ``--help`` is quick.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Annotated

import typer

from silosynth.commands import (
    appraise,
    audit,
    backup,
    certificates,
    console,
    federation,
    inspect,
    papers,
    preflight,
    run,
)
from silosynth.core.version import VERSION

app = typer.Typer(
    name="silosynth",
    help="Train one generator of synthetic tables on tables that may not be pooled, and measure what it reveals.",
    epilog="Example: silosynth demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for commands in (run, appraise, audit, inspect, federation, certificates, backup, console, preflight, papers):
    commands.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"silosynth {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train one generator of synthetic tables on tables that may not be pooled, and measure what it reveals."""


def main() -> None:
    """Entry point of the console script."""
    # PyTorch's threads spin while they wait for each other. On a machine that does something else as well this costs
    # several times the work itself; never to spin makes two threads slower than one. So they spin for a moment
    # (docs/decisions/0052), unless the user says how to wait. Set before PyTorch is loaded.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if "--debug" not in sys.argv:
        sys.excepthook = _in_one_line
    typer.main.get_command(app)(prog_name="silosynth")


def _in_one_line(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    """Show an unexpected error."""
    detail = (str(error).splitlines() or [""])[0]
    print(f"internal error: {kind.__name__}: {detail}", file=sys.stderr)
    print("       This is a bug in silosynth: run again with --debug and report what it shows.", file=sys.stderr)
