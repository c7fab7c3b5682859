"""What a coordinator infers from latents when it knows some rows: the privacy limit of SiloFuse, measured.

Every column of Adult, in four silos, is inferred from its own silo's latents (`silosynth.attacks.inversion`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import pandas as pd

from silosynth.attacks import inversion
from silosynth.evaluation.scores import Floats
from silosynth.papers import results, tables
from silosynth.papers.experiment import Ask, PaperExperiment, PaperJob, Row, Section, Tell
from silosynth.simulation.federation import in_order

ROWS = 10_000


@dataclass(frozen=True)
class InversionJob(PaperJob):
    """An attack on one column, by a coordinator that knows this many rows."""

    silo: str
    column: str
    known: list[int]


def jobs(
    known: Annotated[Sequence[int], Ask("Rows that the coordinator knows.", ("--known",))] = (20, 200, 2000),
) -> list[InversionJob]:
    """A row for each column."""
    silos = in_order(list(tables.modelled("adult").columns), 4)
    return [InversionJob(silo, column, list(known)) for silo, columns in silos.items() for column in columns]


@lru_cache(maxsize=1)
def _heard() -> tuple[pd.DataFrame, dict[str, Floats]]:
    """The table, and each silo's latents of it."""
    frame = tables.modelled("adult").sample(ROWS, random_state=0).reset_index(drop=True)
    return frame, inversion.latents(tables.in_silos(frame, 4))


def measure(job: InversionJob, tell: Tell = lambda stage, share: None) -> Row:
    """Attack."""
    frame, sent = _heard()
    success = {known: inversion.attack(sent[job.silo], frame[job.column], known) for known in job.known}
    own = {f"{known} rows known": right for known, (right, _) in success.items()}
    return {**job.identity, "blind": success[job.known[-1]][1], **own}


def sections(rows: Sequence[Row]) -> list[Section]:
    """A line for each column."""
    return results.plain(rows, (*results.UNSEEN, "known"))


EXPERIMENT = PaperExperiment(
    "inversion", "What SiloFuse's coordinator infers from latents when it knows some rows",
    "Categorical columns: share of rows guessed right; blind: by the most frequent level. Numbers: R² of the guess.",
    jobs, measure, sections, small={"known": (20,)}, kept=({},), example="--known 20 --known 200",
    figures=lambda row: {name: value for name, value in row.items() if name == "blind" or name.endswith("rows known")},
)  # fmt: skip
