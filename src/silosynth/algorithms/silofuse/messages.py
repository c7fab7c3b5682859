"""SiloFuse's options, presets and messages. Shapes: N training rows, L_i latents of silo i, G generated rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from silosynth.algorithms.silofuse import private
from silosynth.algorithms.silofuse.coder import CoderConfig
from silosynth.core.errors import ConfigError
from silosynth.core.messages import Message, Release, Struct
from silosynth.core.schema import Table
from silosynth.models.latent import LatentConfig
from silosynth.privacy.target import Target


@dataclass(frozen=True, slots=True)
class SiloFuseConfig(Struct):
    """All options."""

    coder: CoderConfig = CoderConfig()  # each silo's encoders and autoencoder, (E_i, D_i)
    latent: LatentConfig = LatentConfig()  # the coordinator's model of latents, G
    divide: bool = False  # divide the autoencoders' hidden widths among the silos (paper)
    least_rows: int = 4096  # latents drawn at least, however few rows are wanted: enough to match marginals by
    synthesis: Literal["shared", "partitioned"] = "shared"  # whether synthetic columns leave their silo
    dp: Target = Target()  # differential privacy: see `private`
    dp_mode: private.Mode = "upload"  # from whom it protects: the coordinator too, or outsiders only
    dp_training: private.Training = private.Training()

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        if self.dp.mechanism != "dpsgd":
            raise ConfigError("SiloFuse's paper has no mechanism of its own", self.dp.mechanism, "Give dp.epsilon.")


_PAPER = SiloFuseConfig(
    coder=CoderConfig(
        hidden=(1024, 32), latents_per_column=1, form="plain", spread=True, weight=1.0, fit_to_rows=False,
        steps=500_000, rate=1e-3, decay=0.0, schedule="constant", clip=0.0, held_out=0.0, calibrate=False,
    ),
    latent=LatentConfig(
        path="gaussian", network="plain", depth=8, dropout=0.01, fit_to_rows=False, steps=500_000, checks=100,
        batch=512, rate=1e-3, decay=0.0, schedule="constant", clip=0.0, held_out=0.0, average=0.0, sample_steps=25,
        precision="float32",
    ),
    divide=True,
)  # fmt: skip

PRESETS: Mapping[str, SiloFuseConfig] = {
    "paper": _PAPER,
    "fast": SiloFuseConfig(coder=CoderConfig(steps=800), latent=LatentConfig(width=320, steps=1600, sample_steps=12)),
    "balanced": SiloFuseConfig(),
    "best": SiloFuseConfig(
        coder=CoderConfig(steps=3000), latent=LatentConfig(width=768, steps=20_000, steps_per_rows=8.0, sample_steps=25)
    ),
}


# What is said, in talking order.


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Fit your encoders and make an autoencoder."""

    coder: CoderConfig


@dataclass(frozen=True, slots=True)
class Prepared(Message):
    """I have so many rows, and will have so many latents for each."""

    release: ClassVar[Release] = Release.COUNTS
    rows: int
    latents: int


@dataclass(frozen=True, slots=True)
class TrainAutoencoder(Message):
    """Train your autoencoder for part ``part`` of ``parts``."""

    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class AskLatents(Message):
    """Freeze your autoencoder and send your latents."""


@dataclass(frozen=True, slots=True)
class Latents(Message):
    """Latents (N, L_i) of the silo's training rows."""

    release: ClassVar[Release] = Release.ROWS
    z_NL: Tensor


@dataclass(frozen=True, slots=True)
class Synthesise(Message):
    """Decode the first ``rows`` of these generated latents (G, L_i); all of them tell how marginals are to be matched.

    ``draw`` names the random stream, ``share`` asks for the columns.
    """

    release: ClassVar[Release] = Release.SYNTHETIC
    z_GL: Tensor
    rows: int
    draw: str
    share: bool


@dataclass(frozen=True, slots=True)
class SyntheticColumns(Message):
    """Synthetic columns of a silo."""

    release: ClassVar[Release] = Release.SYNTHETIC
    table: Table
