"""Corrections that give decoded columns the marginals they have in training; fitted and kept inside a silo.

Level probabilities get an offset per level, found so that the mean predicted share over generated rows equals the
share in training. Scores get a monotone map from their generated law to the standard normal one.
Shapes: G generated rows, N training rows, C columns with levels, K levels in all, S scores, Q knots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from silosynth.models.autoencoder import Buckets

_ROUNDS = 40
_KNOTS = 201


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

    def state(self) -> dict[str, Tensor]:
        """Plain tensors."""
        return {"offsets": self.offsets, "seen": self.seen, "meant": self.meant}

    @staticmethod
    def of(state: dict[str, Tensor], device: torch.device) -> Calibration:
        """The calibration that `state` returned."""
        return Calibration(*(state[name].to(device) for name in ("offsets", "seen", "meant")))


def calibrate(
    buckets: Buckets, logits: Tensor, scores: Tensor, levels_NC: Tensor, scores_NS: Tensor, draw: torch.Generator
) -> Calibration:
    """Fit the corrections to heads decoded from generated latents: logits (G, K), scores (G, S)."""
    offsets = _level_offsets(buckets, logits, _shares(buckets, levels_NC))
    drawn_on = buckets.layout.scored(buckets.draw(logits + offsets, draw))
    train_on = buckets.layout.scored(levels_NC)
    seen, meant = [], []
    for s in range(scores.shape[1]):
        knots = _matched_knots(scores[drawn_on[:, s], s], scores_NS[train_on[:, s], s])
        seen.append(knots[0])
        meant.append(knots[1])
    empty = scores.new_zeros(0, _KNOTS)
    return Calibration(offsets, torch.stack(seen) if seen else empty, torch.stack(meant) if meant else empty)


def _shares(buckets: Buckets, levels_NC: Tensor) -> Tensor:
    """Share (K,) of training rows on each level."""
    layout = buckets.layout
    starts = torch.tensor(layout.starts, dtype=torch.int64, device=levels_NC.device)
    counts = torch.bincount((levels_NC + starts).flatten(), minlength=layout.levels)
    return counts / len(levels_NC)


def _level_offsets(buckets: Buckets, logits: Tensor, shares: Tensor) -> Tensor:
    offsets = torch.zeros_like(shares)
    wanted = shares.clamp_min(1e-9).log()
    for _ in range(_ROUNDS if len(shares) else 0):
        got = buckets.probabilities(logits + offsets).mean(dim=0)
        offsets = offsets + (wanted - got.clamp_min(1e-9).log()).clamp(-1, 1)
    return offsets


def _matched_knots(generated: Tensor, trained: Tensor) -> tuple[Tensor, Tensor]:
    """Equal quantiles of two samples; the identity where either is too small to tell."""
    line = torch.linspace(-3, 3, _KNOTS, device=generated.device)
    if min(len(generated), len(trained)) < 20:
        return line, line
    ranks = torch.special.ndtr(line.double())
    return _quantiles(generated, ranks), _quantiles(trained, ranks)


def _quantiles(values: Tensor, ranks: Tensor) -> Tensor:
    ordered = values.double().sort().values
    place = ranks * (len(ordered) - 1)
    below = place.floor().long()
    above = (below + 1).clamp(max=len(ordered) - 1)
    return (ordered[below] + (place - below) * (ordered[above] - ordered[below])).float()


def _interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Piecewise linear through (xs, ys); beyond the ends, parallel to the diagonal."""
    place = torch.searchsorted(xs, x.contiguous()).clamp(1, len(xs) - 1)
    x0, x1, y0, y1 = xs[place - 1], xs[place], ys[place - 1], ys[place]
    inside = y0 + (x - x0) * (y1 - y0) / (x1 - x0).clamp_min(1e-9)
    return torch.where(x < xs[0], ys[0] + x - xs[0], torch.where(x > xs[-1], ys[-1] + x - xs[-1], inside))
