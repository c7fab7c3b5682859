"""Looking at a column of numbers: its grid, its special codes, and single values that hold many rows."""

from __future__ import annotations

import numpy as np

MOST_DECIMALS = 6
LARGEST_WHOLE = 2.0**53  # beyond it, floats have no decimals to speak of
MASS = 0.2  # share of rows on one value that makes a column mixed
_MOST_CODES = 5  # more special codes than this are rather a range of values
FEWEST_ROWS = 5  # a value that fewer rows share is rather an outlier, and is named nowhere
_LEAST_DISTINCT = 10  # with no more distinct values than this, all of them are levels and none is special
_CODES = {-1, -2, -3, -4, -5, -6, -7, -8, -9, *(-(10**k - j) for k in (2, 3, 4, 5) for j in range(1, 4))}
_HIGH_CODES = {10**k - j for k in (3, 4, 5, 6) for j in (1, 2, 3)}


def grid_decimals(values: np.ndarray, single: bool = False) -> int | None:
    """The smallest d in -6…6 such that all values are multiples of 10^-d up to rounding; None if there is none.

    Tens, hundreds… (d < 0) are believed only when at least five different non-zero values say so. ``single`` tells that
    the values were stored as float32.
    """
    distinct = np.unique(values)
    whole = distinct.dtype.kind == "i"
    if not whole and np.abs(distinct).max(initial=0) > LARGEST_WHOLE:
        return None
    lowest = -MOST_DECIMALS if np.count_nonzero(distinct) >= 5 else 0
    for d in range(lowest, 1 if whole else MOST_DECIMALS + 1):
        if _on_grid(distinct[:200], d, single) and _on_grid(distinct, d, single):
            return d
    return 0 if whole else None


def special_codes(distinct: np.ndarray, counts: np.ndarray) -> str | None:
    """In words, which values are codes such as -9 or 999 rather than measurements; None if there are none.

    Codes are negative (with all other values at 0 or above) or stand far above the rest, and are shared by at least
    ``FEWEST_ROWS`` rows; what fewer hold is not named.
    """
    if len(distinct) <= _LEAST_DISTINCT:
        return None
    below = distinct < 0
    if 0 < below.sum() <= _MOST_CODES and set(distinct[below].tolist()) <= _CODES:
        shared = below & (counts >= FEWEST_ROWS)
        return f"numbers, with the special values {_listed(distinct[shared])}" if shared.any() else None
    top = distinct[-1].item()
    apart = top > 3 * abs(distinct[-2].item()) and distinct[-2] > 0
    if top in _HIGH_CODES and apart and counts[-1] >= FEWEST_ROWS:
        return f"numbers, with the special value {_listed(distinct[-1:])}"
    return None


def point_mass(distinct: np.ndarray, counts: np.ndarray) -> str | None:
    """In words, which single value holds at least a fifth of the rows; None if there is none."""
    share = counts.max() / counts.sum()
    if share < MASS:
        return None
    return f"numbers, and {share:.0%} of the rows are {_listed(distinct[[counts.argmax()]])}"


def _on_grid(values: np.ndarray, d: int, single: bool) -> bool:
    if values.dtype.kind == "i":
        return not (values % 10**-d).any()
    rounded = np.round(values, d)
    if single:
        return bool((rounded.astype(np.float32) == values.astype(np.float32)).all())
    near = np.abs(rounded - values) <= 4 * np.spacing(np.abs(values))
    return bool((near & ((rounded != 0) | (values == 0))).all())  # the least numbers there are lie beside 0, not on it


def _listed(values: np.ndarray) -> str:
    return ", ".join(f"{value:g}" for value in values.tolist())
