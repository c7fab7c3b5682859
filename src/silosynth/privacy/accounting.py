"""What noisy releases cost together, and how much noise a target needs.

Releases about the same rows add up (sequential composition). Events speak of one row of a silo's table, added or
removed, so budgets are per silo, for a person who is one row of one silo. Where silos hold the same people, as with
columns spread over silos, a person's budget is the cost of all silos' events; joint events count once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from silosynth.core.errors import ConfigError, ProtocolError, nearest
from silosynth.privacy.events import DISCRETE_LAPLACE, SAMPLED_GAUSSIAN, THRESHOLDED, UNSOUND, Event
from silosynth.privacy.losses import LEAST_DELTA, LEAST_NOISE, Losses
from silosynth.privacy.target import Target

KNOWN = (DISCRETE_LAPLACE, THRESHOLDED, SAMPLED_GAUSSIAN, UNSOUND)
DELTA = 1e-6  # at which budgets are stated where a run has no target
_MOST_NOISE = 1e7  # noise multiplier
_MORE = "Give a larger dp.epsilon or dp.delta, or a smaller dp.encoders."


@dataclass(frozen=True, slots=True)
class Budget:
    """What events cost together. Two statements, both true: (epsilon, delta), and (pure_epsilon, own_delta).

    Attributes:
        epsilon: by the tightest composition, at `delta`.
        delta: the one asked for, plus `own_delta`.
        pure_epsilon: the sum of the events' epsilons; pure differential privacy where no event has a delta.
        own_delta: the sum of the events' deltas.
        counts: how often each event occurs.
    """

    epsilon: float
    delta: float
    pure_epsilon: float
    own_delta: float
    counts: Mapping[Event, int]


def spent(events: Iterable[Event], delta: float) -> Budget:
    """The cost of events about the same rows.

    Epsilon is composed by privacy loss distributions (`silosynth.privacy.losses`), rounded upwards. Neighbours of which
    only one has a level at all can be distinguished with probability at most the event's own delta, which is added. An
    `UNSOUND` event costs infinity.

    Args:
        events: of one silo, or of one aligned table.
        delta: allowed for composition, besides the events' own; 0 gives the sum of epsilons.

    Raises:
        ProtocolError: an event of a mechanism that is not known here. No budget is stated without it.
        ConfigError: delta is not in [0, 1).
    """
    if not 0 <= delta < 1:
        raise ConfigError("The delta of a budget is at least zero and below one", delta)
    counts = _known(events)
    kinds = {event.mechanism for event in counts}
    own = _own_delta(counts)
    pure = math.inf if kinds & {SAMPLED_GAUSSIAN, UNSOUND} else Losses(counts).sum
    epsilon = math.inf if UNSOUND in kinds else Losses(counts).epsilon(delta) if counts else 0.0
    return Budget(epsilon, min(1.0, delta + own), pure, min(1.0, own), counts)


def cost(events: Iterable[Event], target: Target) -> float:
    """Epsilon of events about the same rows, at the target's delta; the events' own deltas are a part of that."""
    events = list(events)
    return spent(events, max(0.0, target.delta - _own_delta(_known(events)))).epsilon


def noise_multiplier(target: Target, events: Iterable[Event], rate: float, steps: int) -> float:
    """The least noise with which ``events`` and ``steps`` steps of DP-SGD together cost at most the target.

    Searched from above, to a few thousandths: what is returned has been found to cost no more. At least `LEAST_NOISE`.
    A search takes up to seconds, and all silos and the coordinator of a process ask for the same: results are cached.

    Args:
        target: a private one; its delta covers the events' own deltas.
        events: everything else charged for the same rows: of an aligned table, the encoders of all silos.
        rate: the probability with which a row takes part in a step.
        steps: their number; for several such mechanisms over the same rows, the sum.

    Raises:
        ConfigError: the events alone cost the target or more.
    """
    return _noise_multiplier(target, tuple(events), rate, steps)


@lru_cache(maxsize=64)
def _noise_multiplier(target: Target, events: tuple[Event, ...], rate: float, steps: int) -> float:
    counts = _known(events)
    losses, delta = Losses(counts, gaussian=True), target.delta - _own_delta(counts)
    spare = target.epsilon - losses.epsilon(delta)
    if not (delta >= LEAST_DELTA and spare > 0):
        raise ConfigError(
            "What is noised besides training must leave a part of the target",
            f"epsilon {rounded_up(target.epsilon - spare)} of {target.epsilon:g}",
            _MORE,
        )

    def with_noise(noise: float) -> float:
        return losses.epsilon(delta, (noise, rate, steps))

    high = max(1.0, 2 * rate * math.sqrt(2 * steps * math.log(1.25 / delta)) / spare)
    while (price := with_noise(high)) > target.epsilon:
        high *= 2
        if high > _MOST_NOISE:
            raise ConfigError("So little epsilon takes more noise than can be accounted for", f"{spare:.3g}", _MORE)
    low, above = high, price
    while low > LEAST_NOISE and above <= target.epsilon:
        high, price, low = low, above, max(LEAST_NOISE, low / 2)
        above = with_noise(low)
    return low if above <= target.epsilon else _narrowed(with_noise, low, above, high, price, target.epsilon)


def _narrowed(
    cost: Callable[[float], float], low: float, above: float, high: float, price: float, most: float
) -> float:
    """The upper end of a bracket, narrowed by interpolating linearly in logarithms to just below ``most``."""
    while price < 0.998 * most and high > 1.0005 * low:
        share = 0.5
        if above < math.inf:
            share = (math.log(above) - math.log(0.999 * most)) / (math.log(above) - math.log(price))
        trial = low * (high / low) ** min(0.95, max(0.05, share))
        if (trial_cost := cost(trial)) <= most:
            high, price = trial, trial_cost
        else:
            low, above = trial, trial_cost
    return high


def _known(events: Iterable[Event]) -> Counter[Event]:
    counts = Counter(events)
    for name in {event.mechanism: None for event in counts}:
        if name not in KNOWN:
            raise ProtocolError("Only events of known mechanisms can be added up", name, nearest(name, KNOWN))
    return counts


def _own_delta(counts: Mapping[Event, int]) -> float:
    return math.fsum(event.delta * event.times * times for event, times in counts.items())


def rounded_up(number: float) -> str:
    """A cost rounded up to four significant digits."""
    if number == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(number)) - 3)
    return f"{math.ceil(number / unit * (1 - 1e-12)) * unit:.4g}"  # 0.1 + 0.2 is 0.3
