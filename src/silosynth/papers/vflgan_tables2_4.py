"""VFLGAN's tables 2 and 4: two records of each table, attacked by its synthetic tables and by intermediate features.

Record 1 is the one farthest from its nearest neighbour, record 2 that of the others with most outlying attributes
(appendix A.7). Trainings with and without one of them are told apart by synthetic tables (ASSD, table 2) and by the
features that silos' critics give for all records (ASIF, table 4); both come from the same trainings, without privacy
and with epsilon 10 and 5, delta as in section 5.3.2. The captions say accuracy, section 5.4.1 says area under the ROC
curve: ours is the area. Bounds of numbers count as public. All records of whole tables take days: `--rows` draws fewer.

The public code's file names number the records of the wines: 1235 and 151 of the red ones, 1034 and 2781 of the white
ones. Ours are the same, where an outlier lies 1.5 T outside the quartiles; with T, as in (30) and (31), record 2 is
another. Trainings have the table's settings of the public code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd

from silosynth.attacks import membership
from silosynth.attacks.generators import Catalogued
from silosynth.core.errors import ConfigError
from silosynth.evaluation.coding import code_tables
from silosynth.papers import experiment, results
from silosynth.papers.experiment import Ask, Options, PaperExperiment, PaperJob, Row, Section, Seed, Tell
from silosynth.papers.vflgan_table1 import TotalDifferenceJob, algorithm_options, load, with_own

TABLES = ("adult", "wine_quality_red", "wine_quality_white")
RECORDS = ("record 1", "record 2")
THRESHOLD = 1.5
FEATURES = ("naive", "correlation")
SCHEMES = {"assd": "Synthetic tables (ASSD, table 2)", "asif": "Intermediate features (ASIF, table 4)"}
PAPER: Mapping[str, Mapping[str, Mapping[float, str]]] = {
    # by scheme, table and epsilon: naive and correlation features of record 1, then of record 2; with deviations
    "assd": {
        "adult": {
            0.0: "0.65±0.09 0.59±0.05 0.58±0.10 0.55±0.11",
            10.0: "0.46±0.06 0.47±0.13 0.51±0.12 0.44±0.10",
            5.0: "0.50±0.09 0.49±0.10 0.50±0.08 0.48±0.11",
        },
        "wine_quality_red": {
            0.0: "0.59±0.11 0.48±0.07 0.51±0.05 0.51±0.11",
            10.0: "0.53±0.12 0.47±0.13 0.52±0.18 0.48±0.12",
            5.0: "0.48±0.11 0.50±0.07 0.43±0.09 0.51±0.12",
        },
        "wine_quality_white": {
            0.0: "0.55±0.12 0.57±0.12 0.60±0.06 0.50±0.09",
            10.0: "0.54±0.11 0.39±0.15 0.52±0.05 0.51±0.06",
            5.0: "0.44±0.03 0.51±0.14 0.53±0.09 0.51±0.13",
        },
    },
    "asif": {
        "adult": {
            0.0: "0.49±0.12 0.58±0.09 0.53±0.09 0.55±0.12",
            10.0: "0.49±0.14 0.50±0.08 0.54±0.11 0.48±0.12",
            5.0: "0.49±0.03 0.50±0.12 0.54±0.09 0.51±0.10",
        },
        "wine_quality_red": {
            0.0: "0.54±0.09 0.55±0.14 0.52±0.17 0.54±0.12",
            10.0: "0.53±0.04 0.50±0.07 0.54±0.09 0.50±0.09",
            5.0: "0.51±0.09 0.45±0.03 0.54±0.02 0.53±0.07",
        },
        "wine_quality_white": {
            0.0: "0.52±0.10 0.50±0.08 0.51±0.09 0.49±0.13",
            10.0: "0.52±0.10 0.52±0.12 0.48±0.10 0.51±0.12",
            5.0: "0.49±0.14 0.56±0.07 0.52±0.07 0.53±0.08",
        },
    },
}
EPSILONS = (0.0, 10.0, 5.0)
LEGEND = (
    "AUC of telling trainings with the record from trainings without it, with its 95 % interval; 0.5 is guessing. "
    "Spread: over five divisions of the trainings, as the paper's brackets. Nearness of synthetic rows to the record "
    "is an attack of ours. Epsilon 0: no differential privacy."
)
HEADS = (
    "table", "rows", "epsilon", "record", "epochs", "trainings", "features", "AUC", "95 %", "spread", "paper", "preset",
)  # fmt: skip


@dataclass(frozen=True)
class RecordsJob(PaperJob):
    """Trainings on one table with one budget: ``shadows`` with all records, and as many without either record.

    Attributes:
        rows: of the table, drawn at random; None for all.
        epochs: of each training; None for those of the preset.
    """

    unidentified: ClassVar[tuple[str, ...]] = ("folder", "together", "trainings_at_once")
    table: str
    epsilon: float
    shadows: int
    preset: str
    rows: int | None
    epochs: int | None
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    folder: Path | None = None
    together: int = 25
    trainings_at_once: int = 1

    @property
    def identity(self) -> Row:
        """With the settings of the trainings."""
        return {**super().identity, "settings": self.trained.settings}

    @property
    def trained(self) -> TotalDifferenceJob:
        """One of its trainings, but for its rows."""
        options = with_own(self.table, self.epochs, self.options) if self.preset == "paper" else self.options
        return TotalDifferenceJob(
            self.table, "vflgan", self.epsilon, preset=self.preset, epochs=self.epochs, options=options
        )


def jobs(
    tables: Annotated[Sequence[str], Ask(f"One of {', '.join(TABLES)}.", ("--table", "-t"))] = TABLES[1:2],
    epsilons: Annotated[Sequence[float], Ask("Of differential privacy; 0 for none.", ("--epsilon",))] = EPSILONS,
    shadows: Annotated[int, Ask("Trainings with all records, and as many without each record.", least=10)] = 100,
    preset: Annotated[str, Ask("Of VFLGAN.")] = "paper",
    rows: Annotated[int | None, Ask("Rows of each table; all if not given.", least=20)] = None,
    epochs: Annotated[int | None, Ask("Of each training; the preset's if not given.", least=1)] = None,
    options: Options = (),
    seed: Seed = 0,
    trainings_at_once: Annotated[int, Ask("Processes that train for one row.", least=1)] = 1,
    together: Annotated[int, Ask("Trainings that go in lockstep.", least=1)] = 25,
    kept: Annotated[Path | None, Ask("Folder where trainings are kept.")] = None,
) -> list[RecordsJob]:
    """A row for each table and budget.

    Raises:
        ConfigError: there is no such table, or an epsilon is below 0.
    """
    experiment.check_known("table", tables, TABLES)
    if not epsilons or min(epsilons) < 0:
        raise ConfigError("An epsilon is above 0, or 0 for no differential privacy", tuple(epsilons))
    return [
        RecordsJob(
            table, epsilon, shadows, preset, rows, epochs, seed, options,
            None if kept is None else kept / f"{table}-{epsilon:g}", together, trainings_at_once,
        )
        for table in dict.fromkeys(tables)
        for epsilon in dict.fromkeys(epsilons)
    ]  # fmt: skip


def subject(job: RecordsJob) -> tuple[pd.DataFrame, Catalogued, dict[str, int]]:
    """All records, the generator under audit, and the positions of the records that are attacked."""
    task = load(job.table, job.rows, job.seed, bounds=bool(job.epsilon))
    fit = Catalogued("vflgan", job.preset, algorithm_options(job.trained), task.silos, task.kinds, len(task.frame))
    return task.frame, fit, dict(zip(RECORDS, vulnerable(task.frame), strict=True))


def vulnerable(frame: pd.DataFrame) -> tuple[int, int]:
    """The positions of both records."""
    coded = code_tables({"training": frame})["training"]
    isolated = membership.most_isolated(coded)
    others = np.delete(np.arange(len(frame)), isolated)
    return isolated, int(others[membership.most_outlying(coded.take(others), THRESHOLD)])


def measure(job: RecordsJob, tell: Tell = lambda stage, share: None) -> Row:
    """Train with and without each record, and attack."""
    frame, fit, records = subject(job)
    how = membership.Trainings(job.shadows, job.seed, job.folder, job.trainings_at_once, job.together, tell)
    findings = membership.play(frame, fit, records, how, intermediate=True)
    return {**job.identity, "records": records, "findings": {one.score.name: _figures(one) for one in findings}}


def _figures(finding: Any) -> dict[str, float | None]:
    score = finding.score
    return {"AUC": score.value, "low": score.low, "high": score.high, "spread": finding.spread}


def forecast(pending: Sequence[RecordsJob]) -> float:
    """About how many seconds the trainings take, from the pace of the first of each row, stopped early."""
    total = 0.0
    for job in pending:
        frame, fit, records = subject(job)
        total += fit.seconds([(frame, job.seed)]) * job.shadows * (1 + len(records))
    return total


def sections(rows: Sequence[Row]) -> list[Section]:
    """One for each of the tables."""
    ordered = results.in_order(rows, "table", "epsilon", table=TABLES, epsilon=[str(e) for e in EPSILONS])
    lines = {scheme: [cells for row in ordered for cells in _lines(row, scheme)] for scheme in SCHEMES}
    return [(heading, HEADS, lines[scheme]) for scheme, heading in SCHEMES.items()] if rows else []


def _lines(row: Row, scheme: str) -> list[list[str]]:
    """A line for each record and kind of features."""
    published = PAPER[scheme].get(row["table"], {}).get(row["epsilon"], "").split()
    found = []
    for i, record in enumerate(RECORDS):
        end = f"_{record.replace(' ', '_')}"
        for name, one in row["findings"].items():
            if not (name.startswith(f"{scheme}_") and name.endswith(end)):
                continue
            kind = name.removeprefix(f"{scheme}_").removesuffix(end)
            paper = published[2 * i + FEATURES.index(kind)] if published and kind in FEATURES else ""
            found.append([
                row["table"], results.shown("rows", row["rows"]), f"{row['epsilon']:g}" if row["epsilon"] else "",
                record, "as preset" if row["epochs"] is None else str(row["epochs"]), str(2 * row["shadows"]), kind,
                f"{one['AUC']:.2f}", f"{one['low']:.2f} to {one['high']:.2f}",
                f"{one['spread']:.2f}", paper.replace("±", " ± "), row["preset"],
            ])  # fmt: skip
    return found


def line(row: Row) -> str:
    """The areas of a row."""
    areas = ", ".join(f"{name} {one['AUC']:.2f}" for name, one in row["findings"].items())
    return f"{row['table']} · epsilon {row['epsilon']:g}: {areas}"


WITHOUT: Mapping[str, Any] = {"tables": TABLES[1:], "epsilons": (0.0,), "rows": 200, "epochs": 75, "shadows": 50}
PRIVATE: Mapping[str, Any] = {**WITHOUT, "epsilons": (10.0, 5.0), "epochs": 25, "shadows": 30}
EXPERIMENT = PaperExperiment(
    "records", "Two records of each table attacked (VFLGAN, tables 2 and 4)", LEGEND, jobs, measure, sections,
    small={"rows": 80, "epochs": 3, "shadows": 10, "epsilons": (0.0, 10.0)},
    kept=(WITHOUT, PRIVATE), published={"tables": TABLES}, line=line, forecast=forecast,
    example="--table wine_quality_white --rows 200 --shadows 50",
    figures=lambda row: {f"AUC, {name}": found["AUC"] for name, found in row["findings"].items()},
)  # fmt: skip
