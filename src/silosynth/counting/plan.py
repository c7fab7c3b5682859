"""What is counted, and what follows from that for every party: whose columns, how many flags, who hides from whom.

A *factor* is what one silo brings to a table: one of its columns, or several, crossed. A silo's *flags* are a matrix
with a row for each of its rows and a column for each level of each of its factors: 1 where the row is on that level.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from silosynth.core.errors import ConfigError
from silosynth.core.messages import Positive, Struct
from silosynth.counting.levels import CountedColumn
from silosynth.counting.products import ROWS, WIDTHS, AnyWords
from silosynth.privacy.sealed import derive, framed

Bits: TypeAlias = Literal[16, 32, 64]
SILOS = 3  # most in a set
FLAGS = 1 << 16  # most of a silo
CELLS = 1 << 24  # most of all tables together, and of the product of two silos' flags
WORDS = 1 << 22  # of a matrix that is hidden or multiplied at a time, if that is at least a row
MULTIPLE = 1024  # what numbers of rows are rounded up to
_LABEL = "silosynth counting 1"


class CountRequest(Struct):
    """What is counted; all silos get the same.

    Attributes:
        silos: all silos, in the order of the roster.
        columns: columns and their levels.
        sets: the columns of each table, by their places in ``columns``.
        rows: rounded up, so that exact numbers of rows stay secret (`padded`): no silo holds more.
        bits: k; shares are modulo 2^k.
        block: most rows that are hidden at a time; fewer where a row has many flags.
        dealer: the party that deals, of ``silos``, which holds no column; empty for the coordinator.

    Raises:
        ConfigError: a set is empty, repeats a column, or names one that is not there; its columns are in more than
            three silos; ``bits`` are too few for counts of so many rows; or tables are too large.
    """

    silos: tuple[str, ...]
    columns: tuple[CountedColumn, ...]
    sets: tuple[tuple[int, ...], ...]
    rows: Positive[int]
    bits: Bits
    block: Positive[int] = ROWS
    dealer: str = ""

    @property
    def horizontal(self) -> bool:
        """Whether every silo has all columns, with rows of its own."""
        return not any(column.silo for column in self.columns)

    def shape(self, number: int) -> tuple[int, ...]:
        """Numbers of levels of a set's columns, in its own order."""
        return tuple(self.columns[place].size for place in self.sets[number])

    def digest(self) -> str:
        """A hash of all of it, by which silos notice that they were asked for different tables."""
        return hashlib.sha256(framed(_LABEL, repr(self))).hexdigest()

    def _check(self) -> None:
        if not self.sets or not self.silos or len(set(self.silos)) < len(self.silos):
            raise ConfigError("At least one set is counted, in silos of different names", self.silos)
        owners = {column.silo for column in self.columns}
        if not (owners <= set(self.silos) or owners == {""}):
            raise ConfigError("Columns are in silos that take part; or all are in every silo", sorted(owners))
        if self.dealer and (self.dealer in owners or self.dealer not in self.silos or owners == {""}):
            rule = "A party that deals takes part, and holds no column that is counted"
            raise ConfigError(rule, self.dealer, "Name another one, or none, if all silos hold the same columns.")
        for places in self.sets:
            self._check_set(places)
        if self.rows >= 1 << self.bits:
            raise ConfigError(f"Counts modulo 2^{self.bits} are of fewer rows", self.rows, "Ask for more bits.")
        if self.block > 1 << 20:
            raise ConfigError("A block has at most 2^20 rows", self.block, "Hide fewer rows at a time.")
        if (cells := sum(math.prod(self.shape(number)) for number in range(len(self.sets)))) > CELLS:
            raise ConfigError(f"All tables together have at most {CELLS} cells", cells, "Ask for fewer, or cross less.")
        plan = Plan(self)
        if (flags := max(map(plan.width, self.silos))) > FLAGS:
            raise ConfigError(f"A silo hides at most {FLAGS} levels", flags, "Ask for fewer sets at a time.")
        if (product := max((plan.width(a) * plan.width(b) for a, b in plan.pairs), default=0)) > CELLS:
            rule = f"The levels that two silos hide make at most {CELLS} cells"
            raise ConfigError(rule, product, "Ask for fewer sets at a time.")

    def _check_set(self, places: tuple[int, ...]) -> None:
        known = all(0 <= place < len(self.columns) for place in places)
        if not places or not known or len(set(places)) < len(places):
            raise ConfigError("A set names columns by their places, each once", places)
        if len({self.columns[place].silo for place in places}) > SILOS:
            raise ConfigError(f"The columns of a set are in at most {SILOS} silos", places, "Leave some out.")

    def size(self, factor: Factor) -> int:
        """How many levels a factor has."""
        return math.prod(self.columns[place].size for place in factor)


Factor: TypeAlias = "tuple[int, ...]"
"""Columns of one silo, by their places in the request."""


@dataclass(frozen=True)
class Plan:
    """What follows from a request; the same for all parties."""

    request: CountRequest

    @cached_property
    def parts(self) -> tuple[dict[str, Factor], ...]:
        """The factors of each set by silo, in the order of the roster; one of "" where every silo has all columns."""
        order = {silo: place for place, silo in enumerate(("", *self.request.silos))}
        found = []
        for places in self.request.sets:
            owners = sorted({self.request.columns[place].silo for place in places}, key=order.__getitem__)
            found.append({s: tuple(p for p in places if self.request.columns[p].silo == s) for s in owners})
        return tuple(found)

    @cached_property
    def factors(self) -> dict[str, tuple[Factor, ...]]:
        """Each silo's factors of sets across silos: those that its flags are of. None of silos without such sets."""
        found: dict[str, dict[Factor, None]] = {}
        for parts in self.parts:
            for silo, factor in parts.items() if len(parts) > 1 else ():
                found.setdefault(silo, {})[factor] = None
        return {silo: tuple(found[silo]) for silo in self.request.silos if silo in found}

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs of silos with a set of their own, in the order of the roster."""
        return tuple({tuple(parts): None for parts in self.parts if len(parts) == 2})  # type: ignore[misc]

    @cached_property
    def triples(self) -> tuple[int, ...]:
        """The sets of three silos."""
        return tuple(number for number, parts in enumerate(self.parts) if len(parts) == 3)

    def peers(self, silo: str) -> tuple[str, ...]:
        """The silos with which one shares sets, in the order of the roster: those that get its hidden flags."""
        found = {other for parts in self.parts if silo in parts for other in parts} - {silo}
        return tuple(other for other in self.request.silos if other in found)

    def width(self, silo: str) -> int:
        """How many flags a row of a silo has."""
        return sum(map(self.request.size, self.factors.get(silo, ())))

    def place(self, silo: str, factor: Factor) -> slice:
        """Where a factor's flags are among its silo's."""
        sizes = list(map(self.request.size, self.factors[silo]))
        number = self.factors[silo].index(factor)
        return slice(sum(sizes[:number]), sum(sizes[: number + 1]))

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """Rows that are hidden together."""
        rows, block = self.request.rows, min(self.request.block, max(1, WORDS // self._widest))
        return tuple(slice(start, min(start + block, rows)) for start in range(0, rows, block))

    @property
    def _widest(self) -> int:
        """Columns of the widest matrix with a row for each row: flags, or products of those of two factors."""
        products = (
            self.request.size(left) * self.request.size(right)
            for number in self.triples
            for left, right in itertools.combinations(self.parts[number].values(), 2)
        )
        return max([*map(self.width, self.factors), *products], default=1)

    def zeros(self, rows: int, columns: int) -> AnyWords:
        """Words of the request's width."""
        return np.zeros((rows, columns), WIDTHS[self.request.bits])

    def arranged(self, number: int, cells: AnyWords) -> AnyWords:
        """A set's table with its columns in the set's own order, from one whose columns are ordered by silo."""
        by_silo = list(itertools.chain(*self.parts[number].values()))
        table = cells.reshape([self.request.columns[place].size for place in by_silo])
        return np.ascontiguousarray(table.transpose([by_silo.index(p) for p in self.request.sets[number]]))


def padded(rows: int, multiple: int = MULTIPLE) -> int:
    """A public bound of a number of rows: the next multiple."""
    return max(1, -(-rows // multiple)) * multiple


def bits_for(rows: int) -> Bits:
    """The fewest bits that hold counts of so many rows; it takes more to sum squares of counts."""
    return 16 if rows < 1 << 16 else 32 if rows < 1 << 32 else 64


def dealt_key(seed: bytes, nonce: bytes, *what: str) -> bytes:
    """The key of something that the dealer deals to one silo, which both derive.

    Args:
        seed: the dealer's, 32 bytes.
        nonce: the silo's, 32 bytes, new in each counting: so that no random matrix ever hides two others, whatever
            seeds the dealer sends.
        what: names it.
    """
    return derive(seed + nonce, framed(_LABEL, *what))


def pad_name(block: int) -> tuple[str, str]:
    """Of the random matrix that hides a silo's flags of one block."""
    return "flags", str(block)


def pair_name(peer: str) -> tuple[str, str]:
    """Of the first silo's share of a product of two such matrices, the other one's being that of ``peer``."""
    return "pair", peer


def rows_name(number: int, peer: str, block: int) -> tuple[str, str, str, str]:
    """Of the first silo's share of the products, row by row, of two factors of a set of three silos."""
    return "rows", str(number), peer, str(block)


def triple_name(number: int) -> tuple[str, str]:
    """Of the first silo's share of the product of all three random matrices of a set."""
    return "triple", str(number)
