"""``silosynth bench total-difference`` and ``digits``: the comparisons of VFLGAN's paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from silosynth.commands.bench import Out, Repeats, Seed
from silosynth.commands.session import Debug, Json, Quiet, Session, session

EPILOG = """Example: silosynth bench total-difference --table adult --dp both --out comparison.md

All five tables take hours: see also benchmarks/vflgan_quality.py, which uses all cores."""

Algorithms = Annotated[
    list[str] | None,
    typer.Option("--algorithm", "-a", help="One of those compared; may be repeated. Default: all."),
]
Dp = Annotated[str, typer.Option("--dp", help="Train with differential privacy: off, on or both.")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Of differential privacy; delta is the paper's.")]
Classes = Annotated[
    str, typer.Option("--target", help="Learn a target of integers as classes, or as a number (appendix A.6).")
]


def register(group: typer.Typer) -> None:
    """Add both commands."""
    group.command("total-difference", epilog=EPILOG)(total_difference)
    group.command("digits", epilog="Example: silosynth bench digits --rows 10000 --epochs 100 --out digits")(digits)


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
            table or ["wine_quality_red"], algorithm or comparison.ALGORITHMS, one_of("dp", dp, comparison.Privacy),
            repeats or 1, epsilon, seed=seed, target=one_of("target", target, five_tables.Target), preset=preset,
            rows=rows, epochs=epochs, draws=draws, curve=curve,
        )  # fmt: skip
        perform(say, wanted, comparison, comparison.each, out)


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
        perform(say, wanted, images, partial(images.rows, folder=out), None if out is None else out / "digits.md")


def one_of(name: str, value: str, kind: Any) -> Any:
    """The value, if it is one of a literal type's.

    Raises:
        ConfigError: it is not; names the nearest.
    """
    from silosynth.core.errors import ConfigError, nearest

    if value not in get_args(kind):
        raise ConfigError(f"--{name} is one of {', '.join(get_args(kind))}", value, nearest(value, get_args(kind)))
    return value


def perform(
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
