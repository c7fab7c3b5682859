"""What TabVFL's designs cost (its table IV; 100 epochs, batches of 512): seconds, bytes, memory of either phase.

Each phase is trained by itself in a process of its own, in which all parties are; early stopping is off. The paper's
megabytes are those of one epoch's features, masks and decoded parts, without gradients; ours are of all messages, both
ways. Its Rice MSC table is not among the data sets here.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from silosynth.core.errors import ConfigError
from silosynth.papers import latents
from silosynth.papers.common import Row, Tell
from silosynth.papers.latents import Job, page
from silosynth.papers.results import shown

METHODS = ("ct", "lt", "tabvfl-le", "tabvfl")
PHASES = {"pre-training": "finetune", "fine-tuning": "pretrain"}  # a phase -> the option that leaves out the other one
PAPER = {  # table IV, Rice MSC, five guests, 100 epochs: seconds of pre-training and fine-tuning
    "ct": (151, 116),
    "lt": (244, 187),
    "tabvfl-le": (252, 204),
    "tabvfl": (194, 138),
}
FORM = "silosynth bench latent-cost"
TITLE = "What learning latent vectors costs (TabVFL, table IV)"
LEGEND = (
    "Seconds of the phase by itself, with encoding before and latents of all rows after it; published: of 50 000 rows "
    "of another table, on another machine. MB: of all messages, per epoch. Memory: the most that the process of all "
    "parties had, in MB, Python and PyTorch among it."
)
HEADS = ("table", "guests", "method", "phase", "epochs", "s", "published", "MB per epoch", "memory")


def jobs(
    tables: Sequence[str], guests: int = 5, seed: int = 0, options: tuple[tuple[str, Any], ...] = (), **each: Any
) -> list[Job]:
    """All trainings, table by table.

    Raises:
        ConfigError: there is no such table.
    """
    return [
        replace(job, options=(*options, ("validation", 0.0), (other, False)))
        for job in latents.jobs(tables, METHODS, (guests,), seed=seed, **each)
        for other in PHASES.values()
    ]


def each(pending: Sequence[Job], tell: Tell = lambda stage, share: None) -> Iterator[Row]:
    """The rows, one after the other, each from a process of its own.

    Raises:
        ConfigError: the system does not tell a process's largest memory.
    """
    if sys.platform == "win32":
        raise ConfigError("Memory is measured where the system keeps its maximum", sys.platform, "Use Linux or macOS.")
    for number, job in enumerate(pending):
        tell(f"{number + 1}/{len(pending)} {job.title}", number / len(pending))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            yield fresh.submit(measure, job).result()


def measure(job: Job) -> Row:
    """Train, and note what it took."""
    task = latents.load(job.table, job.guests, job.rows, job.seed)
    epochs: dict[str, int] = {}
    start = time.perf_counter()
    made = latents.train(job, task, epochs, lambda stage, share: None)
    return {
        **job.identity,
        "seconds": time.perf_counter() - start,
        "bytes": None if job.method == "ct" else sum(record["bytes"] for record in made.ledger),
        "epochs run": sum(epochs.values()),
        "memory": _peak(),
    }


def _peak() -> int:
    """Bytes of this process's largest resident set."""
    import resource  # which Windows lacks

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def cells(row: Row) -> list[str]:
    """A row as people see it."""
    options = json.loads(row["options"])
    phase, which = next((name, i) for i, (name, other) in enumerate(PHASES.items()) if options.get(other) is False)
    guests = "" if row["bytes"] is None else str(row["guests"])
    sent = "" if row["bytes"] is None else shown("bytes", row["bytes"] / max(1, row["epochs run"]))
    published = str(PAPER[row["method"]][which])
    cost = [shown("seconds", row["seconds"]), published, sent, f"{row['memory'] / 1e6:,.0f}"]
    return [row["table"], guests, row["method"], phase, str(row["epochs run"]), *cost]


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table with a stamp."""
    return page(TITLE, LEGEND, HEADS, [cells(row) for row in rows])
