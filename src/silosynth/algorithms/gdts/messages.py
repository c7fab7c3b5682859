"""What is said in GDTS, in talking order, and its options. What each part means: see `conversation`.

Shapes: W numbers of a model, B rows of a batch, E critic steps, C columns with levels, S scores, K levels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Message, Release, Struct, check_positive
from silosynth.core.schema import Schema
from silosynth.encoders.column import Encoder, EncoderConfig
from silosynth.encoders.federated import Summary
from silosynth.encoders.normalised import ModeConfig
from silosynth.models.ctgan import CTGANConfig
from silosynth.models.latent import LatentConfig
from silosynth.models.latent_table import STAGES, LatentTableConfig
from silosynth.privacy.events import Event
from silosynth.privacy.sealed import Envelope


@dataclass(frozen=True, slots=True)
class GANOptions(CTGANConfig):
    """The paper's generator, and how columns are encoded for it."""

    encoders: ModeConfig = ModeConfig()


@dataclass(frozen=True, slots=True)
class DiffusionOptions(LatentTableConfig):
    """Ours: SiloFuse's autoencoder and flow, for all columns, and how columns are encoded for it."""

    encoders: EncoderConfig = EncoderConfig()


@dataclass(frozen=True, slots=True)
class GDTSConfig(Struct):
    """All options."""

    mode: Literal["fl", "md"] = "fl"  # average silos' models, or one generator against a critic in every silo
    generator: Literal["ctgan", "diffusion"] = "ctgan"  # the second for mode "fl" only
    rounds: int = 100  # of mode "fl": silos' training is divided into so many parts
    ctgan: GANOptions = GANOptions()
    diffusion: DiffusionOptions = DiffusionOptions()
    weights: Literal["paper", "sharp", "rows", "equal"] = "sharp"  # of silos in averages: see `weights`
    epsilon: float = 1.0  # of the noise on each column's counts, and on the number of rows; inf for none
    delta: float = 1e-6  # with which a single row's category is told by name; 0 names all of them (paper)
    numbers: Literal["exact", "noised"] = "exact"  # what is told of numbers: un-noised (paper), or noised histograms
    bins: int = 64  # of a noised histogram
    participation: float = 1.0  # share of the silos that are asked in a round, drawn anew each time; mode "fl"
    absence: float = 0.0  # probability with which a silo that is asked is away for the round, by lot; mode "fl"
    secure: bool = False  # the coordinator sees sums of models only; mode "fl"
    swap_every: int = 1  # epochs after which critics change places; mode "md"

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_positive(self, "rounds", "epsilon", "bins", "participation", "swap_every")
        if self.participation > 1 or not 0 <= self.absence < 1:
            raise ConfigError(
                "Options 'participation' and 'absence' are shares: up to 1, and below 1",
                (self.participation, self.absence),
            )
        if not 0 <= self.delta < 0.5:
            raise ConfigError("Option 'delta' is at least 0 and below 1/2", self.delta)
        if self.ctgan.average:
            raise ConfigError("Silos average their models, not steps", self.ctgan.average, "Set ctgan.average = 0.")
        if self.numbers == "noised" and math.isinf(self.epsilon):
            raise ConfigError("Noised histograms need a finite epsilon", self.epsilon, "Set epsilon = 1.0.")
        if self.generator == "diffusion" and self.rounds < STAGES:
            raise ConfigError(f"Generator 'diffusion' is trained in {STAGES} rounds or more", self.rounds)
        if self.mode == "md":
            self._check_md()

    def _check_md(self) -> None:
        if self.generator != "ctgan":
            raise ConfigError("Mode 'md' trains a GAN", self.generator, "Set generator = 'ctgan', or mode = 'fl'.")
        if self.secure or self.participation < 1 or self.absence:
            raise ConfigError(
                "Options 'secure', 'participation' and 'absence' are for models that are averaged",
                self.mode,
                "Set mode = 'fl'.",
            )

    @property
    def model(self) -> GANOptions | DiffusionOptions:
        """The options of the generator that is trained."""
        return self.ctgan if self.generator == "ctgan" else self.diffusion


_PAPER = GDTSConfig(
    rounds=500, weights="paper", delta=0.0,
    ctgan=GANOptions(epochs=500, critic_steps=1, pac=10, encoders=ModeConfig(pool_rare=False)),
)  # fmt: skip


def _narrow(coder: int, flow: int) -> DiffusionOptions:
    """Networks half as wide as those of "best", and so many iterations: silos train them on a core in minutes."""
    return DiffusionOptions(steps=coder, latent=LatentConfig(held_out=0.0, width=256, batch=512, steps=flow))


PRESETS: Mapping[str, GDTSConfig] = {
    "paper": _PAPER,
    "fast": GDTSConfig(
        generator="diffusion", rounds=20, diffusion=_narrow(coder=300, flow=600),
        ctgan=GANOptions(epochs=10, least_rounds=300, rate=5e-4, rake=True),
    ),
    "balanced": GDTSConfig(
        generator="diffusion", rounds=60, diffusion=_narrow(coder=800, flow=2000),
        ctgan=GANOptions(epochs=50, least_rounds=1000, rate=5e-4, rake=True),
    ),
    "best": GDTSConfig(generator="diffusion", rounds=60),
}  # fmt: skip


# What is said, in talking order.


@dataclass(frozen=True, slots=True)
class Describe(Message):
    """Which columns have you?"""


@dataclass(frozen=True, slots=True)
class Described(Message):
    """My columns and their kinds, as they were declared or inferred from the rows."""

    release: ClassVar[Release] = Release.STATISTICS
    schema: Schema


@dataclass(frozen=True, slots=True)
class Summarise(Message):
    """Tell what your columns are like: the categories, or the numbers. Kinds are as all silos agreed."""

    config: GDTSConfig
    schema: Schema
    part: Literal["categories", "numbers"]


@dataclass(frozen=True, slots=True)
class NoisedSummaries(Message):
    """My columns, and with the categories the number of my rows, with noise."""

    release: ClassVar[Release] = Release.NOISED
    columns: tuple[Summary, ...]
    rows: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class ExactSummaries(Message):
    """The same without noise."""

    release: ClassVar[Release] = Release.STATISTICS
    columns: tuple[Summary, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Encode your rows with these, and make a model for a federation of so many rows."""

    release: ClassVar[Release] = Release.MERGED
    encoders: tuple[Encoder, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Train(Message):
    """Take these weights (W,), of what was trained before part ``part`` and of what it trains, and train it."""

    release: ClassVar[Release] = Release.AVERAGE
    part: int
    weights_W: Tensor


@dataclass(frozen=True, slots=True)
class Send(Message):
    """Send the weights that part ``part`` has left you with; with secure aggregation times ``weight``, and masked."""

    part: int
    weight: float


@dataclass(frozen=True, slots=True)
class Trained(Message):
    """My weights (W,)."""

    release: ClassVar[Release] = Release.WEIGHTS
    weights_W: Tensor


@dataclass(frozen=True, slots=True)
class Criticise(Message):
    """Teach your critic on made rows (E, B, K + S) of these conditions (E, B); say how to please it with others."""

    release: ClassVar[Release] = Release.SYNTHETIC
    step: int
    made_EBW: Tensor
    given_EB: Tensor
    asked_BW: Tensor
    position_B: Tensor


@dataclass(frozen=True, slots=True)
class Slopes(Message):
    """Gradient (B, K + S) of the generator's loss in the last rows."""

    release: ClassVar[Release] = Release.GRADIENTS
    slope_BW: Tensor


@dataclass(frozen=True, slots=True)
class SealCritic(Message):
    """Seal your critic for another silo."""

    swap: int
    receiver: str


@dataclass(frozen=True, slots=True)
class SealedCritic(Message):
    """My critic."""

    release: ClassVar[Release] = Release.SEALED
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class TakeCritic(Message):
    """Take this critic in place of yours."""

    release: ClassVar[Release] = Release.SEALED
    swap: int
    envelope: Envelope
