"""SiloFuse's figure 10: bytes sent in training against iterations; SiloFuse's are constant, E2EDistr's grow.

Four silos. Bytes are those of all encoded messages, as the ledger counts them; networks are narrow, since their width
does not show in any message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from silosynth.papers import drawings, results, tables
from silosynth.papers.experiment import (
    Ask,
    PaperExperiment,
    PaperJob,
    Row,
    Tell,
    check_known,
    check_positive,
    named,
    train,
)

TABLES = ("abalone", "intrusion_nsl_kdd_20pct")
METHODS = ("silofuse", "e2edistr")


@dataclass(frozen=True)
class BytesJob(PaperJob):
    """One training."""

    table: str
    algorithm: str
    iterations: int


def jobs(
    tables: Annotated[Sequence[str], Ask(f"One of {', '.join(TABLES)}.", ("--table", "-t"))] = TABLES,
    iterations: Annotated[Sequence[int], Ask("Of each network's training.", ("--iterations",))] = (50, 500),
) -> list[BytesJob]:
    """Both methods, table by table.

    Raises:
        ConfigError: there is no such table, or a number is not positive.
    """
    check_known("table", tables, TABLES)
    check_positive(iterations=min(iterations))
    return [BytesJob(table, method, count) for table in tables for method in METHODS for count in iterations]


def measure(job: BytesJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train for so many iterations, and read the ledger."""
    steps = job.iterations
    options = {
        "coder.steps": steps, "coder.hidden": [16, 16], "latent.steps": steps, "latent.width": 16, "latent.depth": 2,
        "latent.checks": 4, "coder.calibrate": False,
    }  # fmt: skip
    federation = tables.in_silos(tables.modelled(job.table), 4)
    model, costs = train(job.algorithm, federation, "paper", 0, options, tell)
    return {**job.identity, "messages": len(model.ledger), "bytes": costs["bytes"]}


def pictures(rows: Sequence[Row], page: Path) -> list[str]:
    """Bytes over iterations, a panel for each table."""
    found = [
        panel
        for table in dict.fromkeys(row["table"] for row in rows)
        for panel in drawings.panels(
            sorted((row for row in rows if row["table"] == table), key=lambda row: int(row["iterations"])),
            {"bytes": "bytes"}, lambda row: row["iterations"], lambda row: str(row["algorithm"]), "iterations", table,
            joined=True, log=True,
        )
    ]  # fmt: skip
    return drawings.beside(page, drawings.wrapped(found), "Bytes sent against iterations")


EXPERIMENT = PaperExperiment(
    "bytes", "Bytes sent in training against iterations (SiloFuse, figure 10)",
    "Bytes of all messages of a training, four silos.", jobs, measure, results.plain,
    small={"tables": ("abalone",), "iterations": (50, 100)},
    kept=({"iterations": (50, 500, 2000)},),
    published={"iterations": (50_000, 500_000, 5_000_000)},
    pictures=pictures, example="--table abalone --iterations 200",
    figures=named("messages", "bytes"),
)  # fmt: skip
