"""Multinomial diffusion of levels, all columns at once (Hoogeboom et al. 2021, section 4; TabDDPM, section 3).

Noise replaces a level by a uniformly drawn one of its column. Of a level at time s, what is left at t > s is
abar_t / abar_s. The last time before the data is "clean": abar is 1 there, and it is written s = -1.

====================================  ==========================================
Hoogeboom et al.                      here
====================================  ==========================================
eq. (13) q(x_t | x_0)                 `noised`, `_log_mixed`
eq. (15) q(x_t-1 | x_t, x_0)          `log_posterior`
eq. (16) p(x_t-1 | x_t)               the same with the predicted probabilities of x_0
section 4, KL and L_0                 `divergence`
====================================  ==========================================

Shapes: B rows, C columns, K levels of all columns. Probabilities are logarithms, (B, K), summing to one per column.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.core.messages import Fraction, NonNegative, Positive, Size, Steps, Struct
from silosynth.core.streams import Streams
from silosynth.models.autoencoder import Buckets
from silosynth.models.encoded import EncodedRows, RowShape, chunks, joined, span
from silosynth.models.gaussian import gaussian_path
from silosynth.models.training import Learner, batches, build, dropout, time_features

_LEAST = -60.0  # stands for the logarithm of zero, so that zero times it is zero


class Multinomial(nn.Module):
    """The noising of levels by a schedule, and its reverse.

    Args:
        widths: number of levels of each of the C columns.
        alpha_bar: (T,) share of levels that are still untouched after each step.
    """

    def __init__(self, widths: tuple[int, ...], alpha_bar: Tensor) -> None:
        super().__init__()
        self.widths, self.steps = widths, len(alpha_bar)
        shape, sizes = RowShape(widths), torch.tensor(widths, dtype=torch.int64)
        self.sizes: Tensor
        self.starts: Tensor
        self.column_of: Tensor
        self.member_KC: Tensor
        self.bar: Tensor
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("starts", shape.starts, persistent=False)
        self.register_buffer("column_of", shape.column_of, persistent=False)
        self.register_buffer("member_KC", shape.member_KC, persistent=False)
        self.register_buffer("bar", F.pad(alpha_bar.double(), (0, 1), value=1.0), persistent=False)  # [-1] is clean

    def noised(self, levels_BC: Tensor, t_B: Tensor, generator: torch.Generator) -> Tensor:
        """Levels (B, C) at times t, from clean ones."""
        kept = torch.rand(levels_BC.shape, generator=generator, device=levels_BC.device) < self.bar[t_B][:, None]
        return torch.where(kept, levels_BC, self.uniform(len(levels_BC), generator))

    def uniform(self, rows: int, generator: torch.Generator) -> Tensor:
        """Levels (B, C) of nothing but noise."""
        shares = torch.rand(rows, len(self.widths), generator=generator, device=self.sizes.device)
        return torch.minimum((shares * self.sizes).long(), self.sizes - 1)

    def log_posterior(self, levels_BC: Tensor, log_clean_BK: Tensor, t_B: Tensor, s_B: Tensor) -> Tensor:
        """Law of the levels at times s < t, given those at t and the law of the clean ones."""
        left = (self.bar[t_B] / self.bar[s_B])[:, None]
        return self.normalised(
            self._log_mixed(self.log_one_hot(levels_BC), left) + self._log_mixed(log_clean_BK, self.bar[s_B][:, None])
        )

    def divergence(self, logits_BK: Tensor, clean_BC: Tensor, noisy_BC: Tensor, t_B: Tensor) -> Tensor:
        """KL divergence (B,), summed over columns, of the predicted step from the true one; at t = 0 cross-entropy."""
        right = self.log_posterior(noisy_BC, self.log_one_hot(clean_BC), t_B, t_B - 1)
        guess = self.log_posterior(noisy_BC, self.normalised(logits_BK), t_B, t_B - 1)
        return (right.exp() * (right - guess)).sum(dim=1)

    def normalised(self, logits_BK: Tensor) -> Tensor:
        """Log-probabilities from logits, within each column."""
        if not self.widths:
            return logits_BK
        with torch.no_grad():
            top = logits_BK.new_full((len(logits_BK), len(self.widths)), -torch.inf)
            top = top.scatter_reduce(1, self.column_of.expand_as(logits_BK), logits_BK, "amax")[:, self.column_of]
        centred = logits_BK - top
        return centred - ((centred.exp() @ self.member_KC).log())[:, self.column_of]

    def log_one_hot(self, levels_BC: Tensor) -> Tensor:
        """The law (B, K) that is certain of these levels."""
        law = torch.full((len(levels_BC), len(self.column_of)), _LEAST, device=levels_BC.device)
        return law.scatter_(1, levels_BC + self.starts, 0.0)

    def _log_mixed(self, law_BK: Tensor, left_B1: Tensor) -> Tensor:
        """``left`` parts of a law and the rest uniform."""
        uniform = ((1 - left_B1) / self.sizes[self.column_of]).clamp_min(1e-300).log().clamp_min(_LEAST)
        return torch.logaddexp(law_BK + left_B1.log().to(law_BK.dtype), uniform.to(law_BK.dtype))


_FARTHEST = 6.0  # normal scores do not lie beyond; the first steps divide by next to nothing


class TabDDPMConfig(Struct):
    """Sizes and training. The paper tunes most of them for each table; its ranges are given."""

    steps: Positive[int] = 20_000  # iterations (paper: 5 000 to 20 000)
    batch: Size[int] = 1024  # (paper: 256 or 4096)
    layers: Size[tuple[int, ...]] = (512, 512, 512, 512)  # hidden widths (paper: 2 to 8 of 128 to 1024)
    time: Size[int] = 128  # width of the embedding of the time
    dropout: Fraction[float] = 0.0
    rate: Positive[float] = 1e-3  # AdamW's, at first; falls linearly to zero (paper: 1e-5 to 3e-3)
    decay: NonNegative[float] = 1e-4  # weight decay
    average: NonNegative[float] = 0.0  # length of the moving average of the weights as a share of all steps; 0 for none
    diffusion_steps: Size[int] = 1000  # T (paper: 100 or 1000)
    variances: Literal["linear", "cosine"] = "cosine"  # how they grow over its steps
    sample_steps: Steps[int] = 1000  # of these, how many are taken to sample


class Denoiser(nn.Module):
    """Linear layers with ReLU and dropout; the embedded time is added to the embedded row (paper, section 3)."""

    def __init__(self, size: int, layers: tuple[int, ...], time: int, rate: float) -> None:
        super().__init__()
        self.rate, self.width = rate, time
        self.when = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.enter, self.leave = nn.Linear(size, time), nn.Linear(layers[-1], size)
        self.layers = nn.ModuleList(
            nn.Linear(wide, narrow) for wide, narrow in zip((time, *layers), layers, strict=False)
        )

    def forward(self, x_BI: Tensor, t_B: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Outputs (B, K + S) at times in (0, 1]; dropout only where ``generator`` is given."""
        h: Tensor = self.enter(x_BI) + self.when(time_features(t_B, self.width))
        for layer in self.layers:
            h = dropout(F.relu(layer(h)), self.rate, generator)
        out: Tensor = self.leave(h)
        return out


class RowDiffusion:
    """The network, its training and its sampling."""

    def __init__(self, coded: EncodedRows, config: TabDDPMConfig, streams: Streams, device: torch.device) -> None:
        self.coded, self.config, self.streams, self.device = coded, config, streams, device
        self.shape = coded.shape
        self.gaussian = gaussian_path(config.diffusion_steps, config.variances, "noise")
        self.multinomial = Multinomial(coded.shape.widths, self.gaussian.alpha_bar).to(device)
        self.buckets = Buckets(coded.shape).to(device)
        sizes = (coded.shape.size, config.layers, 2 * math.ceil(config.time / 2), config.dropout)
        self.network = build(Denoiser, *sizes, generator=streams.child("weights").torch()).to(device)
        self.learner = Learner(
            self.network, rate=config.rate, steps=config.steps, schedule="constant", decay=config.decay,
            average=config.average,
        )  # fmt: skip

    def train(self, part: int, parts: int) -> None:
        """Train for one of ``parts`` equal parts of all steps."""
        config, learner = self.config, self.learner
        draw = self.streams.child("part", part).torch(self.device)
        order = batches(len(self.coded), config.batch, draw)
        for _ in range(span(config.steps, part, parts)):
            learner.rate = config.rate * (1 - learner.done / config.steps)
            learner.descend(self.loss(*self.coded.batch(next(order), draw), draw))
        if part == parts - 1:
            learner.settle()

    def loss(self, levels_BC: Tensor, scores_BS: Tensor, draw: torch.Generator) -> Tensor:
        """The squared error of the noise plus the mean over columns of the variational bound (paper, eq. 9)."""
        t_B = torch.randint(self.gaussian.steps, (len(levels_BC),), generator=draw, device=self.device)
        noise = torch.randn(scores_BS.shape, generator=draw, device=self.device)
        noisy = self.multinomial.noised(levels_BC, t_B, draw)
        logits, guess = self._predict(noisy, self.gaussian.noised(scores_BS, t_B, noise), t_B, draw)
        total = logits.new_zeros(())
        if self.shape.scores:
            total = total + (guess - noise).square().mean()
        if self.shape.levels:
            kl_B = self.multinomial.divergence(logits, levels_BC, noisy, t_B)
            total = total + self.gaussian.steps * kl_B.mean() / len(self.shape.widths)
        return total

    @torch.no_grad()
    def sample(self, n: int, streams: Streams) -> tuple[Tensor, Tensor]:
        """Rows (n, C) and (n, S): noise, carried back step by step."""
        draw = streams.torch(self.device)
        return joined([self._denoised(size, draw) for size in chunks(n, 4 * self.shape.size)])

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue training, or (smaller) to sample."""
        return {
            "learner": self.learner.state() if training else None,
            "network": None if training else dict(self.network.state_dict()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        if state["learner"] is None:
            self.network.load_state_dict(state["network"])
        else:
            self.learner.restore(state["learner"])

    def _predict(
        self, levels_BC: Tensor, scores_BS: Tensor, t_B: Tensor, draw: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, K) of the clean levels and the noise (B, S) in the scores."""
        x = self.shape.vectors(levels_BC, scores_BS)
        out = self.network(x, (t_B + 1) / self.gaussian.steps, draw)
        return out[:, : self.shape.levels], out[:, self.shape.levels :]

    def _denoised(self, rows: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Levels and scores after all kept steps."""
        kept = torch.linspace(self.gaussian.steps - 1, 0, self.config.sample_steps).round().long().unique().flip(0)
        levels = self.multinomial.uniform(rows, draw)
        scores = torch.randn(rows, self.shape.scores, generator=draw, device=self.device)
        for t, s in zip(kept.tolist(), [*kept.tolist()[1:], -1], strict=True):
            t_B, s_B = (torch.full((rows,), time, device=self.device) for time in (t, s))
            logits, guess = self._predict(levels, scores, t_B, None)
            scores = self._score_step(scores, guess, t, s, draw)
            law = self.multinomial.log_posterior(levels, self.multinomial.normalised(logits), t_B, s_B)
            levels = self.buckets.draw(law, draw)
        return levels, scores

    def _score_step(self, x_BS: Tensor, noise_BS: Tensor, t: int, s: int, draw: torch.Generator) -> Tensor:
        """From time t to s < t by the posterior of the predicted clean scores (Ho et al. 2020, eqs. 6 and 7)."""
        a, before = float(self.gaussian.alpha_bar[t]), float(self.gaussian.alpha_bar[s]) if s >= 0 else 1.0
        clean = ((x_BS - math.sqrt(1 - a) * noise_BS) / math.sqrt(a)).clamp(-_FARTHEST, _FARTHEST)
        mean = (math.sqrt(before) * (1 - a / before) * clean + math.sqrt(a / before) * (1 - before) * x_BS) / (1 - a)
        spread = math.sqrt((1 - before) / (1 - a) * (1 - a / before))
        return mean + spread * torch.randn(x_BS.shape, generator=draw, device=self.device)
