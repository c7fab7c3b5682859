"""Noise that two parties draw together and neither knows: its law, and what it is charged as.

Each party draws fair bits that it keeps to itself. The exclusive or of one bit of each is a fair bit that neither
knows, nor anybody else; a sum of such bits with public weights is noise. How parties get shares of that sum:
`silosynth.counting.joint`. Here is what all agree on: the weights, which follow from the variance.

- *Groups of nine bits* of one weight 2^t, or twice that. The ninth is the exclusive or of the three before it, so that
  of these four none are set, two, or all: their sum has heavier tails than a binomial one, and makes up for the lighter
  ones of the five others. What is left of the difference to Gaussian noise falls with the square of their number.
- *Three bits of each weight up to 2^t*: a sum of three uniform numbers, which fills the gaps between multiples of 2^t.
- *What is then missing in the variance*, by as few bits as it takes.

So the variance is met exactly, by some 230 bits a cell; one below 55 by four times as many bits as it is.

*What it is charged as.* The law has ends, where neighbours are told apart for certain, and Gaussian noise has none. So
it is charged as discrete Gaussian noise of a slightly smaller deviation s, and a delta: for every threshold a,

    Σ_k max(0, P(k) - a P(k - 1))  <=  (1 - delta) Σ_k max(0, G_s(k) - a G_s(k - 1)) + delta

Then whoever sees a count with noise P learns no more than from one that is told exactly with probability delta, and has
noise G_s otherwise (Blackwell 1953; Zhu, Dong and Wang 2022): in whatever composition, of noise that was settled
beforehand or not, deltas add up and the rest is that of discrete Gaussian noise. `charged` finds s by the exact laws
whenever it is asked, so that no formula has to hold for all variances.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from silosynth.core.errors import ConfigError
from silosynth.core.streams import Keystream

Numbers = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint8]
GROUPS = 24  # at most
GROUP = 9  # bits, of which the last is the exclusive or of the `PARITY` before it
PARITY = 3
SMOOTH = 3  # bits of each weight up to that of the groups
SLIP = 1e-6  # of a target's delta, which one table takes
_FINEST = 1000  # parts of a deviation, in which it is charged less
_ROUNDING = 1e-9  # by which a law is taken for worse than was computed


def weights(variance: int) -> tuple[int, ...]:
    """What each bit counts; bits of groups come first, and one bit of weight g has a variance of g² / 4.

    Raises:
        ConfigError: the variance is below one.
    """
    if variance < 1:
        raise ConfigError("The variance of joint noise is at least 1", variance)
    left = 4 * variance  # what squares add up to
    if left < GROUPS * GROUP + SMOOTH:
        return (1,) * left
    level = 0
    while _least(level + 1) <= left:
        level += 1
    left -= _least(level)
    double, found = min(GROUPS, left // (3 * GROUP * 4**level)), list[int]()
    left -= double * 3 * GROUP * 4**level
    for group in range(GROUPS):
        found += [2 ** (level + (group < double))] * GROUP
    for power in range(level + 1, -1, -1):
        more = left // 4**power
        found += [2**power] * (more + SMOOTH * (power <= level))
        left -= more * 4**power
    return tuple(found)


def _least(level: int) -> int:
    """What squares of weights add up to if all groups have this one, with three bits of each weight up to it."""
    return GROUPS * GROUP * (1 << 2 * level) + SMOOTH * sum(1 << 2 * power for power in range(level + 1))


def groups(count: int) -> int:
    """How many groups there are among so many bits."""
    return min(GROUPS, count // GROUP)


def draw(cells: int, count: int, rng: Keystream) -> Bits:
    """One party's bits (cells, count): fair, and independent but for the last of each group."""
    words = rng.words(-(-cells * count // 64))
    bits = np.unpackbits(words.view(np.uint8))[: cells * count].reshape(cells, count).copy()
    for last in range(GROUP - 1, GROUP * groups(count), GROUP):
        bits[:, last] = np.bitwise_xor.reduce(bits[:, last - PARITY : last], axis=1)
    return bits


@lru_cache(maxsize=64)
def law(variance: int) -> Numbers:
    """The probabilities of all numbers that the noise can be, in order; the middle one is that of zero."""
    of, chances = weights(variance), np.ones(1)
    grouped = groups(len(of))
    for place, weight in enumerate(of):
        inside = place % GROUP if place < GROUP * grouped else 0
        if inside < GROUP - 1 - PARITY:
            chances = _added(chances, {0: 0.5, weight: 0.5})
        elif inside == GROUP - 1:  # it and those before it: none, two or all four of them are set
            chances = _added(chances, {0: 1 / 8, 2 * weight: 6 / 8, 4 * weight: 1 / 8})
    return chances


def _added(chances: Numbers, part: dict[int, float]) -> Numbers:
    """The law of a sum of two independent numbers."""
    found = np.zeros(len(chances) + max(part))
    for value, chance in part.items():
        found[value : value + len(chances)] += chance * chances
    return found


@lru_cache(maxsize=1024)
def charged(variance: int, delta: float) -> tuple[float, float]:
    """The deviation of discrete Gaussian noise that joint noise is charged as, and the delta besides.

    Args:
        variance: a whole number.
        delta: of the target: a table takes `SLIP` of it.

    Raises:
        ConfigError: the variance is too small for that delta.
    """
    chances, deviation, slip = law(variance), math.sqrt(variance), SLIP * delta
    good, bad = _FINEST // 2, 0
    if not _dominated(chances, deviation * (1 - good / _FINEST), slip):
        raise ConfigError("Joint noise has a variance that its delta allows", variance, "Give a larger dp.delta.")
    while good - bad > 1:
        middle = (good + bad) // 2
        fine = _dominated(chances, deviation * (1 - middle / _FINEST), slip)
        good, bad = (middle, bad) if fine else (good, middle)
    return deviation * (1 - good / _FINEST), slip


def _dominated(chances: Numbers, deviation: float, slip: float) -> bool:
    """Whether this noise tells neighbours apart no better than discrete Gaussian noise does, but for ``slip``.

    At thresholds at which the right side has a corner: between them it is a straight line, and the left side convex,
    so that it holds there as well. Below one it follows from what holds above, as both laws are symmetric.
    """
    reach = len(chances) // 2 + math.ceil(10 * deviation)
    k = np.arange(-reach, reach + 1)
    gaussian = np.exp(-((k / deviation) ** 2) / 2)
    tail = np.cumsum(gaussian[::-1] / gaussian.sum())[::-1][reach:]  # of zero, one, …
    corner = np.exp((2 * np.arange(len(chances) // 2 + 1) + 1) / (2 * deviation**2))
    right = tail[1 : len(corner) + 1] - corner * tail[2 : len(corner) + 2]
    left = told_apart(chances, corner) * (1 + _ROUNDING)
    return bool((left <= (1 - slip) * right * (1 - _ROUNDING) + slip).all())


def told_apart(chances: Numbers, threshold: Numbers) -> Numbers:
    """Σ max(0, P(k) - a P(k - 1)) at each threshold a, of a law without gaps between its ends."""
    here, there = np.append(chances, 0.0), np.append(0.0, chances)
    ratio = np.divide(here, there, out=np.full(len(here), np.inf), where=there > 0)
    order = np.argsort(ratio)
    above = np.searchsorted(ratio[order], threshold, side="right")
    sums = (np.append(np.cumsum(one[order][::-1])[::-1], 0.0)[above] for one in (here, there))
    first, second = sums
    return np.asarray(first - threshold * second)
