"""The central baselines' options: those of its model, how columns are encoded, whether synthetic columns leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Struct
from silosynth.encoders.column import EncoderConfig
from silosynth.encoders.normalised import ModeConfig
from silosynth.models import autoencoder, conv_gan, ctgan, tabddpm

Synthesis = Literal["shared", "partitioned"]  # whether synthetic columns leave their silo


class CTGANOptions(ctgan.CTGANConfig):
    """Options of "ctgan"."""

    normalised: bool = False  # plain layers, normalised row by row, rather than residual blocks normalised by batch
    encoders: ModeConfig = ModeConfig()  # columns as categories, modes and special values
    synthesis: Synthesis = "shared"


class CTABGANOptions(conv_gan.CTABGANConfig):
    """Options of "ctabgan"."""

    encoders: ModeConfig = ModeConfig()  # columns as categories, modes and special values
    synthesis: Synthesis = "shared"


class TVAEOptions(autoencoder.TVAEConfig):
    """Options of "tvae"."""

    encoders: ModeConfig = ModeConfig()  # columns as categories, modes and special values
    synthesis: Synthesis = "shared"


class TabDDPMOptions(tabddpm.TabDDPMConfig):
    """Options of "tabddpm"."""

    encoders: EncoderConfig = EncoderConfig()  # columns as categories, normal scores and special values
    synthesis: Synthesis = "shared"


Options = CTGANOptions | CTABGANOptions | TVAEOptions | TabDDPMOptions


def checked(config: Struct) -> Options:
    """The options of a baseline.

    Raises:
        ProtocolError: they are something else's.
    """
    if not isinstance(config, Options):
        raise ProtocolError("A central baseline has options of its own", type(config).__name__)
    return config


_EVERY_LEVEL = ModeConfig(
    pool_rare=False, dependencies="ignore"
)  # as published: a level of one row identifies a person

PRESETS: Mapping[str, Mapping[str, Struct]] = {
    "ctgan": {
        "paper": CTGANOptions(encoders=_EVERY_LEVEL),
        "fast": CTGANOptions(
            epochs=4, least_rounds=600, batch=200, critic_steps=4, rate=5e-4, betas=(0.0, 0.99), average=0.99
        ),
        "balanced": CTGANOptions(epochs=100, rate=1e-3, betas=(0.0, 0.99), average=0.999),
        "best": CTGANOptions(rate=1e-3, betas=(0.0, 0.99), average=0.999),
    },
    "ctabgan": {
        "paper": CTABGANOptions(adversary="original", normalised=True, encoders=_EVERY_LEVEL),
        "fast": CTABGANOptions(epochs=3, least_rounds=600, batch=200, channels=16, rate=5e-4),
        "balanced": CTABGANOptions(epochs=60, least_rounds=2000, batch=200, channels=24, rate=5e-4),
        "best": CTABGANOptions(epochs=300, least_rounds=6000),
    },
    "tvae": {
        "paper": TVAEOptions(encoders=_EVERY_LEVEL),
        "fast": TVAEOptions(epochs=60, least_steps=1500),
        "balanced": TVAEOptions(),
        "best": TVAEOptions(encoder=(256, 256), decoder=(256, 256)),
    },
    "tabddpm": {
        "paper": TabDDPMOptions(
            steps=20_000,
            batch=4096,
            layers=(256, 1024, 1024, 256),
            encoders=EncoderConfig(pool_rare=False, dependencies="ignore"),
        ),
        "fast": TabDDPMOptions(
            steps=1500, batch=512, layers=(256, 256, 256, 256), average=0.1, diffusion_steps=200, sample_steps=50
        ),
        "balanced": TabDDPMOptions(steps=10_000, average=0.1, sample_steps=100),
        "best": TabDDPMOptions(steps=20_000, layers=(1024, 1024, 1024, 1024), average=0.1),
    },
}
