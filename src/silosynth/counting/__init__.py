"""Contingency tables of columns that different silos hold: silos get additive shares, which may open with noise."""

from silosynth.counting.levels import CountedColumn
from silosynth.counting.opening import CellNoise, OpenedTables, bits_to_open, open_tables
from silosynth.counting.plan import CountRequest, bits_for, padded
from silosynth.counting.protocol import count
from silosynth.counting.silo import TableCounter

__all__ = [
    "CellNoise",
    "CountRequest",
    "CountedColumn",
    "OpenedTables",
    "TableCounter",
    "bits_for",
    "bits_to_open",
    "count",
    "open_tables",
    "padded",
]
