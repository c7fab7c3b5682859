"""How strongly two columns go together, from a noised table of their groups: estimates and 95 % intervals.

Legend: T tables; a table has K rows and J columns of groups, of which those that stand out from the noise count; n rows
of the aligned table; v variance of a cell.

Of a table's cells t, with shares p and q of groups and e = n p q', the residuals that are left when both margins are
taken out are standardised:

    r = (t - margins) / sqrt(e n)        E r² = δ² + v        sum of δ² = phi²        V = sqrt(phi² / (min(K, J) - 1))

v is known: that of the noise, which is stated, and of sampling, as if the columns were independent. `strength` weights
cells by how well they are known, (s / (τ² s + v))², s = (1 - p)(1 - q), where τ² s is what is expected of δ² (weights
and τ² are found together). Weak associations are told from cells with little noise then, strong ones from all alike.
Without noise it is the bias-corrected Cramér's V up to those weights (Bergsma 2013 subtracts the same bias).

*Intervals* take all cells alike: the sum of r² is about c times a non-central chi-square of f degrees of freedom, with
the mean and the variance that follow from the covariance of residuals (Satterthwaite), and its non-centrality is
bracketed. They hold at no association as well: an end of 0 says that the columns may be independent. That margins and n
are estimates makes them wider.

*What knowing one column tells of the other* (entropy, right guesses) is that of tables that are drawn: residuals with
the mean and variance that they have given what was seen, if τ² is as estimated, or as at an end of the interval. The
lower end is the least but for 2.5 % of tables drawn at the lower end, the upper end likewise.

Margins are averaged over all tables of a column, and n over all tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special, stats

from silosynth.evaluation.scores import Floats

LEAST_SHARE = 0.01  # of rows, that a group holds to count
CLEAR = 4.0  # standard deviations that a group's share, and the number of rows, stand out by
DRAWS = 200  # tables from which it is found what columns tell of each other
_ROUNDING = 1e-12  # of sums of shares
_STEPS = 20  # of weights and strength; more changes nothing
_NORMAL = 1e3  # of the sum of r² over its unit, above which the chi-square is as good as normal


@dataclass(frozen=True, slots=True)
class Told:
    """What one column tells of another: as estimated, and the ends of its interval."""

    value: float
    low: float
    high: float


NOTHING = Told(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True, eq=False)
class PairEstimate:
    """The association of two columns; ends of intervals are those of the level that it was made with.

    ``v`` is not a number where too few groups stand out from the noise: nothing can be said then.
    """

    v: float
    low: float
    high: float
    _drawn: _Drawn | None = None

    @property
    def clear(self) -> bool:
        """Whether there is an association at all."""
        return self.low > 0

    def bits(self, of: int) -> Told:
        """By how much the other column reduces the entropy of the first (0) or the second (1), in shares of it."""
        return NOTHING if self._drawn is None else self._drawn.told(lambda tables: _reduction(tables, of))

    def gain(self, of: int) -> Told:
        """On how many more rows, as a share, that column's group is guessed right."""
        return NOTHING if self._drawn is None else self._drawn.told(lambda tables: _gain(tables, of))


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Tables (D, K, J) of shares that may have left these residuals, drawn at the estimate and at both ends of it.

    Attributes:
        r, v: residuals, and their variances.
        p, q: shares of groups.
        spreads: τ² at the estimate, and at both ends.
        tail: the share of tables beyond an end.
    """

    r: Floats
    v: Floats
    p: Floats
    q: Floats
    spreads: tuple[float, float, float]
    tail: float

    @cached_property
    def tables(self) -> list[Floats]:
        z = np.random.default_rng(0).standard_normal((DRAWS, *self.r.shape))  # the same table has the same figures
        return [self._at(spread, z) for spread in self.spreads]

    def _at(self, spread: float, z: Floats) -> Floats:
        expected = spread * np.outer(1 - self.p, 1 - self.q)
        kept = expected / (expected + self.v)
        residuals = kept * self.r + np.sqrt(kept * self.v) * z
        root_p, root_q = np.sqrt(self.p), np.sqrt(self.q)
        residuals = residuals - root_p[:, None] * (root_p @ residuals)[:, None, :]
        residuals = residuals - (residuals @ root_q)[:, :, None] * root_q
        tables = np.maximum(np.outer(self.p, self.q) + np.outer(root_p, root_q) * residuals, 0.0)
        return np.asarray(tables / tables.sum(axis=(1, 2), keepdims=True))

    def told(self, figure: Callable[[Floats], Floats]) -> Told:
        middle, low, high = map(figure, self.tables)
        ends = float(np.quantile(low, self.tail)), float(np.quantile(high, 1 - self.tail))
        return Told(min(max(float(middle.mean()), ends[0]), ends[1]), *ends)


class Margins:
    """Shares of each column's groups, and the number of rows, from all tables.

    Args:
        pairs: the two columns of each table.
        tables: their cells.
        noise: standard deviation of each cell's noise.

    Attributes:
        rows, error: the number of rows, and its standard deviation.
        shares: of each column's groups.
        errors: standard deviation of these shares.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]], tables: Sequence[Floats], noise: float) -> None:
        self.rows = float(np.mean([table.sum() for table in tables]))
        self.error = noise * math.sqrt(sum(table.size for table in tables)) / len(tables)
        sums: dict[int, list[Floats]] = {}
        cells: dict[int, int] = {}
        for (a, b), table in zip(pairs, tables, strict=True):
            for column, axis in ((a, 1), (b, 0)):
                sums.setdefault(column, []).append(table.sum(axis=axis))
                cells[column] = cells.get(column, 0) + table.shape[axis]
        total = max(self.rows, 1.0)
        self.shares = {column: np.mean(own, axis=0) / total for column, own in sums.items()}
        self.errors = {column: noise * math.sqrt(cells[column]) / len(own) / total for column, own in sums.items()}

    @property
    def clear(self) -> bool:
        """Whether the number of rows stands out from the noise."""
        return self.rows > CLEAR * self.error and self.rows >= 2

    def kept(self, column: int) -> np.ndarray:
        """Which of a column's groups stand out."""
        return np.asarray(self.shares[column] > max(LEAST_SHARE, CLEAR * self.errors[column]))


def strength(table: Floats, margins: Margins, a: int, b: int, noise: float, level: float = 0.95) -> PairEstimate:
    """The association of columns a and b; ``table`` has a's groups down and b's across."""
    unknown = PairEstimate(math.nan, 0.0, 1.0)
    if not margins.clear:
        return unknown
    rows, columns = margins.kept(a), margins.kept(b)
    if rows.sum() < 2 or columns.sum() < 2:
        return unknown
    t = table[np.ix_(rows, columns)]
    p, q = (margins.shares[c][kept] for c, kept in ((a, rows), (b, columns)))
    n = margins.rows * p.sum() * q.sum()
    p, q = p / p.sum(), q / q.sum()
    e, s = n * np.outer(p, q), np.outer(1 - p, 1 - q)
    r = _residuals(t, p, q) / np.sqrt(e * n)
    left, right = _kept_noise(p), _kept_noise(q)
    v = (noise / n) ** 2 * np.outer(np.diag(left), np.diag(right)) + s / n
    most = min(t.shape) - 1
    errors = [margins.errors[c] * math.sqrt(float((1 / own).mean())) for c, own in ((a, p), (b, q))]
    blur = math.hypot(*errors, 2 * margins.error / margins.rows)
    carried = float((r * ((noise / n) ** 2 * left @ r @ right + r / n)).sum() / max((r**2).sum(), _ROUNDING))
    square = _square(left, right, p, q, n, noise)
    low, high = _phi_interval(float((r**2).sum()), float(v.sum()), square, carried, blur, level)
    spread = _spread(r, v, s)
    total, tail = float(s.sum()), (1 - level) / 2
    phi = min(max(spread * total, low, 0.0), high, most)
    ends = phi, min(low, most), min(high, most)
    drawn = _Drawn(r, v, p, q, (ends[0] / total, ends[1] / total, ends[2] / total), tail)
    value, low, high = (math.sqrt(end / most) for end in ends)
    return PairEstimate(value, low, high, drawn)


def _residuals(t: Floats, p: Floats, q: Floats) -> Floats:
    """Cells without what both margins explain: those of an independent table are zero."""
    left: Floats = t - np.outer(p, t.sum(axis=0))
    return np.asarray(left - np.outer(left.sum(axis=1), q))


def _kept_noise(p: Floats) -> Floats:
    """The covariance (K, K) of what is left of noise of unit variance along one axis, divided by the root of p."""
    out = (np.eye(len(p)) - p[:, None]) / np.sqrt(p)[:, None]
    return np.asarray(out @ out.T)


def _square(left: Floats, right: Floats, p: Floats, q: Floats, n: float, noise: float) -> float:
    """The trace of the squared covariance of residuals, of noise and of sampling: cells are not independent."""
    one, two = (np.eye(len(own)) - np.sqrt(np.outer(own, own)) for own in (p, q))
    both = float(np.trace(left @ one) * np.trace(right @ two))
    noises = float(np.trace(left @ left) * np.trace(right @ right))
    unit = (noise / n) ** 2
    return unit**2 * noises + 2 * unit / n * both + (len(p) - 1) * (len(q) - 1) / n**2


def _spread(r: Floats, v: Floats, s: Floats) -> float:
    """τ²: the variance of residuals beyond that of noise and sampling, in units of s; below zero by chance."""
    found = 0.0
    for _ in range(_STEPS):
        weights = (s / (max(found, 0.0) * s + v)) ** 2
        found = float((weights * (r**2 - v)).sum() / (weights * s).sum())
    return found


def _phi_interval(
    total: float, mean: float, square: float, carried: float, blur: float, level: float
) -> tuple[float, float]:
    """Ends of phi². The upper one is never below what residuals as large as noise alone makes them would give.

    Args:
        total: the sum of r².
        mean: what noise and sampling add to it.
        square: the trace of their squared covariance.
        carried: the variance of the residuals that hold the association.
        blur: standard deviation of n, p and q, in shares of them.
        level: of the interval.
    """
    unit = max(square / mean, carried)
    freedom, tail = mean / unit, (1 - level) / 2
    found, wider = total - mean, float(stats.norm.isf(tail)) * blur * max(0.0, total - mean)
    if total / unit > _NORMAL:
        reach = float(stats.norm.isf(tail)) * math.sqrt(2 * square + 4 * carried * total)
        low, high = found - reach, found + reach
    else:
        low = unit * _noncentrality(total / unit, freedom, 1 - tail)
        high = unit * _noncentrality(max(total / unit, freedom), freedom, tail)
    widened = found - math.hypot(wider, found - low) if low > 0 else 0.0
    return max(0.0, widened), found + math.hypot(wider, high - found)


def _noncentrality(x: float, freedom: float, share: float) -> float:
    """The non-centrality with which a chi-square is below x with probability ``share``; 0 if even 0 makes it less."""
    return 0.0 if special.chdtr(freedom, x) <= share else float(special.chndtrinc(x, freedom, share))


def _reduction(tables: Floats, of: int) -> Floats:
    own, other = (_entropy(tables.sum(axis=2 - side)) for side in (of, 1 - of))
    told = own + other - _entropy(tables.reshape(len(tables), -1))
    told = np.where(told > _ROUNDING, told, 0.0)
    return np.asarray(np.clip(told / np.maximum(own, _ROUNDING), 0.0, 1.0))


def _gain(tables: Floats, of: int) -> Floats:
    gained = tables.max(axis=1 + of).sum(axis=1) - tables.sum(axis=2 - of).max(axis=1)
    return np.asarray(np.where(gained > _ROUNDING, gained, 0.0))


def _entropy(shares: Floats) -> Floats:
    """In bits, of each row of shares."""
    return np.asarray(-(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(axis=1))
