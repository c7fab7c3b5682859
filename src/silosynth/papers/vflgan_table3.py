"""VFLGAN's table 3: ASSD on a few hundred rows, beside rival attacks and a private training of the same rows.

"assd": trainings with and without one record, told apart by their synthetic tables: the record that is outlying in
most attributes, or the one farthest from its nearest neighbour (appendix A.7). "rivals": attacks on all training
records by one synthetic table, means over several. "private": ASSD where trainings keep epsilon, in fewer steps.
With ``folder`` trainings are kept, and reused. 100 and 200 red wines take hours. The paper's Housing is
`california_housing`, whose target is a number.

The setting is for a GAN that has learnt its few rows well: the less two trainings on the same rows differ, the more one
row shows. The batch gives an epoch as many steps with the record as without it (docs/guide/audits.md).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd

from silosynth.attacks import membership, rivals
from silosynth.attacks.generators import Catalogued
from silosynth.core.streams import Streams
from silosynth.evaluation.coding import Coded, code_tables
from silosynth.papers.experiment import Ask, Options, PaperExperiment, PaperJob, Row, Section, Tell, check_known
from silosynth.papers.vflgan_table1 import load

REFERENCE = {"wine_quality_red": 1000, "wine_quality_white": 2000, "california_housing": 10_000}
TABLES = tuple(REFERENCE)
RIVALS = ("LOGAN-0", "LOGAN-D1", "MC", "GAN-leaks", "GAN-leaks-cal", "DOMIAS")
PAPER = {  # of the `RIVALS`, then of ASSD, which does not say by which features
    ("wine_quality_red", 100): (0.47, 0.48, 0.60, 0.61, 0.58, 0.63, 0.98),
    ("wine_quality_red", 200): (0.52, 0.50, 0.52, 0.55, 0.55, 0.54, 0.95),
    ("wine_quality_white", 100): (0.48, 0.46, 0.53, 0.54, 0.57, 0.60, 0.87),
    ("wine_quality_white", 200): (0.50, 0.50, 0.55, 0.56, 0.59, 0.58, 0.92),
    ("california_housing", 100): (0.51, 0.52, 0.54, 0.57, 0.55, 0.60, 0.81),
    ("california_housing", 200): (0.54, 0.54, 0.50, 0.51, 0.50, 0.50, 0.89),
}
PARTS = ("assd", "rivals", "private")
RECORDS: dict[str, Callable[[Coded], int]] = {
    "outlying": membership.most_outlying,
    "isolated": membership.most_isolated,
}
STEPS, PRIVATE_STEPS = 3000, 300  # of critics
SETTING: dict[str, Any] = {
    "batch": 33, "noise": 10, "generator": [64, 64], "critic": [64, 64], "shared": [64], "norm_epsilon": 0.0,
    "slopes": "orthonormal", "penalty": 10.0, "rate": 1e-3, "betas": [0.0, 0.99], "tau": 0.2, "average": 0.999,
    "select": "last", "encoders.pool_rare": False, "encoders.min_count": 1,
}  # fmt: skip
EARLIER = (("slopes", "critic"), ("penalty", 1.0), ("betas", (0.5, 0.9)))  # with which ASSD finds less
EPSILON, DELTA = 10.0, 5e-4  # section 5.3.2
MADE = 20_000  # rows of a synthetic table: what one record adds to a mean is lost in the noise of a few
RELEASED = 5  # synthetic tables that rivals attack


def fit(table: str, rows: int, private: bool, more: Options = ()) -> Catalogued:
    """The generator under audit."""
    task = load(table, bounds=private)  # bounds count as public
    return Catalogued("vflgan", "paper", options_of(rows, private, more), task.silos, task.kinds, MADE)


def options_of(rows: int, private: bool, more: Options = ()) -> dict[str, Any]:
    """All that its training has beside the preset, ``more`` over what it has here."""
    steps = PRIVATE_STEPS if private else STEPS
    options = SETTING | {"epochs": -(-steps // (rows // SETTING["batch"]))}
    if private:
        options |= {"dp": {"epsilon": EPSILON, "delta": DELTA}, "numbers": "quantile", "average": 0.9}
    return options | {name: list(value) if isinstance(value, tuple) else value for name, value in more}


def records(table: str, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Training records, as many others, and reference rows."""
    frame = load(table).frame
    frame = frame.iloc[np.random.default_rng(0).permutation(len(frame))].reset_index(drop=True)
    cuts = np.cumsum([rows, rows, REFERENCE[table]])
    cuts = np.minimum(cuts, len(frame))
    first, second, third = (frame.iloc[a:b].reset_index(drop=True) for a, b in zip([0, *cuts[:-1]], cuts, strict=True))
    return first, second, third


@dataclass(frozen=True)
class ASSDJob(PaperJob):
    """One attack on one number of rows; ``shadows`` trainings with the record, and as many without."""

    unidentified: ClassVar[tuple[str, ...]] = ("folder", "together", "trainings_at_once")
    table: str
    rows: int
    part: str
    record: str
    shadows: int
    options: Options = ()
    folder: Path | None = None
    together: int = 25
    trainings_at_once: int = 1

    @property
    def identity(self) -> Row:
        """With the settings of the trainings: rows of earlier ones are others."""
        own = options_of(self.rows, self.part == "private", self.options)
        return {**super().identity, "options": own, "made": MADE}


def jobs(
    tables: Annotated[Sequence[str], Ask(f"One of {', '.join(TABLES)}.", ("--table", "-t"))] = TABLES[:1],
    rows: Annotated[Sequence[int], Ask("Training records.", ("--rows",))] = (100, 200),
    parts: Annotated[Sequence[str], Ask(", ".join(PARTS), ("--part",))] = PARTS,
    record: Annotated[str, Ask("The record attacked: outlying or isolated.")] = "outlying",
    shadows: Annotated[int, Ask("Trainings with the record, and as many without.", least=10)] = 100,
    options: Options = (),
    trainings_at_once: Annotated[int, Ask("Processes that train for one row.", least=1)] = 1,
    together: Annotated[int, Ask("Trainings that go in lockstep.", least=1)] = 25,
    kept: Annotated[Path | None, Ask("Folder where trainings are kept.")] = None,
) -> list[ASSDJob]:
    """A row for each table, number of rows and part.

    Raises:
        ConfigError: there is no such table, part or record.
    """
    check_known("table", tables, TABLES)
    check_known("part", parts, PARTS)
    check_known("record", [record], tuple(RECORDS))
    return [
        ASSDJob(
            table, count, part, record if part != "rivals" else "", shadows if part != "rivals" else 0, options,
            None if kept is None else kept / f"{table}-{count}-{part}-{record}", together, trainings_at_once,
        )
        for table in dict.fromkeys(tables)
        for count in rows
        for part in parts
    ]  # fmt: skip


def shadows(job: ASSDJob, tell: Tell) -> Row:
    """ASSD's figures by kind of features."""
    train, _, _ = records(job.table, job.rows)
    chosen = RECORDS[job.record](code_tables({"training": train})["training"])
    how = membership.Trainings(job.shadows, 0, job.folder, job.trainings_at_once, job.together, tell)
    findings = membership.play(
        train, fit(job.table, job.rows, job.part == "private", job.options), {f"{job.record} record": chosen}, how
    )
    by_kind = {finding.score.name.split("_")[1]: finding for finding in findings}
    return {
        "auc": {kind: finding.score.value for kind, finding in by_kind.items()},
        "low": {kind: finding.score.low for kind, finding in by_kind.items()},
        "high": {kind: finding.score.high for kind, finding in by_kind.items()},
        "spread": {kind: finding.spread for kind, finding in by_kind.items()},
        "a side": job.shadows,
    }


def rivalled(table: str, rows: int, more: Options = ()) -> Row:
    """Mean areas of rival attacks over released tables."""
    train, others, reference = records(table, rows)
    seeds = [Streams(0).child("released", i).integer() % 2**31 for i in range(RELEASED)]
    made = fit(table, rows, False, more).together([(train, seed) for seed in seeds])
    areas: dict[str, list[float]] = {}
    for synthetic in made:
        for finding in rivals.attack(train, others, synthetic, reference):
            areas.setdefault(finding.score.label, []).append(finding.score.value)
    spreads = {name: float(np.std(own)) for name, own in areas.items()}
    return {"auc": {name: float(np.mean(own)) for name, own in areas.items()}, "spread": spreads, "tables": RELEASED}


def measure(job: ASSDJob, tell: Tell = lambda stage, share: None) -> Row:
    """Attack, and note what that took."""
    before, start, private = _processor_seconds(), time.perf_counter(), job.part == "private"
    figures = rivalled(job.table, job.rows, job.options) if job.part == "rivals" else shadows(job, tell)
    return {
        **job.identity, **figures, "seconds": time.perf_counter() - start, "processes": job.trainings_at_once,
        "processor seconds": _processor_seconds() - before, "load": os.getloadavg()[1],
        "epsilon": EPSILON if private else 0.0,
    }  # fmt: skip


def _processor_seconds() -> float:
    import resource  # which Windows lacks

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def published(table: str, rows: int, part: str, name: str) -> float | None:
    """The paper's area; None where it has none: of private trainings, and of nearness, which is an attack of ours."""
    beside = PAPER.get((table, rows))
    if beside is None or part == "private" or name == "nearness":
        return None
    return beside[-1] if part == "assd" else dict(zip(RIVALS, beside, strict=False)).get(name)


HEADS = (
    "table", "rows", "attack", "record", "epsilon", "AUC", "95 %", "spread", "paper", "trainings", "s", "processor s",
    "load", "commit",
)  # fmt: skip


def sections(rows: Sequence[Row]) -> list[Section]:
    """One for each setting, with a line for each attack; of rows that differ in the number of trainings the latest."""
    parts: dict[str, dict[tuple[Any, ...], Row]] = {}
    for row in rows:
        key = (row["table"], row["rows"], row["part"], row["record"])
        parts.setdefault(_heading(row), {})[key] = row
    return [
        (heading, HEADS, [_cells(row, name) for _, row in sorted(last.items()) for name in row["auc"]])
        for heading, last in sorted(parts.items())
    ]


def _heading(row: Row) -> str:
    """The options that its trainings do not have otherwise."""
    usual = options_of(row["rows"], row["part"] == "private")
    return ", ".join(f"{name} {value}" for name, value in row["options"].items() if usual.get(name) != value)


def _cells(row: Row, name: str) -> list[str]:
    paper = published(row["table"], row["rows"], row["part"], name)
    return [
        row["table"], str(row["rows"]), f"{'ASSD, ' if row['part'] != 'rivals' else ''}{name}", row["record"],
        f"{row['epsilon']:g}" if row["epsilon"] else "", f"{row['auc'][name]:.2f}",
        f"{row['low'][name]:.2f} to {row['high'][name]:.2f}" if "low" in row else "", f"{row['spread'][name]:.2f}",
        "" if paper is None else f"{paper:.2f}", str(2 * row["a side"] if "a side" in row else row["tables"]),
        f"{row['seconds']:.0f}", f"{row['processor seconds']:.0f}", f"{row['load']:.1f}",
        row.get("commit", ""),
    ]  # fmt: skip


KEPT: Sequence[Mapping[str, Any]] = (
    {"tables": TABLES[:2], "parts": ("rivals", "assd")},
    {"tables": TABLES[:1], "parts": ("private",), "shadows": 60},
    {"tables": TABLES[:1], "parts": ("assd",), "options": EARLIER},
)
EXPERIMENT = PaperExperiment(
    "assd", "ASSD beside rival attacks (VFLGAN, table 3)",
    "AUC: 0.5 is guessing. ASSD by nearness of synthetic rows to the record is an attack of ours. Load: of the "
    "machine, at the end.",
    jobs, measure, sections, small={"rows": (40,), "shadows": 10}, kept=KEPT,
    published={"tables": TABLES}, example="--table wine_quality_white --rows 100 --trainings-at-once 2",
    figures=lambda row: {f"AUC, {name}": value for name, value in row["auc"].items()},
)  # fmt: skip
