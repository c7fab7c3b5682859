"""Where numbers lie whose bounds nobody has declared: by how many are in cells that are known beforehand.

Cells are quarters of octaves (from 1 to 1.25, to 1.5, to 1.75, to 2 times a power of two), from 2^-30 to 2^62 on either
side of zero, and one on either side next to zero; what lies beyond counts in the last cells.

From exact counts a range has as many rows in its end cells and beyond as make no lone extreme (`exact_range`). From
noised ones it goes from a cell before the first that clearly holds rows to a cell after the last; or to the ends of an
octave, or four, that clearly do besides their clear parts (`noised_range`). So it misses ends that few rows reach,
whose values are clamped as those beyond declared bounds. How many these are is counted with those between the ends
(`and_beyond`): where they may be more than a tenth of all rows, noise has hidden the range (`within`).

Ranges are as wide as their distance from zero. Where zero is not in one, its histogram has a thousand bins, of which
those are taken, and put together, between which values clearly are (`narrowed`): years of this century lie within 1536
to 2560.

Shapes: C cells, and after these the numbers of zeros and of missing values, as in `encoders.table.histogram`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
_WITHIN = 4, 16, 64  # bins of a fine histogram
_FINE = 1024  # its bins
_MOST_BEYOND = 0.1  # of all rows, a deviation of the noise on their number included
_LONE = 0.01  # the same, where nothing but zero is clear
_DEVIATIONS = 1.5  # of the noise on their number


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
    together = [place + (_ZERO + 1) * side for side, place in _clear(sides, beyond, _TOGETHER).nonzero().tolist()]
    if cells:
        cells = [max(0, cells[0] - (cells[0] != _ZERO)), min(len(held) - 1, cells[-1] + (cells[-1] != _ZERO - 1))]
    if not (found := [*cells, *together]):
        return None
    low, high = float(EDGES[min(found)]), float(EDGES[max(found) + 1])
    return (0.0 if 0 < 2 * low < high else low), (0.0 if low < 2 * high < 0 else high)


def _clear(counts_SC: Tensor, beyond: float, sizes: Sequence[int]) -> Tensor:
    """Cells (S, C) bool that are clear by themselves, or of so many whose rest is, without those that are."""
    clear_SC = counts_SC > beyond
    for size in sizes:
        rest = counts_SC.masked_fill(clear_SC, 0).unflatten(1, (-1, size)).sum(2)
        clear_SC = clear_SC | (rest > math.sqrt(size) * beyond).repeat_interleave(size, dim=1)
    return clear_SC


def and_beyond(edges: Tensor) -> Tensor:
    """Edges (B + 3) of bins between these (B + 1), and of one beyond either end."""
    end = torch.tensor([math.inf], dtype=edges.dtype)
    return torch.cat([-end, edges, end])


def within(
    counts: Tensor, ends: tuple[float, float], found: tuple[bool, bool], rows: int, deviation: float
) -> Tensor | None:
    """Noised counts (B + 2) of those (B + 4) by `and_beyond`: values beyond count in the last bins on either side.

    None if more than `_MOST_BEYOND` of the rows may be beyond; or clearly most of those are that hold neither zero nor
    nothing; or, where nothing but zero is clear, more than `_LONE` of all.

    Args:
        counts: with those of zeros and of missing values.
        ends: low and high.
        found: whether either was found by noised counts: values beyond declared ends are no matter.
        rows: noised number of all.
        deviation: of the noise.
    """
    below, above, zeros, absent = int(counts[0]), int(counts[-3]), int(counts[-2]), int(counts[-1])
    beyond = below * found[0] + above * found[1]
    beyond += zeros * ((found[0] and ends[0] > 0) or (found[1] and ends[1] < 0))
    chance = math.sqrt(3) * deviation
    alone = max(-ends[0], ends[1]) <= EDGES[_ZERO + 2]  # but for zero nothing is clear
    most = _LONE * rows if alone else (rows - zeros - absent) / 2
    if beyond + chance > _MOST_BEYOND * rows or beyond > most + _DEVIATIONS * chance:
        return None
    inner = torch.cat([counts[1:-3], counts[-2:]])
    inner[0] += below
    inner[-3] += above
    return inner


def bins_between(low: float, high: float, bins: int) -> int:
    """How many bins a histogram has: more where a noised range is far from zero, and so maybe wide for its values."""
    return bins if low <= 0 <= high else max(bins, _FINE)


def narrowed(edges: Tensor, counts: Tensor, bins: int, deviation: float, normal: bool) -> tuple[Tensor, Tensor, float]:
    """Edges, noised counts and their deviation of at most so many bins, where values clearly are, of more (B) of them.

    From a bin before the first that clearly holds values to one after the last, neighbours together.
    """
    size = len(edges) - 1
    if size <= bins:
        return edges, counts, deviation
    full = torch.nn.functional.pad(counts[:-2].double(), (0, -size % max(_WITHIN)))
    beyond = deviation * _beyond_chance(_BY_CHANCE / (2 * len(full)), normal)
    clear = _clear(full[None], beyond, _WITHIN)[0, :size].nonzero().flatten().tolist() or [0, size - 1]
    first, last = max(0, clear[0] - 1), min(size, clear[-1] + 2)
    together = math.ceil((last - first) / bins)
    last = min(size, first + together * math.ceil((last - first) / together))
    sums = torch.stack([part.sum() for part in counts[first:last].split(together)])
    places = torch.tensor([*range(first, last, together), last])
    absent = torch.tensor([0, int(counts[-1])])  # and no zeros, which are not in the range
    return edges[places], torch.cat([sums, absent]), deviation * math.sqrt(together)


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
