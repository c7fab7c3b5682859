"""Standardised numbers: value ⇄ (value - mean) / standard deviation (VFLGAN, equation (22)).

The mean and the spread are those of all rows, un-noised. A number that is not there is a level of its own, which the
paper does without. A column without spread, or that is not a number, is encoded as `silosynth.encoders.column` does it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from silosynth.core.schema import Column, ColumnSchema, Kind
from silosynth.encoders.column import (
    Codes,
    Encoder,
    EncoderConfig,
    find_grid,
    find_origin,
    fit_encoder,
    to_grid,
    value_range,
)


@dataclass(frozen=True, slots=True)
class StandardEncoder(Encoder):
    """Numbers and instants on one line; missing as a second level, where it occurs."""

    dtype: str
    whole: bool  # int64 values (whole numbers, instants) rather than float64
    origin: int  # what whole values are counted from, so that float64 holds them exactly
    step: float  # grid of the values; 0 for none
    decimals: int | None
    low: float  # whole where the values are
    high: float
    missing: bool
    mean: float  # counted from the origin
    deviation: float

    @property
    def width(self) -> int:
        """Number of levels."""
        return 1 + self.missing

    @property
    def lines(self) -> int:
        """The line is one level."""
        return 1

    def encode(self, column: Column, rng: np.random.Generator) -> Codes:
        """Codes of a column."""
        scores = ((column.values - self.origin).double() - self.mean) / self.deviation
        scores = torch.where(column.missing, 0.0, scores).float()
        return Codes(column.missing.long() if self.missing else None, scores)

    def decode(self, codes: Codes, n: int, rng: np.random.Generator) -> Column:
        """A column of n rows, on the grid and within the range."""
        missing = torch.zeros(n, dtype=torch.bool) if codes.levels is None else codes.levels == 1
        assert codes.scores is not None
        line = self.mean + self.deviation * codes.scores.double().numpy()
        values = np.clip(to_grid(line, self.whole, self.origin, self.step, self.decimals), self.low, self.high)
        values[missing.numpy()] = 0
        return Column(self.name, self.dtype, torch.from_numpy(values), missing)


def fit_standard_encoder(
    column: Column, schema: ColumnSchema, config: EncoderConfig, rng: np.random.Generator
) -> Encoder:
    """Fit the encoder of a number with any spread; of another column, what `fit_encoder` gives."""
    values = column.values[~column.missing].numpy()
    if not Kind(schema.kind).numeric or column.levels is not None or len(np.unique(values)) < 2:
        return fit_encoder(column, schema, config, rng)
    whole = not column.values.is_floating_point()
    step = find_grid(values, schema)
    origin = find_origin(values, step) if whole else 0
    line = np.sort((values - origin).astype(np.float64))
    ends = float(line[: config.min_count].mean()), float(line[-config.min_count :].mean())  # no single row's value
    low, high = value_range(line[:0], ends, origin, step, schema, whole)
    return StandardEncoder(
        column.name, column.dtype, whole, origin, step, schema.decimals, low, high, bool(column.missing.any()),
        float(line.mean()), float(line.std()),
    )  # fmt: skip
