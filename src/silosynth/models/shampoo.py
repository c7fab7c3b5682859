"""Shampoo's left factor: steps along whitened gradients, of which SiloFuse's flow needs fewer than of AdamW's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from silosynth.core.threads import Share, in_turn

_KEPT, _REMEMBERED = 0.95, 0.974  # of the mean gradient and of the factors, for each batch
_RENEWED_AT_FIRST, _RENEWED = 4, 52  # batches between roots, of the first 52 and later
_LEAST = 1e-6  # eigenvalue of a factor, as a share of the largest


class Shampoo:
    """Steps by the left factor of Shampoo alone (Gupta, Koren, Singer 2018), for matrices in the middle of a network.

    Of a matrix (n, m), or its transpose if m < n, with the gradient G, a mean over k batches: F is a moving mean of
    G G', M one of G, and the step is along F^(-1/2) (a M + (1 - a) G), where a = 0.95^k, and k times as long as if all
    n directions that it may have were of length one; for a layer with more outputs than inputs longer by the root of
    their ratio, as Muon's (Jordan et al. 2024). So common directions of the gradients count no more than rare ones, of
    which AdamW, which rescales weight by weight, knows nothing. F's root is renewed every 52 batches, and every four
    of the first 52.

    Matrices of one shape are in two stacks, of K each (K, n, m), which two threads can share.

    Args:
        weights: the matrices; what follows changes them.
        decay: weight decay.
    """

    def __init__(self, weights: Sequence[Tensor], decay: float) -> None:
        self.decay, self.done = decay, 0
        shapes = dict.fromkeys(weight.shape for weight in weights)
        alike = [[weight for weight in weights if weight.shape == shape] for shape in shapes]
        self.weights = [half for stack in alike for half in (stack[::2], stack[1::2]) if half]
        self.means, self.factors, self.roots = list[Tensor](), list[Tensor](), list[Tensor]()  # from the first step on

    @torch.no_grad()
    def step(self, rate: float, batches: int, share: Share = in_turn) -> None:
        """One step against the gathered gradients, a mean over ``batches``; as long as if each were one of ``rate``."""
        if not self.weights:
            return
        if not self.means:
            self.means = [torch.zeros_like(torch.stack(alike)) for alike in self.weights]
            self.factors = [torch.zeros_like(_squares(mean)) for mean in self.means]
            self.roots = [torch.zeros_like(factor) for factor in self.factors]
        before, self.done = self.done, self.done + batches
        between = _RENEWED if before >= _RENEWED else _RENEWED_AT_FIRST
        renewed = before == 0 or before // between < self.done // between
        far = rate * batches, _KEPT**batches, _REMEMBERED**batches if before else 0.0, renewed
        stacks = zip(self.weights, self.means, self.factors, self.roots, strict=True)
        share(self._move, [(*stack, *far) for stack in stacks])

    @torch.no_grad()
    def _move(
        self, alike: list[Tensor], mean: Tensor, factor: Tensor, root: Tensor, far: float, kept: float,
        remembered: float, renewed: bool,
    ) -> None:  # fmt: skip
        """A step of matrices of one shape."""
        gradients = [weight.grad for weight in alike if weight.grad is not None]
        assert len(gradients) == len(alike)
        along = torch.stack(gradients)
        mean.lerp_(along, 1 - kept)
        factor.lerp_(_squares(along), 1 - remembered)
        if renewed:
            for one, of in zip(root, factor, strict=True):
                _renew(one, of)
        along.lerp_(mean, kept)
        n, m = along.shape[1:]
        along = root @ along if n <= m else along @ root
        length = math.sqrt(min(n, m) * max(1.0, n / m))
        along *= length / along.norm(dim=(1, 2), keepdim=True).clamp_min(1e-12)
        torch._foreach_mul_(alike, 1 - far * self.decay)
        torch._foreach_sub_(alike, along.unbind(), alpha=far)

    def state(self) -> dict[str, Any]:
        """All that is needed to continue."""
        return {"means": self.means, "factors": self.factors, "roots": self.roots, "done": self.done}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.done = state["done"]
        for name in ("means", "factors", "roots"):
            pairs = zip(state[name], self.weights, strict=bool(state[name]))  # none of a state before the first step
            setattr(self, name, [part.to(alike[0].device, copy=True) for part, alike in pairs])


def _squares(matrices: Tensor) -> Tensor:
    """G G' (K, n, n) of each of K matrices (K, n, m); of their transposes if m < n."""
    return matrices @ matrices.mT if matrices.shape[1] <= matrices.shape[2] else matrices.mT @ matrices


def _renew(root: Tensor, factor: Tensor) -> None:
    """Put the inverse root of a factor into ``root``; of one that is not finite it stays, as training has diverged."""
    if bool(factor.isfinite().all()):
        values, directions = torch.linalg.eigh(factor)
        scale = values.clamp_min(float(values[-1]) * _LEAST).clamp_min(1e-30).rsqrt()
        root.copy_((directions * scale) @ directions.T)
