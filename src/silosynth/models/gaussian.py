"""The paper's Gaussian diffusion of latents (SiloFuse, eq. 1, 2 and 5), which predicts noise or latents.

Shapes: B rows, L latents, G rows that are drawn, T steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from silosynth.models.denoisers import Network


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
