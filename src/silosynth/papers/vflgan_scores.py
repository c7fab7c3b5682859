"""The figures of the VFLGAN paper (Yuan et al., PETS 2024; section 5.1, equations 22 to 24, table 1).

*Fréchet distance* (23): between Gaussians fitted to the encoded real and synthetic rows. Categories are one-hot over
the levels of both tables; numbers are standardised by the real rows' mean and (sample) standard deviation, which the
paper calls their variance. It grows with the number of columns. The covariances are sample covariances, as in the
public code. The trace of (V V')^(1/2) is the sum of the singular values of V^(1/2) V'^(1/2), which avoids the root of
an asymmetric matrix: where columns are dependent, as one-hot columns are, the public code's `sqrtm` returns complex
numbers or fails. A constant real column is not scaled.

*Total difference*: accuracy and macro F1 of a random forest that predicts the target in four settings, trained and
tested on real rows (TRTR), on synthetic rows (TSTS), on real and synthetic (TRTS), on synthetic and real (TSTR); the
sum of the six absolute differences from TRTR. Table 1 sums rounded differences; here nothing is rounded.

For TRTR and TSTS, the paper's text says "cross-validation with 10 evenly split sub-sets"; the public code draws 30 % of
the rows as test rows, 10 times. Only the latter reproduces table 1's TRTR (red wine .594 and .260, white wine .528 and
.205; folds give .586 and .281, .537 and .240), so it is the default; ``protocol`` = "folds" follows the text. Forests
are the public code's: 100 trees, depth 3, all features at each split, seed 0. Their features are numbers and level
codes. In TRTS and TSTR each table is standardised by its own rows, so a shift or rescaling of a column goes unnoticed.

*Inception score* (24): computed from the class probabilities that a classifier assigns to synthetic images.

The paper's tables have no missing values. Here, they are a level of their own in categories; in numbers they become the
mean, with a flag beside it. Forests leave out rows without a target.

Shapes: N rows, W width of an encoded row, C classes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import KFold, ShuffleSplit

from silosynth.core.errors import DataError
from silosynth.evaluation.coding import Coded, check_target, code_tables, line, standardised
from silosynth.evaluation.scores import Floats, Ints
from silosynth.models.vflgan import frechet_distance

Protocol = Literal["splits", "folds"]
SPLITS = 10
SPLIT = {  # how TRTR and TSTS divide rows into training and test rows
    "splits": lambda: ShuffleSplit(SPLITS, test_size=0.3, random_state=0),
    "folds": lambda: KFold(SPLITS, shuffle=True, random_state=0),
}
LEAST_ROWS = 2 * SPLITS


@dataclass(frozen=True, slots=True)
class ForestScore:
    """How well a forest predicts."""

    accuracy: float
    f1: float

    def difference(self, other: ForestScore) -> float:
        """Sum of both absolute differences."""
        return abs(self.accuracy - other.accuracy) + abs(self.f1 - other.f1)


@dataclass(frozen=True, slots=True)
class Usefulness:
    """A row of table 1: each name says which rows a forest was trained on, then which it was tested on."""

    trtr: ForestScore
    tsts: ForestScore
    trts: ForestScore
    tstr: ForestScore

    @property
    def total_difference(self) -> float:
        """Between 0, the best, and 6."""
        return sum(other.difference(self.trtr) for other in (self.tsts, self.trts, self.tstr))

    def to_dict(self) -> dict[str, float]:
        """All eight scores and the total difference, by name."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        scores = {f"{name} {what}": getattr(part, what) for name, part in parts.items() for what in ("accuracy", "f1")}
        return {**scores, "total difference": self.total_difference}


# Fréchet distance.


def frechet(real_NW: Floats, synthetic_NW: Floats) -> float:
    """Equation 23, for encoded rows.

    Raises:
        DataError: a table has fewer than two rows, or a value that is not finite, or the widths differ.
    """
    for rows in (real_NW, synthetic_NW):
        if rows.ndim != 2 or len(rows) < 2 or rows.shape[1] != real_NW.shape[1] or not np.isfinite(rows).all():
            raise DataError(
                "A Fréchet distance is between two or more rows of finite numbers, as wide as the others", rows.shape
            )
    return frechet_distance(torch.from_numpy(real_NW), torch.from_numpy(synthetic_NW))


def table_frechet(real: Coded, synthetic: Coded) -> float:
    """Equation 23, for tables that were coded together."""
    return frechet(encoded(real, real), encoded(real, synthetic))


def encoded(reference: Coded, table: Coded) -> Floats:
    """Rows (N, W): one-hot levels, and numbers standardised by the reference rows (equation 22)."""
    parts: list[Floats] = []
    for field, known, values in zip(table.fields, reference.values, table.values, strict=True):
        if field.categorical:
            parts.append((values[:, None] == np.arange(len(field.levels) + 1)).astype(np.float64))
        else:
            parts.append(_scaled(known, values))
    return np.concatenate(parts, axis=1)


def _scaled(known: Floats, values: Floats) -> Floats:
    mean, deviation = line(known, ddof=1)
    return np.stack([np.nan_to_num((values - mean) / deviation), np.isnan(values)], axis=1)


# Random forests.


def usefulness(
    real: Coded, synthetic: Coded, target: int, protocol: Protocol = "splits", trtr: ForestScore | None = None
) -> Usefulness:
    """Table 1's scores for tables that were coded together; pass ``trtr`` if it is known from another synthetic table.

    Raises:
        DataError: the target is a number, or a table has fewer than `LEAST_ROWS` rows with a target.
    """
    if not real.fields[target].categorical:
        raise DataError("A forest needs a target that is a category", real.fields[target].name)
    (x, y), (made_x, made_y) = (_problem(table, target) for table in (real, synthetic))
    return Usefulness(
        trtr=trtr or _within(x, y, protocol),
        tsts=_within(made_x, made_y, protocol),
        trts=_judge(x, y, made_x, made_y),
        tstr=_judge(made_x, made_y, x, y),
    )


def _problem(table: Coded, target: int) -> tuple[Floats, Ints]:
    """Features (N, columns - 1), standardised by these rows, and classes (N,)."""
    table = table.take(~table.missing(target))
    if len(table) < LEAST_ROWS:
        raise DataError(f"Forests need {LEAST_ROWS} rows with a target", len(table), "Evaluate a larger table.")
    others = (values.astype(np.float64) for j, values in enumerate(table.values) if j != target)
    return np.stack([standardised(values) for values in others], axis=1), table.values[target]


def _within(x: Floats, y: Ints, protocol: Protocol) -> ForestScore:
    """The mean over splits of a single table."""
    scores = [_judge(x[train], y[train], x[test], y[test]) for train, test in SPLIT[protocol]().split(y)]
    return ForestScore(float(np.mean([j.accuracy for j in scores])), float(np.mean([j.f1 for j in scores])))


def _judge(x: Floats, y: Ints, test_x: Floats, test_y: Ints) -> ForestScore:
    forest = RandomForestClassifier(n_estimators=100, max_depth=3, max_features=1.0, random_state=0)
    predicted = forest.fit(x, y).predict(test_x)
    return ForestScore(float(accuracy_score(test_y, predicted)), float(f1_score(test_y, predicted, average="macro")))


# Frames and images.


def figures(
    real: pd.DataFrame,
    synthetic: pd.DataFrame,
    target: str,
    categories: Collection[str],
    protocol: Protocol = "splits",
    trtr: ForestScore | None = None,
) -> dict[str, float]:
    """Table 1's scores and "FD". Columns are numbers, except text and ``categories``.

    In the Fréchet distance, a target that is not among the categories is a number (appendix A.6); for the forests it
    is always a class.

    Raises:
        DataError: see `usefulness`; or the tables have different columns.
    """
    tables = coded(real, synthetic, categories)
    classes = tables if target in categories else coded(real, synthetic, {*categories, target})
    position = check_target(target, classes[0].fields)
    return {"FD": table_frechet(*tables), **usefulness(*classes, position, protocol, trtr).to_dict()}


def averaged(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means of the `figures` of several tables by one generator, and the total difference of these means.

    Where levels are rare, a single table's total is mostly chance, since differences of both signs add up.
    """
    means = {name: float(np.mean([one[name] for one in scores])) for name in scores[0]}
    names = [field.name for field in fields(Usefulness)]
    return (
        means | Usefulness(*(ForestScore(means[f"{name} accuracy"], means[f"{name} f1"]) for name in names)).to_dict()
    )


def coded(real: pd.DataFrame, synthetic: pd.DataFrame, categories: Collection[str]) -> tuple[Coded, Coded]:
    """Both tables coded alike; numbers that are not categories are never coded as levels."""
    numbers = [str(c) for c in real.select_dtypes("number") if c not in categories]
    schema = dict.fromkeys(numbers, "continuous") | dict.fromkeys(categories, "categorical")
    tables = code_tables({"training": real, "synthetic": synthetic}, schema)
    return tables["training"], tables["synthetic"]


def inception_score(probability_NC: Floats) -> float:
    """Equation 24: between 1 and the number of classes.

    Raises:
        DataError: rows are not probabilities.
    """
    p = np.asarray(probability_NC, np.float64)
    if p.ndim != 2 or not len(p) or (p < 0).any() or not np.allclose(p.sum(axis=1), 1.0, atol=1e-4):
        raise DataError("An inception score is of rows of class probabilities", p.shape)
    mean = np.broadcast_to(p.mean(axis=0), p.shape)
    logs = np.log(np.divide(p, mean, out=np.ones_like(p), where=p > 0))  # 0 log 0 is 0
    return float(np.exp((p * logs).sum(axis=1).mean()))
