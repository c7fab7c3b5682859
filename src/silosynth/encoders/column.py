"""One column ⇄ codes: a level (category, atom, missing) and, where there is a continuous part, a normal score.

Every kind of column is described by the same two parts, so networks need no special cases:

=============  =============================================  ==========================================
kind           level                                          score
=============  =============================================  ==========================================
categorical    common levels, *rare* (pooled), missing        none
numeric        on the continuous part, atoms…, missing        normal quantile of the continuous part
instants       as numeric, on a grid of days … nanoseconds    as numeric
=============  =============================================  ==========================================

An *atom* is a number that many rows share and that stands out from its neighbourhood: zeros, special codes, heaps. A
level held by fewer than ``min_count`` rows could identify somebody: it is pooled into *rare* and is never decoded by
name. Of categories with very many levels the most common ones are levels, and all others are one (`HeadEncoder`).

The map between values and normal scores is piecewise linear through means of groups of sorted training values, never
through single values, and no row dominates the group at an end (`without_dominance`): no row's value can be decoded.
Values on a grid (integers, k decimals) are spread uniformly over their grid cell before they are ranked, and decoded
values are rounded back to the grid.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import ndtr, ndtri

from silosynth.core.errors import DataError
from silosynth.core.messages import NonNegative, Size, Struct, from_state, to_state
from silosynth.core.schema import Column, ColumnSchema, Kind, Table

MOST_KNOTS = 1000
_TAIL = 20  # groups of the smallest size at either end
SCORE_LIMIT = 4.0  # scores are clipped at ±4: beyond are 3 rows in 100 000


class Quantile(Struct):
    """A monotone map between values and normal scores.

    Attributes:
        values: (k,) increasing float64, means of groups of neighbouring training values, and the two range ends.
        ranks: (k,) float64 in [0, 1], the share of rows below each value.
        step: width of the grid cell over which values are spread before encoding; 0 for none.
    """

    values: torch.Tensor
    ranks: torch.Tensor
    step: float

    def scores(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Normal scores (n,) of values (n,); random within a grid cell."""
        spread = values + _spread_on_grid(len(values), self.step, rng)
        rank = np.interp(spread, self.values.numpy(), self.ranks.numpy())
        scores: np.ndarray = np.clip(ndtri(rank), -SCORE_LIMIT, SCORE_LIMIT)
        return scores

    def decode(self, scores: np.ndarray) -> np.ndarray:
        """Values (n,) of normal scores (n,), not yet rounded to a grid."""
        values: np.ndarray = np.interp(ndtr(scores.astype(np.float64)), self.ranks.numpy(), self.values.numpy())
        return values


def fit_quantile(
    values: np.ndarray, step: float, min_group: int, low: float | None, high: float | None, rng: np.random.Generator
) -> Quantile:
    """Fit the map to ``values`` (n,), n >= 1.

    Each knot is the mean of at least ``min_group`` rows (all rows, if there are fewer); groups are smallest in the
    tails. The ends are ``low`` and ``high`` where declared, otherwise the outermost knots: no single row shows.
    """
    spread = np.sort(values + _spread_on_grid(len(values), step, rng))
    sizes = _group_sizes(len(spread), max(1, min_group))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    knots = np.add.reduceat(spread, starts) / sizes
    ranks = (starts + sizes / 2) / len(spread)
    first = knots[0] if low is None else min(low, knots[0])
    last = knots[-1] if high is None else max(high, knots[-1])
    xs, us = np.concatenate([[first], knots, [last]]), np.concatenate([[0.0], ranks, [1.0]])
    return Quantile(torch.from_numpy(np.maximum.accumulate(xs)), torch.from_numpy(us), float(step))


def _group_sizes(n: int, least: int) -> np.ndarray:
    """Sizes of groups of neighbouring values: ``least`` in the tails, larger in the middle; one if rows are few."""
    tail = min(_TAIL, n // (4 * least))
    middle = n - 2 * tail * least
    count = max(1, min(MOST_KNOTS, middle // least))
    sizes = np.full(count, middle // count)
    sizes[: middle % count] += 1
    ends = np.full(tail, least)
    return np.concatenate([ends, sizes, ends]).astype(np.int64)


def _spread_on_grid(n: int, step: float, rng: np.random.Generator) -> np.ndarray:
    if step == 0 or not math.isfinite(step):
        return np.zeros(n)
    return rng.uniform(-step / 2, step / 2, n)


RARE = "(rare)"
_STEPS = (1000, 500, 250, 100, 50, 25, 20, 10, 5, 2)  # grids to which people round, in units of the last decimal
_REACH = 4  # neighbours on either side by which the usual density around a number is estimated
INSTANT_GRIDS = (86_400_000_000_000, 3_600_000_000_000, 60_000_000_000, 1_000_000_000, 1_000_000, 1_000)


class EncoderConfig(Struct):
    """Options of column encoders."""

    min_count: int = 5  # values of fewer rows never become a level, an atom or a knot
    pool_rare: bool = True  # False keeps every level by name, even one that identifies somebody
    atom_count: int = 20  # least rows on an atom
    atom_share: NonNegative[float] = 0.001  # least share of rows on an atom
    atom_ratio: NonNegative[float] = 4.0  # least ratio of its rows to the number expected from its neighbours' density
    most_levels: int = 20  # a numeric column with at most this many values, all common, consists of atoms
    # Of categories, with ``pool_rare``, where a silo encodes its own rows: as many are learnt, the most common ones.
    most_categories: Size[int] = field(default=1000, repr=False)
    # What a silo's columns say of each other: see `combinations`. Not shown: VFLGAN's random numbers hang on the text.
    dependencies: Literal["keep", "ignore"] = field(default="keep", repr=False)


@dataclass(frozen=True)
class Codes:
    """An encoded column.

    Attributes:
        levels: (n,) int64 in [0, encoder.width), or None when there is only one level.
        scores: (n,) float32 normal scores, 0 where the row is not on the continuous part; None without such a part.
    """

    levels: torch.Tensor | None
    scores: torch.Tensor | None


class Encoder(Struct, ABC):
    """A fitted encoder of one column."""

    name: str  # of the column

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of levels."""

    @property
    def lines(self) -> int:
        """Number of levels, counted from 0, that carry a score; 0 without a continuous part."""
        return 0

    @property
    def continuous(self) -> bool:
        """Whether there is a continuous part."""
        return self.lines > 0

    @property
    def categorical(self) -> bool:
        """Whether levels are categories, rather than values of a number."""
        return False

    @abstractmethod
    def encode(self, column: Column, rng: np.random.Generator) -> Codes:
        """Codes of a column."""

    @abstractmethod
    def decode(self, codes: Codes, n: int, rng: np.random.Generator) -> Column:
        """A column of n rows."""


class CategoricalEncoder(Encoder):
    """Categories and booleans. Levels: ``kept``, then *rare* and missing (if any)."""

    dtype: str
    kept: tuple[str | int | float | bool, ...]
    text: bool  # levels are text, so pooled ones can be labelled as such
    rare: bool
    missing: bool
    hidden: tuple[str | int | float | bool, ...] = ()  # declared levels that noise hides, which *rare* then stands for

    @property
    def width(self) -> int:
        """Number of levels."""
        return len(self.kept) + self.rare + self.missing

    @property
    def categorical(self) -> bool:
        """Whether levels are categories: yes."""
        return True

    def encode(self, column: Column, rng: np.random.Generator) -> Codes:
        """Codes of a column; levels that were not kept become *rare*, or the last level if there is no *rare*."""
        place, other = {level: i for i, level in enumerate(self.kept)}, min(len(self.kept), self.width - 1)
        of_level = torch.tensor([place.get(level, other) for level in column.levels or ()] or [0])
        levels = of_level[column.values]
        levels = torch.where(column.missing, self.width - 1, levels)
        return Codes(levels if self.width > 1 else None, None)

    def decode(self, codes: Codes, n: int, rng: np.random.Generator) -> Column:
        """A column of n rows. *Rare* is a label in text columns; else random levels: hidden ones, or kept ones."""
        levels = codes.levels if codes.levels is not None else torch.zeros(n, dtype=torch.int64)
        missing = levels == self.width - 1 if self.missing else torch.zeros(n, dtype=torch.bool)
        names, values = self.kept, torch.where(missing, 0, levels)
        if self.rare and self.text and RARE in names:  # learned from a table that is synthetic itself
            values = torch.where(values == len(names), names.index(RARE), values)
        elif self.rare and self.text:
            names = (*names, RARE)
        elif self.rare:
            pooled, first = values == len(self.kept), len(self.kept) if self.hidden else 0
            names = (*self.kept, *self.hidden)
            values = torch.where(pooled, torch.from_numpy(rng.integers(first, len(names), n)), values)
        return Column(self.name, self.dtype, values, missing, names)


class HeadEncoder(Encoder):
    """Categories, the most common of which are levels; all others are the last level, and drawn by how common they are.

    So networks need no weights, and rows no probabilities, for each of a hundred thousand levels. What other columns
    have to do with levels that are drawn is not learnt, but for what a level determines (`combinations.fitting`).
    """

    every: CategoricalEncoder  # of all levels
    common: torch.Tensor  # (k,) int64, which of these are levels here, increasing; *rare* and missing among them
    others: torch.Tensor  # (m,) int64, which are not
    share: torch.Tensor  # (m,) float64, how many of their rows hold each

    @property
    def width(self) -> int:
        """Number of levels."""
        return len(self.common) + 1

    @property
    def categorical(self) -> bool:
        """Whether levels are categories: yes."""
        return True

    def encode(self, column: Column, rng: np.random.Generator) -> Codes:
        """Codes of a column."""
        of_all = torch.full((self.every.width,), len(self.common))
        of_all[self.common] = torch.arange(len(self.common))
        levels = self.every.encode(column, rng).levels
        assert levels is not None  # of two levels or more
        return Codes(of_all[levels], None)

    def decode(self, codes: Codes, n: int, rng: np.random.Generator) -> Column:
        """A column of n rows."""
        assert codes.levels is not None
        drawn = codes.levels == len(self.common)
        levels = torch.cat([self.common, self.others[:1]])[codes.levels]
        places = np.searchsorted(np.cumsum(self.share.numpy()), rng.random(int(drawn.sum())), side="right")
        levels[drawn] = self.others[torch.from_numpy(places.clip(max=len(self.others) - 1))]
        return self.every.decode(Codes(levels, None), n, rng)

    def redraw(self, column: Column, class_m: torch.Tensor, class_N: torch.Tensor, rng: np.random.Generator) -> Column:
        """Draw the levels of N decoded rows that were drawn again, among those of each row's class, if there are any.

        Args:
            column: as `decode` makes it.
            class_m: int64 of each level that is drawn.
            class_N: of each row.
            rng: what is drawn from.
        """
        drawn_N = torch.isin(column.values, self.others) & ~column.missing
        order = class_m.argsort(stable=True)
        ends = torch.cat([torch.zeros(1, dtype=torch.float64), self.share[order].cumsum(0)])
        wanted = class_N[drawn_N].contiguous()
        first, last = (torch.searchsorted(class_m[order], wanted, right=right) for right in (False, True))
        at = ends[first] + torch.from_numpy(rng.random(len(wanted))) * (ends[last] - ends[first])
        place = torch.minimum(torch.searchsorted(ends[1:], at, right=True), last - 1).clamp(min=0)
        values = column.values.clone()
        values[drawn_N] = torch.where(first < last, self.others[order[place]], values[drawn_N])
        return replace(column, values=values)


def head(encoder: Encoder, column: Column, config: EncoderConfig) -> Encoder:
    """The same encoder, or of very many categories one that tells the most common of them apart."""
    most = config.most_categories
    if not isinstance(encoder, CategoricalEncoder) or not config.pool_rare or len(encoder.kept) <= most:
        return encoder
    levels = encoder.encode(column, np.random.default_rng(0)).levels  # draws nothing
    assert levels is not None
    counts = torch.bincount(levels, minlength=encoder.width)
    order = counts[: len(encoder.kept)].argsort(descending=True, stable=True)
    rest = torch.arange(len(encoder.kept), encoder.width)
    others = order[most:].sort().values
    share = counts[others].double() / counts[others].sum()
    common = torch.cat([order[:most].sort().values, rest])
    return HeadEncoder(encoder.name, encoder, common, others, share)


class NumberEncoder(Encoder):
    """An encoder of numbers or instants."""

    dtype: str
    whole: bool  # int64 values (integers, instants) rather than float64
    origin: int  # int64 values are counted from here, so that float64 holds them exactly
    step: float  # grid of the values; 0 for none
    decimals: int | None
    low: float  # an integer where values are
    high: float

    @property
    def slack(self) -> float:
        """How far rounding alone may carry values beyond the range."""
        return max(self.step / 2, 1e-9 * max(1.0, abs(self.low), abs(self.high)), 1e-6 * (self.high - self.low))

    def within(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Values (n,) within the range.

        Those outside by more than a rounding error are replaced by others of the batch, drawn at random, so that they
        do not pile up on a declared bound.
        """
        outside = (values < self.low - self.slack) | (values > self.high + self.slack)
        inside = np.flatnonzero(~outside)
        if outside.any() and len(inside):
            values = values.copy()
            values[outside] = values[rng.choice(inside, int(outside.sum()))]
        return np.asarray(np.clip(values, self.low, self.high))

    def on_grid(self, values: np.ndarray) -> np.ndarray:
        """Values (n,) float64, counted from the origin, rounded to the grid: int64 if ``whole``, else float64."""
        if self.whole:
            cells = max(1, int(self.step))
            return self.origin + np.rint(values / cells).astype(np.int64) * cells
        if self.step > 0:
            values = np.round(values / self.step) * self.step
        return values if self.decimals is None else np.round(values, self.decimals)  # removes rounding errors of step


class AtomEncoder(NumberEncoder):
    """Numbers with levels for the continuous part (if any), then ``atoms``, then missing (if any)."""

    atoms: torch.Tensor  # (a,) float64, or int64 if `whole`
    missing: bool

    @property
    def width(self) -> int:
        """Number of levels."""
        return self.lines + len(self.atoms) + self.missing

    @abstractmethod
    def line_values(self, levels: torch.Tensor, scores: torch.Tensor) -> np.ndarray:
        """Values (k,) on the grid of levels (k,) and scores (k,) of the continuous part."""

    def decode(self, codes: Codes, n: int, rng: np.random.Generator) -> Column:
        """A column of n rows, on the grid and within the range."""
        levels = torch.zeros(n, dtype=torch.int64) if codes.levels is None else codes.levels
        missing = levels == self.width - 1 if self.missing else torch.zeros(n, dtype=torch.bool)
        values = torch.zeros(n, dtype=torch.int64 if self.whole else torch.float64)
        if self.continuous and codes.scores is not None:
            on_line = levels < self.lines
            values[on_line] = torch.from_numpy(self.line_values(levels[on_line], codes.scores[on_line]))
        on_atom = (levels >= self.lines) & ~missing
        values[on_atom] = self.atoms[levels[on_atom] - self.lines]
        values[~missing] = torch.from_numpy(self.within(values[~missing].numpy(), rng))
        return Column(self.name, self.dtype, values, missing)


class NumericEncoder(AtomEncoder):
    """Numbers and instants: atoms by value, the rest by normal score, missing as a level; the origin is near the mean.

    Levels: the continuous part (if any), then ``atoms``, then missing (if any).
    """

    quantile: Quantile | None

    @property
    def lines(self) -> int:
        """The continuous part is one level."""
        return int(self.quantile is not None)

    def encode(self, column: Column, rng: np.random.Generator) -> Codes:
        """Codes of a column."""
        values, atoms = column.values.numpy(), self.atoms.numpy()
        levels = np.zeros(len(values), dtype=np.int64)
        if len(atoms):
            place = np.minimum(np.searchsorted(atoms, values), len(atoms) - 1)
            on_atom = atoms[place] == values
            nearest = place if not self.continuous else 0  # a value unseen in training becomes the next atom above
            levels = np.where(on_atom, place + self.continuous, nearest)
        levels[column.missing.numpy()] = self.width - 1
        scores = None
        if self.quantile is not None:
            on_line = levels == 0
            scores = np.zeros(len(values), dtype=np.float32)
            scores[on_line] = self.quantile.scores((values[on_line] - self.origin).astype(np.float64), rng)
        return Codes(
            torch.from_numpy(levels) if self.width > 1 else None, None if scores is None else torch.from_numpy(scores)
        )

    def line_values(self, levels: torch.Tensor, scores: torch.Tensor) -> np.ndarray:
        """Values (k,) of scores (k,) by the quantile map."""
        assert self.quantile is not None  # or nothing is continuous
        return self.on_grid(self.quantile.decode(scores.numpy()))


def fit_encoder(column: Column, schema: ColumnSchema, config: EncoderConfig, rng: np.random.Generator) -> Encoder:
    """Fit the encoder for a column's kind."""
    if Kind(schema.kind).numeric and column.levels is None:
        return _fit_numeric(column, schema, config, rng)
    return _fit_categorical(column, schema, config)


def least_rows(levels: Sequence[Any], config: EncoderConfig) -> int:
    """Rows that a level needs to be kept by name. That booleans are false and true is no secret."""
    return 1 if set(levels) <= {0, 1} or not config.pool_rare else config.min_count


def no_level_is_common(name: str, least: int, rows: int, levels: int) -> DataError:
    """The error for a column whose levels are all rare, and are no text that could be labelled as such."""
    return DataError(
        f"Column {name!r} is categorical, and no level of it is held by {least} rows",
        f"{levels} levels in {rows} rows",
        "Declare it integer or identifier, leave it out, or set pool_rare = false among the options of encoders.",
    )


def _fit_categorical(column: Column, schema: ColumnSchema, config: EncoderConfig) -> CategoricalEncoder:
    levels: Sequence[Any] = column.levels or ()
    counts = torch.bincount(column.values[~column.missing], minlength=len(levels)).tolist()
    least = least_rows(levels, config)
    kept = tuple(level for level, count in zip(levels, counts, strict=True) if count >= least)
    rare = any(0 < count < least for count in counts)
    text = all(isinstance(level, str) for level in levels)
    if rare and not kept and not text:
        raise no_level_is_common(column.name, least, len(column), len(levels))
    return CategoricalEncoder(column.name, column.dtype, kept, text, rare, bool(column.missing.any()))


def _fit_numeric(
    column: Column, schema: ColumnSchema, config: EncoderConfig, rng: np.random.Generator
) -> NumericEncoder:
    whole = not column.values.is_floating_point()
    values = column.values[~column.missing].numpy()
    step = find_grid(values, schema)
    atoms = find_atoms(values, find_grid(values, schema, 0.95), config)
    on_atom = np.isin(values, atoms)
    values = without_dominance(values, config.min_count, on_atom)
    rest = values[~on_atom]
    origin = find_origin(values, step) if whole else 0
    least, most = (None if bound is None else bound - origin for bound in (schema.low, schema.high))
    quantile = None
    others = len(atoms) > 0 or bool(column.missing.any())
    if len(rest) >= (config.min_count if others else 1):  # fewer could identify somebody: they join an atom, or missing
        quantile = fit_quantile((rest - origin).astype(np.float64), step, config.min_count, least, most, rng)
    ends = None if quantile is None else (float(quantile.values[0]), float(quantile.values[-1]))
    low, high = value_range(atoms, ends, origin, step, schema, whole)
    return NumericEncoder(
        column.name, column.dtype, whole, origin, step, schema.decimals, low, high, torch.from_numpy(atoms),
        bool(column.missing.any()), quantile,
    )  # fmt: skip


def without_dominance(values: np.ndarray, least: int, shared: np.ndarray | None = None) -> np.ndarray:
    """The values (n,) after moving those that dominate an end of their range inwards.

    The published ends of a range are means of the ``least`` outermost rows, which give away a value that is far from
    the others: ``least`` times the mean, minus what the others usually are. So no row makes up more than half of the
    distance between its end's rows and the next row inwards (of all rows and their median, where they are so few that
    both ends are one group); beyond that its value changes nothing. Rows that are ``shared`` (n,) with many others are
    left out, and stay as they are; so does everything where ``least`` is 1.
    """
    rest = values if shared is None else values[~shared]
    if least < 2 or len(rest) < 3:
        return values
    if len(rest) > 2 * least:
        ordered = np.partition(rest, [*range(least + 1), *range(len(rest) - least - 1, len(rest))]).tolist()
        ends = [ordered[least::-1], ordered[-least - 1 :]]
    else:
        middle = statistics.median_low(rest.tolist())
        ends = [sorted(rest.tolist(), key=lambda value: abs(value - middle))]
    moved = values
    for outwards in ends:
        moved = _without_dominance(moved, outwards)
    return moved if shared is None else np.where(shared, values, moved)


def _without_dominance(values: np.ndarray, outwards: Sequence[float]) -> np.ndarray:
    """The values (n,) with the last of those ``outwards`` no further from the first than all between them together."""
    first, *between, last = outwards
    most = sum(abs(value - first) for value in between)
    if abs(last - first) <= most:
        return values
    moved: np.ndarray = np.minimum(values, first + most) if last > first else np.maximum(values, first - most)
    return moved


def find_origin(values: np.ndarray, step: float) -> int:
    """A point on the grid near the mean; 0 if the range of values exceeds what differences can hold."""
    if len(values) == 0 or float(values.max()) - float(values.min()) > 2.0**62:
        return 0
    grid = max(1, int(step))
    return int(values.mean()) // grid * grid


def find_atoms(values: np.ndarray, step: float, config: EncoderConfig) -> np.ndarray:
    """Numbers that many rows share: all values, if they are few and common; else those that stand out."""
    distinct, counts = np.unique(values, return_counts=True)
    if 0 < len(distinct) <= config.most_levels and counts.min() >= config.min_count:
        return distinct
    common = counts >= max(config.atom_count, config.atom_share * len(values))
    special = _stand_out(distinct, counts, step, config.atom_ratio) | _codes_below(distinct, counts)
    atoms: np.ndarray = distinct[common & special]
    return atoms


def _stand_out(distinct: np.ndarray, counts: np.ndarray, step: float, ratio: float) -> np.ndarray:
    """Which values have more than ``ratio`` times the rows expected on a grid cell from their neighbours' density."""
    if len(distinct) < 2 * _REACH:
        return np.ones(len(distinct), dtype=bool)
    out = np.zeros(len(distinct), dtype=bool)
    with np.errstate(over="ignore"):  # numbers too far apart for a difference are all at one place
        places = distinct / (step or max(float(np.ptp(distinct)) / 1000, 1e-12))
    for _ in range(3):  # an outstanding value must not raise the density around it: exclude it and repeat
        line = np.flatnonzero(~out)
        if len(line) < 2 * _REACH:
            break
        rows = np.concatenate([[0], np.cumsum(counts[line])])
        at = np.searchsorted(line, np.arange(len(distinct)))
        low, high = np.maximum(at - _REACH, 0), np.minimum(at + _REACH, len(line) - 1)
        nearby = rows[high + 1] - rows[low] - np.where(out, 0, counts)
        right, left = np.maximum(places[line[high]], places), np.minimum(places[line[low]], places)
        out = counts > ratio * nearby / np.maximum(right - left, high - low)
    return out


def _codes_below(distinct: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Special codes: a few negative values in a minority of rows of a column that is otherwise not negative."""
    below = distinct < 0
    few = 0 < below.sum() <= _REACH and counts[below].sum() < 0.4 * counts.sum()
    return below if few else np.zeros_like(below)


def value_range(
    atoms: np.ndarray, ends: tuple[float, float] | None, origin: int, step: float, schema: ColumnSchema, whole: bool
) -> tuple[float, float]:
    """The declared range; undeclared ends are those of the atoms and of the continuous part (``ends``, if any).

    ``ends`` are counted from the origin, and are means of several rows, so that no bound is a single row's value.
    """
    reached = atoms.tolist()
    if ends is not None:
        first, last = (_on_grid(end, step, schema, up) for end, up in zip(ends, (False, True), strict=True))
        reached += [origin + int(first), origin + int(last)] if whole else [first, last]
    low = min(reached, default=0) if schema.low is None else _on_grid(schema.low, step, schema, up=True)
    high = max(reached, default=0) if schema.high is None else _on_grid(schema.high, step, schema, up=False)
    return (int(low), int(high)) if whole else (float(low), float(high))


def _on_grid(bound: float, step: float, schema: ColumnSchema, up: bool) -> float:
    """The grid point next to ``bound``, above or below it."""
    if step == 0:
        return bound
    places = bound / step
    slack = min(0.01, 1e-9 + abs(places) * 2.0**-48)  # float errors must not move a bound that is on the grid
    places += -slack if up else slack
    return round((math.ceil(places) if up else math.floor(places)) * step, schema.decimals or 0)


def find_grid(values: np.ndarray, schema: ColumnSchema, share: float = 1.0) -> float:
    """Step of the coarsest usual grid that holds ``share`` of the values; 0 for none."""
    if schema.kind == Kind.DATETIME.value:
        return float(next((unit for unit in INSTANT_GRIDS if not np.any(values % unit)), 1))
    if schema.decimals is None or len(values) == 0:
        return 0.0
    if values.dtype.kind == "i":
        unit = 10 ** max(0, -schema.decimals)
        units = values // unit
    else:
        unit = 10.0**-schema.decimals
        units = np.round(values / unit)
    units = units[units != 0]  # zero lies on every grid
    fits = (multiple for multiple in _STEPS if len(units) and np.mean(units % multiple == 0) >= share)
    return float(next(fits, 1) * unit)


def encode_table(
    table: Table, encoders: Sequence[Encoder], rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of a table: levels (n, C) int64 and scores (n, S) float32, in column order."""
    codes = [encoder.encode(table[encoder.name], rng) for encoder in encoders]
    levels = [code.levels for code in codes if code.levels is not None]
    scores = [code.scores for code in codes if code.scores is not None]
    n = len(table)
    return (
        torch.stack(levels, dim=1) if levels else torch.zeros(n, 0, dtype=torch.int64),
        torch.stack(scores, dim=1) if scores else torch.zeros(n, 0),
    )


def decode_table(
    levels_NC: torch.Tensor, scores_NS: torch.Tensor, encoders: Sequence[Encoder], rng: np.random.Generator
) -> Table:
    """The table with these codes; see `encode_table`."""
    columns, c, s = [], 0, 0
    for encoder in encoders:
        code = Codes(None, None)
        if encoder.width > 1:
            code, c = replace(code, levels=levels_NC[:, c]), c + 1
        if encoder.continuous:
            code, s = replace(code, scores=scores_NS[:, s]), s + 1
        columns.append(encoder.decode(code, len(levels_NC), rng))
    return Table(tuple(columns))


def stored(encoders: Sequence[Encoder]) -> list[dict[str, Any]]:
    """Encoders in storable form."""
    return [to_state(encoder) for encoder in encoders]


def restored(states: Sequence[Any]) -> tuple[Encoder, ...]:
    """The encoders that `stored` stored; raises as `from_state` does."""
    return tuple(from_state(Encoder, state) for state in states)  # type: ignore[type-abstract]
