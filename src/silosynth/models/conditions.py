"""Conditional vectors and the rows that fit them (CTGAN, Xu et al. 2019, sections 4.3; VT-GAN, section 3.1.4).

A condition names one level of one column. Training by sampling: the column is drawn uniformly, its level by the
logarithm of one plus its count, the row uniformly among those that have it. So rare levels are seen more often than
they occur. All draws are vectorised: no loop over rows.

Shapes: N rows, B conditions, C conditional columns, P positions: all levels of these columns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Law = Literal["log", "frequency"]


class ConditionLaw:
    """The law of conditions: all that drawing them takes.

    Args:
        counts_P: rows that hold each level of each conditional column.
        widths: numbers of levels of these columns.
    """

    def __init__(self, counts_P: Tensor, widths: tuple[int, ...]) -> None:
        self.counts, self.widths = counts_P, widths
        column_of = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths, dtype=torch.int64))
        self._lines = {
            "log": _cumulative(counts_P.double().log1p(), column_of, len(widths)),
            "frequency": _cumulative(counts_P.double(), column_of, len(widths)),
        }

    def draw(self, size: int, generator: torch.Generator, law: Law = "log") -> Tensor:
        """Positions (B,) of the drawn levels among all P; -1, for no condition, where there is no column to draw on."""
        if not self.widths:
            return torch.full((size,), -1)
        column = torch.randint(len(self.widths), (size,), generator=generator)
        share = torch.rand(size, generator=generator, dtype=torch.float64)
        position = torch.searchsorted(self._lines[law], column + share, right=True)
        return position.clamp_(max=len(self.counts) - 1)  # a sum that was rounded up to the line's end


class Conditions:
    """Draws conditions, and rows of a table that fulfil them.

    Args:
        levels_NC: levels of the conditional columns.
        widths: their numbers of levels.
    """

    def __init__(self, levels_NC: Tensor, widths: tuple[int, ...]) -> None:
        self.rows, self.columns, self.width = len(levels_NC), len(widths), sum(widths)
        starts = torch.tensor((0, *widths)).cumsum(0)[:-1]
        position_NC = levels_NC.cpu() + starts
        counts = torch.bincount(position_NC.flatten(), minlength=self.width)
        self.law = ConditionLaw(counts, widths)
        self._row_of = position_NC.flatten().argsort(stable=True) // max(1, self.columns)  # rows, by position
        self._first = counts.cumsum(0) - counts

    def draw(self, size: int, generator: torch.Generator, law: Law = "log") -> Tensor:
        """Positions (B,): see `ConditionLaw.draw`."""
        return self.law.draw(size, generator, law)

    def matching(self, position_B: Tensor, generator: torch.Generator) -> Tensor:
        """A row (B,) for each position, uniformly among those that have the level; where none has, or for -1, any."""
        return self.rows_at(position_B, torch.rand(len(position_B), generator=generator, dtype=torch.float64))

    def rows_at(self, position_B: Tensor, share_B: Tensor) -> Tensor:
        """`matching`, given how far down (from 0 to below 1) among the rows that have the level each one is."""
        any_B = (share_B * self.rows).long()
        if not self.columns:
            return any_B
        held_B = self.law.counts[position_B]
        at_B = self._first[position_B] + (share_B * held_B).long()
        return torch.where(held_B > 0, self._row_of[at_B.clamp(max=len(self._row_of) - 1)], any_B)


def _cumulative(weight_P: Tensor, column_of: Tensor, columns: int) -> Tensor:
    """Cumulative shares (P,) within each column, plus the column's number: one sorted line for all columns."""
    if not columns:
        return weight_P
    totals = torch.zeros(columns, dtype=torch.float64).index_add_(0, column_of, weight_P)
    share = weight_P / totals[column_of]
    line = share.cumsum(0)
    before = torch.arange(columns, dtype=torch.float64)
    lasts = torch.searchsorted(column_of, torch.arange(columns), right=True) - 1
    line = line - torch.cat([line.new_zeros(1), line[lasts][:-1]])[column_of] + before[column_of]
    highest = torch.where(weight_P > 0, torch.arange(len(weight_P)), -1)
    last_used = torch.full((columns,), -1).scatter_reduce(0, column_of, highest, "amax")
    after = torch.arange(len(weight_P)) >= last_used[column_of]  # rounding must not leave a gap above the last level
    return torch.where(after, before[column_of] + 1, line)
