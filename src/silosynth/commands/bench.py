"""``silosynth bench``: rerun the experiments of papers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silosynth.commands.session import Debug, Json, Quiet, Session, session

if TYPE_CHECKING:
    from silosynth.papers.common import Experiment, Job, Sizes
    from silosynth.papers.results import Results

EXPERIMENTS = {
    "partitions": "VT-GAN with nine partitions of its networks, and the central GAN (its paper's figure 7).",
    "importance": "VT-GAN with columns divided by their importance (its paper's figures 9 and 10).",
    "silos": "VT-GAN with two to five silos and two sizes of generator (its paper's figures 11 and 12).",
}
BY_ROWS = {
    "copies": "GDTS with a full copy of the table in every silo (its paper's table I and figure 5).",
    "odd": "GDTS with a silo that repeats a single row (its paper's table II and figure 6).",
}
EPILOG = """Example: silosynth bench {name} --table adult --rows 5000 --epochs 50 --out {name}.md

Without a data set at hand: silosynth bench {name} --table demo"""

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", help="A data set, or demo, which needs no network; may be repeated. Default: loan."),
]
Rows = Annotated[
    int | None,
    typer.Option("--rows", min=1, help="Rows of each table, a fifth of them held out. Default: 1500."),
]
Epochs = Annotated[int | None, typer.Option("--epochs", min=1, help="Epochs of each training. Default: 10.")]
Repeats = Annotated[
    int | None,
    typer.Option("--repeats", "--seeds", min=1, help="Trainings of each setting, with a seed each. Default: 1."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the first repeat; others count up from it.")]
Paper = Annotated[
    bool,
    typer.Option("--paper", help="The paper's sizes: five tables, all rows, 300 epochs, three repeats. Takes days."),
]
PaperByRows = Annotated[
    bool,
    typer.Option("--paper", help="The paper's sizes: four tables, 50000 rows, 500 epochs, three repeats. Takes days."),
]
Silos = Annotated[int, typer.Option("--silos", min=2, help="How many silos; the paper has five.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="File to write, .json or .md, row by row; rows that are in it stay as they are."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    from silosynth.commands import bench_tabvfl, bench_vflgan  # which have options of this file

    group = typer.Typer(
        help="Rerun the experiments of papers, small by default.", epilog="Example: silosynth bench partitions"
    )
    for name, about in EXPERIMENTS.items():
        group.command(name, help=about, epilog=EPILOG.format(name=name))(_command(name))
    for name, about in BY_ROWS.items():
        group.command(name, help=about, epilog=EPILOG.format(name=name))(_by_rows(name))
    group.command("reconstruction", epilog=EPILOG.format(name="reconstruction"))(reconstruction)
    bench_vflgan.register(group)
    bench_tabvfl.register(group)
    app.add_typer(group, name="bench", no_args_is_help=True)


def reconstruction(
    table: Tables = None,
    rows: Rows = None,
    epochs: Epochs = None,
    repeats: Repeats = None,
    seed: Seed = 0,
    paper: Paper = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write, .json or .md.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Attacks on what VT-GAN's parties are told, in seven settings (its paper's figures 4 and 5, and more)."""
    with session(as_json, quiet, debug) as say:
        from silosynth.papers import reconstruction as attacks

        if out is not None:
            attacks.check(out)
        say.on_interrupt = "Nothing is kept." if out is None else f"The rows of settings that ended are in {out}."
        found: list[dict[str, Any]] = []
        with say.progress("reconstruction") as tell:
            for row in attacks.rows(_sizes(None, paper, table, rows, epochs, repeats, seed), tell):
                found.append(row)
                say.note(f"{row['table']} · {row['setting']} · {row['attack']}: {attacks.cells(row)[4]}")
                if out is not None:
                    attacks.save(out, found)
        say.facts |= {"experiment": "reconstruction", "rows": found}
        say.table(attacks.TITLE, attacks.heads()[:-1], [attacks.cells(row)[:-1] for row in found])
        for name, meaning in {row["attack"]: row["meaning"] for row in found}.items():
            say.note(f"{name}: {meaning}")
        say.note(attacks.LEGEND if out is None else f"{attacks.LEGEND} Written to {out}")


def _sizes(
    experiment: Experiment | None, paper: bool, tables: list[str] | None, rows: int | None, epochs: int | None,
    repeats: int | None, seed: int,
) -> Sizes:  # fmt: skip
    """The paper's sizes or the small ones, but for what is given."""
    from silosynth.papers import common

    published = common.PAPER if experiment is None else experiment.paper
    base = published if paper else common.SMALL
    return replace(
        base, tables=tuple(tables or base.tables), rows=rows or base.rows, epochs=epochs or base.epochs,
        repeats=repeats or base.repeats, seed=seed,
    )  # fmt: skip


def _command(name: str) -> Callable[..., None]:
    def bench(
        table: Tables = None,
        rows: Rows = None,
        epochs: Epochs = None,
        repeats: Repeats = None,
        seed: Seed = 0,
        paper: Paper = False,
        out: Out = None,
        as_json: Json = False,
        quiet: Quiet = False,
        debug: Debug = False,
    ) -> None:
        with session(as_json, quiet, debug) as say:
            from silosynth.papers import results

            experiment: Experiment = importlib.import_module(f"silosynth.papers.{name}").EXPERIMENT
            sizes = _sizes(experiment, paper, table, rows, epochs, repeats, seed)
            perform(say, sizes, results.Results(experiment, out), warn=paper)

    return bench


def _by_rows(name: str) -> Callable[..., None]:
    def bench(
        table: Tables = None,
        rows: Rows = None,
        epochs: Epochs = None,
        silos: Silos = 5,
        repeats: Repeats = None,
        seed: Seed = 0,
        paper: PaperByRows = False,
        out: Out = None,
        as_json: Json = False,
        quiet: Quiet = False,
        debug: Debug = False,
    ) -> None:
        with session(as_json, quiet, debug) as say:
            from silosynth.papers import results

            experiment: Experiment = importlib.import_module(f"silosynth.papers.{name}").experiment(silos)
            sizes = _sizes(experiment, paper, table, rows, epochs, repeats, seed)
            perform(say, sizes, results.Results(experiment, out), warn=paper)

    return bench


def perform(say: Session, sizes: Sizes, results: Results, warn: bool = False) -> None:
    """Compute the rows that are not there yet, and show all; with `warn` say first how long it takes."""
    from silosynth.papers import common

    wanted = common.jobs(results.experiment, sizes)
    pending = [job for job in wanted if results.find(job) is None]
    if len(pending) < len(wanted):
        say.note(f"{len(wanted) - len(pending)} of {len(wanted)} rows are in {results.kept} already.")
    if warn and pending:
        _announce(say, pending)
    say.on_interrupt = (
        "Without --out nothing is kept."
        if results.path is None
        else f"The rows so far are in {results.kept}; the same command continues."
    )
    try:
        _compute(say, pending, results)
    finally:  # whatever ends it, what was computed is shown
        _show(say, wanted, results)


def _announce(say: Session, pending: list[Job]) -> None:
    from silosynth.papers import common
    from silosynth.simulation import pace

    say.note("Measuring the pace …")
    seconds = common.expected(pending)
    say.facts["expected_seconds"] = seconds
    say.note(f"{len(pending)} trainings will take about {pace.duration(seconds)} on this machine.")


def _compute(say: Session, pending: list[Job], results: Results) -> None:
    from silosynth.papers import common
    from silosynth.papers.results import shown

    with say.progress(results.experiment.name) as tell:
        for job, row in zip(pending, common.each(pending, tell=tell), strict=True):
            results.add(row)
            names = [name for name in (*common.FIGURES, "seconds", "side by side") if name in row]
            figures = [f"{name} {shown(name, row[name])}" for name in names]
            say.note(f"{job.title}: {', '.join(figures)}")


def _show(say: Session, wanted: list[Job], results: Results) -> None:
    from silosynth.papers.results import means, sizes, stamp, text

    rows = [row for row in map(results.find, wanted) if row is not None]
    averaged = means(rows)
    say.facts |= {"experiment": results.experiment.name, "rows": rows, "means": averaged, "stamp": stamp()}
    say.facts |= {} if results.path is None else {"path": results.path}
    if averaged:
        say.show(f"{results.experiment.title}: {sizes(averaged)}\n\n{text(averaged)}\n")
        say.note(results.experiment.legend)
    if results.path is not None and averaged:
        say.note(f"Written to {results.path}")
