"""What is said in DPLT, in talking order, and its options. What each part means: see `conversation`.

Shapes: R rows that are drawn, L latent attributes, K states of all of a silo's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Message, Release, Struct, check_positive
from silosynth.core.schema import Table
from silosynth.encoders.column import EncoderConfig
from silosynth.privacy.events import Event
from silosynth.privacy.sealed import Envelope
from silosynth.privacy.target import Target


@dataclass(frozen=True, slots=True)
class Shares(Struct):
    """How what encoders leave of epsilon is divided among tables: in proportion, whatever the sum."""

    groups: float = 0.2  # tables of two attributes of a silo, by which attributes are grouped
    latents: float = 0.4  # one table of all attributes of each group
    tree: float = 0.4  # tables of two latent attributes

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_positive(self, "groups", "latents", "tree")


@dataclass(frozen=True, slots=True)
class DPLTConfig(Struct):
    """All options."""

    bins: int = 8  # of a number's continuous part
    most: int = 3  # attributes of each group but the last, which has the rest
    cells: int = 256  # of a group's table, as far as attributes can be chosen so
    states: int = 8  # of a latent attribute, at most
    fits: int = 100  # iterations in which latent attributes are fitted to a group's table
    shares: Shares = Shares()
    encoders: EncoderConfig = EncoderConfig()
    synthesis: Literal["shared", "partitioned"] = "shared"  # whether synthetic columns leave their silo
    dp: Target = Target()

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_positive(self, "bins", "most", "cells", "states", "fits")
        if self.dp.mechanism != "dpsgd":
            raise ConfigError(
                "VFLGAN's own mechanism is for gradients, and DPLT has none", self.dp.mechanism, "Give dp.epsilon."
            )


PRESETS: Mapping[str, DPLTConfig] = {
    "paper": DPLTConfig(encoders=EncoderConfig(pool_rare=False)),
    "fast": DPLTConfig(fits=30),
    "balanced": DPLTConfig(),
    "best": DPLTConfig(bins=12, cells=512, states=12),
}


# What is said, in talking order.


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Encode your columns; with differential privacy for your share of a federation of so many silos."""

    config: DPLTConfig
    silos: int


@dataclass(frozen=True, slots=True)
class Prepared(Message):
    """I have so many rows and columns."""

    release: ClassVar[Release] = Release.COUNTS
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class NoisedPrepared(Message):
    """The same, the number of rows with noise, and what the encoders have cost."""

    release: ClassVar[Release] = Release.NOISED
    rows: int
    columns: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Group(Message):
    """Group your attributes, and make a latent attribute of each group. Epsilon of each table, by what it is for."""

    epsilon_pairs: float
    epsilon_groups: float


@dataclass(frozen=True, slots=True)
class Grouped(Message):
    """How many states each of my latent attributes has, and the distribution (S,) of the first."""

    release: ClassVar[Release] = Release.STATISTICS
    states: tuple[int, ...]
    first_S: Tensor


@dataclass(frozen=True, slots=True)
class NoisedGrouped(Message):
    """The same, from noised tables."""

    release: ClassVar[Release] = Release.NOISED
    states: tuple[int, ...]
    first_S: Tensor
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Factor(Struct):
    """For a product with one other silo: the seed (32 bytes) of the random matrix that hides this silo's."""

    peer: str
    seed: bytes


@dataclass(frozen=True, slots=True)
class Hide(Message):
    """Hide your latent attributes, ``rows`` rows of them, by these, and seal them for the other silos."""

    rows: int
    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Hidden(Message):
    """One envelope for each other silo."""

    release: ClassVar[Release] = Release.SEALED
    envelopes: tuple[Envelope, ...]


@dataclass(frozen=True, slots=True)
class Sealed(Struct):
    """What another silo has hidden, the states of its latent attributes, and the dealer's share of the product.

    The share is int64, words modulo 2^64; its rows are those of the silo that the roster names first.
    """

    envelope: Envelope
    states: tuple[int, ...]
    share: Tensor


@dataclass(frozen=True, slots=True)
class Relate(Message):
    """Count all pairs of your latent attributes, and with those of others; each table with this epsilon."""

    release: ClassVar[Release] = Release.SEALED
    epsilon: float
    others: tuple[Sealed, ...]


@dataclass(frozen=True, slots=True)
class Related(Message):
    """Tables of my own pairs, and my share of all those with each other silo, in the order of the envelopes."""

    release: ClassVar[Release] = Release.STATISTICS
    own: tuple[Tensor, ...]
    shares: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class NoisedRelated(Message):
    """The same with noise."""

    release: ClassVar[Release] = Release.NOISED
    own: tuple[Tensor, ...]
    shares: tuple[Tensor, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Draw(Message):
    """Draw columns for these states (R, L) of your latent attributes. ``draw`` names the random stream."""

    release: ClassVar[Release] = Release.SYNTHETIC
    states_RL: Tensor
    draw: str
    share: bool


@dataclass(frozen=True, slots=True)
class SyntheticColumns(Message):
    """Synthetic columns of the silo."""

    release: ClassVar[Release] = Release.SYNTHETIC
    table: Table
