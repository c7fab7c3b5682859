"""Columns as attributes: a few levels each, numbers too. And back to codes; and distributions of noised counts.

An attribute is a column's levels, and in place of a level with a score the ``bins`` parts of the normal distribution
with equal probability: their edges are public, since encoders have made scores normal.

Shapes: N rows, A attributes, C columns with levels, S scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from silosynth.encoders.column import Encoder

LEAST = 1e-12


def sizes_of(encoders: Sequence[Encoder], bins: int) -> list[int]:
    """Number of levels of each attribute."""
    return [encoder.width + encoder.lines * (bins - 1) for encoder in encoders]


def attributes(levels_NC: Tensor, scores_NS: Tensor, encoders: Sequence[Encoder], bins: int) -> Tensor:
    """(N, A) int64: a level with a score becomes one level per bin."""
    columns, c, s = [], 0, 0
    for encoder in encoders:
        level_N, lines = torch.zeros(len(levels_NC), dtype=torch.int64), encoder.lines
        if encoder.width > 1:
            level_N, c = levels_NC[:, c], c + 1
        if encoder.continuous:
            bin_N, s = (torch.special.ndtr(scores_NS[:, s].double()) * bins).long().clamp(0, bins - 1), s + 1
            level_N = torch.where(level_N < lines, level_N * bins + bin_N, level_N + lines * (bins - 1))
        columns.append(level_N)
    return torch.stack(columns, dim=1)


def codes(
    attributes_NA: Tensor, encoders: Sequence[Encoder], bins: int, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Levels (N, C) and scores (N, S), which are drawn within their bins."""
    levels, scores, rows = [], [], len(attributes_NA)
    for encoder, of_N in zip(encoders, attributes_NA.T, strict=True):
        lines = encoder.lines
        if lines:
            inside = torch.rand(rows, generator=draw, dtype=torch.float64)
            share = ((of_N % bins + inside) / bins).clamp(LEAST, 1 - LEAST)
            scores.append(torch.where(of_N < lines * bins, torch.special.ndtri(share), 0.0).float())
            of_N = torch.where(of_N < lines * bins, of_N // bins, of_N - lines * (bins - 1))
        if encoder.width > 1:
            levels.append(of_N)
    return (
        torch.stack(levels, dim=1) if levels else torch.zeros(rows, 0, dtype=torch.int64),
        torch.stack(scores, dim=1) if scores else torch.zeros(rows, 0),
    )


def proper(noised: Tensor) -> Tensor:
    """The distribution nearest to noised counts, as float64: one number is subtracted from all, negatives become 0.

    Many small cells then do not add up, as they would if negative counts were only clipped.
    """
    sorted_C = noised.double().flatten().sort(descending=True).values
    total = max(1.0, float(sorted_C.sum()))
    excess_C = (sorted_C.cumsum(0) - total) / torch.arange(1, len(sorted_C) + 1)
    last = int((sorted_C > excess_C).sum()) - 1
    return (noised.double() - excess_C[last]).clamp(min=0) / total
