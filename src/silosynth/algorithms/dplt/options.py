"""Options and presets of DPLT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Positive, Size, Struct
from silosynth.encoders.column import EncoderConfig
from silosynth.privacy.events import Target


class BudgetShares(Struct):
    """How the epsilon that encoders leave is divided among tables: in proportion, whatever the sum."""

    groups: Positive[float] = 0.2  # tables of two attributes of a silo, by which attributes are grouped
    latents: Positive[float] = 0.4  # one table of all attributes of each group
    tree: Positive[float] = 0.4  # tables of two latent attributes


class DPLTConfig(Struct):
    """All options.

    Raises:
        ConfigError: an option is out of its range, or ``dp`` names a mechanism for gradients.
    """

    bins: Size[int] = 8  # of a number's continuous part
    most: Size[int] = 3  # attributes of each group but the last, which has the remainder
    cells: Size[int] = 256  # of a group's table, as far as attributes can be chosen so
    states: Size[int] = 8  # of a latent attribute, at most
    fits: Positive[int] = 100  # iterations in which a latent attribute is fitted to its group's table
    shares: BudgetShares = BudgetShares()
    encoders: EncoderConfig = EncoderConfig()
    synthesis: Literal["shared", "partitioned"] = "shared"  # whether synthetic columns leave their silo
    dp: Target = Target()

    def _check(self) -> None:
        if self.dp.mechanism != "dpsgd":
            rule = "VFLGAN's own mechanism is for gradients, and DPLT has none"
            raise ConfigError(rule, self.dp.mechanism, "Give dp.epsilon.")


PRESETS: Mapping[str, DPLTConfig] = {
    "paper": DPLTConfig(encoders=EncoderConfig(pool_rare=False, dependencies="ignore")),
    "fast": DPLTConfig(fits=30),
    "balanced": DPLTConfig(),
    "best": DPLTConfig(bins=12, cells=512, states=12),
}
