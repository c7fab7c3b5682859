"""A silo's columns ⇄ encoded rows: every algorithm's party has a `TableCoder` of its own table.

Under differential privacy its encoders are learnt (`learn`) from noised counts alone, at a stated epsilon and delta.

Everything taken from a table goes through `silosynth.privacy.mechanisms`: the number of rows, then one or more
histograms of each column, every row in at most one cell. A stand-in for the column is built from the noised counts, and
an encoder is fitted to that as to any other column: whatever the encoder shows (names, atoms, knots, bounds), the
noised counts have already shown.

- Categories: counts of levels and of missing values. A name is released if its noised count reaches a threshold that a
  level held by a single row reaches with probability at most delta. That booleans are false and true is no secret, nor
  are declared levels: these are all counted, and those are kept that stand out from noise (`shown_levels`).
- Numbers and instants, between the schema's bounds: equal bins, as many as stand out from the noise; one bin per value
  where the grid has few; zero and missing values in bins of their own.
- Bounds are declared: those of the rows would be single rows' values. Values beyond are clamped, which is counted
  (`silosynth.core.schema.beyond_bounds`). Or, with ``dp.bounds = "noised"``, those that nobody has declared come from
  noised counts, for a share of the column's part (`silosynth.encoders.ranges`).

**Taken as public**, so never learned from rows: column names, kinds, dtypes (which say whether values can be missing,
or are text), decimal places, and declared bounds and levels. Kinds and decimals that were inferred from the table
depend on its rows: declare them where that matters.

Budget of a table: 1/20 of epsilon for the number of rows, the rest in equal parts for the columns. Delta is split
equally among the columns whose names need it. Where all that a training releases are counts with discrete Gaussian
noise, so are these (`learn_with`): it takes far less.

Shapes: N rows, C columns with levels, S scores, L levels, B bins.
"""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from silosynth.core.conversation import Party, State, Turn, Turns
from silosynth.core.errors import DataError
from silosynth.core.messages import Message, Struct, from_state, to_state
from silosynth.core.schema import (
    DURATIONS,
    Column,
    ColumnSchema,
    Kind,
    Schema,
    Table,
    check_trainable,
    modelled_columns,
)
from silosynth.core.streams import Keystream, Streams, keyed
from silosynth.encoders import column as coding, ranges
from silosynth.encoders.combinations import (
    Barred,
    Determined,
    barred_pairs,
    determined_columns,
    fitting,
    look_up,
    repair,
    with_classes,
)
from silosynth.encoders.federated import is_number
from silosynth.encoders.normalised import fit
from silosynth.privacy.events import Event, Target
from silosynth.privacy.mechanisms import gaussian_counts, gaussian_levels, noised_counts, noised_levels
from silosynth.privacy.sealed import Seat

GRIDS = 0.1  # of a column's epsilon: to find the grid of instants
Bounds: TypeAlias = Literal["declared", "noised"]
_CLEAR = 0.05  # expected number of empty cells that pass for occupied


@dataclass(frozen=True)
class Noise:
    """The source of noise, and its events so far. Every event of a training has the same scope and target."""

    rng: Keystream
    target: float
    events: list[Event]
    normal: ClassVar[bool] = False

    def counts(self, counts: Tensor, epsilon: float, what: str, added: bool = False) -> Tensor:
        """Noised counts of cells known beforehand, at most one for each row. ``added``: see `Event`."""
        noised, event = noised_counts(counts, epsilon, what, self.rng)
        self._add(event, added)
        return noised

    def levels(self, counts: Tensor, epsilon: float, delta: float, what: str) -> tuple[tuple[int, ...], Tensor, int]:
        """Levels with enough rows, their noised counts, and that of missing values, which is the last of ``counts``."""
        names, absent = tuple(range(len(counts) - 1)), counts[-1:]
        places, noised, event = noised_levels(names, counts[:-1], epsilon, delta, what, self.rng)
        self._add(event)
        missing, _ = noised_counts(absent, epsilon, what, self.rng)  # the same event: a row is on a level or missing
        return places, noised, int(missing[0])

    def _add(self, event: Event | None, added: bool = False) -> None:
        if event is not None:
            self.events.append(replace(event, scope="all", added=added, target=self.target))


@dataclass(frozen=True)
class GaussianNoise(Noise):
    """Discrete Gaussian noise, in place of discrete Laplace noise of the same variance."""

    normal: ClassVar[bool] = True

    def counts(self, counts: Tensor, epsilon: float, what: str, added: bool = False) -> Tensor:
        """See `Noise.counts`."""
        noised, event = gaussian_counts(counts, _variance(epsilon), what, self.rng)
        self._add(event, added)
        return noised

    def levels(self, counts: Tensor, epsilon: float, delta: float, what: str) -> tuple[tuple[int, ...], Tensor, int]:
        """See `Noise.levels`."""
        names, variance = tuple(range(len(counts) - 1)), _variance(epsilon)
        places, noised, event = gaussian_levels(names, counts[:-1], variance, delta, what, self.rng)
        self._add(event)
        missing, _ = gaussian_counts(counts[-1:], variance, what, self.rng)  # the same event, as above
        return places, noised, int(missing[0])


def _variance(epsilon: float) -> int:
    """What `_deviation` is the square root of, as a whole number."""
    return math.ceil(2 / epsilon**2 * (1 - 1e-12))


def find_unit(column: Column, schema: ColumnSchema, epsilon: float, noise: Noise) -> tuple[float, float]:
    """Step of the grid of the values, 0 for none; and the rest of epsilon.

    That of numbers is in the schema. That of instants is the coarsest usual one that clearly no rows miss.
    """
    if schema.kind != Kind.DATETIME.value:
        none = 0.0 if column.values.is_floating_point() else 1.0
        return none if schema.decimals is None else 10.0**-schema.decimals, epsilon
    share = epsilon * GRIDS
    counts = noise.counts(missed_grids(column), share, f"grids that values of column {column.name!r} lie on")
    return coarsest_grid(counts, share), epsilon - share


def missed_grids(column: Column) -> Tensor:
    """How many values of a column of instants miss how many of the usual grids, int64."""
    exact = column.values[~column.missing]
    finer = torch.stack([exact % grid != 0 for grid in coding.INSTANT_GRIDS]).sum(0)
    return torch.bincount(finer, minlength=len(coding.INSTANT_GRIDS) + 1)


def coarsest_grid(counts: Tensor, epsilon: float) -> float:
    """The coarsest usual grid that clearly no rows miss, by noised `missed_grids`; infinite epsilon for exact ones."""
    clear = (counts >= 0.05 * float(counts.sum()) + math.log(len(counts) / _CLEAR) / epsilon).nonzero().flatten()
    units = (*coding.INSTANT_GRIDS, 1)
    return float(units[int(clear[-1]) if len(clear) else int(counts.argmax())])


_NOISED = "Or set dp.bounds = 'noised': noised counts find them, if the table is large, for a part of the budget."


def check_bounds(held: Sequence[tuple[Table, Schema]], remedy: str = _NOISED) -> None:
    """Check that all numbers and instants have declared bounds, which differential privacy presupposes.

    ``held`` are tables of modelled columns with their schemas, of one silo or of all; ``remedy`` is another one.

    Raises:
        DataError: names the columns without, and what to write in an experiment file, or in Python.
    """
    numbers = [(column, schema[column.name]) for table, schema in held for column in table.columns]
    unbounded = {
        declared.name: declared for column, declared in numbers if is_number(column, declared) and not bounded(declared)
    }
    open_ones = list(unbounded.values())
    if open_ones:
        raise DataError(
            "Under differential privacy numbers and dates need declared bounds: those of the rows would tell of them",
            f"{len(open_ones)} without: {', '.join(unbounded)}",
            "Fill in, from what you know without looking at the rows; values beyond are clamped:\n\n"
            f"{_block(open_ones)}\n\nor in Python:\n\n{_mapping(open_ones)}\n\n{remedy}".rstrip(),
        )


def _block(columns: Sequence[ColumnSchema]) -> str:
    """Of an experiment's or a silo's file."""
    lines = [
        f"{column.name if re.fullmatch('[A-Za-z0-9_-]+', column.name) else json.dumps(column.name, ensure_ascii=False)}"
        f" = {{ low = {low}, high = {high} }}"
        for column in columns
        for low, high in [_blanks(column)]
    ]
    return "\n".join(["[schema]", *lines])


def _mapping(columns: Sequence[ColumnSchema]) -> str:
    lines = [
        f'    {column.name!r}: {{"low": {low}, "high": {high}}},'
        for column in columns
        for low, high in [_blanks(column)]
    ]
    return "\n".join(["schema={", *lines, "}"])


def _blanks(column: ColumnSchema) -> tuple[str, str]:
    """What to fill in for low and high; of a number, the one that is declared. Unfilled blanks are no valid bounds."""
    if column.kind == Kind.DATETIME.value and column.dtype.startswith(DURATIONS):
        return '"… days"', '"… days"'
    if column.kind == Kind.DATETIME.value:
        return '"YYYY-MM-DD"', '"YYYY-MM-DD"'
    low, high = ("…" if bound is None else f"{bound:g}" for bound in (column.low, column.high))
    return low, high


def bounds_of(declared: ColumnSchema, found: tuple[float, float]) -> ColumnSchema:
    """The schema with bounds: the declared ones, else those that were found."""
    low, high = (own if own is not None else end for own, end in zip((declared.low, declared.high), found, strict=True))
    return replace(declared, low=low, high=max(low, high))


def bounded(declared: ColumnSchema) -> bool:
    """Whether both bounds are declared."""
    return declared.low is not None and declared.high is not None


def _bounds(schema: ColumnSchema, unit: float) -> tuple[float, float]:
    """The declared bounds, on the grid, and at least a step apart."""
    assert schema.low is not None and schema.high is not None  # see `check_bounds`, `bounds_of`
    low, high, step = schema.low, schema.high, unit or 1e-9 * max(1.0, abs(schema.low))
    if unit:
        low, high = math.ceil(low / unit - 1e-6) * unit, math.floor(high / unit + 1e-6) * unit
    return low, max(high, low + step)


_ROWS = 0.05  # of epsilon, for their number
_PER_BIN = 10.0  # rows of a bin, in units of 1 / epsilon
_LEAST_BINS, MOST_BINS = 8, 100
_MOST_ROWS = 100_000  # of a stand-in


@dataclass(frozen=True)
class Learnt:
    """What was learned about a table from noised counts.

    Attributes:
        encoders: of all columns.
        rows: number of rows, noised, at least 1.
        events: their privacy events.
        shares: of each encoder's levels (L,), summing to one.
    """

    encoders: tuple[coding.Encoder, ...]
    rows: int
    events: tuple[Event, ...]
    shares: tuple[Tensor, ...]


def learn(
    table: Table,
    schema: Schema,
    config: coding.EncoderConfig,
    epsilon: float,
    delta: float,
    rng: Keystream,
    *,
    target: float = 0.0,
    bounds: Bounds = "declared",
) -> Learnt:
    """Learn encoders, and the shares of their levels, from noised counts.

    Args:
        table: the columns that are modelled.
        schema: of these columns; see "taken as public" above.
        config: the same options as without noise; `ModeConfig` gives modes in place of normal scores.
        epsilon, delta: of all events together (basic composition). delta is not used if no column has names.
        rng: the noise; secret, see `silosynth.privacy.mechanisms`.
        target: delta of the whole training, for the events.
        bounds: of numbers; "noised": those that are not declared are found by noised counts.

    Raises:
        ConfigError: epsilon or delta is not above zero, or infinite.
        DataError: numbers without bounds, or whose range noise hides; or as categories, none of which has enough rows
            to be released.
    """
    if bounds == "declared":
        check_bounds([(table, schema)])
    public = keyed(rng.words(2).tobytes())  # for what is made of noised counts
    noise = Noise(rng, target, [])
    counted = noise.counts(torch.tensor([len(table)]), epsilon * _ROWS, "the number of rows", added=True)
    rows = max(1, int(counted[0]))
    each = epsilon * (1 - _ROWS) / max(1, len(table.columns))
    names = delta / max(1, named_columns(table, schema))
    return _learnt(table, schema, config, ([each] * len(table.columns), names), rows, noise, public)


def learn_with(
    table: Table,
    schema: Schema,
    config: coding.EncoderConfig,
    variances: Sequence[int],
    names: float,
    rng: Keystream,
    *,
    target: float = 0.0,
    bounds: Bounds = "declared",
) -> Learnt:
    """`learn` with discrete Gaussian noise of these variances on counts: the first for the rows, one for each column.

    Columns of instants take two, which together cost less than one.

    Args:
        names: for each column with names, the probability at most that that of a single row is released.
        table, schema, config, rng, target, bounds: see `learn`.

    Raises:
        ConfigError, DataError: see `learn`.
    """
    if bounds == "declared":
        check_bounds([(table, schema)])
    public = keyed(rng.words(2).tobytes())
    first, *each = (math.sqrt(2 / variance) for variance in variances)
    noise = GaussianNoise(rng, target, [])
    rows = max(1, int(noise.counts(torch.tensor([len(table)]), first, "the number of rows")[0]))
    return _learnt(table, schema, config, (each, names), rows, noise, public)


def named_columns(table: Table, schema: Schema) -> int:
    """How many columns have levels whose names come from rows; follows from what is public."""
    return sum(_has_names(column, schema[column.name]) for column in table.columns)


def _learnt(
    table: Table,
    schema: Schema,
    config: coding.EncoderConfig,
    budget: tuple[Sequence[float], float],
    rows: int,
    noise: Noise,
    public: np.random.Generator,
) -> Learnt:
    """Encoders of all columns; ``budget`` is the epsilon of each, and the delta of the names of any."""
    epsilons, names = budget
    encoders, shares = [], []
    for column, each in zip(table.columns, epsilons, strict=True):
        declared = schema[column.name]
        encoder: coding.Encoder
        try:
            if is_number(column, declared):
                stand_in = _stand_in(column, declared, each, rows, noise)
                encoder = fit(stand_in, declared, config, public)
                levels = encoder.encode(stand_in, public).levels
                counts = torch.ones(1) if levels is None else torch.bincount(levels, minlength=encoder.width)
            else:
                encoder, counts = _categorical(column, declared, each, names, rows, noise)
        except DataError as error:  # which tells of noised counts, as a reply would
            error.events = tuple(noise.events)
            raise
        encoders.append(encoder)
        shares.append(shares_of(counts))
    return Learnt(tuple(encoders), rows, tuple(noise.events), tuple(shares))


def shares_of(counts_L: Tensor) -> Tensor:
    """Shares (L,) of noised counts, float32, which sum to one."""
    positive = counts_L.double().clamp_min(0)
    shares = positive / positive.sum() if positive.any() else torch.full_like(positive, 1 / max(1, len(positive)))
    return shares.float()


def _has_names(column: Column, schema: ColumnSchema) -> bool:
    return not is_number(column, schema) and not public_levels(schema)


def is_binary(schema: ColumnSchema) -> bool:
    """Whether the dtype says that levels are false and true, whether or not both occur."""
    return schema.dtype in ("bool", "boolean", "bool[pyarrow]", "object|bool")


def public_levels(schema: ColumnSchema) -> tuple[Any, ...]:
    """The levels that rows may hold, of booleans and of categories whose levels are declared; else none."""
    return (False, True) if is_binary(schema) else schema.levels


def most_values(schema: ColumnSchema) -> float:
    """How many values a column may have, besides missing ones, by its schema; infinite where that does not say.

    And where names come from rows, whatever the kind: a name is released only if its count stands out from noise.
    """
    if levels := public_levels(schema):
        return max(2, len(levels))
    if schema.decimals is None or schema.low is None or schema.high is None:
        return math.inf
    unit = 10.0**-schema.decimals
    low, high = _bounds(schema, unit)
    steps = (high - low) / unit if unit else math.inf
    return round(steps) + 1 if math.isfinite(steps) else math.inf


def is_text(column: Column) -> bool:
    """Whether the dtype, which includes the categories of category columns, says that levels are text."""
    if column.dtype.startswith("category"):
        return all(isinstance(level, str) for level in column.levels or ())
    return column.dtype == "object" or column.dtype.startswith(("str", "large_string"))


def can_be_missing(column: Column) -> bool:
    """Whether the dtype can hold missing values, which is public."""
    return re.fullmatch(r"bool|u?int\d+", column.dtype) is None


def _deviation(epsilon: float) -> float:
    return math.sqrt(2) / epsilon


def _categorical(
    column: Column, declared: ColumnSchema, epsilon: float, delta: float, rows: int, noise: Noise
) -> tuple[coding.CategoricalEncoder, Tensor]:
    """The encoder of categories, and the noised counts of its levels."""
    what, deviation = f"counts of the levels of column {column.name!r}", _deviation(epsilon)
    if public_levels(declared):
        noised = noise.counts(level_counts(column, declared), epsilon, what)
        return public_encoder(column, declared, noised, rows, deviation)
    levels = column.levels or ()
    cells = torch.bincount(torch.where(column.missing, len(levels), column.values), minlength=len(levels) + 1)
    places, counts, absent = noise.levels(cells, epsilon, delta, what)
    kept, budget = tuple(levels[place] for place in places), f"epsilon {epsilon:.3g}, delta {delta:.3g}"
    counted = counts.tolist(), rows - int(counts.sum()) - absent, absent
    return category_encoder(column, kept, counted, rows, deviation, budget)


def level_counts(column: Column, declared: ColumnSchema) -> Tensor:
    """How many rows hold each of the `public_levels`, and none, (L + 1,) int64."""
    levels = public_levels(declared)
    values = column.recoded(levels).values
    return torch.bincount(torch.where(column.missing, len(levels), values), minlength=len(levels) + 1)


def public_encoder(
    column: Column, declared: ColumnSchema, noised: Tensor, rows: int, deviation: float
) -> tuple[coding.CategoricalEncoder, Tensor]:
    """The encoder of a column with `public_levels`, and the noised counts of its levels, from noised `level_counts`.

    Declared levels that noise hides are one level, in whose place any of them is drawn, if there are rows left for it.
    """
    levels, (places, counts, absent) = public_levels(declared), shown_levels(noised, deviation)
    missing = can_be_missing(column) and absent > 4 * deviation
    pooled = rows - sum(counts) - absent
    hidden = tuple(level for place, level in enumerate(levels) if place not in places)
    rare = bool(hidden) and pooled > 0 and not is_binary(declared)
    kept = tuple(levels[place] for place in places)
    encoder = coding.CategoricalEncoder(
        column.name, column.dtype, kept, False, rare, missing, hidden if rare else ()
    )  # fmt: skip
    return encoder, torch.tensor([*counts, *[pooled] * rare, *[absent] * missing])


def shown_levels(noised: Tensor, deviation: float) -> tuple[list[int], list[int], int]:
    """By noised `level_counts`: the levels that stand out, one at least, their counts, and that of missing values.

    Of many levels that no row holds less than one stands out on average.
    """
    *counts, absent = noised.tolist()
    least = deviation * max(1.0, math.log(len(counts)) / math.sqrt(2))
    places = [i for i, count in enumerate(counts) if count > least] or [counts.index(max(counts))]
    return places, [counts[place] for place in places], absent


def category_encoder(
    column: Column, kept: tuple[Any, ...], counts: tuple[Sequence[int], int, int], rows: int, deviation: float,
    budget: str,
) -> tuple[coding.CategoricalEncoder, Tensor]:  # fmt: skip
    """The encoder of the levels that are kept, and the noised counts of its levels.

    Args:
        column: its name and dtype are used, and of categories whether they are text.
        kept: levels.
        counts: noised ones: of these levels, of all others, and of missing values.
        rows: their number.
        deviation: of the noise.
        budget: in words, for errors.

    Raises:
        DataError: no level is kept, and they are no text that could be pooled.
    """
    (shown, pooled, absent), text = counts, is_text(column)
    missing = can_be_missing(column) and absent > 4 * deviation
    if not kept and not missing and not text:
        raise DataError(
            f"Column {column.name!r} is categorical, and no level of it has enough rows to be released",
            f"{rows} rows, {budget}",
            "Declare its levels, if they are no secret; raise dp.epsilon, dp.delta or dp.encoders; declare the column "
            "integer or identifier, or leave it out.",
        )
    clear = pooled > 2 * deviation * math.sqrt(len(kept) + 2)
    rare = (clear and (text or bool(kept))) or not (kept or missing)
    encoder = coding.CategoricalEncoder(column.name, column.dtype, kept, text, rare, missing)
    return encoder, torch.tensor([*shown, *[pooled] * rare, *[absent] * missing])


def _stand_in(column: Column, schema: ColumnSchema, epsilon: float, rows: int, noise: Noise) -> Column:
    """A column made from noised counts alone."""
    unit, epsilon = find_unit(column, schema, epsilon, noise)
    what, range_ = f"a histogram of column {column.name!r}", f"the range of column {column.name!r}"
    if bounded(schema):
        edges = bin_edges(schema, unit, bins_for(rows, epsilon))
        counts = noise.counts(histogram(column, edges), epsilon, what)
        return column_of_bins(column, schema, edges, unit, counts, rows, _deviation(epsilon))
    share, epsilon = (epsilon * part for part in (ranges.NORMAL_SHARES if noise.normal else ranges.SHARES))
    cells = noise.counts(histogram(column, ranges.EDGES), share, range_)
    ranged = noised_bounds(schema, cells, rows, _deviation(share), noise.normal)
    bins = bins_for(rows, epsilon)
    edges = edges_within(ranged, unit, bins)
    counts = noise.counts(histogram(column, ranges.and_beyond(edges)), epsilon, what)
    known = counts, rows, _deviation(epsilon)
    return column_within(column, schema, ranged, edges, unit, known, bins, noise.normal)


def noised_bounds(
    schema: ColumnSchema, counts: Tensor, rows: int, deviation: float, normal: bool = True
) -> ColumnSchema:
    """The schema with bounds, by noised counts of the cells of `ranges`; see there.

    Raises:
        DataError: noise hides where values lie.
    """
    if (found := ranges.noised_range(counts, deviation, normal)) is None:
        raise _hidden(schema, rows, deviation)
    return bounds_of(schema, found)


def edges_within(ranged: ColumnSchema, unit: float, bins: int) -> Tensor:
    """`bin_edges` between bounds that `noised_bounds` has found."""
    assert ranged.low is not None and ranged.high is not None
    return bin_edges(ranged, unit, ranges.bins_between(ranged.low, ranged.high, bins))


def column_within(
    column: Column, schema: ColumnSchema, ranged: ColumnSchema, edges: Tensor, unit: float,
    known: tuple[Tensor, int, float], bins: int, normal: bool = True,
) -> Column:  # fmt: skip
    """`column_of_bins` by noised counts between bounds that `noised_bounds` has found, and beyond.

    Args:
        column, schema: as they are.
        ranged: the schema with these bounds.
        edges, unit: of `edges_within`.
        known: the counts, the noised number of rows, and the deviation of the noise.
        bins: at most.
        normal: whether noise is Gaussian.

    Raises:
        DataError: too many values may be beyond.
    """
    counts, rows, deviation = known
    assert ranged.low is not None and ranged.high is not None
    (low, high), ends = _bounds(ranged, unit), (ranged.low, ranged.high)
    inner = ranges.within(counts, ends, (schema.low is None, schema.high is None), rows, deviation)
    if inner is None:
        raise _hidden(schema, rows, deviation)
    edges, inner, deviation = ranges.narrowed(edges, inner, bins, deviation, normal)
    ranged = replace(ranged, low=max(low, float(edges[0])), high=min(high, float(edges[-1])))
    return column_of_bins(column, ranged, edges, unit, inner, rows, deviation)


def counted_share(declared: ColumnSchema) -> float:
    """The share of a column's epsilon that its counts have where Gaussian noise finds its bounds, if not declared."""
    return ranges.NORMAL_SHARES[1] if Kind(declared.kind).numeric and not bounded(declared) else 1.0


def _hidden(schema: ColumnSchema, rows: int, deviation: float) -> DataError:
    return DataError(
        f"Column {schema.name!r} has an end that is not declared, and noise hides where its values lie",
        f"{rows} rows, noise of deviation {deviation:.3g}",
        "Declare its bounds, raise dp.epsilon or dp.encoders, or leave it out.",
    )


def bins_for(rows: int, epsilon: float) -> int:
    """How many bins stand out from noise."""
    return min(MOST_BINS, max(_LEAST_BINS, round(rows * epsilon / _PER_BIN)))


def bin_edges(schema: ColumnSchema, unit: float, bins: int) -> Tensor:
    """Edges (B + 1) of bins between the declared bounds: one per step of the grid if these are few, else equal ones."""
    return _edges(*_bounds(schema, unit), unit, bins)


def histogram(column: Column, edges: Tensor) -> Tensor:
    """How many values are in each bin, are zero, and are missing, (B + 2,) int64."""
    exact = column.values[~column.missing].double()
    zero, absent = len(edges) - 1, len(edges)  # cells after the bins
    cells = torch.bucketize(exact, edges[1:-1], right=True)
    cells = torch.cat([torch.where(exact == 0, zero, cells), torch.full((int(column.missing.sum()),), absent)])
    return torch.bincount(cells, minlength=absent + 1)


def column_of_bins(
    column: Column, schema: ColumnSchema, edges: Tensor, unit: float, counts: Tensor, rows: int, deviation: float
) -> Column:
    """A column like another, but made from its noised `histogram`; ``deviation`` is that of the noise."""
    low, high = _bounds(schema, unit)
    zero, absent = len(edges) - 1, len(edges)
    shown = torch.where(counts > deviation, counts, 0)
    if not can_be_missing(column) or shown[absent] <= 4 * deviation:
        shown[absent] = 0
    if not shown.any():
        shown[:zero] = max(1, rows // zero)  # no count is clear: uniform between the bounds
    shown = (shown.double() * min(1.0, _MOST_ROWS / float(shown.sum()))).ceil().long()
    parts = [_spread(edges[b], edges[b + 1], int(shown[b]), unit) for b in range(zero)]
    values = torch.cat([*parts, torch.zeros(int(shown[zero]), dtype=torch.float64)]).clamp(low, high)
    values = torch.nn.functional.pad(values, (0, int(shown[absent])))
    missing = torch.arange(len(values)) >= len(values) - int(shown[absent])
    return replace(column, values=values.to(column.values.dtype), missing=missing)


def _edges(low: float, high: float, unit: float, bins: int) -> Tensor:
    """Bin edges (B + 1): one bin per grid point if there are few, else equal bins."""
    points = round((high - low) / unit) + 1 if unit else math.inf
    if points <= bins:
        return low + (torch.arange(int(points) + 1, dtype=torch.float64) - 0.5) * unit
    return torch.linspace(low, high, bins + 1, dtype=torch.float64)


def _spread(low: Tensor, high: Tensor, count: int, unit: float) -> Tensor:
    """`count` numbers (count,), evenly spaced between two ends and rounded to the grid."""
    values = low + (high - low) * (torch.arange(count, dtype=torch.float64) + 0.5) / max(1, count)
    return (values / unit).round() * unit if unit else values


class ColumnParty(Party):
    """A silo's side of an algorithm. To sample with a restored state, an empty table will do.

    It takes all options from ``config``, and none from messages. A party that is made, or restored from what `state`
    returned, answers messages of training only; one restored from what `trained` returned, of sampling only.

    Attributes:
        columns: the silo's modelled columns, and their encoders.
        seat: who it is among silos.
        streams, device: what it draws from, and where it computes.
        config: all options of the algorithm.
    """

    def __init__(
        self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device, config: Any
    ) -> None:
        self.columns = TableCoder(table, schema, streams)
        self.seat, self.streams, self.device, self.config = seat, streams, device, config
        self._set_up()
        self._turns = Turns(*self._script(training=True))

    def _set_up(self) -> None:
        """Set what else the party holds; for subclasses to override."""

    @abstractmethod
    def _script(self, training: bool) -> tuple[Turn, ...]:
        """In which order it takes the messages of training, or of sampling."""

    def answer(self, ask: Message) -> Message:
        """See `Party.answer`."""
        with self._turns.taken(ask):
            return self._answer(ask)

    @abstractmethod
    def _answer(self, ask: Message) -> Message:
        """Answer a message whose turn it is."""

    def state(self) -> State:
        """See `Party.state`."""
        return {**super().state(), "turns": self._turns.state()}

    def restore(self, state: State) -> None:
        """See `Party.restore`."""
        training = "turns" in state
        self._turns = Turns(*self._script(training))
        if training:
            self._turns.restore(state["turns"])
        self._restore(state)

    @abstractmethod
    def _restore(self, state: State) -> None:
        """Continue from `_state`."""

    @property
    def _shares(self) -> bool:
        """Whether synthetic columns leave the silo."""
        return bool(self.config.synthesis != "partitioned")


class TableCoder:
    """Encoders of a silo's modelled columns. Restored to decode only, it needs no rows.

    Attributes:
        table: the columns to make.
        encoders: one for each column that is encoded; none before `fit`, `learn` or `restore`.
        determined: the columns that are looked up.
        barred: pairs of levels that are not made.
    """

    def __init__(self, table: Table, schema: Schema, streams: Streams) -> None:
        self.table, self.schema, self.streams = modelled_columns(table, schema), schema, streams
        self.encoders: tuple[coding.Encoder, ...] = ()
        self.determined: tuple[Determined, ...] = ()
        self.barred: tuple[Barred, ...] = ()

    def fit(self, config: coding.EncoderConfig, numbers: str = "quantile", kept: Sequence[str] = ()) -> None:
        """Fit encoders to the rows, as `normalised.fit` does to each column, and find what these say of each other.

        Columns in ``kept`` are encoded even if others determine them.

        Raises:
            DataError: there is no column to model, or there are fewer than two rows.
        """
        check_trainable(self.table, self.schema)
        keep = config.dependencies == "keep"
        rules = determined_columns(self.table, self.schema, config, kept) if keep else ()
        self.determined = with_classes(rules, self._heads(config, rules))
        left_out = {rule.values.name for rule in self.determined if not rule.modelled}
        columns = [column for column in self.table.columns if column.name not in left_out]
        rng = self.streams.child("encoders").numpy()
        schema = self.schema
        fitted = [(fit(column, schema[column.name], config, rng, numbers), column) for column in columns]
        self.encoders = tuple(coding.head(encoder, column, config) for encoder, column in fitted)
        self.barred = barred_pairs(columns, self.encoders, config) if keep else ()

    def _heads(self, config: coding.EncoderConfig, rules: Sequence[Determined]) -> list[str]:
        """Columns that determine others, of more categories than are learnt; each before what it determines."""
        names = dict.fromkeys(rule.keys.name for rule in rules) if config.pool_rare else ()
        return [name for name in names if self.table[name].common_levels(config.min_count) > config.most_categories]

    def learn(self, config: coding.EncoderConfig, target: Target, silos: int) -> Learnt:
        """Learn encoders from noised counts, by one of ``silos`` equal parts of the target's budget for encoders.

        Raises:
            DataError: see `fit`; numbers without declared bounds; or no level of a column of numbers is common enough
                to be released.
        """
        check_trainable(self.table, self.schema)
        rng = self.streams.child("encoders").noise()
        budget = target.encoder_budget(silos)
        learnt = learn(self.table, self.schema, config, *budget, rng, target=target.delta, bounds=target.bounds)
        self.encoders, self.determined, self.barred = learnt.encoders, (), ()
        return learnt

    def learn_with(
        self, config: coding.EncoderConfig, variances: Sequence[int], names: float, target: Target
    ) -> Learnt:
        """Learn encoders from counts with discrete Gaussian noise: see the function of this name.

        Raises:
            DataError: see `learn`.
        """
        check_trainable(self.table, self.schema)
        rng = self.streams.child("encoders").noise()
        learnt = learn_with(
            self.table, self.schema, config, variances, names, rng, target=target.delta, bounds=target.bounds
        )
        self.encoders, self.determined, self.barred = learnt.encoders, (), ()
        return learnt

    def encode(self, ties: str = "ties") -> tuple[Tensor, Tensor]:
        """Levels (N, C) and scores (N, S) of the rows; ties are broken at random by the stream of that name."""
        if not len(self.table):
            levels = sum(encoder.width > 1 for encoder in self.encoders)
            scores = sum(encoder.continuous for encoder in self.encoders)
            return torch.zeros(0, levels, dtype=torch.int64), torch.zeros(0, scores)
        return coding.encode_table(self.table, self.encoders, self.streams.child(ties).numpy())

    def decode(self, levels_NC: Tensor, scores_NS: Tensor, streams: Streams) -> Table:
        """Columns of encoded rows, which lie on the CPU; values between levels are drawn from ``streams``."""
        levels_NC = repair(levels_NC, self.barred, streams.child("repairs").numpy())
        table = coding.decode_table(levels_NC, scores_NS, self.encoders, streams.child("columns").numpy())
        table = fitting(table, self.encoders, self.determined, streams.child("fitting").numpy())
        return look_up(table, self.determined)

    def state(self) -> list[dict[str, Any]]:
        """Encoders and rules in storable form."""
        return [to_state(part) for part in (*self.encoders, *self.determined, *self.barred)]

    def restore(self, state: Sequence[Any]) -> None:
        """Continue from what `state` returned."""
        parts = [from_state(Struct, part) for part in state]
        self.encoders = tuple(part for part in parts if isinstance(part, coding.Encoder))
        self.determined = tuple(part for part in parts if isinstance(part, Determined))
        self.barred = tuple(part for part in parts if isinstance(part, Barred))
