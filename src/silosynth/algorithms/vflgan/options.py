"""Options of VFLGAN, VFLGAN-base and VertiGAN, and presets. What they mean in the paper's terms: see `protocol`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from silosynth.core.errors import ConfigError
from silosynth.core.messages import AtMost, Fraction, NonNegative, Positive, Size, Struct
from silosynth.encoders.column import EncoderConfig
from silosynth.models.vflgan import Slopes
from silosynth.privacy.events import Target


class GANConfig(Struct):
    """Options that VFLGAN and VertiGAN share."""

    epochs: Positive[int] = 300  # of max(1, rows // batch) critic steps
    least_rounds: NonNegative[int] = 0  # minimum number of rounds, however few the rows
    critic_steps: Positive[int] = 5  # T_d, critic steps per round, which has one generator step
    batch: AtMost[int] = 64  # B; with differential privacy its expected size
    noise: Size[int] = 10  # l, length of z
    generator: Size[tuple[int, ...]] = (32, 64, 128)  # hidden widths of G_i
    norm_epsilon: NonNegative[float] = 0.8  # added to variances in generators; 0: no batch normalisation
    critic: Size[tuple[int, ...]] = (256, 128)  # hidden widths of the first part of D_i; the last: features
    second: AtMost[tuple[int, ...]] = ()  # hidden widths of its second part
    penalty: NonNegative[float] = 10.0  # λ, weight of the gradient penalty
    slopes: Slopes = "critic"  # what the penalty bounds in silos: see `LocalCritic.penalty`
    rate: Positive[float] = 5e-4  # η, Adam's learning rate
    betas: Fraction[tuple[float, float]] = (0.5, 0.999)
    decay: NonNegative[float] = 0.0
    start: Literal["random", "shares"] = "random"  # generators start at random, or at the columns' own distributions
    average: Fraction[float] = 0.0  # decay per step of the moving average of generators' weights; 0: no average (paper)
    tau: Positive[float] = 1.0  # temperature of the Gumbel-softmax
    hard: bool = True  # critics see one level; gradients are those of the softmax
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
        """Rounds of a training on ``rows`` rows."""
        steps = self.epochs * max(1, rows // self.batch)
        return max(-(-steps // self.critic_steps), self.least_rounds)

    def _check(self) -> None:
        if self.batch < 2:
            raise ConfigError("Option 'batch' is at least 2, as batch normalisation needs two rows", self.batch)
        if any(width < 1 for width in self.second):
            raise ConfigError("Option 'second' is widths above zero, or empty", self.second)
        if self.dp.private and self.select != "last":
            raise ConfigError(
                "Choosing weights by their distance to real rows would cost budget that is not charged",
                self.select,
                "Set select = 'last'.",
            )
        if self.dp.private and self.numbers != "quantile":
            raise ConfigError(
                "Exact means and deviations of columns are not differentially private",
                self.numbers,
                "Set numbers = 'quantile': they are then encoded from noised histograms.",
            )


class VFLGANConfig(GANConfig):
    """Options of "vflgan" and "vflgan-base"."""

    local: bool = True  # whether local critics have a second part and a loss; False is VFLGAN-base
    shared: AtMost[tuple[int, ...]] = (128,)  # hidden widths of D_s
    lambda1: NonNegative[float] = 1.0  # λ1, weight of D_s' loss in that of local critics (equation (8))
    lambda2: NonNegative[float] = 1.0  # λ2, weight of D_s in the loss of generators (equation (9))

    def _check(self) -> None:
        super()._check()
        if any(width < 1 for width in self.shared):
            raise ConfigError("Option 'shared' is widths above zero, or empty", self.shared)


class VertiGANConfig(GANConfig):
    """Options of "vertigan"."""

    backbone: AtMost[int] = 2  # first hidden layers of the generator, which all silos share

    def _check(self) -> None:
        super()._check()
        if not 1 <= self.backbone <= len(self.generator):
            raise ConfigError(
                "Option 'backbone' is the number of hidden layers of the generator that all silos share, at least one",
                self.backbone,
                f"The generator has {len(self.generator)}.",
            )


# Presets.

_PAPER = VFLGANConfig(  # the public code's, for Adult
    epochs=75, noise=20, penalty=30.0, slopes="parts", select="frechet", numbers="standard",
    encoders=EncoderConfig(pool_rare=False, dependencies="ignore"),
)  # fmt: skip
_FAST = VFLGANConfig(
    epochs=10, least_rounds=1000, batch=32, noise=16, generator=(32, 64), critic=(64, 32), shared=(32,),
    norm_epsilon=0.0, slopes="orthonormal", betas=(0.0, 0.99), average=0.99, tau=0.2, hard=False,
    calibrate=True,
)  # fmt: skip
_BALANCED = replace(
    _FAST, epochs=100, least_rounds=5000, batch=64, noise=32, generator=(32, 64, 128), critic=(128, 64), shared=(64,),
    average=0.999,
)  # fmt: skip
_BEST = replace(_BALANCED, epochs=300, least_rounds=15_000, generator=(64, 128, 256), critic=(256, 128), shared=(128,))
_PRIVATE = replace(  # for ``dp``: batches large enough, and critics small enough, to learn through the noise
    _FAST, epochs=100, least_rounds=300, batch=256, noise=32, critic=(32, 16), shared=(16,), rate=1e-3,
    start="shares", dp=Target(encoders=0.25),
)  # fmt: skip


def _vertigan(like: GANConfig, slopes: Slopes) -> VertiGANConfig:
    """The same options for VertiGAN."""
    common = {name: getattr(like, name) for name in GANConfig.__dataclass_fields__}
    return VertiGANConfig(**common | {"slopes": slopes})


VFLGAN: Mapping[str, VFLGANConfig] = {
    "paper": _PAPER, "fast": _FAST, "balanced": _BALANCED, "best": _BEST, "private": _PRIVATE,
}  # fmt: skip
BASE: Mapping[str, VFLGANConfig] = {name: replace(config, local=False) for name, config in VFLGAN.items()}
VERTIGAN: Mapping[str, VertiGANConfig] = {  # one penalty, on the whole critic (4), except where noise makes it useless
    name: _vertigan(config, config.slopes if name == "private" else "critic") for name, config in VFLGAN.items()
}

PRIVATE: Mapping[str, VFLGANConfig] = {  # with ``dp``; "private" has these sizes anyway
    "fast": replace(_PRIVATE, epochs=20, least_rounds=150),
    "balanced": _PRIVATE,
    "best": replace(_PRIVATE, epochs=200, least_rounds=600),
}
PRIVATE_BASE: Mapping[str, VFLGANConfig] = {name: replace(config, local=False) for name, config in PRIVATE.items()}
PRIVATE_VERTIGAN: Mapping[str, VertiGANConfig] = {
    name: _vertigan(config, config.slopes) for name, config in PRIVATE.items()
}
