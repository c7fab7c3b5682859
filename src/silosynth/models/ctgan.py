"""A conditional tabular GAN, linear layers in one place (CTGAN, Xu et al. 2019; GAN(linear) of VT-GAN, section 4.1).

====================================  ==========================================
CTGAN, section 4                      here
====================================  ==========================================
4.3 conditional vector, by sampling   `models.gan.Conditions`
4.3 generator's loss                  `generator_gradient`, `set_generator_gradient`
4.4 network structure, Gumbel, pac    `models.gan`, `_packed`
training: WGAN with gradient penalty  `critic_step`
====================================  ==========================================

What the critic sees is a row beside its conditional vector, and the penalty acts on all of that. Real rows belong to
the conditional vectors in another order than generated ones, as in VT-GAN, whose contributor permutes them. A
generated row meets its condition through the generator's loss alone; it is not forced to.

Shapes: N training rows, B of a batch, C columns with levels, K levels, S scores, P conditional positions, W features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Fraction, NonNegative, Positive, Size, Struct
from silosynth.core.streams import Streams
from silosynth.models import gan
from silosynth.models.encoded import EncodedRows, RowShape, span
from silosynth.models.marginals import PILOT, Raking, rake


class CTGANConfig(Struct):
    """Sizes and training; the defaults are VT-GAN's (section 4.1 and its public settings)."""

    epochs: Positive[int] = 300  # of max(1, rows // batch) rounds
    least_rounds: NonNegative[int] = 0  # rounds at least, however few the rows
    batch: Size[int] = 500
    critic_steps: Positive[int] = 5  # of a round, before the generator's one (VT-GAN: 5, CTGAN: 1)
    generator: Size[tuple[int, ...]] = (256, 256)  # widths of its residual blocks
    critic: Size[tuple[int, ...]] = (256, 256)  # widths of its hidden blocks
    noise: Size[int] = 128
    rate: Positive[float] = 2e-4  # Adam's
    betas: Fraction[tuple[float, float]] = (0.5, 0.9)
    average: Fraction[float] = 0.0  # of the generator's weights, kept at each step of a moving average; 0: none
    decay: NonNegative[float] = 1e-6  # weight decay
    penalty: NonNegative[float] = 10.0  # weight of the gradient penalty
    tau: Positive[float] = 0.2  # temperature of the Gumbel-softmax
    dropout: Fraction[float] = 0.5  # of the critic
    pac: Size[int] = 1  # rows judged together (CTGAN: 10)
    rake: bool = False  # keep made rows such that levels have the shares of training (ours: `models.marginals`)

    def _check(self) -> None:
        if self.batch < 2 or self.batch % self.pac:
            raise ConfigError("Option 'batch' must be at least 2 and a multiple of 'pac'", (self.batch, self.pac))


def rounds(config: CTGANConfig, rows: int) -> int:
    """Rounds of the whole training on ``rows`` rows."""
    return max(config.epochs * max(1, rows // config.batch), config.least_rounds)


def levels_of(shape: RowShape, columns: tuple[int, ...]) -> Tensor:
    """Where among all K levels those of some columns are: (P,), in the order of conditional positions."""
    return torch.cat([shape.starts[c] + torch.arange(shape.widths[c]) for c in columns] or [shape.starts[:0]])


class ConditionalGAN(gan.ConditionedGAN[gan.CriticPart]):
    """Generator, critic, and the conditions of a table.

    Args:
        normalised: both are plain layers whose rows are normalised (GAN(linear) of SiloFuse, section V-A), rather than
            residual blocks with batch normalisation and a critic without any.
    """

    def __init__(
        self, coded: EncodedRows, config: CTGANConfig, streams: Streams, device: torch.device, normalised: bool = False
    ) -> None:
        self.coded, self.config, self.streams, self.device = coded, config, streams, device
        self.shape, self.conditional = coded.shape, tuple(coded.categorical)
        self.widths = tuple(coded.shape.widths[c] for c in coded.categorical)
        self.noise, self.width = config.noise, sum(self.widths)
        self.conditions = gan.Conditions(coded.levels[:, list(coded.categorical)], self.widths)
        self.activation = gan.Activation(coded.shape).to(device)
        self.level_of_P = levels_of(coded.shape, coded.categorical).to(device)
        self.counted(torch.bincount((coded.levels.cpu() + coded.shape.starts).flatten(), minlength=coded.shape.levels))
        weights, inputs = streams.child("weights").torch(), config.noise + self.width
        generator: nn.Module
        if normalised:
            generator = gan.make_critic(inputs, config.generator, self.shape.size, 0.0, weights, normalised)
        else:
            generator = gan.make_generator(inputs, config.generator, self.shape.size, weights)
        judged = (self.shape.size + self.width) * config.pac
        critic = gan.make_critic(judged, config.critic, 1, config.dropout, weights, normalised)
        super().__init__(generator, critic, config, config.average, device)

    def train(self, part: int, parts: int) -> None:
        """Train for one of ``parts`` equal parts of all rounds."""
        streams = self.streams.child("part", part)
        draw, pick = streams.child("noise").torch(self.device), streams.child("rows").torch()
        self.generator.network.train()
        for _ in range(span(rounds(self.config, len(self.coded)), part, parts)):
            self.round(draw, pick)

    def round(self, draw: torch.Generator, pick: torch.Generator) -> None:
        """``critic_steps`` steps of the critic, one of the generator."""
        for _ in range(self.config.critic_steps):
            self._critic_step(draw, pick)
        self._generator_step(draw, pick)

    def counted(self, counts_K: Tensor) -> None:
        """Sample by these counts of rows on each level (K,)."""
        self.counts, self.law = counts_K.cpu(), self.law_of(counts_K)
        self.raking: Raking | None = None

    @torch.no_grad()
    def sample(self, n: int, streams: Streams) -> tuple[Tensor, Tensor]:
        """Rows (n, C) and (n, S), under conditions drawn by how frequent they are."""
        self.generator.network.eval()
        with self.average.applied():
            if not self.config.rake or not self.shape.levels:
                return self._rows(n, streams)
            if self.raking is None:
                self.raking = rake(self._rows(PILOT, streams.child("pilot"))[0], self.counts, self.shape)
            return self.raking.sample(n, self._rows, self.shape, streams.child("raking"))

    def _rows(self, n: int, streams: Streams) -> tuple[Tensor, Tensor]:
        """Rows as the generator makes them."""
        return self.drawn(n, streams, self.shape.size)

    def state(self, training: bool) -> dict[str, Any]:
        """Networks, and the counts of levels, which sampling draws by."""
        return {**super().state(training), "counts": self.counts}

    def law_of(self, counts_K: Tensor) -> gan.ConditionLaw:
        """The law of conditions where rows on each level (K,) are these; a column without any has all levels alike."""
        parts = counts_K.cpu()[self.level_of_P.cpu()].split(list(self.widths))
        parts = tuple(part if int(part.sum()) else torch.ones_like(part) for part in parts)
        return gan.ConditionLaw(torch.cat([counts_K.cpu()[:0], *parts]), self.widths)

    def networks(self, part: int, parts: int) -> dict[str, nn.Module]:
        """What silos that train the same model average, in any part."""
        return {"generator": self.generator.network, "critic": self.critic.network}

    def given(self, part: int, parts: int) -> dict[str, nn.Module]:
        """What a part starts from: the same."""
        return self.networks(part, parts)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        super().restore(state)
        self.counted(state["counts"])

    def made(self, given_B: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """The generator's outputs for these conditions, and the rows (both (B, K + S)) that they become."""
        out_BO = self.outputs(given_B, draw)
        return out_BO, self.activation(out_BO, self.config.tau, draw)

    def critic_step(self, made_BW: Tensor, given_B: Tensor, draw: torch.Generator, pick: torch.Generator) -> None:
        """The critic learns to tell real rows from these made ones, of the same conditions in another order."""
        config = self.config
        order = torch.randperm(config.batch, generator=pick)
        rows = self.conditions.matching(given_B[order], pick).to(self.device)
        given_B, order = given_B.to(self.device), order.to(self.device)
        fake_BW = self.with_condition(made_BW, given_B)
        real_BW = self.with_condition(
            self.shape.vectors(self.coded.levels[rows], self.coded.scores[rows]), given_B[order]
        )
        critic, fake_BW, real_BW = self.critic.network, self._packed(fake_BW), self._packed(real_BW)
        judged = critic(torch.cat([fake_BW, real_BW]), critic.masks(2 * len(real_BW), draw))
        mix_B1 = torch.rand(len(real_BW), 1, generator=draw, device=self.device)
        gradient_BW = critic.input_gradient(fake_BW + mix_B1 * (real_BW - fake_BW), critic.masks(len(real_BW), draw))
        loss = gan.critic_loss(*judged.chunk(2)) + config.penalty * gan.norm_penalty(gradient_BW).mean()
        self.critic.descend(loss)

    def generator_gradient(self, made_BW: Tensor, given_B: Tensor, draw: torch.Generator) -> Tensor:
        """Gradient (B, K + S) of the generator's loss in the rows that it made, as the critic sees them."""
        made_BW = made_BW.detach().requires_grad_()
        critic, fake_BW = self.critic.network, self._packed(self.with_condition(made_BW, given_B))
        loss = -critic(fake_BW, critic.masks(len(fake_BW), draw)).mean()
        (grad_made_BW,) = torch.autograd.grad(loss, made_BW)
        return grad_made_BW

    def set_generator_gradient(
        self, out_BO: Tensor, made_BW: Tensor, grad_made_BW: Tensor, given_B: Tensor, share: float = 1.0
    ) -> None:
        """Add ``share`` of a batch's gradient to the generator's: that of the critic, and of conditions not met."""
        losses, gradients = [made_BW], [share * grad_made_BW]
        if self.width:
            losses.append(-share * self.activation.log_likelihood(out_BO, self.level_of_P[given_B]).mean())
            gradients.append(torch.ones((), device=self.device))
        torch.autograd.backward(losses, gradients)

    def _critic_step(self, draw: torch.Generator, pick: torch.Generator) -> None:
        given_B = self.conditions.draw(self.config.batch, pick)
        with torch.no_grad():
            _, made_BW = self.made(given_B.to(self.device), draw)
        self.critic_step(made_BW, given_B, draw, pick)

    def _generator_step(self, draw: torch.Generator, pick: torch.Generator) -> None:
        given_B = self.conditions.draw(self.config.batch, pick).to(self.device)
        out_BO, made_BW = self.made(given_B, draw)
        self.generator.clear()
        self.set_generator_gradient(out_BO, made_BW, self.generator_gradient(made_BW, given_B, draw), given_B)
        self.generator.step()
        self.average.take()

    def _packed(self, x_BW: Tensor) -> Tensor:
        """Rows side by side, ``pac`` of them, as the critic judges them together (CTGAN, section 4.4)."""
        return x_BW.reshape(len(x_BW) // self.config.pac, -1)
