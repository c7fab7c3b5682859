"""VT-GAN in two silos against the central GAN of the same sizes: the figures of the paper's section 4.2.

"all" updates every bottom critic, as in the paper; "contributor" only that of the silo that knows the rows anyway, and
"none" no one (ours). Rate and betas of Adam and the moving average of generators are those of the central GAN too;
published are rate 2e-4, betas 0.5 and 0.9, average 0. Rows are pushed as in the peer-to-peer variant: what is trained
does not depend on how rows are pushed (a test holds it to that), only time and bytes do, which
``benchmarks/vtgan_speed.py`` measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from silosynth.evaluation import evaluate
from silosynth.papers import results, tables
from silosynth.papers.experiment import (
    Ask,
    PaperExperiment,
    PaperJob,
    Repeats,
    Row,
    Seed,
    Tell,
    check_known,
    named,
    train,
)
from silosynth.papers.settings import FIGURES

TABLES = {"loan": ("personal_loan", 300), "adult": ("income", 100)}  # target, epochs that are kept
SETTINGS: Mapping[str, dict[str, Any]] = {
    "central": {},
    **{
        how: {"index_privacy": "none", "bottom_gradients": how, "least_rounds": 0}
        for how in ("all", "none", "contributor")
    },
}  # fmt: skip


@dataclass(frozen=True)
class CentralComparisonJob(PaperJob):
    """One training."""

    table: str
    setting: str
    rate: float
    betas: list[float]
    average: float
    epochs: int
    seed: int


def jobs(
    tables: Annotated[Sequence[str], Ask("loan or adult.", ("--table", "-t"))] = tuple(TABLES),
    settings: Annotated[Sequence[str], Ask("central, all, none or contributor.", ("--setting",))] = tuple(SETTINGS),
    rate: Annotated[float, Ask("Of Adam; published: 2e-4.")] = 1e-3,
    betas: Annotated[Sequence[float], Ask("Of Adam, twice; published: 0.5 and 0.9.", ("--beta",))] = (0.0, 0.99),
    average: Annotated[float, Ask("Of generators, moving; published: 0.")] = 0.999,
    epochs: Annotated[int | None, Ask("Of each training; the table's if not given.", least=1)] = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
) -> list[CentralComparisonJob]:
    """All settings, table by table.

    Raises:
        ConfigError: there is no such table or setting.
    """
    check_known("table", tables, tuple(TABLES))
    check_known("setting", settings, tuple(SETTINGS))
    return [
        CentralComparisonJob(table, setting, rate, list(betas), average, epochs or TABLES[table][1], seed + repeat)
        for table in tables
        for repeat in range(repeats)
        for setting in settings
    ]


def measure(job: CentralComparisonJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train on two thirds, sample as many rows, evaluate on the rest."""
    target, _ = TABLES[job.table]
    real, holdout = tables.thirds(tables.modelled(job.table))
    federation = tables.in_silos(real, 2)
    options = {"epochs": job.epochs, "rate": job.rate, "betas": tuple(job.betas), "average": job.average}
    name, preset = ("ctgan", "best") if job.setting == "central" else ("vtgan", "balanced")
    model, costs = train(name, federation, preset, job.seed, options | SETTINGS[job.setting], tell)
    report = evaluate(real, holdout, model.sample(len(real)), target=target, silos=federation.silos, figures="gan")
    return {**job.identity, **{score.name: score.value for score in report.scores}, "fit s": costs["seconds"]}


LOAN, ADULT = ({"tables": (table,), "average": 0.0} for table in TABLES)
SLOWER = {"rate": 5e-4, "betas": (0.5, 0.9)}
KEPT: Sequence[Mapping[str, Any]] = (
    {"settings": ("central", "all", "none")},
    {**LOAN, "settings": ("central", "all"), "repeats": 3},
    {**ADULT, "settings": ("central", "all")},
    {**ADULT, "settings": ("central", "contributor"), "seed": 1},
    {**ADULT, "rate": 2e-4, "betas": (0.5, 0.9), "settings": ("central",)},
    *({**table, **SLOWER, "settings": ("central", "all")} for table in (LOAN, ADULT)),
)  # fmt: skip
EXPERIMENT = PaperExperiment(
    "vtgan-central",
    "VT-GAN beside the central GAN (section 4.2)",
    "Differences are to the table that was trained on; 0 is best.",
    jobs, measure, results.plain, small={"tables": ("loan",), "epochs": 3}, kept=KEPT,
    example="--table loan --rate 2e-4 --beta 0.5 --beta 0.9 --average 0",
    figures=named("column_shape_error", "pair_trend_error", *FIGURES.values()),
)  # fmt: skip
