"""Columns as attributes: a few levels each, numbers too. And back to codes; and distributions of noised counts.

An attribute is a column's levels, and in place of a level with a score the ``bins`` parts of the normal distribution
with equal probability: their edges are public, since encoders have made scores normal.

Shapes: N rows, A attributes, C columns with levels, S scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from silosynth.core.schema import Column
from silosynth.encoders.column import Codes, Encoder

LEAST = 1e-12
PARTS = 512  # of a bin, of each of which it is known whether it fulfils a condition


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
    attributes_NA: Tensor,
    encoders: Sequence[Encoder],
    bins: int,
    draw: torch.Generator,
    parts: Mapping[int, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Levels (N, C) and scores (N, S), which are drawn within their bins.

    Args:
        attributes_NA: levels of attributes.
        encoders: of the columns.
        bins: of a level with a score.
        draw: what scores are drawn from.
        parts: of some attributes, by place, the parts (L, P) of levels in which scores are drawn; see `admitted`.
    """
    levels, scores, rows = [], [], len(attributes_NA)
    for place, (encoder, of_N) in enumerate(zip(encoders, attributes_NA.T, strict=True)):
        lines = encoder.lines
        if lines:
            inside = torch.rand(rows, generator=draw, dtype=torch.float64)
            if parts and place in parts:
                inside = _inside(parts[place][of_N], inside)
            of_N, score_N = _code(encoder, of_N, inside, bins)
            scores.append(score_N)
        if encoder.width > 1:
            levels.append(of_N)
    return (
        torch.stack(levels, dim=1) if levels else torch.zeros(rows, 0, dtype=torch.int64),
        torch.stack(scores, dim=1) if scores else torch.zeros(rows, 0),
    )


def _code(encoder: Encoder, level_N: Tensor, inside_N: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """An encoder's levels (N,) and scores (N,) of an attribute's levels, each score at some place within its bin."""
    lines = encoder.lines
    share_N = ((level_N % bins + inside_N) / bins).clamp(LEAST, 1 - LEAST)
    score_N = torch.where(level_N < lines * bins, torch.special.ndtri(share_N), 0.0).float()
    return torch.where(level_N < lines * bins, level_N // bins, level_N - lines * (bins - 1)), score_N


def admitted(encoder: Encoder, bins: int, holds: Callable[[Column], Tensor]) -> Tensor:
    """Which parts (L, P) bool of an attribute's levels fulfil a condition, decided in their middle.

    The `PARTS` parts of a level are equally likely; all of them are alike where it has no score.
    """
    column, parts = values_of(encoder, bins)
    return holds(column).view(-1, parts)


def values_of(encoder: Encoder, bins: int) -> tuple[Column, int]:
    """What levels of an attribute stand for: a value for the middle of each part of each level, (L · P); and P."""
    size = encoder.width + encoder.lines * (bins - 1)
    parts = PARTS if encoder.lines else 1
    level_N = torch.arange(size).repeat_interleave(parts)
    middle_N = (torch.arange(parts, dtype=torch.float64) + 0.5).repeat(size) / parts
    levels, scores = _code(encoder, level_N, middle_N, bins)
    codes = Codes(levels if encoder.width > 1 else None, scores if encoder.continuous else None)
    return encoder.decode(codes, len(level_N), np.random.default_rng(0)), parts


def _inside(admitted_NP: Tensor, inside_N: Tensor) -> Tensor:
    """Numbers from 0 to 1 as numbers in the parts that are admitted; as they are where none is."""
    count_N, parts = admitted_NP.sum(1), admitted_NP.shape[1]
    first_NP = (~admitted_NP).int().argsort(dim=1, stable=True)
    place_N = inside_N * count_N
    part_N = first_NP[torch.arange(len(inside_N)), place_N.long().clamp(max=parts - 1)]
    return torch.where(count_N > 0, (part_N + place_N % 1) / parts, inside_N)


def proper(noised: Tensor) -> Tensor:
    """The distribution nearest to noised counts, as float64: one number is subtracted from all, negatives become 0.

    Many small cells then do not add up, as they would if negative counts were only clipped.
    """
    sorted_C = noised.double().flatten().sort(descending=True).values
    total = max(1.0, float(sorted_C.sum()))
    excess_C = (sorted_C.cumsum(0) - total) / torch.arange(1, len(sorted_C) + 1)
    last = int((sorted_C > excess_C).sum()) - 1
    return (noised.double() - excess_C[last]).clamp(min=0) / total
