"""Rectified flow: a network learns the velocity of the straight path from data to noise.

x_t = (1 - t) x_0 + t e, velocity e - x_0 (Liu et al. 2023; Lipman et al. 2023). Times are logit-normal and stratified
(Esser et al. 2024), so that a batch covers the path evenly. The network learns what is left over by the best linear
guess for data of unit variance (as in Karras et al. 2022). Shapes: B rows, L latents.

Training and sampling end where the path's noise is ``noise`` times its data: closer to the data there is nothing that
decoders who learnt to read through that noise would need.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

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


def velocity(network: Network, x_BL: Tensor, t_B: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Predicted velocity (B, L) at x_t: the best linear guess for unit-variance data, corrected by the network."""
    t = t_B[:, None]
    spread = (t.square() + (1 - t).square()).rsqrt()
    return (2 * t - 1) * spread.square() * x_BL + spread * network(x_BL * spread, t_B, generator)


def flow_loss(
    network: Network, x_BL: Tensor, t_B: Tensor, noise_BL: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Mean squared error of the predicted velocity."""
    t = t_B[:, None]
    guess = velocity(network, (1 - t) * x_BL + t * noise_BL, t_B, generator)
    return (guess - (noise_BL - x_BL)).square().mean()


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
    """Carry noise (B, L) to data plus ``noise`` in equal steps by Heun's method (a last step to 0 is Euler's)."""
    x, times = noise_BL, torch.linspace(_START, last_time(noise), steps + 1).tolist()
    for now, then in pairwise(times):
        slope = velocity(network, x, x.new_full((len(x),), now))
        if then > 0:
            ahead = velocity(network, x + (then - now) * slope, x.new_full((len(x),), then))
            slope = (slope + ahead) / 2
        x = x + (then - now) * slope
    latents: Tensor = x / (1 - times[-1])
    return latents
