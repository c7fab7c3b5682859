"""Values that evaluations are made of: scores with a floor and an interval, columns, pairs.

All are frozen and plain: numbers, strings, tuples and (for pair matrices and histograms) read-only NumPy arrays.
`fidelity`, `silofuse_paper`, `gan_papers`, `two_sample`, `utility` and `disclosure` compute them, `report` shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Better = Literal["lower", "higher", "near"]
ColumnKind = Literal["numeric", "datetime", "categorical"]
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


@dataclass(frozen=True, slots=True)
class Skipped:
    """A figure that was not computed, with the reason. Never replaced by a number."""

    name: str
    why: str


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


class Rows(NamedTuple):
    """Number of rows of each table, before any cap."""

    n_train: int
    n_holdout: int | None
    n_synthetic: int
