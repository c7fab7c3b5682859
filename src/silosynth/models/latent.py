"""Rectified flow: a network learns the velocity of the straight path from data to noise.

x_t = (1 - t) x_0 + t e, velocity e - x_0 (Liu et al. 2023; Lipman et al. 2023). Times are logit-normal and stratified
(Esser et al. 2024), so that a batch covers the path evenly. The network learns what is left over by the best linear
guess for data of unit variance (as in Karras et al. 2022). Shapes: B rows, L latents, T times, each of which holds for
B / T neighbouring rows: what networks compute of a time alone is computed once for these.

Training and sampling end where the path's noise is ``noise`` times its data: closer to the data there is nothing that
decoders who learnt to read through that noise would need.

What the network is to say at a point of the path is the mean velocity of all rows that may have led there. A training
row and its noise are one draw of it. The mean over some thousand rows, each by how likely it led there, has the same
expectation and less variance: nearly none near the noise, where all rows are likely (`mean_velocity`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Fraction, NonNegative, Positive, Size, Steps, Struct
from silosynth.core.streams import Streams
from silosynth.models.training import Learner, batches, build, dropout, held_out, time_features

Network = Callable[..., Tensor]
_START = 0.9995  # the first time at sampling: at 1 the log noise-to-signal ratio is infinite


def last_time(noise: float) -> float:
    """The time at which noise is ``noise`` times data: t / (1 - t) = noise."""
    return noise / (1 + noise)


def draw_times(n: int, mean: float, sd: float, noise: float, generator: torch.Generator) -> Tensor:
    """Stratified logit-normal times (n,), cut off below `last_time`."""
    device = generator.device
    cell = torch.randperm(n, generator=generator, device=device)
    return times((cell + torch.rand(n, generator=generator, device=device)) / n, mean, sd, noise)


def times(rank: Tensor, mean: float, sd: float, noise: float) -> Tensor:
    """Logit-normal times (n,), cut off below `last_time`, of ranks (n,) in [0, 1)."""
    end = torch.tensor(last_time(noise), dtype=torch.float64).logit()
    least = float(torch.special.ndtr((end - mean) / sd))
    return torch.sigmoid(mean + sd * torch.special.ndtri((least + (1 - least) * rank).clamp(1e-5, 1 - 1e-5)))


def of_rows(t_T: Tensor, rows: int) -> Tensor:
    """The time (B, 1) of each row."""
    return t_T.repeat_interleave(rows // len(t_T))[:, None]


def velocity(network: Network, x_BL: Tensor, t_T: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Predicted velocity (B, L) at x_t: the best linear guess for unit-variance data, corrected by the network."""
    t = of_rows(t_T, len(x_BL))
    spread = (t.square() + (1 - t).square()).rsqrt()
    return (2 * t - 1) * spread.square() * x_BL + spread * network(x_BL * spread, t_T, generator)


def flow_loss(
    network: Network, x_BL: Tensor, t_T: Tensor, noise_BL: Tensor, generator: torch.Generator | None,
    among_RL: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Mean squared error of the predicted velocity against each row's own, or the mean one of ``among_RL``."""
    t = of_rows(t_T, len(x_BL))
    there_BL = (1 - t) * x_BL + t * noise_BL
    target_BL = noise_BL - x_BL if among_RL is None else mean_velocity(there_BL, t_T, among_RL)
    return (velocity(network, there_BL, t_T, generator) - target_BL).square().mean()


def mean_velocity(x_BL: Tensor, t_T: Tensor, rows_RL: Tensor) -> Tensor:
    """The mean velocity (B, L) of the rows that may have led to x_t, if each of ``rows_RL`` was as likely to be chosen.

    Where the row that did lead there is one of them, and the others are drawn like it, this is the expectation of its
    own velocity, given x_t and the rows. So losses against either have the same gradient on average (Rao, Blackwell).
    Xu, Tong, Jaakkola (2023) do so for diffusions.
    """
    t = of_rows(t_T, len(x_BL))
    ratio = (1 - t) / t
    ask_BK = torch.cat([ratio / t * x_BL, ratio.square()], dim=1)
    row_RK = torch.cat([rows_RL, -0.5 * rows_RL.square().sum(dim=1, keepdim=True)], dim=1)
    ask, row = ask_BK[None, None], row_RK[None, None]  # their product is the log weight; four dimensions are fast
    of = x_BL.device.type
    with (
        torch.autocast(of, enabled=False) if torch.is_autocast_enabled(of) else nullcontext()
    ):  # weights need precision
        mean_BK = F.scaled_dot_product_attention(ask, row, row, scale=1.0)[0, 0]
    return (x_BL - mean_BK[:, :-1]) / t


def start_noise(n: int, latents: int, generator: torch.Generator) -> Tensor:
    """Standard normal starting points (n, L) from a scrambled Sobol sequence: they cover the space evenly.

    A generated table then has less sampling error than one of independent draws.
    """
    if latents > SobolEngine.MAXDIM:
        return torch.randn(n, latents, generator=generator, device=generator.device)
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device=generator.device))
    points = SobolEngine(latents, scramble=True, seed=seed).draw(n, dtype=torch.float64)
    order = torch.randperm(n, generator=generator, device=generator.device)
    noise: Tensor = torch.special.ndtri(points.clamp(1e-7, 1 - 1e-7)).float().to(generator.device)
    return noise[order]


def sample_flow(network: Network, noise_BL: Tensor, steps: int, noise: float) -> Tensor:
    """Carry noise (B, L) to data plus ``noise`` in ``steps`` steps, with one velocity for each and one at the start.

    A predictor and corrector of third order (Adams, Bashforth and Moulton): a step is first taken along the polynomial
    through the last three velocities, and again along that through the last two and the one found there, which serves
    the next step as well. The first steps are shorter: no velocities are known yet. Where ``noise`` is 0 the last step
    is not corrected, as there is no velocity at time 0.
    """
    x, known, found = noise_BL, [_START], [_velocity_at(network, noise_BL, _START)]
    for now, then in pairwise(_sampling_times(steps, noise)):
        ahead = x + _along(known, found, now, then)
        if then > 0:
            known, found = [*known[-2:], then], [*found[-2:], _velocity_at(network, ahead, then)]
            ahead = x + _along(known, found, now, then)
        x = ahead
    return x / (1 - last_time(noise))


def _sampling_times(steps: int, noise: float) -> list[float]:
    share = torch.linspace(0, 1, steps + 1, dtype=torch.float64) ** 1.2
    return (_START + (last_time(noise) - _START) * share).tolist()


def _velocity_at(network: Network, x_BL: Tensor, time: float) -> Tensor:
    return velocity(network, x_BL, x_BL.new_full((1,), time))


def _along(known: list[float], found: list[Tensor], now: float, then: float) -> Tensor:
    """The integral (B, L) from ``now`` to ``then`` of the polynomial through the ``found`` at the ``known`` times."""
    power = torch.arange(len(known), dtype=torch.float64)
    apart = torch.tensor(known, dtype=torch.float64) - now
    shares = torch.linalg.solve(apart ** power[:, None], (then - now) ** (power + 1) / (power + 1)).tolist()
    total: Tensor = sum((share * v for share, v in zip(shares, found, strict=True)), torch.zeros_like(found[0]))
    return total


@dataclass(frozen=True)
class GaussianPath:
    """A variance schedule beta_1..beta_T and what is read off it.

    Attributes:
        alpha_bar: (T,) products of 1 - beta (paper, below eq. 1).
        target: "noise" or "latent".
    """

    alpha_bar: Tensor
    target: str

    @property
    def steps(self) -> int:
        """T."""
        return len(self.alpha_bar)

    def noised(self, z_BL: Tensor, t_B: Tensor, noise_BL: Tensor) -> Tensor:
        """The forward process F(z, t, e) of eq. (1); t counts from 0."""
        a = self.alpha_bar.to(z_BL.device)[t_B][:, None]
        return a.sqrt() * z_BL + (1 - a).sqrt() * noise_BL

    def loss(
        self, network: Network, z_BL: Tensor, t_B: Tensor, noise_BL: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Mean squared error of the prediction: eq. (2) or eq. (5)."""
        guess = network(self.noised(z_BL, t_B, noise_BL), (t_B + 1) / self.steps, generator)
        return (guess - (noise_BL if self.target == "noise" else z_BL)).square().mean()

    def clean(self, network: Network, x_BL: Tensor, t_B: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The clean latents that the network sees behind x at steps t."""
        guess = network(x_BL, (t_B + 1) / self.steps, generator)
        if self.target == "latent":
            return guess
        a = self.alpha_bar.to(x_BL.device)[t_B][:, None]
        return (x_BL - (1 - a).sqrt() * guess) / a.sqrt()

    def sample(self, network: Network, noise_BL: Tensor, steps: int, eta: float, generator: torch.Generator) -> Tensor:
        """Carry noise (B, L) to latents over ``steps`` of the T steps (respaced; betas follow from the kept alpha_bar).

        ``eta`` = 1 draws from the strided posterior (DDPM), 0 is deterministic (DDIM).
        """
        kept = torch.linspace(self.steps - 1, 0, steps).round().long().unique().flip(0)
        x = noise_BL
        for i, t in enumerate(kept.tolist()):
            a = float(self.alpha_bar[t])
            before = float(self.alpha_bar[kept[i + 1]]) if i + 1 < len(kept) else 1.0
            z = self.clean(network, x, torch.full((len(x),), t, device=x.device))
            noise = (x - math.sqrt(a) * z) / math.sqrt(1 - a)
            sigma = eta * math.sqrt((1 - before) / (1 - a) * max(0.0, 1 - a / before))
            fresh = torch.randn(x.shape, generator=generator, device=x.device) if sigma > 0 else torch.zeros_like(x)
            x = math.sqrt(before) * z + math.sqrt(max(0.0, 1 - before - sigma**2)) * noise + sigma * fresh
        return x


def gaussian_path(steps: int, schedule: str, target: str) -> GaussianPath:
    """A path of ``steps`` steps with a "linear" (Ho et al.) or "cosine" (Nichol and Dhariwal) schedule.

    The linear one keeps the end points of T = 1000, rescaled, so that the last step is noise for any T.
    """
    if schedule == "linear":
        scale = 1000 / steps
        beta = torch.linspace(scale * 1e-4, min(0.999, scale * 0.02), steps, dtype=torch.float64)
    else:
        s = torch.arange(steps + 1, dtype=torch.float64) / steps
        bar = torch.cos((s + 0.008) / 1.008 * math.pi / 2) ** 2
        beta = (1 - bar[1:] / bar[:-1]).clamp(max=0.999)
    return GaussianPath(torch.cumprod(1 - beta, 0).float(), target)


class GatedMLP(nn.Module):
    """Residual blocks of gated linear units (Shazeer 2020), whose normalised input is scaled and shifted by the time.

    Every block reads the latents again.
    """

    def __init__(self, latents: int, width: int, blocks: int) -> None:
        super().__init__()
        self.time = nn.Linear(32, 64)
        self.enter = nn.Linear(latents, width)
        self.blocks = nn.ModuleList(_Block(latents, width, 64) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, latents)

    def forward(self, x_BL: Tensor, t_T: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Prediction (B, L) at times in (0, 1)."""
        when_TE = F.silu(self.time(_ratio_features(t_T)))
        h: Tensor = self.enter(x_BL)
        for block in self.blocks:
            h = block(h, x_BL, when_TE)
        out: Tensor = self.leave(self.norm(h))
        return out.float()

    @torch.no_grad()
    def start_small(self) -> None:
        """Let blocks start close to the identity, and the whole at zero."""
        for block in self.modules():
            if isinstance(block, _Block):
                block.second.weight.mul_(0.1)
                block.time.weight.mul_(0.1)
        self.leave.weight.zero_()
        self.leave.bias.zero_()


class _Block(nn.Module):
    def __init__(self, latents: int, width: int, time: int) -> None:
        super().__init__()
        inner = max(1, 2 * width // 3)  # as many weights as with two layers of the full width
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.again = nn.Linear(latents, 2 * inner)
        self.first, self.second = nn.Linear(width, 2 * inner), nn.Linear(inner, width)
        self.time = nn.Linear(time, 2 * width)

    def forward(self, h_BW: Tensor, x_BL: Tensor, when_TE: Tensor) -> Tensor:
        scale, shift = self.time(when_TE)[:, None].chunk(2, dim=-1)
        of_times = self.norm(h_BW).unflatten(0, (len(when_TE), -1))
        read = self.first((of_times * (1 + scale) + shift).flatten(0, 1)) + self.again(x_BL)
        gate, value = read.chunk(2, dim=-1)
        change: Tensor = self.second(F.silu(gate) * value)
        return h_BW + change


def wide(network: nn.Module) -> list[Tensor]:
    """The two large matrices of each gated block."""
    blocks = [block for block in network.modules() if isinstance(block, _Block)]
    return [layer.weight for block in blocks for layer in (block.first, block.second)]


class PlainMLP(nn.Module):
    """The paper's denoiser: ``layers`` linear layers with GELU and dropout; the time's embedding is added once."""

    def __init__(self, latents: int, width: int, layers: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.time = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(
            nn.Linear(latents if i == 0 else width, latents if i == layers - 1 else width) for i in range(layers)
        )

    def forward(self, x_BL: Tensor, t_T: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Prediction (B, L); dropout only where ``generator`` is given."""
        when = self.time(time_features(t_T, 64))
        h: Tensor = self.layers[0](x_BL) + when.repeat_interleave(len(x_BL) // len(t_T), dim=0)
        for layer in self.layers[1:]:
            h = layer(dropout(F.gelu(h), self.rate, generator))
        return h.float()


def _ratio_features(t_T: Tensor) -> Tensor:
    """Sinusoidal features (T, 32) of the log noise-to-signal ratio of the straight path."""
    ratio = torch.logit(t_T, eps=3e-4)[:, None]
    rates = torch.exp(torch.linspace(math.log(0.125), math.log(8.0), 16, device=t_T.device))
    return torch.cat([(ratio * rates).sin(), (ratio * rates).cos()], dim=1)


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
    steps: Positive[int] = 4800  # iterations, at most
    steps_per_rows: Positive[float] = 2.7  # with ``fit_to_rows``: iterations per (number of rows)^0.75
    checks: Positive[int] = 25  # how often held-out rows judge the weights; each time is a safe point
    batch: Size[int] = 512
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
        fast = config.precision == "auto" and fast_bfloat16(device)
        self.arithmetic = torch.bfloat16 if fast or config.precision == "bfloat16" else torch.float32

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
        """Latents standardised by the mean and scale of the training latents."""
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
        """``steps`` steps on batches of the standardised latents that ``rows`` names."""
        order = batches(len(rows), self.config.batch, draw)
        rows_NL = x_NL[rows.to(self.device)]
        for _ in range(steps):
            self.learner.descend(self._loss(rows_NL[next(order)], draw, draw, rows_NL))

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
        with self.learner.averaged():
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
