"""Kept rows, computed again and compared with what is kept.

A row is computed with its own seed: by a version and on a machine that give the same numbers it comes out the same.
Elsewhere it is another draw, and each of its figures should lie in a prediction interval for one more value, from the
mean and the standard deviation of the setting's kept seeds (Student's t). The intervals of a row's figures hold all at
once for 99 of 100 rows (Bonferroni). Where a setting has one seed, there is no interval.

What a row cost (seconds, bytes) is not compared, nor are figures along its training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from silosynth.core.errors import UnavailableError
from silosynth.papers import registry
from silosynth.papers.experiment import PaperExperiment, Row, load
from silosynth.papers.published import Published
from silosynth.papers.results import STAMP

MISSES = 0.01  # of rows that are as good as those kept, the share with a figure outside
SAME = 1e-6  # relative
COSTS = (
    "seconds", "side by side", "fit s", "sample s", "took", "processor seconds", "bytes", "memory", "load", "processes",
    "timed", "seconds a step", "hours",
)  # fmt: skip
NOT_COMPARED = (*STAMP, *COSTS, "version", "paper", "published", "curve", "spread", "low", "high", "scores")


@dataclass(frozen=True)
class KeptRow:
    """A row of the results in the repository, the job that computes it, and the setting's rows of all seeds."""

    entry: Published
    experiment: PaperExperiment
    job: Any
    row: Row
    seeds: Sequence[Row]

    @property
    def took(self) -> float:
        """Seconds; infinity where it is not known."""
        return registry.taken(self.row, math.inf)


@dataclass(frozen=True)
class ComputedAgain:
    """A figure of a row: as it is kept, as it came out again, and the setting's interval (None with one seed)."""

    figure: str
    kept: float
    again: float
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """One of "same", "within", "outside", and "one seed" where a difference cannot be judged."""
        if math.isclose(self.again, self.kept, rel_tol=SAME, abs_tol=SAME):
            return "same"
        if self.interval is None:
            return "one seed"
        low, high = self.interval
        return "within" if low <= self.again <= high else "outside"


def kept(entry: Published) -> list[KeptRow]:
    """An entry's kept rows that have a figure to compare; none where the results are not on this machine."""
    rows = [row for name in entry.kept for row in registry.kept_rows(name)]
    if not rows or entry.experiment is None:
        return []
    experiment = load(entry.experiment)
    jobs = experiment.sized("kept", entry.given)
    found = [(job, row) for job in jobs for row in rows if job.identity.items() <= row.items()]
    settings: dict[str, list[Row]] = {}
    for job, row in found:
        settings.setdefault(_setting(job), []).append(row)
    return [
        KeptRow(entry, experiment, job, row, settings[_setting(job)])
        for job, row in found
        if figures(row, job.identity)
    ]


def _setting(job: Any) -> str:
    return str({key: value for key, value in job.identity.items() if key != "seed"})


def draw(entries: Sequence[Published], count: int, seed: int, longest: float) -> tuple[list[KeptRow], int, int]:
    """Rows drawn at random, out of how many, and how many more took longer than ``longest`` seconds.

    A row that several figures share is there once.

    Raises:
        UnavailableError: there is no such row here.
    """
    rows = {(one.experiment.name, str(one.job.identity)): one for entry in entries for one in kept(entry)}
    short = [one for one in rows.values() if one.took <= longest]
    if not short:
        raise UnavailableError(
            "There are no kept rows of at most so many seconds", f"{longest:g}; {len(rows)} rows in all",
            "Kept rows are in a clone of the repository; --longest takes more of them.",
        )  # fmt: skip
    chosen = np.random.default_rng(seed).permutation(len(short))[:count]
    return [short[place] for place in chosen], len(short), len(rows) - len(short)


def compare(one: KeptRow, again: Row) -> list[ComputedAgain]:
    """All figures that both have."""
    identity = one.job.identity
    before, after = figures(one.row, identity), figures(again, identity)
    names = [name for name in before if name in after]
    others = [figures(row, identity) for row in one.seeds]
    return [
        ComputedAgain(
            name, before[name], after[name], interval([row[name] for row in others if name in row], len(names))
        )
        for name in names
    ]


def interval(values: Sequence[float], figures: int) -> tuple[float, float] | None:
    """In which one more value lies, for all of so many figures at once; None for a single value."""
    n = len(values)
    if n < 2:
        return None
    half = stats.t.ppf(1 - MISSES / (2 * figures), n - 1) * np.std(values, ddof=1) * math.sqrt(1 + 1 / n)
    mean = float(np.mean(values))
    return mean - float(half), mean + float(half)


def figures(row: Row, identity: Row) -> dict[str, float]:
    """What is compared: a row's numbers, or where it has none outside of lists and mappings, those in them."""
    own = {key: value for key, value in row.items() if key not in identity and key not in NOT_COMPARED}
    return _numbers(own) or dict(pair for key, value in own.items() for pair in _nested(key, value))


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _nested(name: str, value: Any) -> list[tuple[str, float]]:
    """The numbers in lists and mappings, named by where they are."""
    if isinstance(value, Mapping):
        items = [(key, part) for key, part in value.items() if key not in NOT_COMPARED]
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return list(_numbers({name: value}).items())
    return [pair for key, part in items for pair in _nested(f"{name} {key}", part)]
