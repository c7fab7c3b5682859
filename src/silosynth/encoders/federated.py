"""Encoders of a horizontal federation: silos summarise their columns, and encoders of all rows are made of that.

GDTS (Zhao, Birke, Chen 2023), section II-B; no row leaves its silo:

1. each silo sends encoders of its own rows, and the number
   of rows on each level                                   `summarise`; with noise: `of_counts`, `of_bins`
2. the coordinator draws as many values of each column as
   each silo has rows, and fits an encoder to all of these;
   counts of categories it adds up                          `merge`
3. silos encode their rows with these encoders              `column.encode_table`

A summary is an encoder with counts, whatever it was made from: a mixture, a quantile map, or a noised histogram. So
drawing and merging are the same for all. A level that some silos pool as *rare* is counted where others name it.

Shapes: P silos, L levels of a column, n rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from silosynth.core.errors import DataError
from silosynth.core.messages import Struct
from silosynth.core.schema import Column, ColumnSchema, Kind, Table, below, union
from silosynth.encoders import column as base
from silosynth.encoders.normalised import ModeEncoder, fit

MOST_DRAWN = 200_000  # values of a column, of all silos together, that its encoder is fitted to
SHARES = 1000  # sum of the counts sent for numbers: they must not reveal the number of rows


class Summary(Struct):
    """A silo's summary of one column.

    Attributes:
        encoder: of its own rows, or made from noised counts.
        counts: (L,) int64, its rows on each level of that encoder; below zero where noise made them so. Of numbers,
            un-noised, the shares of levels in thousandths.
    """

    encoder: base.Encoder
    counts: Tensor


@dataclass(frozen=True)
class Merged:
    """One column of all silos.

    Attributes:
        encoder: for all.
        counts: (P, L) int64, each silo's rows on each level of it, none below zero.
        drawn: per silo, values (n,) float64 that were drawn for it, missing ones left out; None for categories.
    """

    encoder: base.Encoder
    counts: Tensor
    drawn: tuple[np.ndarray, ...] | None


def is_number(column: Column, schema: ColumnSchema) -> bool:
    """Whether a column has values on a line, rather than categories."""
    return Kind(schema.kind).numeric and column.levels is None


def summarise(column: Column, schema: ColumnSchema, config: base.EncoderConfig, rng: np.random.Generator) -> Summary:
    """The summary of a column, without noise; rare levels are pooled if ``config`` says so."""
    encoder = fit(column, schema, config, rng)
    counts = _levels(encoder, column, rng)
    if is_number(column, schema):
        counts = (counts * SHARES / counts.sum().clamp(min=1)).round().long()
    return Summary(encoder, counts)


def of_counts(
    column: Column, named: Mapping[str | int | float | bool, int], rare: int | None, missing: int | None
) -> Summary:
    """A summary of categories from their (noised) counts; None for no *rare* or no missing."""
    slots = [count for count in (rare, missing) if count is not None]
    text = all(isinstance(level, str) for level in column.levels or ())
    encoder = base.CategoricalEncoder(
        column.name, column.dtype, tuple(named), text, rare is not None, missing is not None
    )
    return Summary(encoder, torch.tensor([*named.values(), *slots], dtype=torch.int64))


def of_bins(column: Column, schema: ColumnSchema, counts_B: Tensor, missing: int | None) -> Summary:
    """A summary of numbers from (noised) counts of equal bins between the schema's bounds, which it must have."""
    low, high = float(schema.low or 0), float(schema.high or 0)
    edges = torch.linspace(low, high, len(counts_B) + 1, dtype=torch.float64)
    shares = counts_B.clamp(min=0).double()
    ranks = torch.cat([torch.zeros(1), (shares / shares.sum().clamp_min(1)).cumsum(0)])
    whole = not column.values.is_floating_point()
    unit = 10.0 ** -(schema.decimals or 0)
    encoder = base.NumericEncoder(
        column.name, column.dtype, whole, 0, 0.0 if schema.decimals is None else unit, schema.decimals,
        int(low) if whole else low, int(high) if whole else high, column.values[:0], missing is not None,
        base.Quantile(edges, ranks.double(), 0.0),
    )  # fmt: skip
    return Summary(encoder, torch.tensor([int(shares.sum()), *([] if missing is None else [missing])]))


def merge(
    summaries: Sequence[Summary], rows: Sequence[int], schema: ColumnSchema, config: base.EncoderConfig,
    rng: np.random.Generator, noise: float = 0.0,
) -> Merged:  # fmt: skip
    """Merge all silos' summaries of one column; ``rows`` are their numbers of rows.

    ``noise`` is the standard deviation of each count of categories. With noise, silos always send counts of *rare* and
    missing rows, which may be noise alone; without (0), only if there are such rows.

    Raises:
        DataError: numbers as categories, none of which is common enough to be kept or released.
    """
    encoders = [summary.encoder for summary in summaries]
    if all(isinstance(encoder, base.CategoricalEncoder) for encoder in encoders):
        return _merge_categories(summaries, config, noise)
    scale = min(1.0, MOST_DRAWN / max(1, sum(rows)))
    columns = [draw(summary, max(1, round(n * scale)), rng) for summary, n in zip(summaries, rows, strict=True)]
    encoder = fit(below([Table((column,)) for column in columns]).columns[0], schema, config, rng)
    counts = [_levels(encoder, column, rng) for column in columns]
    drawn = tuple(column.values[~column.missing].double().numpy() for column in columns)
    return Merged(encoder, torch.stack(counts), drawn)


def draw(summary: Summary, rows: int, rng: np.random.Generator) -> Column:
    """A column of ``rows`` values that the summary stands for. They are stratified: shares are kept, not drawn."""
    shares = summary.counts.clamp(min=0).double()
    ends = (shares.cumsum(0) / shares.sum().clamp_min(1) * rows).round().long()
    levels = torch.repeat_interleave(torch.arange(len(shares)), ends.diff(prepend=ends.new_zeros(1)))
    levels = torch.nn.functional.pad(levels, (0, rows - len(levels)))  # no counts at all: all on the first level
    places = (torch.from_numpy(rng.permutation(rows)) + torch.from_numpy(rng.random(rows))) / rows
    spread = summary.encoder.spread if isinstance(summary.encoder, ModeEncoder) else 1.0
    codes = base.Codes(levels, torch.from_numpy(ndtri(places.numpy())).float() / spread)
    return summary.encoder.decode(codes, rows, rng)


def _levels(encoder: base.Encoder, column: Column, rng: np.random.Generator) -> Tensor:
    levels = encoder.encode(column, rng).levels
    return torch.tensor([len(column)]) if levels is None else torch.bincount(levels, minlength=encoder.width)


def _merge_categories(summaries: Sequence[Summary], config: base.EncoderConfig, noise: float) -> Merged:
    """Add up counts of the same level; levels that are rare in all silos together are pooled, as in a single table."""
    encoders = [summary.encoder for summary in summaries if isinstance(summary.encoder, base.CategoricalEncoder)]
    rows = [summary.counts.clamp(min=0).tolist() for summary in summaries]
    of = [dict(zip(encoder.kept, counts, strict=False)) for encoder, counts in zip(encoders, rows, strict=True)]
    names = union([encoder.kept for encoder in encoders])
    least = base.least_rows(names, config)
    kept = tuple(name for name in names if least <= 1 or sum(counts.get(name, 0) for counts in of) >= least)
    counts_of = [summary.counts.tolist() for summary in summaries]
    absent = [(counts[-1], 1) for encoder, counts in zip(encoders, counts_of, strict=True) if encoder.missing]
    rest = [(c[len(e.kept)], len(e.kept) + 2) for e, c in zip(encoders, counts_of, strict=True) if e.rare]
    missing = _occurs(absent, noise)
    rare = _occurs(rest, noise) or len(kept) < len(names) or not (kept or missing)
    text = all(encoder.text for encoder in encoders)
    if rare and not kept and not text and noise:
        raise DataError(
            f"Column {encoders[0].name!r} is categorical, and no level of it has enough rows to be released",
            f"{len(encoders)} silos, noise of {noise:.3g} rows",
            "Raise epsilon or delta, declare it integer or identifier, leave it out, or set delta = 0.",
        )
    if rare and not kept and not text:
        raise base.no_level_is_common(encoders[0].name, least, sum(map(sum, rows)), len(names))
    merged = base.CategoricalEncoder(encoders[0].name, encoders[0].dtype, kept, text, rare, missing)
    counts_PL = torch.zeros(len(encoders), merged.width, dtype=torch.int64)
    for i, (encoder, counts) in enumerate(zip(encoders, rows, strict=True)):
        counts_PL[i, : len(kept)] = torch.tensor([of[i].get(name, 0) for name in kept], dtype=torch.int64)
        if missing:
            counts_PL[i, -1] = counts[-1] if encoder.missing else 0
        if rare:
            counts_PL[i, len(kept)] = sum(counts) - counts_PL[i].sum()
    return Merged(merged, counts_PL, None)


def _occurs(counts: Sequence[tuple[int, int]], noise: float) -> bool:
    """Whether the total of ``counts``, each with its number of noised terms, exceeds 4 standard deviations of noise."""
    return bool(counts) and sum(c for c, _ in counts) >= 4 * noise * math.sqrt(sum(terms for _, terms in counts))
