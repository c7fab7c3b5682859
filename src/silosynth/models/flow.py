"""Rectified flow: a network learns the velocity of the straight path from data to noise.

x_t = (1 - t) x_0 + t e, velocity e - x_0 (Liu et al. 2023; Lipman et al. 2023). Times are logit-normal and stratified
(Esser et al. 2024), so that a batch covers the path evenly. Shapes: B rows, L latents.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Network = Callable[..., Tensor]


def draw_times(n: int, mean: float, sd: float, generator: torch.Generator) -> Tensor:
    """Stratified logit-normal times (n,) in (0, 1)."""
    device = generator.device
    cell = torch.randperm(n, generator=generator, device=device)
    rank = (cell + torch.rand(n, generator=generator, device=device)) / n
    return torch.sigmoid(mean + sd * torch.special.ndtri(rank.clamp(1e-5, 1 - 1e-5)))


def flow_loss(network: Network, x_BL: Tensor, t_B: Tensor, noise_BL: Tensor, generator: torch.Generator | None) -> Tensor:
    """Mean squared error of the predicted velocity."""
    t = t_B[:, None]
    return (network((1 - t) * x_BL + t * noise_BL, t_B, generator) - (noise_BL - x_BL)).square().mean()


def time_grid(steps: int, mean: float, sd: float, noise: float) -> Tensor:
    """Decreasing times (steps + 1,) from 1 to where the path's noise is ``noise`` times its data; dense in between.

    Stopping short of t = 0 leaves on the data just the noise through which the decoders have learnt to read.
    """
    rank = torch.linspace(0.999, 0.001, steps + 1, dtype=torch.float64)
    t = torch.sigmoid(mean + sd * torch.special.ndtri(rank))
    t, end = (t - t[-1]) / (t[0] - t[-1]), noise / (1 + noise)
    return (end + (1 - end) * t).float()


def sample_flow(network: Network, noise_BL: Tensor, times: Tensor) -> Tensor:
    """Carry noise (B, L) along ``times`` by Heun's method (a last step to 0 is Euler's); scaled back to data."""
    x = noise_BL
    for now, then in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        slope = network(x, x.new_full((len(x),), now))
        if then > 0:
            ahead = network(x + (then - now) * slope, x.new_full((len(x),), then))
            slope = (slope + ahead) / 2
        x = x + (then - now) * slope
    return x / (1 - float(times[-1]))
