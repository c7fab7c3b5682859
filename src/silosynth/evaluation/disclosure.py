"""Basic disclosure figures: exact copies, nearest-neighbour share, distance to the closest record.

They compare the synthetic table's closeness to its training rows with its closeness to a hold-out it has never seen.
A real row attracts several synthetic rows at once, and which real rows were trained on is chance: intervals are those
of random splits of the real rows (tests let fresh real rows pass for synthetic ones).

They are no attacks (`silosynth.attacks` has those), and passing them proves nothing: data that pass can still be
attacked. Where the hold-out is smaller than the training table, only as many training rows are drawn, and copies of the
others count as chance: at k of n rows a table of pure copies has a nearest-neighbour share near 50 + 50 k / n %.

Distance between two rows: Euclidean over columns; numeric differences in standard deviations of the real rows, a
different level counts 1, a missing number is taken as the mean and counts 1 against any present one. It is exact,
computed in blocks and in float64.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom
from statsmodels.stats.proportion import proportion_confint

from silosynth.evaluation.coding import Coded, line, row_counts
from silosynth.evaluation.scores import NEEDS_HOLDOUT, Floats, Ints, Least, Scale, Score, Skipped

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
        return [_copies_alone(train, synthetic), Skipped("exact_copy_rate_equal_size", NEEDS_HOLDOUT)]
    n, h = len(train), len(holdout)
    factor = max(1.0, n / h)
    note = (
        f"share of synthetic rows found among {h:,} hold-out rows, "
        f"times {factor:.2f}, which is at most what {n:,} would give"
    )
    full = _copy_score(
        "exact_copy_rate", "Exact copies", row_counts(train, holdout, synthetic), factor, note, COPY_TEXT
    )
    k = min(n, h)
    counts = row_counts(train.sample(k, rng), holdout.sample(k, rng), synthetic)
    text = f"How many synthetic rows equal one of {k:,} training rows; to compare with as many unseen real rows."
    note = f"share of synthetic rows found among {k:,} hold-out rows"
    return [full, _copy_score("exact_copy_rate_equal_size", "Exact copies, equal sizes", counts, 1.0, note, text)]


def _copy_score(name: str, label: str, counts: Ints, factor: float, note: str, text: str) -> Score:
    """The share of copies of training rows, beside ``factor`` times that of hold-out rows.

    Were all real rows dealt anew, each distinct row that only one of the two has would be the other's as likely: the
    synthetic rows that equal it count for or against together. From these comes the error of value less floor.
    """
    train, holdout, synthetic = counts
    m = int(synthetic.sum())
    weight = synthetic[(train > 0) != (holdout > 0)].astype(np.float64)
    error = math.sqrt(factor * float((weight**2).sum() + weight.max(initial=0.0) ** 2)) / m
    least = min(100.0, 100 * factor * float(synthetic[holdout > 0].sum()) / m)
    return _share_score(name, label, float(synthetic[train > 0].sum()), m, (least, note), text, PERCENT, error, DEALT)


def _copies_alone(train: Coded, synthetic: Coded) -> Score:
    in_train, in_synthetic = row_counts(train, synthetic)
    n, m, repeated = len(train), len(synthetic), in_train[in_train > 1].astype(np.float64)
    floor: Least = None, "no floor: one training row"
    if n > 1:
        floor = 100 * float(repeated.sum()) / n, "share of training rows that equal another training row"
    weight = in_synthetic[in_train > 0].astype(np.float64)
    error = math.hypot(float(np.linalg.norm(weight)) / m, float(np.linalg.norm(repeated)) / n)
    label, method = (
        "Exact copies",
        "95 % normal interval of the difference from the floor, Wilson's where that is wider",
    )
    return _share_score("exact_copy_rate", label, float(weight.sum()), m, floor, COPY_TEXT, PERCENT, error, method)


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
    to_train, to_holdout = nearest(queries, near, lines), nearest(queries, far, lines)
    baseline, _ = nearest(others, near, lines)
    return [_neighbour_share(to_train, to_holdout, k, len(train)), _closest(to_train[0], baseline, k)]


def nearest(queries: Coded, among: Coded, lines: Floats) -> tuple[Floats, Ints]:
    """Exact squared distance of each query to its nearest row in `among`, and that row's position."""
    a, b = _embed(queries, lines), _embed(among, lines)
    wide = [j for j, f in enumerate(queries.fields) if f.categorical and len(f.levels) > DUMMY_LEVELS]
    norms = (b * b).sum(axis=1)
    step = max(1, CELLS // len(among))
    least, place = np.empty(len(queries)), np.empty(len(queries), np.int64)
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        distances = norms - 2 * (a[rows] @ b.T)  # the query's own norm does not change which row is nearest
        for j in wide:
            distances += queries.values[j][rows, None] != among.values[j][None, :]
        place[rows] = at = distances.argmin(axis=1)
        least[rows] = ((a[rows] - b[at]) ** 2).sum(axis=1)  # recomputed, so that equal distances are equal floats
        for j in wide:
            least[rows] += queries.values[j][rows] != among.values[j][at]
    return least, place


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


def _neighbour_share(to_train: tuple[Floats, Ints], to_holdout: tuple[Floats, Ints], k: int, n: int) -> Score:
    """The share of synthetic rows that are nearer to training rows; real rows attract several at once (its error)."""
    (near, at_train), (far, at_holdout) = to_train, to_holdout
    tied = np.isclose(near, far, rtol=1e-9, atol=0)
    closer = np.where(tied, 0.5, (near < far).astype(np.float64))
    attracted = np.bincount(at_train, closer, k), np.bincount(at_holdout, 1 - closer, k)
    spread = float(np.var(np.concatenate(attracted))) * 2 * k
    error = math.sqrt(k / (2 * (2 * k - 1)) * spread) / len(closer)
    text = "How many synthetic rows lie closer to a training row than to an unseen real row; 50 % shows no attraction."
    floor: Least = 50.0, f"50 % by symmetry: {k:,} of {n:,} training rows against {k:,} hold-out rows"
    on, label = Scale("disclosure", "%", "near", 50.0), "Nearest-neighbour share"
    return _share_score(
        "nearest_neighbour_share", label, float(closer.sum()), len(closer), floor, text, on, error, DEALT
    )


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


def _share_score(
    name: str, label: str, count: float, n: int, floor: Least, text: str, on: Scale, error: float, method: str
) -> Score:
    """A share of n rows; ``error`` is that of its difference from the floor."""
    value = 100 * count / n
    low, high = (100 * float(end) for end in proportion_confint(count, n, method="wilson"))
    reach = 100 * 1.96 * error
    ends = max(0.0, min(low, value - reach)), min(100.0, max(high, value + reach))
    return on.score(name, label, value, floor, (min(ends[0], value), max(ends[1], value)), n, text, method)


DEALT = "95 % normal interval of random splits of the real rows, Wilson's where that is wider"
COPY_TEXT = (
    "How many synthetic rows equal a training row in every column; "
    "more than for as many unseen real rows means that rows were copied."
)
