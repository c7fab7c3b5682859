"""Networks that look at a noisy latent vector and its time. Shapes: B rows, L latents."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.models.layers import dropout, time_features


class ResidualMLP(nn.Module):
    """Residual blocks whose normalised input is scaled and shifted by the time."""

    def __init__(self, latents: int, width: int, blocks: int) -> None:
        super().__init__()
        self.time = nn.Linear(32, 64)
        self.enter = nn.Linear(latents, width)
        self.blocks = nn.ModuleList(_Block(width, 64) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, latents)

    def forward(self, x_BL: Tensor, t_B: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Prediction (B, L) at times in (0, 1)."""
        when = F.silu(self.time(_ratio_features(t_B)))
        h: Tensor = self.enter(x_BL)
        for block in self.blocks:
            h = block(h, when)
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
    def __init__(self, width: int, time: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.time = nn.Linear(time, 2 * width)

    def forward(self, h: Tensor, when: Tensor) -> Tensor:
        scale, shift = self.time(when).chunk(2, dim=-1)
        change: Tensor = self.second(F.silu(self.first(self.norm(h) * (1 + scale) + shift)))
        return h + change


class PlainMLP(nn.Module):
    """The paper's denoiser: ``layers`` linear layers with GELU and dropout; the time's embedding is added once."""

    def __init__(self, latents: int, width: int, layers: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.time = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(
            nn.Linear(latents if i == 0 else width, latents if i == layers - 1 else width) for i in range(layers)
        )

    def forward(self, x_BL: Tensor, t_B: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Prediction (B, L); dropout only where ``generator`` is given."""
        h: Tensor = self.layers[0](x_BL) + self.time(time_features(t_B, 64))
        for layer in self.layers[1:]:
            h = layer(dropout(F.gelu(h), self.rate, generator))
        return h.float()


def _ratio_features(t_B: Tensor) -> Tensor:
    """Sinusoidal features (B, 32) of the log noise-to-signal ratio of the straight path."""
    ratio = torch.logit(t_B, eps=3e-4)[:, None]
    rates = torch.exp(torch.linspace(math.log(0.125), math.log(8.0), 16, device=t_B.device))
    return torch.cat([(ratio * rates).sin(), (ratio * rates).cos()], dim=1)
