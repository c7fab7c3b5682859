"""What a label can be predicted by, where there are only tables: models that need no more than counts.

*Naive Bayes*: columns are independent given the label. *Tree-augmented* (N. Friedman, D. Geiger and M. Goldszmidt,
"Bayesian network classifiers", Machine Learning 29, 1997): each column may also depend on one other, its parent; the
tree is the one of most conditional mutual information given the label, in the synthetic table, so that real tables of
its pairs with the label are all that is needed. Shares of few rows are drawn towards the column's own, with the weight
of `PRIOR` rows, as there (section 4.2).

How well a model describes rows, label and all, is linear in tables: the mean over rows of the bits that it takes to
tell what the row holds is a sum over cells. How often it predicts the label is not, since that takes all columns of a
row at once. It is, for a predictor of one column, or of two with a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from silosynth.evaluation.scores import Floats, Ints
from silosynth.evaluation.sound import Proportions

PRIOR = 5.0
_EVEN = 0.5  # rows on each level, so that none has no share


@dataclass(frozen=True, slots=True)
class Predictor:
    """The label predicted from one column, from two, or from none (always the most frequent label).

    Accuracies are of real hold-out rows, in %.
    """

    columns: tuple[str, ...]
    accuracy: float  # learnt from the synthetic table
    floor: float  # learnt from the real training tables


Factor = tuple[tuple[int, ...], Floats]
"""Columns of a table, and the bits that it takes to tell the first of them, given the others: one number a cell."""


def bayes(counted: Proportions, target: int, parents: Sequence[int | None]) -> list[Factor]:
    """A model of rows: the bits of the label, and of each other column given its parent, if any, and the label."""
    label = _own(counted, target)
    factors: list[Factor] = [((target,), -np.log2(label))]
    for column, parent in enumerate(parents):
        if column != target:
            places = (column, target) if parent is None else (column, parent, target)
            factors.append((places, -np.log2(_given(counted, places))))
    return factors


def _own(counted: Proportions, column: int) -> Floats:
    rows = counted.of(column) * counted.rows + _EVEN
    return np.asarray(rows / rows.sum())


def _given(counted: Proportions, places: tuple[int, ...]) -> Floats:
    """Proportions of the first column's levels, given the others."""
    own = _own(counted, places[0])
    rows = counted.of(*places) * counted.rows
    return np.asarray((rows + PRIOR * own.reshape(-1, *[1] * (rows.ndim - 1))) / (rows.sum(axis=0) + PRIOR))


def bits(factors: Sequence[Factor], rows: Proportions) -> float:
    """The mean over rows of the bits that a model takes for one of them."""
    return float(sum((rows.of(*places) * cost).sum() for places, cost in factors))


def least_bits(factors: Sequence[Factor], rows: Proportions) -> float:
    """What the same model would take if it had been fitted to these very rows."""
    total = 0.0
    for places, _ in factors:
        table = rows.of(*places)
        within = np.broadcast_to(table.sum(axis=0), table.shape) if len(places) > 1 else np.ones_like(table)
        inside = table > 0
        total -= float((table[inside] * np.log2(table[inside] / within[inside])).sum())
    return total


def rule(counted: Proportions, columns: tuple[int, ...], target: int) -> Ints:
    """The most frequent label for each cell of the columns; without any row there, the most frequent of all."""
    table = counted.of(*columns, target)
    usual = int(counted.of(target).argmax())
    return np.where(table.sum(axis=-1) > 0, table.argmax(axis=-1), usual)


def accuracy(chosen: Ints, columns: tuple[int, ...], target: int, rows: Proportions) -> float:
    """The share of rows whose label the rule names."""
    table = rows.of(*columns, target)
    return float(np.take_along_axis(table, chosen[..., None], axis=-1).sum())
