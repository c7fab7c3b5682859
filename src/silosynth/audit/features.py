"""What an attacker sees of a synthetic table, or of intermediate features, in a few numbers (Stadler et al. 2022).

Legend: n rows, d columns, F features.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from silosynth.evaluation.coding import code_tables
from silosynth.evaluation.scores import Floats


def of_table(train: pd.DataFrame, synthetic: pd.DataFrame) -> dict[str, Floats]:
    """Both sets of features (F) of a synthetic table, as many for every table that has the columns of ``train``.

    *naive*: mean, median and variance of a numeric column, and the share of its missing values; of a categorical one
    the shares of the levels that ``train`` has. *correlation*: Pearson's of all pairs, where a categorical column
    stands for indicators of these levels but the first. What does not vary is uncorrelated.

    Raises:
        DataError: the synthetic table has not the columns of ``train``.
    """
    coded = code_tables({"training": train, "synthetic": synthetic})
    known, made = coded["training"], coded["synthetic"]
    naive: list[float] = []
    columns: list[Floats] = []
    for j, field in enumerate(made.fields):
        if field.categorical:
            dummies = [(made.values[j] == level).astype(np.float64) for level in np.unique(known.values[j])]
            naive += [float(dummy.mean()) for dummy in dummies]
            columns += dummies[1:]
        else:
            naive += _moments(made.values[j])
            columns.append(_filled(made.values[j]))
    return {"naive": np.array(naive), "correlation": correlations(np.stack(columns, axis=1))}


def of_numbers(values_nd: Floats) -> dict[str, Floats]:
    """The same of a table of numbers, such as intermediate features."""
    moments = np.stack([values_nd.mean(axis=0), np.median(values_nd, axis=0), values_nd.var(axis=0)], axis=1)
    return {"naive": moments.ravel(), "correlation": correlations(values_nd)}


def correlations(values_nd: Floats) -> Floats:
    """Pearson's correlation of every pair of columns, the upper triangle row by row."""
    centred = values_nd - values_nd.mean(axis=0)
    length_d = np.sqrt((centred**2).sum(axis=0))
    unit = np.divide(centred, length_d, out=np.zeros_like(centred), where=length_d > 1e-12)
    return np.asarray((unit.T @ unit)[np.triu_indices(values_nd.shape[1], 1)])


def to_plain(features: Mapping[str, Floats]) -> dict[str, list[float]]:
    """Features as JSON has them."""
    return {name: [float(x) for x in values] for name, values in features.items()}


def _moments(values_n: Floats) -> list[float]:
    present = values_n[~np.isnan(values_n)]
    gaps = float(np.isnan(values_n).mean())
    if not len(present):
        return [0.0, 0.0, 0.0, gaps]
    return [float(present.mean()), float(np.median(present)), float(present.var()), gaps]


def _filled(values_n: Floats) -> Floats:
    """Missing numbers as the mean of the others."""
    present = values_n[~np.isnan(values_n)]
    return np.where(np.isnan(values_n), present.mean() if len(present) else 0.0, values_n)
