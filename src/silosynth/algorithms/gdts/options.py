"""Options and presets of GDTS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Positive, Size, Struct
from silosynth.encoders.column import EncoderConfig
from silosynth.encoders.normalised import ModeConfig
from silosynth.models import ctgan, latent_table


class GANOptions(ctgan.CTGANConfig):
    """The paper's GAN, and how columns are encoded for it."""

    encoders: ModeConfig = ModeConfig(dependencies="ignore")


class DiffusionOptions(latent_table.LatentTableConfig):
    """Ours: SiloFuse's autoencoder and flow over all columns, and how columns are encoded for them."""

    encoders: EncoderConfig = EncoderConfig(dependencies="ignore")


class GDTSConfig(Struct):
    """All options.

    Raises:
        ConfigError: an option is out of its range, or two do not go together; names them.
    """

    mode: Literal["fl", "md"] = "fl"  # average the silos' models, or train one generator against a critic in every silo
    generator: Literal["ctgan", "diffusion"] = "ctgan"  # "diffusion" in mode "fl" only
    rounds: Positive[int] = 100  # mode "fl": parts into which the silos' training is divided
    ctgan: GANOptions = GANOptions()
    diffusion: DiffusionOptions = DiffusionOptions()
    weights: Literal["paper", "sharp", "rows", "equal"] = "sharp"  # of silos in averages: see `networks.silo_weights`
    epsilon: Positive[float] = 1.0  # of the noise on each column's counts and on the row count; inf for none
    delta: float = 1e-6  # probability that a category held by one row is named; 0 names all (paper)
    numbers: Literal["exact", "noised"] = "exact"  # summaries of numbers: without noise (paper), or noised histograms
    bins: Size[int] = 64  # of a noised histogram
    participation: Positive[float] = 1.0  # mode "fl": share of the silos asked in a round, drawn anew each time
    absence: float = 0.0  # mode "fl": simulated probability that an asked silo is away for a round
    secure: bool = False  # mode "fl": the coordinator sees only sums of models
    swap_every: Positive[int] = 1  # mode "md": epochs after which critics change places

    def _check(self) -> None:
        if self.participation > 1 or not 0 <= self.absence < 1:
            shares = self.participation, self.absence
            raise ConfigError("Options 'participation' and 'absence' are shares: up to 1, and below 1", shares)
        if not 0 <= self.delta < 0.5:
            raise ConfigError("Option 'delta' is at least 0 and below 1/2", self.delta)
        if self.ctgan.average:
            raise ConfigError("GDTS averages silos' models, not steps", self.ctgan.average, "Set ctgan.average = 0.")
        if self.numbers == "noised" and math.isinf(self.epsilon):
            raise ConfigError("Noised histograms need a finite epsilon", self.epsilon, "Set epsilon = 1.0.")
        if self.model.encoders.dependencies != "ignore":
            raise ConfigError(
                "Silos that hold different rows do not tell each other which columns determine others",
                self.model.encoders.dependencies,
                "Set encoders.dependencies = 'ignore'.",
            )
        if self.generator == "diffusion" and self.rounds < latent_table.STAGES:
            raise ConfigError(f"Generator 'diffusion' is trained in {latent_table.STAGES} rounds or more", self.rounds)
        if self.mode == "md":
            self._check_md()

    def _check_md(self) -> None:
        if self.generator != "ctgan":
            raise ConfigError("Mode 'md' trains a GAN", self.generator, "Set generator = 'ctgan', or mode = 'fl'.")
        if self.secure or self.participation < 1 or self.absence:
            rule = "Options 'secure', 'participation' and 'absence' are for models that are averaged"
            raise ConfigError(rule, self.mode, "Set mode = 'fl'.")

    @property
    def model(self) -> GANOptions | DiffusionOptions:
        """Options of the generator that is trained."""
        return self.ctgan if self.generator == "ctgan" else self.diffusion


_PAPER = GDTSConfig(
    rounds=500, weights="paper", delta=0.0,
    ctgan=GANOptions(epochs=500, critic_steps=1, pac=10, encoders=ModeConfig(pool_rare=False, dependencies="ignore")),
)  # fmt: skip


def _shallow(coder: int, flow: int) -> DiffusionOptions:
    """Networks of fewer blocks than "best" has, which silos train in minutes on one core."""
    usual = DiffusionOptions()
    return replace(usual, steps=coder, latent=replace(usual.latent, depth=4, steps=flow))


PRESETS: Mapping[str, GDTSConfig] = {
    "paper": _PAPER,
    "fast": GDTSConfig(
        generator="diffusion", rounds=20, diffusion=_shallow(coder=300, flow=600),
        ctgan=GANOptions(epochs=10, least_rounds=300, rate=5e-4, rake=True),
    ),
    "balanced": GDTSConfig(
        generator="diffusion", rounds=60, diffusion=_shallow(coder=800, flow=2000),
        ctgan=GANOptions(epochs=50, least_rounds=1000, rate=5e-4, rake=True),
    ),
    "best": GDTSConfig(generator="diffusion", rounds=60),
}  # fmt: skip
