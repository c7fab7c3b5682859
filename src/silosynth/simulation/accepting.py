"""Rows that a predicate accepts, from batches that are drawn until there are enough, or until it would take too many.

It is what stands between a generator and whoever wants some of its rows only: those that fulfil conditions, or rules
across silos. Columns that stay in their silo stay there: a silo says of each row whether it accepts it, and keeps those
that all silos accept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from silosynth.core.conversation import Progress
from silosynth.core.errors import ConfigError
from silosynth.core.schema import Table

Parts = Mapping[str, Table]
"""Synthetic columns of the same rows, by silo."""

BATCH = 16_384  # rows of a batch, at most
LEAST = 1024  # rows of a batch, of generators that take no less time for fewer
FIRST_TRIES = 200_000  # rows that may be drawn, however few are wanted
TRIES = 1000  # further ones for each row wanted: enough where one row in 1000 is accepted


class SampleBatch(NamedTuple):
    """Synthetic rows that are drawn at a time: the batch's number, its first row (both from 0), and its size."""

    number: int
    first: int
    rows: int


class Accepting:
    """Which batches to draw until enough rows are accepted, and which rows of each to take.

    Args:
        rows: how many rows are wanted.
        what: what rows must be to be accepted, for errors: "fulfils the conditions".
        largest, least: rows of a batch.
        tries: rows that may be drawn for each that is wanted, beside `FIRST_TRIES`.
        watch: is told how many rows are accepted, and the rate.
    """

    def __init__(
        self, rows: int, what: str, *, largest: int, least: int = LEAST, tries: int = TRIES,
        watch: Callable[[Progress], None] | None = None,
    ) -> None:  # fmt: skip
        self.rows, self._what, self._largest, self._least, self._watch = rows, what, largest, least, watch
        self._most = FIRST_TRIES + tries * rows
        self._drawn = self._found = 0

    def batches(self) -> Iterator[SampleBatch]:
        """The batches; `taken` is told of each, before the next, which of its rows are accepted.

        Raises:
            ConfigError: so few rows are accepted that it would take more; says the rate, as soon as that is clear.
        """
        number = 0
        while self._found < self.rows:
            if self._drawn:
                _check_rate(self._found, self._drawn, self.rows, self._most, self._what)
            size = min(self._largest, max(self._least, _expected(self.rows, self._found, self._drawn)))
            batch = SampleBatch(number, self._drawn, size)
            number, self._drawn = number + 1, self._drawn + size
            yield batch

    def taken(self, accepted_N: Tensor) -> Tensor:
        """The places of those rows of the last batch that are taken, in order, given which (N,) are accepted."""
        kept = accepted_N.nonzero().flatten()
        taken = kept[: self.rows - self._found]
        self._found += len(kept)
        if self._watch is not None:
            self._watch(self.progress)
        return taken

    @property
    def progress(self) -> Progress:
        """How many rows are accepted so far, and the rate."""
        figures = {"rate": self._found / max(1, self._drawn)}
        return Progress("accepted rows", min(self._found, self.rows), self.rows, figures)


def accepted(
    draw: Callable[[SampleBatch], Parts], rows: int, accepts: Callable[[Parts], Tensor], what: str, **bounds: Any
) -> Iterator[dict[str, Table]]:
    """``rows`` accepted rows, batch by batch, in the order in which they are drawn.

    Args:
        draw: draws a batch.
        accepts: which rows (N,) bool of a batch are accepted.
        rows, what, bounds: see `Accepting`, which raises.
    """
    accepting = Accepting(rows, what, **bounds)
    for batch in accepting.batches():
        parts = draw(batch)
        taken = accepting.taken(accepts(parts))
        if len(taken):
            yield {silo: table.take(taken) for silo, table in parts.items()}


def _expected(rows: int, found: int, drawn: int) -> int:
    """How many rows of the next batch will do, by the rate so far; at first, some more than are wanted."""
    return math.ceil(1.2 * (rows - found) * (drawn + 1) / (found + 1)) if drawn else math.ceil(1.05 * rows) + 8


def _check_rate(found: int, drawn: int, rows: int, most: int, what: str) -> None:
    """Stop if even a rate three standard deviations above the one seen would take more than ``most`` rows."""
    likely = found + 3 * math.sqrt(found) + 3
    if drawn >= most or rows * drawn > most * likely:
        seen = f"{found:,} of {drawn:,} rows drawn"
        raise ConfigError(
            f"So few rows are accepted that {rows:,} would take too long: a row is accepted if it {what}", seen,
            "Want fewer rows, ask for something more frequent, or allow more with tries=….",
        )  # fmt: skip


def where_all(parts: Parts, accepts: Callable[[Table], Tensor]) -> Tensor:
    """Which rows (N,) bool all silos accept, each by its own columns."""
    return torch.stack([accepts(table) for table in parts.values()]).all(dim=0)
