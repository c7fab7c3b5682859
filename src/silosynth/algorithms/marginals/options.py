"""Options of the algorithms that measure marginals, and their presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Bound, Struct
from silosynth.encoders.column import EncoderConfig
from silosynth.privacy.events import Target

_Levels = Annotated[int, Bound("from 2 to 256", lambda count: 2 <= count <= 256)]
_Share = Annotated[float, Bound("above 0 and below 1", lambda share: 0 < share < 1)]


class MarginalsConfig(Struct):
    """All options.

    Raises:
        ConfigError: an option is out of its range, or ``dp`` names a mechanism for gradients.
    """

    bins: _Levels = 24  # of an attribute: its levels, at most; of a number's continuous part
    groups: _Levels = 5  # of an attribute's levels, in the tables by which the tree is selected
    selection: _Share = 0.2  # of the budget that encoders leave: what those tables take
    encoders: EncoderConfig = EncoderConfig()
    synthesis: Literal["shared", "partitioned"] = "shared"  # whether synthetic columns leave their silo
    dp: Target = Target(encoders=0.25)  # that share is of the budget as 1 / variance

    def _check(self) -> None:
        if self.dp.mechanism != "dpsgd":
            rule = "VFLGAN's own mechanism is for gradients, and tables have none"
            raise ConfigError(rule, self.dp.mechanism, "Give dp.epsilon.")


MST: Mapping[str, MarginalsConfig] = {
    "fast": MarginalsConfig(bins=12, groups=4),
    "balanced": MarginalsConfig(),
    "best": MarginalsConfig(bins=32, groups=6),
}
