"""Contingency tables of columns that different silos hold: silos get additive shares, and nobody sees a table."""

from silosynth.counting.levels import CountedColumn
from silosynth.counting.plan import CountRequest, bits_for, padded
from silosynth.counting.protocol import count
from silosynth.counting.silo import TableCounter

__all__ = ["CountRequest", "CountedColumn", "TableCounter", "bits_for", "count", "padded"]
