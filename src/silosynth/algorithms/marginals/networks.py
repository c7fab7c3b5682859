"""Attributes of a few levels, and a tree of tables over them: selected, fitted, and drawn from.

A *cell* is what an encoded value is in: one of the encoder's levels, or one of the ``bins`` parts of its continuous
part (`silosynth.encoders.attributes`). An attribute's levels are groups of cells, where there are too many of them:
neighbouring numbers, or the rarest categories. Missing values are a level of their own.

Of a tree everything is exact: with the margins that its tables have in common, the joint distribution with the largest
entropy is that of the first attribute times, for each edge, that of the child given its parent.

Shapes: N rows, R rows that are drawn, F cells, L levels of one attribute, M of another, A attributes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from silosynth.core.conversation import State
from silosynth.core.messages import Struct
from silosynth.counting.groups import joined
from silosynth.encoders.attributes import LEAST
from silosynth.encoders.column import AtomEncoder, Encoder
from silosynth.models.graphical import cells_of

Numbers = npt.NDArray[np.float64]
Levels = npt.NDArray[np.int64]
Edge = tuple[int, int]
Attributes = tuple[int, ...]  # of a table: two; or the only one there is
ROUNDS = 300  # of alternating projections, at most
PARTS = 1e9  # shares are rounded to one over it
CLOSE = 1e-9  # a share of rows by which margins may be missed


class Attribute(Struct):
    """How a column's cells make an attribute.

    Attributes:
        level_F: the level of each cell, int64.
        group_L: the group of each level, in the tables by which the tree is selected, int64.
        share_F: of all rows, float64: by which a level's cells are drawn.
    """

    level_F: Tensor
    group_L: Tensor
    share_F: Tensor

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

    @property
    def margin_L(self) -> Tensor:
        """Each level's share of all rows."""
        return torch.zeros(self.size, dtype=torch.float64).index_add_(0, self.level_F, self.share_F)

    def draw(self, level_R: Tensor, rng: np.random.Generator) -> Tensor:
        """Cells (R,) of levels, each level's in proportion to their shares."""
        cell_R = torch.zeros_like(level_R)
        for level in range(self.size):
            rows = torch.nonzero(level_R == level).flatten()
            if len(rows):
                of_level = torch.nonzero(self.level_F == level).flatten()
                drawn = spread(self.share_F[of_level].numpy() + LEAST, len(rows), rng)
                cell_R[rows] = of_level[torch.from_numpy(drawn)]
        return cell_R


def make_attribute(encoder: Encoder, share_F: Tensor, bins: int, groups: int) -> Attribute:
    """An attribute of at most ``bins`` levels (and missing values), in at most ``groups`` groups."""
    cells = len(share_F)
    missing = bool(getattr(encoder, "missing", False)) and cells > 1
    values = cells - missing
    level_F, of_F = np.full(cells, -1), share_F[:values].double().numpy()
    if encoder.categorical:
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


# Selection.


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


def missed(coarse: Measured, expected: Numbers) -> float:
    """By how many rows a model misses a table of groups: absolute deviations, less what the noise adds on average.

    Args:
        coarse: noised counts (L, M) of groups.
        expected: numbers of rows that the model says.
    """
    noise = coarse.counts.size * math.sqrt(2 * coarse.variance / math.pi)
    return float(np.abs(coarse.counts - expected).sum()) - noise


def most_missed(
    sizes: Sequence[int], scores: Mapping[Attributes, float], opened: Iterable[Attributes], count: int, cells: int
) -> tuple[Attributes, ...]:
    """At most so many more pairs with the largest scores above zero that fit into cliques of so many cells."""
    tables, found = [*opened], list[Attributes]()
    for pair in sorted(scores, key=lambda one: -scores[one]):
        if len(found) < count and scores[pair] > 0 and cells_of(sizes, [*tables, pair]) <= cells:
            tables.append(pair)
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


# Fitting.


@dataclass(frozen=True)
class Measured:
    """Noised numbers of rows.

    Attributes:
        counts: (L,) of an attribute, or (L, M) of two.
        variance: of each count's noise; 0 for exact ones.
    """

    counts: Numbers
    variance: float


def fitted(rows: float, margins: Sequence[Measured | None], tables: Mapping[Edge, Measured]) -> TableTree:
    """The tree that is nearest to what was measured.

    Each attribute's margin is the mean of all that tell it, weighted by 1 / variance, made a distribution by the
    nearest one; then each table is the nearest with these margins and no negative counts, by squares.

    Args:
        rows: their number.
        margins: of each attribute, of its own, if there is one.
        tables: of the tree's edges (parent, child), each after the parent's own.
    """
    shares = [_margin(rows, attribute, one, tables) for attribute, one in enumerate(margins)]
    joint = {}
    for (parent, child), measured in tables.items():
        near = nearest_table(measured.counts / rows, shares[parent], shares[child])
        joint[parent, child] = near / near.sum()
    return TableTree(shares[0], tuple(joint.items()))


def _margin(rows: float, attribute: int, own: Measured | None, tables: Mapping[Edge, Measured]) -> Numbers:
    found = [] if own is None else [own]
    for (parent, child), measured in tables.items():
        if attribute in (parent, child):
            axis = int(attribute == parent)
            found.append(Measured(measured.counts.sum(axis), measured.variance * measured.counts.shape[axis]))
    weights = [1 / (one.variance + CLOSE) for one in found]
    mean = np.average([one.counts for one in found], axis=0, weights=weights)
    _, moved = _moved(mean[None], np.array([float(rows)]))
    share: Numbers = moved[0] / moved[0].sum()
    return share


def nearest_table(table: Numbers, rows_L: Numbers, columns_M: Numbers) -> Numbers:
    """The table (L, M) nearest to another, by squares, that has no negative cell and has these margins.

    It is max(0, table + u + v) with a number for each row and each column, which are found by turns: coordinate ascent
    on the dual problem, each step exact. What little the last turn leaves is scaled.
    """
    u, v, near = np.zeros(len(rows_L)), np.zeros(len(columns_M)), table
    for _ in range(ROUNDS):
        u, _ = _moved(table + v, rows_L)
        v, near = _moved((table + u[:, None]).T, columns_M)
        near = near.T
        if np.abs(near.sum(1) - rows_L).max() < CLOSE:
            break
    near = near + LEAST * np.outer(rows_L, columns_M)
    for _ in range(3):
        near = near * (rows_L / np.maximum(near.sum(1), LEAST**2))[:, None]
        near = near * (columns_M / np.maximum(near.sum(0), LEAST**2))
    return near


def _moved(table: Numbers, sums_L: Numbers) -> tuple[Numbers, Numbers]:
    """What is added to each row (L,), so that with negative cells at zero it has this sum; and the result."""
    ordered = -np.sort(-table, axis=1)
    places = np.arange(1, table.shape[1] + 1)
    shift = (sums_L[:, None] - ordered.cumsum(1)) / places
    last = np.maximum((ordered + shift > 0).sum(1) - 1, 0)
    u: Numbers = shift[np.arange(len(table)), last]
    return u, np.maximum(table + u[:, None], 0)


@dataclass(frozen=True)
class TableTree:
    """Attribute 0 first, then the others, each after its parent.

    Attributes:
        first_L: the distribution of attribute 0.
        edges: (parent, child), each with the distribution (L, M) of both.
    """

    first_L: Numbers
    edges: tuple[tuple[Edge, Numbers], ...]

    def draw(self, rows: int, rng: np.random.Generator) -> Tensor:
        """Levels (R, A), int64.

        The children of all rows at one level of the parent are drawn together, next to their expected numbers.
        """
        level_RA = np.zeros((rows, len(self.edges) + 1), np.int64)
        level_RA[:, 0] = spread(self.first_L, rows, rng)
        for (parent, child), joint in self.edges:
            for level, share_M in enumerate(joint):
                at = np.flatnonzero(level_RA[:, parent] == level)
                level_RA[at, child] = spread(share_M + LEAST, len(at), rng)
        return torch.from_numpy(level_RA)

    def state(self) -> State:
        """In storable form."""
        edges = [{"parent": a, "child": b, "joint": torch.from_numpy(joint)} for (a, b), joint in self.edges]
        return {"first": torch.from_numpy(self.first_L), "edges": edges}

    @classmethod
    def restored(cls, state: State) -> TableTree:
        """What `state` stored."""
        edges = tuple(((one["parent"], one["child"]), one["joint"].numpy()) for one in state["edges"])
        return cls(state["first"].numpy(), edges)


def spread(weight_L: Numbers, count: int, rng: np.random.Generator) -> Levels:
    """Levels (count,) in proportion to weights: one from each of ``count`` equal parts of the whole, in any order."""
    places = (rng.permutation(count) + rng.random(count)) / max(1, count)
    bounds = weight_L.cumsum()
    drawn: Levels = np.searchsorted(bounds / bounds[-1], places, side="right")
    return np.minimum(drawn, len(weight_L) - 1)
