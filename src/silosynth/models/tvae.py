"""A variational autoencoder of rows (TVAE, Xu et al. 2019, section 4.5).

Encoder and decoder have two hidden layers with ReLU. The decoder gives each levelled column a softmax and each score
a normal law: its mean by a tanh, its standard deviation learnt, one for each column and the same for all rows.

Readings and deviations: ``factor`` multiplies the likelihood against the divergence, as in the authors' settings;
standard deviations stay within [0.01, 1], for scores lie in [-1, 1]; where a column is on a special value, its score
says nothing and is left out of the likelihood.

Shapes: N training rows, B of a batch, C columns with levels, K levels of all of them, S scores, Z embedding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from silosynth.core.messages import Fraction, NonNegative, Positive, Struct
from silosynth.core.streams import Streams
from silosynth.models.autoencoder import Buckets
from silosynth.models.encoded import EncodedRows, chunks, joined, span
from silosynth.models.training import batches, build, trainee

_FIRST, _LEAST = 0.1, 0.01  # standard deviation of a score's law at the start, and at least


class TVAEConfig(Struct):
    """Sizes and training; the defaults are the authors'."""

    epochs: Positive[int] = 300  # of max(1, rows // batch) steps
    least_steps: NonNegative[int] = 0  # steps at least, however few the rows
    batch: Positive[int] = 500
    encoder: Positive[tuple[int, ...]] = (128, 128)  # hidden widths
    decoder: Positive[tuple[int, ...]] = (128, 128)  # hidden widths
    embedding: Positive[int] = 128  # Z
    factor: Positive[float] = 2.0  # weight of the likelihood against the divergence
    rate: Positive[float] = 1e-3  # Adam's
    betas: Fraction[tuple[float, float]] = (0.9, 0.999)
    decay: NonNegative[float] = 1e-5  # weight decay


class Halves(nn.Module):
    """Encoder, decoder, and the logarithms (S,) of the scores' standard deviations."""

    def __init__(self, size: int, scores: int, encoder: Sequence[int], embedding: int, decoder: Sequence[int]) -> None:
        super().__init__()
        self.encoder = _stack((size, *encoder), 2 * embedding)
        self.decoder = _stack((embedding, *decoder), size)
        self.log_spread = _Vector(scores)

    def encode(self, x_BI: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance (B, Z) of the embedding."""
        mean, logvar = self.encoder(x_BI).chunk(2, dim=1)
        return mean, logvar.clamp(-20, 20)

    def spread(self) -> Tensor:
        """Standard deviations (S,) of the scores."""
        return self.log_spread.weight.squeeze(0).clamp(math.log(_LEAST), 0.0).exp()


class _Vector(nn.Embedding):
    """S numbers that are learnt, as a matrix of one row."""

    def __init__(self, size: int) -> None:
        super().__init__(1, size)


class TVAE:
    """The autoencoder, its training and its sampling."""

    def __init__(self, coded: EncodedRows, config: TVAEConfig, streams: Streams, device: torch.device) -> None:
        self.coded, self.config, self.streams, self.device = coded, config, streams, device
        self.shape = coded.shape
        self.buckets = Buckets(coded.shape).to(device)
        sizes = (coded.shape.size, coded.shape.scores, config.encoder, config.embedding, config.decoder)
        network = build(Halves, *sizes, generator=streams.child("weights").torch())
        nn.init.constant_(network.log_spread.weight, math.log(_FIRST))
        self.network = network.to(device)
        self.trainee = trainee(self.network, config)

    def train(self, part: int, parts: int) -> None:
        """Train for one of ``parts`` equal parts of all steps."""
        config, draw = self.config, self.streams.child("part", part).torch(self.device)
        order = batches(len(self.coded), config.batch, draw)
        steps = max(config.epochs * max(1, len(self.coded) // config.batch), config.least_steps)
        for _ in range(span(steps, part, parts)):
            rows = next(order)
            noise = torch.randn(len(rows), config.embedding, generator=draw, device=self.device)
            self.trainee.descend(self.loss(self.coded.levels[rows], self.coded.scores[rows], noise))

    def loss(self, levels_BC: Tensor, scores_BS: Tensor, noise_BZ: Tensor) -> Tensor:
        """The evidence lower bound, negated, with the likelihood ``factor`` times; mean over rows."""
        mean, logvar = self.network.encode(self.shape.vectors(levels_BC, scores_BS))
        out = self.network.decoder(mean + (0.5 * logvar).exp() * noise_BZ)
        divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(dim=1).mean()
        spread = self.network.spread()
        errors = (scores_BS - out[:, self.shape.levels :].tanh()) / spread
        unlikely = ((0.5 * errors.square() + spread.log()) * self.coded.shape.on(levels_BC)).sum(dim=1).mean()
        unlikely = unlikely + self.buckets.cross_entropy(out[:, : self.shape.levels], levels_BC)
        total: Tensor = self.config.factor * unlikely + divergence
        return total

    @torch.no_grad()
    def sample(self, n: int, streams: Streams) -> tuple[Tensor, Tensor]:
        """Rows (n, C) and (n, S), drawn from the decoder's laws."""
        draw = streams.torch(self.device)
        drawn = []
        for size in chunks(n, self.shape.size):
            out = self.network.decoder(torch.randn(size, self.config.embedding, generator=draw, device=self.device))
            levels = self.buckets.draw(out[:, : self.shape.levels], draw)
            noise = torch.randn(size, self.shape.scores, generator=draw, device=self.device)
            scores = out[:, self.shape.levels :].tanh() + self.network.spread() * noise
            drawn.append((levels, scores.clamp(-1, 1)))
        return joined(drawn)

    def state(self, training: bool) -> dict[str, Any]:
        """The network, for training with its moments."""
        return self.trainee.state(training)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.trainee.restore(state)


def _stack(widths: Sequence[int], last: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], last))
