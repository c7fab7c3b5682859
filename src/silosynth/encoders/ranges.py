"""Where numbers lie whose bounds nobody has declared: by how many are in cells that are known beforehand.

Cells are quarters of octaves (from 1 to 1.25, to 1.5, to 1.75, to 2 times a power of two), from 2^-30 to 2^62 on either
side of zero, and one on either side next to zero; what lies beyond counts in the last cells.

From exact counts a range has as many rows in its end cells and beyond as make no lone extreme (`exact_range`). From
noised ones it goes from a cell before the first that clearly holds rows to a cell after the last; or to the ends of an
octave, or four, that clearly do although no part of them does (`noised_range`). So it misses ends that few rows reach,
whose values are clamped as those beyond declared bounds. How many these are is counted with those between the ends
(`and_beyond`): where they are clearly more than a twentieth of all rows, noise has hidden the range (`within`).

Shapes: C cells, and after these the numbers of zeros and of missing values, as in `encoders.table.histogram`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_TOGETHER = 4, 16  # cells of one octave, and of four
_POWERS = 2.0 ** np.arange(-30, 63)
_POSITIVE = (_POWERS[:, None] * np.array([1.0, 1.25, 1.5, 1.75])).reshape(-1)[:-3]
EDGES = torch.from_numpy(np.concatenate([-_POSITIVE[::-1], [0.0], _POSITIVE]))
_ZERO = len(_POSITIVE)  # the cell whose lower edge is 0
SHARES = 0.4, 0.6  # of a column's epsilon, for a range and for what is counted within
NORMAL_SHARES = 0.6, 0.79  # the same for Gaussian noise, of which squares of epsilon add up
_BY_CHANCE = 1e-4  # probability at most that noise alone makes any cell clear: it would ruin the column
_MOST_BEYOND = 0.05  # of all rows, in neither end of a range
_DEVIATIONS = 2.5  # of the noise on their number


def exact_range(counts: Tensor, least: int) -> tuple[float, float]:
    """The range of values by exact counts (C + 2,), with ``least`` rows in its end cells and beyond.

    So no end is of a lone extreme (`silosynth.encoders.column`).
    """
    held = _held(counts)
    if not held.any():
        return 0.0, 1.0
    least = min(least, (int(held.sum()) + 1) // 2)
    first = int((held.cumsum(0) >= least).nonzero()[0])
    last = int((held.flip(0).cumsum(0).flip(0) >= least).nonzero()[-1])
    return float(EDGES[first]), float(EDGES[last + 1])


def noised_range(counts: Tensor, deviation: float, normal: bool) -> tuple[float, float] | None:
    """The range of values by noised counts (C + 2,); None if no cell clearly holds rows.

    Zero is in it where it would make it at most twice as long: cells nearer to zero are narrower, and hold fewer rows.

    Args:
        counts: of each cell, of zeros and of missing values.
        deviation: of the noise on each.
        normal: whether noise is Gaussian, or Laplace's.
    """
    held = _held(counts).double()
    sides = torch.stack([held[: _ZERO - 1], held[_ZERO + 1 :]])  # without the two cells next to zero
    beyond = deviation * _beyond_chance(_BY_CHANCE / (2 * len(held)), normal)
    cells = (held > beyond).nonzero().flatten().tolist()
    found, clear = list[int](), sides > beyond
    for size in _TOGETHER:
        together, parts = sides.unflatten(1, (-1, size)).sum(2), clear.unflatten(1, (-1, size)).any(2)
        spread = ((together > math.sqrt(size) * beyond) & ~parts).repeat_interleave(size, dim=1)
        clear |= spread
        found += [place + (_ZERO + 1) * side for side, place in spread.nonzero().tolist()]
    if cells:
        found += [max(0, cells[0] - (cells[0] != _ZERO)), min(len(held) - 1, cells[-1] + (cells[-1] != _ZERO - 1))]
    if not found:
        return None
    low, high = float(EDGES[min(found)]), float(EDGES[max(found) + 1])
    return (0.0 if 0 < 2 * low < high else low), (0.0 if low < 2 * high < 0 else high)


def and_beyond(edges: Tensor) -> Tensor:
    """Edges (B + 3) of bins between these (B + 1), and of one beyond either end."""
    end = torch.tensor([math.inf], dtype=edges.dtype)
    return torch.cat([-end, edges, end])


def within(counts: Tensor, low: float, high: float, rows: int, deviation: float) -> Tensor | None:
    """Noised counts (B + 2) of those (B + 4) by `and_beyond`: values beyond count in the last bins on either side.

    None if clearly more than `_MOST_BEYOND` of the rows are beyond.
    """
    below, above, zeros = int(counts[0]), int(counts[-3]), int(counts[-2])
    beyond = below + above + zeros * (not low <= 0 <= high)
    if beyond > _MOST_BEYOND * rows + _DEVIATIONS * math.sqrt(3) * deviation:
        return None
    inner = torch.cat([counts[1:-3], counts[-2:]])
    inner[0] += below
    inner[-3] += above
    return inner


def _held(counts: Tensor) -> Tensor:
    """How many values are in each cell, zeros in the one from zero on."""
    held = counts[:-2].clone()
    held[_ZERO] += counts[-2]
    return held


def _beyond_chance(probability: float, normal: bool) -> float:
    """How many deviations noise exceeds with this probability at most."""
    if normal:
        return -float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))
    return math.log(1 / (2 * probability)) / math.sqrt(2)
