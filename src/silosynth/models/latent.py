"""The coordinator's generative model of latents, G in the paper: its options, its training, and drawing from it.

A rectified flow (`models.flow`) or the paper's Gaussian diffusion (`models.gaussian`), by one of the networks of
`models.denoisers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Few, Fraction, NonNegative, Positive, Size, Steps, Struct
from silosynth.core.streams import Streams
from silosynth.core.threads import SharedWork, computing_on
from silosynth.models.denoisers import GatedMLP, PlainMLP, wide
from silosynth.models.flow import draw_times, flow_loss, sample_flow, start_noise
from silosynth.models.gaussian import gaussian_path
from silosynth.models.training import Learner, batches, build, held_out

_CHUNK = 4096
_TOGETHER = 8  # rows of a batch that share a time
_MOST_AMONG = 2**18  # latents of all rows over which a target is averaged: it shall take less time than the network


class LatentConfig(Struct):
    """The coordinator's generative model of latents, G in the paper."""

    path: Literal["flow", "gaussian"] = "flow"  # rectified flow, or the paper's Gaussian diffusion
    network: Literal["gated", "plain"] = "gated"  # gated residual blocks, or the paper's plain layers
    fit_to_rows: bool = True  # small tables get narrower networks, fewer steps and smaller batches: see `sized`
    width: Size[int] = 256  # of the denoiser's hidden layers
    depth: Size[int] = 6  # residual blocks, or plain layers (paper: 8)
    dropout: Fraction[float] = 0.0  # of the plain layers (paper: 0.01)
    steps: Positive[int] = 5200  # iterations, each on a batch, at most
    steps_per_rows: Positive[float] = 3.2  # with ``fit_to_rows``: iterations per (number of rows)^0.75
    checks: Positive[int] = 25  # how often held-out rows judge the weights; each time is a safe point
    batch: Size[int] = 512
    accumulate: Few[int] = 4  # batches on whose mean gradient weights move; each can have a thread of its own
    rate: Positive[float] = 2.5e-3
    wide_rate: NonNegative[float] = 0.02  # of gated blocks' large matrices, by Shampoo; 0: by AdamW, as all others
    decay: NonNegative[float] = 1e-3  # weight decay
    average: NonNegative[float] = 0.12  # length of the weights' moving average as a share of all steps; 0 for none
    schedule: Literal["one-cycle", "constant"] = "one-cycle"  # of the learning rate
    clip: NonNegative[float] = 1.0  # gradient norm; 0 for no clipping
    held_out: Fraction[float] = 0.1  # share of rows (at most 2 000) that choose among weights; 0: the last ones
    time_mean: float = -0.3  # of the logit-normal law of training times
    time_sd: Positive[float] = 1.0
    among: Size[int] = 1024  # rows over which a flow's target is averaged, at most; 1: each row has its own
    left: NonNegative[float] = 0.2  # noise at which the flow ends, in data units: the decoders' sigma, or 0
    diffusion_steps: Size[int] = 200  # T of the Gaussian path (paper: 200)
    variances: Literal["linear", "cosine"] = "linear"  # how they grow over its steps
    target: Literal["noise", "latent"] = "noise"  # eq. (2) and the text, or eq. (5)
    sample_steps: Steps[int] = 12  # along the flow, or of the respaced Gaussian sampler (paper: 25)
    eta: NonNegative[float] = 1.0  # 1: strided posterior, 0: deterministic (DDIM)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of matrix products; auto: bfloat16 where it is fast


def sized(config: LatentConfig, rows: int) -> LatentConfig:
    """The config for a table of ``rows`` rows: width grows with rows^0.4, steps with rows^0.75.

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


MOST_LATENTS = 2**16  # of all silos


class LatentGenerator:
    """Learns the law of latents; `train` in parts, `sample` at the end. Judged by held-out rows, best weights kept."""

    def __init__(self, rows: int, latents: int, config: LatentConfig, streams: Streams, device: torch.device) -> None:
        self.latents, self.streams, self.device = latents, streams, device
        self.config = config = sized(config, rows)
        if latents > MOST_LATENTS:
            rule = f"A row has at most {MOST_LATENTS:,} latents, as they take memory for each row that is drawn"
            raise ConfigError(rule, f"{latents:,}", "Lower latents_per_column.")
        self.network = _network(latents, config, streams.child("weights").torch()).to(device)  # first: it has a limit
        self.mean, self.scale = torch.zeros(latents, device=device), torch.ones(latents, device=device)
        self.learner = Learner(
            self.network, rate=config.rate, steps=config.steps, schedule=config.schedule, decay=config.decay,
            clip=config.clip, average=config.average, wide=wide(self.network) if config.wide_rate else (),
            wide_rate=config.wide_rate,
        )  # fmt: skip
        self.gaussian = gaussian_path(config.diffusion_steps, config.variances, config.target)
        self.work = SharedWork(config.accumulate if device.type == "cpu" else 1)
        fast = config.precision == "auto" and fast_bfloat16(device)
        self.arithmetic = torch.bfloat16 if fast or config.precision == "bfloat16" else torch.float32

    @property
    def part(self) -> int:
        """Iterations between two checks: whole steps."""
        step = self.config.accumulate
        return step * max(1, self.config.steps // self.config.checks // step)

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.learner.done >= self.config.steps

    def standardise(self, z_NL: Tensor) -> Tensor:
        """Fix mean and scale from the training latents; returns them standardised."""
        self.mean, self.scale = z_NL.mean(dim=0), z_NL.std(dim=0, correction=0).clamp_min(1e-6)
        return self.standard(z_NL)

    def standard(self, z_NL: Tensor) -> Tensor:
        """Latents standardised by the mean and scale of the training latents."""
        return (z_NL - self.mean) / self.scale

    def train(self, x_NL: Tensor) -> float:
        """One part of the training on standardised latents (paper, Algorithm 1, lines 13-18); the held-out loss."""
        config = self.config
        part = self.learner.done // self.part
        rows, judges = held_out(len(x_NL), config.held_out, 2000, self.streams.child("held-out").torch())
        steps = min(config.steps, (part + 1) * self.part) - self.learner.done
        self.descend(x_NL, rows, steps, self.streams.child("part", part))
        loss = self._held_out_loss(x_NL[judges.to(self.device)])
        if config.held_out:
            self.learner.judge(loss)
        return loss

    def descend(self, x_NL: Tensor, rows: Tensor, steps: int, streams: Streams) -> None:
        """``steps`` iterations on batches of the standardised latents that ``rows`` names."""
        config, learner = self.config, self.learner
        draws = [streams.torch(self.device)]  # one for each of the batches of a step
        draws += [streams.child("batch", i).torch(self.device) for i in range(1, config.accumulate)]
        order = batches(len(rows), config.batch, draws[0])
        rows_NL = x_NL[rows.to(self.device)]

        def gradients(x_BL: Tensor, draw: torch.Generator) -> tuple[Tensor, ...]:
            return torch.autograd.grad(self._loss(x_BL, draw, draw, rows_NL), learner.weights)

        with self.work.shared() as share:
            for first in range(0, steps, config.accumulate):
                each = [(rows_NL[next(order)], draw) for draw in draws[: steps - first]]
                learner.follow(share(gradients, each), share)

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
        if self.config.path == "flow":
            return self.carried(self.start(n, streams))
        steps, eta, draw = self.config.sample_steps, self.config.eta, streams.torch(self.device)
        noise_GL = torch.randn(n, self.latents, generator=draw, device=self.device)
        return self._in_chunks(noise_GL, lambda part: self.gaussian.sample(self.network, part, steps, eta, draw))

    def start(self, n: int, streams: Streams) -> Tensor:
        """Noise (n, L), on the CPU, that `carried` makes latents of."""
        return start_noise(n, self.latents, streams.torch())

    @torch.no_grad()
    def carried(self, noise_GL: Tensor) -> Tensor:
        """The latents (G, L), on the CPU, that the flow makes of noise."""
        steps, left = self.config.sample_steps, self.config.left
        return self._in_chunks(noise_GL, lambda part: sample_flow(self.network, part, steps, left))

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

    def arithmetics(self) -> Any:
        """The context in which networks compute."""
        if self.arithmetic == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.arithmetic)

    def _loss(
        self, x_BL: Tensor, draw: torch.Generator, drop: torch.Generator | None, rows_NL: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch; that of a flow against means over training rows, if these are given."""
        config = self.config
        noise = torch.randn(x_BL.shape, generator=draw, device=self.device)
        if config.path == "flow":
            times = len(x_BL) // math.gcd(len(x_BL), _TOGETHER)
            t_T = draw_times(times, config.time_mean, config.time_sd, config.left, draw)
            among_RL = None if rows_NL is None or config.among == 1 else self._among(x_BL, rows_NL, draw)
            with self.arithmetics():
                return flow_loss(self.network, x_BL, t_T, noise, drop, among_RL)
        steps = torch.randint(self.gaussian.steps, (len(x_BL),), generator=draw, device=self.device)
        with self.arithmetics():
            return self.gaussian.loss(self.network, x_BL, steps, noise, drop)

    def _among(self, x_BL: Tensor, rows_NL: Tensor, draw: torch.Generator) -> Tensor:
        """A batch and others of the training rows (R, L), or all of these where they are few."""
        others = max(0, min(self.config.among, _MOST_AMONG // self.latents) - len(x_BL))
        if len(rows_NL) <= len(x_BL) + others:
            return rows_NL
        return torch.cat([x_BL, rows_NL[torch.randint(len(rows_NL), (others,), generator=draw, device=self.device)]])

    @torch.no_grad()
    def _held_out_loss(self, x_JL: Tensor) -> float:
        draw = self.streams.child("judge").torch(self.device)
        repeated = x_JL.repeat(max(1, 4000 // len(x_JL)), 1)
        with computing_on(1), self.learner.averaged():  # for the same choice of weights on any number of threads
            return float(self._loss(repeated, draw, None))

    def _in_chunks(self, noise_GL: Tensor, way: Callable[[Tensor], Tensor]) -> Tensor:
        with self.arithmetics():
            x_GL = torch.cat([way(part) for part in noise_GL.to(self.device).split(_CHUNK)])
        return (x_GL * self.scale + self.mean).cpu()


def _network(latents: int, config: LatentConfig, draw: torch.Generator) -> nn.Module:
    if config.network == "plain":
        return build(PlainMLP, latents, config.width, config.depth, config.dropout, generator=draw)
    network = build(GatedMLP, latents, config.width, config.depth, generator=draw)
    network.start_small()
    return network


def fast_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16, as far as this PyTorch can tell."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # private, and not in every PyTorch
    return any(getattr(torch.cpu, name, lambda: False)() for name in asked)
