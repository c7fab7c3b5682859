"""Column encoders that are learnt from noised counts alone, and cost a stated epsilon and delta.

All that a table says goes through `silosynth.privacy.mechanisms`: the number of rows, then one or more histograms of
each column, every row in one cell or in none. From noised counts a stand-in of the column is made, and an encoder is
fitted to that as to any other column: whatever it shows (names, atoms, knots, bounds), the noised counts have shown.

- Categories: counts of levels, and of missing values. A name is shown from a noised count upwards that the only row of
  a level reaches with probability delta at most. That truth values are false and true is no secret.
- Numbers and instants, between the schema's bounds: equal bins, as many as stand out of the noise; one bin per value
  where the grid has few; zero and missing values in bins of their own.
- Where a bound is not declared: cells that double in width, years for instants, tell roughly where values lie, and
  equal cells within these tell better. What few rows hold beyond is drawn to the ends. Declared bounds cost nothing.

**Taken as public**, and therefore not to be told by rows: columns' names, kinds, dtypes (which say whether values can
be missing, or are texts), decimal places, and declared bounds. Kinds and decimals that were inferred from the table are
no longer free of it: declare them where that matters.

Budget of a table: a twentieth of epsilon for the number of rows, the rest in equal parts for columns; where bounds are
looked for, half of a column's. Delta in equal parts for columns whose names need it.

Shapes: N rows, L levels, B bins.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from silosynth.core.errors import DataError
from silosynth.core.schema import Column, ColumnSchema, Schema, Table
from silosynth.encoders.column import CategoricalEncoder, Encoder, EncoderConfig
from silosynth.encoders.federated import fit, is_number
from silosynth.encoders.noised import Noise, find_bounds, find_unit
from silosynth.privacy.events import Event

_ROWS = 0.05  # of epsilon, for their number
_PER_BIN = 10.0  # rows of a bin, in units of 1 / epsilon
_LEAST_BINS, _MOST_BINS = 8, 100
_MOST_ROWS = 100_000  # of a stand-in


@dataclass(frozen=True)
class Learnt:
    """What noised counts have told of a table.

    Attributes:
        encoders: of all columns.
        rows: their number, noised, at least 1.
        events: what everything here has cost.
        shares: of each encoder's levels (L,), summing to one.
    """

    encoders: tuple[Encoder, ...]
    rows: int
    events: tuple[Event, ...]
    shares: tuple[Tensor, ...]


def fit_private(
    table: Table,
    schema: Schema,
    config: EncoderConfig,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    target: float = 0.0,
) -> tuple[tuple[Encoder, ...], int, tuple[Event, ...]]:
    """Encoders of all columns, the noised number of rows, and what both cost; see `learn`."""
    found = learn(table, schema, config, epsilon, delta, rng, target=target)
    return found.encoders, found.rows, found.events


def learn(
    table: Table,
    schema: Schema,
    config: EncoderConfig,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    target: float = 0.0,
) -> Learnt:
    """Learn encoders, and how many rows there are on each of their levels, from noised counts.

    Args:
        table: the columns that are modelled.
        schema: of these columns; see "taken as public" above.
        config: the same options as without noise; `ModeConfig` gives modes in place of normal scores.
        epsilon, delta: of all events together, summed up. delta is not used where no column has names.
        rng: the noise; secret, see `silosynth.privacy.mechanisms`.
        target: delta of the whole training, for the events.

    Raises:
        ConfigError: epsilon or delta is not above zero, or infinite.
        DataError: numbers as categories, none of which is held by so many rows that it is told.
    """
    secret, public = rng.spawn(2)
    noise = Noise(secret, target, [])
    counted = noise.counts(torch.tensor([len(table)]), epsilon * _ROWS, "the number of rows", added=True)
    rows = max(1, int(counted[0]))
    each = epsilon * (1 - _ROWS) / max(1, len(table.columns))
    named = [column.name for column in table.columns if _has_names(column, schema[column.name])]
    encoders, shares = [], []
    for column in table.columns:
        about = schema[column.name]
        if is_number(column, about):
            stand_in = _stand_in(column, about, each, rows, noise)
            encoder = fit(stand_in, about, config, public)
            levels = encoder.encode(stand_in, public).levels
            counts = torch.ones(1) if levels is None else torch.bincount(levels, minlength=encoder.width)
        else:
            encoder, counts = _categorical(column, each, delta / max(1, len(named)), rows, noise)
        encoders.append(encoder)
        shares.append(_shares(counts))
    return Learnt(tuple(encoders), rows, tuple(noise.events), tuple(shares))


def _shares(counts_L: Tensor) -> Tensor:
    held = counts_L.double().clamp_min(0)
    return (held / held.sum() if held.any() else torch.full_like(held, 1 / max(1, len(held)))).float()


def _has_names(column: Column, schema: ColumnSchema) -> bool:
    return not is_number(column, schema) and not _binary(column)


def _binary(column: Column) -> bool:
    """Whether levels are false and true, by the dtype: whichever of them occur."""
    return column.dtype in ("bool", "boolean", "bool[pyarrow]", "object|bool")


def _text(column: Column) -> bool:
    """Whether levels are texts, by the dtype, of which a category column's categories are a part."""
    if column.dtype.startswith("category"):
        return all(isinstance(level, str) for level in column.levels or ())
    return column.dtype == "object" or column.dtype.startswith(("str", "large_string"))


def _optional(column: Column) -> bool:
    """Whether the column's dtype holds missing values; where it holds none, that is known to everybody."""
    return re.fullmatch(r"bool|u?int\d+", column.dtype) is None


def _deviation(epsilon: float) -> float:
    return math.sqrt(2) / epsilon


def _categorical(
    column: Column, epsilon: float, delta: float, rows: int, noise: Noise
) -> tuple[CategoricalEncoder, Tensor]:
    """The encoder of categories, and how many rows are on its levels, as far as noise tells."""
    levels, text = column.levels or (), _text(column)
    what, deviation = f"counts of the levels of column {column.name!r}", _deviation(epsilon)
    if _binary(column):
        levels = (False, True)
        cells = torch.bincount(torch.where(column.missing, 2, column.values), minlength=3)
        found = noise.counts(cells, epsilon, what)
        places = [i for i in (0, 1) if found[i] > deviation] or [int(found[:2].argmax())]
        counts, away, rest = found[places].tolist(), int(found[2]), 0
    else:
        cells = torch.bincount(torch.where(column.missing, len(levels), column.values), minlength=len(levels) + 1)
        shown, told, away = noise.levels(cells, epsilon, delta, what)
        places, counts = list(shown), told.tolist()
        rest = rows - sum(counts) - away
    missing = _optional(column) and away > 4 * deviation
    if not places and not missing and not text:
        raise DataError(
            f"Column {column.name!r} is categorical, and no level of it is held by so many rows that it is told",
            f"{rows} rows, epsilon {epsilon:.3g}, delta {delta:.3g}",
            "Raise dp.epsilon, dp.delta or dp.encoders; or declare the column integer or identifier, or leave it out.",
        )
    clear = rest > 2 * deviation * math.sqrt(len(places) + 2)
    rare = (clear and (text or bool(places))) or not (places or missing)
    kept = tuple(levels[place] for place in places)
    encoder = CategoricalEncoder(column.name, column.dtype, kept, text, rare, missing)
    return encoder, torch.tensor([*counts, *[rest] * rare, *[away] * missing])


def _stand_in(column: Column, schema: ColumnSchema, epsilon: float, rows: int, noise: Noise) -> Column:
    """A column made of noised counts alone."""
    values = column.values[~column.missing].double()
    unit, epsilon = find_unit(column, schema, epsilon, noise)
    low, high, left = find_bounds(values, schema, unit, epsilon, noise)
    edges = _edges(low, high, unit, min(_MOST_BINS, max(_LEAST_BINS, round(rows * left / _PER_BIN))))
    zero, gone = len(edges) - 1, len(edges)  # cells of their own, behind the bins
    cells = torch.bucketize(values.clamp(low, high), edges[1:-1], right=True)
    cells = torch.cat([torch.where(values == 0, zero, cells), torch.full((int(column.missing.sum()),), gone)])
    counts = noise.counts(torch.bincount(cells, minlength=gone + 1), left, f"a histogram of column {column.name!r}")
    shown = torch.where(counts > _deviation(left), counts, 0)
    if not _optional(column) or shown[gone] <= 4 * _deviation(left):
        shown[gone] = 0
    if not shown.any():
        shown[:zero] = max(1, rows // zero)  # nothing is clear: anything between the bounds
    shown = (shown.double() * min(1.0, _MOST_ROWS / float(shown.sum()))).ceil().long()
    made = [_spread(edges[b], edges[b + 1], int(shown[b]), unit) for b in range(zero)]
    told = torch.cat([*made, torch.zeros(int(shown[zero]), dtype=torch.float64)]).clamp(low, high)
    told = torch.nn.functional.pad(told, (0, int(shown[gone])))
    missing = torch.arange(len(told)) >= len(told) - int(shown[gone])
    return replace(column, values=told.to(column.values.dtype), missing=missing)


def _edges(low: float, high: float, unit: float, bins: int) -> Tensor:
    """Ends of bins (B + 1): one bin per number where the grid has few, else equal ones."""
    many = round((high - low) / unit) + 1 if unit else math.inf
    if many <= bins:
        return low + (torch.arange(int(many) + 1, dtype=torch.float64) - 0.5) * unit
    return torch.linspace(low, high, bins + 1, dtype=torch.float64)


def _spread(low: Tensor, high: Tensor, count: int, unit: float) -> Tensor:
    """So many numbers, evenly between two ends and on the grid."""
    values = low + (high - low) * (torch.arange(count, dtype=torch.float64) + 0.5) / max(1, count)
    return (values / unit).round() * unit if unit else values
