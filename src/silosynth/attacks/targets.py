"""Which records are most at risk: those that audits should try first (VFLGAN, appendix A.7).

Legend: N records, D numeric and C categorical columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from silosynth.core.errors import DataError
from silosynth.evaluation.coding import Coded, Ints
from silosynth.evaluation.scores import Floats

CELLS = 8_000_000  # distances held at a time


def outlier_counts(table: Coded) -> Ints:
    """How many numeric attributes of each record (N) are outliers, by equations (30) and (31).

    With quartiles Q1 and Q3 and T = Q3 - Q1, a value is one if it lies more than T below Q1 or above Q3 (after Stadler
    et al. 2022). Missing values are none.

    Raises:
        DataError: no column is numeric.
    """
    return np.asarray((_beyond(table) > 1).sum(axis=1), np.int64)


def most_outlying(table: Coded) -> int:
    """The record with the most outlier attributes; of several, the one that lies furthest out over all of them.

    The paper takes several records as equally vulnerable; that one is taken first is our reading.
    """
    beyond_ND = _beyond(table)
    counts_N = (beyond_ND > 1).sum(axis=1)
    reach_N = np.where(beyond_ND > 1, beyond_ND, 0.0).sum(axis=1)
    return int(np.lexsort((-reach_N, -counts_N))[0])


def _beyond(table: Coded) -> Floats:
    """How far each value lies outside the quartiles, in units of T: (N, D), 0 within."""
    columns = [values for field, values in zip(table.fields, table.values, strict=True) if not field.categorical]
    if not columns:
        raise DataError("Outliers are counted over numeric columns", "none", "Choose the record by its neighbours.")
    values_ND = np.stack(columns, axis=1)
    first_D, third_D = (np.nanpercentile(values_ND, q, axis=0) for q in (25, 75))
    span_D = np.maximum(third_D - first_D, np.finfo(np.float64).tiny)  # where half of all are equal, others are far out
    far_ND = np.maximum(first_D - values_ND, values_ND - third_D) / span_D
    return np.asarray(np.nan_to_num(np.maximum(far_ND, 0.0), nan=0.0))


def nearest_distances(table: Coded) -> Floats:
    """Each record's distance to its nearest neighbour (N), by equation (32), after Meeus et al. 2023.

    1 less the cosine similarities of the one-hot categorical part and of the numeric part, weighted by their shares of
    columns. Numbers are brought to [0, 1] first, as Meeus et al. do; a missing one is the mean.

    Raises:
        DataError: there is a single record.
    """
    if len(table) < 2:
        raise DataError("A record needs another one as its neighbour", len(table))
    codes_NC, numbers_ND = _parts(table)
    columns = len(table.fields)
    share = codes_NC.shape[1] / columns
    unit_ND = numbers_ND / np.maximum(np.linalg.norm(numbers_ND, axis=1, keepdims=True), 1e-12)
    step = max(1, CELLS // len(table))
    nearest_N = np.empty(len(table))
    for start in range(0, len(table), step):
        rows = slice(start, start + step)
        alike = (1 - share) * (unit_ND[rows] @ unit_ND.T)
        for codes_N in codes_NC.T:  # the cosine of two one-hot parts is their share of equal levels
            alike += (codes_N[rows, None] == codes_N[None, :]) / columns
        inner = np.arange(len(alike))
        alike[inner, inner + start] = -np.inf
        nearest_N[rows] = 1 - alike.max(axis=1)
    return nearest_N


def most_isolated(table: Coded) -> int:
    """The record that is furthest from its nearest neighbour."""
    return int(nearest_distances(table).argmax())


def _parts(table: Coded) -> tuple[NDArray[np.int64], Floats]:
    """Level codes (N, C) and numbers (N, D) between 0 and 1."""
    codes, numbers = [], []
    for field, values in zip(table.fields, table.values, strict=True):
        if field.categorical:
            codes.append(values)
            continue
        present = values[~np.isnan(values)]
        low, high, mean = (present.min(), present.max(), present.mean()) if len(present) else (0.0, 1.0, 0.5)
        numbers.append((np.where(np.isnan(values), mean, values) - low) / (high - low if high > low else 1.0))
    empty = np.zeros((len(table), 0))
    return (
        np.stack(codes, axis=1) if codes else empty.astype(np.int64),
        np.stack(numbers, axis=1) if numbers else empty,
    )
