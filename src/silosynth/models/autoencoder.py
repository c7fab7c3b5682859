"""Autoencoders of encoded rows: SiloFuse's (sections III-B and IV-A), and TVAE (Xu et al. 2019, section 4.5).

`TableAutoencoder`: levels and normal scores ⇄ a vector of latents. The first layer reads levels through one summed
embedding, which equals one-hot encoding followed by a linear layer but never builds the one-hot matrix. Per-level work
is done in buckets of columns of similar width, so that neither 500 narrow columns nor one column of 10 000 levels costs
a Python loop or a padded giant.

`TVAE`: encoder and decoder have two hidden layers with ReLU. The decoder gives each levelled column a softmax and each
score a normal law: its mean by a tanh, its standard deviation learnt, one for each column and the same for all rows.
Readings and deviations: ``factor`` multiplies the likelihood against the divergence, as in the authors' settings;
standard deviations stay within [0.01, 1], for scores lie in [-1, 1]; where a column is on a special value, its score
says nothing and is left out of the likelihood.

Shapes: N training rows, B of a batch, C columns with levels, S scores, K all levels together, L latents, Z embedding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.core.messages import Fraction, NonNegative, Positive, Size, Struct
from silosynth.core.streams import Streams
from silosynth.models.encoded import EncodedRows, RowShape, chunks, joined, span
from silosynth.models.training import batches, build, trainee

_FIRST, _LEAST = 0.1, 0.01  # standard deviation of a score's law at the start, and at least (TVAE)
_NEVER = -1e9  # logit of a level that does not exist


class Buckets(nn.Module):
    """Softmax per column over a flat row of K logits, done for all columns of similar width at once."""

    def __init__(self, shape: RowShape) -> None:
        super().__init__()
        self.shape = shape
        self.groups = _group_by_width(shape.widths)
        for g, columns in enumerate(self.groups):
            self.register_buffer(f"where_{g}", _positions(shape, columns), persistent=False)

    def forward(self, logits_BK: Tensor) -> list[tuple[tuple[int, ...], Tensor, Tensor]]:
        """Per group: its columns, their flat positions (c, w) and their logits (B, c, w)."""
        padded = F.pad(logits_BK, (0, 1), value=_NEVER)
        groups = []
        for g, columns in enumerate(self.groups):
            where = self.get_buffer(f"where_{g}")
            groups.append((columns, where, padded[:, where]))
        return groups

    def cross_entropy(self, logits_BK: Tensor, levels_BC: Tensor) -> Tensor:
        """Sum over columns of the mean negative log-likelihood of the observed levels."""
        total = logits_BK.new_zeros(())
        for columns, _, logits in self(logits_BK):
            right = levels_BC[:, list(columns)].unsqueeze(-1)
            total = total - F.log_softmax(logits, dim=-1).gather(-1, right).sum() / len(logits_BK)
        return total

    def probabilities(self, logits_BK: Tensor) -> Tensor:
        """Probabilities (B, K), summing to one within each column."""
        flat = torch.zeros_like(F.pad(logits_BK, (0, 1)))
        for _, where, logits in self(logits_BK):
            flat[:, where] = F.softmax(logits, dim=-1)
        return flat[:, :-1]

    def draw(self, logits_BK: Tensor, generator: torch.Generator | None) -> Tensor:
        """Levels (B, C) drawn from the heads (Gumbel-max), or their modes where ``generator`` is None."""
        levels = torch.zeros(len(logits_BK), len(self.shape.widths), dtype=torch.int64, device=logits_BK.device)
        for columns, _, logits in self(logits_BK):
            if generator is not None:
                noise = torch.rand(logits.shape, generator=generator, device=logits.device).clamp_(1e-9, 1 - 1e-7)
                logits = logits - torch.log(-torch.log(noise))
            levels[:, list(columns)] = logits.argmax(dim=-1)
        return levels


class UnitVariance(nn.Module):
    """Latents (B, L) normalised by their batch; once training has ended, by the running mean and variance."""

    def __init__(self, latents: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.var: Tensor
        self.register_buffer("mean", torch.zeros(latents))
        self.register_buffer("var", torch.ones(latents))

    def forward(self, z_BL: Tensor) -> Tensor:
        """Normalise."""
        if not self.training:
            return (z_BL - self.mean) / (self.var + 1e-5).sqrt()
        var, mean = torch.var_mean(z_BL, dim=0, correction=0)
        with torch.no_grad():
            self.mean.lerp_(mean, 0.05)
            self.var.lerp_(var, 0.05)
        return (z_BL - mean) / (var + 1e-5).sqrt()


class JointEncoder(nn.Module):
    """Outputs (B, L) of several encoders for the same rows → one vector of latents (B, L) of unit variance."""

    def __init__(self, latents: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.mix, self.unit = _stack((latents, *hidden), latents), UnitVariance(latents)

    def forward(self, e_BL: Tensor) -> Tensor:
        """Encode."""
        z_BL: Tensor = self.unit(e_BL + self.mix(e_BL))
        return z_BL


class TableAutoencoder(nn.Module):
    """Encoder and decoder, each of ``len(hidden) + 1`` linear layers with GELU between.

    ``form`` is what lies between them: "plain", "vae" (mean and log-variance), or "noisy" (normalised latents; the
    decoder learns to read them through Gaussian noise, which keeps levels apart by more than a generator's error).
    "clipped" is the same without statistics of a batch: each row's latents are cut to a norm of sqrt(L).
    ``spread`` adds a log-variance per score to the heads, as in the paper. ``read`` is how many latents the decoder
    reads; 0 for the encoder's own.
    """

    def __init__(
        self, shape: RowShape, latents: int, hidden: Sequence[int], form: str, spread: bool, read: int = 0
    ) -> None:
        super().__init__()
        self.shape, self.latents, self.form, self.spread = shape, latents, form, spread
        scores = shape.scores
        self.of_levels = nn.Embedding(max(1, shape.levels), hidden[0])
        self.of_scores = nn.Linear(max(1, scores), hidden[0])
        self.encoder = _stack(hidden, latents * (2 if form == "vae" else 1))
        self.decoder = _stack(
            (read or latents, *reversed(hidden)), max(1, shape.levels + scores * (2 if spread else 1))
        )
        self.buckets = Buckets(shape)
        self.starts: Tensor
        self.register_buffer("starts", shape.starts.clone(), persistent=False)
        self.unit = UnitVariance(latents) if form == "noisy" else nn.Identity()

    def encode(self, levels_BC: Tensor, scores_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        """Latents (B, L) (posterior means), and their log-variances for a "vae"."""
        h = self.of_scores(scores_BS if scores_BS.shape[1] else scores_BS.new_zeros(len(scores_BS), 1))
        if levels_BC.shape[1]:
            weight = self.of_levels.weight.to(h.dtype)
            rows = levels_BC + self.starts
            summed = self.form != "clipped"  # or the slower way, of which every example can have a gradient
            h = h + (F.embedding_bag(rows, weight, mode="sum") if summed else weight[rows].sum(dim=1))
        z = self.encoder(F.gelu(h)).float()
        if self.form == "vae":
            mean, logvar = z.chunk(2, dim=1)
            return mean, logvar.clamp(-12, 6)
        if self.form == "clipped":
            return z * (math.sqrt(self.latents) / z.norm(dim=1, keepdim=True).clamp_min(1e-6)).clamp(max=1), None
        return self.unit(z), None

    def forward(self, levels_BC: Tensor, scores_BS: Tensor, noise_BL: Tensor, sigma: float, weight: float) -> Tensor:
        """`loss`, without a divergence."""
        return self.loss(levels_BC, scores_BS, noise_BL, sigma=sigma, kl=0.0, weight=weight)

    def decode(self, z_BL: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Heads: logits (B, K), score means (B, S) and, with ``spread``, score log-variances (B, S)."""
        out, levels, scores = self.decoder(z_BL).float(), self.shape.levels, self.shape.scores
        logvar = out[:, levels + scores :].clamp(-10, 4) if self.spread else None
        return out[:, :levels], out[:, levels : levels + scores], logvar

    def heads(self, z_BL: Tensor, places_H: Tensor) -> Tensor:
        """Some of the heads (B, H), by their places among K logits and S score means; takes less than all of them."""
        last = self.decoder[-1]
        assert isinstance(last, nn.Linear)
        return F.linear(self.decoder[:-1](z_BL), last.weight[places_H], last.bias[places_H]).float()

    def loss(
        self, levels_BC: Tensor, scores_BS: Tensor, noise_BL: Tensor, *, sigma: float, kl: float, weight: float
    ) -> Tensor:
        """Negative log-likelihood of a batch (paper, eq. 4), plus ``kl`` times the divergence for a "vae".

        ``noise_BL`` is standard normal; ``sigma`` its size on "noisy" latents; ``weight`` that of squared score errors.
        """
        z, logvar = self.encode(levels_BC, scores_BS)
        if logvar is not None:
            divergence = 0.5 * (z.square() + logvar.exp() - 1 - logvar).sum(dim=1).mean()
            read = self.likelihood(z + noise_BL * (0.5 * logvar).exp(), levels_BC, scores_BS, weight)
            return read + kl * divergence
        read = z + sigma * noise_BL if self.form in ("noisy", "clipped") else z
        return self.likelihood(read, levels_BC, scores_BS, weight)

    def likelihood(self, z_BL: Tensor, levels_BC: Tensor, scores_BS: Tensor, weight: float) -> Tensor:
        """Negative log-likelihood of a batch under the heads decoded from ``z_BL`` (paper, eq. 4)."""
        logits, means, spread = self.decode(z_BL)
        on = self.shape.on(levels_BC)
        errors = (means - scores_BS).square()
        errors = weight * errors if spread is None else 0.5 * (errors * (-spread).exp() + spread)
        return self.buckets.cross_entropy(logits, levels_BC) + (errors * on).sum() / len(z_BL)


def _stack(widths: Sequence[int], last: int, activation: type[nn.Module] = nn.GELU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), activation()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], last))


def _positions(shape: RowShape, columns: tuple[int, ...]) -> Tensor:
    """Flat logit positions (columns, widest) of a group; K stands for a level that does not exist."""
    where = torch.full((len(columns), max(shape.widths[c] for c in columns)), shape.levels)
    for row, c in enumerate(columns):
        where[row, : shape.widths[c]] = shape.starts[c] + torch.arange(shape.widths[c])
    return where


def _group_by_width(widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Columns in groups whose widths lie within a factor of two of each other."""
    groups: dict[int, list[int]] = {}
    for column, width in enumerate(widths):
        groups.setdefault((width - 1).bit_length(), []).append(column)
    return [tuple(columns) for _, columns in sorted(groups.items())]


class TVAEConfig(Struct):
    """Sizes and training; the defaults are the authors'."""

    epochs: Positive[int] = 300  # of max(1, rows // batch) steps
    least_steps: NonNegative[int] = 0  # steps at least, however few the rows
    batch: Size[int] = 500
    encoder: Size[tuple[int, ...]] = (128, 128)  # hidden widths
    decoder: Size[tuple[int, ...]] = (128, 128)  # hidden widths
    embedding: Size[int] = 128  # Z
    factor: Positive[float] = 2.0  # weight of the likelihood against the divergence
    rate: Positive[float] = 1e-3  # Adam's
    betas: Fraction[tuple[float, float]] = (0.9, 0.999)
    decay: NonNegative[float] = 1e-5  # weight decay


class Halves(nn.Module):
    """Encoder, decoder, and the logarithms (S,) of the scores' standard deviations."""

    def __init__(self, size: int, scores: int, encoder: Sequence[int], embedding: int, decoder: Sequence[int]) -> None:
        super().__init__()
        self.encoder = _stack((size, *encoder), 2 * embedding, nn.ReLU)
        self.decoder = _stack((embedding, *decoder), size, nn.ReLU)
        self.log_spread = nn.Embedding(1, scores)  # a vector that `build` draws

    def encode(self, x_BI: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance (B, Z) of the embedding."""
        mean, logvar = self.encoder(x_BI).chunk(2, dim=1)
        return mean, logvar.clamp(-20, 20)

    def spread(self) -> Tensor:
        """Standard deviations (S,) of the scores."""
        return self.log_spread.weight.squeeze(0).clamp(math.log(_LEAST), 0.0).exp()


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
