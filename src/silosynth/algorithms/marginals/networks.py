"""Attributes of a few levels, and which tables of them are measured.

A *cell* is what an encoded value is in: one of the encoder's levels, or one of the ``bins`` parts of its continuous
part (`silosynth.encoders.attributes`). An attribute's levels are groups of cells, where there are too many of them:
neighbouring numbers, or the rarest categories. Missing values are a level of their own.

Shapes: N rows, R rows that are drawn, F cells, P parts of one, L levels of one attribute, M of another, A attributes.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from silosynth.core.conditions import Condition, fulfils
from silosynth.core.messages import Struct
from silosynth.core.schema import Column, Table, below
from silosynth.core.streams import Streams
from silosynth.counting.groups import joined
from silosynth.encoders.allowed import looked_up_from
from silosynth.encoders.attributes import LEAST, admitted, codes
from silosynth.encoders.column import AtomEncoder, Encoder
from silosynth.encoders.combinations import Determined, look_up
from silosynth.encoders.table import MOST_BINS
from silosynth.models.graphical import Axes, Levels, Numbers, cells_of, cliques_of, spread

Edge = tuple[int, int]
Attributes = tuple[int, ...]  # of a table: two; or the only one there is
PARTS = 1e9  # shares are rounded to one over it
CHANCE = 2.0  # standard deviations of what noise adds to absolute deviations
COMPARED = 24  # pairs at once, by the room that they take
REDRAWS = 20  # of values that do not fulfil conditions; the remaining rows are thrown away
FEARED = 0.1  # of a full table's noise: a model takes up less of it than the table has


class CountedLevels(Struct):
    """How a column's cells make an attribute.

    Attributes:
        level_F: the level of each cell, int64.
        group_L: the group of each level, in the tables by which the tree is selected, int64.
    """

    level_F: Tensor
    group_L: Tensor

    @property
    def size(self) -> int:
        """L."""
        return len(self.group_L)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return int(self.group_L.max()) + 1

    @property
    def group_ends(self) -> tuple[int, ...]:
        """The level after each group, which are of neighbouring levels."""
        return tuple(torch.bincount(self.group_L).cumsum(0).tolist())

    def without_shares(self) -> Attribute:
        """For those who count, and draw nothing."""
        return Attribute(self.level_F, self.group_L, torch.zeros(len(self.level_F), dtype=torch.float64))

    def valid(self, cells: int, most: int) -> bool:
        """Whether each of so many cells has one of at most ``most`` levels (and missing values), and these groups."""
        numbers = self.level_F.dtype == self.group_L.dtype == torch.int64
        shaped = self.level_F.shape == (cells,) and self.group_L.dim() == 1 and 1 <= len(self.group_L) <= most + 1
        if not (numbers and shaped and cells):
            return False
        return all(int(of.min()) >= 0 and int(of.max()) < len(self.group_L) for of in (self.level_F, self.group_L))


class Attribute(CountedLevels):
    """The same, with what its cells are drawn by.

    Attributes:
        share_F: each cell's share of all rows, float64: by which a level's cells are drawn; zero where nothing is.
    """

    share_F: Tensor

    @property
    def counted(self) -> CountedLevels:
        """What silos count by."""
        return CountedLevels(self.level_F, self.group_L)

    @property
    def margin_L(self) -> Tensor:
        """Each level's share of all rows."""
        return torch.zeros(self.size, dtype=torch.float64).index_add_(0, self.level_F, self.share_F)

    def draw(self, level_R: Tensor, rng: np.random.Generator, part_F: Tensor | None = None) -> Tensor:
        """Cells (R,) of levels, each level's in proportion to their shares, or to these parts of them."""
        return torch.from_numpy(spread(self._shares(part_F).numpy(), level_R.numpy(), rng))

    def weigh(self, part_F: Tensor) -> Tensor:
        """Which part (L,) of each level these parts of its cells are."""
        return self._shares(part_F).sum(1) / self._shares().sum(1)

    def _shares(self, part_F: Tensor | None = None) -> Tensor:
        """Each level's cells (L, F)."""
        share_F = (self.share_F + LEAST) * (1.0 if part_F is None else part_F)
        return (self.level_F == torch.arange(self.size)[:, None]) * share_F


def cell_shares(encoder: Encoder, share_L: Tensor, bins: int) -> Tensor:
    """Shares (F,) of cells from those of an encoder's levels: a continuous part is divided evenly, as its bins are."""
    lines = share_L[: encoder.lines].double().repeat_interleave(bins) / bins
    return torch.cat([lines, share_L[encoder.lines :].double()])


def level_variance(variance: float, encoder: Encoder, attribute: CountedLevels) -> float:
    """Of a level's number of rows: one of numbers is made of some of a histogram's bins, which have this variance."""
    return variance * (1.0 if encoder.categorical else max(1.0, MOST_BINS / attribute.size))


def drawn(
    levels_RA: Tensor,
    attributes: Sequence[Attribute],
    encoders: Sequence[Encoder],
    bins: int,
    streams: Streams,
    parts: Mapping[int, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Levels and scores of columns (`encoders.column`): a cell for each level that was drawn, a score in each cell.

    ``parts`` are those of some attributes' cells from which is drawn: see `silosynth.encoders.attributes.admitted`.
    """
    rng, cells_RA, parts = streams.child("cells").numpy(), torch.zeros_like(levels_RA), parts or {}
    for place, attribute in enumerate(attributes):
        part_F = parts[place].double().mean(1) if place in parts else None
        cells_RA[:, place] = attribute.draw(levels_RA[:, place].clamp(max=attribute.size - 1), rng, part_F)
    return codes(cells_RA, encoders, bins, streams.child("scores").torch(), parts)


def make_attribute(encoder: Encoder, share_F: Tensor, bins: int, groups: int) -> Attribute:
    """An attribute of at most ``bins`` levels (and missing values), in at most ``groups`` groups."""
    cells = len(share_F)
    missing = bool(getattr(encoder, "missing", False)) and cells > 1
    values = cells - missing
    level_F, of_F = np.full(cells, -1), share_F[:values].double().numpy()
    if encoder.categorical or values == 1:  # the one cell of a column of numbers may be that of missing values
        level_F[np.argsort(-of_F, kind="stable")] = np.minimum(np.arange(values), bins - 1)
        own = int(level_F.max()) + 1
        group_L = np.minimum(np.arange(own), groups - 1)
    else:
        order = np.argsort(_positions(encoder, bins)[:values], kind="stable")
        level_F[order] = _together(of_F[order], bins)
        own = int(level_F.max()) + 1
        group_L = _together(np.bincount(level_F[:values], of_F, own).astype(np.float64), groups)
    if missing:
        level_F[-1], group_L = own, np.append(group_L, group_L.max() + 1)
    return Attribute(torch.from_numpy(level_F), torch.from_numpy(group_L.astype(np.int64)), share_F.double())


def _positions(encoder: Encoder, bins: int) -> Numbers:
    """Numbers by which an encoder's cells (without missing values) are in order."""
    if not isinstance(encoder, AtomEncoder):
        return np.arange(encoder.width + encoder.lines * (bins - 1), dtype=np.float64)
    middle = torch.special.ndtri((torch.arange(bins, dtype=torch.float64) + 0.5) / bins).float()
    lines = [encoder.line_values(torch.full((bins,), line), middle) for line in range(encoder.lines)]
    found: Numbers = np.concatenate([*lines, encoder.atoms.numpy()]).astype(np.float64)
    return found


def _together(share_F: Numbers, most: int) -> Levels:
    """The level of each cell, (F,): all one each, or neighbours together, in ``most`` levels of about as many rows."""
    if len(share_F) <= most:
        return np.arange(len(share_F))
    return joined(np.rint(share_F * PARTS).astype(np.int64), most)


# Conditions: by whoever has the encoders, a silo or the coordinator.
#
# Each attribute's levels are weighed by the part of their cells that fulfils them, levels are drawn with these weights,
# and cells and places in them from what fulfils the conditions. What decoding moves across the end of a range is drawn
# again, and so are values in a range so narrow that it holds no part's middle.


@dataclass(frozen=True)
class Wanted:
    """What rows are to fulfil.

    Attributes:
        conditions: on columns of the encoders, and on others that these determine.
        parts: which parts (F, P) bool of cells fulfil them, by place of the attribute, where not all do.
    """

    conditions: tuple[Condition, ...] = ()
    parts: Mapping[int, Tensor] = field(default_factory=dict)

    def weights(self, attributes: Sequence[Attribute]) -> dict[int, Tensor]:
        """Which part (L,) of each level fulfils the conditions, of the attributes where not all do."""
        return {place: attributes[place].weigh(part_FP.double().mean(1)) for place, part_FP in self.parts.items()}

    def fulfilled(self, levels_RA: Tensor, streams: Streams, draw: Callable[[Tensor, Streams], Table]) -> Table:
        """Values that ``draw`` draws for levels from a stream; those that do not fulfil the conditions drawn again."""
        table = draw(levels_RA, streams)
        for again in range(REDRAWS if self.conditions else 0):
            wrong_R = ~fulfils(table, self.conditions)
            if not wrong_R.any():
                break
            redrawn = draw(levels_RA[wrong_R], streams.child("again", again))
            place_R = torch.arange(len(table))
            place_R[wrong_R] = len(table) + torch.arange(len(redrawn))
            table = below([table, redrawn]).take(place_R)
        return table


def wanted(
    conditions: Sequence[Condition], encoders: Sequence[Encoder], bins: int, rules: Sequence[Determined] = ()
) -> Wanted:
    """What the conditions want of columns that are encoded so, and of others that ``rules`` look up by these."""
    parts, holds = dict[int, Tensor](), partial(_holds, rules=rules, conditions=conditions)
    for place, encoder in enumerate(encoders):
        part_FP = admitted(encoder, bins, holds)
        if not part_FP.all() and (part_FP.any() or not encoder.lines):
            parts[place] = part_FP
    return Wanted(tuple(conditions), parts)


def _holds(column: Column, rules: Sequence[Determined], conditions: Sequence[Condition]) -> Tensor:
    """Which rows (N,) fulfil the conditions on a column, and on those that it determines."""
    return fulfils(look_up(Table((column,)), looked_up_from(column.name, rules)), conditions)


# Selection.


@dataclass(frozen=True)
class Measured:
    """Noised numbers of rows.

    Attributes:
        counts: (L,) of an attribute, or (L, M) of two.
        variance: of each count's noise; 0 for exact ones.
    """

    counts: Numbers
    variance: float


def association(table: Numbers, variance: float) -> float:
    """How much two attributes have in common: chi-square by twice the number of rows, next to mutual information.

    Noise is taken off, so that on average it adds nothing: what is near independence may come out below zero.

    Args:
        table: noised counts (L, M).
        variance: of each count's noise.
    """
    total = max(1.0, float(table.sum()))
    expected = np.outer(np.maximum(table.sum(1), 0), np.maximum(table.sum(0), 0)) / total
    weight = 1 / np.maximum(expected, 1 + 3 * math.sqrt(variance))
    own = variance * float(weight.sum()) * (1 - 1 / table.shape[0]) * (1 - 1 / table.shape[1])
    found = float(np.sum(weight * (table - expected) ** 2))
    return float((found - own) / (2 * total))


def spanning_tree(attributes: int, scores: Mapping[Edge, float]) -> tuple[Edge, ...]:
    """The edges (parent, child) of the spanning tree with the largest sum of scores, from attribute 0 (Prim)."""
    reached, edges = [0], list[Edge]()
    while len(reached) < attributes:
        ends = itertools.product(reached, sorted(set(range(attributes)) - set(reached)))
        parent, child = max(ends, key=lambda end: scores[min(end), max(end)])
        edges.append((parent, child))
        reached.append(child)
    return tuple(edges)


def missed(coarse: Measured, expected: Numbers, *, cells: int, variance: float) -> float:
    """By how many rows a model misses a table of groups, less what opening the table in full is feared to bring.

    Absolute deviations, less what the noise on groups adds to them on average, and less `FEARED` of what the noise on
    the full table will add to those of its cells. Where groups are levels, the full table would only have less noise:
    less as well what the noise on groups adds by `CHANCE`.

    Args:
        coarse: noised counts (L, M) of groups.
        expected: numbers of rows that the model says.
        cells: of the table in full.
        variance: of the noise with which it opens.
    """
    noise = coarse.counts.size * math.sqrt(coarse.variance) + FEARED * cells * math.sqrt(variance)
    chance = CHANCE * math.sqrt((1 - 2 / math.pi) * cells * coarse.variance) if coarse.counts.size == cells else 0.0
    return float(np.abs(coarse.counts - expected).sum()) - math.sqrt(2 / math.pi) * noise - chance


def most_missed(
    sizes: Sequence[int], scores: Mapping[Attributes, float], opened: Iterable[Attributes], count: int, cells: int
) -> tuple[Attributes, ...]:
    """At most so many more pairs that are missed, and fit into cliques of so many cells, one after the other.

    Each time that with the largest score by the cube root of its table's cells, as noise is on all of these, and by the
    square root of the room that it takes: the cells by which cliques grow, and an equal share of what is left besides.
    Only the `COMPARED` pairs are compared that are first by score and cells of their tables. By how much cliques grow
    is counted as a pair comes among these, and again before it is chosen; in between, one that has come to lie within a
    clique takes nothing. A pair that does not fit when it is counted is left out.
    """
    axes, tables, found = Axes(tuple(sizes)), [*opened], list[Attributes]()
    ranks = {pair: score / math.prod(sizes[one] for one in pair) ** (1 / 3) for pair, score in scores.items()}
    waiting = deque(pair for pair in sorted(scores, key=lambda one: -ranks[one]) if scores[pair] > 0)
    growth, used = dict[Attributes, int](), cells_of(sizes, tables)
    while len(found) < count:
        while waiting and len(growth) < COMPARED:
            pair = waiting.popleft()
            if (more := cells_of(sizes, [*tables, pair]) - used) <= cells - used:
                growth[pair] = more
        if not growth:
            break
        share = max(1.0, (cells - used) / (count - len(found)))
        best = max(growth, key=lambda pair: ranks[pair] / math.sqrt(share + max(0, growth[pair])))
        cliques = cliques_of(axes, [*tables, best])
        before, growth[best] = growth[best], sum(cliques.values()) - used
        if growth[best] <= min(before, cells - used):
            used += growth.pop(best)
            tables.append(best)
            found.append(best)
            growth = {pair: 0 if any(map(set(pair).issubset, cliques)) else more for pair, more in growth.items()}
        growth = {pair: more for pair, more in growth.items() if more <= cells - used}
    return tuple(found)


def surprise(coarse: Measured, expected: Numbers) -> float:
    """How many times as far from what a model says a table of groups is as its noise would make it."""
    noise = coarse.counts.size * math.sqrt(2 / math.pi * coarse.variance)
    return float(np.abs(coarse.counts - expected).sum()) / max(1.0, noise)


def most_surprising(
    axes: Axes, scores: Mapping[Attributes, float], beside: Iterable[Attributes], cells: int
) -> tuple[Attributes, ...]:
    """The pairs of groups, most surprising first, that fit into cliques of so many cells beside tables of levels."""
    tables, found = [*beside], list[Attributes]()
    for pair in sorted(scores, key=lambda one: -scores[one]):
        groups = tuple(map(axes.groups, pair))
        if scores[pair] > 1 and cells_of(axes.sizes, [*tables, groups], axes.ends) <= cells:
            tables.append(groups)
            found.append(pair)
    return tuple(found)


def in_groups(table: Numbers, group_L: Levels, group_M: Levels) -> Numbers:
    """The table of groups of a table of levels (L, M)."""
    rows = np.zeros((group_L.max() + 1, table.shape[1]))
    np.add.at(rows, group_L, table)
    found = np.zeros((group_M.max() + 1, len(rows)))
    np.add.at(found, group_M, rows.T)
    return found.T


def sharpened(full: Measured, coarse: Measured, group_L: Levels, group_M: Levels) -> Measured:
    """A table of levels (L, M) whose sums over groups are averaged with those of the table of groups, by variances.

    What that changes is divided evenly among a group's cells. The variance stays stated as that of single cells.
    """
    cells = np.outer(np.bincount(group_L), np.bincount(group_M))
    own = cells * full.variance
    weight = own / (own + coarse.variance) if coarse.variance else np.ones(cells.shape)
    change = weight * (coarse.counts - in_groups(full.counts, group_L, group_M)) / cells
    return Measured(full.counts + change[group_L][:, group_M], full.variance)


def sums(attribute: int, tables: Mapping[Attributes, Measured]) -> list[Measured]:
    """What tables of two attributes say of one of them, (L,) each."""
    found = []
    for pair, measured in tables.items():
        if attribute in pair and len(pair) == 2:
            axis = int(attribute == pair[0])
            found.append(Measured(measured.counts.sum(axis), measured.variance * measured.counts.shape[axis]))
    return found


def doubted(own: Measured, others: Sequence[Measured]) -> Measured:
    """An attribute's margin with a variance that covers how far it is from what tables say, beyond their noise.

    Margins follow from histograms, within whose bins values are taken to be spread evenly. Where they are not, levels
    hold other numbers of rows: by far, where a bin is wide, or holds a value that most rows share.
    """
    if not others:
        return own
    weights = [1 / one.variance for one in others]
    mean = np.average([one.counts for one in others], axis=0, weights=weights)
    apart = float(np.mean((own.counts - mean) ** 2)) - own.variance - 1 / sum(weights)
    return Measured(own.counts, own.variance + max(0.0, apart))
