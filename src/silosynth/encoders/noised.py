"""Where a column's numbers lie, and on which grid, by noised counts: for `silosynth.encoders.private`.

Where a bound is not declared, cells that double in width, years for instants, tell roughly where values lie; equal
cells within these tell better.

Shapes: N values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from silosynth.core.schema import Column, ColumnSchema, Kind
from silosynth.encoders.column import INSTANT_GRIDS
from silosynth.privacy.events import Event
from silosynth.privacy.mechanisms import noised_counts, noised_levels

_ROUGH, _ZOOM = 0.25, 0.25  # of a column's epsilon: where values lie, and a closer look
_GRIDS = 0.1  # of a column's epsilon: on which grid instants lie
_CELLS = 32  # of the closer look
_MASS = 0.9  # least share of rows that bounds found by it hold
_CLEAR = 0.05  # expected number of empty cells that noise makes look held
_YEAR = 31_556_952_000_000_000  # nanoseconds
_YEARS = 200  # cells of instants, from 1870 on
_POWERS = (-24, 64)  # of two, in which numbers are told apart at first


@dataclass(frozen=True)
class Noise:
    """Where noise comes from, and what it has cost so far. Every event of a training has the same scope and target."""

    rng: np.random.Generator
    target: float
    events: list[Event]

    def counts(self, counts: Tensor, epsilon: float, what: str, added: bool = False) -> Tensor:
        """Noised counts of cells that are known beforehand; a row is in one of them at most. ``added``: see `Event`."""
        found, event = noised_counts(counts, epsilon, what, self.rng)
        self._add(event, added)
        return found

    def levels(self, counts: Tensor, epsilon: float, delta: float, what: str) -> tuple[tuple[int, ...], Tensor, int]:
        """Of cells for levels, and a last one for missing values: which levels enough rows hold, and noised counts."""
        names, absent = tuple(range(len(counts) - 1)), counts[-1:]
        places, found, event = noised_levels(names, counts[:-1], epsilon, delta, what, self.rng)
        self._add(event)
        away, _ = noised_counts(absent, epsilon, what, self.rng)  # the same event: a row is on a level or missing
        return places, found, int(away[0])

    def _add(self, event: Event | None, added: bool = False) -> None:
        if event is not None:
            self.events.append(replace(event, scope="all", added=added, target=self.target))


def find_unit(column: Column, schema: ColumnSchema, epsilon: float, noise: Noise) -> tuple[float, float]:
    """Step of the grid that values lie on, 0 for none; and what is left of epsilon.

    Of numbers it is known. Of instants it is the coarsest usual one below which no rows clearly lie.
    """
    if schema.kind != Kind.DATETIME.value:
        none = 0.0 if column.values.is_floating_point() else 1.0
        return none if schema.decimals is None else 10.0**-schema.decimals, epsilon
    share, exact = epsilon * _GRIDS, column.values[~column.missing]
    finer = torch.stack([exact % grid != 0 for grid in INSTANT_GRIDS]).sum(0)  # how many grids a value misses
    cells = torch.bincount(finer, minlength=len(INSTANT_GRIDS) + 1)
    counts = noise.counts(cells, share, f"grids that values of column {column.name!r} lie on")
    clear = (counts >= 0.05 * float(counts.sum()) + math.log(len(counts) / _CLEAR) / share).nonzero().flatten()
    units = (*INSTANT_GRIDS, 1)
    return float(units[int(clear[-1]) if len(clear) else int(counts.argmax())]), epsilon - share


def find_bounds(
    values: Tensor, schema: ColumnSchema, unit: float, epsilon: float, noise: Noise
) -> tuple[float, float, float]:
    """Two bounds, and what is left of epsilon; declared ones cost nothing."""
    low, high, left = schema.low, schema.high, epsilon
    if low is None or high is None:
        rough = _years if schema.kind == Kind.DATETIME.value else _powers
        found, _ = _held(values, rough, epsilon * _ROUGH, schema.name, noise)
        closer, mass = _held(values, _equal(*found), epsilon * _ZOOM, schema.name, noise)
        found, left = closer if mass >= _MASS else found, epsilon * (1 - _ROUGH - _ZOOM)
        low, high = found[0] if low is None else low, found[1] if high is None else high
    step = unit or 1e-9 * max(1.0, abs(low))
    if unit:
        low, high = math.ceil(low / unit - 1e-6) * unit, math.floor(high / unit + 1e-6) * unit
    return (low, high, left) if high - low >= step else (low, low + step, left)


Cells = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Cells (N) of values, -1 for none; and both ends of each cell, in order."""


def _held(values: Tensor, cells: Cells, epsilon: float, name: str, noise: Noise) -> tuple[tuple[float, float], float]:
    """From the first to the last cell that rows clearly hold, the fullest one where none is clear; and their share."""
    places, starts, ends = cells(values)
    counts = torch.bincount(places[places >= 0], minlength=len(starts))
    counts = noise.counts(counts, epsilon, f"roughly where values of column {name!r} lie")
    clear = (counts >= math.log(len(counts) / _CLEAR) / epsilon).nonzero().flatten()
    first, last = (int(clear[0]), int(clear[-1])) if len(clear) else (int(counts.argmax()),) * 2
    share = float(counts[first : last + 1].sum()) / max(1.0, float(counts.sum()))
    return (float(starts[first]), float(ends[last])), share


def _span() -> int:
    return _POWERS[1] - _POWERS[0]


def _powers(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zero in the middle; on either side [2^k, 2^(k+1))."""
    k = torch.floor(torch.log2(values.abs().clamp_min(1e-300))).clamp(_POWERS[0], _POWERS[1] - 1) - _POWERS[0] + 1
    places = (_span() + values.sign() * k).long()
    ends = 2.0 ** torch.arange(_POWERS[0], _POWERS[1] + 1, dtype=torch.float64)
    none = torch.zeros(1, dtype=torch.float64)
    return places, torch.cat([-ends[1:].flip(0), none, ends[:-1]]), torch.cat([-ends[:-1].flip(0), none, ends[1:]])


def _years(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    starts = (torch.arange(_YEARS, dtype=torch.float64) - 100) * _YEAR
    places = torch.floor(values / _YEAR + 100).clamp(0, _YEARS - 1).long()
    return places, starts, starts + _YEAR


def _equal(low: float, high: float) -> Cells:
    def cells(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        edges = torch.linspace(low, high, _CELLS + 1, dtype=torch.float64)
        places = torch.bucketize(values, edges[1:-1], right=True)
        return torch.where((values >= low) & (values <= high), places, -1), edges[:-1], edges[1:]

    return cells
