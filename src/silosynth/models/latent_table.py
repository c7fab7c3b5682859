"""An autoencoder of whole rows and a generative model of its latents, in one place: SiloFuse's networks for one table.

Made for silos that hold different rows and average what they learn: training goes in parts, each part trains one
network, and `networks` says which; it starts from averages of that and of what was trained before (`given`). First the
autoencoder; then, in one part, mean and scale of its latents; then the flow.

Shapes: N training rows, C columns with levels, S scores, K levels, L latents.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from silosynth.core.messages import Positive, Size, Struct
from silosynth.core.streams import Streams
from silosynth.models.autoencoder import TableAutoencoder
from silosynth.models.encoded import EncodedRows, RowShape, chunks, joined, span
from silosynth.models.latent import LatentConfig, LatentGenerator
from silosynth.models.marginals import Calibration, calibrate
from silosynth.models.training import Learner, batches, build

_CALIBRATED_BY = 2**24  # numbers held at once while marginals are matched: 64 MB, also with 10 000 levels
STAGES = 3  # autoencoder, moments, flow; parts at least


class LatentTableConfig(Struct):
    """Sizes and training."""

    hidden: Size[tuple[int, ...]] = (256, 256)  # widths of the encoder's hidden layers; the decoder mirrors them
    latents_per_column: Size[int] = 2
    sigma: float = 0.15  # noise through which the decoder reads unit-variance latents
    weight: float = 5.0  # of squared score errors against cross-entropy
    steps: Positive[int] = 1500  # iterations of the autoencoder in each silo, at most
    batch: Size[int] = 512
    rate: Positive[float] = 4e-3
    decay: float = 1e-4  # weight decay
    clip: float = 5.0  # gradient norm
    first: Positive[float] = 0.25  # share of the parts that train the autoencoder
    calibrate: bool = True  # match the decoded marginals to those of the encoders
    latent: LatentConfig = LatentConfig(  # as SiloFuse's was when this one's training was found; AdamW
        held_out=0.0, steps=8000, steps_per_rows=3.3, wide_rate=0.0, accumulate=1, among=4096, left=0.15, time_mean=-0.5
    )


class Moments(nn.Module):
    """Mean and mean square (L,) of latents: what silos average to know mean and scale of them all."""

    mean: Tensor
    square: Tensor

    def __init__(self, latents: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(latents))
        self.register_buffer("square", torch.ones(latents))


class LatentTable:
    """Autoencoder, moments and flow.

    Args:
        coded: the training rows, or none, with the shape that they have.
        config: sizes and training.
        streams: randomness. Models with the same "weights" below it start alike.
        device: where to compute.
        rows: of all silos; sizes are fitted to them.
        counts_K: how often each level occurs among all rows, for calibration; None to do without.
    """

    def __init__(
        self, coded: EncodedRows, config: LatentTableConfig, streams: Streams, device: torch.device, rows: int,
        counts_K: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.coded, self.config, self.streams, self.device = coded, config, streams, device
        self.shares = None if counts_K is None else _shares(coded.shape, counts_K).to(device)
        self.calibration: Calibration | None = None
        self.shape = coded.shape
        self.latents = config.latents_per_column * (len(coded.shape.widths) + coded.shape.scores)
        self.steps = min(config.steps, max(400, rows // 10))
        weights = streams.child("weights")
        sizes = (self.shape, self.latents, config.hidden, "noisy", False)
        self.coder = build(TableAutoencoder, *sizes, generator=weights.child("coder").torch()).to(device)
        self.learner = Learner(
            self.coder, rate=config.rate, steps=self.steps, decay=config.decay, clip=config.clip
        )  # fmt: skip
        self.moments = Moments(self.latents).to(device)
        self.flow = LatentGenerator(rows, self.latents, config.latent, weights.child("flow"), device)
        self.x_NL: Tensor | None = None  # standardised latents of the training rows

    def networks(self, part: int, parts: int) -> dict[str, nn.Module]:
        """What part ``part`` trains."""
        return dict(list(self.given(part, parts).items())[-1:])

    def given(self, part: int, parts: int) -> dict[str, nn.Module]:
        """What it starts from: that, and what parts before have trained."""
        networks = {"coder": self.coder, "moments": self.moments, "flow": self.flow.network}
        return dict(list(networks.items())[: self._stage(part, parts) + 1])

    def train(self, part: int, parts: int) -> None:
        """Train for one of ``parts`` parts; those of a network divide its steps equally."""
        stage, first = self._stage(part, parts), self._first(parts)
        streams = self.streams.child("part", part)
        if stage == 0:
            self._train_coder(part, first, streams.torch(self.device))
        elif stage == 1:
            self._measure()
        else:
            self._train_flow(part - first - 1, parts - first - 1, streams)

    @torch.no_grad()
    def sample(self, n: int, streams: Streams) -> tuple[Tensor, Tensor]:
        """Fresh rows: levels (n, C) and scores (n, S), on the CPU; enough are drawn to match marginals by."""
        self.coder.eval()
        self._standardise()
        z_GL = self.flow.sample(n, streams.child("latents"))
        draw = streams.child("heads").torch(self.device)
        if self.config.calibrate and self.shares is not None and self.calibration is None:
            self.calibration = self._calibration(streams)
        drawn, start = [], 0
        for size in chunks(n, 2 * self.coded.shape.size):
            logits, means, _ = self.coder.decode(z_GL[start : start + size].to(self.device))
            start += size
            if self.calibration is not None:
                logits, means = self.calibration.apply(logits, means)
            drawn.append((self.coder.buckets.draw(logits, draw), means))
        return joined(drawn)

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue training, or (smaller) to sample."""
        return {
            "coder": dict(self.coder.state_dict()),
            "learner": self.learner.state() if training else None,
            "moments": dict(self.moments.state_dict()),
            "flow": self.flow.state(training),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.coder.load_state_dict(state["coder"])
        if state["learner"] is not None:
            self.learner.restore(state["learner"])
        self.moments.load_state_dict(state["moments"])
        self.flow.restore(state["flow"])
        self.x_NL, self.calibration = None, None

    def _first(self, parts: int) -> int:
        return max(1, min(round(self.config.first * parts), parts - STAGES + 1))

    def _stage(self, part: int, parts: int) -> int:
        """0: autoencoder, 1: moments, 2: flow."""
        first = self._first(parts)
        return (part >= first) + (part > first)

    def _train_coder(self, part: int, parts: int, draw: torch.Generator) -> None:
        config, coded = self.config, self.coded
        self.coder.train()
        order = batches(len(coded), min(config.batch, max(32, len(coded) // 8)), draw)
        self.learner.done = self.steps * part // parts  # also where a silo was away for a while
        for _ in range(span(self.steps, part, parts)):
            rows = next(order).to(self.device)
            noise = torch.randn(len(rows), self.latents, generator=draw, device=self.device)
            self.learner.descend(
                self.coder.loss(
                    coded.levels[rows], coded.scores[rows], noise, sigma=config.sigma, kl=0.0, weight=config.weight
                )
            )

    @torch.no_grad()
    def _encoded(self) -> Tensor:
        self.coder.eval()
        chunks = zip(self.coded.levels.split(8192), self.coded.scores.split(8192), strict=True)
        return torch.cat([self.coder.encode(levels, scores)[0] for levels, scores in chunks])

    def _measure(self) -> None:
        z_NL = self._encoded().double()
        self.moments.mean.copy_(z_NL.mean(dim=0))
        self.moments.square.copy_(z_NL.square().mean(dim=0))

    def _standardise(self) -> None:
        """The moments of all silos' latents are those by which the flow's are standardised."""
        mean = self.moments.mean
        self.flow.mean = mean.clone()
        self.flow.scale = (self.moments.square - mean.square()).clamp_min(1e-12).sqrt()

    def _train_flow(self, part: int, parts: int, streams: Streams) -> None:
        if self.x_NL is None:
            self._standardise()
            self.x_NL = self.flow.standard(self._encoded())
        steps = self.flow.config.steps
        self.flow.learner.done = steps * part // parts
        self.flow.descend(self.x_NL, torch.arange(len(self.x_NL)), span(steps, part, parts), streams)

    def _calibration(self, streams: Streams) -> Calibration:
        assert self.shares is not None
        enough = max(64, min(16_384, _CALIBRATED_BY // max(1, self.coded.shape.size)))
        z_GL = self.flow.sample(enough, streams.child("calibration"))
        logits, means, _ = self.coder.decode(z_GL.to(self.device))
        draw = streams.child("calibration heads").torch(self.device)
        return calibrate(self.coder.buckets, logits, means, self.shares, draw)


def _shares(shape: RowShape, counts_K: Tensor) -> Tensor:
    """How frequent each level is within its column."""
    totals = torch.zeros(len(shape.widths), dtype=counts_K.dtype).index_add_(0, shape.column_of, counts_K)
    return counts_K / totals.clamp(min=1)[shape.column_of]
