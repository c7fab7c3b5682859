"""Noise on counts, each time with the event that says what it costs.

Legend: L levels of a column, N rows.

Two tables are neighbours if one has one row more. A row stands in one level of a column, or in one bin of a histogram,
so that neighbours differ in one count, by 1: sensitivity 1.

The noise is discrete Laplace (two-sided geometric; Ghosh, Roughgarden and Sundararajan 2009), with q = exp(-epsilon)::

    P(Z = k) = (1 - q) / (1 + q) * q ** |k|         P(Z >= t) = q ** t / (1 + q)   for t >= 0

It stands for the Laplace mechanism of GDTS (section II-B): it is the same law on whole numbers, gives the same epsilon
at a slightly smaller variance, and counts stay counts. Laplace noise as a floating-point number leaks what it hides
through its last bits (Mironov 2012); a whole number has none.

What this rests on:

- The keystream's key is the silo's secret: who knows it subtracts the noise. Where a simulation is given a seed, noise
  derives from it: there it shows what utility is left, and protects from nobody who knows that seed.
- The noise is drawn with whole numbers alone (Canonne, Kamath and Steinke 2020, algorithms 1 and 2), so that the law
  above holds exactly, for the largest multiple of 2^-50 that is not above epsilon.
- How long drawing takes depends on what is drawn, and is not hidden.

Of many tables at once, whose costs compose, discrete Gaussian noise takes far less (`discrete_gaussian`).

An infinite epsilon adds no noise, and then there is no event: the caller declares such a release as exact.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from scipy.stats import norm

from silosynth.core.errors import ConfigError, DataError
from silosynth.core.streams import Keystream
from silosynth.privacy.events import DISCRETE_LAPLACE, THRESHOLDED, Event, gaussian_table

Level = TypeVar("Level", str, int)
LEAST_EPSILON = 1e-9  # with less, noise would near the ends of 64 bits
LEAST_VARIANCE = 8  # of discrete Gaussian draws that are summed, so that the sum has next to the same law
MOST_VARIANCE = 2**27  # so that what they are drawn by fits into 63 bits
_UNIT = 2**50  # epsilons are rounded down to multiples of one over it
_MOST = 2**62  # such multiples, at most: with more, noise that is not zero would never be drawn


def noised_counts(counts: torch.Tensor, epsilon: float, what: str, rng: Keystream) -> tuple[torch.Tensor, Event | None]:
    """Counts of levels that everybody knew beforehand, with noise. They may be below zero.

    Args:
        counts: int64, of any shape; each row of the table is counted in at most one cell.
        epsilon: of the whole release; `math.inf` for no noise.
        what: what is released, in words, for the ledger.
        rng: the noise; see the module's docstring.

    Returns:
        The noised counts, int64 of the same shape, and their event (None without noise).

    Raises:
        ConfigError: epsilon is not above zero.
        DataError: the counts are not int64.
    """
    _check_epsilon(epsilon)
    if counts.dtype != torch.int64:
        raise DataError("Counts are whole numbers of 64 bits", counts.dtype)
    if math.isinf(epsilon):
        return counts.clone(), None
    noise = torch.from_numpy(discrete_laplace(epsilon, counts.numel(), rng)).reshape(counts.shape)
    return counts + noise.to(counts.device), Event(DISCRETE_LAPLACE, float(epsilon), 0.0, what)


def part_noise(epsilon: float, parts: int, shape: tuple[int, ...], rng: Keystream) -> torch.Tensor:
    """One of equal parts of the noise of `noised_counts`, int64: as many parties who each add theirs make ``epsilon``.

    Each geometric draw is divided into draws of Pólya's distribution (negative binomial with 1 / ``parts`` of a
    success; Goryczka and Xiong 2015), so that the sum is exactly discrete Laplace. Fewer parts protect less than
    ``epsilon``.

    Raises:
        ConfigError: epsilon is not above zero, or infinite; or there is no part.
    """
    _check_epsilon(epsilon)
    if math.isinf(epsilon) or parts < 1:
        raise ConfigError("Parts of the noise are of a finite epsilon", (epsilon, parts))
    first, second = (_part_geometric(_multiples(epsilon), parts, math.prod(shape), rng) for _ in range(2))
    return torch.from_numpy(first - second).reshape(shape)


def noised_levels(
    levels: tuple[Level, ...],
    counts: torch.Tensor,
    epsilon: float,
    delta: float,
    what: str,
    rng: Keystream,
) -> tuple[tuple[Level, ...], torch.Tensor, Event | None]:
    """Names and noised counts of the levels that enough rows hold, where the names come from the table itself.

    A stability-based histogram (Korolova et al. 2009): a level's name is released if its noised count reaches
    `threshold`, so that a level of one row is, with probability at most ``delta``. Levels that no row holds take no
    part. The other levels are left out altogether: their noised counts, even summed, would tell how many such levels
    there are. For the number of rows outside the released levels, give that one count to `noised_counts`: one more
    event.

    Where everybody knows all levels beforehand, use `noised_counts`: it needs no delta.

    Args:
        levels: names or numbers (L), each once.
        counts: int64 (L): the rows that hold each.
        epsilon: of the counts; `math.inf` for no noise, which releases all levels that occur, and exact counts.
        delta: in (0, 1/2); well below one over the number of rows.
        what: what is released, in words, for the ledger.
        rng: the noise; see the module's docstring.

    Returns:
        The released levels, sorted; their noised counts, int64; the event (None without noise).

    Raises:
        ConfigError: epsilon is not above zero, or delta not in (0, 1/2).
        DataError: the counts are not int64, or not one for each level.
    """
    if len(set(levels)) != len(levels) or counts.shape != (len(levels),):
        raise DataError("Every level is named once and has one count", f"{len(levels)} and {tuple(counts.shape)}")
    least = 0 if math.isinf(epsilon) else threshold(epsilon, delta)
    noised, event = noised_counts(counts, epsilon, what, rng)
    shown = torch.nonzero((counts > 0) & (noised >= least)).flatten().tolist()
    shown.sort(key=lambda i: levels[i])  # the order in which levels came may tell about rows
    if event is not None:
        event = Event(THRESHOLDED, event.epsilon, float(delta), what)
    return tuple(levels[i] for i in shown), noised[shown], event


def gaussian_counts(counts: torch.Tensor, variance: int, what: str, rng: Keystream) -> tuple[torch.Tensor, Event]:
    """`noised_counts` with discrete Gaussian noise of this variance, for many counts whose costs compose.

    Raises:
        ConfigError: the variance is out of range.
        DataError: the counts are not int64.
    """
    if counts.dtype != torch.int64:
        raise DataError("Counts are whole numbers of 64 bits", counts.dtype)
    noise = torch.from_numpy(discrete_gaussian(variance, counts.numel(), rng)).reshape(counts.shape)
    return counts + noise, gaussian_table(what, math.sqrt(variance))


def gaussian_levels(
    levels: tuple[Level, ...], counts: torch.Tensor, variance: int, delta: float, what: str, rng: Keystream
) -> tuple[tuple[Level, ...], torch.Tensor, Event]:
    """`noised_levels` with discrete Gaussian noise of this variance, and `gaussian_threshold`.

    Raises:
        ConfigError: the variance is out of range, or delta not in (0, 1/2).
        DataError: the counts are not int64, or not one for each level.
    """
    if len(set(levels)) != len(levels) or counts.shape != (len(levels),):
        raise DataError("Every level is named once and has one count", f"{len(levels)} and {tuple(counts.shape)}")
    noised, event = gaussian_counts(counts, variance, what, rng)
    shown = torch.nonzero((counts > 0) & (noised >= gaussian_threshold(math.sqrt(variance), delta))).flatten().tolist()
    shown.sort(key=lambda i: levels[i])  # the order in which levels came may tell about rows
    return tuple(levels[i] for i in shown), noised[shown], replace(event, delta=float(delta))


def gaussian_threshold(deviation: float, delta: float) -> int:
    """The noised count from which a level's name is released: one row's level reaches it with at most ``delta``.

    Discrete Gaussian noise is at least m with no more than the probability that Gaussian noise of the same deviation is
    at least m - 1 (Canonne, Kamath and Steinke 2020, proposition 25).

    Raises:
        ConfigError: delta is not in (0, 1/2).
    """
    if not 0 < delta < 0.5:
        raise ConfigError("The delta of released names is above zero and below 1/2", delta)
    return 2 + math.ceil(deviation * float(norm.isf(delta)))


def noised_histogram(
    values: torch.Tensor,
    low: float,
    high: float,
    bins: int,
    epsilon: float,
    what: str,
    rng: Keystream,
) -> tuple[torch.Tensor, Event | None]:
    """Noised counts of a number column's values in ``bins`` equal bins from ``low`` to ``high``.

    The bounds are public: known before anybody looked at the table, and not its least and greatest value. Values
    outside count in the first or last bin.

    Args:
        values: numbers (N), without missing ones.
        low, high: the bounds.
        bins: how many bins.
        epsilon: of the whole histogram; `math.inf` for no noise.
        what: what is released, in words, for the ledger.
        rng: the noise; see the module's docstring.

    Returns:
        Noised counts, int64 (bins), and their event (None without noise).

    Raises:
        ConfigError: epsilon is not above zero, there is no bin, or the bounds are not finite and in order.
        DataError: a value is missing.
    """
    if bins < 1 or not 0 < high - low < math.inf:
        raise ConfigError("A histogram has a bin or more between two finite bounds in order", (low, high, bins))
    if torch.isnan(values).any():
        raise DataError("A histogram is of values that are there", "NaN", "Leave missing values out; count them apart.")
    shares = (values.double().clamp(low, high) - low) / (high - low)
    cells = (shares * bins).long().clamp(0, bins - 1)
    return noised_counts(torch.bincount(cells, minlength=bins), epsilon, what, rng)


def threshold(epsilon: float, delta: float) -> int:
    """The noised count from which a level's name is released: the least T with P(1 + Z >= T) <= delta.

    From P(Z >= t) = q ** t / (1 + q): T = 1 + ceil(ln(1 / (delta * (1 + q))) / epsilon). The threshold of continuous
    Laplace noise, 1 + ln(1 / (2 * delta)) / epsilon, is too low here: as q < 1, discrete noise reaches it more often.

    Raises:
        ConfigError: epsilon is not above zero and finite, or delta not in (0, 1/2).
    """
    _check_epsilon(epsilon)
    if not 0 < delta < 0.5:
        raise ConfigError("The delta of released names is above zero and below 1/2", delta)
    epsilon = _multiples(epsilon) / _UNIT  # what noise has
    q = math.exp(-epsilon)
    t = math.ceil(-math.log(delta * (1 + q)) / epsilon)
    while math.exp(-epsilon * t) > delta * (1 + q):  # rounding put t below a whole number
        t += 1
    return 1 + t


def _check_epsilon(epsilon: float) -> None:
    if not epsilon >= LEAST_EPSILON:  # also refuses NaN
        raise ConfigError(f"Epsilon is at least {LEAST_EPSILON:g}; math.inf stands for no noise", epsilon)


def _multiples(epsilon: float) -> int:
    """Epsilon in units of 1 / _UNIT, rounded down: noise is at least what it says."""
    return min(int(epsilon * _UNIT), _MOST)


def discrete_laplace(epsilon: float, count: int, rng: Keystream) -> np.ndarray:
    """``count`` draws of discrete Laplace noise, int64 (Canonne et al. 2020, algorithm 2, on all at once).

    With X geometric in units of 1 / _UNIT, floor(X / s) is geometric with ratio exp(-s / _UNIT); it gets a random sign,
    and what would be zero twice is drawn again.
    """
    s, drawn_n, left = _multiples(epsilon), np.zeros(count, np.int64), np.arange(count)
    while len(left):
        fine = rng.below(np.full(len(left), _UNIT))
        left_kept = np.nonzero(_happens(fine, rng))[0]
        size = (fine[left_kept] + _UNIT * _successes(len(left_kept), rng)) // s
        negative = rng.below(np.full(len(size), 2)) == 1
        new = ~(negative & (size == 0))
        drawn_n[left[left_kept[new]]] = np.where(negative, -size, size)[new]
        left = np.delete(left, left_kept[new])
    return drawn_n


def discrete_gaussian(variance: int, count: int, rng: Keystream) -> np.ndarray:
    """``count`` draws of discrete Gaussian noise, int64 (Canonne et al. 2020, algorithm 3, on all at once)::

        P(Z = k)  ∝  exp(-k² / (2 variance))

    Drawn exactly, with whole numbers alone: discrete Laplace noise of scale t is kept with probability
    exp(-(|k| - variance / t)² / (2 variance)); with t a power of two, `discrete_laplace` has just this scale.

    The sum of n draws is not itself discrete Gaussian, but next to: each of its probabilities is that of discrete
    Gaussian noise of n times the variance, up to a factor of exp(±tau), tau = 10 Σ exp(-2 π² variance j / (j + 1)) over
    j = 1 … n - 1 (Kairouz, Liu and Steinke 2021, "The distributed discrete Gaussian mechanism", for variances of at
    least 1/2). With two draws of variance `LEAST_VARIANCE`, tau is below 1e-33; of a hundred tables together it is far
    less than the thousandth of delta that accounting sets aside.

    Args:
        variance: a whole number from 1 to 2^27.
        count: how many.
        rng: the noise; see the module's docstring.

    Raises:
        ConfigError: the variance is out of range.
    """
    if not 1 <= variance <= MOST_VARIANCE:
        raise ConfigError(f"The variance of discrete Gaussian noise is from 1 to {MOST_VARIANCE}", variance)
    scale = 1 << round(math.log2(variance) / 2)
    drawn_n, left = np.zeros(count, np.int64), np.arange(count)
    while len(left):
        drawn = discrete_laplace(1 / scale, len(left), rng)
        gap = (np.abs(drawn) * scale - variance).astype(object)  # as large as it takes: squares pass 64 bits
        kept = _fraction_happens(gap * gap, 2 * variance * scale * scale, rng)
        drawn_n[left[kept]] = drawn[kept]
        left = left[~kept]
    return drawn_n


def _fraction_happens(above: np.ndarray, below: int, rng: Keystream) -> np.ndarray:
    """Events of probability exp(-above / below): whole parts as so many of probability 1 / e, then algorithm 1."""
    whole = np.minimum(above // below, 2**62).astype(np.int64)
    rest = (above % below).astype(np.int64)
    happens = np.ones(len(above), bool)
    going = np.arange(len(above))
    while len(going := going[whole[going] > 0]):
        happened = _happens(np.full(len(going), _UNIT), rng)
        happens[going[~happened]] = False
        going = going[happened]
        whole[going] -= 1
    odd, going, k = np.zeros(len(above), bool), np.nonzero(happens)[0], 1
    while len(going):
        lower = rng.below(np.full(len(going), k * below)) < rest[going]
        odd[going[~lower]] = k % 2 == 1
        going, k = going[lower], k + 1
    return odd


def _part_geometric(s: int, parts: int, count: int, rng: Keystream) -> np.ndarray:
    """``count`` draws of 1 / ``parts`` of a success, int64.

    A geometric k is kept with probability Π (i parts - parts + 1) / (i parts), i = 1 … k; of halves (1/2)(3/4)(5/6)….
    """
    drawn_n, left = np.zeros(count, np.int64), np.arange(count)
    while len(left):
        fine = rng.below(np.full(len(left), _UNIT))
        geometric = np.nonzero(_happens(fine, rng))[0]
        k_n = (fine[geometric] + _UNIT * _successes(len(geometric), rng)) // s
        going, i = np.nonzero(k_n > 0)[0], 1
        kept = np.ones(len(k_n), bool)
        while len(going):
            lives = rng.below(np.full(len(going), parts * i)) >= parts - 1
            kept[going[~lives]] = False
            going, i = going[lives & (k_n[going] > i)], i + 1
        drawn_n[left[geometric[kept]]] = k_n[kept]
        left = np.delete(left, geometric[kept])
    return drawn_n


def _happens(exponents: np.ndarray, rng: Keystream) -> np.ndarray:
    """Events of probability exp(-exponent / _UNIT), exponents from 0 to _UNIT (algorithm 1).

    The first k with a number of [0, k · _UNIT) that is not below the exponent is odd with that probability.
    """
    odd, going, k = np.zeros(len(exponents), bool), np.arange(len(exponents)), 1
    while len(going):
        below = rng.below(np.full(len(going), k * _UNIT)) < exponents[going]
        odd[going[~below]] = k % 2 == 1
        going, k = going[below], k + 1
    return odd


def _successes(count: int, rng: Keystream) -> np.ndarray:
    """How many events of probability 1 / e happen before one does not."""
    number, going = np.zeros(count, np.int64), np.arange(count)
    while len(going):
        going = going[_happens(np.full(len(going), _UNIT), rng)]
        number[going] += 1
    return number
