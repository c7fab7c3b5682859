"""Shampoo's left factor: steps along whitened gradients, of which SiloFuse's flow needs fewer than of AdamW's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_KEPT, _REMEMBERED = 0.95, 0.9  # of the mean gradient at each step, and of a factor at each that it takes in
_TAKEN, _RENEWED = 4, 50  # steps between gradients that factors take in, and between roots
_LEAST = 1e-6  # eigenvalue of a factor, as a share of the largest


class Shampoo:
    """Steps by the left factor of Shampoo alone (Gupta, Koren, Singer 2018), for matrices in the middle of a network.

    Of a matrix (n, m), or its transpose if m < n, with the gradient G: F is a moving mean of G G', M one of G, and the
    step is along F^(-1/2) (M + (G - M) / 20), as long as if all n directions that it may have were of length one; for
    a layer with more outputs than inputs longer by the root of their ratio, as Muon's (Jordan et al. 2024). So common
    directions of the gradients count no more than rare ones, of which AdamW, which rescales weight by weight, knows
    nothing. F takes in every fourth gradient; its root is renewed every fiftieth step, in the first fifty every fourth.

    Args:
        weights: the matrices; what follows changes them.
        decay: weight decay.
    """

    def __init__(self, weights: Sequence[Tensor], decay: float) -> None:
        self.weights, self.decay, self.done = list(weights), decay, 0
        self.means, self.factors, self.roots = list[Tensor](), list[Tensor](), list[Tensor]()  # from the first step on

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step of the length ``rate`` against the gathered gradients."""
        if not self.means:
            self.means = [torch.zeros_like(weight) for weight in self.weights]
            self.factors = [weight.new_zeros(min(weight.shape), min(weight.shape)) for weight in self.weights]
            self.roots = [torch.zeros_like(factor) for factor in self.factors]
        for weight, mean, factor, root in zip(self.weights, self.means, self.factors, self.roots, strict=True):
            assert weight.grad is not None
            mean.lerp_(weight.grad, 1 - _KEPT)
            upright = weight.shape[0] <= weight.shape[1]
            gradient, along = (_upright(one, upright) for one in (weight.grad, weight.grad.lerp(mean, _KEPT)))
            if self.done % _TAKEN == 0:
                factor.lerp_(gradient @ gradient.T, 1 - _REMEMBERED if self.done else 1.0)
            if self.done % (_TAKEN if self.done < _RENEWED else _RENEWED) == 0:
                _renew(root, factor)
            along = root @ along
            length = math.sqrt(min(weight.shape) * max(1.0, weight.shape[0] / weight.shape[1]))
            along *= length / along.norm().clamp_min(1e-12)
            weight.mul_(1 - rate * self.decay).sub_(_upright(along, upright), alpha=rate)
        self.done += 1

    def state(self) -> dict[str, Any]:
        """All that is needed to continue."""
        return {"means": self.means, "factors": self.factors, "roots": self.roots, "done": self.done}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.done = state["done"]
        for name in ("means", "factors", "roots"):
            pairs = zip(state[name], self.weights, strict=bool(state[name]))  # none of a state before the first step
            setattr(self, name, [part.to(weight.device, copy=True) for part, weight in pairs])


def _upright(matrix: Tensor, upright: bool) -> Tensor:
    return matrix if upright else matrix.T


def _renew(root: Tensor, factor: Tensor) -> None:
    """Put the inverse root of a factor into ``root``; of one that is not finite it stays, as training has diverged."""
    if bool(factor.isfinite().all()):
        values, directions = torch.linalg.eigh(factor)
        scale = values.clamp_min(float(values[-1]) * _LEAST).clamp_min(1e-30).rsqrt()
        root.copy_((directions * scale) @ directions.T)
