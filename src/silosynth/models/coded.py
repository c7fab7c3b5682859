"""What the central generators learn from: encoded rows, and the small interface that all of them have.

Shapes: N training rows, C columns with levels, S scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Struct
from silosynth.core.streams import Draw, Streams, normals
from silosynth.models.gan import Shape, Trainee

N = TypeVar("N", bound=nn.Module)
_MOST = 2**24  # numbers held at once while sampling: 64 MB, also with 10 000 levels


@dataclass(frozen=True)
class Coded:
    """Encoded rows of a table. A model that is restored only to sample gets none of them, but the same shape.

    Attributes:
        shape: numbers of levels and scores.
        levels: (N, C) int64.
        scores: (N, S) float32; 0 where a row is not on the continuous part.
        categorical: which of the C columns have no continuous part.
        level_of: for each of the S scores, which of the C columns belongs to it; -1 for none.
        lines: for each of the S scores, how many levels of that column, counted from 0, are continuous.
        target: which of the C columns is to be predicted from the others; -1 for none.
    """

    shape: Shape
    levels: Tensor
    scores: Tensor
    categorical: tuple[int, ...]
    level_of: tuple[int, ...]
    lines: tuple[int, ...]
    target: int = -1

    def __len__(self) -> int:
        return len(self.levels)

    def on(self, levels_BC: Tensor) -> Tensor:
        """Which scores (B, S) say something: those of rows that are on the continuous part."""
        always = F.pad(levels_BC, (0, 1))  # a column that is at level 0 throughout, for those that -1 points to
        return always[:, list(self.level_of)] < torch.tensor(self.lines, device=levels_BC.device)

    def batch(self, rows_B: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """Levels and normal scores of some rows; where a score says nothing, it is fresh noise.

        A spike of zeros amid normal scores would have to be learnt, for nothing.
        """
        levels, scores = self.levels[rows_B], self.scores[rows_B]
        noise = normals(draw, *scores.shape, device=scores.device)
        return levels, torch.where(self.on(levels), scores, noise)


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


def shape_of(encoders: Sequence[Coding]) -> Shape:
    """What rows look like that these encoders have encoded."""
    widths = tuple(encoder.width for encoder in encoders if encoder.width > 1)
    return Shape(widths, sum(encoder.lines > 0 for encoder in encoders))


def coded_by(encoders: Sequence[Coding], levels_NC: Tensor, scores_NS: Tensor, target: str = "") -> Coded:
    """Encoded rows with what models need to know of the columns."""
    levelled = [encoder for encoder in encoders if encoder.width > 1]
    numbers = {encoder.name: c for c, encoder in enumerate(levelled)}
    scored = [encoder for encoder in encoders if encoder.lines]
    return Coded(
        shape=shape_of(encoders),
        levels=levels_NC,
        scores=scores_NS,
        categorical=tuple(c for c, encoder in enumerate(levelled) if encoder.categorical),
        level_of=tuple(numbers.get(encoder.name, -1) for encoder in scored),
        lines=tuple(encoder.lines for encoder in scored),
        target=numbers.get(target, -1),
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


class AdamConfig(Protocol):
    """The options that an optimiser is made of."""

    @property
    def rate(self) -> float:
        """Learning rate."""

    @property
    def betas(self) -> tuple[float, float]:
        """What is kept of both moments at each step."""

    @property
    def decay(self) -> float:
        """Weight decay."""


def trainee(network: N, config: AdamConfig) -> Trainee[N]:
    """A network with its Adam; it is where it is to be trained."""
    return Trainee(network, rate=config.rate, betas=config.betas, decay=config.decay)


def check_range(config: Struct, *names: str, below: float = math.inf) -> None:
    """Check that options (of tuples: all parts) are at least 0 and below ``below``.

    Raises:
        ConfigError: names the option and its value.
    """
    for name in names:
        value = getattr(config, name)
        if not all(0 <= part < below for part in (value if isinstance(value, tuple) else (value,))):
            limit = "" if below == math.inf else f" and below {below:g}"
            raise ConfigError(f"Option {name!r} must be at least 0{limit}", value)


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
