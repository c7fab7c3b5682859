"""DP-SGD one row at a time: each row's gradient is computed, clipped and added."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def clipped_sum_by_rows(
    loss: Callable[..., Tensor], parameters: Mapping[str, Tensor], rows: tuple[Tensor, ...], clip: float
) -> dict[str, Tensor]:
    """Sum over rows of the gradient of ``loss(parameters, *row)``, clipped to norm ``clip`` over all parameters."""
    sums = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for i in range(len(rows[0])):
        leaves = {name: parameter.detach().clone().requires_grad_() for name, parameter in parameters.items()}
        loss(leaves, *(each[i] for each in rows)).backward()
        gradients = {name: leaf.grad for name, leaf in leaves.items()}
        norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
        for name, gradient in gradients.items():
            sums[name] += gradient * min(1.0, clip / float(norm) if norm > 0 else 1.0)
    return sums
