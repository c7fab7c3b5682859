"""Networks as vectors, and a weighted mean of vectors that arrive one after another.

Shapes: W numbers of a network: all weights and floating-point buffers, in the order of its state dict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from silosynth.core.errors import ProtocolError

_DIVERGED = "Training diverged: lower the learning rate."


def flatten(state: Mapping[str, Tensor]) -> Tensor:
    """A network's state dict as float32 (W,). Integer buffers, such as batch counts, are left out.

    Raises:
        ProtocolError: a number is not finite, or there is none; names the tensor.
    """
    parts = {name: tensor.detach().reshape(-1).float() for name, tensor in _floating(state).items()}
    for name, part in parts.items():
        if not part.isfinite().all():
            raise ProtocolError("Networks that are averaged are finite", name, _DIVERGED)
    if not parts:
        raise ProtocolError("Networks that are averaged have weights", "none", "Pass the state dict of a network.")
    return torch.cat(list(parts.values()))


def unflatten(vector_W: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict that `flatten` flattened, with the shapes, dtypes and integer buffers of ``like``, copied.

    Raises:
        ProtocolError: the vector has another length than a network like this, or holds a number that is not finite.
    """
    floating = _floating(like)
    sizes = [tensor.numel() for tensor in floating.values()]
    if vector_W.shape != (sum(sizes),):
        raise ProtocolError(
            f"A vector for this network is ({sum(sizes)},)", tuple(vector_W.shape), "Compare the networks' options."
        )
    parts = dict(zip(floating, vector_W.split(sizes), strict=True))
    for name, part in parts.items():
        if not part.isfinite().all():
            raise ProtocolError("Networks that are averaged are finite", name, _DIVERGED)
    return {
        name: parts[name].reshape(tensor.shape).to(tensor.dtype, copy=True) if name in parts else tensor.clone()
        for name, tensor in like.items()
    }


def width(state: Mapping[str, Tensor]) -> int:
    """W: how many numbers `flatten` gives for such a network."""
    return sum(tensor.numel() for tensor in _floating(state).values())


class RunningMean:
    """Σ weight · vector / Σ weight. It holds the sum so far, in float64, and no vector: memory does not grow.

    Args:
        width: W.
    """

    def __init__(self, width: int) -> None:
        self._sum_W = torch.zeros(width, dtype=torch.float64)
        self.weight = 0.0
        self.count = 0

    def add(self, vector_W: Tensor, weight: float) -> None:
        """Add a vector to the mean.

        Raises:
            ProtocolError: the vector has another length or is not finite, or the weight is not finite and above zero.
        """
        if vector_W.shape != self._sum_W.shape or not vector_W.is_floating_point():
            got = f"{tuple(vector_W.shape)} of {vector_W.dtype}"
            raise ProtocolError(f"A vector of this mean has {len(self._sum_W)} numbers", got, "Compare networks.")
        if not vector_W.isfinite().all():
            raise ProtocolError("Vectors that are averaged are finite", "one that is not", _DIVERGED)
        if not (math.isfinite(weight) and weight > 0):
            raise ProtocolError("A weight is finite and above zero", weight, "Leave out whoever has no rows.")
        self._sum_W.add_(vector_W, alpha=weight)
        self.weight += weight
        self.count += 1

    def mean(self) -> Tensor:
        """The weighted mean so far, (W,) float64.

        Raises:
            ProtocolError: no vector was added yet.
        """
        if not self.count:
            raise ProtocolError("A mean is over at least one vector", self.count, "Add one first.")
        return self._sum_W / self.weight


def _floating(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
