"""An unconditional Wasserstein GAN with gradient penalty for rows (Gulrajani et al. 2017, Algorithm 1).

Generator and critic are linear layers with leaky ReLU between, without normalisation. A row is its normal scores as
they are and its levels one-hot; generated levels are made by the Gumbel-softmax, sharpened to one-hot on the way
forward where the options say so. Sizes follow the central comparison of VFLGAN. Where a column is on a special value
its score is noise.

Shapes: N training rows, B of a batch, C columns with levels, K levels of all of them, S scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from silosynth.core.messages import Struct, check_positive
from silosynth.core.streams import Streams
from silosynth.models.coded import Coded, check_range, chunks, joined, span, trainee
from silosynth.models.gan import Activation, Shape, critic_loss, make_critic, slope_penalty
from silosynth.models.training import batches


@dataclass(frozen=True, slots=True)
class WGANConfig(Struct):
    """Sizes and training; the defaults are VFLGAN's public settings for Adult."""

    epochs: int = 300  # of max(1, rows // batch) rounds
    least_rounds: int = 0  # rounds at least, however few the rows
    batch: int = 64
    critic_steps: int = 5  # of a round, before the generator's one
    generator: tuple[int, ...] = (32, 64, 128)  # hidden widths
    critic: tuple[int, ...] = (256, 128)  # hidden widths
    noise: int = 10
    rate: float = 5e-4  # Adam's
    betas: tuple[float, float] = (0.5, 0.9)
    decay: float = 0.0  # weight decay
    penalty: float = 10.0  # weight of the gradient penalty
    tau: float = 1.0  # temperature of the Gumbel-softmax
    hard: bool = True  # the critic sees one level, gradients flow as if it had seen the softmax

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_positive(self, "epochs", "batch", "critic_steps", "generator", "critic", "noise", "rate", "tau")
        check_range(self, "least_rounds", "decay", "penalty")
        check_range(self, "betas", below=1.0)


class WassersteinGAN:
    """Generator and critic of a table."""

    def __init__(self, coded: Coded, config: WGANConfig, streams: Streams, device: torch.device) -> None:
        self.coded, self.config, self.streams, self.device = coded, config, streams, device
        self.shape, weights = coded.shape, streams.child("weights").torch()
        self.activation = Activation(Shape(coded.shape.widths, 0)).to(device)
        generator = make_critic(config.noise, config.generator, self.shape.size, 0.0, weights)
        critic = make_critic(self.shape.size, config.critic, 1, 0.0, weights)
        self.generator = trainee(generator.to(device), config)
        self.critic = trainee(critic.to(device), config)

    def train(self, part: int, parts: int) -> None:
        """Train for one of ``parts`` equal parts of all rounds."""
        config, draw = self.config, self.streams.child("part", part).torch(self.device)
        order = batches(len(self.coded), config.batch, draw)
        rounds = max(config.epochs * max(1, len(self.coded) // config.batch), config.least_rounds)
        for _ in range(span(rounds, part, parts)):
            for _ in range(config.critic_steps):
                self._critic_step(next(order), draw)
            self._generator_step(draw)

    @torch.no_grad()
    def sample(self, n: int, streams: Streams) -> tuple[Tensor, Tensor]:
        """Rows (n, C) and (n, S)."""
        draw = streams.torch(self.device)
        drawn = []
        for size in chunks(n, self.shape.size):
            out = self._outputs(size, draw)
            levels, _ = self.activation.draw(out[:, : self.shape.levels], draw)
            drawn.append((levels, out[:, self.shape.levels :]))
        return joined(drawn)

    def state(self, training: bool) -> dict[str, Any]:
        """Both networks, or the generator alone."""
        return {
            "generator": self.generator.state(training),
            "critic": self.critic.state(training) if training else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.generator.restore(state["generator"])
        if state["critic"] is not None:
            self.critic.restore(state["critic"])

    def _critic_step(self, rows_B: Tensor, draw: torch.Generator) -> None:
        real = self.shape.vectors(*self.coded.batch(rows_B, draw))
        with torch.no_grad():
            fake = self._rows(len(real), draw)
        critic = self.critic.network
        mix = torch.rand(len(real), 1, generator=draw, device=self.device)
        of_fake, of_real = critic(torch.cat([fake, real]), []).chunk(2)
        steep = slope_penalty(critic.slope(fake + mix * (real - fake), []))
        loss = critic_loss(of_fake, of_real) + self.config.penalty * steep
        self.critic.clear()
        loss.backward()
        self.critic.step()

    def _generator_step(self, draw: torch.Generator) -> None:
        fake = self._rows(self.config.batch, draw)
        self.generator.clear()
        loss = -self.critic.network(fake, []).mean()
        loss.backward(inputs=list(self.generator.network.parameters()))
        self.generator.step()

    def _outputs(self, rows: int, draw: torch.Generator) -> Tensor:
        noise = torch.randn(rows, self.config.noise, generator=draw, device=self.device)
        out: Tensor = self.generator.network(noise, [])
        return out

    def _rows(self, rows: int, draw: torch.Generator) -> Tensor:
        """Differentiable rows (B, K + S)."""
        out, levels = self._outputs(rows, draw), self.shape.levels
        soft = self.activation(out[:, :levels], self.config.tau, draw)
        return torch.cat([self._sharpened(soft) if self.config.hard else soft, out[:, levels:]], dim=1)

    def _sharpened(self, soft_BK: Tensor) -> Tensor:
        """One-hot where ``soft_BK`` is largest in its column; its gradient is that of ``soft_BK``."""
        chosen, _ = self.activation.draw(soft_BK.detach(), None)
        hard = self.activation.shape.vectors(chosen, soft_BK[:, :0].detach())
        return hard + soft_BK - soft_BK.detach()
