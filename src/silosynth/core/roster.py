"""Who takes part: an ordered list of parties with unique names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from silosynth.core.conversation import Exchange
from silosynth.core.errors import ConfigError
from silosynth.core.messages import Message

COORDINATOR = "coordinator"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class Roster:
    """The parties of a conversation, in the order in which their columns and latents are concatenated.

    Raises:
        ConfigError: no party, a name used twice, or a name that is not a plain word.
    """

    parties: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.parties:
            raise ConfigError("A federation needs at least one silo", self.parties)
        for name in self.parties:
            if not _NAME.fullmatch(name) or name == COORDINATOR:
                raise ConfigError(
                    "A silo's name is 1 to 63 letters, digits, '_', '.' or '-', starts with a letter or digit, "
                    f"and is not {COORDINATOR!r}",
                    name,
                    "Rename the silo.",
                )
        if len(set(self.parties)) < len(self.parties):
            raise ConfigError("Every silo needs a name of its own", self.parties, "Rename one of them.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.parties)

    def __len__(self) -> int:
        return len(self.parties)

    def everyone(self, ask: Message) -> Exchange:
        """Ask every party the same."""
        return Exchange({party: ask for party in self.parties})

    def each(self, asks: Mapping[str, Message]) -> Exchange:
        """Ask each party something of its own; ``asks`` must name every party."""
        return Exchange({party: asks[party] for party in self.parties})
