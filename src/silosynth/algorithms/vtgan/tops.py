"""The coordinator's networks of VT-GAN: G^t, D^t and the conditional vector filter D^s, with their losses.

Shapes: B rows of a batch, P levels that conditions can name, F outputs of G^t, W features of all silos' bottom critics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from silosynth.core.streams import Streams
from silosynth.models.gan import (
    critic_loss,
    frozen,
    make_critic,
    make_generator,
    one_hot,
    orthonormalise,
    slope_penalty,
)
from silosynth.models.training import MovingAverage, Trainee

_MOST = 2**24  # numbers held at once while sampling: 64 MB, also with 10 000 levels
WIDEST_FILTER = 256  # outputs of D^s, at most; it has as many as there are levels where these are fewer


@dataclass(frozen=True)
class TopsConfig:
    """Sizes and settings of the top parts."""

    noise: int
    conditions: int  # P
    features: list[int]  # W_i of each silo
    slices: list[int]  # F_i of each silo
    critic: tuple[int, ...]  # widths of D^t's blocks
    generator: tuple[int, ...]  # widths of G^t's blocks
    kinds: int  # of batches, with running statistics of their own
    orthonormal: bool  # whether D^s keeps distances, as bottom critics then do
    rate: float
    betas: tuple[float, float]
    average: float
    decay: float
    penalty: float
    dropout: float


class Tops:
    """G^t, D^t and D^s, and one step of training for each side."""

    def __init__(self, config: TopsConfig, streams: Streams, device: torch.device) -> None:
        self.config, self.device = config, device
        passed = min(config.conditions, WIDEST_FILTER)
        generator = make_generator(
            config.noise + config.conditions, config.generator, sum(config.slices), streams.child("generator").torch(),
            config.kinds,
        )  # fmt: skip
        draw = streams.child("critic").torch()
        self.critic = make_critic(sum(config.features) + passed, config.critic, 1, config.dropout, draw).to(device)
        self.filter = make_critic(config.conditions, (), passed, 0.0, draw).to(device) if passed else None
        if self.filter is not None and config.orthonormal:
            orthonormalise(self.filter, exactly=True)
        parts = nn.ModuleList([self.critic] if self.filter is None else [self.critic, self.filter])
        rate, betas, decay = config.rate, config.betas, config.decay
        self.of_critic = Trainee(parts, rate=rate, betas=betas, decay=decay)
        self.of_generator = Trainee(generator.to(device), rate=rate, betas=betas, decay=decay)
        self.average = MovingAverage(generator, config.average)

    def conditional(self, position_B: Tensor) -> Tensor:
        """CV_p: conditional vectors (B, P)."""
        return one_hot(position_B.to(self.device), self.config.conditions)

    def generate(self, cv_BP: Tensor, draw: torch.Generator, kind: int) -> Tensor:
        """G^t(Z, CV_p): (B, F), for a batch of this kind."""
        z_BZ = torch.randn(len(cv_BP), self.config.noise, generator=draw, device=self.device)
        out: Tensor = self.of_generator.network(torch.cat([z_BZ, cv_BP], dim=1), kind)
        return out

    def split(self, slice_BF: Tensor) -> list[Tensor]:
        """Split by P_r: each silo's slice."""
        return [part.contiguous() for part in slice_BF.cpu().split(self.config.slices, dim=1)]

    def features(self, h_BW: Tensor) -> list[Tensor]:
        """Each silo's own among the features of all."""
        return [part.contiguous() for part in h_BW.cpu().split(self.config.features, dim=1)]

    def critic_loss(self, fake_BW: Tensor, real_BW: Tensor, cv_BP: Tensor, draw: torch.Generator) -> Tensor:
        """Loss of the critic (line 16): both sides judged, and the penalty between their concatenated inputs.

        Real rows stand beside *permuted* conditional vectors, as in CTGAN: no fake row meets the real one of its own
        condition.
        """
        order = torch.randperm(len(cv_BP), generator=draw, device=self.device)
        mix_B1 = torch.rand(len(cv_BP), 1, generator=draw, device=self.device)
        fake = self._inputs(fake_BW, cv_BP)
        real = self._inputs(real_BW[order], cv_BP[order])
        masks = self.critic.masks(2 * len(cv_BP), draw)
        judged = self.critic(torch.cat([fake, real]), masks)
        masks = self.critic.masks(len(cv_BP), draw)
        penalty = slope_penalty(self.critic.slope(fake + mix_B1 * (real - fake), masks))
        loss: Tensor = critic_loss(*judged.chunk(2)) + self.config.penalty * penalty
        return loss

    def descend_critic(
        self, fake_BW: Tensor, real_BW: Tensor, cv_BP: Tensor, draw: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Update D^t and D^s; gradients (B, W) in the features."""
        fake_BW, real_BW = (x.to(self.device).requires_grad_() for x in (fake_BW, real_BW))
        self.of_critic.clear()
        self.critic_loss(fake_BW, real_BW, cv_BP, draw).backward()
        self.of_critic.step()
        if self.filter is not None and self.config.orthonormal:
            orthonormalise(self.filter)
        assert fake_BW.grad is not None and real_BW.grad is not None
        return fake_BW.grad, real_BW.grad

    def generator_loss(self, fake_BW: Tensor, cv_BP: Tensor, draw: torch.Generator) -> Tensor:
        """Loss of the generator (line 22), without the cross-entropy of the conditions."""
        loss: Tensor = -self.critic(self._inputs(fake_BW, cv_BP), self.critic.masks(len(cv_BP), draw)).mean()
        return loss

    def gradient_of_generator_loss(self, fake_BW: Tensor, cv_BP: Tensor, draw: torch.Generator) -> Tensor:
        """Gradient (B, W) of the generator's loss in the features of made rows."""
        fake_BW = fake_BW.to(self.device).requires_grad_()
        with frozen(self.of_critic.network):
            self.generator_loss(fake_BW, cv_BP, draw).backward()
        assert fake_BW.grad is not None
        return fake_BW.grad

    def descend_generator(self, slice_BF: Tensor, gradient_BF: Tensor) -> None:
        """Update G^t by the gradient in what it gave."""
        self.of_generator.clear()
        slice_BF.backward(gradient_BF.to(self.device))
        self.of_generator.step()
        self.average.take()

    @torch.no_grad()
    def sample(self, position_G: Tensor, draw: torch.Generator, kind: int) -> Tensor:
        """What G^t gives (G, F), by its running statistics for batches of this kind."""
        self.of_generator.network.eval()
        most = max(64, _MOST // (self.config.noise + self.config.conditions))
        parts = position_G.split(most)  # one, of no rows, where there are none
        with self.average.applied():
            return torch.cat([self.generate(self.conditional(part), draw, kind) for part in parts])

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue; to sample, G^t alone, averaged where that is wanted."""
        if not training:
            return {"generator": {"network": self.average.weights, "moments": None}, "average": None, "critic": None}
        return {
            "generator": self.of_generator.state(training),
            "average": self.average.state(),
            "critic": self.of_critic.state(training),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.of_generator.restore(state["generator"])
        self.average.restore(state["average"])
        if state["critic"] is not None:
            self.of_critic.restore(state["critic"])

    def _inputs(self, h_BW: Tensor, cv_BP: Tensor) -> Tensor:
        """Features of all silos beside the filtered conditional vectors (lines 7 and 14)."""
        return h_BW if self.filter is None else torch.cat([h_BW, self.filter(cv_BP, ())], dim=1)
