"""VFLGAN and VertiGAN with differential privacy: what is charged, and how much noise each critic step takes.

Charging, encoders and row counts: see `silosynth.privacy.accounting`. The steps themselves, one block of parameters for
each silo's critic and one for D_s, are those of `silosynth.privacy.dpsgd`: see `networks`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from silosynth.algorithms.vflgan.options import GANConfig, VFLGANConfig
from silosynth.core.messages import Struct
from silosynth.privacy.accounting import Charge, joint_steps
from silosynth.privacy.dpsgd import block_clips
from silosynth.privacy.events import Event, unsound

STEPS = "gradients of critics, a silo's and the shared one's together"  # what is charged
UNSOUND = (unsound("gradients of the first layers of local critics, as in the paper"),)


class ChargedSteps(Struct):
    """What was charged: critic steps, all silos' together.

    Attributes:
        steps: maximum number of critic steps.
        rate: the probability with which a row takes part in a step.
        expected: expected number of rows of a batch.
        blocks: blocks of parameters that see real rows, over all silos and the coordinator.
        noise: noise multiplier.
    """

    steps: int
    rate: float
    expected: float
    blocks: int
    noise: float

    def scales(self, clip: float) -> tuple[float, float, float]:
        """A block's clip, where ``clip`` is that of all blocks; the noise's deviation; and the expected batch."""
        return block_clips(clip, self.blocks)[0], self.noise * clip, self.expected


def solve(config: GANConfig, rows: int, learnt: Sequence[Event]) -> tuple[Event, ...]:
    """The event of all critic steps."""
    rate, steps = max(2, min(config.batch, rows)) / rows, config.critic_steps * config.rounds(rows)
    return joint_steps(STEPS, config.dp, rate, steps, learnt)


def charged_steps(charge: Charge, config: GANConfig, silos: int) -> ChargedSteps:
    """What both sides train by once it was charged."""
    (event,) = charge.events
    blocks = silos + isinstance(config, VFLGANConfig)  # VertiGAN has no critic at the coordinator
    return ChargedSteps(event.times, event.rate, float(round(event.rate * charge.rows)), blocks, event.noise)


def noise_as_in_paper(gradients: Sequence[Tensor], clip: float, noise: float, draw: torch.Generator) -> None:
    """Equations (20) and (21), in place: clip and noise the gradient of the batch. It protects nobody."""
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for gradient in gradients:
        normal = torch.randn(gradient.shape, generator=draw, device=gradient.device)
        gradient.div_(torch.clamp(norm / clip, min=1.0)).add_(normal, alpha=2 * clip * noise)
