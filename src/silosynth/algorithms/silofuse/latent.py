"""A generator of latent vectors: rectified flow or Gaussian diffusion over standardised latents.

Shapes: N training rows, B a batch of them, L latents, G generated rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from silosynth.core.messages import Struct
from silosynth.core.streams import Streams
from silosynth.models.denoiser import PlainMLP, ResidualMLP
from silosynth.models.flow import draw_times, flow_loss, sample_flow, time_grid
from silosynth.models.gaussian import gaussian_path
from silosynth.models.layers import build
from silosynth.models.training import Learner, batches, held_out


@dataclass(frozen=True, slots=True)
class LatentConfig(Struct):
    """The coordinator's generative model of latents, G in the paper."""

    path: Literal["flow", "gaussian"] = "flow"  # rectified flow, or the paper's Gaussian diffusion
    network: Literal["residual", "plain"] = "residual"  # residual blocks, or the paper's plain layers
    width: int = 512  # of the denoiser's hidden layers
    depth: int = 4  # residual blocks, or plain layers (paper: 8)
    dropout: float = 0.0  # of the plain layers (paper: 0.01)
    steps: int = 8000  # iterations
    part: int = 250  # iterations between held-out checks and safe points
    patience: int = 0  # stop after so many checks without improvement; 0 for never
    batch: int = 1024
    rate: float = 2e-3
    decay: float = 1e-3  # weight decay
    average: float = 0.999  # decay of the moving average of the weights; 0 for none
    held_out: float = 0.1  # share of training rows (at most 2 000) that judge the averaged weights
    noise: float = 0.0  # Gaussian noise on training latents
    time_mean: float = -0.5  # of the logit-normal law of training times
    time_sd: float = 1.2
    diffusion_steps: int = 200  # T of the Gaussian path (paper: 200)
    schedule: Literal["linear", "cosine"] = "linear"  # of its variances
    target: Literal["noise", "latent"] = "noise"  # eq. (2) and the text, or eq. (5)
    sample_steps: int = 50  # of Heun's method, or of the respaced Gaussian sampler (paper: 25)
    left: float = 0.1  # noise left on flow samples, in data units: the decoders' sigma (0 for exact decoders)
    eta: float = 1.0  # 1: strided posterior, 0: deterministic (DDIM)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of matrix products; auto: bfloat16 where it is fast


class LatentGenerator:
    """Learns the law of latents; `train` in parts, `sample` at the end. Judged by held-out rows, best weights kept."""

    def __init__(self, latents: int, config: LatentConfig, streams: Streams, device: torch.device) -> None:
        self.latents, self.config, self.streams, self.device = latents, config, streams, device
        self.mean, self.scale = torch.zeros(latents, device=device), torch.ones(latents, device=device)
        draw = streams.child("weights").torch()
        if config.network == "residual":
            network = build(ResidualMLP, latents, config.width, config.depth, generator=draw)
        else:
            network = build(PlainMLP, latents, config.width, config.depth, config.dropout, generator=draw)
        self.network = network.to(device)
        self.learner = Learner(
            self.network, rate=config.rate, steps=config.steps, decay=config.decay, average=config.average
        )
        self.gaussian = gaussian_path(config.diffusion_steps, config.schedule, config.target)
        self.arithmetic = torch.bfloat16 if _bfloat16(config.precision, device) else torch.float32

    @property
    def parts(self) -> int:
        """How many parts `train` has at most."""
        return -(-self.config.steps // self.config.part)

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or the held-out loss has stopped falling."""
        config = self.config
        return self.learner.step >= config.steps or 0 < config.patience <= self.learner.since_best

    def standardise(self, z_NL: Tensor) -> Tensor:
        """Fix mean and scale from the training latents; returns them standardised."""
        self.mean, self.scale = z_NL.mean(dim=0), z_NL.std(dim=0, correction=0).clamp_min(1e-6)
        return self.standard(z_NL)

    def standard(self, z_NL: Tensor) -> Tensor:
        """Latents with the mean and scale of the training latents taken out."""
        return (z_NL - self.mean) / self.scale

    def train(self, x_NL: Tensor) -> float:
        """One part of the training on standardised latents (paper, Algorithm 1, lines 13-18); the held-out loss."""
        config = self.config
        part = self.learner.step // config.part
        rows, judges = held_out(len(x_NL), config.held_out, 2000, self.streams.child("held-out").torch())
        draw = self.streams.child("part", part).torch(self.device)
        order = batches(len(rows), config.batch, draw)
        goal = min(config.steps, (part + 1) * config.part)
        rows = rows.to(self.device)
        while self.learner.step < goal:
            x_BL = x_NL[rows[next(order)]]
            if config.noise:
                x_BL = x_BL + config.noise * torch.randn(x_BL.shape, generator=draw, device=self.device)
            self.learner.descend(self._loss(x_BL, draw, draw), clip=1.0)
        loss = self._held_out_loss(x_NL[judges.to(self.device)])
        self.learner.judge(loss)
        return loss

    def denoise(self, z_BL: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noise a batch, denoise it in one step of the Gaussian path; the result (B, L) and its squared error (eq. 5)."""
        steps = torch.randint(self.gaussian.steps, (len(z_BL),), generator=draw, device=self.device)
        noise = torch.randn(z_BL.shape, generator=draw, device=self.device)
        clean = self.gaussian.clean(self.network, self.gaussian.noised(z_BL, steps, noise), steps, draw)
        return clean, (clean - z_BL).square().mean()

    def finish(self) -> None:
        """Settle on the weights that the held-out rows preferred."""
        self.learner.use(self.learner.best_weights)

    @torch.no_grad()
    def sample(self, n: int, streams: Streams, chunk: int = 4096) -> Tensor:
        """Fresh latents (n, L), on the CPU (paper, Algorithm 2, lines 3-4)."""
        draw = streams.torch(self.device)
        drawn = [self._sample(size, draw) for size in _sizes(n, chunk)]
        return torch.cat(drawn).cpu() if drawn else torch.zeros(0, self.latents)

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue training, or (smaller) to sample."""
        return {
            "mean": self.mean,
            "scale": self.scale,
            "learner": self.learner.state() if training else None,
            "network": None if training else dict(self.network.state_dict()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.mean, self.scale = state["mean"].to(self.device), state["scale"].to(self.device)
        if state["learner"] is None:
            self.network.load_state_dict(state["network"])
        else:
            self.learner.restore(state["learner"])

    def _arithmetic(self) -> Any:
        if self.arithmetic == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.arithmetic)

    def _loss(self, x_BL: Tensor, draw: torch.Generator, drop: torch.Generator | None) -> Tensor:
        config = self.config
        noise = torch.randn(x_BL.shape, generator=draw, device=self.device)
        if config.path == "flow":
            t = draw_times(len(x_BL), config.time_mean, config.time_sd, draw)
            with self._arithmetic():
                return flow_loss(self.network, x_BL, t, noise, drop)
        steps = torch.randint(self.gaussian.steps, (len(x_BL),), generator=draw, device=self.device)
        with self._arithmetic():
            return self.gaussian.loss(self.network, x_BL, steps, noise, drop)

    @torch.no_grad()
    def _held_out_loss(self, x_JL: Tensor) -> float:
        draw = self.streams.child("judge").torch(self.device)
        repeated = x_JL.repeat(max(1, 4000 // len(x_JL)), 1)
        trained = self.learner.use(self.learner.smooth)
        loss = float(self._loss(repeated, draw, None))
        self.learner.use(trained)
        return loss

    def _sample(self, n: int, draw: torch.Generator) -> Tensor:
        config = self.config
        noise = torch.randn(n, self.latents, generator=draw, device=self.device)
        with self._arithmetic():
            if config.path == "flow":
                x = sample_flow(self.network, noise, time_grid(config.sample_steps, config.time_mean, 1.6, config.left))
            else:
                x = self.gaussian.sample(self.network, noise, config.sample_steps, config.eta, draw)
        return x * self.scale + self.mean


def _sizes(n: int, chunk: int) -> Iterator[int]:
    for start in range(0, n, chunk):
        yield min(chunk, n - start)


def _bfloat16(precision: str, device: torch.device) -> bool:
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
