"""SiloFuse's table II: rows and columns of the nine tables, before and after one-hot encoding.

Columns are those that are modelled: identifiers and names of people are left out (`tables.modelled`), which the paper
encodes as well (Churn's surnames make up most of its 2 964). Columns with a share of values at one number count as
numeric. A missing value is a level of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from silosynth.data import datasets
from silosynth.papers import results, tables
from silosynth.papers.experiment import PaperExperiment, PaperJob, Row, Section, Tell, check_known, named
from silosynth.papers.silofuse_tables3_4 import TABLES, TableNames

FIGURES = ("rows", "categorical", "numeric", "before", "after", "increase")
PAPER: Mapping[str, tuple[float, ...]] = {
    "loan": (5000, 7, 6, 13, 23, 1.77), "adult": (48842, 9, 5, 14, 108, 7.71), "cardio": (70000, 7, 5, 12, 21, 1.75),
    "abalone": (4177, 2, 8, 10, 39, 3.9), "churn": (10000, 8, 6, 14, 2964, 211.71),
    "diabetes_pima": (768, 2, 7, 9, 26, 2.89), "covertype_50k": (581012, 45, 10, 55, 104, 1.89),
    "intrusion_nsl_kdd_20pct": (22544, 22, 20, 42, 268, 6.38), "heloc": (10250, 12, 12, 24, 239, 9.96),
}  # fmt: skip


@dataclass(frozen=True)
class WidthsJob(PaperJob):
    """One table."""

    table: str


def jobs(tables: TableNames = TABLES) -> list[WidthsJob]:
    """A row for each table.

    Raises:
        ConfigError: there is no such table.
    """
    check_known("table", tables, TABLES)
    return [WidthsJob(table) for table in dict.fromkeys(tables)]


def measure(job: WidthsJob, tell: Tell = lambda stage, share: None) -> Row:
    """Count."""
    return {**job.identity, **widths(tables.modelled(job.table), datasets.info(job.table).kinds)}


def widths(frame: pd.DataFrame, kinds: Mapping[str, Any]) -> dict[str, float]:
    """Rows, columns of either sort, and columns before and after each level of a categorical one has its own."""
    words = [name for name in frame if kinds.get(str(name)) == "categorical"]
    after = frame.shape[1] - len(words) + sum(frame[name].nunique(dropna=False) for name in words)
    counts = (len(frame), len(words), frame.shape[1] - len(words), frame.shape[1], after, after / frame.shape[1])
    return dict(zip(FIGURES, counts, strict=True))


def sections(rows: Sequence[Row]) -> list[Section]:
    """A line for each table."""
    return results.beside_published(rows, FIGURES, PAPER, TABLES)


EXPERIMENT = PaperExperiment(
    "widths", "Rows and columns of the nine tables (SiloFuse, table II)",
    "Before and after: columns as they are modelled, and with one for each level of the categorical ones.",
    jobs, measure, sections, kept=({},), published={}, example="--table loan",
    figures=named(*FIGURES),
)  # fmt: skip
