"""VT-GAN in one piece: the same weights, batch and random draws in one graph, written out layer by layer in float64.

No silo, no message, no cut: autograd sees the whole network. Slow and obviously right.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def weights_of(module: torch.nn.Module) -> dict[str, Tensor]:
    """Copies of a module's weights that track gradients."""
    return {name: weight.detach().double().requires_grad_() for name, weight in module.named_parameters()}


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def generator(w: dict[str, Tensor], blocks: int, x: Tensor) -> Tensor:
    """Blocks of FC, batch normalisation, ReLU, each concatenated with its input; then FC."""
    for i in range(blocks):
        h = linear(w, f"linears.{i}", x)
        h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()
        x = torch.cat([(h * w[f"norms.{i}.weight"] + w[f"norms.{i}.bias"]).clamp(min=0), x], dim=1)
    return linear(w, "last", x)


def critic(w: dict[str, Tensor], blocks: int, x: Tensor, masks: list[Tensor], rate: float, prefix: str = "") -> Tensor:
    """Blocks of FC, leaky ReLU, dropout; then FC where there is one."""
    layers = sum(name.startswith(prefix) and name.endswith("weight") for name in w)
    for i in range(layers):
        x = linear(w, f"{prefix}linears.{i}", x)
        if i < blocks:
            x = torch.where(x > 0, x, 0.2 * x)
            x = x * masks[i].double() / (1 - rate) if masks else x
    return x


def rows(out: Tensor, widths: tuple[int, ...], tau: float, uniform: Tensor) -> Tensor:
    """Generated rows: one softmax after the other, then tanh."""
    noise = -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7))).double()
    parts, start = [], 0
    for width in widths:
        part = slice(start, start + width)
        parts.append(F.softmax((out[:, part] + noise[:, part]) / tau, dim=1))
        start += width
    return torch.cat([*parts, out[:, start:].tanh()], dim=1)


def real_vectors(levels: Tensor, scores: Tensor, widths: tuple[int, ...]) -> Tensor:
    """Encoded rows, one-hot column by column."""
    parts = [F.one_hot(levels[:, c], width).double() for c, width in enumerate(widths)]
    return torch.cat([*parts, scores.double()], dim=1)


def penalty(judge, fake: Tensor, real: Tensor, mix: Tensor) -> Tensor:
    """Mean squared deviation of the gradient's norm from one, row by row."""
    between = fake + mix.double() * (real - fake)
    (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    return torch.stack([(row.square().sum().sqrt() - 1) ** 2 for row in slope]).mean()
