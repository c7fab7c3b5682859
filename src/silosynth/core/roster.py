"""Who takes part: an ordered list of parties with unique names and, if silos talk to each other, their public keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from silosynth.core.conversation import Exchange
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.messages import Message

COORDINATOR = "coordinator"
KEY_BYTES = 32  # an X25519 public key (RFC 7748)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class Roster:
    """The parties of a conversation, in the order in which their columns and latents are concatenated.

    Attributes:
        parties: their names.
        keys: the public key pinned for each, in the same order; empty where silos do not talk to each other.

    Raises:
        ConfigError: no party, a name used twice, or a name that is not a plain word; keys that are not one of 32 bytes
            for each party, or two parties with the same.
    """

    parties: tuple[str, ...]
    keys: tuple[bytes, ...] = ()

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
        if self.keys:
            self._check_keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.parties)

    def __len__(self) -> int:
        return len(self.parties)

    def key(self, name: str) -> bytes:
        """The public key pinned for the party called ``name``: 32 bytes.

        Raises:
            ConfigError: there is no such party, or keys are not pinned.
        """
        if name not in self.parties:
            raise ConfigError("There is no such silo", name, nearest(name, self.parties))
        if not self.keys:
            raise ConfigError("Silos that talk to each other pin each other's keys", name, "Put keys into the roster.")
        return self.keys[self.parties.index(name)]

    def everyone(self, ask: Message) -> Exchange:
        """Ask every party the same."""
        return Exchange({party: ask for party in self.parties})

    def each(self, asks: Mapping[str, Message]) -> Exchange:
        """Ask each party something of its own; ``asks`` must name every party."""
        return Exchange({party: asks[party] for party in self.parties})

    def _check_keys(self) -> None:
        if len(self.keys) != len(self.parties):
            counts = f"{len(self.keys)} for {len(self.parties)} silos"
            raise ConfigError("Either every silo's key is pinned or none", counts, "Give one key for each silo.")
        for name, key in zip(self.parties, self.keys, strict=True):
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise ConfigError(f"A silo's public key is {KEY_BYTES} bytes", name, "Copy it again.")
        if len(set(self.keys)) < len(self.keys):
            raise ConfigError("Every silo needs a key of its own", self.parties, "Draw a new one for one of them.")
