"""Which rows are in a batch: all parties draw the same, from one number, so that whoever comes back is not astray.

Shapes: N rows, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from silosynth.algorithms.tabvfl.messages import ALL, Rows, TabVFLConfig
from silosynth.core.streams import Streams

MOST = 4096  # rows that are looked at together


def spans(rows: int) -> Iterator[tuple[int, int]]:
    """From where to where rows are looked at together: parts of nearly equal size, as one row has no variance."""
    parts = max(1, -(-rows // MOST))
    for i in range(parts):
        yield rows * i // parts, rows * (i + 1) // parts


class Batches:
    """Batches of N rows, some of which are held out.

    Every row is in one batch per epoch: what is left over is spread, so that batches have ``config.batch`` rows or a
    few more (below twice as many rows as a batch has, there is one batch).
    """

    def __init__(self, rows: int, config: TabVFLConfig, order: int) -> None:
        self.streams, self.shuffle = Streams(order).child("tabvfl"), config.shuffle
        every = torch.randperm(rows, generator=self.streams.child("rows").torch())
        aside = min(round(rows * config.validation), rows - 2)
        aside = aside if aside > 1 else 0  # one row has no variance
        self.held_out, self.train = every[:aside].sort().values, every[aside:]
        self.count = max(1, len(self.train) // config.batch)  # of an epoch
        self._all, self._epoch, self._split = torch.arange(rows), -1, tuple[Tensor, ...]()

    def steps(self, epoch: int) -> range:
        """Numbers of an epoch's steps."""
        return range(epoch * self.count, (epoch + 1) * self.count)

    def of(self, step: int) -> Tensor:
        """Row numbers (B,) of a step's batch."""
        epoch, place = divmod(step, self.count)
        epoch = epoch if self.shuffle else 0
        if epoch != self._epoch:
            draw = self.streams.child("epoch", epoch).torch()
            order = torch.randperm(len(self.train), generator=draw)
            self._epoch, self._split = epoch, self.train[order].tensor_split(self.count)
        return self._split[place]

    def some(self, rows: Rows) -> Tensor:
        """Row numbers of all rows, or of those held out."""
        return self._all if rows == ALL else self.held_out
