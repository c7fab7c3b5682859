"""The epsilon of every table that DPLT counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from silosynth.algorithms.dplt.messages import DPLTConfig
from silosynth.core.errors import ConfigError
from silosynth.privacy.accounting import spent
from silosynth.privacy.events import DISCRETE_LAPLACE, Event

HALVINGS = 9  # of what composition may save


def budget(config: DPLTConfig, columns: Sequence[int], events: Sequence[Event]) -> tuple[float, float, float]:
    """Epsilon of a table of two attributes of a silo, of one of a group, and of one of two latent attributes.

    Infinity without differential privacy. With it the greatest, in the proportion of ``shares``, with which all tables
    of all silos cost no more than what ``events``, those of encoders, leave of the target.

    Args:
        columns: of each silo.

    Raises:
        ConfigError: encoders leave nothing.
    """
    dp = config.dp
    if not dp.private:
        return math.inf, math.inf, math.inf
    latent = sum(-(-count // config.most) for count in columns)
    times = sum(math.comb(count, 2) for count in columns), latent, math.comb(latent, 2)
    shares = config.shares.groups, config.shares.latents, config.shares.tree
    before = spent(events, 0.0)
    whole = sum(share for share, count in zip(shares, times, strict=True) if count)
    first = dp.epsilon - before.pure_epsilon  # by adding up
    if not first > 0:
        raise ConfigError("Encoders must leave a part of epsilon", dp.epsilon, "Give a smaller dp.encoders.")

    def epsilons(epsilon: float) -> list[float]:
        parts = zip(shares, times, strict=True)
        return [epsilon * share / whole / count if count else math.inf for share, count in parts]

    def cost(epsilon: float) -> float:
        noised = [
            Event(DISCRETE_LAPLACE, one, 0.0, "a table") for one, count in zip(epsilons(epsilon), times, strict=True)
            for _ in range(count)
        ]  # fmt: skip
        return spent([*events, *noised], dp.delta - before.own_delta).epsilon

    low, high = first, 2 * first
    while cost(high) <= dp.epsilon:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= dp.epsilon else (low, middle)
    pairs, groups, tree = epsilons(low)
    return pairs, groups, tree
