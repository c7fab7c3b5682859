"""What is said in a round of secure aggregation, and what both sides must agree on: `silosynth.privacy.aggregation`.

Shapes: W numbers of an update.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Message, Release
from silosynth.privacy.sealed import Envelope, framed

LEAST = 3
MOST = 10_000  # silos; what `silosynth.privacy.masks` has room for
_LABEL = "silosynth aggregation 1"


@dataclass(frozen=True, slots=True)
class Offer(Message):
    """Coordinator: a round begins. Numbers rise from round to round."""

    number: int


@dataclass(frozen=True, slots=True)
class Offered(Message):
    """Silo: my public key (32 bytes) for this round."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Deal(Message):
    """Coordinator: who takes part, with which keys, and how many shares are to give back a secret."""

    number: int
    silos: tuple[str, ...]
    keys: tuple[bytes, ...]
    threshold: int


@dataclass(frozen=True, slots=True)
class Dealt(Message):
    """Silo: shares of my seed and of my key, and a key for my tags, sealed for each other silo."""

    release: ClassVar[Release] = Release.SEALED
    envelopes: tuple[Envelope, ...]


@dataclass(frozen=True, slots=True)
class Relay(Message):
    """Coordinator: what the other silos sealed for you."""

    release: ClassVar[Release] = Release.SEALED
    number: int
    envelopes: tuple[Envelope, ...]


@dataclass(frozen=True, slots=True)
class Masked(Message):
    """Silo: weight · update and the weight, in fixed point and masked: (W + 1,) int64."""

    release: ClassVar[Release] = Release.MASKED
    words: Tensor


@dataclass(frozen=True, slots=True)
class Confirm(Message):
    """Coordinator: the updates of these silos arrived."""

    number: int
    arrived: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Confirmed(Message):
    """Silo: I was told this list; a tag (32 bytes) for each on it, empty for myself."""

    tags: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Unmask(Message):
    """Coordinator: these silos confirmed, with these tags for you."""

    number: int
    confirmed: tuple[str, ...]
    tags: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Revealed(Message):
    """Silo: for each silo of the round my share of its seed if it arrived, else of its key."""

    release: ClassVar[Release] = Release.MASKED
    shares: tuple[bytes, ...]


@dataclass(frozen=True)
class Table:
    """Who sits at a round: names and keys of the round in one order, and how many shares give back a secret."""

    number: int
    silos: tuple[str, ...]
    keys: tuple[bytes, ...]
    threshold: int

    def about(self) -> bytes:
        """32 bytes that no other round has."""
        return hashlib.sha256(framed(_LABEL, str(self.number), str(self.threshold), *self.silos, *self.keys)).digest()


def threshold(silos: int, colluding: int) -> int:
    """How many of so many silos it takes: any two lists that many confirmed share a silo that does not collude."""
    return (silos + colluding) // 2 + 1


def check_policy(least: int, colluding: int) -> None:
    """Check how many silos a sum has at least, given how many may work together with the coordinator.

    Raises:
        ConfigError: two that do not would not be left.
    """
    if colluding < 0 or least < colluding + 2:
        raise ConfigError(
            f"With {colluding} colluding silos a sum is over at least {max(colluding, 0) + 2}",
            least,
            "Raise least, or expect fewer to collude.",
        )
