"""Corrections that give decoded columns the marginals they have in training; found and used inside a silo.

Level probabilities get an offset per level, found so that the mean predicted share over generated rows equals the
share in training. Scores get a monotone map from their generated law to that of training.
Shapes: G generated rows, N training rows, C columns with levels, K levels in all, S scores, Q knots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from silosynth.models.autoencoder import Buckets

_ROUNDS = 40
_KNOTS = 201
_LEAST = 20  # rows without which quantiles say nothing: such scores keep their values


@dataclass(frozen=True)
class Margins:
    """What corrections aim at: the share (K,) of training rows on each level, quantiles (S, Q) of training scores.

    Quantiles are those of a standard normal where training has too few rows to tell.
    """

    shares: Tensor
    quantiles: Tensor

    def state(self) -> dict[str, Tensor]:
        """Plain tensors."""
        return {"shares": self.shares, "quantiles": self.quantiles}

    @staticmethod
    def of(state: dict[str, Tensor], device: torch.device) -> Margins:
        """The margins that `state` returned."""
        return Margins(state["shares"].to(device), state["quantiles"].to(device))


@dataclass(frozen=True)
class Calibration:
    """Offsets (K,) to logits, and for each score the knots (S, Q) of a monotone map ``seen`` → ``meant``."""

    offsets: Tensor
    seen: Tensor
    meant: Tensor

    def apply(self, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Corrected logits (G, K) and scores (G, S)."""
        mapped = [_interpolate(scores[:, s], self.seen[s], self.meant[s]) for s in range(scores.shape[1])]
        return logits + self.offsets, torch.stack(mapped, dim=1) if mapped else scores


def margins(buckets: Buckets, levels_NC: Tensor, scores_NS: Tensor) -> Margins:
    """The margins of training rows."""
    layout, on = buckets.layout, buckets.layout.scored(levels_NC)
    starts = torch.tensor(layout.starts, dtype=torch.int64, device=levels_NC.device)
    counts = torch.bincount((levels_NC + starts).flatten(), minlength=layout.levels)
    return Margins(counts / len(levels_NC), _all_quantiles(scores_NS, on))


def calibrate(buckets: Buckets, logits: Tensor, scores: Tensor, wanted: Margins, draw: torch.Generator) -> Calibration:
    """Find the corrections for heads decoded from generated latents: logits (G, K), scores (G, S)."""
    offsets = _level_offsets(buckets, logits, wanted.shares)
    on = buckets.layout.scored(buckets.draw(logits + offsets, draw))
    seen = _all_quantiles(scores, on)
    few = on.sum(dim=0) < _LEAST
    return Calibration(offsets, torch.where(few[:, None], wanted.quantiles, seen), wanted.quantiles)


def _level_offsets(buckets: Buckets, logits: Tensor, shares: Tensor) -> Tensor:
    offsets = torch.zeros_like(shares)
    wanted = shares.clamp_min(1e-9).log()
    for _ in range(_ROUNDS if len(shares) else 0):
        got = buckets.probabilities(logits + offsets).mean(dim=0)
        offsets = offsets + (wanted - got.clamp_min(1e-9).log()).clamp(-1, 1)
    return offsets


def _all_quantiles(scores: Tensor, on: Tensor) -> Tensor:
    """Quantiles (S, Q) of the scores that are on."""
    rows = [_quantiles(scores[on[:, s], s]) for s in range(scores.shape[1])]
    return torch.stack(rows) if rows else scores.new_zeros(0, _KNOTS)


def _quantiles(values: Tensor) -> Tensor:
    """Quantiles (Q,) at equal distances on the normal scale."""
    line = torch.linspace(-3, 3, _KNOTS, device=values.device)
    if len(values) < _LEAST:
        return line
    ordered = values.double().sort().values
    place = torch.special.ndtr(line.double()) * (len(ordered) - 1)
    below = place.floor().long()
    above = (below + 1).clamp(max=len(ordered) - 1)
    return (ordered[below] + (place - below) * (ordered[above] - ordered[below])).float()


def _interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Piecewise linear through (xs, ys); beyond the ends, parallel to the diagonal."""
    place = torch.searchsorted(xs, x.contiguous()).clamp(1, len(xs) - 1)
    x0, x1, y0, y1 = xs[place - 1], xs[place], ys[place - 1], ys[place]
    inside = y0 + (x - x0) * (y1 - y0) / (x1 - x0).clamp_min(1e-9)
    return torch.where(x < xs[0], ys[0] + x - xs[0], torch.where(x > xs[-1], ys[-1] + x - xs[-1], inside))
