"""Values that evaluations are made of, scores with a floor and an interval, columns, pairs; and how intervals are made.

All are frozen and plain: numbers, strings, tuples and (for pair matrices and histograms) read-only NumPy arrays.
`fidelity`, `silofuse_paper`, `gan_papers`, `utility` and `disclosure` compute them, `report` shows them.

*DeLong's intervals* for areas under ROC curves: E. DeLong, D. DeLong, D. Clarke-Pearson, "Comparing the areas under two
or more correlated ROC curves", Biometrics 44, 1988; as influences of single rows, so that macro averages have a
variance too.

*Delete-a-group jackknife* for everything else: the rows of each table are dealt at random into G groups. Replicate 0
uses all rows, replicate g = 1..G leaves group g out of both tables. Counts and sums are additive over groups, so all
replicates cost one pass over the rows. The standard error follows J. Shao and D. Tu, "The Jackknife and Bootstrap",
1995, section 2.3: deleting a tenth of the rows keeps it valid for figures that are not smooth.

Legend: n rows, k classes, R = G + 1 replicates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Least = tuple[float | None, str]  # a floor, and how it was computed or why there is none
Ends = tuple[float | None, float | None]  # of an interval
Better = Literal["lower", "higher", "near"]
ColumnKind = Literal["numeric", "datetime", "duration", "categorical"]
OnProgress = Callable[[str, float], None]
"""Called with the name of a stage and the share of the work done."""

NEEDS_HOLDOUT = "needs a hold-out of real rows that the generator has not seen"


@dataclass(frozen=True, slots=True)
class Score:
    """One figure about the synthetic table, beside its floor: the same figure between real samples of that size."""

    name: str  # slug, unique within a report, e.g. "column_shape_error"
    label: str  # short title, e.g. "Column-shape error"
    group: str  # "fidelity", "resemblance", "two-sample", "utility" or "disclosure"
    value: float  # in `unit`
    floor: float | None  # None only where `floor_note` says why
    floor_note: str  # how the floor was computed, or why there is none
    low: float | None  # lower end of the 95 % interval; None only where `method` says why
    high: float | None  # upper end
    unit: str  # "%", "AUC" or "score"
    better: Better  # which direction is good; "near": close to `ideal`
    ideal: float  # the best possible value
    n: int  # rows (of the table that limits the precision) behind the figure
    explanation: str  # one plain sentence for readers without statistics
    method: str  # how the interval was computed


class Scale(NamedTuple):
    """What scores are measured on; see `Score` for its fields."""

    group: str
    unit: str
    better: Better
    ideal: float

    def score(
        self, name: str, label: str, value: float, floor: Least, ends: Ends, n: int, explanation: str, method: str
    ) -> Score:
        """A score on this scale."""
        low, high = ends
        group, unit, better, ideal = self
        return Score(name, label, group, value, *floor, low, high, unit, better, ideal, n, explanation, method)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A figure that was not computed, with the reason. Never replaced by a number."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Premise:
    """Something that must hold of the real rows: where it fails, figures are no verdicts on the synthetic table."""

    name: str  # "enough_rows", "no_rows_in_common" or "one_population"
    label: str
    holds: bool | None  # None: not tested, `finding` says why
    finding: str  # in words
    value: float | None = None  # rows; share of hold-out rows in %; area under the ROC curve
    low: float | None = None  # 95 % interval of `value`
    high: float | None = None
    unit: str = ""
    expected: float | None = None  # the least number of rows; the share or area of a random split
    p_value: float | None = None  # of random splits, the share in which it looks as bad
    remedy: str = ""  # where it fails


@dataclass(frozen=True, slots=True, eq=False)
class ColumnScore:
    """One column: its shape error in %, and the data of a plot of real over synthetic.

    Numeric and datetime columns carry `edges` (K+1) and the densities (K): share of the *present* values per bin
    divided by the bin width; values outside the edges are counted in the end bins; datetimes are nanoseconds since
    1970. Categorical columns carry `levels` and the shares of *all* rows. Only the most frequent levels held by at
    least `RARE` real rows are named, all others are the last level, "(other)"; missing values are "(missing)".
    """

    name: str
    silo: str | None
    kind: ColumnKind
    error: float  # column-shape error, %
    floor: float | None  # the same error between two real samples of that size, %
    low: float | None  # 95 % interval of `error`
    high: float | None
    missing_real: float  # share of missing values, 0..1
    missing_synthetic: float
    edges: Floats | None = None
    real_density: Floats | None = None
    synthetic_density: Floats | None = None
    levels: tuple[str, ...] | None = None
    real_shares: Floats | None = None
    synthetic_shares: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """All column pairs as d x d matrices, rows and columns in the order of `names`.

    `real` and `synthetic` hold associations: Pearson (both numeric, -1..1), correlation ratio (mixed, 0..1), Theil's
    U(row | column) (both categorical, 0..1; not symmetric). `error` is the pair-trend error in %, `floor` the same
    between real samples. Diagonals of `error` and `floor` are 0.
    """

    names: tuple[str, ...]
    silos: tuple[str | None, ...]
    real: Floats
    synthetic: Floats
    error: Floats
    floor: Floats | None


@dataclass(frozen=True, slots=True)
class SiloScores:
    """The synthetic table beside the training rows of one silo, where silos hold different rows of the same columns.

    The floors are the same figures of as many hold-out rows of all silos: a generator that learnt the mixture of all
    silos perfectly would reach them, and the more this silo differs from the others, the higher they are.
    """

    name: str
    rows: int
    scores: tuple[Score, ...]  # of columns, and of pairs of columns if there are several


class Rows(NamedTuple):
    """Number of rows of each table, before any cap."""

    n_train: int
    n_holdout: int | None
    n_synthetic: int


DELONG = "95 % normal interval, DeLong's variance"
EXACT = "95 % interval, from the chance that as many disjoint pairs are all in order"


def auc_with_influence(positive_n: NDArray[np.bool_], score_n: Floats) -> tuple[float, Floats]:
    """The area (ties count one half) and the influence (n,) of each row; their squares add up to DeLong's variance.

    Needs at least one positive and one negative row.
    """
    ranks = stats.rankdata(score_n)
    n1, n0 = int(positive_n.sum()), int((~positive_n).sum())
    above = (ranks[positive_n] - stats.rankdata(score_n[positive_n])) / n0  # share of negatives below each positive
    below = 1 - (ranks[~positive_n] - stats.rankdata(score_n[~positive_n])) / n1
    area = float(above.mean())
    influence = np.empty(len(score_n))
    influence[positive_n] = (above - area) / math.sqrt(n1 * max(n1 - 1, 1))
    influence[~positive_n] = (below - area) / math.sqrt(n0 * max(n0 - 1, 1))
    return area, influence


def macro_auc(truth_n: NDArray[np.int64], scores_nk: Floats, classes: NDArray[np.int64]) -> tuple[float, float]:
    """Mean one-against-rest area over `classes` (columns of `scores_nk` in that order) and its standard error."""
    parts = [auc_with_influence(truth_n == c, scores_nk[:, k]) for k, c in enumerate(classes)]
    influence = np.mean([influence for _, influence in parts], axis=0)
    return float(np.mean([area for area, _ in parts])), float(np.sqrt((influence**2).sum()))


def auc_interval(area: float, error: float, pairs: ArrayLike) -> tuple[float, float]:
    """The 95 % normal interval of an area with this standard error; another one where separation is perfect.

    There DeLong's variance is 0. But n = min(positives, negatives) = ``pairs`` disjoint pairs are all in order, which
    has probability area^n, so 0.025^(1/n) is a lower end (mirrored for an area of 0; for a macro average, whose
    classes have ``pairs`` each, the mean of their ends).
    """
    if 0 < area < 1:
        return normal_interval(area, error, 0.0, 1.0)
    end = float(np.mean(0.025 ** (1 / np.asarray(pairs, np.float64))))
    return (end, 1.0) if area >= 1 else (0.0, 1 - end)


def normal_interval(value: float, error: float, least: float, most: float) -> tuple[float, float]:
    """Value ± 1.96 standard errors, clipped to the figure's range."""
    return max(least, value - 1.96 * error), min(most, value + 1.96 * error)


GROUPS = 10
JACKKNIFE = f"95 % t interval, delete-a-group jackknife over {GROUPS} random groups of rows"
TOO_FEW = "no interval: a jackknife needs at least two rows in every table"


def deal(n: int, groups: int, rng: np.random.Generator) -> Ints:
    """A random group in [0, groups) for each of n rows, sizes as equal as possible."""
    return np.asarray(rng.permutation(np.arange(n) % groups), np.int64)


def groups_for(*sizes: int) -> int:
    """Number of groups for tables of these sizes; below 2 there is no interval."""
    return min(GROUPS, *sizes)


def without(per_group: NDArray[Any]) -> Floats:
    """Sums per group (G, ...) -> replicates (R, ...): the total, then the total without each group."""
    total = per_group.sum(axis=0, keepdims=True)
    if len(per_group) < 2:
        return np.asarray(total, np.float64)
    return np.concatenate([total, total - per_group]).astype(np.float64)


def counts(cells: Ints, size: int, group: Ints, groups: int) -> Floats:
    """Rows per cell for every replicate: (R, size)."""
    flat = np.bincount(group * size + cells, minlength=groups * size)
    return without(flat.reshape(groups, size))


def shares(counted: Floats) -> Floats:
    """Counts (R, cells) -> shares of each replicate; a replicate without rows has shares of 0."""
    return np.asarray(counted / np.maximum(counted.sum(axis=1, keepdims=True), 1.0))


def standard_error(replicates: Floats) -> float | None:
    """Jackknife standard error of replicate 0; None without other replicates."""
    left_out = replicates[1:]
    groups = len(left_out)
    if groups < 2:
        return None
    spread = left_out - left_out.mean()
    return float(np.sqrt((groups - 1) / groups * (spread**2).sum()))


def jackknife(replicates: Floats, least: float, most: float) -> tuple[float, float | None, float | None, str]:
    """Value, low, high (clipped to the figure's range) and the method in words, from replicates (R,)."""
    value, error = float(replicates[0]), standard_error(replicates)
    if error is None:
        return value, None, None, TOO_FEW
    reach = float(stats.t.ppf(0.975, len(replicates) - 2)) * error
    return value, max(least, value - reach), min(most, value + reach), JACKKNIFE


def percentiles(draws: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of draws of a bootstrap."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)
