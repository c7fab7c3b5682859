"""What must hold of the real rows before any figure about the synthetic ones is a verdict.

Floors, and all disclosure figures, take hold-out rows for what training rows might as well have been. That is so if
both were drawn at random from one table, and it is tested before anything is concluded:

- *enough rows*: at least `LEAST` in each of the two real samples; of rows with the same identifier, one counts;
- *no rows in common* beyond what duplicates explain: of all ways to deal out the pooled rows, given how often each
  occurs, few have as many hold-out rows with a copy among the training rows (up to `DRAWS` random ones are tried);
- *one population*: no column differs (Kolmogorov-Smirnov, or chi-squared over levels of which at least `EXPECTED` rows
  are expected; Bonferroni over columns), and a classifier that learns to tell hold-out from training rows fails on
  other rows. Its area is the mean over two folds. Folds depend on each other, so the error of their mean is taken for
  as large as that of one fold, its upper bound.

The levels add up to `LEVEL`: of random splits at most that share is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from silosynth.core.schema import Kind, Schema
from silosynth.evaluation.coding import Coded, row_counts, unmarked
from silosynth.evaluation.scores import Ints, Premise, normal_interval
from silosynth.evaluation.utility import AT_MOST, areas, codes_matrix

LEVEL = 0.01
COLUMNS, JOINT, COMMON = 0.5 * LEVEL, 0.25 * LEVEL, 0.25 * LEVEL  # of the three tests
LEAST = 50  # rows: the area of 50 against 50 random rows has a standard error of 0.06
EXPECTED = 10
DRAWS, FEWEST_DRAWS, CELLS = 1000, 400, 50_000_000  # of deals; rows dealt, in all of them
NAMED = 5  # columns
REMEDY = "Hold rows out at random: train, holdout = ss.split(table, holdout=0.2, seed=0), or [split] of an experiment."


def examine(
    train: Coded, holdout: Coded | None, rng: np.random.Generator, apart: tuple[Coded, Coded] | None = None
) -> tuple[Premise, ...]:
    """All premises; those about hold-out rows are not tested without such.

    ``apart`` are rows of the two that do not depend on each other, where not all are independent: see `one_row_each`.
    """
    if holdout is None:
        why = "no hold-out rows were given; floors are those of two random halves of the training rows"
        return enough_rows(len(train) // 2, None), _untested("no_rows_in_common", why), _untested("one_population", why)
    common = rows_in_common(train, holdout, rng)
    train, holdout = apart or (train, holdout)
    enough = enough_rows(len(train), len(holdout))
    if not enough.holds:
        return enough, common, _untested("one_population", "too few rows")
    return enough, common, one_population(train, holdout, rng)


def one_row_each(frame: Any, schema: Schema, rng: np.random.Generator) -> Ints | None:
    """Positions of rows of which no two share an identifier's value, drawn at random; None if no rows do anyway.

    Rows of one person depend on each other, so that a random split looks less like one than it is.
    """
    table = unmarked(frame, schema)
    names = [c.name for c in schema.columns if c.kind == Kind.IDENTIFIER.value and c.name in table.columns]
    names = [name for name in names if table[name].dropna().duplicated().any()]
    if not names:
        return None
    order = rng.permutation(len(table))
    repeats = np.zeros(len(table), dtype=bool)
    for name in names:
        values = table[name].iloc[order]
        repeats |= (values.duplicated() & values.notna()).to_numpy()
    return np.sort(order[~repeats])


def independent(
    frames: Mapping[str, Any], coded: Mapping[str, Coded], schema: Schema, rng: np.random.Generator
) -> tuple[Coded, Coded] | None:
    """Training and hold-out rows of which no two share an identifier's value; None if that leaves none out."""
    if "hold-out" not in coded:
        return None
    rows = [one_row_each(frames[name], schema, rng) for name in ("training", "hold-out")]
    if all(at is None for at in rows):
        return None
    tables = (coded["training"], coded["hold-out"])
    a, b = (table if at is None else table.take(at) for table, at in zip(tables, rows, strict=True))
    return a, b


LABELS = {
    "enough_rows": "Enough real rows",
    "no_rows_in_common": "No rows in common",
    "one_population": "Hold-out rows are like training rows",
}


def enough_rows(train: int, holdout: int | None) -> Premise:
    """Whether both real samples are large enough to conclude anything."""
    least = train if holdout is None else min(train, holdout)
    found = f"halves of {train:,} training rows"
    if holdout is not None:
        found = f"{train:,} training and {holdout:,} hold-out rows"
    holds = least >= LEAST
    if not holds:
        found += f"; with fewer than {LEAST} nothing can be concluded"
    remedy = "" if holds else "Hold more rows out, or collect more."
    return _premise("enough_rows", holds, found, float(least), "rows", expected=float(LEAST), remedy=remedy)


def rows_in_common(train: Coded, holdout: Coded, rng: np.random.Generator) -> Premise:
    """Whether more hold-out rows have a copy among the training rows than duplicates explain."""
    in_train, in_holdout = row_counts(train, holdout)
    n, h = len(train), len(holdout)
    common = int(in_holdout[in_train > 0].sum())
    dealt_R = _dealt(in_train + in_holdout, n, h, rng)
    p = (1 + int((dealt_R >= common).sum())) / (1 + len(dealt_R))
    share, chance = common / h, float(dealt_R.mean()) / h
    low, high = (float(end) for end in proportion_confint(common, h, method="wilson"))
    found = f"{100 * share:.1f} % of the hold-out rows are also training rows; duplicates explain {100 * chance:.1f} %"
    holds = p > COMMON
    remedy = "" if holds else f"Remove the copies. {REMEDY}"
    ends = 100 * min(low, share), 100 * max(high, share)
    return _premise("no_rows_in_common", holds, found, 100 * share, "%", ends, 100 * chance, p, remedy)


def _dealt(copies: Ints, n: int, h: int, rng: np.random.Generator) -> Ints:
    """(R,) how many of h rows have a copy among n others, if rows that occur ``copies`` times are dealt at random."""
    repeated = copies[copies > 1]
    dealt = int(repeated.sum())
    draws = max(FEWEST_DRAWS, min(DRAWS, CELLS // max(1, dealt)))
    owner = np.repeat(np.arange(len(repeated)), repeated)
    found = np.zeros(draws, np.int64)
    for r, held in enumerate(rng.hypergeometric(dealt, n + h - dealt, h, draws)):
        count = np.bincount(owner[rng.permutation(dealt)[:held]], minlength=len(repeated))
        found[r] = count[count < repeated].sum()
    return found


def one_population(train: Coded, holdout: Coded, rng: np.random.Generator) -> Premise:
    """Whether columns, or rows as a whole, differ more than those of random splits do."""
    p_d = np.array([_column(train, holdout, j) for j in range(len(train.fields))])
    unlike = [train.fields[j].name for j in np.argsort(p_d, kind="stable") if p_d[j] * len(p_d) <= COLUMNS]
    found = f"{len(unlike)} of {len(p_d)} columns differ" + (f" ({_named(unlike)})" if unlike else "")
    area, low, high, p = _told_apart(train, holdout, rng)
    found += f"; a classifier tells them apart with AUC {area:.3f} ({low:.3f} to {high:.3f}), 0.5 is guessing"
    holds = not unlike and p > JOINT
    worst = min(1.0, float(p_d.min()) * len(p_d), p * COLUMNS / JOINT)  # at the level of `COLUMNS`
    remedy = "" if holds else REMEDY
    return _premise("one_population", holds, found, area, "AUC", (low, high), 0.5, worst, remedy)


def of_tables(
    train: int, holdout: int | None, columns: Sequence[tuple[str, Ints]], why: str = ""
) -> tuple[Premise, ...]:
    """What exact tables of training and hold-out rows tell: whether there are enough, and whether columns differ.

    Args:
        train, holdout: numbers of rows.
        columns: names, and counts of their levels (2, K) in training and hold-out rows; none if they are not known.
        why: why not.
    """
    common = _untested("no_rows_in_common", "that takes whole rows, and there are only tables")
    enough = enough_rows(train, holdout)
    if not columns or not enough.holds:
        return enough, common, _untested("one_population", why or "too few rows")
    p_d = [_chi_squared(counts) for _, counts in columns]
    unlike = [columns[j][0] for j in np.argsort(p_d, kind="stable") if p_d[j] * len(p_d) <= COLUMNS]
    found = f"{len(unlike)} of {len(p_d)} columns differ" + (f" ({_named(unlike)})" if unlike else "")
    worst = min(1.0, min(p_d) * len(p_d))
    return enough, common, _premise(
        "one_population", not unlike, found, None, "", p=worst, remedy=REMEDY if unlike else ""
    )  # fmt: skip


def _told_apart(train: Coded, holdout: Coded, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """Area, 95 % interval and p-value of a classifier that tells the two apart."""
    a, b = train.sample(AT_MOST, rng), holdout.sample(AT_MOST, rng)
    y = np.repeat(np.array([0, 1], np.int64), [len(a), len(b)])
    area_F, error_F = areas(codes_matrix(a, b), y, 2, int(rng.integers(2**31)))
    area, error = float(area_F.mean()), float(error_F.mean())
    p = float(stats.norm.sf((area - 0.5) / error)) if error > 0 else float(area <= 0.5)
    return area, *normal_interval(area, error, 0.0, 1.0), p


def _column(train: Coded, holdout: Coded, j: int) -> float:
    """The p-value of a column's difference."""
    a, b = train.values[j], holdout.values[j]
    if not train.fields[j].categorical:
        a, b = (np.nan_to_num(values, nan=-np.inf) for values in (a, b))
        return float(stats.ks_2samp(a, b, method="asymp").pvalue)
    size = len(train.fields[j].levels) + 1
    counts = np.stack([np.bincount(values, minlength=size) for values in (a, b)])
    return _chi_squared(counts)


def _chi_squared(counts_2K: Ints) -> float:
    """The p-value of unlike shares; levels too rare for the test are taken together."""
    rarest = counts_2K.sum(axis=0) * counts_2K.sum(axis=1).min() / counts_2K.sum()
    common = counts_2K[:, rarest >= EXPECTED]
    rest = counts_2K[:, rarest < EXPECTED].sum(axis=1, keepdims=True)
    table = np.concatenate([common, rest], axis=1) if rarest[rarest < EXPECTED].sum() >= EXPECTED else common
    return float(stats.chi2_contingency(table, correction=False).pvalue) if table.shape[1] > 1 else 1.0


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _untested(name: str, why: str) -> Premise:
    return Premise(name, LABELS[name], None, f"not tested: {why}")


def _premise(
    name: str, holds: bool, found: str, value: float | None, unit: str,
    ends: tuple[float | None, float | None] = (None, None), expected: float | None = None, p: float | None = None,
    remedy: str = "",
) -> Premise:  # fmt: skip
    return Premise(name, LABELS[name], holds, found, value, *ends, unit, expected, p, remedy)
