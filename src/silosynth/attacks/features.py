"""Features that an attacker takes from a synthetic table, or from intermediate features (Stadler et al. 2022).

Legend: n rows, d columns, D numbers of a row, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from silosynth.core.schema import Schema
from silosynth.evaluation.coding import Coded, code_tables, line
from silosynth.evaluation.scores import Floats

MOST_LEVELS = 64
RANKS = np.array([1, 2, 4, 8, 16, 32, 64, 128])  # of synthetic rows, by how near they are to a record


def of_table(train: pd.DataFrame, synthetic: pd.DataFrame, schema: Schema | None = None) -> dict[str, Floats]:
    """Both sets of features (F) of a synthetic table, as many for every table that has the columns of ``train``.

    *naive*: mean, median and variance of a numeric column, and the share of its missing values; of a categorical one
    the shares of the levels that ``train`` has. *correlation*: Pearson's of all pairs, where a categorical column
    stands for indicators of these levels but the first. What does not vary is uncorrelated.

    Raises:
        DataError: the synthetic table has not the columns of ``train``.
    """
    coded = code_tables({"training": train, "synthetic": synthetic}, schema)
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
            columns.append(np.where(made.missing(j), line(made.values[j])[0], made.values[j]))  # missing: the mean
    return {"naive": np.array(naive), "correlation": correlations(np.stack(columns, axis=1))}


def of_record(train: pd.DataFrame, row: int, synthetic: pd.DataFrame, schema: Schema | None = None) -> Floats:
    """How near synthetic rows come to record ``row`` of ``train``, and how far they reach from the middle towards it.

    The logarithms of the distances of the nearest one, of the 2nd, 4th, … 128th (or the last); and as many of the
    furthest points in the direction of the record. An attacker who knows the record can take them, and does better with
    them than with features of the whole table (Houssiau et al. 2022 and Meeus et al. 2023 count rows that are like it).
    """
    points = embed(code_tables({"records": train, "others": synthetic}, schema))
    middle_D = points["records"].mean(axis=0)
    record_D, made_nD = points["records"][row] - middle_D, points["others"] - middle_D
    distance_n = np.sort(np.linalg.norm(made_nD - record_D, axis=1))
    reach_n = -np.sort(-made_nD @ record_D) / max(float(np.linalg.norm(record_D)), 1e-12)
    taken = np.minimum(RANKS, len(made_nD)) - 1
    return np.concatenate([np.log(np.maximum(distance_n[taken], 1e-9)), reach_n[taken]])


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


def embed(tables: Mapping[str, Coded]) -> dict[str, Floats]:
    """Tables as points of one space: numbers in standard deviations of what attackers hold, levels as indicators.

    They hold all tables but "members" and "others". Columns of more than `MOST_LEVELS` levels are left out. The
    indicators of a level are √½ long, so that two levels are 1 apart; missing numbers are the mean, and 1 away.
    """
    held = [table for name, table in tables.items() if name not in ("members", "others")]
    columns: dict[str, list[Floats]] = {name: [] for name in tables}
    for j, field in enumerate(held[0].fields):
        if field.categorical and len(field.levels) > MOST_LEVELS:
            continue
        known = np.concatenate([table.values[j] for table in held])
        for name, table in tables.items():
            columns[name] += (
                _levels(table.values[j], len(field.levels)) if field.categorical else _number(table.values[j], known)
            )
    return {name: np.stack(own, axis=1) for name, own in columns.items()}


def _levels(codes: Any, levels: int) -> list[Floats]:
    return [np.sqrt(0.5) * (codes == level) for level in range(levels + 1)]


def _number(values: Floats, known: Floats) -> list[Floats]:
    (mean, spread), gap = line(known), np.isnan(values)
    return [np.where(gap, 0.0, (np.nan_to_num(values) - mean) / spread), gap.astype(np.float64)]
