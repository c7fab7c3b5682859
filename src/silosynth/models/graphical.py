"""A joint distribution of attributes with few levels each, inferred from noised tables of some of them, and drawn from.

The distribution is log-linear: its logarithm is a sum of one number per cell of each table that was measured. Of all
distributions that are as near to the tables (by squares over variances, as in R. McKenna, D. Sheldon, G. Miklau:
*Graphical-model based estimation and inference for differential privacy*, ICML 2019) that is the one with the largest
entropy. It is kept as these numbers; everything else is computed in a junction tree, whose cliques contain the tables.

Fitting minimises, over the log-linear numbers θ, with shares of rows y and variances v of each table (in shares),

    E(θ) = log Z(θ) - y·θ + ½ s Σ v θ²

which is smooth and convex: the dual problem of minimising half the squared error by variances (of Gaussian noise, the
negative logarithm of the likelihood), less s times the entropy. The entropy makes the optimum unique; its weight, in
nats, is `SMOOTHING` times what would move shares by as much as noise does for θ = 1. How far a θ is from the optimum is
known from its gradient: fitting stops when what is left is less than `GAP` nats for each measured number.

An attribute's levels may be in *groups* of neighbours. Tables of groups are measured like others, and take part in the
model as such: number A + a names the groups of attribute a among A attributes. A clique that has an attribute has its
groups as well, at no cost; one that needs only the groups is as much smaller.

Shapes: R rows that are drawn, A attributes, L levels of one, S states of a separator, C cells drawn given a state.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from silosynth.core.conversation import State
from silosynth.core.errors import ConfigError, StorageError
from silosynth.core.messages import LARGEST

Numbers = npt.NDArray[np.float64]
Levels = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Attributes = tuple[int, ...]
MOST_CELLS = 5_000_000  # of all cliques together: 40 MB for each copy of them
EXACT = 1e-4  # variance that exact counts are taken to have
SMOOTHING = 0.3  # of standard deviations of noise that entropy may move counts by, for each unit of θ
GAP = 1e-3  # nats of likelihood for each measured number by which a fit may miss the optimum
BISECTIONS = 40  # of a step's length at most
ITERATIONS = 2000  # of L-BFGS at most
MEMORY = 20  # steps that it remembers


@dataclass(frozen=True)
class MeasuredTable:
    """Noised numbers of rows for all combinations of some attributes' levels.

    Attributes:
        attributes: different ones, in any order; from A on, groups of attributes.
        counts: one axis per attribute.
        variance: of each count's noise; 0 for exact ones, whose empty cells are taken to be impossible.
    """

    attributes: Attributes
    counts: Numbers
    variance: float


@dataclass(frozen=True)
class Clique:
    """Attributes of a junction tree that are held together.

    Attributes:
        attributes: in ascending order; the groups of one, where it has no levels of it.
        parent: the place of the clique before it that it hangs on; -1 for the first.
        separator: what both have in common, which separates its other attributes from all cliques before.
    """

    attributes: Attributes
    parent: int
    separator: Attributes

    @property
    def own(self) -> Attributes:
        """What no clique before has."""
        return tuple(one for one in self.attributes if one not in self.separator)


@dataclass(frozen=True)
class Axes:
    """Attributes and their groups, as axes of arrays, which are in ascending order of attributes.

    Attributes:
        sizes: L of each attribute.
        ends: the level after each group, of each attribute; empty if there are no groups.
    """

    sizes: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...] = ()

    def size(self, one: int) -> int:
        """Of an axis."""
        return self.sizes[one] if one < len(self.sizes) else len(self.ends[one - len(self.sizes)])

    def groups(self, one: int) -> int:
        """What stands for the groups of an attribute."""
        return one + len(self.sizes)

    def group_of(self, one: int) -> Levels:
        """The group (L,) of each level of an attribute."""
        ends = self.ends[one]
        return np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))

    def ordered(self, attributes: Iterable[int]) -> Attributes:
        """Axes of an array of these: no groups of attributes that are there themselves."""
        found, count = set(attributes), len(self.sizes)
        return tuple(sorted((one for one in found if one - count not in found), key=lambda one: one % count))

    def within(self, attributes: Iterable[int], among: Iterable[int]) -> bool:
        """Whether an array with axes ``among`` says these."""
        there = set(among)
        return all(one in there or one - len(self.sizes) in there for one in attributes)

    def placed(self, table: Numbers, attributes: Attributes, among: Attributes) -> Numbers:
        """With axes of size one for what ``among`` has besides, and each group's number for all of its levels."""
        size = dict(zip(attributes, table.shape, strict=True))
        table = table.reshape([size.get(one, size.get(self.groups(one), 1)) for one in among])
        for place, one in enumerate(among):
            if self.groups(one) in size:
                table = table.take(self.group_of(one), axis=place)
        return table

    def summed(self, table: Numbers, attributes: Attributes, keep: Attributes, how: np.ufunc = np.add) -> Numbers:
        """The sums (or largest numbers) of all but these attributes, or groups of them."""
        left = [one for one in attributes if one in keep or self.groups(one) in keep]
        found = how.reduce(table, axis=tuple(place for place, one in enumerate(attributes) if one not in left))
        for place, one in enumerate(left):
            if one not in keep:
                found = how.reduceat(found, [0, *self.ends[one][:-1]], axis=place)
        return np.asarray(found)


# Junction trees.


def cells_of(sizes: Sequence[int], tables: Iterable[Attributes], ends: Sequence[tuple[int, ...]] = ()) -> int:
    """How many cells all cliques together have of a model of these tables: what time and memory grow with."""
    return sum(cliques_of(Axes(tuple(sizes), tuple(ends)), tables).values())


def cliques_of(axes: Axes, tables: Iterable[Attributes]) -> dict[Attributes, int]:
    """The cliques of a model of these tables, and how many cells each has."""
    return {clique: _cells(axes, clique) for clique in _triangulated(axes, tables)}


def _cells(axes: Axes, clique: Attributes) -> int:
    there, count = set(clique), len(axes.sizes)
    return math.prod([axes.size(one) for one in clique if one - count not in there])


def junction_tree(axes: Axes, tables: Iterable[Attributes]) -> tuple[Clique, ...]:
    """Cliques of which some contain each table, each after the one that it hangs on.

    Raises:
        ConfigError: they have more than `MOST_CELLS` cells.
    """
    cells_by_clique = cliques_of(axes, tables)
    found, cells = list(cells_by_clique), sum(cells_by_clique.values())
    if cells > MOST_CELLS:
        rule = f"The tables of a model fit into cliques of at most {MOST_CELLS:,} cells"
        raise ConfigError(rule, f"{cells:,}", "Measure fewer tables, or attributes of fewer levels.")
    ordered, waiting = [Clique(axes.ordered(found[0]), -1, ())], set(range(1, len(found)))
    places = [0]
    best = {place: (len(set(found[0]) & set(found[place])), 0) for place in waiting}
    while waiting:  # Prim: the spanning tree with the largest separators is a junction tree
        place = max(sorted(waiting), key=lambda one: best[one][0])
        waiting.remove(place)
        parent, mine = best[place][1], set(found[place])
        separator = axes.ordered(mine & set(found[places[parent]]))
        ordered.append(Clique(axes.ordered(mine), parent, separator))
        places.append(place)
        for other in waiting:
            common = len(mine & set(found[other]))
            if common > best[other][0]:
                best[other] = common, len(ordered) - 1
    return tuple(ordered)


def _triangulated(axes: Axes, tables: Iterable[Attributes]) -> list[Attributes]:
    """The largest cliques of the graph of tables, made chordal in the cheaper of two greedy ways.

    Those that have an attribute have its groups, too, where any table is of these.
    """
    count = len(axes.sizes)
    tables = list(tables)
    grouped = {one for attributes in tables for one in attributes if one >= count}
    graph = [0] * (2 * count)  # neighbours of each attribute, and of its groups, as bits
    for attributes in [*tables, *((one - count, one) for one in grouped)]:
        together = sum(1 << one for one in attributes)
        for one in attributes:
            graph[one] |= together & ~(1 << one)
    logs = [math.log(size) for size in axes.sizes] + [math.log(len(ends)) for ends in axes.ends]
    used = [*range(count), *sorted(grouped)]
    ways = [_eliminated(graph, used, logs, least_fill) for least_fill in (True, False)]
    if grouped:
        ways = [_largest(mask | _bits_above(mask, count) & _mask(grouped) for mask in cliques) for cliques in ways]
    found = [[_bits(mask) for mask in cliques] for cliques in ways]
    return min(found, key=lambda cliques: sum(_cells(axes, clique) for clique in cliques))


def _mask(places: Iterable[int]) -> int:
    return sum(1 << place for place in places)


def _bits_above(mask: int, count: int) -> int:
    """The bits of the groups of those attributes whose bits are set."""
    return (mask & ((1 << count) - 1)) << count


def _largest(masks: Iterable[int]) -> list[int]:
    """Those that no other contains, each once."""
    different = list(dict.fromkeys(masks))
    return [one for one in different if not any(one != other and one & ~other == 0 for other in different)]


def _eliminated(graph: Sequence[int], used: Iterable[int], logs: Sequence[float], least_fill: bool) -> list[int]:
    """Take out attributes, each with its neighbours as a clique: first those that join fewest pairs, or cells.

    None of the cliques contains another.
    """
    graph, left, cliques, count = list(graph), set(used), list[int](), len(graph) // 2

    def price(one: int) -> tuple[float, ...]:
        mine = graph[one]
        clique = mine | 1 << one
        cells = sum([logs[other] for other in _bits(clique & ~_bits_above(clique, count))])
        fill = sum([(mine & ~graph[other]).bit_count() - 1 for other in _bits(mine)]) if least_fill else 0
        return fill, cells, one

    prices = {one: price(one) for one in left}
    while left:
        one = min(left, key=prices.__getitem__)
        left.remove(one)
        neighbours = _bits(graph[one])
        mask = graph[one] | 1 << one
        if not any(mask & ~clique == 0 for clique in cliques):
            cliques.append(mask)
        changed = graph[one]
        for other in neighbours:
            if graph[one] & ~graph[other] & ~(1 << other):
                changed |= graph[other]  # neighbours of those that get new neighbours
            graph[other] = (graph[other] | graph[one]) & ~(1 << one | 1 << other)
        for other in set(_bits(changed)) & left:
            prices[other] = price(other)
    return cliques


@functools.lru_cache(1 << 14)
def _bits(mask: int) -> tuple[int, ...]:
    """The places of a number's bits, in order."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(found)


def _zeros(attributes: Attributes, possible: Flags) -> tuple[Attributes, Numbers]:
    """As a term of the model: 0 where it is possible, else -inf."""
    order = np.argsort(attributes)
    return tuple(sorted(attributes)), np.where(possible.transpose(order), 0.0, -np.inf)


def _ascending(axes: Axes, table: MeasuredTable) -> MeasuredTable:
    attributes = axes.ordered(table.attributes)
    order = [table.attributes.index(one) for one in attributes]
    return MeasuredTable(attributes, table.counts.astype(np.float64).transpose(order), table.variance)


# The model.


@dataclass(frozen=True)
class GraphicalModel:
    """A log-linear distribution of attributes.

    Attributes:
        sizes: L of each attribute.
        terms: attributes in ascending order, each with numbers that are added up to the logarithm of a share,
            -inf for cells that are impossible.
        ends: the level after each group, of each attribute; empty if there are no groups.
    """

    sizes: tuple[int, ...]
    terms: tuple[tuple[Attributes, Numbers], ...]
    ends: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def fitted(
        cls,
        sizes: Sequence[int],
        tables: Sequence[MeasuredTable],
        rows: float,
        *,
        start: GraphicalModel | None = None,
        ends: Sequence[tuple[int, ...]] = (),
        possible: Sequence[tuple[Attributes, Flags]] = (),
    ) -> GraphicalModel:
        """The distribution of largest entropy near what was measured.

        Args:
            sizes: L of each attribute.
            tables: what was measured; of attributes that are in none, all levels are equally likely.
            rows: how many rows the shares are of.
            start: a model of some of these tables, from which fewer steps are needed.
            ends: the level after each group, of each attribute, where tables are of groups.
            possible: which combinations of some attributes' levels can be at all, one axis per attribute: structural
                zeros are where they cannot.

        Raises:
            ConfigError: the model has more than `MOST_CELLS` cells, or nothing is possible.
        """
        axes = Axes(tuple(sizes), tuple(ends))
        return _Fit(axes, tables, rows, possible).run(start) if tables else cls(axes.sizes, (), axes.ends)

    @cached_property
    def axes(self) -> Axes:
        """Attributes and groups."""
        return Axes(self.sizes, self.ends)

    @cached_property
    def cliques(self) -> tuple[Clique, ...]:
        """The junction tree."""
        return junction_tree(self.axes, [attributes for attributes, _ in self.terms])

    @cached_property
    def _joints(self) -> list[Numbers]:
        """The distribution of each clique."""
        return _downward(self.axes, self.cliques, self._unconditional[0])

    @cached_property
    def _unconditional(self) -> tuple[list[Numbers], float]:
        """`_conditionals` where nothing weighs."""
        return self._conditionals({})

    @cached_property
    def _below(self) -> dict[tuple[int, frozenset[int]], Numbers]:
        """What `marginal` has worked out, which others of its calls need as well.

        By the place of a clique, and what is asked of it and of those that hang on it: the distribution of these, given
        the clique's separator. Of pairs it keeps one attribute's at a time: a few times as much as all cliques take.
        """
        return {}

    def marginal(self, attributes: Attributes) -> Numbers:
        """The distribution of any attributes, whether or not they are in one clique; axes in the order given.

        Its cells and the states of separators between the attributes are together in memory.
        """
        asked, inside = set(attributes), dict[int, list[tuple[Attributes, Numbers]]]()
        for place in reversed(range(len(self.cliques))):
            clique, children = self.cliques[place], inside.get(place, [])
            within = set(clique.attributes).union(*(names for names, _ in children)) & asked
            if within == asked:
                return self._product([(clique.attributes, self._joints[place]), *children], attributes)
            if not within - set(clique.separator):
                continue  # sums to one
            keep, key = self.axes.ordered(within | set(clique.separator)), (place, frozenset(within))
            if key not in self._below:
                self._below[key] = self._product([(clique.attributes, self._unconditional[0][place]), *children], keep)
            inside.setdefault(clique.parent, []).append((keep, self._below[key]))
        return np.ones(())

    def _product(self, factors: Sequence[tuple[Attributes, Numbers]], keep: Attributes) -> Numbers:
        """The product of arrays, summed over all attributes but these, or groups of them."""
        all_ = self.axes.ordered({one for names, _ in factors for one in names})
        letter = {one: place for place, one in enumerate(all_)}
        operands: list[Any] = []
        for names, array in factors:
            finest = tuple(one if one in letter else one - len(self.sizes) for one in names)
            operands += [self.axes.placed(array, names, finest), [letter[one] for one in finest]]
        finest = tuple(one if one in letter else one - len(self.sizes) for one in keep)
        found: Numbers = np.einsum(*operands, [letter[one] for one in finest], optimize=len(factors) > 1)
        return self.axes.summed(found, finest, keep)

    def probability(self, weights: Mapping[int, Numbers]) -> float:
        """The share of rows that fulfil a condition.

        Args:
            weights: of some attributes, (L,): the share of each level that fulfils it, 0 to 1.
        """
        return math.exp(self._conditionals(weights)[1] - self._unconditional[1])

    def draw(self, rows: int, rng: np.random.Generator, weights: Mapping[int, Numbers] | None = None) -> Tensor:
        """Levels (R, A), int64: of rows that fulfil a condition, if one is given (as for `probability`).

        Each clique's rows are drawn next to their expected numbers, given what they have in common with others.

        Raises:
            ConfigError: no row fulfils the condition.
        """
        given, log = self._conditionals(weights or {})
        if log == -math.inf:
            raise ConfigError("Rows under a condition are drawn where the model has some", "a share of 0", _LOOSEN)
        count = len(self.sizes)
        level_RA = np.zeros((rows, 2 * count), np.int64)
        for clique, share in zip(self.cliques, given, strict=True):
            separator, own = list(clique.separator), list(clique.own)
            sizes = [[self.axes.size(one) for one in part] for part in (separator, own)]
            share_SC = self._by_state(clique, share).reshape(math.prod(sizes[0]), math.prod(sizes[1]))
            state_R = np.zeros(rows, np.int64)
            if separator:
                state_R += np.ravel_multi_index(tuple(level_RA[:, separator].T), sizes[0])
            cell_R = spread(share_SC, state_R, rng)
            level_RA[:, own] = np.stack(np.unravel_index(cell_R, sizes[1]), axis=1)
            for one in own if self.ends else ():
                if one < count:
                    level_RA[:, count + one] = self.axes.group_of(one)[level_RA[:, one]]
        return torch.from_numpy(level_RA[:, :count])

    def _by_state(self, clique: Clique, share: Numbers) -> Numbers:
        """A clique's array with the axes of its separator first: an attribute and its groups, where those are there."""
        axes, place = list(clique.attributes), len(self.sizes)
        for one in clique.own:
            if one + place in clique.separator:
                inside_LG = self.axes.group_of(one)[:, None] == np.arange(len(self.ends[one]))
                shape = [1] * share.ndim
                shape[axes.index(one)] = len(inside_LG)
                share = share[..., None] * inside_LG.reshape(*shape, -1)
                axes.append(one + place)
        return share.transpose([axes.index(one) for one in (*clique.separator, *clique.own)])

    def _conditionals(self, weights: Mapping[int, Numbers]) -> tuple[list[Numbers], float]:
        """Of each clique the distribution given its separator; and the logarithm of the sum over all cells."""
        terms = list(self.terms)
        with np.errstate(divide="ignore"):
            terms += [((one,), np.log(weight_L)) for one, weight_L in weights.items()]
        homes = _homes(self.axes, self.cliques, [attributes for attributes, _ in terms])
        return _upward(self.axes, self.cliques, _potentials(self.axes, self.cliques, homes, terms))

    def state(self) -> State:
        """In storable form."""
        terms = [{"attributes": list(names), "numbers": torch.from_numpy(array)} for names, array in self.terms]
        return {"sizes": list(self.sizes), "terms": terms, "ends": [list(ends) for ends in self.ends]}

    @classmethod
    def restored(cls, state: State) -> GraphicalModel:
        """What `state` stored.

        Raises:
            StorageError: it is no model of its attributes.
        """
        axes = Axes(tuple(state["sizes"]), tuple(tuple(ends) for ends in state.get("ends", [])))
        whole = len(axes.ends) in (0, len(axes.sizes)) and all(0 < size <= LARGEST for size in axes.sizes)
        if not whole or not all(map(_divides, axes.ends, axes.sizes)):
            raise StorageError("A model's groups divide the levels of its attributes", axes.sizes, "Was it altered?")
        terms = tuple((tuple(one["attributes"]), one["numbers"].numpy()) for one in state["terms"])
        for attributes, numbers in terms:
            known = set(range(len(axes.sizes) + len(axes.ends)))
            if not set(attributes) <= known or numbers.shape != tuple(map(axes.size, attributes)):
                raise StorageError("A model's tables are of its attributes", attributes, "Was the file altered?")
        return cls(axes.sizes, terms, axes.ends)


def _divides(ends: Sequence[int], size: int) -> bool:
    """Whether levels, so many, are divided into groups, given the level after each."""
    return bool(ends) and ends[-1] == size and all(before < after for before, after in pairwise((0, *ends)))


_LOOSEN = "Ask for what occurs together, or leave out a condition."


def spread(share_SC: Numbers, state_R: Levels, rng: np.random.Generator) -> Levels:
    """Cells (R,), those of all rows of a state in proportion to its shares.

    One from each of as many equal parts of the whole as the state has rows, in any order. No cell without a share.
    """
    count_S = np.bincount(state_R, minlength=len(share_SC))
    order = np.lexsort((rng.random(len(state_R)), state_R))  # rows of a state together, in any order within
    state_R = state_R[order]
    place_R = np.arange(len(order)) - (count_S.cumsum() - count_S)[state_R] + rng.random(len(order))
    bounds_SC = share_SC.cumsum(axis=1)
    whole_S = bounds_SC[:, -1:]
    bounds_SC = bounds_SC / np.where(whole_S > 0, whole_S, 1) + np.arange(len(share_SC))[:, None]
    found = np.searchsorted(bounds_SC.ravel(), state_R + place_R / count_S[state_R], side="right")
    last_S = share_SC.shape[1] - 1 - (share_SC[:, ::-1] > 0).argmax(axis=1)
    cell_R = np.empty_like(found)
    cell_R[order] = np.minimum(found - state_R * share_SC.shape[1], last_S[state_R])
    return cell_R


def _potentials(
    axes: Axes, cliques: Sequence[Clique], homes: Sequence[int], terms: Iterable[tuple[Attributes, Numbers]]
) -> list[Numbers]:
    """Of each clique the sum of the terms that are at home there."""
    found = [np.zeros([axes.size(one) for one in clique.attributes]) for clique in cliques]
    for place, (attributes, numbers) in zip(homes, terms, strict=True):
        found[place] += axes.placed(numbers, attributes, cliques[place].attributes)
    return found


def _homes(axes: Axes, cliques: Sequence[Clique], tables: Iterable[Attributes]) -> list[int]:
    """For each of some tables' attributes, the place of the first clique that has them."""
    return [
        next(place for place, one in enumerate(cliques) if axes.within(attributes, one.attributes))
        for attributes in tables
    ]


def _upward(axes: Axes, cliques: Sequence[Clique], potentials: list[Numbers]) -> tuple[list[Numbers], float]:
    """Each clique's distribution given its separator, and the logarithm of the sum over everything.

    ``potentials`` are logarithms; messages are added to them.
    """
    found, log = [], 0.0
    for place in reversed(range(len(cliques))):
        clique, potential = cliques[place], potentials[place]
        mine, separator = clique.attributes, clique.separator
        most = axes.summed(potential, mine, separator, np.maximum)
        most = np.where(np.isfinite(most), most, 0.0)
        potential -= axes.placed(most, separator, mine)
        weight = np.exp(potential, out=potential)
        whole = axes.summed(weight, mine, separator)
        with np.errstate(divide="ignore"):
            message = np.log(whole) + most
        weight /= axes.placed(np.where(whole > 0, whole, 1), separator, mine)
        found.append(weight)
        if clique.parent < 0:
            log = float(message.item())
        else:
            potentials[clique.parent] += axes.placed(message, separator, cliques[clique.parent].attributes)
    return found[::-1], log


def _downward(axes: Axes, cliques: Sequence[Clique], given: Sequence[Numbers]) -> list[Numbers]:
    """The distribution of each clique."""
    found = list[Numbers]()
    for clique, share in zip(cliques, given, strict=True):
        if clique.parent >= 0:
            common = axes.summed(found[clique.parent], cliques[clique.parent].attributes, clique.separator)
            share = share * axes.placed(common, clique.separator, clique.attributes)
        found.append(share)
    return found


# Fitting.


class _Fit:
    """The problem of fitting: its numbers θ are those of all tables, one after the other."""

    def __init__(
        self,
        axes: Axes,
        tables: Sequence[MeasuredTable],
        rows: float,
        possible: Sequence[tuple[Attributes, Flags]] = (),
    ) -> None:
        self.axes, self.tables = axes, _combined([_ascending(axes, table) for table in tables])
        self.zeros = [_zeros(attributes, flags) for attributes, flags in possible]
        names = [*(names for names, _ in self.zeros), *(table.attributes for table in self.tables)]
        self.cliques = junction_tree(axes, names)
        self.homes = _homes(axes, self.cliques, names)  # of structural zeros, then of tables
        self.starts = np.cumsum([table.counts.size for table in self.tables])[:-1]
        shares, variances, closed = list[Numbers](), list[Numbers](), list[Flags]()
        for table in self.tables:
            impossible = self._impossible(table)
            share = np.where(impossible, 0, table.counts / rows)
            share = np.where(impossible, 0, share + (1 - share.sum()) / max(1, (~impossible).sum()))
            shares.append(share.ravel())
            variances.append(np.full(share.size, max(EXACT, table.variance) / rows**2))
            closed.append(impossible.ravel())
        self.share, variance = np.concatenate(shares), np.concatenate(variances)
        noised = any(table.variance for table in self.tables)
        self.entropy = max(1.0, SMOOTHING / float(np.sqrt(variance).mean())) if noised else 1.0
        self.ridge = self.entropy * variance
        self.closed = np.concatenate(closed)
        self.scale = 1 / np.sqrt(np.maximum(self.share, 0) + self.ridge)  # about what makes all curvatures one
        self.gap = math.inf

    def _impossible(self, table: MeasuredTable) -> Flags:
        """The cells of a table, of levels or groups, that no row can be in."""
        found = (table.counts <= 0) & (table.variance == 0)
        for names, zero in self.zeros:
            seen = tuple(one for one in table.attributes if one % len(self.axes.sizes) in names)
            most = self.axes.summed(zero, names, seen, np.maximum)
            found = found | (self.axes.placed(most, seen, table.attributes) < 0)
        return found

    def run(self, start: GraphicalModel | None) -> GraphicalModel:
        """L-BFGS until the optimum is near."""
        homes = self.homes[: len(self.zeros)]
        if _upward(self.axes, self.cliques, _potentials(self.axes, self.cliques, homes, self.zeros))[1] == -math.inf:
            remedy = "Do the rules' values, and bounds, fit the columns?"
            raise ConfigError("A model has rows that keep all rules", "none is possible", remedy)
        theta = _minimised(self._value, self._start(start) / self.scale, self._is_near) * self.scale
        return GraphicalModel(self.axes.sizes, (*self.zeros, *self._terms(theta)), self.axes.ends)

    def _start(self, start: GraphicalModel | None) -> Numbers:
        known = {} if start is None else dict(start.terms)
        theta = [known.get(table.attributes, np.zeros(table.counts.shape)).ravel() for table in self.tables]
        found = np.concatenate(theta)
        return np.where(self.closed | ~np.isfinite(found), 0.0, found)

    def _terms(self, theta: Numbers) -> list[tuple[Attributes, Numbers]]:
        parts = np.split(np.where(self.closed, -np.inf, theta), self.starts)
        tables = zip(self.tables, parts, strict=True)
        return [(table.attributes, part.reshape(table.counts.shape)) for table, part in tables]

    def _value(self, scaled: Numbers) -> tuple[float, Numbers]:
        """E, and its gradient."""
        theta = scaled * self.scale
        potentials = _potentials(self.axes, self.cliques, self.homes, (*self.zeros, *self._terms(theta)))
        given, log = _upward(self.axes, self.cliques, potentials)
        joints = _downward(self.axes, self.cliques, given)
        expected = [
            self.axes.summed(joints[home], self.cliques[home].attributes, table.attributes).ravel()
            for home, table in zip(self.homes[len(self.zeros) :], self.tables, strict=True)
        ]
        pull = self.ridge * theta
        gradient = np.where(self.closed, 0.0, np.concatenate(expected) - self.share + pull)
        self.gap = self.entropy * float(np.sum(gradient**2 / self.ridge)) / 2
        return float(log + theta @ (pull / 2 - self.share)), gradient * self.scale

    def _is_near(self) -> bool:
        return self.gap < GAP * len(self.share)


def _minimised(value: Callable[[Numbers], tuple[float, Numbers]], x: Numbers, done: Callable[[], bool]) -> Numbers:
    """The least value of a smooth convex function, with its gradient, by L-BFGS (Nocedal, Wright: algorithm 7.5).

    Args:
        value: the function, and its gradient.
        x: where it starts.
        done: asked after each step, of the point for which ``value`` was asked last.
    """
    steps: deque[tuple[Numbers, Numbers, float]] = deque(maxlen=MEMORY)
    found, slope = value(x)
    for _ in range(ITERATIONS):
        if done():
            break
        way = -_scaled(steps, slope)
        moved, then, slope_then = _line_search(value, x, way, found, slope)
        step, change = moved - x, slope_then - slope
        along = _dot(step, change)
        if along <= 0:  # as near as floating-point numbers come
            break
        steps.append((step, change, along))
        x, found, slope = moved, then, slope_then
    return x


def _scaled(steps: Sequence[tuple[Numbers, Numbers, float]], slope: Numbers) -> Numbers:
    """The slope times what is known of the inverse of second derivatives."""
    found, parts = slope, list[float]()
    for step, change, along in reversed(steps):
        parts.append(_dot(step, found) / along)
        found = found - parts[-1] * change
    if steps:
        _, change, along = steps[-1]
        found = found * (along / _dot(change, change))
    for (step, change, along), part in zip(steps, reversed(parts), strict=True):
        found = found + (part - _dot(change, found) / along) * step
    return found


def _line_search(
    value: Callable[[Numbers], tuple[float, Numbers]], x: Numbers, way: Numbers, found: float, slope: Numbers
) -> tuple[Numbers, float, Numbers]:
    """A point that is lower and less steep (weak conditions of Wolfe), by bisection; its value and gradient."""
    low, high, length, steep = 0.0, math.inf, 1.0, _dot(way, slope)
    for _ in range(BISECTIONS):
        moved = x + length * way
        then, slope_then = value(moved)
        if then > found + 1e-4 * length * steep:
            high = length
        elif _dot(way, slope_then) < 0.9 * steep:
            low = length
        else:
            break
        length = 2 * low if math.isinf(high) else (low + high) / 2
    return moved, then, slope_then


def _dot(a: Numbers, b: Numbers) -> float:
    """The sum of products in an order that does not hang on the number of threads, as that of BLAS may."""
    return float(np.sum(a * b))


def _combined(tables: Sequence[MeasuredTable]) -> list[MeasuredTable]:
    """Tables of the same attributes as one, averaged by their variances."""
    found: dict[Attributes, MeasuredTable] = {}
    for table in tables:
        other = found.get(table.attributes)
        if other is not None and min(other.variance, table.variance) == 0:
            table = min(other, table, key=lambda one: one.variance)
        elif other is not None:
            a, b = max(EXACT, table.variance), max(EXACT, other.variance)
            table = MeasuredTable(table.attributes, (table.counts * b + other.counts * a) / (a + b), a * b / (a + b))
        found[table.attributes] = table
    return list(found.values())
