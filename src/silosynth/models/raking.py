"""Choose made rows so that each column's levels have the shares that they should have: raking (Deming, Stephan 1940).

A row's weight is a product of one factor per column, for the level that it holds; factors are fitted column by column,
round by round, until the weighted shares are right. Of all weights that make them right these stay closest to equal
ones, in relative entropy (Deville, Särndal 1992, case 2). Rows are then kept with a probability proportional to their
weight. What a row holds is not touched, so that levels which only occur together still do.

Ours, for GANs: they obey conditions, but between them drop levels. Shares that are known anyway cost no privacy.

Shapes: N made rows, C columns, K levels of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from silosynth.core.streams import Streams
from silosynth.models.encoded import RowShape, joined

PILOT = 20_000  # made rows from which factors are found
_ROUNDS = 100
_CLOSE = 1e-4  # shares that agree to this need no more rounds
_LEAST = 1e-6  # share that a level is taken to have at least
_TOP, _MOST = 0.995, 8.0  # weights are capped at this quantile, and at this multiple of the mean
_FEWEST = 500  # rows that are made at a time

Make = Callable[[int, Streams], tuple[Tensor, Tensor]]
"""Makes n rows, levels (n, C) and scores (n, S), from the streams given."""


@dataclass(frozen=True)
class Raking:
    """Logarithms (K,) of the factors, by which rows have the mean weight 1; and the largest weight that counts."""

    factors: Tensor
    cap: float

    def sample(self, n: int, make: Make, shape: RowShape, streams: Streams) -> tuple[Tensor, Tensor]:
        """Rows (n, C) and (n, S), kept of what ``make`` makes."""
        lots, kept, count, number = streams.child("lots").torch(), [], 0, 0
        while count < n:
            rows = make(max(_FEWEST, round((n - count) * self.cap)), streams.child("made", number))
            chance = self.weights(rows[0], shape).clamp(max=self.cap) / self.cap
            keep = torch.rand(len(chance), generator=lots) < chance.cpu()
            kept.append((rows[0][keep], rows[1][keep]))
            count, number = count + int(keep.sum()), number + 1
        levels, scores = joined(kept)
        return levels[:n], scores[:n]

    def weights(self, levels_NC: Tensor, shape: RowShape) -> Tensor:
        """Weights (N,) of rows."""
        places = levels_NC + shape.starts.to(levels_NC.device)
        return self.factors.to(levels_NC.device)[places].sum(dim=1).exp()


def rake(levels_NC: Tensor, counts_K: Tensor, shape: RowShape) -> Raking:
    """Find the factors for rows like these that give levels the shares of the counts (K,).

    A column without any count keeps its shares, and a level that no row holds cannot get one.
    """
    levels_NC, wanted = levels_NC.cpu(), _shares(counts_K.cpu(), shape)
    factors = [torch.zeros(width, dtype=torch.float64) for width in shape.widths]
    weights = torch.zeros(len(levels_NC), dtype=torch.float64)  # their logarithms, up to a constant
    for _ in range(_ROUNDS):
        worst = 0.0
        for column, share in enumerate(wanted):
            if share is None:
                continue
            got = torch.zeros_like(share).index_add_(0, levels_NC[:, column], weights.softmax(0))
            step = torch.where(got > 0, share.clamp_min(_LEAST).log() - got.clamp_min(1e-300).log(), 0.0)
            factors[column] += step
            weights += step[levels_NC[:, column]]
            worst = max(worst, float((got - share)[got > 0].abs().max()))
        if worst < _CLOSE:
            break
    mean = weights.logsumexp(0) - torch.tensor(float(len(weights)), dtype=torch.float64).log()
    cap = float((weights - mean).exp().quantile(_TOP))
    return Raking(torch.cat(factors) - mean / len(factors), min(_MOST, max(1.0, cap)))


def _shares(counts_K: Tensor, shape: RowShape) -> list[Tensor | None]:
    """By column, shares of its levels; None where there are no counts."""
    parts = counts_K.double().clamp(min=0).split(list(shape.widths))
    return [part / part.sum() if float(part.sum()) > 0 else None for part in parts]
