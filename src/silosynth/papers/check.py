"""Kept rows, computed again and compared with what is kept.

A row is computed with its own seed: by a version and on a machine that give the same numbers it comes out the same.
Elsewhere it is another draw, and each of its figures should lie in an interval for one more value: as far from the mean
of the setting's seeds as Student's t allows, with the larger of two standard deviations: of the setting's own seeds,
and of all settings of the experiment, pooled, whose degrees of freedom t has. The intervals of a row's figures are made
for 99 of 100 rows to have all in theirs (Bonferroni); where seeds move some settings much more than others, it is more
or fewer. A figure that no seed moves has to be the same, and so has a whole number where no setting has several seeds.
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
from silosynth.papers.experiment import PaperExperiment, Row, identified, load
from silosynth.papers.published import Published

MISSES = 0.01  # of rows that are as good as those kept, the share with a figure outside
SAME = 1e-6  # relative
BAD = ("outside", "missing")

Seeds = Mapping[str, Sequence[Row]]  # setting -> its kept rows


@dataclass(frozen=True)
class KeptRow:
    """A row of the results in the repository, the job that computes it, and all kept rows of the experiment."""

    entry: Published
    experiment: PaperExperiment
    job: Any
    row: Row
    settings: Seeds

    @property
    def took(self) -> float:
        """Seconds; 0 where it is not known."""
        return registry.taken(self.row, 0.0)

    @property
    def seeds(self) -> Sequence[Row]:
        """The kept rows of its setting."""
        return self.settings[setting(self.job)]


@dataclass(frozen=True)
class ComputedAgain:
    """A figure of a row: as it is kept, as it came out again (None: it did not), and where it may lie.

    The interval is None where nothing tells how much seeds change.
    """

    figure: str
    kept: float
    again: float | None
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """One of "same", "within", "outside", "missing", and "one seed" where a difference cannot be judged."""
        if self.again is None or math.isnan(self.again):
            return "missing"
        if math.isclose(self.again, self.kept, rel_tol=SAME, abs_tol=SAME):
            return "same"
        if self.interval is None:
            return "one seed"
        low, high = self.interval
        return "within" if low <= self.again <= high else "outside"

    def __str__(self) -> str:
        span = "" if self.interval is None else ", {} to {}".format(*map(_shown, self.interval))
        again = "" if self.again is None else f"{_shown(self.again)} "
        return f"{self.figure} {again}(kept {_shown(self.kept)}{span})"


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def kept(entry: Published) -> list[KeptRow]:
    """An entry's kept rows that have a figure to compare; none where results, or what its jobs are of, are not here."""
    rows = [row for name in entry.kept for row in registry.kept_rows(name)]
    if not rows or entry.experiment is None:
        return []
    experiment = load(entry.experiment)
    try:
        every = [
            (job, row) for job in experiment.sized("kept", {}) for row in rows if identified(job).items() <= row.items()
        ]
        own = {str(identified(job)) for job in experiment.sized("kept", entry.given)}
    except UnavailableError:
        return []
    settings: dict[str, list[Row]] = {}
    for job, row in every:
        settings.setdefault(setting(job), []).append(row)
    return [
        KeptRow(entry, experiment, job, row, settings)
        for job, row in every
        if str(identified(job)) in own and figures(experiment, row)
    ]


def setting(job: Any) -> str:
    """What rows of several seeds share."""
    return str({key: value for key, value in identified(job).items() if key != "seed"})


def figures(experiment: PaperExperiment, row: Row) -> dict[str, float]:
    """Those that the row has, of those that the experiment's are compared by."""
    return {name: value for name, value in experiment.figures(row).items() if value is not None}


def draw(entries: Sequence[Published], count: int, seed: int, longest: float) -> tuple[list[KeptRow], int, int]:
    """Rows drawn at random, out of how many, and how many more took longer than ``longest`` seconds.

    A row that several figures share is there once.

    Raises:
        UnavailableError: there is no such row here.
    """
    rows = {(one.experiment.name, str(identified(one.job))): one for entry in entries for one in kept(entry)}
    short = [one for one in rows.values() if one.took <= longest]
    if not rows:
        raise UnavailableError(
            "There are no kept rows to compute here", "none of these figures",
            "They are in a clone of the repository; some need data sets to be named.",
        )  # fmt: skip
    if not short:
        fastest = min(one.took for one in rows.values())
        rule = "No kept row took so little"
        raise UnavailableError(rule, f"{longest:g} s", f"The fastest took {fastest:.0f} s: --longest {fastest + 1:.0f}")
    chosen = np.random.default_rng(seed).permutation(len(short))[:count]
    return [short[place] for place in chosen], len(short), len(rows) - len(short)


def compare(one: KeptRow, again: Row) -> list[ComputedAgain]:
    """All figures of the kept row."""
    before, after = figures(one.experiment, one.row), figures(one.experiment, again)
    own = [figures(one.experiment, row) for row in one.seeds]
    every = [[figures(one.experiment, row) for row in rows] for rows in one.settings.values()]
    pooled = {name: _pooled([_values(rows, name) for rows in every]) for name in before}
    varied = sum(deviation > 0 for deviation, _ in pooled.values())
    return [
        ComputedAgain(name, value, after.get(name), _interval(value, _values(own, name), *pooled[name], varied))
        for name, value in before.items()
    ]


def _values(rows: Sequence[Mapping[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]


def _pooled(settings: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The standard deviation within settings, and its degrees of freedom: 0 where all have one seed."""
    several = [values for values in settings if len(values) > 1]
    degrees = sum(len(values) - 1 for values in several)
    squares = math.fsum((len(values) - 1) * float(np.var(values, ddof=1)) for values in several)
    return (math.sqrt(squares / degrees) if degrees else 0.0), degrees


def _interval(
    value: float, own: Sequence[float], pooled: float, degrees: int, figures: int
) -> tuple[float, float] | None:
    """Where one more value lies, for all of so many figures at once."""
    if not degrees:
        return (value, value) if isinstance(value, int) else None
    deviation = max(pooled, float(np.std(own, ddof=1)) if len(own) > 1 else 0.0)
    t = float(stats.t.ppf(1 - MISSES / (2 * max(1, figures)), degrees))
    half, mean = t * deviation * math.sqrt(1 + 1 / len(own)), float(np.mean(own))
    return mean - half, mean + half
