"""Corrections that give generated columns the marginals that they have in training, for two kinds of models.

`calibrate`, for decoders, found and used inside a silo: level probabilities get an offset per level, found so that the
mean predicted share over generated rows equals the share in training; scores get a monotone map from their generated
law to the standard normal one.

`rake`, for GANs (ours): they obey conditions, but between them drop levels. Rows are kept or dropped so that each
column's levels have the right shares (raking: Deming, Stephan 1940). A row's weight is a product of one factor per
column, for the level that it holds; factors are fitted column by column, round by round, until the weighted shares are
right. Of all weights that make them right these stay closest to equal ones, in relative entropy (Deville, Särndal 1992,
case 2). Rows are kept with a probability proportional to their weight. What a row holds is not changed, so levels that
only occur together still do. Shares that are known anyway cost no privacy.

Shapes: G generated rows, N rows, C columns with levels, K levels in all, S scores, Q knots.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from silosynth.core.streams import Streams
from silosynth.models.autoencoder import Buckets
from silosynth.models.encoded import RowShape, joined

_OFFSET_ROUNDS = 40
_OFFSETS_CLOSE = 1e-5  # shares that agree to this need no more rounds
_KNOTS = 201
_LEAST_QUANTILE_ROWS = 20  # rows without which quantiles say nothing: such scores keep their values


@dataclass(frozen=True)
class Calibration:
    """Offsets (K,) to logits, and for each score the knots of a monotone map ``seen`` (S, Q) → ``meant`` (S, Q)."""

    offsets: Tensor
    seen: Tensor
    meant: Tensor

    def apply(self, logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Corrected logits (G, K) and scores (G, S)."""
        mapped = [self.score(scores[:, s], s) for s in range(scores.shape[1])]
        return logits + self.offsets, torch.stack(mapped, dim=1) if mapped else scores

    def score(self, score_G: Tensor, place: int) -> Tensor:
        """The corrected scores (G,) of one column."""
        return _interpolate(score_G, self.seen[place], self.meant[place])


def level_shares(shape: RowShape, levels_NC: Tensor) -> Tensor:
    """Share (K,) of training rows on each level."""
    counts = torch.bincount((levels_NC + shape.starts.to(levels_NC.device)).flatten(), minlength=shape.levels)
    return counts / len(levels_NC)


def calibrate(
    buckets: Buckets, logits: Tensor, scores: Tensor, shares: Tensor, draw: torch.Generator,
    meant: Tensor | None = None, doubt: float = 0.0,
) -> Calibration:  # fmt: skip
    """Find the corrections for heads decoded from generated latents: logits (G, K), scores (G, S).

    Where other latents than these are to be decoded, shares that are as few as ``doubt`` standard errors apart are not
    corrected (`_believed`): heads that are sure of a level take a large offset for a small difference, and those of
    other columns, which come from the same rows, take theirs apart from it.

    ``shares`` (K,) are those of training. Scores of training are standard normal by their encoder's construction, or
    have the quantiles ``meant`` (S, Q) of `score_quantiles`.
    """
    wanted = _believed(buckets, logits, shares, doubt) if doubt and len(shares) else shares
    offsets = _level_offsets(buckets, logits, wanted)
    on = buckets.shape.on(buckets.draw(logits + offsets, draw))
    seen = score_quantiles(scores, on)
    line = torch.linspace(-3, 3, _KNOTS, device=scores.device)
    return Calibration(offsets, seen, line.expand(len(seen), -1) if meant is None else meant)


def score_quantiles(scores: Tensor, on: Tensor) -> Tensor:
    """Quantiles (S, Q) of scores (N, S), of those that are ``on`` (N, S)."""
    line = torch.linspace(-3, 3, _KNOTS, device=scores.device)
    found = [_quantiles(scores[on[:, s], s], line) for s in range(scores.shape[1])]
    return torch.stack(found) if found else scores.new_zeros(0, _KNOTS)


def _believed(buckets: Buckets, logits: Tensor, shares: Tensor, doubt: float) -> Tensor:
    """Shares (K,) between those of training and generated ones: the nearer to these, the less they stand apart.

    Differences are shrunk by a factor 1 - (doubt * standard error / difference)^2, or to none (Breiman 1995).
    """
    chance_GK = buckets.probabilities(logits)
    got = chance_GK.mean(0)
    apart, error = shares - got, chance_GK.std(0, correction=0) / len(chance_GK) ** 0.5
    believed = got + apart * (1 - (doubt * error).square() / apart.square().clamp_min(1e-18)).clamp_min(0)
    column_of = buckets.shape.column_of.to(shares.device)
    totals = shares.new_zeros(len(buckets.shape.widths)).index_add_(0, column_of, believed)
    scaled: Tensor = believed / totals[column_of].clamp_min(1e-9)
    return scaled


def _level_offsets(buckets: Buckets, logits: Tensor, shares: Tensor) -> Tensor:
    offsets = torch.zeros_like(shares)
    wanted = shares.clamp_min(1e-9).log()
    for _ in range(_OFFSET_ROUNDS if len(shares) else 0):
        got = buckets.probabilities(logits + offsets).mean(dim=0)
        offsets = offsets + (wanted - got.clamp_min(1e-9).log()).clamp(-1, 1)
        if (got - shares).abs().max() < _OFFSETS_CLOSE:
            break
    return offsets


def _quantiles(values: Tensor, line: Tensor) -> Tensor:
    """Quantiles (Q,) of values at the ranks that ``line`` has under a standard normal law."""
    if len(values) < _LEAST_QUANTILE_ROWS:
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


PILOT = 20_000  # made rows from which factors are found
_ROUNDS = 100
_CLOSE = 1e-4  # shares that agree to this need no more rounds
_LEAST_SHARE = 1e-6  # share that a level is taken to have at least
_TOP, _MOST = 0.995, 8.0  # weights are capped at this quantile, and at this multiple of the mean
_FEWEST, _MOST_ROWS = 500, 2**20  # rows that are made at a time
_LEAST_KEPT = 0.05  # share of the rows made that is kept, at least
_HALVINGS = 50  # until a cap is found by which so many are

Make = Callable[[int, Streams], tuple[Tensor, Tensor]]
"""Makes n rows, levels (n, C) and scores (n, S), from the streams given."""


@dataclass(frozen=True)
class Raking:
    """How rows are kept.

    Attributes:
        factors: their logarithms (K,), by which rows have the mean weight 1.
        cap: the logarithm of the largest weight that counts.
        made: rows that are made for each that is wanted.
    """

    factors: Tensor
    cap: float
    made: float

    def sample(self, n: int, make: Make, shape: RowShape, streams: Streams) -> tuple[Tensor, Tensor]:
        """Rows (n, C) and (n, S), kept of what ``make`` makes."""
        lots, kept, count, number = streams.child("lots").torch(), [], 0, 0
        while count < n:
            rows = make(min(_MOST_ROWS, max(_FEWEST, round((n - count) * self.made))), streams.child("made", number))
            chance = (self.logarithms(rows[0], shape) - self.cap).clamp(max=0).exp()
            keep = torch.rand(len(chance), generator=lots) < chance.cpu()
            kept.append((rows[0][keep], rows[1][keep]))
            count, number = count + int(keep.sum()), number + 1
        levels, scores = joined(kept)
        return levels[:n], scores[:n]

    def logarithms(self, levels_NC: Tensor, shape: RowShape) -> Tensor:
        """Logarithms (N,) of the weights of rows."""
        places = levels_NC + shape.starts.to(levels_NC.device)
        return self.factors.to(levels_NC.device)[places].sum(dim=1)


def rake(levels_NC: Tensor, counts_K: Tensor, shape: RowShape) -> Raking:
    """Find the factors for rows like these that give levels the shares of the counts (K,).

    A column without any count keeps its shares, and a level that no row holds cannot get one. Where a few rows have
    nearly all of the weight, as those of a generator that hardly knows a frequent level, the cap is so low that one row
    in twenty is kept: levels then come nearer to their shares, and do not reach them.
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
            step = torch.where(got > 0, share.clamp_min(_LEAST_SHARE).log() - got.clamp_min(1e-300).log(), 0.0)
            factors[column] += step
            weights += step[levels_NC[:, column]]
            worst = max(worst, float((got - share)[got > 0].abs().max()))
        if worst < _CLOSE:
            break
    mean = weights.logsumexp(0) - torch.tensor(float(len(weights)), dtype=torch.float64).log()
    cap, made = _cap(weights - mean)
    return Raking(torch.cat(factors) - mean / len(factors), cap, made)


def _cap(logs_N: Tensor) -> tuple[float, float]:
    """The logarithm of the cap of weights whose logarithms are these, and how many rows are made for each kept."""

    def kept(cap: float) -> float:
        return float((logs_N - cap).clamp(max=0).exp().mean())

    made = min(_MOST, max(1.0, float(logs_N.quantile(_TOP).exp())))
    high = math.log(made)
    if kept(high) >= _LEAST_KEPT:
        return high, made
    low = float(logs_N.quantile(1 - _LEAST_KEPT))  # with which enough rows are kept
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) >= _LEAST_KEPT else (low, middle)
    return low, 1 / _LEAST_KEPT


def _shares(counts_K: Tensor, shape: RowShape) -> list[Tensor | None]:
    """By column, shares of its levels; None where there are no counts."""
    parts = counts_K.double().clamp(min=0).split(list(shape.widths))
    return [part / part.sum() if float(part.sum()) > 0 else None for part in parts]
