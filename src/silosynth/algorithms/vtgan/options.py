"""Options of VT-GAN, and presets. What they mean in the paper's terms: see `protocol`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from silosynth.core.errors import ConfigError
from silosynth.core.messages import AtMost, Fraction, NonNegative, Positive, Size, Struct
from silosynth.encoders.normalised import ModeConfig
from silosynth.privacy.events import Target


class VTGANConfig(Struct):
    """All options."""

    critic_blocks: AtMost[tuple[int, int]] = (2, 0)  # a, b of D^a_b: at the coordinator, in each silo
    generator_blocks: AtMost[tuple[int, int]] = (0, 2)  # c, d of G^c_d
    width: Size[int] = 256  # of a block of the critic, all silos together
    generator_width: Size[int] = 256  # of a block of the generator, all silos together (paper, enlarged: 768)
    noise: Size[int] = 128  # length of Z
    epochs: Positive[int] = 300  # of max(1, rows // batch) rounds
    least_rounds: NonNegative[int] = 0  # minimum number of rounds, however few the rows
    critic_steps: Positive[int] = 5  # e, critic steps per round
    batch: AtMost[int] = 500
    rate: Positive[float] = 2e-4  # Adam's learning rate
    betas: Fraction[tuple[float, float]] = (0.5, 0.9)
    average: Fraction[float] = 0.0  # decay per step of the moving average of generators' weights; 0: no average (paper)
    decay: NonNegative[float] = 1e-6
    penalty: NonNegative[float] = 10.0  # weight of the gradient penalty
    tau: Positive[float] = 0.2  # temperature of the Gumbel-softmax
    dropout: Fraction[float] = 0.5  # of the critic's blocks
    index_privacy: Literal["full", "decoys", "none"] = "full"
    decoys: Size[int] = 4  # rows pushed for each row of the batch; for index_privacy = "decoys"
    bottom_gradients: Literal["all", "contributor", "none"] = "none"  # whose bottom critic a step updates
    bottom_critics: Literal["orthonormal", "free"] = "orthonormal"  # constraint on the matrices of bottom critics
    statistics: Literal["contributor", "all"] = "contributor"  # running statistics of batch normalisation: one set each
    contributors: Literal["spread", "independent"] = "spread"  # how those of a round are drawn
    shuffle: Literal["step", "round", "off"] = "step"  # when row numbers change; for index_privacy = "full"
    encoders: ModeConfig = ModeConfig()
    synthesis: Literal["shared", "partitioned"] = "shared"  # whether synthetic columns leave their silo
    dp: Target = Target()  # differential privacy: see `private`

    def rounds(self, rows: int) -> int:
        """Rounds of a training on ``rows`` rows."""
        return max(self.epochs * max(1, rows // self.batch), self.least_rounds)

    @property
    def settled(self) -> VTGANConfig:
        """The options that differential privacy leaves: no dropout or lists, one kind of batches; every part learns."""
        if not self.dp.private:
            return self
        return replace(self, dropout=0.0, statistics="all", index_privacy="full", bottom_gradients="all")

    def kind(self, contributor: int) -> int:
        """The set of running statistics for batches of this contributor, whose conditions are alike."""
        return contributor if self.statistics == "contributor" else 0

    def updates(self, contributor: str, silo: str) -> bool:
        """Whether a critic step updates this silo's bottom critic."""
        return self.bottom_gradients == "all" or (self.bottom_gradients == "contributor" and silo == contributor)

    def shown(self, contributor: str, silo: str) -> str:
        """The contributor's name as a silo sees it: "" for another silo, unless its statistics depend on the name."""
        return contributor if silo == contributor or self.statistics == "contributor" else ""

    def _check(self) -> None:
        if self.batch < 2:
            raise ConfigError("Option 'batch' is at least 2, as batch normalisation needs two rows", self.batch)
        for name in ("critic_blocks", "generator_blocks"):
            if min(getattr(self, name)) < 0:
                raise ConfigError(
                    f"Option {name!r} is two numbers of blocks, neither negative",
                    getattr(self, name),
                    "Such as [2, 0].",
                )
        if self.dp.mechanism != "dpsgd":
            raise ConfigError("VT-GAN's own mechanism is not offered", self.dp.mechanism, "Give dp.epsilon.")
        if self.bottom_gradients == "none" and self.critic_blocks[1] and not self.dp.private:
            raise ConfigError(
                "Critic blocks in silos must be trained: bottom_gradients = 'none' is for critic_blocks [a, 0]",
                self.critic_blocks,
                "Set bottom_gradients = 'contributor', or 'all' as in the paper.",
            )
        if self.index_privacy == "decoys" and self.bottom_gradients == "all" and not self.dp.private:
            raise ConfigError(
                "Decoys have no gradient: a silo that receives gradients can tell decoys from the batch",
                self.bottom_gradients,
                "Set bottom_gradients = 'contributor' or 'none', or index_privacy = 'none'.",
            )


_PAPER = VTGANConfig(
    index_privacy="full", bottom_gradients="all", bottom_critics="free", statistics="all",
    contributors="independent", shuffle="round", encoders=ModeConfig(pool_rare=False, dependencies="ignore"),
)  # fmt: skip
_BALANCED = VTGANConfig(epochs=100, least_rounds=2000, rate=1e-3, betas=(0.0, 0.99), average=0.999)

PRESETS: Mapping[str, VTGANConfig] = {
    "paper": _PAPER,
    "fast": replace(_BALANCED, epochs=15, least_rounds=600, average=0.99, index_privacy="decoys"),
    "balanced": _BALANCED,
    "best": replace(_BALANCED, epochs=300, least_rounds=6000, generator_width=768),
}
_NOISED = replace(_BALANCED, batch=256, noise=64, width=64, generator_width=128)  # small critics learn through noise
PRIVATE: Mapping[str, VTGANConfig] = {  # with ``dp``
    "fast": replace(_NOISED, epochs=15, least_rounds=300, average=0.99, rate=3e-3),
    "balanced": replace(_NOISED, epochs=50, least_rounds=1000),
    "best": replace(_NOISED, epochs=100, least_rounds=2000, width=128, generator_width=256),
}
