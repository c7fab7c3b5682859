"""A generator of latent vectors: rectified flow or Gaussian diffusion over standardised latents.

Shapes: N training rows, B a batch of them, L latents, G generated rows.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from silosynth.core.messages import Struct, check_positive
from silosynth.core.streams import Streams
from silosynth.models.denoiser import PlainMLP, ResidualMLP
from silosynth.models.flow import draw_times, flow_loss, sample_flow, start_noise
from silosynth.models.gaussian import gaussian_path
from silosynth.models.layers import build
from silosynth.models.training import Learner, batches, held_out

_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class LatentConfig(Struct):
    """The coordinator's generative model of latents, G in the paper."""

    path: Literal["flow", "gaussian"] = "flow"  # rectified flow, or the paper's Gaussian diffusion
    network: Literal["residual", "plain"] = "residual"  # residual blocks, or the paper's plain layers
    fit_to_rows: bool = True  # small tables get narrower networks, fewer steps and smaller batches: see `sized`
    width: int = 512  # of the denoiser's hidden layers
    depth: int = 4  # residual blocks, or plain layers (paper: 8)
    dropout: float = 0.0  # of the plain layers (paper: 0.01)
    steps: int = 8000  # iterations, at most
    steps_per_rows: float = 3.3  # with ``fit_to_rows``: iterations per (number of rows)^0.75
    checks: int = 25  # how often held-out rows judge the weights; each time is a safe point
    batch: int = 1024
    rate: float = 2.5e-3
    decay: float = 1e-3  # weight decay
    average: float = 0.12  # length of the moving average of the weights as a share of all steps; 0 for none
    schedule: Literal["one-cycle", "constant"] = "one-cycle"  # of the learning rate
    clip: float = 1.0  # gradient norm; 0 for no clipping
    held_out: float = 0.1  # share of training rows (at most 2 000) that choose among weights; 0: the last ones
    time_mean: float = 0.0  # of the logit-normal law of training times
    time_sd: float = 1.0
    left: float = 0.15  # noise at which the flow ends, in data units: the decoders' sigma (0 for exact decoders)
    diffusion_steps: int = 200  # T of the Gaussian path (paper: 200)
    variances: Literal["linear", "cosine"] = "linear"  # how they grow over its steps
    target: Literal["noise", "latent"] = "noise"  # eq. (2) and the text, or eq. (5)
    sample_steps: int = 20  # of Heun's method, or of the respaced Gaussian sampler (paper: 25)
    eta: float = 1.0  # 1: strided posterior, 0: deterministic (DDIM)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of matrix products; auto: bfloat16 where it is fast

    def __post_init__(self) -> None:
        Struct.__post_init__(self)
        check_positive(
            self,
            "width",
            "depth",
            "steps",
            "steps_per_rows",
            "checks",
            "batch",
            "rate",
            "time_sd",
            "diffusion_steps",
            "sample_steps",
        )


def sized(config: LatentConfig, rows: int) -> LatentConfig:
    """The config for a table of so many rows: width grows with their 0.4th power, steps with their 0.75th.

    Wide networks trained long on few rows remember them.
    """
    if not config.fit_to_rows:
        return config
    return replace(
        config,
        width=min(config.width, 64 * max(2, round(rows**0.4 / 8))),
        steps=min(config.steps, max(1000, round(config.steps_per_rows * rows**0.75))),
        batch=min(config.batch, max(32, rows // 4)),
    )


class LatentGenerator:
    """Learns the law of latents; `train` in parts, `sample` at the end. Judged by held-out rows, best weights kept."""

    def __init__(self, rows: int, latents: int, config: LatentConfig, streams: Streams, device: torch.device) -> None:
        self.latents, self.streams, self.device = latents, streams, device
        self.config = config = sized(config, rows)
        self.mean, self.scale = torch.zeros(latents, device=device), torch.ones(latents, device=device)
        self.network = _network(latents, config, streams.child("weights").torch()).to(device)
        self.learner = Learner(
            self.network, rate=config.rate, steps=config.steps, schedule=config.schedule, decay=config.decay,
            clip=config.clip, average=config.average,
        )  # fmt: skip
        self.gaussian = gaussian_path(config.diffusion_steps, config.variances, config.target)
        self.arithmetic = torch.bfloat16 if _bfloat16(config.precision, device) else torch.float32

    @property
    def part(self) -> int:
        """Iterations between two checks."""
        return max(1, self.config.steps // self.config.checks)

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.learner.done >= self.config.steps

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
        part = self.learner.done // self.part
        rows, judges = held_out(len(x_NL), config.held_out, 2000, self.streams.child("held-out").torch())
        draw = self.streams.child("part", part).torch(self.device)
        self.descend(x_NL, rows, min(config.steps, (part + 1) * self.part) - self.learner.done, draw)
        loss = self._held_out_loss(x_NL[judges.to(self.device)])
        if config.held_out:
            self.learner.judge(loss)
        return loss

    def descend(self, x_NL: Tensor, rows: Tensor, steps: int, draw: torch.Generator) -> None:
        """So many steps on batches of some of the standardised latents."""
        order = batches(len(rows), self.config.batch, draw)
        rows = rows.to(self.device)
        for _ in range(steps):
            self.learner.descend(self._loss(x_NL[rows[next(order)]], draw, draw))

    def denoise(self, z_BL: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noise a batch, denoise it in one step of the path; the result (B, L) and its squared error (eq. 5)."""
        steps = torch.randint(self.gaussian.steps, (len(z_BL),), generator=draw, device=self.device)
        noise = torch.randn(z_BL.shape, generator=draw, device=self.device)
        clean = self.gaussian.clean(self.network, self.gaussian.noised(z_BL, steps, noise), steps, draw)
        return clean, (clean - z_BL).square().mean()

    def finish(self) -> None:
        """Settle on the weights that the held-out rows preferred."""
        self.learner.settle()

    @torch.no_grad()
    def sample(self, n: int, streams: Streams) -> Tensor:
        """Fresh latents (n, L), on the CPU (paper, Algorithm 2, lines 3-4)."""
        draw = streams.torch(self.device)
        start = start_noise if self.config.path == "flow" else _independent_noise
        drawn = [self._denoised(noise, draw) for noise in start(n, self.latents, draw).split(_CHUNK)]
        return torch.cat(drawn).cpu()

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
            t = draw_times(len(x_BL), config.time_mean, config.time_sd, config.left, draw)
            with self._arithmetic():
                return flow_loss(self.network, x_BL, t, noise, drop)
        steps = torch.randint(self.gaussian.steps, (len(x_BL),), generator=draw, device=self.device)
        with self._arithmetic():
            return self.gaussian.loss(self.network, x_BL, steps, noise, drop)

    @torch.no_grad()
    def _held_out_loss(self, x_JL: Tensor) -> float:
        draw = self.streams.child("judge").torch(self.device)
        repeated = x_JL.repeat(max(1, 4000 // len(x_JL)), 1)
        with self.learner.averaged():
            return float(self._loss(repeated, draw, None))

    def _denoised(self, noise_GL: Tensor, draw: torch.Generator) -> Tensor:
        config = self.config
        with self._arithmetic():
            if config.path == "flow":
                x = sample_flow(self.network, noise_GL, config.sample_steps, config.left)
            else:
                x = self.gaussian.sample(self.network, noise_GL, config.sample_steps, config.eta, draw)
        return x * self.scale + self.mean


def _network(latents: int, config: LatentConfig, draw: torch.Generator) -> nn.Module:
    if config.network == "plain":
        return build(PlainMLP, latents, config.width, config.depth, config.dropout, generator=draw)
    network = build(ResidualMLP, latents, config.width, config.depth, generator=draw)
    network.start_small()
    return network


def _independent_noise(n: int, latents: int, draw: torch.Generator) -> Tensor:
    return torch.randn(n, latents, generator=draw, device=draw.device)


def _bfloat16(precision: str, device: torch.device) -> bool:
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
