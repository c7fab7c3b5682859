"""What TabVFL's designs cost (its table IV; 100 epochs, batches of 512): seconds, bytes, memory of either phase.

Each phase is trained by itself in a process of its own, in which all parties are; early stopping is off. The paper's
megabytes fit one epoch's features, masks and decoded parts of 35 000 rows, without gradients, though its text says one
iteration of a batch of 4096; ours are of all messages, both ways. Its Rice MSC table is not among the data sets here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from silosynth.core.errors import ConfigError
from silosynth.papers import results, tabvfl_figure5
from silosynth.papers.experiment import Ask, Options, PaperExperiment, Row, Section, Seed, Tell, named
from silosynth.papers.tabvfl_figure5 import LatentsJob, Preset, RowCount, TableNames

METHODS = ("ct", "lt", "tabvfl-le", "tabvfl")
PHASES = {"pre-training": "finetune", "fine-tuning": "pretrain"}  # a phase -> the option that leaves out the other one
PUBLISHED = {  # table IV, Rice MSC, five guests, 100 epochs: seconds and megabytes of pre-training, and of fine-tuning
    "ct": ((151, None), (116, None)),
    "lt": ((244, None), (187, 0.7)),
    "tabvfl-le": ((252, 14.7), (204, 3.5)),
    "tabvfl": ((194, 30.38), (138, 14.84)),
}
MEMORY = {"ct": 2750, "lt": 15_120, "tabvfl-le": 14_730, "tabvfl": 14_730}  # table IV: megabytes of both phases
LEGEND = (
    "Seconds of the phase by itself, with encoding before and latents of all rows after it; published: of 50 000 rows "
    "of another table, on another machine. MB: of all messages, per epoch; published: of one epoch's features, masks "
    "and decoded parts, without gradients, as its numbers tell (the text: one batch of 4096). Memory: the most that "
    "the process of all parties had, in MB, Python and PyTorch among it; published: on a GPU's machine."
)
HEADS = (
    "table", "guests", "method", "phase", "epochs", "s", "published", "MB per epoch", "published", "memory",
    "published",
)  # fmt: skip


def jobs(
    tables: TableNames = ("bank_marketing",),
    guests: Annotated[int, Ask("How many silos.", ("--guests", "-g"), 2)] = 5,
    rows: RowCount = 2000,
    epochs: Annotated[int, Ask("Of the phase; the paper has 100.", least=1)] = 5,
    batch: Annotated[int, Ask("Rows of a batch; the paper has 512.", least=2)] = 512,
    preset: Preset = "paper",
    options: Options = (),
    seed: Seed = 0,
) -> list[LatentsJob]:
    """All trainings, table by table.

    Raises:
        ConfigError: there is no such table, or the system does not report a process's largest memory.
    """
    if sys.platform == "win32":
        raise ConfigError("Memory is measured where the system keeps its maximum", sys.platform, "Use Linux or macOS.")
    return [
        replace(job, options=(*job.options, ("validation", 0.0), (other, False)))
        for job in tabvfl_figure5.jobs(tables, METHODS, (guests,), rows, epochs, batch, preset, options, 1, seed)
        for other in PHASES.values()
    ]


def measure(job: LatentsJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train, and note what it took."""
    task = tabvfl_figure5.load(job.table, job.guests, job.rows, job.seed)
    _, costs = tabvfl_figure5.train(job, task, tell)
    return {**job.identity, **costs, "epochs run": sum(costs["epochs run"].values()), "memory": _peak()}


def _peak() -> int:
    """Bytes of this process's largest resident set."""
    import resource  # which Windows lacks

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def sections(rows: Sequence[Row]) -> list[Section]:
    """A line for each training."""
    return [("", HEADS, [cells(row) for row in rows])]


def cells(row: Row) -> list[str]:
    """A row as people see it."""
    options = json.loads(row["options"])
    phase, which = next((name, i) for i, (name, other) in enumerate(PHASES.items()) if options.get(other) is False)
    guests = "" if row["bytes"] is None else str(row["guests"])
    sent = "" if row["bytes"] is None else results.shown("bytes", row["bytes"] / max(1, row["epochs run"]))
    seconds, megabytes = PUBLISHED[row["method"]][which]
    cost = [results.shown("seconds", row["seconds"]), str(seconds), sent, results.short(megabytes)]
    memory = [f"{value:,.0f}" for value in (row["memory"] / 1e6, MEMORY[row["method"]])]
    return [row["table"], guests, row["method"], phase, str(row["epochs run"]), *cost, *memory]


EXPERIMENT = PaperExperiment(
    "latent-cost", "What learning latent vectors costs (TabVFL, table IV)", LEGEND, jobs, measure, sections,
    kept=({"tables": ("airline_satisfaction",), "rows": 6000, "epochs": 3},),
    published={"rows": 50_000, "epochs": 100}, alone=True,
    example="--table airline_satisfaction",
    figures=named("bytes", "epochs run"),
)  # fmt: skip
