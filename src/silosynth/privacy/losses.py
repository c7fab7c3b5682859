"""Privacy losses of events, composed: discrete Laplace noise on counts, and Gaussian noise on sums of sampled rows.

Uses privacy loss distributions (`dp-accounting`), rounded pessimistically. Losses lie on a grid; losses between its
points become a pessimistic mixture of them (Doroshenko et al. 2022, "connect the dots"). Neighbours differ by one row,
added or removed; both directions are tracked and the worse one counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from silosynth.privacy.events import SAMPLED_GAUSSIAN, Event

LEAST_DELTA = 1e-10  # below, the transform's rounding errors would count
LEAST_NOISE = 0.3  # noise multiplier; a row that is hit once is then all but known
_POINTS = 100_000  # of the grid from zero to the sum of epsilons, at most, for counts alone
_GRID = 2e-4  # of losses, or up to twice that, where there is Gaussian noise
_NO_SAVING = 100.0  # epsilon of one count above which composition saves nothing
_HOPELESS = 5e3  # about twice the mean loss above which nothing is computed


class Losses:
    """The composed cost of events. Further Gaussian events can be added on top to see what they would cost."""

    def __init__(self, counts: Mapping[Event, int], gaussian: bool = False) -> None:
        self.pure: Counter[float] = Counter()  # epsilon of a count → how many
        self.steps: Counter[tuple[float, float]] = Counter()  # (noise, rate) → how many
        self.added = 0.0  # epsilons that are not composed: see `Event.added`
        for event, times in counts.items():
            if event.mechanism == SAMPLED_GAUSSIAN:
                self.steps[event.noise, event.rate] += times * event.times
            elif event.added:
                self.added += event.epsilon * times * event.times
            else:
                self.pure[event.epsilon] += times * event.times
        self.sum = self.added + math.fsum(epsilon * times for epsilon, times in self.pure.items())
        self.apart = max(self.pure, default=0.0) > _NO_SAVING  # then all are added
        self.grid = _grid(max(self.pure, default=0.0), self.sum, gaussian or bool(self.steps))
        self._fixed: Any = None

    def epsilon(self, delta: float, *more: tuple[float, float, int]) -> float:
        """Epsilon at ``delta``, with ``more`` Gaussian steps (noise, rate, how many) added.

        Without Gaussian noise at most the sum of epsilons, which is what a delta below `LEAST_DELTA` gives; with it,
        infinity for such a delta. A thousandth of delta makes up for rounding errors.
        """
        steps = [(*kind, times) for kind, times in self.steps.items()] + list(more)
        if delta < LEAST_DELTA or (self.apart and not steps) or any(map(_hopeless, steps)):
            return math.inf if steps else self.sum
        total = self._composed()
        for noise, rate, times in more:
            total = total.compose(_gaussian(noise, rate, times, self.grid))
        epsilon = (self.sum if self.apart else self.added) + float(total.get_epsilon_for_delta(0.999 * delta))
        return epsilon if steps else min(epsilon, self.sum)

    def _composed(self) -> Any:
        if self._fixed is None:
            losses, total = _library(), _library().identity(self.grid)
            for epsilon, times in self.pure.items() if not self.apart else ():
                one = losses.from_discrete_laplace_mechanism(
                    epsilon, value_discretization_interval=self.grid, use_connect_dots=True
                )
                total = total.compose(one.self_compose(times))
            for (noise, rate), times in self.steps.items():
                total = total.compose(_gaussian(noise, rate, times, self.grid))
            self._fixed = total
        return self._fixed


@lru_cache(maxsize=32)  # silos, and then a statement, ask for the same ones
def _gaussian(noise: float, rate: float, times: int, grid: float) -> Any:
    one = _library().from_gaussian_mechanism(
        noise, value_discretization_interval=grid, sampling_prob=rate, use_connect_dots=True
    )
    return one.self_compose(times)


def _library() -> Any:
    from dp_accounting.pld import privacy_loss_distribution  # takes a second to import

    return privacy_loss_distribution


def _grid(greatest: float, total: float, gaussian: bool) -> float:
    """A grid that the largest epsilon of a count fits exactly, unless such a grid would be too fine."""
    if not gaussian:
        return greatest / 2 ** max(0, math.floor(math.log2(_POINTS * greatest / total))) if greatest else _GRID
    if not _GRID <= greatest <= _NO_SAVING:
        return _GRID
    return float(greatest / 2 ** math.floor(math.log2(greatest / _GRID)))


def _hopeless(step: tuple[float, float, int]) -> bool:
    """Whether an epsilon would be in the thousands, and its grid huge."""
    noise, rate, times = step
    if noise < LEAST_NOISE:
        return True
    gap = 1 / (noise * noise)
    return times * min(gap, rate * rate * math.expm1(gap)) > _HOPELESS
