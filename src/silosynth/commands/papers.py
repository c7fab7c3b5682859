"""``silosynth papers``: every table and figure of the five papers' evaluations, what reruns it, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silosynth.commands.session import Session, add_command

PaperName = Annotated[str | None, typer.Argument(help="silofuse, vtgan, vflgan, gdts or tabvfl; all if not given.")]
EntryName = Annotated[str, typer.Argument(metavar="NAME", help="Paper and number: silofuse/table-3.")]
PageFile = Annotated[Path, typer.Option("--out", "-o", help="The file to write.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="The papers' tables and figures: what reruns each, and what is kept of it.",
        epilog="Example: silosynth papers list silofuse",
    )
    add_command(group, "list", list_entries, "Example: silosynth papers list silofuse")
    add_command(group, "show", show, "Example: silosynth papers show silofuse/table-3")
    add_command(group, "page", page, "Example: silosynth papers page --out docs/papers.md")
    app.add_typer(group, name="papers", no_args_is_help=True)


def list_entries(ui: Session, paper: PaperName = None) -> None:
    """List every published table and figure, and its state: kept (with its file), command, or none yet."""
    from silosynth.papers import registry

    found = registry.entries(paper)
    rows = [(one.name, one.shows, f"{one.state} {', '.join(one.kept)}".strip()) for one in found]
    ui.table("Published tables and figures", ("name", "what it shows", "state"), rows)
    counts = {state: sum(one.state == state for one in found) for state in registry.STATES}
    ui.show("\n".join(f"{counts[state]:3} {state}: {what}" for state, what in registry.STATES.items()))
    ui.facts |= {"entries": [registry.facts(one) for one in found], "counts": counts}


def show(ui: Session, name: EntryName) -> None:
    """Show a table or figure: what is published, the command that reruns it, kept results, and what deviates."""
    from silosynth.papers import registry

    entry = registry.find(name)
    known = registry.facts(entry)
    ui.show(f"{known['paper']}, {entry.title}: {entry.shows}\n")
    told = {"published": entry.sizes, "command": entry.command, "deviates": entry.deviates, "missing": entry.missing}
    for head, text in told.items():
        if text:
            ui.show(f"{head + ':':<11}{text}")
    for kept in known["kept"]:
        ui.show(f"kept:      {kept['page']}" + (f" ({kept['sizes']})" if kept["sizes"] else ""))
    for kept in entry.kept:
        tables = registry.kept_tables(kept)
        ui.show(f"\n{tables}" if tables else "Results are in the repository; this installation has none.")
    ui.facts |= known


def page(ui: Session, out: PageFile) -> None:
    """Write the page of the documentation. It reads the sizes of kept results, so it needs a clone."""
    from silosynth.core import files
    from silosynth.core.errors import ConfigError
    from silosynth.papers import registry

    if not registry.RESULTS.is_dir():
        remedy = "Install with `pip install --editable .` in a clone."
        raise ConfigError("The page needs the results in the repository", str(registry.RESULTS), remedy)
    files.write_atomic(out, registry.page().encode())
    ui.show(f"Written to {out}")
    ui.facts["path"] = out
