"""What an evaluation hands back: scores with a floor and an interval, and the report that holds them.

Every value here is frozen and plain: numbers, strings, tuples and (for the pair matrices and the histograms) NumPy
arrays that are marked read-only. Nothing computes a figure in this file; `fidelity`, `resemblance`, `two_sample`,
`downstream` and `disclosure` do.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from silosynth.core.files import write_atomic

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Better = Literal["lower", "higher", "near"]
Kind = Literal["numeric", "datetime", "categorical"]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Score:
    """One figure about the synthetic table, beside what two real samples of that size would give."""

    name: str  # slug, unique within a report, e.g. "column_shape_error"
    label: str  # short title for people, e.g. "Column-shape error"
    group: str  # "fidelity", "resemblance", "two-sample", "utility" or "disclosure"
    value: float  # the figure itself, in `unit`
    floor: float | None  # the same figure between real samples; None only where `floor_note` says why
    floor_note: str  # how the floor was obtained, or why there is none
    low: float | None  # lower end of the 95 % interval; None only where `method` says why
    high: float | None  # upper end
    unit: str  # "%", "AUC" or "score"
    better: Better  # which direction is good; "near": close to `ideal`
    ideal: float  # the best possible value
    n: int  # rows (of the table that limits the precision) behind the figure
    explanation: str  # one plain sentence for readers without statistics
    method: str  # how the interval was obtained


@dataclass(frozen=True, slots=True)
class Skipped:
    """A figure that could not be computed, with the reason. Never replaced by a number."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class ColumnScore:
    """One column: its shape error in %, and what a plot that lays real over synthetic needs.

    Numeric and datetime columns carry `edges` (K+1) and the densities (K): share of the *present* values per bin
    divided by the bin width; values outside the edges are counted in the end bins; datetimes are nanoseconds since
    1970. Categorical columns carry `levels` and the shares of *all* rows. Only the most frequent levels held by at
    least `RARE` real rows are named, the rest is the last level, "(other)"; missing values are "(missing)".
    """

    name: str
    silo: str | None
    kind: Kind
    error: float  # column-shape error, %
    floor: float | None  # the same between two real samples of that size, %
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
    """How many rows each table has (before any row cap)."""

    n_train: int
    n_holdout: int | None
    n_synthetic: int


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """Everything `evaluate` found. `print(report)` is the summary; `save` writes HTML or JSON."""

    scores: tuple[Score, ...]
    skipped: tuple[Skipped, ...]
    columns: tuple[ColumnScore, ...]
    pairs: Pairs
    rows: Rows
    silos: Mapping[str, tuple[str, ...]] | None = None
    target: str | None = None
    ledger: tuple[Mapping[str, Any], ...] | None = None

    def score(self, name: str) -> Score:
        """The score called `name`. Raises KeyError with the reason if it was skipped, or with the names that exist."""
        for score in self.scores:
            if score.name == name:
                return score
        for skipped in self.skipped:
            if skipped.name == name:
                raise KeyError(f"{name} was not computed: {skipped.why}")
        raise KeyError(f"no score is called {name!r}; there are {', '.join(s.name for s in self.scores)}")

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers; `json.dumps` takes it as it is."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def to_frame(self) -> pd.DataFrame:
        """One row per score, indexed by its name."""
        import pandas as pd

        names = [f.name for f in fields(Score)]
        rows = [{name: getattr(score, name) for name in names} for score in self.scores]
        return pd.DataFrame(rows, columns=names).set_index("name")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report, HTML or (for a name ending in .json) JSON; a reader never sees half a file. Returns the
        path.
        """
        target = Path(path)
        if target.suffix.lower() == ".json":
            text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        else:
            from silosynth.evaluation.report import render

            text = render(self)
        write_atomic(target, text.encode("utf-8"))
        return target

    def __str__(self) -> str:
        return "\n".join([_heading(self), "", *_summary(self.scores), *_skips(self.skipped)])


def _heading(report: Report) -> str:
    rows = report.rows
    holdout = "none" if rows.n_holdout is None else f"{rows.n_holdout:,}"
    return (
        f"silosynth evaluation: {len(report.columns)} columns, {rows.n_train:,} training, "
        f"{holdout} hold-out and {rows.n_synthetic:,} synthetic rows"
    )


def _summary(scores: Sequence[Score]) -> list[str]:
    head = ("figure", "value", "95 % interval", "floor", "")
    body = [(s.label, _number(s, s.value), _interval(s), _number(s, s.floor), s.unit) for s in scores]
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:4], widths[1:4], strict=True)), row[4]]
        )
        for row in [head, *body]
    ]
    return [line.rstrip() for line in lines] + ["floor: the same figure between real samples"]


def _interval(score: Score) -> str:
    if score.low is None or score.high is None:
        return "-"
    return f"{_number(score, score.low)} .. {_number(score, score.high)}"


def _number(score: Score, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(score.ideal) <= 1 and score.unit != "%" else f"{value:.2f}"


def _skips(skipped: Sequence[Skipped]) -> list[str]:
    return ["", "not computed:", *(f"  {s.name}: {s.why}" for s in skipped)] if skipped else []


def _plain(value: Any) -> Any:
    """Dataclasses, named tuples, arrays and NumPy scalars as JSON values; numbers that JSON has not become None."""
    if isinstance(value, (str, bool)) or value is None:
        return value
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return str(value)
