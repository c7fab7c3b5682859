"""What a noisy release costs: an event is born with the noise, and travels in the message that carries the release.

All events speak of the same neighbours: two tables of one silo that differ by one row, added or removed. The noise
hides from whoever reads the release, or anything computed from it, whether that row was there.

A message lists its events in a field ``events: tuple[Event, ...]``, and its type declares ``Release.NOISED``. The
ledger records them, and `silosynth.privacy.accounting` adds them up. Each release is listed in one message of its silo:
in two, it counts twice. A coordinator that passes noised statistics on lists their events again; those do not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Struct

DISCRETE_LAPLACE = "discrete Laplace"
THRESHOLDED = "thresholded histogram"


@dataclass(frozen=True, slots=True)
class Event(Struct):
    """One noisy release. Only `silosynth.privacy.mechanisms` makes new ones.

    Attributes:
        mechanism: how it was noised; the accountant knows `DISCRETE_LAPLACE` and `THRESHOLDED`, and refuses others.
        epsilon: what the noise alone gives. Both mechanisms add discrete Laplace noise of this parameter to counts of
            which one row changes one, by 1.
        delta: the probability, at most, that the name of a level that one row holds is released; 0 without a threshold.
        what: what was released, in words: "counts of the levels of column 'job'". Never a value from the table.

    Raises:
        ConfigError: epsilon is not a finite number above zero, or delta not in [0, 1).
    """

    mechanism: str
    epsilon: float
    delta: float
    what: str

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        if not 0 < self.epsilon < math.inf:
            raise ConfigError("The epsilon of a noisy release is a finite number above zero", self.epsilon)
        if not 0 <= self.delta < 1:
            raise ConfigError("The delta of a noisy release is at least zero and below one", self.delta)
