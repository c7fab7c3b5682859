"""Networks that say, of latents with noise and the time, what a flow or a diffusion is to predict.

Shapes: B rows, L latents, W width, T times, each of which holds for B / T neighbouring rows, E features of a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.models.training import dropout, time_features

Network = Callable[..., Tensor]


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
