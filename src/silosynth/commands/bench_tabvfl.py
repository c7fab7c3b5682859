"""``silosynth bench latents``, ``failures`` and ``latent-cost``: the experiments of TabVFL's paper."""

from __future__ import annotations

from typing import Annotated

import typer

from silosynth.commands.bench import Out, Repeats, Seed
from silosynth.commands.bench_vflgan import perform
from silosynth.commands.session import Debug, Json, Quiet, session

SMALL_ROWS, SMALL_EPOCHS = 2000, 20

Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table", "-t",
        help="airline_satisfaction, bank_marketing, covertype_50k or intrusion_nsl_kdd_20pct; may be repeated. "
        "Default: bank_marketing.",
    ),
]  # fmt: skip
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method", "-m",
        help="ct, lt, lt-fixed, tabvfl-le, tabvfl, without-pretraining or without-finetuning; may be repeated. "
        "Default: all.",
    ),
]  # fmt: skip
Rows = Annotated[
    int | None,
    typer.Option("--rows", min=100, help=f"Rows of each table, 15 % of them for tests. Default: {SMALL_ROWS}."),
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", min=1, help=f"Of each phase, at most. Default: {SMALL_EPOCHS}.")
]
Batch = Annotated[int | None, typer.Option("--batch", min=2, help="Rows of a batch. Default: the paper's.")]
Preset = Annotated[str, typer.Option("--preset", help="Of TabVFL's options.")]


def register(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("latents", epilog="Example: silosynth bench latents --guests 2 --guests 5 --out latents.md")(latents)
    group.command("failures", epilog="Example: silosynth bench failures --probability 0.5 --repeats 3")(failures)
    group.command("latent-cost", epilog="Example: silosynth bench latent-cost --table airline_satisfaction")(cost)


def latents(
    table: Tables = None,
    method: Methods = None,
    guests: Annotated[
        list[int] | None, typer.Option("--guests", "-g", min=2, help="How many silos; may be repeated. Default: 5.")
    ] = None,
    rows: Rows = None,
    epochs: Epochs = None,
    batch: Batch = None,
    preset: Preset = "paper",
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
            preset=preset, rows=rows or (comparison.PAPER_ROWS if paper else SMALL_ROWS),
            epochs=epochs or (None if paper else SMALL_EPOCHS), options=_batch(batch),
        )  # fmt: skip
        perform(say, wanted, comparison, comparison.each, out)


def failures(
    table: Tables = None,
    probability: Annotated[
        list[float] | None,
        typer.Option("--probability", "-p", help="That a guest is away for an epoch; may be repeated. "
                     "Default: 0.2, 0.35 and 0.5."),
    ] = None,
    rows: Rows = None,
    epochs: Epochs = None,
    batch: Batch = None,
    preset: Preset = "paper",
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
            rows=rows or (PAPER_ROWS if paper else SMALL_ROWS),
            epochs=epochs or (comparison.PAPER_EPOCHS if paper else SMALL_EPOCHS),
        )  # fmt: skip
        perform(say, wanted, comparison, comparison.each, out, comparison.lines)


def cost(
    table: Tables = None,
    guests: Annotated[int, typer.Option("--guests", "-g", min=2, help="How many silos.")] = 5,
    rows: Rows = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of the phase; the paper has 100.")] = 5,
    batch: Annotated[int, typer.Option("--batch", min=2, help="Rows of a batch; the paper has 512.")] = 512,
    preset: Preset = "paper",
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
            table or ["bank_marketing"], guests, seed, _batch(batch), preset=preset, rows=rows or SMALL_ROWS,
            epochs=epochs,
        )  # fmt: skip
        perform(say, wanted, comparison, comparison.each, out)


def _batch(batch: int | None) -> tuple[tuple[str, int], ...]:
    return () if batch is None else (("batch", batch),)
