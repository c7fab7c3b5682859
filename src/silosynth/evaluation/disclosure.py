"""Basic disclosure figures: exact copies, nearest-neighbour share, distance to the closest record.

They compare the synthetic table's closeness to its training rows with its closeness to a hold-out it has never seen.
They are no attacks (`silosynth.attacks` has those), and passing them proves nothing: data that pass can still be
attacked. Where the hold-out is smaller than the training table, only as many training rows are drawn, and copies of the
others count as chance: at k of n rows a table of pure copies has a nearest-neighbour share near 50 + 50 k / n %.

Distance between two rows: Euclidean over columns; numeric differences in standard deviations of the real rows, a
different level counts 1, a missing number is taken as the mean and counts 1 against any present one. It is exact,
computed in blocks and in float64.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binom
from statsmodels.stats.proportion import proportion_confint

from silosynth.evaluation.coding import Coded, line
from silosynth.evaluation.scores import NEEDS_HOLDOUT, Floats, Least, Scale, Score, Skipped

MOST_SYNTHETIC = 10_000
MOST_REAL = 16_384
DUMMY_LEVELS = 64  # columns with more levels are compared code by code instead of as dummies
FAR = 1e6  # standard deviations beyond which numbers are clipped
PERCENT = Scale("disclosure", "%", "lower", 0.0)
CELLS = 8_000_000  # distances in memory at a time


def exact_copies(
    train: Coded, holdout: Coded | None, synthetic: Coded, rng: np.random.Generator
) -> list[Score | Skipped]:
    """Share of synthetic rows that equal a training row in every column; and the same at the hold-out's size."""
    if holdout is None:
        return [_copies_alone(train, synthetic, rng), Skipped("exact_copy_rate_equal_size", NEEDS_HOLDOUT)]
    n, h = len(train), len(holdout)
    copied, in_holdout = _copied(synthetic, train), _copied(synthetic, holdout)
    least = min(100.0, _percent(in_holdout) * max(1.0, n / h))
    factor = f"times {max(1.0, n / h):.2f}, which is at most what {n:,} would give"
    note = f"share of synthetic rows found among {h:,} hold-out rows, {factor}"
    full = _share_score("exact_copy_rate", "Exact copies", copied, (least, note), COPY_TEXT)
    k = min(n, h)
    equal_train, equal_holdout = _copied(synthetic, train.sample(k, rng)), _copied(synthetic, holdout.sample(k, rng))
    text = f"How many synthetic rows equal one of {k:,} training rows; to compare with as many unseen real rows."
    label = "Exact copies, equal sizes"
    note = f"share of synthetic rows found among {k:,} hold-out rows"
    least = _percent(equal_holdout)
    return [full, _share_score("exact_copy_rate_equal_size", label, equal_train, (least, note), text)]


def _copies_alone(train: Coded, synthetic: Coded, rng: np.random.Generator) -> Score:
    order, half = rng.permutation(len(train)), len(train) // 2
    floor: Least = None, "no floor: one training row"
    if half:
        least = _percent(_copied(train.take(order[:half]), train.take(order[half:])))
        floor = least, "share of one half of the training rows found in the other half; not scaled"
    return _share_score("exact_copy_rate", "Exact copies", _copied(synthetic, train), floor, COPY_TEXT)


def _copied(rows: Coded, among: Coded) -> NDArray[np.bool_]:
    """(rows,) whether a row equals one of `among` in every column; missing equals missing."""
    keys = np.zeros(len(rows) + len(among), np.int64)
    for a, b in zip(rows.values, among.values, strict=True):
        codes, levels = pd.factorize(np.concatenate([a, b]), use_na_sentinel=False)
        keys, _ = pd.factorize(keys * len(levels) + codes)
    return np.isin(keys[: len(rows)], keys[len(rows) :])


def neighbours(
    train: Coded, holdout: Coded | None, synthetic: Coded, rng: np.random.Generator
) -> list[Score | Skipped]:
    """Nearest-neighbour share and distance to the closest record, on as many training as hold-out rows."""
    if holdout is None:
        return [Skipped("nearest_neighbour_share", NEEDS_HOLDOUT), Skipped("distance_to_closest_record", NEEDS_HOLDOUT)]
    k = min(len(train), len(holdout), MOST_REAL)
    near, far = train.sample(k, rng), holdout.sample(k, rng)
    queries, others = synthetic.sample(MOST_SYNTHETIC, rng), far.sample(MOST_SYNTHETIC, rng)
    lines = _lines(near, far)
    to_train, to_holdout = nearest_squared(queries, near, lines), nearest_squared(queries, far, lines)
    baseline = nearest_squared(others, near, lines)
    return [_neighbour_share(to_train, to_holdout, k, len(train)), _closest(to_train, baseline, k)]


def nearest_squared(queries: Coded, among: Coded, lines: Floats) -> Floats:
    """Exact squared distance of each query to its nearest row in `among`."""
    a, b = _embed(queries, lines), _embed(among, lines)
    wide = [j for j, f in enumerate(queries.fields) if f.categorical and len(f.levels) > DUMMY_LEVELS]
    norms = (b * b).sum(axis=1)
    step = max(1, CELLS // len(among))
    nearest = np.empty(len(queries))
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        distances = norms - 2 * (a[rows] @ b.T)  # the query's own norm does not change which row is nearest
        for j in wide:
            distances += queries.values[j][rows, None] != among.values[j][None, :]
        at = distances.argmin(axis=1)
        nearest[rows] = ((a[rows] - b[at]) ** 2).sum(axis=1)  # recomputed, so that equal distances are equal floats
        for j in wide:
            nearest[rows] += queries.values[j][rows] != among.values[j][at]
    return nearest


def _lines(*tables: Coded) -> Floats:
    """Mean and standard deviation (d, 2) of each numeric column over present values; 0 and 1 where it has none."""
    lines = np.tile([0.0, 1.0], (len(tables[0].fields), 1))
    for j, field in enumerate(tables[0].fields):
        if not field.categorical:
            lines[j] = line(np.concatenate([t.values[j] for t in tables]))
    return lines


def _embed(table: Coded, lines: Floats) -> Floats:
    """(rows, D) with the squared Euclidean distances of the rows, but for wide categorical columns."""
    columns: list[Floats] = []
    for j, field in enumerate(table.fields):
        values = table.values[j]
        if not field.categorical:
            columns.append(np.nan_to_num(np.clip((values - lines[j, 0]) / lines[j, 1], -FAR, FAR)))
            columns.append(np.isnan(values).astype(np.float64))
        elif len(field.levels) <= DUMMY_LEVELS:
            columns.extend((values == level) * np.sqrt(0.5) for level in range(len(field.levels) + 1))
    return np.stack(columns, axis=1) if columns else np.zeros((len(table), 1))


def _neighbour_share(to_train: Floats, to_holdout: Floats, k: int, n: int) -> Score:
    tied = np.isclose(to_train, to_holdout, rtol=1e-9, atol=0)
    closer = np.where(tied, 0.5, (to_train < to_holdout).astype(np.float64))
    text = "How many synthetic rows lie closer to a training row than to an unseen real row; 50 % shows no attraction."
    note = f"50 % by symmetry: {k:,} of {n:,} training rows against {k:,} hold-out rows"
    on = Scale("disclosure", "%", "near", 50.0)
    return _share_score("nearest_neighbour_share", "Nearest-neighbour share", closer, (50.0, note), text, on)


def _closest(to_train: Floats, baseline: Floats, k: int) -> Score:
    distances, unseen = np.sqrt(np.sort(to_train)), float(np.median(np.sqrt(baseline)))
    note = f"median distance of unseen real rows to the same {k:,} training rows"
    text = (
        "Median distance of a synthetic row to its closest training row. Passing it proves nothing about "
        "privacy: data that pass can still be attacked."
    )
    return Scale("disclosure", "score", "near", unseen).score(
        "distance_to_closest_record", "Distance to closest record", float(np.median(distances)), (unseen, note),
        _median_interval(distances), len(distances), text, "95 % interval of a median from order statistics",
    )  # fmt: skip


def _median_interval(rising: Floats) -> tuple[float, float]:
    low, high = (int(i) for i in binom.ppf([0.025, 0.975], len(rising), 0.5))
    return float(rising[max(low - 1, 0)]), float(rising[min(high, len(rising) - 1)])


def _percent(hits: NDArray[np.bool_]) -> float:
    return 100 * float(hits.mean())


def _share_score(
    name: str, label: str, hits: NDArray[np.bool_] | Floats, floor: Least, text: str, on: Scale = PERCENT
) -> Score:
    count, n = float(hits.sum()), len(hits)
    value = 100 * count / n
    low, high = (100 * float(end) for end in proportion_confint(count, n, method="wilson"))
    ends = min(low, value), max(high, value)  # at 0 and 100 %, Wilson's ends have rounding errors
    return on.score(name, label, value, floor, ends, n, text, "95 % Wilson interval")


COPY_TEXT = (
    "How many synthetic rows equal a training row in every column; "
    "more than for as many unseen real rows means that rows were copied."
)
