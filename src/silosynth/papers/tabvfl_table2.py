"""TabVFL's table II: rows, classes and columns of its tables.

The paper draws 50 000 rows of all tables but one; ours are counted as they are. The label is no column. A categorical
column with two levels counts as binary; in the paper, those of forest cover count as categorical. Rice MSC is not among
the data sets here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from silosynth.data import datasets
from silosynth.papers import results
from silosynth.papers.experiment import PaperExperiment, PaperJob, Row, Section, Tell, check_known, named
from silosynth.papers.tabvfl_figure5 import TABLES, TableNames

FIGURES = ("rows", "classes", "categorical", "numeric", "binary")
PAPER: Mapping[str, tuple[int, ...]] = {
    "intrusion_nsl_kdd_20pct": (50_000, 2, 11, 23, 4), "airline_satisfaction": (50_000, 2, 15, 4, 3),
    "covertype_50k": (50_000, 7, 44, 10, 0), "bank_marketing": (45_211, 2, 6, 7, 3),
}  # fmt: skip


@dataclass(frozen=True)
class LabelledTableJob(PaperJob):
    """One table."""

    table: str


def jobs(tables: TableNames = TABLES) -> list[LabelledTableJob]:
    """A row for each table.

    Raises:
        ConfigError: there is no such table.
    """
    check_known("table", tables, TABLES)
    return [LabelledTableJob(table) for table in dict.fromkeys(tables)]


def measure(job: LabelledTableJob, tell: Tell = lambda stage, share: None) -> Row:
    """Count."""
    frame, info = datasets.load(job.table, return_info=True)
    names = [name for name in map(str, frame) if name != info.target and info.kinds.get(name) != "identifier"]
    levels = [frame[name].nunique() for name in names if info.kinds.get(name) == "categorical"]
    binary = sum(count <= 2 for count in levels)
    classes = frame[info.target].nunique()
    counts = (len(frame), classes, len(levels) - binary, len(names) - len(levels), binary)
    return {**job.identity, **dict(zip(FIGURES, counts, strict=True))}


def sections(rows: Sequence[Row]) -> list[Section]:
    """A line for each table."""
    return results.beside_published(rows, FIGURES, PAPER, TABLES)


EXPERIMENT = PaperExperiment(
    "classes", "Rows, classes and columns of the tables (TabVFL, table II)",
    "Columns are without the label and without identifiers.", jobs, measure, sections, kept=({},), published={},
    example="--table bank_marketing",
    figures=named(*FIGURES),
)  # fmt: skip
