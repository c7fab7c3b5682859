"""Columns as levels: what both sides of a table must agree on before either counts.

Levels are declared in the ask, in order, so that all parties name a table's cells alike: the values of a column with
levels; for numbers and instants the bins between edges. Missing values are the last level of each column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from silosynth.core.errors import ConfigError, DataError
from silosynth.core.messages import Struct
from silosynth.core.schema import Column

Codes = npt.NDArray[np.int64]


class CountedColumn(Struct):
    """A column, and what its levels are.

    Attributes:
        silo: whose column it is; empty where every silo has it, with rows of its own.
        name: the column's name there.
        levels: the values of a column with levels, in the order of a table's cells.
        edges: of a column of numbers, rising: the bins below the first edge, from each edge to below the next, and
            from the last edge on. Instants are in nanoseconds since 1970.
        others: whether values that ``levels`` lacks are a level of their own, the last before missing values;
            otherwise a silo that holds one refuses to count.
        missing: whether missing values are a level; otherwise a silo that holds one refuses to count.

    Raises:
        ConfigError: both levels and edges are given, or neither; levels repeat; or edges do not rise.
    """

    silo: str
    name: str
    levels: tuple[str | int | float | bool, ...] = ()
    edges: tuple[int | float, ...] = ()
    others: bool = False
    missing: bool = True

    @property
    def size(self) -> int:
        """How many levels there are, with that of missing values."""
        return self.missing + (len(self.edges) + 1 if self.edges else len(self.levels) + self.others)

    def codes(self, column: Column) -> Codes:
        """Each row's level, (N,).

        Raises:
            DataError: the column is not of the declared kind, or holds a value that is none of its levels; the value
                is not named.
        """
        if (column.levels is None) is not bool(self.edges) and len(column) != int(column.missing.sum()):
            kind = "numbers, which are counted by edges" if column.levels is None else "levels, which are listed"
            raise DataError(f"Column {self.name!r} is counted by what it holds", kind, "Declare it so.")
        values, missing = column.values.numpy(), column.missing.numpy()
        codes = self._bins(values) if self.edges else self._places(column)[values]
        codes = np.where(missing, self.size - 1 if self.missing else -1, codes)
        if (codes < 0).any():
            raise DataError(
                f"Column {self.name!r} holds no values but those that are counted",
                "another",
                "List all of its levels, or count the rest as one level (others), and missing values (missing).",
            )
        return codes

    def _places(self, column: Column) -> Codes:
        """The place of each of the column's own levels among those declared; -1 for one that is not there."""
        place_of = {_key(level): place for place, level in enumerate(self.levels)}
        rest = len(self.levels) if self.others else -1
        return np.array([place_of.get(_key(level), rest) for level in column.levels or ()] or [rest])

    def _bins(self, values: npt.NDArray[np.generic]) -> Codes:
        if values.dtype.kind == "f":
            return np.searchsorted(np.array(self.edges, np.float64), values, side="right")
        limits = np.iinfo(np.int64)  # whole numbers reach an edge where they reach the next whole number
        whole = [min(max(math.ceil(edge), limits.min), limits.max) for edge in self.edges]
        return np.searchsorted(np.array(whole, np.int64), values, side="right")

    def _check(self) -> None:
        if not self.name:
            raise ConfigError("A column that is counted has a name", self.name)
        if bool(self.levels) is bool(self.edges):
            raise ConfigError(f"Column {self.name!r} has either levels or edges", "both" if self.edges else "neither")
        if len({_key(level) for level in self.levels}) < len(self.levels):
            raise ConfigError(
                f"Column {self.name!r} has each level once", len(self.levels), "Remove the repeated ones."
            )
        finite = all(math.isfinite(edge) for edge in self.edges)
        if not finite or any(low >= high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ConfigError(f"The edges of column {self.name!r} are finite and rise", self.edges, "Sort them.")
        if self.edges and self.others:
            raise ConfigError(f"Bins of column {self.name!r} hold all numbers", "others", "Leave it out.")


def crossed(codes: Sequence[Codes], sizes: Sequence[int]) -> Codes:
    """Columns of one silo as one: each row's cell of their table, (N,)."""
    return np.ravel_multi_index(tuple(codes), tuple(sizes)).astype(np.int64)


def _key(level: str | int | float | bool) -> tuple[bool, str | int | float]:
    """Python takes True for 1; a table does not."""
    return isinstance(level, bool), level
