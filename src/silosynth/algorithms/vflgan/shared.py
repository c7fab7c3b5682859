"""The coordinator's critic D_s, which judges the features of all silos together.

With differential privacy its step is one of DP-SGD in a block of its own: what a real row adds to its loss is -D_s and
its penalty, between its features and those of a made row that is drawn for it. Slopes that silos get are not clipped
here: each silo clips what they come to in its own weights.

Shapes: B made rows, R real rows of a batch, W features of all silos.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from silosynth.algorithms.vflgan.local import Budget
from silosynth.algorithms.vflgan.messages import VFLGANConfig
from silosynth.core.streams import Draw, Streams, integers, uniforms
from silosynth.models.gan import make_critic
from silosynth.models.training import trainee
from silosynth.models.vflgan import SharedMadeLoss, SharedRealLoss
from silosynth.privacy.dpsgd import set_gradient


class Shared:
    """D_s and its optimiser."""

    def __init__(
        self, silos: int, config: VFLGANConfig, budget: Budget | None, streams: Streams, device: torch.device
    ) -> None:
        self.silos, self.config, self.budget, self.device = silos, config, budget, device
        self.streams = streams
        critic = make_critic(silos * config.critic[-1], config.shared, 1, 0.0, streams.child("weights").torch())
        self.critic = trainee(critic.to(device), config)
        self.real_loss = SharedRealLoss(self.critic.network, config.penalty)
        self.made_loss = SharedMadeLoss(self.critic.network)

    def descend(self, step: int, fake_BW: Tensor, real_RW: Tensor) -> tuple[Tensor, Tensor]:
        """Update D_s (equations (13) and (16)); λ1 times its slopes before that, down on made and up on real rows."""
        fake_BW, real_RW = fake_BW.to(self.device), real_RW.to(self.device)
        critic, stream = self.critic.network, self.streams.child("critic", step)
        draw = stream.torch(self.device) if self.budget is None else stream.noise()  # what real rows draw is secret
        with torch.no_grad():
            slopes = critic.slope(fake_BW, ()), -critic.slope(real_RW, ())
        between = self._between(fake_BW, real_RW, draw)
        self.critic.clear()
        if self.budget is None:
            (self.made_loss(fake_BW).mean() + self.real_loss(real_RW, between).mean()).backward()
        else:
            rng, scales = self.streams.child("privacy", step).noise(), self.budget.scales(self.config.dp.clip)
            set_gradient(self.real_loss, (real_RW, between), self.made_loss, (fake_BW,), *scales, rng)
        self.critic.step()
        return self.config.lambda1 * slopes[0], self.config.lambda1 * slopes[1]

    @torch.no_grad()
    def slopes(self, fake_BW: Tensor) -> Tensor:
        """λ2 times the slopes (B, W) of the generators' loss in features of made rows (equation (17))."""
        return -self.config.lambda2 * self.critic.network.slope(fake_BW.to(self.device), ())

    def split(self, all_BW: Tensor) -> list[Tensor]:
        """Each silo's own."""
        return [part.contiguous() for part in all_BW.cpu().chunk(self.silos, dim=1)]

    def _between(self, fake_BW: Tensor, real_RW: Tensor, draw: Draw) -> Tensor:
        """Points between real rows and made ones: each with its own, or, with privacy, with one drawn for it."""
        beside = fake_BW[: len(real_RW)]
        if self.budget is not None:
            beside = fake_BW[integers(draw, len(fake_BW), len(real_RW), self.device)]
        mix = uniforms(draw, len(real_RW), 1, device=self.device)
        return beside + mix * (real_RW - beside)

    def state(self) -> dict[str, Any]:
        """All that is needed to continue."""
        return self.critic.state(training=True)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.critic.restore(state)
