"""What is said in VT-GAN, in talking order, and its options. What each part means: see `conversation`.

Shapes: B rows of a batch, T steps of a round, R rows that are pushed, W_i features of silo i, F_i its slice of G^t's
outputs, G generated rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Message, Release, Struct, check_positive
from silosynth.core.schema import Table
from silosynth.encoders.normalised import ModeConfig
from silosynth.privacy.target import Target

ORDER = "vtgan: order of rows"  # what silos agree on a secret for: the order that row numbers refer to
PUBLICATION = "vtgan: publication"  # and the order in which synthetic rows are published


@dataclass(frozen=True, slots=True)
class VTGANConfig(Struct):
    """All options."""

    critic_blocks: tuple[int, int] = (2, 0)  # a, b of D^a_b: at the coordinator, in each silo
    generator_blocks: tuple[int, int] = (0, 2)  # c, d of G^c_d
    width: int = 256  # of a block of the critic, all silos together
    generator_width: int = 256  # of a block of the generator, all silos together (paper, enlarged: 768)
    noise: int = 128  # length of Z
    epochs: int = 300  # of max(1, rows // batch) rounds
    least_rounds: int = 0  # rounds at least, however few the rows
    critic_steps: int = 5  # e, critic steps per round
    batch: int = 500
    rate: float = 2e-4  # Adam's
    betas: tuple[float, float] = (0.5, 0.9)
    average: float = 0.0  # of generators' weights, kept at each step of a moving average; 0: none (paper)
    decay: float = 1e-6
    penalty: float = 10.0  # weight of the gradient penalty
    tau: float = 0.2  # temperature of the Gumbel-softmax
    dropout: float = 0.5  # of the critic's blocks
    index_privacy: Literal["full", "decoys", "none"] = "full"
    decoys: int = 4  # rows pushed for each row of the batch; for index_privacy = "decoys"
    bottom_gradients: Literal["all", "contributor", "none"] = "none"  # whose bottom critic a step updates
    bottom_critics: Literal["orthonormal", "free"] = "orthonormal"  # how far apart they may set rows
    statistics: Literal["contributor", "all"] = "contributor"  # running ones of batch normalisation: for each, or one
    contributors: Literal["spread", "independent"] = "spread"  # how those of a round are drawn: see `conversation`
    shuffle: Literal["step", "round", "off"] = "step"  # when row numbers change; for index_privacy = "full"
    encoders: ModeConfig = ModeConfig()
    synthesis: Literal["shared", "partitioned"] = "shared"  # whether synthetic columns leave their silo
    dp: Target = Target()  # differential privacy: see `private`

    def rounds(self, rows: int) -> int:
        """Rounds of a training on so many rows."""
        return max(self.epochs * max(1, rows // self.batch), self.least_rounds)

    def kind(self, contributor: int) -> int:
        """Whose running statistics of batch normalisation are used: a contributor's batches have conditions alike."""
        return contributor if self.statistics == "contributor" else 0

    def updates(self, contributor: str, party: str) -> bool:
        """Whether a critic step updates this silo's bottom critic."""
        return self.bottom_gradients == "all" or (self.bottom_gradients == "contributor" and party == contributor)

    def told(self, contributor: str, party: str) -> str:
        """Who contributes, as a silo is told: by name where its statistics depend on it; "" is another one."""
        return contributor if party == contributor or self.statistics == "contributor" else ""

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        positive = ("width", "generator_width", "noise", "epochs", "critic_steps", "rate", "tau", "decoys")
        check_positive(self, *positive)
        if self.batch < 2:
            raise ConfigError("Option 'batch' is at least 2: batch normalisation needs as many", self.batch)
        for name in ("critic_blocks", "generator_blocks"):
            if min(getattr(self, name)) < 0:
                raise ConfigError(
                    f"Option {name!r} is two numbers of blocks, none below zero", getattr(self, name), "Such as [2, 0]."
                )
        for name in ("penalty", "decay", "least_rounds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"Option {name!r} must be at least zero, and finite", getattr(self, name))
        if not all(0 <= value < 1 for value in (self.dropout, self.average, *self.betas)):
            told = (self.dropout, self.average, self.betas)
            raise ConfigError("Options 'dropout', 'average' and 'betas' are from 0 to below 1", told)
        if self.dp.mechanism != "dpsgd":
            raise ConfigError("VT-GAN's own mechanism is not offered", self.dp.mechanism, "Give dp.epsilon.")
        if self.bottom_gradients == "none" and self.critic_blocks[1] and not self.dp.private:
            raise ConfigError(
                "Blocks of the critic in silos are to learn: bottom_gradients = 'none' is for critic_blocks [a, 0]",
                self.critic_blocks,
                "Set bottom_gradients = 'contributor', or 'all' as in the paper.",
            )
        if self.index_privacy == "decoys" and self.bottom_gradients == "all" and not self.dp.private:
            raise ConfigError(
                "Decoys have no gradient: a silo that is handed gradients tells them from the batch",
                self.bottom_gradients,
                "Set bottom_gradients = 'contributor' or 'none', or index_privacy = 'none'.",
            )


_PAPER = VTGANConfig(
    index_privacy="full", bottom_gradients="all", bottom_critics="free", statistics="all",
    contributors="independent", shuffle="round", encoders=ModeConfig(pool_rare=False),
)  # fmt: skip
_BALANCED = VTGANConfig(epochs=100, least_rounds=2000, rate=1e-3, betas=(0.0, 0.99), average=0.999)

PRESETS: Mapping[str, VTGANConfig] = {
    "paper": _PAPER,
    "fast": replace(_BALANCED, epochs=15, least_rounds=600, average=0.99, index_privacy="decoys"),
    "balanced": _BALANCED,
    "best": replace(_BALANCED, epochs=300, least_rounds=6000, generator_width=768),
}


# What is said, in talking order.


@dataclass(frozen=True, slots=True)
class Encode(Message):
    """Fit your encoders and encode your rows."""

    config: VTGANConfig


@dataclass(frozen=True, slots=True)
class Encoded(Message):
    """I have so many rows, columns, and levels that conditions can name."""

    release: ClassVar[Release] = Release.COUNTS
    rows: int
    columns: int
    conditions: int


@dataclass(frozen=True, slots=True)
class Build(Message):
    """Make your bottom parts: blocks and features of the critic are ``width`` wide, the generator's ``slice`` wide."""

    width: int
    slice: int


@dataclass(frozen=True, slots=True)
class DrawConditions(Message):
    """Contribute conditions, with rows that fulfil them, to these critic steps, and to these generator steps."""

    critic: tuple[int, ...]
    generator: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drawn(Message):
    """Positions (T, B) of the drawn levels, critic steps first, and where their rows are found among what is pushed.

    ``picks_TB`` are numbers of rows in the silos' secret order, or places in the list that is sealed for the others.
    """

    release: ClassVar[Release] = Release.CONDITIONS
    positions_TB: Tensor
    picks_TB: Tensor
    sealed: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Criticise(Message):
    """Make rows from this slice (B, F_i), and send features of these and of real rows: the batch's, or all.

    The contributor knows the batch; the others push all their rows. Who it is: see `VTGANConfig.told`.
    """

    step: int
    slice_BF: Tensor
    contributor: str


@dataclass(frozen=True, slots=True)
class CriticiseListed(Message):
    """The same; the real rows are those of the list that the contributor has sealed for the other silos."""

    release: ClassVar[Release] = Release.PICKS
    step: int
    slice_BF: Tensor
    contributor: str
    sealed: bytes


@dataclass(frozen=True, slots=True)
class Features(Message):
    """Features of made rows (B, W_i), and of real rows (B, all, or some, W_i)."""

    release: ClassVar[Release] = Release.ROWS
    fake_BW: Tensor
    real_RW: Tensor


@dataclass(frozen=True, slots=True)
class DescendCritic(Message):
    """To the contributor: gradients (B, W_i) in the features of the step. Update your bottom critic."""

    release: ClassVar[Release] = Release.GRADIENTS
    fake_BW: Tensor
    real_BW: Tensor


@dataclass(frozen=True, slots=True)
class DescendPicked(Message):
    """To the others: the same. ``picks_B`` says whose gradients of pushed rows these are; the rest's are zero.

    They are sorted by row, so as not to tell which row goes with which condition.
    """

    release: ClassVar[Release] = Release.PICKED_GRADIENTS
    fake_BW: Tensor
    real_BW: Tensor
    picks_B: Tensor


@dataclass(frozen=True, slots=True)
class Generate(Message):
    """Make rows from this slice (B, F_i), and send their features."""

    step: int
    slice_BF: Tensor
    contributor: str


@dataclass(frozen=True, slots=True)
class FakeFeatures(Message):
    """Features (B, W_i) of made rows."""

    fake_BW: Tensor


@dataclass(frozen=True, slots=True)
class DescendGenerator(Message):
    """Gradient (B, W_i) in the features of the made rows: update your bottom generator."""

    fake_BW: Tensor


@dataclass(frozen=True, slots=True)
class SliceGradients(Message):
    """Gradient (B, F_i) in the slice."""

    slice_BF: Tensor


@dataclass(frozen=True, slots=True)
class SampleConditions(Message):
    """Draw so many conditions as often as their levels occur. ``draw`` names the random stream."""

    rows: int
    draw: str


@dataclass(frozen=True, slots=True)
class SampledConditions(Message):
    """Positions (G,) of the drawn levels."""

    release: ClassVar[Release] = Release.CONDITIONS
    position_G: Tensor


@dataclass(frozen=True, slots=True)
class Synthesise(Message):
    """Make rows from this slice (G, F_i), put them in the silos' secret order; ``share`` asks for the columns.

    ``contributed`` says for how many of them, one after the other, each silo has drawn conditions, in roster order.
    """

    slice_GF: Tensor
    contributed: tuple[int, ...]
    draw: str
    share: bool


@dataclass(frozen=True, slots=True)
class SyntheticColumns(Message):
    """Synthetic columns of a silo."""

    release: ClassVar[Release] = Release.SYNTHETIC
    table: Table
