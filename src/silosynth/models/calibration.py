"""Corrections that give decoded columns the marginals they have in training; found and used inside a silo.

Level probabilities get an offset per level, found so that the mean predicted share over generated rows equals the
share in training. Scores get a monotone map from their generated law to the standard normal one.
Shapes: G generated rows, N training rows, C columns with levels, K levels in all, S scores, Q knots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from silosynth.models.autoencoder import Buckets
from silosynth.models.encoded import RowShape

_ROUNDS = 40
_CLOSE = 1e-5  # shares that agree to this need no more rounds
_KNOTS = 201
_LEAST = 20  # rows without which quantiles say nothing: such scores keep their values


@dataclass(frozen=True)
class Calibration:
    """Offsets (K,) to logits, and for each score the knots of a monotone map ``seen`` (S, Q) → ``meant`` (Q,)."""

    offsets: Tensor
    seen: Tensor
    meant: Tensor

    def apply(self, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Corrected logits (G, K) and scores (G, S)."""
        mapped = [_interpolate(scores[:, s], self.seen[s], self.meant) for s in range(scores.shape[1])]
        return logits + self.offsets, torch.stack(mapped, dim=1) if mapped else scores


def level_shares(shape: RowShape, levels_NC: Tensor) -> Tensor:
    """Share (K,) of training rows on each level."""
    counts = torch.bincount((levels_NC + shape.starts.to(levels_NC.device)).flatten(), minlength=shape.levels)
    return counts / len(levels_NC)


def calibrate(buckets: Buckets, logits: Tensor, scores: Tensor, shares: Tensor, draw: torch.Generator) -> Calibration:
    """Find the corrections for heads decoded from generated latents: logits (G, K), scores (G, S).

    ``shares`` (K,) are those of training. Scores of training are standard normal by their encoder's construction.
    """
    offsets = _level_offsets(buckets, logits, shares)
    on = buckets.shape.on(buckets.draw(logits + offsets, draw))
    line = torch.linspace(-3, 3, _KNOTS, device=scores.device)
    seen = [_quantiles(scores[on[:, s], s], line) for s in range(scores.shape[1])]
    return Calibration(offsets, torch.stack(seen) if seen else scores.new_zeros(0, _KNOTS), line)


def _level_offsets(buckets: Buckets, logits: Tensor, shares: Tensor) -> Tensor:
    offsets = torch.zeros_like(shares)
    wanted = shares.clamp_min(1e-9).log()
    for _ in range(_ROUNDS if len(shares) else 0):
        got = buckets.probabilities(logits + offsets).mean(dim=0)
        offsets = offsets + (wanted - got.clamp_min(1e-9).log()).clamp(-1, 1)
        if (got - shares).abs().max() < _CLOSE:
            break
    return offsets


def _quantiles(values: Tensor, line: Tensor) -> Tensor:
    """Quantiles (Q,) of values at the ranks that ``line`` has under a standard normal law."""
    if len(values) < _LEAST:
        return line
    ordered: Tensor = values.double().sort().values
    place = torch.special.ndtr(line.double()) * (len(ordered) - 1)
    below = place.floor().long()
    above = (below + 1).clamp(max=len(ordered) - 1)
    quantiles: Tensor = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    return quantiles.float()


def _interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Piecewise linear through (xs, ys); beyond the ends, parallel to the diagonal."""
    place = torch.searchsorted(xs, x.contiguous()).clamp(1, len(xs) - 1)
    x0, x1, y0, y1 = xs[place - 1], xs[place], ys[place - 1], ys[place]
    inside = y0 + (x - x0) * (y1 - y0) / (x1 - x0).clamp_min(1e-9)
    return torch.where(x < xs[0], ys[0] + x - xs[0], torch.where(x > xs[-1], ys[-1] + x - xs[-1], inside))
