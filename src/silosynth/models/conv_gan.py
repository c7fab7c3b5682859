"""A conditional GAN that reads rows as square images (CTAB-GAN, Zhao et al. 2021; GAN(conv) of SiloFuse, section V-A).

A row (for the critic: a row beside its conditional vector) is filled up with zeros to 8 x 8, 16 x 16, 32 x 32… pixels.

====================================  ==========================================
CTAB-GAN, section 3                   here
====================================  ==========================================
generator and discriminator, as DCGAN `ImageGenerator`, `ImageCritic`
conditions on categories and modes    every column with levels: `models.gan.Conditions`
auxiliary classifier                  `_class_loss`
information loss                      `information_loss`
generator's loss                      `_generator_step`
====================================  ==========================================

Readings and deviations: ``adversary`` is the paper's original GAN loss, or the Wasserstein one with penalty of its
successor; layers are normalised row by row (SiloFuse's description), which a penalty on single rows needs, and the
critic's only if ``normalised``; sides of images are powers of two, and the coarsest image has 4 x 4 pixels (DCGAN),
for one pixel is too narrow a passage; a linear layer on either side of it joins what convolutions on images so small
leave apart; initial weights keep the size of what passes through them, where DCGAN's of one size suit its 1 024
channels only. Without a ``target`` there is no classifier.

Shapes: N training rows, B of a batch, C columns with levels, K levels, S scores, P conditional positions, F features.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from silosynth.core.messages import Fraction, NonNegative, Positive, Size, Struct
from silosynth.core.streams import Streams
from silosynth.models import gan
from silosynth.models.ctgan import levels_of
from silosynth.models.encoded import EncodedRows, span
from silosynth.models.training import Trainee, WeightLimit, trainee

N = TypeVar("N", bound=nn.Module)
_COARSE = 4  # side of the smallest image (DCGAN, Radford et al. 2016)
_KERNEL, _STRIDE = 4, 2  # of all convolutions: they double or halve a side


class CTABGANConfig(Struct):
    """Sizes and training; the defaults are the authors', but for ``adversary`` and ``normalised``."""

    epochs: Positive[int] = 150  # of max(1, rows // batch) rounds
    least_rounds: NonNegative[int] = 0  # rounds at least, however few the rows
    batch: Size[int] = 500
    critic_steps: Positive[int] = 1  # of a round, before the generator's one
    channels: Size[int] = 64  # of an image of half the side; doubled at the next two halvings
    normalised: bool = False  # layer normalisation in the critic too, not in the generator alone
    noise: Size[int] = 100
    rate: Positive[float] = 2e-4  # Adam's
    betas: Fraction[tuple[float, float]] = (0.5, 0.9)
    decay: NonNegative[float] = 1e-5  # weight decay
    adversary: Literal["original", "wasserstein"] = "wasserstein"  # CTAB-GAN's loss is the original one
    penalty: NonNegative[float] = 10.0  # weight of the gradient penalty of the Wasserstein loss
    tau: Positive[float] = 0.2  # temperature of the Gumbel-softmax
    information: NonNegative[float] = 1.0  # weight of the information loss
    target: str = ""  # column that an auxiliary classifier predicts from the others; none if empty
    classifier: Size[tuple[int, ...]] = (256, 256, 256, 256)  # hidden widths of that classifier
    dropout: Fraction[float] = 0.5  # of the classifier


class ImageGenerator(nn.Module):
    """Two linear layers to an image of 4 x 4 pixels, then transposed convolutions that double its side."""

    def __init__(self, inputs: int, size: int, channels: int) -> None:
        super().__init__()
        self.size, widths = size, _widths(size, channels)[::-1]
        self.first = skip_init(nn.Linear, inputs, widths[0] * _COARSE)
        self.second = skip_init(nn.Linear, widths[0] * _COARSE, widths[0] * _COARSE**2)
        self.norm = nn.LayerNorm(widths[0] * _COARSE)
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for width in widths[:-1])
        self.convolutions = nn.ModuleList(
            skip_init(nn.ConvTranspose2d, wide, narrow, _KERNEL, stride=_STRIDE, padding=1)
            for wide, narrow in pairwise(widths)
        )

    def forward(self, x_BI: Tensor) -> Tensor:
        """Outputs (B, K + S)."""
        h = self.second(F.leaky_relu(self.norm(self.first(x_BI)), gan.SLOPE)).unflatten(1, (-1, _COARSE, _COARSE))
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            h = convolution(F.leaky_relu(norm(h), gan.SLOPE))
        out: Tensor = h.flatten(1)[:, : self.size]
        return out


class ImageCritic(nn.Module):
    """Convolutions that halve the side down to 4 x 4 pixels, a layer that sees all of these at once, a linear one.

    Without that layer opinions would be sums over patches, blind to what pixels far apart say together.
    """

    def __init__(self, size: int, channels: int, normalised: bool) -> None:
        super().__init__()
        widths = _widths(size, channels)
        self.side = _COARSE * 2 ** (len(widths) - 1)
        self.convolutions = nn.ModuleList(
            skip_init(nn.Conv2d, narrow, wide, _KERNEL, stride=_STRIDE, padding=1) for narrow, wide in pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) if normalised else nn.Identity() for width in widths[1:])
        self.whole = skip_init(nn.Linear, widths[-1] * _COARSE**2, widths[-1] * _COARSE)
        self.last = skip_init(nn.Linear, widths[-1] * _COARSE, 1)

    def features(self, x_BI: Tensor) -> Tensor:
        """What the last layer judges by: (B, F)."""
        h = F.pad(x_BI, (0, self.side**2 - x_BI.shape[1])).reshape(len(x_BI), 1, self.side, self.side)
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            h = F.leaky_relu(norm(convolution(h)), gan.SLOPE)
        return F.leaky_relu(self.whole(h.flatten(1)), gan.SLOPE)

    def forward(self, x_BI: Tensor) -> Tensor:
        """Opinions (B, 1)."""
        judged: Tensor = self.last(self.features(x_BI))
        return judged


class ConvolutionalGAN(gan.ConditionedGAN[ImageCritic]):
    """Generator, critic and, where a target is named, classifier of a table."""

    def __init__(self, coded: EncodedRows, config: CTABGANConfig, streams: Streams, device: torch.device) -> None:
        self.coded, self.config, self.streams, self.device = coded, config, streams, device
        self.shape, self.noise, self.width = coded.shape, config.noise, coded.shape.levels
        self.conditional = tuple(range(len(coded.shape.widths)))
        self.conditions = gan.Conditions(coded.levels, coded.shape.widths)
        self.law = self.conditions.law
        self.activation = gan.Activation(coded.shape).to(device)
        self.target_T = levels_of(coded.shape, (coded.target,) if coded.target >= 0 else ()).to(device)
        weights = streams.child("weights").torch()
        with WeightLimit():
            generator = ImageGenerator(config.noise + self.width, self.shape.size, config.channels)
            critic = ImageCritic(self.shape.size + self.width, config.channels, config.normalised)
        generator, critic = _drawn(generator, weights), _drawn(critic, weights)
        super().__init__(generator, critic, config, 0.0, device)
        self.classifier: Trainee[gan.CriticPart] | None = None
        if len(self.target_T):
            sizes = (self.shape.size, config.classifier, len(self.target_T), config.dropout)
            self.classifier = trainee(gan.make_critic(*sizes, weights).to(device), config)

    def train(self, part: int, parts: int) -> None:
        """Train for one of ``parts`` equal parts of all rounds."""
        config, streams = self.config, self.streams.child("part", part)
        draw, pick = streams.child("noise").torch(self.device), streams.child("rows").torch()
        rounds = max(config.epochs * max(1, len(self.coded) // config.batch), config.least_rounds)
        for _ in range(span(rounds, part, parts)):
            for _ in range(config.critic_steps):
                real_BI = self._critic_step(draw, pick)
            self._generator_step(real_BI, draw, pick)
            if self.classifier is not None:
                real_BW = real_BI[:, : self.shape.size]
                self.classifier.descend(self._class_loss(self.classifier.network, real_BW, draw))

    @torch.no_grad()
    def sample(self, n: int, streams: Streams) -> tuple[Tensor, Tensor]:
        """Rows (n, C) and (n, S), under conditions drawn by how frequent they are."""
        return self.drawn(n, streams, self.shape.size * self.config.channels)

    def state(self, training: bool) -> dict[str, Any]:
        """Networks; the counts of all levels, which sampling draws by."""
        classifier = self.classifier.state(training) if training and self.classifier else None
        return {**super().state(training), "classifier": classifier, "counts": self.law.counts}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        super().restore(state)
        if self.classifier is not None and state["classifier"] is not None:
            self.classifier.restore(state["classifier"])
        self.law = gan.ConditionLaw(state["counts"].cpu(), self.shape.widths)

    def _critic_step(self, draw: torch.Generator, pick: torch.Generator) -> Tensor:
        """The critic learns to tell real rows from generated ones; returns the real ones beside their conditions."""
        config, critic = self.config, self.critic.network
        given_B = self.law.draw(config.batch, pick)
        order = torch.randperm(config.batch, generator=pick)
        rows = self.conditions.matching(given_B[order], pick).to(self.device)
        given_B, order = given_B.to(self.device), order.to(self.device)
        with torch.no_grad():
            fake_BI = self.with_condition(self.activation(self.outputs(given_B, draw), config.tau, draw), given_B)
        real_BI = self.shape.vectors(self.coded.levels[rows], self.coded.scores[rows])
        real_BI = self.with_condition(real_BI, given_B[order])
        of_fake, of_real = critic(torch.cat([fake_BI, real_BI])).chunk(2)
        if config.adversary == "original":
            loss = F.softplus(of_fake).mean() + F.softplus(-of_real).mean()
        else:
            mix = torch.rand(config.batch, 1, generator=draw, device=self.device)
            penalty = gan.gradient_penalty(critic, fake_BI, real_BI, mix)
            loss = gan.critic_loss(of_fake, of_real) + config.penalty * penalty
        self.critic.descend(loss)
        return real_BI

    def _generator_step(self, real_BI: Tensor, draw: torch.Generator, pick: torch.Generator) -> None:
        """The generator descends the sum of its adversarial, conditional, information and class losses."""
        given_B = self.law.draw(self.config.batch, pick).to(self.device)
        out_BO = self.outputs(given_B, draw)
        fake_BW = self.activation(out_BO, self.config.tau, draw)
        critic = self.critic.network
        features = critic.features(self.with_condition(fake_BW, given_B))
        judged = critic.last(features)
        loss = F.softplus(-judged).mean() if self.config.adversary == "original" else -judged.mean()
        if self.width:
            loss = loss - self.activation.log_likelihood(out_BO, given_B).mean()
        if self.config.information:
            with torch.no_grad():
                wanted = critic.features(real_BI)
            loss = loss + self.config.information * information_loss(features, wanted)
        if self.classifier is not None:
            loss = loss + self._class_loss(self.classifier.network, fake_BW, draw)
        self.generator.clear()
        loss.backward(inputs=list(self.generator.network.parameters()))
        self.generator.step()

    def _class_loss(self, classifier: gan.CriticPart, x_BW: Tensor, draw: torch.Generator) -> Tensor:
        """Cross-entropy of the target in rows from what the classifier makes of their other columns."""
        others = x_BW.index_fill(1, self.target_T, 0.0)
        guess = F.log_softmax(classifier(others, classifier.masks(len(others), draw)), dim=1)
        return -(x_BW[:, self.target_T] * guess).sum(dim=1).mean()


def information_loss(fake_BF: Tensor, real_BF: Tensor) -> Tensor:
    """How far means and standard deviations of the critic's features differ (CTAB-GAN, section 3.2; Table-GAN)."""
    spreads = (fake_BF.var(dim=0, correction=0) + 1e-8).sqrt() - (real_BF.var(dim=0, correction=0) + 1e-8).sqrt()
    loss: Tensor = (fake_BF.mean(dim=0) - real_BF.mean(dim=0)).norm() + spreads.norm()
    return loss


def _widths(size: int, channels: int) -> list[int]:
    """Channels of images of at least ``size`` numbers, of half the side, of a quarter… down to 4 x 4 pixels."""
    halvings = 1
    while (_COARSE * 2**halvings) ** 2 < size:
        halvings += 1
    return [1, *(channels * 2 ** min(i, 2) for i in range(halvings))]


def _drawn(network: N, generator: torch.Generator) -> N:
    """The network with normal weights that keep variances, and no biases; layers of normalisation stay as they are."""
    for part in network.modules():
        if isinstance(part, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(part.weight, 0.0, _summands(part) ** -0.5, generator=generator)
            nn.init.zeros_(part.bias)  # type: ignore[arg-type]
    return network


def _summands(part: nn.Linear | nn.Conv2d | nn.ConvTranspose2d) -> int:
    """How many products a number that comes out is the sum of."""
    if isinstance(part, nn.Linear):
        return part.in_features
    transposed = isinstance(part, nn.ConvTranspose2d)  # its kernel reaches an output from every second pixel
    return part.in_channels * (_KERNEL // (_STRIDE if transposed else 1)) ** 2
