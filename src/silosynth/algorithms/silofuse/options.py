"""Options and presets of SiloFuse, of joint latents, and of the baselines E2E and E2EDistr."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from silosynth.core.errors import ConfigError
from silosynth.core.messages import AtMost, Fraction, NonNegative, Positive, Size, Struct
from silosynth.encoders.column import EncoderConfig
from silosynth.models.latent import LatentConfig
from silosynth.privacy.events import Target


class CoderConfig(Struct):
    """A silo's encoders and autoencoder."""

    encoders: EncoderConfig = EncoderConfig()
    numbers: Literal["quantile", "standard"] = "quantile"  # normal scores, or standardised (paper); without dp
    hidden: Size[tuple[int, ...]] = (128,)  # widths of the encoder's hidden layers; the decoder mirrors them
    latents_per_column: Size[int] = 4  # s_i / d_i (paper: 1)
    form: Literal["plain", "vae", "noisy", "clipped"] = "noisy"  # what lies between encoder and decoder
    sigma: NonNegative[float] = 0.2  # noise through which a "noisy" decoder reads unit-variance latents
    kl: NonNegative[float] = 0.01  # weight of the divergence of a "vae"
    spread: bool = False  # numeric heads give mean and variance (paper), or the mean
    weight: NonNegative[float] = 5.0  # of squared score errors against cross-entropy
    fit_to_rows: bool = True  # small tables get fewer steps and smaller batches: see `sized`
    steps: Positive[int] = 1000  # iterations
    batch: Size[int] = 256
    rate: Positive[float] = 8e-3
    decay: NonNegative[float] = 1e-4
    schedule: Literal["one-cycle", "constant"] = "one-cycle"  # of the learning rate
    clip: NonNegative[float] = 5.0  # gradient norm; 0 for no clipping
    held_out: Fraction[float] = 0.1  # share of rows (at most 2 000) that choose among weights; 0: the last ones
    sample_heads: bool = True  # decode by drawing from the heads; False takes their modes
    calibrate: bool = True  # match the decoded marginals to the silo's own

    def sized(self, rows: int) -> CoderConfig:
        """The config for a table of ``rows`` rows."""
        if not self.fit_to_rows:
            return self
        return replace(self, steps=min(self.steps, max(400, rows // 10)), batch=min(self.batch, max(32, rows // 8)))


class PrivateTraining(Struct):
    """How networks are trained under differential privacy, instead of the options for training without."""

    autoencoders: float = 0.5  # share of epsilon that is spent when autoencoders are trained, encoders included
    hidden: Size[tuple[int, ...]] = (64, 64)  # widths of the autoencoders' hidden layers
    latents_per_column: Size[int] = 1
    coder_steps: Positive[int] = 600  # of each autoencoder
    batch: Size[int] = 512  # expected number of rows that a step samples; fewer of small tables
    rate: Positive[float] = 2e-3
    width: Size[int] = 128  # of the model of latents, in "release"
    depth: Size[int] = 2
    latent_steps: Positive[int] = 1500

    def _check(self) -> None:
        if not 0 < self.autoencoders < 1:
            raise ConfigError("Option 'dp_training.autoencoders' is a share, above 0 and below 1", self.autoencoders)


class SiloFuseConfig(Struct):
    """All options."""

    coder: CoderConfig = CoderConfig()  # each silo's encoders and autoencoder, (E_i, D_i)
    latent: LatentConfig = LatentConfig()  # the coordinator's model of latents, G
    divide: bool = False  # divide the autoencoders' hidden widths among the silos (paper)
    least_rows: AtMost[int] = 4096  # latents drawn at least, however few rows are wanted: enough to match marginals by
    synthesis: Literal["shared", "partitioned"] = "shared"  # whether synthetic columns leave their silo
    own_rows: bool = False  # train encoders and autoencoders on rows too that no other silo has
    dp: Target = Target()  # differential privacy: see `private`
    dp_mode: Literal["upload", "release"] = "upload"  # from whom it protects: the coordinator too, or outsiders only
    dp_training: PrivateTraining = PrivateTraining()

    def _check(self) -> None:
        if self.dp.mechanism != "dpsgd":
            raise ConfigError("SiloFuse's paper has no mechanism of its own", self.dp.mechanism, "Give dp.epsilon.")
        if self.own_rows and self.dp.private:
            raise ConfigError(
                "With dp a silo trains on linked rows alone: what is charged is counted in these", "own_rows = true",
                "Leave out one of own_rows and dp.",
            )  # fmt: skip

    @property
    def releases(self) -> bool:
        """Whether differential privacy protects what is released only, so that the model of latents needs DP-SGD."""
        return self.dp.private and self.dp_mode == "release"

    @property
    def guided(self) -> bool:
        """Whether latents can be led to conditions: those of a flow, decoded by drawing levels and nothing else."""
        return self.latent.path == "flow" and self.coder.sample_heads and not self.coder.spread

    def coder_of(self, silos: int) -> CoderConfig:
        """A silo's autoencoder: hidden widths are divided among ``silos`` where the options say so."""
        if self.dp.private:
            training = self.dp_training
            return replace(
                self.coder, numbers="quantile", form="clipped", spread=False, fit_to_rows=False, held_out=0.0, clip=0.0,
                decay=0.0, hidden=training.hidden, latents_per_column=training.latents_per_column,
                steps=training.coder_steps, rate=training.rate,
            )  # fmt: skip
        share = silos if self.divide else 1
        return replace(self.coder, hidden=tuple(max(1, width // share) for width in self.coder.hidden))

    def generator(self) -> LatentConfig:
        """The model of latents: with ``dp_training`` where it is trained by DP-SGD."""
        if not self.releases:
            return self.latent
        training = self.dp_training
        return replace(
            self.latent, fit_to_rows=False, held_out=0.0, clip=0.0, dropout=0.0, wide_rate=0.0, accumulate=1,
            width=training.width, depth=training.depth, steps=training.latent_steps, rate=training.rate,
        )  # fmt: skip


PRESETS: Mapping[str, SiloFuseConfig] = {
    "paper": SiloFuseConfig(
        coder=CoderConfig(
            encoders=EncoderConfig(pool_rare=False, dependencies="ignore"), numbers="standard", hidden=(1024, 32),
            latents_per_column=1, form="plain", spread=True, weight=1.0, fit_to_rows=False, batch=512,
            steps=500_000, rate=1e-3, decay=0.0, schedule="constant", clip=0.0, held_out=0.0, calibrate=False,
        ),
        latent=LatentConfig(
            path="gaussian", network="plain", width=512, depth=8, dropout=0.01, fit_to_rows=False, steps=500_000,
            checks=100, batch=512, rate=1e-3, decay=0.0, schedule="constant", clip=0.0, held_out=0.0, average=0.0,
            sample_steps=25, precision="float32", wide_rate=0.0, accumulate=1,
        ),
        divide=True,
    ),
    "fast": SiloFuseConfig(
        coder=CoderConfig(sigma=0.25, steps=400),
        latent=LatentConfig(
            depth=5, steps=1600, checks=10, steps_per_rows=3.5, accumulate=2, wide_rate=0.0, time_mean=-0.2, left=0.25,
            sample_steps=8,
        ),
    ),
    "balanced": SiloFuseConfig(),
    "best": SiloFuseConfig(
        coder=CoderConfig(steps=1500),
        latent=LatentConfig(width=384, steps=9400, steps_per_rows=4.0, among=4096, sample_steps=15),
    ),
}  # fmt: skip


def _before(config: SiloFuseConfig, **latent: Any) -> SiloFuseConfig:
    """With wide autoencoders of few latents, read through little noise, as other trainings were tuned (0085)."""
    coder = replace(config.coder, hidden=(256, 256), latents_per_column=2, sigma=0.15, batch=512)
    flow = replace(config.latent, left=0.15, among=4096, time_mean=-0.5, accumulate=1, **latent)
    return replace(config, coder=coder, latent=flow)


_BEFORE: Mapping[str, SiloFuseConfig] = {
    "fast": _before(PRESETS["fast"], depth=4, steps=1500, steps_per_rows=3.3, checks=25),
    "balanced": _before(PRESETS["balanced"], steps=4700, steps_per_rows=2.0),
    "best": _before(PRESETS["best"]),
}
PRIVATE: Mapping[str, SiloFuseConfig] = {  # with ``dp``: the others train as long as "balanced"
    **_BEFORE,
    "fast": replace(_BEFORE["fast"], dp_training=PrivateTraining(coder_steps=300, latent_steps=600, batch=256)),
}


def _end_to_end(config: SiloFuseConfig, width: int, depth: int, steps: int) -> SiloFuseConfig:
    """The paper's Gaussian diffusion on plain latents, with the autoencoders' widths of ``config``."""
    coder = replace(config.coder, form="plain", calibrate=False, fit_to_rows=False, rate=1e-3)
    sample_steps = config.latent.sample_steps
    sample_steps = 5 * sample_steps // 3 if config.latent.path == "flow" else sample_steps  # eq. (1) needs more
    latent = replace(
        config.latent, path="gaussian", target="latent", fit_to_rows=False, average=0.0, batch=512, rate=1e-3,
        width=width, depth=depth, steps=steps, sample_steps=sample_steps, wide_rate=0.0, accumulate=1,
    )  # fmt: skip
    return replace(config, coder=coder, latent=latent)


END_TO_END_PRESETS: Mapping[str, SiloFuseConfig] = {
    name: _end_to_end(config, width, depth, steps)
    for name, config, width, depth, steps in (
        ("paper", PRESETS["paper"], 512, 8, 500_000), ("fast", _BEFORE["fast"], 320, 4, 1600),
        ("balanced", _BEFORE["balanced"], 512, 4, 8000), ("best", _BEFORE["best"], 768, 4, 20_000),
    )
}  # fmt: skip
JOINT_PRESETS: Mapping[str, SiloFuseConfig] = {  # the coordinator adds the noise; all silos' latents take longer
    name: replace(_BEFORE[name], coder=replace(_BEFORE[name].coder, form="plain", steps=steps, rate=4e-3))
    for name, steps in (("fast", 800), ("balanced", 1500), ("best", 3000))
}
