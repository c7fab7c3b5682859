"""``silosynth bench``: rerun the experiments of papers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

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
FIVE_TABLES_EPILOG = """Example: silosynth bench total-difference --table adult --dp both --out comparison.md

All five tables take hours: see also benchmarks/vflgan_quality.py, which uses all cores."""

LATENT_ROWS, LATENT_EPOCHS = 2000, 20

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

Algorithms = Annotated[
    list[str] | None,
    typer.Option("--algorithm", "-a", help="One of those compared; may be repeated. Default: all."),
]
Dp = Annotated[str, typer.Option("--dp", help="Train with differential privacy: off, on or both.")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Of differential privacy; delta is the paper's.")]
Classes = Annotated[
    str, typer.Option("--target", help="Learn a target of integers as classes, or as a number (appendix A.6).")
]

LatentTables = Annotated[
    list[str] | None,
    typer.Option(
        "--table", "-t",
        help="airline_satisfaction, bank_marketing, covertype_50k or intrusion_nsl_kdd_20pct; may be repeated. "
        "Default: bank_marketing.",
    ),
]  # fmt: skip
LatentMethods = Annotated[
    list[str] | None,
    typer.Option(
        "--method", "-m",
        help="ct, lt, lt-fixed, tabvfl-le, tabvfl, without-pretraining or without-finetuning; may be repeated. "
        "Default: all.",
    ),
]  # fmt: skip
LatentRows = Annotated[
    int | None,
    typer.Option("--rows", min=100, help=f"Rows of each table, 15 % of them for tests. Default: {LATENT_ROWS}."),
]
PhaseEpochs = Annotated[
    int | None, typer.Option("--epochs", min=1, help=f"Of each phase, at most. Default: {LATENT_EPOCHS}.")
]
BatchRows = Annotated[int | None, typer.Option("--batch", min=2, help="Rows of a batch. Default: the paper's.")]
TabVFLPreset = Annotated[str, typer.Option("--preset", help="Of TabVFL's options.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Rerun the experiments of papers, small by default.", epilog="Example: silosynth bench partitions"
    )
    for name, about in EXPERIMENTS.items():
        group.command(name, help=about, epilog=EPILOG.format(name=name))(_command(name))
    for name, about in BY_ROWS.items():
        group.command(name, help=about, epilog=EPILOG.format(name=name))(_by_rows(name))
    group.command("reconstruction", epilog=EPILOG.format(name="reconstruction"))(reconstruction)
    group.command("total-difference", epilog=FIVE_TABLES_EPILOG)(total_difference)
    group.command("digits", epilog="Example: silosynth bench digits --rows 10000 --epochs 100 --out digits")(digits)
    group.command("latents", epilog="Example: silosynth bench latents --guests 2 --guests 5 --out latents.md")(latents)
    group.command("failures", epilog="Example: silosynth bench failures --probability 0.5 --repeats 3")(failures)
    group.command("latent-cost", epilog="Example: silosynth bench latent-cost --table airline_satisfaction")(cost)
    app.add_typer(group, name="bench", no_args_is_help=True)


# VT-GAN and GDTS.


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
            _perform_settings(say, sizes, results.Results(experiment, out), warn=paper)

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
            _perform_settings(say, sizes, results.Results(experiment, out), warn=paper)

    return bench


def _perform_settings(say: Session, sizes: Sizes, results: Results, warn: bool = False) -> None:
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


# VFLGAN.


def total_difference(
    table: Annotated[
        list[str] | None,
        typer.Option("--table", "-t", help="One of the five; may be repeated. Default: wine_quality_red."),
    ] = None,
    algorithm: Algorithms = None,
    dp: Dp = "off",
    epsilon: Epsilon = 10.0,
    target: Classes = "classes",
    preset: Annotated[str, typer.Option("--preset", help="Of each algorithm.")] = "balanced",
    rows: Annotated[int | None, typer.Option("--rows", min=20, help="Rows of each table. Default: all.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Of each training; the preset's.")] = None,
    repeats: Repeats = None,
    seed: Seed = 0,
    draws: Annotated[int, typer.Option("--draws", min=1, help="Tables of each generator, averaged over.")] = 1,
    curve: Annotated[bool, typer.Option("--curve", help="Take the Fréchet distance along each training.")] = False,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """VFLGAN, its base, VertiGAN, DPLT and central WGAN-GP on five tables (VFLGAN's table 1 and figure 7)."""
    with session(as_json, quiet, debug) as say:
        from silosynth.papers import five_tables
        from silosynth.papers import total_difference as comparison

        wanted = comparison.jobs(
            table or ["wine_quality_red"], algorithm or comparison.ALGORITHMS, _one_of("dp", dp, comparison.Privacy),
            repeats or 1, epsilon, seed=seed, target=_one_of("target", target, five_tables.Target), preset=preset,
            rows=rows, epochs=epochs, draws=draws, curve=curve,
        )  # fmt: skip
        _perform(say, wanted, comparison, comparison.each, out)


def digits(
    algorithm: Algorithms = None,
    rows: Annotated[int, typer.Option("--rows", min=100, help="Images, at most 10000.")] = 1000,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of each training; the paper has 300.")] = 5,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for pictures, figures, and the networks that judge.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Handwritten digits whose upper and lower halves are in two silos (VFLGAN's figures 5 and 6)."""
    with session(as_json, quiet, debug) as say:
        from silosynth.papers import digits as images

        wanted = [images.Job(name, rows, epochs, seed) for name in algorithm or images.ALGORITHMS]
        _perform(say, wanted, images, partial(images.rows, folder=out), None if out is None else out / "digits.md")


# TabVFL.


def latents(
    table: LatentTables = None,
    method: LatentMethods = None,
    guests: Annotated[
        list[int] | None, typer.Option("--guests", "-g", min=2, help="How many silos; may be repeated. Default: 5.")
    ] = None,
    rows: LatentRows = None,
    epochs: PhaseEpochs = None,
    batch: BatchRows = None,
    preset: TabVFLPreset = "paper",
    repeats: Repeats = None,
    seed: Seed = 0,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="The paper's sizes: four tables, 2 and 5 guests, 50000 rows, 300 epochs, three repeats. Takes days.",
        ),
    ] = False,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """What six learners make of TabVFL's latent vectors, and of those of its rivals (its figure 5, table 6.1)."""
    with session(as_json, quiet, debug) as say:
        from silosynth.papers import latents as comparison

        tables = table or (comparison.TABLES if paper else ["bank_marketing"])
        wanted = comparison.jobs(
            tables, method or tuple(comparison.METHODS), guests or ([5, 2] if paper else [5]),
            repeats or (comparison.PAPER_REPEATS if paper else 1), seed,
            preset=preset, rows=rows or (comparison.PAPER_ROWS if paper else LATENT_ROWS),
            epochs=epochs or (None if paper else LATENT_EPOCHS), options=_batch(batch),
        )  # fmt: skip
        _perform(say, wanted, comparison, comparison.each, out)


def failures(
    table: LatentTables = None,
    probability: Annotated[
        list[float] | None,
        typer.Option("--probability", "-p", help="That a guest is away for an epoch; may be repeated. "
                     "Default: 0.2, 0.35 and 0.5."),
    ] = None,
    rows: LatentRows = None,
    epochs: PhaseEpochs = None,
    batch: BatchRows = None,
    preset: TabVFLPreset = "paper",
    repeats: Repeats = None,
    seed: Seed = 0,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="The paper's sizes: four tables, 50000 rows, 60 epochs of each phase, eight "
                     "repeats. Takes days."),
    ] = False,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Guests that fail in training, and what stands in: what they sent last, or zeros (its figure 6, table III)."""
    with session(as_json, quiet, debug) as say:
        from silosynth.papers import failures as comparison
        from silosynth.papers.latents import PAPER_ROWS

        wanted = comparison.jobs(
            table or (list(comparison.PAPER) if paper else ["bank_marketing"]),
            probability or comparison.PROBABILITIES, repeats=repeats or (comparison.PAPER_REPEATS if paper else 1),
            seed=seed, options=_batch(batch or comparison.PAPER_BATCH), preset=preset,
            rows=rows or (PAPER_ROWS if paper else LATENT_ROWS),
            epochs=epochs or (comparison.PAPER_EPOCHS if paper else LATENT_EPOCHS),
        )  # fmt: skip
        _perform(say, wanted, comparison, comparison.each, out, comparison.lines)


def cost(
    table: LatentTables = None,
    guests: Annotated[int, typer.Option("--guests", "-g", min=2, help="How many silos.")] = 5,
    rows: LatentRows = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of the phase; the paper has 100.")] = 5,
    batch: Annotated[int, typer.Option("--batch", min=2, help="Rows of a batch; the paper has 512.")] = 512,
    preset: TabVFLPreset = "paper",
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Seconds, bytes and memory of TabVFL's designs (its table IV)."""
    with session(as_json, quiet, debug) as say:
        from silosynth.papers import latent_cost as comparison

        wanted = comparison.jobs(
            table or ["bank_marketing"], guests, seed, _batch(batch), preset=preset, rows=rows or LATENT_ROWS,
            epochs=epochs,
        )  # fmt: skip
        _perform(say, wanted, comparison, comparison.each, out)


def _batch(batch: int | None) -> tuple[tuple[str, int], ...]:
    return () if batch is None else (("batch", batch),)


def _one_of(name: str, value: str, kind: Any) -> Any:
    """The value, if it is one of a literal type's.

    Raises:
        ConfigError: it is not; names the nearest.
    """
    from silosynth.core.errors import ConfigError, nearest

    if value not in get_args(kind):
        raise ConfigError(f"--{name} is one of {', '.join(get_args(kind))}", value, nearest(value, get_args(kind)))
    return value


def _perform(
    say: Session, wanted: Sequence[Any], module: Any, compute: Callable[..., Any], out: Path | None,
    lines: Callable[[list[Any]], list[list[str]]] | None = None,
) -> None:  # fmt: skip
    """Compute the rows that are not in the file yet, and show all that are asked for: as ``lines``, or one by one."""
    from silosynth.papers import kept

    known = [] if out is None else kept.read(out, module.FORM)
    pending = [job for job in wanted if kept.find(known, job.identity) is None]
    if len(pending) < len(wanted):
        say.note(f"{len(wanted) - len(pending)} of {len(wanted)} rows are in {out} already.")
    say.on_interrupt = "Without --out nothing is kept." if out is None else f"The rows so far are in {out}."
    with say.progress(module.FORM.removeprefix("silosynth bench ")) as tell:
        for row in compute(pending, tell=tell):
            known.append(row)
            say.note(" · ".join(cell for cell in module.cells(row) if cell))
            if out is not None:
                kept.save(out, module.FORM, known, module.markdown(known))
    shown = [row for job in wanted if (row := kept.find(known, job.identity)) is not None]
    say.facts |= {"experiment": module.FORM.removeprefix("silosynth bench "), "rows": shown}
    say.table(module.TITLE, module.HEADS, lines(shown) if lines else [module.cells(row) for row in shown])
    say.note(module.LEGEND if out is None else f"{module.LEGEND} Written to {out}")
