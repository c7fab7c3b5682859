"""What differential privacy a training is asked for: the option ``dp`` of algorithms that offer it."""

from __future__ import annotations

import math
from typing import Literal

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Positive, Struct
from silosynth.privacy.losses import LEAST_DELTA


class Target(Struct):
    """A whole training costs at most this (epsilon, delta); the noise follows from it.

    Two tables are neighbours if one has one row more (of a vertical federation: one row of the aligned table).

    Raises:
        ConfigError: an epsilon without a delta, a delta without an epsilon, or a value out of its range.
    """

    epsilon: Positive[float] = math.inf  # infinity: no differential privacy
    delta: float = 0.0  # well below one over the number of rows
    mechanism: Literal["dpsgd", "paper-unsound"] = "dpsgd"  # the second protects nobody: no epsilon is stated for it
    clip: Positive[float] = 1.0  # largest norm of one row's gradient, over all networks that see real rows
    encoders: float = 0.1  # share of epsilon, and of delta, that column encoders and the number of rows may cost
    noise: float = 0.0  # noise multiplier for "paper-unsound"; for "dpsgd" it is solved for

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        if not 0 < self.encoders < 1:
            raise ConfigError("Option 'dp.encoders' is a share of epsilon, above 0 and below 1", self.encoders)
        if not 0 <= self.noise < math.inf:
            raise ConfigError("Option 'dp.noise' is a finite number, at least zero", self.noise)
        if self.mechanism == "paper-unsound":
            self._check_unsound()
        else:
            self._check_sound()

    @property
    def private(self) -> bool:
        """Whether differential privacy is asked for, and kept."""
        return self.mechanism == "dpsgd" and self.epsilon < math.inf

    def encoder_budget(self, silos: int) -> tuple[float, float]:
        """Epsilon and delta for the encoders and the row count of one of ``silos`` silos."""
        share = self.encoders / silos
        return self.epsilon * share, self.delta * share

    def _check_sound(self) -> None:
        if self.private and not LEAST_DELTA / self.encoders <= self.delta < 0.5:
            raise ConfigError(
                f"An epsilon needs a delta, of at least {LEAST_DELTA / self.encoders:g} and below 1/2",
                self.delta,
                'Such as dp = {"epsilon": 10, "delta": 1e-5}; well below one over the number of rows.',
            )
        if not self.private and self.delta != 0:
            raise ConfigError("A delta needs a finite epsilon", self.delta, "Give dp.epsilon, or leave dp.delta out.")
        if self.noise:
            raise ConfigError(
                "The noise is solved for: dp.noise is for dp.mechanism = 'paper-unsound' only", self.noise
            )

    def _check_unsound(self) -> None:
        if self.epsilon < math.inf or self.delta:
            raise ConfigError(
                "The paper's mechanism gives no differential privacy: it takes no epsilon and no delta",
                (self.epsilon, self.delta),
                "Give dp.noise, its noise multiplier; or leave dp.mechanism out for a guarantee that holds.",
            )
