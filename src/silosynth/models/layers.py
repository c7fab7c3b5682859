"""Building blocks whose initial weights and dropout come from a given random generator."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
_AMBIENT = threading.Lock()  # silos in threads must not put back each other's states


def build(make: Callable[..., M], *arguments: object, generator: torch.Generator) -> M:
    """``make(*arguments)`` with every weight drawn from ``generator``, by PyTorch's own default laws.

    PyTorch's constructors draw from the ambient generator: its state is put back, and their draws are overwritten.
    """
    with _AMBIENT, torch.random.fork_rng(devices=[]):
        module = make(*arguments)
    for part in module.modules():
        _draw_weights(part, generator)
    return module


def _draw_weights(part: nn.Module, generator: torch.Generator) -> None:
    if isinstance(part, nn.Linear):
        bound = 1 / math.sqrt(max(1, part.in_features))
        nn.init.uniform_(part.weight, -bound, bound, generator=generator)
        nn.init.uniform_(part.bias, -bound, bound, generator=generator)
    elif isinstance(part, nn.Embedding):
        nn.init.normal_(part.weight, generator=generator)
    elif isinstance(part, (nn.LayerNorm, nn.BatchNorm1d)):
        pass  # ones and zeros
    elif next(part.parameters(recurse=False), None) is not None:
        raise TypeError(f"no initial law for {type(part).__name__}")


def dropout(x: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """Dropout whose mask comes from ``generator``; None switches it off (sampling)."""
    if rate == 0 or generator is None:
        return x
    keep = torch.rand(x.shape, generator=generator, device=x.device) >= rate
    return x * keep / (1 - rate)


def time_features(t: Tensor, width: int, scale: float = 1000.0) -> Tensor:
    """Sinusoidal features (B, width) of times t (B,) in [0, 1]."""
    half = width // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half, device=t.device) / half)
    angles = scale * t[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
