"""Encoders of a horizontal federation from sums over silos: nobody learns what any one silo counts.

Everything that is taken from rows is a count of cells that are known beforehand, so that silos can hide their counts
and add noise within the sum (`silosynth.privacy.aggregation`). Which cells there are follows from public schemas and
from sums that are open; so the coordinator lays sums out by the functions that silos count with, for columns without
rows.

1. `first_cells`: the number of rows; of booleans, and of categories with declared levels, these; of instants the grids
   that values lie on; of other categories `sketch`, since names of levels are not known yet; of numbers without
   declared bounds the cells of `ranges`.
2. *Names*: `passing` buckets have enough rows; `name_words` of levels of which all buckets pass add up to names
   (`told_names`), whoever holds them, and however many silos do.
3. `second_cells`: histograms of numbers and instants.
4. `encoder_of` makes an encoder for all from that, as `encoders.table` does from noised counts.

**Names.** A sketch has `TABLES` tables of `BUCKETS` cells. A keyed hash, whose key silos share and the coordinator does
not know, says which cell of each table a level's rows count in. A level is named only if its cells pass in all tables.
Let x be a level that only one row holds. Its cells are independent of the tables without that row, and uniform. So it
passes with a probability of at most the product of the shares of cells that pass, or that one row more makes pass:
`passing` chooses the lowest threshold where this is at most ``delta``. The same level in other silos' rows is no secret
of that row. A silo checks the product itself (`check_passing`): whatever buckets a coordinator claims to pass, without
the key it can choose none that are more likely to be x's.

A name leaves a silo times a random word, in all its tables' cells, each a *slot* of the sum. A slot with one name holds
(R, R · name) modulo 2^64, where R is uniform whether one silo holds that name or all: so the sum says what passes, and
not who holds it. Slots with several names are of no use; a name is lost if all its slots are such.

Shapes: T tables, B buckets, L levels, S slots, W words of a slot.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Struct
from silosynth.core.schema import Column, ColumnSchema, Kind, Schema, Table
from silosynth.encoders import column as coding, ranges
from silosynth.encoders.normalised import fit
from silosynth.encoders.table import (
    GRIDS,
    MOST_BINS,
    bin_edges,
    bins_for,
    bounded,
    bounds_of,
    category_encoder,
    coarsest_grid,
    column_of_bins,
    column_within,
    counted_share,
    edges_within,
    histogram,
    level_counts,
    missed_grids,
    noised_bounds,
    public_encoder,
    public_levels,
    shares_of,
)  # fmt: skip

TABLES, BUCKETS = 5, 4096
LONGEST = 128  # bytes of a name; longer ones are pooled with rare levels
FINE = 4096  # bins of a histogram without noise
_CHUNK = 4  # bytes of a name in a word, half of which it leaves to whoever divides
SLOT = 1 + LONGEST // _CHUNK  # W
Level: TypeAlias = "str | int | float | bool"
Told: TypeAlias = "Mapping[Level, Sequence[tuple[int, int]]]"
"""Names, each with the slots, as (table, bucket), that hold no other."""
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Cells:
    """Counts that are summed together.

    Attributes:
        column: its name; empty for the number of rows.
        what: they are of, in words.
        counts: int64.
        factor: of the variance of the noise that a column gets.
        times: how many of them one row changes by 1.
        names: whether they say which names are told.
    """

    column: str
    what: str
    counts: Tensor
    factor: float = 1.0
    times: int = 1
    names: bool = False


class Grid(Struct):
    """Where the values of a column of numbers or instants may lie.

    Attributes:
        unit: step of the grid, 0 for none.
        low, high: the range of the histogram.
    """

    unit: float
    low: float
    high: float


class NoisedGrid(Grid):
    """The same by noised counts, where no bounds are declared: values beyond are counted by themselves."""


def numbers(schema: Schema) -> list[ColumnSchema]:
    """The columns of which histograms are made, in order."""
    return [declared for declared in schema.columns if Kind(declared.kind).numeric]


def named(schema: Schema) -> list[ColumnSchema]:
    """The columns of levels whose names come from rows, in order."""
    return [one for one in schema.columns if not Kind(one.kind).numeric and not public_levels(one)]


def blank(declared: ColumnSchema, whole: bool = True) -> Column:
    """A column without rows, by which sums are laid out; ``whole`` says whether its numbers are whole ones."""
    values = torch.zeros(0, dtype=torch.int64 if whole else torch.float64)
    levels = None if Kind(declared.kind).numeric else ()
    return Column(declared.name, declared.dtype, values, torch.zeros(0, dtype=torch.bool), levels)


def blank_table(schema: Schema, whole: Collection[str] | None = None) -> Table:
    """A table without rows; ``whole`` names the columns of whole numbers and codes, if not all are."""
    return Table(tuple(blank(one, whole is None or one.name in whole) for one in schema.columns))


def laid_out(own: Sequence[Cells], every: Sequence[Cells]) -> list[Cells]:
    """What a silo counts in the place of ``every``, which is what is summed: zeros where it counts nothing."""
    counted = {(one.column, one.what): one for one in own}
    return [counted.get((one.column, one.what), one) for one in every]


# First: counts of which the cells are known.


def first_cells(table: Table, schema: Schema, key: bytes) -> list[Cells]:
    """What is counted first: the number of rows, then what there is of each column, in order."""
    found = [Cells("", "the number of rows", torch.tensor([len(table)]))]
    for declared in schema.columns:
        column = table[declared.name]
        numeric = Kind(declared.kind).numeric
        found += _numeric_cells(column, declared) if numeric else [_level_cells(column, declared, key)]
    return found


def _numeric_cells(column: Column, declared: ColumnSchema) -> Iterator[Cells]:
    if Kind(declared.kind) is Kind.DATETIME:
        yield Cells(column.name, f"grids of column {column.name!r}", missed_grids(column), factor=1 / GRIDS**2)
    if not bounded(declared):
        counts, factor = histogram(column, ranges.EDGES), 1 / _range_share(declared) ** 2
        yield Cells(column.name, f"the range of column {column.name!r}", counts, factor)


def _range_share(declared: ColumnSchema) -> float:
    """The share of a column's epsilon that its range takes, if it is not declared."""
    return ranges.NORMAL_SHARES[0] * _after_grid(declared)


def _after_grid(declared: ColumnSchema) -> float:
    return 1 - GRIDS if Kind(declared.kind) is Kind.DATETIME else 1.0


def _level_cells(column: Column, declared: ColumnSchema, key: bytes) -> Cells:
    what = f"counts of the levels of column {column.name!r}"
    if public_levels(declared):
        return Cells(column.name, what, level_counts(column, declared))
    return Cells(column.name, what, sketch(column, key), factor=TABLES, times=TABLES, names=True)


def sketch(column: Column, key: bytes) -> Tensor:
    """How many rows have levels in each bucket of each table, and none, (T * (B + 1),) int64."""
    levels = column.levels or ()
    place_LT = torch.tensor([_places(column.name, level, key) for level in levels]).reshape(len(levels), TABLES)
    counts_TB = torch.zeros(TABLES, BUCKETS + 1, dtype=torch.int64)
    held = torch.bincount(column.values[~column.missing], minlength=len(levels))
    for table in range(TABLES):
        counts_TB[table].index_add_(0, place_LT[:, table].long(), held)
    counts_TB[:, BUCKETS] = int(column.missing.sum())
    return counts_TB.flatten()


def _places(name: str, level: Level, key: bytes) -> list[int]:
    """A level's bucket in each table."""
    digest = hashlib.blake2b(json.dumps([name, level]).encode(), key=key, digest_size=4 * TABLES).digest()
    return [number % BUCKETS for number in np.frombuffer(digest, "<u4").tolist()]


# Names.


def passing(noised_TB: Tensor, delta: float, least: int) -> tuple[Tensor, ...]:
    """Of each table the buckets with enough rows, rising, such that a single row's level passes with ``delta`` at most.

    Args:
        noised_TB: noised counts, without those of missing values.
        delta: 1 for exact counts.
        least: rows that a level needs in any case.
    """
    ordered = noised_TB.sort(1).values
    low, high = least, max(least, int(ordered.max()) + 2)
    while low < high:  # the lowest threshold at which even one row more keeps to delta
        middle = (low + high) // 2
        counts = [len(row) - int(torch.searchsorted(row, middle - 1)) for row in ordered]
        low, high = (low, middle) if _by_chance(counts) <= delta else (middle + 1, high)
    return tuple(torch.nonzero(row >= low).flatten() for row in noised_TB)


def check_passing(places: Sequence[Tensor], delta: float) -> None:
    """Check that buckets are in order, and few enough that no single row's level passes with more than ``delta``.

    Raises:
        ProtocolError: they are not.
    """
    for row in places:
        valid = row.dtype == torch.int64 and row.dim() == 1 and bool((row.diff() > 0).all())
        if not valid or (len(row) and not 0 <= int(row[0]) <= int(row[-1]) < BUCKETS):
            raise ProtocolError("Buckets that pass are some of a sketch's, in order", tuple(row.shape), _AGAIN)
    if len(places) != TABLES or _by_chance([len(row) for row in places]) > delta:
        rule = f"So few buckets pass that a single row's level is named with a probability of {delta:.3g} at most"
        raise ProtocolError(rule, [len(row) for row in places], _AGAIN)


def _by_chance(counts: Sequence[int]) -> float:
    return math.prod(count / BUCKETS for count in counts)


_AGAIN = "Both sides must run the same version of silosynth."


def name_words(column: Column, places: Sequence[Tensor], key: bytes) -> Words:
    """This silo's part of the slots (S * W,): each of its levels that passes, times random words."""
    starts = np.cumsum([0, *map(len, places)])
    slots = [
        {bucket: start + i for i, bucket in enumerate(row.tolist())}
        for start, row in zip(starts[:-1], places, strict=True)
    ]
    words, levels = np.zeros((starts[-1], SLOT), np.uint64), column.levels or ()
    counts = torch.bincount(column.values[~column.missing], minlength=len(levels)).tolist()
    for level, held in zip(levels, counts, strict=True):
        name, buckets = _as_words(level), _places(column.name, level, key)
        if held and name is not None and all(bucket in of for bucket, of in zip(buckets, slots, strict=True)):
            at = [of[bucket] for bucket, of in zip(buckets, slots, strict=True)]
            words[at] += np.frombuffer(os.urandom(8 * TABLES), np.uint64)[:, None] * name
    return words.reshape(-1)


def _as_words(level: Level) -> Words | None:
    text = json.dumps(level, ensure_ascii=False).encode(errors="surrogatepass")
    if len(text) > LONGEST:
        return None
    return np.concatenate([[1], np.frombuffer(text.ljust(LONGEST, b"\0"), "<u4")]).astype(np.uint64)


def told_names(words: Words, places: Sequence[Tensor]) -> Told:
    """The names in the slots of a sum, each with (table, bucket) of the slots that hold no other."""
    found: dict[Level, list[tuple[int, int]]] = {}
    at = [(table, bucket) for table, row in enumerate(places) for bucket in row.tolist()]
    for place, slot in zip(at, words.reshape(-1, SLOT), strict=True):
        if (level := _level_of(slot)) is not None:
            found.setdefault(level, []).append(place)
    return found


def _level_of(slot: Words) -> Level | None:
    """The one name in a slot, if there is one."""
    times, *rest = slot.tolist()
    zeros = (times & -times).bit_length() - 1
    if not 0 <= zeros < 32:
        return None
    modulus = 1 << (64 - zeros)
    inverse = pow(times >> zeros, -1, modulus)
    chunks = [(word >> zeros) * inverse % modulus for word in rest]
    if any(chunk >= 1 << 32 or chunk * times % (1 << 64) != word for chunk, word in zip(chunks, rest, strict=True)):
        return None
    text = b"".join(chunk.to_bytes(_CHUNK, "little") for chunk in chunks).rstrip(b"\0")
    try:
        level = json.loads(text)
    except ValueError:
        return None
    return level if isinstance(level, str | int | float) else None


# Histograms.


def second_cells(table: Table, schema: Schema, grids: Sequence[Grid], bins: int) -> list[Cells]:
    """What is counted last: a histogram of each column of numbers or instants, in order.

    Raises:
        ProtocolError: there are more bins than any column gets, or not one grid for each column.
    """
    declared = numbers(schema)
    if not 1 <= bins <= max(FINE, MOST_BINS) or len(grids) != len(declared):
        raise ProtocolError("Each column of numbers gets a histogram", f"{bins} bins of {len(grids)} columns", _AGAIN)
    return [
        Cells(one.name, f"a histogram of column {one.name!r}", histogram(table[one.name], _edges(one, grid, bins)),
              factor=1 / _left(one) ** 2)
        for one, grid in zip(declared, grids, strict=True)
    ]  # fmt: skip


def _left(declared: ColumnSchema) -> float:
    """The share of a column's epsilon that its histogram has, once the grid of instants and the range are found."""
    return _after_grid(declared) * counted_share(declared)


def _edges(declared: ColumnSchema, grid: Grid, bins: int) -> Tensor:
    edges = edges_of(declared, grid, bins)
    return ranges.and_beyond(edges) if isinstance(grid, NoisedGrid) else edges


def edges_of(declared: ColumnSchema, grid: Grid, bins: int) -> Tensor:
    """Edges (B + 1) of a histogram's bins."""
    ranged = replace(declared, low=grid.low, high=grid.high)
    return (edges_within if isinstance(grid, NoisedGrid) else bin_edges)(ranged, grid.unit, bins)


# Encoders.


@dataclass(frozen=True)
class KnownSums:
    """What is known of all silos' rows.

    Attributes:
        schema: what silos agreed on, of the columns that are modelled.
        whole: names of columns whose numbers are whole ones.
        rows: their number.
        deviation: of the noise on a column's counts on average; 0 for exact ones.
        budget: in words, for errors.
        least: rows that lie at or beyond either end of a range that nobody has declared.
        deviations: of the noise on each column's counts, by its name; those that are left out have the average.
    """

    schema: Schema
    whole: Sequence[str]
    rows: int
    deviation: float
    budget: str
    least: int = 1
    deviations: Mapping[str, float] = field(default_factory=dict)

    def deviation_of(self, name: str) -> float:
        """Of the noise on a column's counts."""
        return self.deviations.get(name, self.deviation)

    def counted_deviation(self, name: str) -> float:
        """Of the noise on what its encoder is made of, where that comes after a search for bounds."""
        return self.deviation_of(name) / counted_share(self.schema[name])

    @property
    def bins(self) -> int:
        """How many bins stand out from noise."""
        return bins_for(self.rows, math.sqrt(2) / self.deviation) if self.deviation else FINE

    def grid(self, name: str, sums: Sequence[Tensor]) -> Grid:
        """Where the values of a column of numbers or instants may lie, from the first sums of it."""
        declared, rest, unit = self.schema[name], list(sums), 1.0 if name in self.whole else 0.0
        deviation = self.deviation_of(name)
        if Kind(declared.kind) is Kind.DATETIME:
            unit = coarsest_grid(rest.pop(0), math.sqrt(2) / deviation * GRIDS if deviation else math.inf)
        elif declared.decimals is not None:
            unit = 10.0**-declared.decimals
        if rest and deviation:
            declared = noised_bounds(declared, rest[0], self.rows, deviation / _range_share(declared))
        elif rest:
            declared = bounds_of(declared, ranges.exact_range(rest[0], self.least))
        assert declared.low is not None and declared.high is not None  # see `first_cells`
        kind = NoisedGrid if rest and deviation else Grid
        return kind(unit, float(declared.low), float(max(declared.low, declared.high)))

    def of_public(self, name: str, counts: Tensor) -> tuple[coding.Encoder, Tensor]:
        """The encoder of a column of booleans, or of declared levels, and the share of each of its levels."""
        declared = self.schema[name]
        encoder, noised = public_encoder(blank(declared), declared, counts, self.rows, self.deviation_of(name))
        return encoder, shares_of(noised)

    def of_names(self, name: str, counts_TB: Tensor, told: Told) -> tuple[coding.Encoder, Tensor]:
        """The same of a column of levels: a level has as many rows as its slots' buckets have on average."""
        kept = tuple(sorted(told, key=lambda level: (isinstance(level, str), level)))
        shown = [round(float(np.mean([int(counts_TB[place]) for place in told[level]]))) for level in kept]
        absent = round(float(counts_TB[:, BUCKETS].double().mean()))
        column = replace(blank(self.schema[name]), levels=kept)
        counted = shown, self.rows - sum(shown) - absent, absent
        encoder, counts = category_encoder(column, kept, counted, self.rows, self.deviation_of(name), self.budget)
        return encoder, shares_of(counts)

    def of_bins(
        self, name: str, grid: Grid, bins: int, counts: Tensor, config: coding.EncoderConfig, rng: np.random.Generator
    ) -> tuple[coding.Encoder, Tensor]:
        """The same of a column of numbers or instants."""
        declared, column = self.schema[name], blank(self.schema[name], name in self.whole)
        ranged = replace(declared, low=grid.low, high=grid.high)
        edges, deviation = edges_of(declared, grid, bins), self.deviation_of(name)
        if isinstance(grid, NoisedGrid):
            known = counts, self.rows, deviation / _left(declared)
            made = column_within(column, declared, ranged, edges, grid.unit, known, bins)
        else:
            made = column_of_bins(column, ranged, edges, grid.unit, counts, self.rows, deviation)
        encoder = fit(made, declared, config, rng)
        levels = encoder.encode(made, rng).levels
        return encoder, shares_of(torch.ones(1) if levels is None else torch.bincount(levels, minlength=encoder.width))


def alike(table: Table, schema: Schema) -> Table:
    """A silo's columns in the order that silos agreed on; numbers without any value as numbers."""
    columns = [table[name] for name in schema.names]
    numeric = [Kind(one.kind).numeric for one in schema.columns]
    return Table(tuple(replace(c, levels=None) if n else c for c, n in zip(columns, numeric, strict=True)))
