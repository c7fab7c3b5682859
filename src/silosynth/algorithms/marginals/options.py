"""Options of the algorithms that measure marginals, and their presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Literal

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Bound, Size, Struct
from silosynth.encoders.column import EncoderConfig
from silosynth.privacy.events import Target

MOST_LEVELS = 256
_Levels = Annotated[int, Bound(f"from 2 to {MOST_LEVELS}", lambda count: 2 <= count <= MOST_LEVELS)]
_Tables = Annotated[float, Bound("from 1 to 10", lambda times: 1 <= times <= 10)]
_Part = Annotated[float, Bound("from 0 to 1", lambda part: 0 <= part <= 1)]
_Share = Annotated[float, Bound("above 0 and below 1", lambda share: 0 < share < 1)]

LITTLE = 1.0  # epsilon: up to it noise outweighs most tables of pairs


class MarginalsConfig(Struct):
    """All options.

    Raises:
        ConfigError: an option is out of its range, or ``dp`` names a mechanism for gradients.
    """

    bins: _Levels = 24  # of an attribute: its levels, at most; of a number's continuous part
    groups: _Levels = 5  # of an attribute's levels, in the tables by which the tree is selected
    selection: _Share = 0.2  # of the budget that encoders leave: what those tables take
    margins: _Share = 0.1  # of the same: what a table of each attribute alone takes
    tables: _Tables = 1.0  # that open in full, as multiples of a tree's: 1 is MST, more is AIM
    pairs: _Part = 0.0  # of all pairs, whose tables open in full where that is more; by epsilon, see most_tables
    rounds: Size[int] = 2  # in which tables beyond the tree are chosen
    cells: Size[int] = 100_000  # of the cliques that hold all tables, at most: what time and memory grow with
    encoders: EncoderConfig = EncoderConfig()
    synthesis: Literal["shared", "partitioned", "public"] = (
        "shared"  # whether synthetic columns leave; or decoders, too
    )
    dp: Target = Target(encoders=0.25)  # that share is of the budget as 1 / variance
    horizontal: bool = False  # whether silos hold different rows of the same columns; as the federation does
    silo_groups: tuple[tuple[str, ...], ...] = field(default=(), repr=False)  # of different rows, divided by columns

    @property
    def opens_tree(self) -> bool:
        """Whether the tree's tables open, whatever they tell: in `aim` not where noise outweighs most tables."""
        return not (self.adaptive and self.dp.private and self.dp.epsilon <= LITTLE)

    @property
    def adaptive(self) -> bool:
        """Whether more tables open than those of a tree, chosen by what the model so far misses."""
        return self.tables > 1 or self.pairs > 0

    def _check(self) -> None:
        if self.dp.mechanism != "dpsgd":
            rule = "VFLGAN's own mechanism is for gradients, and tables have none"
            raise ConfigError(rule, self.dp.mechanism, "Give dp.epsilon.")
        if self.selection + self.margins >= 1:
            rule = "Selection and margins leave a share of the budget for tables that open in full"
            raise ConfigError(rule, self.selection + self.margins, "Lower selection or margins.")
        if self.horizontal and self.synthesis != "shared":
            rule = (
                "Silos that hold different rows have no columns of their own that could stay in them, "
                "or be handed over: the coordinator has the model"
            )
            raise ConfigError(rule, self.synthesis, "Set synthesis = 'shared'.")
        if self.silo_groups:
            self._check_groups()
        if self.synthesis == "public" and not self.dp.private:
            rule = "What columns are drawn from leaves silos only where it is made of noised counts"
            raise ConfigError(rule, "no dp", "Give dp.epsilon and dp.delta, or set synthesis = 'shared'.")
        if self.horizontal and self.encoders.dependencies != "ignore":
            rule = "Silos that hold different rows do not tell each other which columns determine others"
            raise ConfigError(rule, self.encoders.dependencies, "Set encoders.dependencies = 'ignore'.")

    def _check_groups(self) -> None:
        names = [silo for group in self.silo_groups for silo in group]
        if not self.horizontal or len(self.silo_groups) < 2 or not all(self.silo_groups):
            rule = "Groups of silos are two or more, of different rows, with a silo at least in each"
            raise ConfigError(rule, self.silo_groups, "Set horizontal = true as well, or leave silo_groups out.")
        if len(set(names)) < len(names):
            raise ConfigError("A silo is in one group", names, "Name it once.")


MST: Mapping[str, MarginalsConfig] = {
    "fast": MarginalsConfig(bins=12, groups=4),
    "balanced": MarginalsConfig(),
    "best": MarginalsConfig(bins=32, groups=6),
}

AIM: Mapping[str, MarginalsConfig] = {
    "fast": MarginalsConfig(bins=12, groups=4, tables=2.0, rounds=1, cells=20_000),
    "balanced": MarginalsConfig(tables=2.5, pairs=0.5, cells=200_000),
    "best": MarginalsConfig(bins=32, groups=6, tables=3.0, pairs=0.5, rounds=3, cells=400_000),
}


def across_rows(presets: Mapping[str, MarginalsConfig]) -> dict[str, MarginalsConfig]:
    """The same for silos that hold different rows."""
    ignoring = {name: replace(preset.encoders, dependencies="ignore") for name, preset in presets.items()}
    return {name: replace(preset, horizontal=True, encoders=ignoring[name]) for name, preset in presets.items()}
