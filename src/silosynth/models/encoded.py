"""Encoded rows, as every network here reads them: their shape, the rows themselves, and how models sample them.

Shapes: B or N rows, C columns with levels, K levels of all columns, S scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from silosynth.core.streams import Draw, Streams, normals

Codes = tuple[Tensor, Tensor]  # of rows: levels (N, C) and scores (N, S)
_MOST = 2**24  # numbers held at once while sampling: 64 MB, also with 10 000 levels


@dataclass(frozen=True)
class RowShape:
    """What encoded rows look like.

    Attributes:
        widths: number of levels of each of the C columns with levels.
        level_of: for each of the S scores, which of the C columns switches it on; -1 for a score that is always on.
        lines: for each of the S scores, how many levels of that column, counted from 0, switch it on;
            one where left out.
    """

    widths: tuple[int, ...]
    level_of: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", self.lines or (1,) * len(self.level_of))

    @property
    def scores(self) -> int:
        """S."""
        return len(self.level_of)

    @property
    def levels(self) -> int:
        """K."""
        return sum(self.widths)

    @property
    def size(self) -> int:
        """K + S, the length of a row as one vector."""
        return self.levels + self.scores

    @cached_property
    def column_of(self) -> Tensor:
        """The column (K,) that each level belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.widths)), torch.tensor(self.widths, dtype=torch.int64))

    @cached_property
    def member_KC(self) -> Tensor:
        """1 where a level belongs to a column, else 0."""
        return (self.column_of[:, None] == torch.arange(len(self.widths))).float()

    @cached_property
    def starts(self) -> Tensor:
        """Where the levels of each column (C,) begin among all K."""
        widths = torch.tensor(self.widths, dtype=torch.int64)
        return widths.cumsum(0) - widths

    def on(self, levels_BC: Tensor) -> Tensor:
        """Which scores (B, S) are on: those of rows that lie on the continuous part of the score's column."""
        always = F.pad(levels_BC, (0, 1))  # a column that is at level 0 throughout, for those that -1 points to
        return always[:, list(self.level_of)] < torch.tensor(self.lines, device=levels_BC.device)

    def vectors(self, levels_BC: Tensor, scores_BS: Tensor) -> Tensor:
        """Encoded rows as vectors (B, K + S)."""
        x = scores_BS.new_zeros(len(scores_BS), self.size)
        x.scatter_(1, levels_BC + self.starts.to(levels_BC.device), 1.0)
        x[:, self.levels :] = scores_BS
        return x


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows of a table. A model that is restored only to sample gets none of them, but the same shape.

    Attributes:
        shape: of each row.
        levels: (N, C) int64.
        scores: (N, S) float32; 0 where a score is off.
        categorical: which of the C columns have no continuous part.
        target: which of the C columns is to be predicted from the others; -1 for none.
    """

    shape: RowShape
    levels: Tensor
    scores: Tensor
    categorical: tuple[int, ...]
    target: int = -1

    def __len__(self) -> int:
        return len(self.levels)

    def batch(self, rows_B: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """Levels and scores of some rows; scores that are off are fresh noise.

        A spike of zeros amid normal scores would have to be learnt, for nothing.
        """
        levels, scores = self.levels[rows_B], self.scores[rows_B]
        noise = normals(draw, *scores.shape, device=scores.device)
        return levels, torch.where(self.shape.on(levels), scores, noise)


class Coding(Protocol):
    """What a model must know of a column's encoder (`silosynth.encoders`)."""

    @property
    def name(self) -> str:
        """Of the column."""

    @property
    def width(self) -> int:
        """Number of levels."""

    @property
    def lines(self) -> int:
        """How many levels, counted from 0, carry a score."""

    @property
    def categorical(self) -> bool:
        """Whether levels are categories."""


def shape_of(encoders: Sequence[Coding], padded: bool = False) -> RowShape:
    """The shape of rows that these encoders encode. ``padded``: a table of constants has one score, always 0."""
    levelled = [encoder.name for encoder in encoders if encoder.width > 1]
    scored = [encoder for encoder in encoders if encoder.lines]
    level_of = tuple(levelled.index(encoder.name) if encoder.name in levelled else -1 for encoder in scored)
    lines, widths = tuple(encoder.lines for encoder in scored), tuple(e.width for e in encoders if e.width > 1)
    return RowShape(widths, (-1,), (1,)) if padded and not (widths or scored) else RowShape(widths, level_of, lines)


def no_codes(encoders: Sequence[Coding], rows: int = 0) -> Codes:
    """Codes of no rows, or of rows that have nothing but constants."""
    shape = shape_of(encoders)
    return torch.zeros(rows, len(shape.widths), dtype=torch.int64), torch.zeros(rows, shape.scores)


def encoded_rows(
    encoders: Sequence[Coding], codes: Codes, device: torch.device, target: str = "", padded: bool = False
) -> EncodedRows:
    """Encoded rows, on the device, with what models need to know of the columns; see `shape_of` for ``padded``."""
    levels_NC, scores_NS = (part.to(device) for part in codes)
    levelled = [encoder for encoder in encoders if encoder.width > 1]
    names, shape = [encoder.name for encoder in levelled], shape_of(encoders, padded)
    return EncodedRows(
        shape=shape,
        levels=levels_NC,
        scores=F.pad(scores_NS, (0, shape.scores - scores_NS.shape[1])),
        categorical=tuple(c for c, encoder in enumerate(levelled) if encoder.categorical),
        target=names.index(target) if target in names else -1,
    )


class TableModel(Protocol):
    """A generator of encoded rows. Training in parts draws from a fresh stream per part, so that it can be resumed."""

    def train(self, part: int, parts: int) -> None:
        """Train for one of ``parts`` equal parts of all steps; parts come in order."""

    def sample(self, n: int, streams: Streams) -> tuple[Tensor, Tensor]:
        """Fresh rows: levels (n, C) and scores (n, S), on the CPU."""

    def state(self, training: bool) -> dict[str, Any]:
        """All that is needed to continue training, or (smaller) to sample."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""


def span(steps: int, part: int, parts: int) -> int:
    """Steps in one of ``parts`` parts, which together make ``steps``."""
    return steps * (part + 1) // parts - steps * part // parts


def chunks(n: int, size: int) -> Iterator[int]:
    """Numbers of rows, together ``n``, to sample at once when a row takes ``size`` numbers."""
    most = max(64, min(8192, _MOST // max(1, size)))
    for start in range(0, n, most):
        yield min(most, n - start)


def joined(drawn: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Levels and scores that were drawn in chunks, on the CPU."""
    levels, scores = zip(*drawn, strict=True)
    return torch.cat(levels).cpu(), torch.cat(scores).cpu()
