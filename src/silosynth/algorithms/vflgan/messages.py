"""What is said in VFLGAN and VertiGAN, in talking order, and their options. What each part means: see `conversation`.

Shapes: B made rows, R real rows of a batch, W features of one silo, P numbers of the backbone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Message, Release, Struct, check_positive
from silosynth.core.schema import Table
from silosynth.encoders.column import EncoderConfig
from silosynth.models.encoded import check_range
from silosynth.models.vflgan import Slopes
from silosynth.privacy.events import Event
from silosynth.privacy.target import Target

BATCHES = "vflgan: batches"  # what silos agree on a secret for: rows and noise of every step
PUBLICATION = "vflgan: publication"  # and the noise that a synthetic table is made of


@dataclass(frozen=True, slots=True)
class GANConfig(Struct):
    """What VFLGAN and VertiGAN have in common."""

    epochs: int = 300  # of max(1, rows // batch) critic steps
    least_rounds: int = 0  # rounds at least, however few the rows
    critic_steps: int = 5  # T_d, critic steps per round, which has one generator step
    batch: int = 64  # B; with differential privacy what is expected of a batch
    noise: int = 10  # l, length of z
    generator: tuple[int, ...] = (32, 64, 128)  # hidden widths of G_i
    norm_epsilon: float = 0.8  # what batch normalisation of generators adds to variances; 0: no normalisation
    critic: tuple[int, ...] = (256, 128)  # hidden widths of the first part of D_i; the last is that of features
    second: tuple[int, ...] = ()  # hidden widths of its second part
    penalty: float = 10.0  # λ, weight of the gradient penalty
    slopes: Slopes = "critic"  # what it bounds in silos: see `LocalCritic.penalty`
    rate: float = 5e-4  # η, Adam's
    betas: tuple[float, float] = (0.5, 0.999)
    decay: float = 0.0
    start: Literal["random", "shares"] = "random"  # of generators: or at the columns' own distributions, independent
    average: float = 0.0  # of generators' weights, kept at each step of a moving average; 0: none (paper)
    tau: float = 1.0  # temperature of the Gumbel-softmax
    hard: bool = True  # critics see one level, gradients flow as if they had seen the softmax
    select: Literal["last", "frechet"] = "last"  # which weights of generators are kept
    numbers: Literal["quantile", "standard"] = "quantile"  # how numbers are encoded: normal scores, or standardised
    calibrate: bool = False  # match drawn columns to training's: levels, and numbers = "quantile" (ours)
    encoders: EncoderConfig = EncoderConfig()
    synthesis: Literal["shared", "partitioned"] = "shared"  # whether synthetic columns leave their silo
    dp: Target = Target()

    @property
    def unsound(self) -> bool:
        """Whether the paper's mechanism is asked for, which protects nobody."""
        return self.dp.mechanism == "paper-unsound"

    def rounds(self, rows: int) -> int:
        """Rounds of the whole training, for so many rows."""
        steps = self.epochs * max(1, rows // self.batch)
        return max(-(-steps // self.critic_steps), self.least_rounds)

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_positive(self, "epochs", "critic_steps", "noise", "generator", "critic", "rate", "tau")
        check_range(self, "least_rounds", "norm_epsilon", "penalty", "decay")
        check_range(self, "betas", "average", below=1.0)
        if self.batch < 2:
            raise ConfigError("Option 'batch' is at least 2: batch normalisation needs as many", self.batch)
        if any(width < 1 for width in self.second):
            raise ConfigError("Option 'second' is widths above zero, or none", self.second)
        if self.dp.private and self.select != "last":
            raise ConfigError(
                "Choosing weights by their distance to real rows would cost budget, which is not charged",
                self.select,
                "Set select = 'last'.",
            )
        if self.dp.private and self.numbers != "quantile":
            raise ConfigError(
                "Exact means and deviations of columns are not differentially private",
                self.numbers,
                "Set numbers = 'quantile': they are then encoded from noised histograms.",
            )


@dataclass(frozen=True, slots=True)
class VFLGANConfig(GANConfig):
    """Options of "vflgan" and "vflgan-base"."""

    local: bool = True  # whether local critics have a second part and a loss; False is VFLGAN-base
    shared: tuple[int, ...] = (128,)  # hidden widths of D_s
    lambda1: float = 1.0  # λ1, weight of D_s' loss in that of local critics (equation (8))
    lambda2: float = 1.0  # λ2, weight of D_s in the loss of generators (equation (9))

    def __post_init__(self) -> None:
        GANConfig.__post_init__(self)
        check_range(self, "lambda1", "lambda2")
        if any(width < 1 for width in self.shared):
            raise ConfigError("Option 'shared' is widths above zero, or none", self.shared)


@dataclass(frozen=True, slots=True)
class VertiGANConfig(GANConfig):
    """Options of "vertigan"."""

    backbone: int = 2  # first hidden layers of the generator, which all silos share

    def __post_init__(self) -> None:
        GANConfig.__post_init__(self)
        if not 1 <= self.backbone <= len(self.generator):
            raise ConfigError(
                "Option 'backbone' is how many hidden layers of the generator all silos share, at least one",
                self.backbone,
                f"The generator has {len(self.generator)}.",
            )
        if self.unsound:
            raise ConfigError(
                "The paper's mechanism is for VFLGAN: VertiGAN's own is DP-SGD",
                self.dp.mechanism,
                'Give dp = {"epsilon": …, "delta": …}.',
            )


# What is said, in talking order.


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Fit your encoders and make your networks."""

    config: VFLGANConfig | VertiGANConfig


@dataclass(frozen=True, slots=True)
class Prepared(Message):
    """I have so many rows. ``nonce`` makes the secret of this training one that no other had."""

    release: ClassVar[Release] = Release.COUNTS
    rows: int
    nonce: str


@dataclass(frozen=True, slots=True)
class PreparedPrivately(Message):
    """The same with noise, and what that and the encoders have cost."""

    release: ClassVar[Release] = Release.NOISED
    rows: int
    nonce: str
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Charge(Message):
    """So many critic steps are to come, over batches of ``expected`` rows, drawn at this rate.

    ``events`` is what all silos have charged until now.
    """

    release: ClassVar[Release] = Release.NOISED
    steps: int
    rate: float
    expected: float
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Charged(Message):
    """All steps are charged. Silos with as many rows have the same ``tag``; only they know how many that are."""

    release: ClassVar[Release] = Release.NOISED
    tag: bytes
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Criticise(Message):
    """Give the features of the next critic step."""


@dataclass(frozen=True, slots=True)
class Features(Message):
    """Features of made rows (B, W) and of real ones (R, W)."""

    release: ClassVar[Release] = Release.ROWS
    fake_BW: Tensor
    real_RW: Tensor


@dataclass(frozen=True, slots=True)
class DescendCritic(Message):
    """λ1 times D_s' slopes in your features of either kind: update your critic. ``more``: then another critic step."""

    release: ClassVar[Release] = Release.GRADIENTS
    fake_BW: Tensor
    real_RW: Tensor
    more: bool


@dataclass(frozen=True, slots=True)
class FakeFeatures(Message):
    """Features (B, W) of made rows, on the way to updating the generator."""

    fake_BW: Tensor


@dataclass(frozen=True, slots=True)
class DescendGenerator(Message):
    """λ2 times D_s' slopes in your features, downwards: update your generator. ``more``: then another critic step."""

    fake_BW: Tensor
    more: bool


@dataclass(frozen=True, slots=True)
class Judge(Message):
    """How far are rows made now from yours?"""


@dataclass(frozen=True, slots=True)
class Judged(Message):
    """The Fréchet distance of my columns."""

    release: ClassVar[Release] = Release.STATISTICS
    distance: float


@dataclass(frozen=True, slots=True)
class Keep(Message):
    """Keep the generator's weights as they are now: they are the best until now."""


@dataclass(frozen=True, slots=True)
class Synthesise(Message):
    """Make so many rows from the secret of the publication ``draw``; ``share`` asks for the columns."""

    rows: int
    draw: str
    share: bool


@dataclass(frozen=True, slots=True)
class SyntheticColumns(Message):
    """Synthetic columns of a silo."""

    release: ClassVar[Release] = Release.SYNTHETIC
    table: Table
