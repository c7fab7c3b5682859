"""Settings of VFLGAN, VFLGAN-base and VertiGAN by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from silosynth.algorithms.vflgan.messages import GANConfig, VertiGANConfig, VFLGANConfig
from silosynth.encoders.column import EncoderConfig
from silosynth.models.vflgan import Slopes
from silosynth.privacy.target import Target

_PAPER = VFLGANConfig(  # the public code's, for Adult
    epochs=75, noise=20, penalty=30.0, slopes="parts", select="frechet", numbers="standard",
    encoders=EncoderConfig(pool_rare=False),
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
_PRIVATE = replace(  # for ``dp``: batches so large and critics so small that noise does not drown them
    _FAST, epochs=100, least_rounds=300, batch=256, noise=32, critic=(32, 16), shared=(16,), rate=1e-3,
    start="shares", dp=Target(encoders=0.25),
)  # fmt: skip


def _vertigan(like: GANConfig, slopes: Slopes) -> VertiGANConfig:
    """The same for VertiGAN."""
    common = {name: getattr(like, name) for name in GANConfig.__dataclass_fields__}
    return VertiGANConfig(**common | {"slopes": slopes})


VFLGAN: Mapping[str, VFLGANConfig] = {
    "paper": _PAPER, "fast": _FAST, "balanced": _BALANCED, "best": _BEST, "private": _PRIVATE,
}  # fmt: skip
BASE: Mapping[str, VFLGANConfig] = {name: replace(config, local=False) for name, config in VFLGAN.items()}
VERTIGAN: Mapping[str, VertiGANConfig] = {  # one penalty, on the whole critic (4), but where noise makes it useless
    name: _vertigan(config, config.slopes if name == "private" else "critic") for name, config in VFLGAN.items()
}
