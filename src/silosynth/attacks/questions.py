"""Singling out, linkability and attribute inference from a synthetic table (Giomi et al. 2023).

Each attacker guesses about training rows (*attack*), about as many rows that were not trained on (*control*), and
without looking at the synthetic table (*guess*). What it learns about the population helps with both; the risk is what
is left: (attack - control) / (1 - control). Rates have Wilson intervals, the risk that of the rates' errors propagated.

Legend: Q rows asked about, S synthetic rows, K nearest ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from silosynth.attacks.findings import GROUP, Bools, Finding, wilson
from silosynth.core.errors import DataError
from silosynth.core.schema import Schema
from silosynth.core.streams import Streams
from silosynth.evaluation.coding import Coded, code_tables
from silosynth.evaluation.scores import Floats, Ints, Score

QUESTIONS = 1000  # guesses of each attack, at most
TRIES = 100_000  # conditions of several columns that are read off synthetic rows, at most
LOOKED_AT, LEAST_TRIES = 5_000_000_000, 4_000  # rows that all tries may look at; of longer tables still so many tries
COLUMNS = 4  # that a predicate of several columns is about
TOLERANCE = 0.05  # of a number's size: a guess so near counts as right
CELLS = 200_000  # distances held at a time: as many as a core's own cache takes
METHOD = "95 % interval from the Wilson intervals of attack and control"


@dataclass(frozen=True)
class Rate:
    """A share of right guesses as Wilson estimates it, the middle of his interval; all between 0 and 1."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, right: Bools) -> Rate:
        """Of these guesses: a little nearer to one half than the plain share."""
        low, high = wilson(int(right.sum()), len(right))
        return cls((low + high) / 2, low, high)

    @property
    def error(self) -> float:
        """Half the interval."""
        return (self.high - self.low) / 2


def risk(attack: Rate, control: Rate) -> Rate:
    """What an attacker learns about training rows beyond what it learns about others; at least 0."""
    rest = max(1 - control.value, 1e-12)
    value = (attack.value - control.value) / rest
    error = math.hypot(attack.error / rest, (attack.value - 1) / rest**2 * control.error)
    low, high = (min(1.0, max(0.0, value + side * error)) for side in (-1, 1))
    return Rate(min(1.0, max(0.0, value)), low, high)


def ask(
    train: pd.DataFrame,
    control: pd.DataFrame,
    synthetic: pd.DataFrame,
    seed: int = 0,
    silos: Sequence[Sequence[str]] | None = None,
    neighbours: int = 1,
    schema: Schema | None = None,
) -> list[Finding]:
    """All three risks; attribute inference for each column as the secret, with all others known.

    Args:
        train: the training rows.
        control: rows of the same population that were not trained on.
        synthetic: the synthetic table.
        seed: of the rows asked about, and of random guesses.
        silos: columns that linking is about, two groups; None for the first and the second half of all columns.
        neighbours: how many nearest synthetic rows linking looks at.
        schema: of the training rows; None infers it.

    Raises:
        DataError: a table is empty, columns differ, or there is a single column.
    """  # fmt: skip
    coded = code_tables({"train": train, "control": control, "synthetic": synthetic}, schema)
    if len(coded["train"].fields) < 2:
        raise DataError("These attacks need two columns at least", len(coded["train"].fields))
    streams = Streams(seed).child("questions")
    tables = (coded["train"], coded["control"], coded["synthetic"])
    groups = _groups([field.name for field in tables[0].fields], silos)
    return [
        singling_out(*tables, streams.child("singling"), one_column=True),
        singling_out(*tables, streams.child("singling together"), one_column=False),
        linkability(*tables, *groups, neighbours, streams.child("linking")),
        *(inference(*tables, j, streams.child("inference", j)) for j in range(len(tables[0].fields))),
    ]


def _groups(names: Sequence[str], silos: Sequence[Sequence[str]] | None) -> tuple[Ints, Ints]:
    """Positions of the two groups of columns."""
    if silos is None or len(silos) < 2:
        half = np.arange(len(names))
        return half[: len(names) // 2], half[len(names) // 2 :]
    first, *others = ([names.index(name) for name in group if name in names] for group in silos)
    return np.array(first, np.int64), np.array([j for other in others for j in other], np.int64)


# Singling out: predicates that a single row fulfils


@dataclass(frozen=True, eq=False)
class _Clause:
    """A condition on one column: a code or number it equals, is at most, or is at least."""

    column: int
    sign: int  # 0: equals, -1: at most, 1: at least
    value: float

    def holds(self, values: Floats) -> Bools:
        """Of these values of the column; missing numbers fulfil nothing."""
        if self.sign == 0:
            return np.asarray(values == self.value)
        return np.asarray(values >= self.value if self.sign > 0 else values <= self.value)


_Predicate = tuple[_Clause, ...]


class _Sorted:
    """A table with the order of each column, in which the rows that fulfil a clause lie beside each other."""

    def __init__(self, table: Coded) -> None:
        self.values = table.values
        self._orders: dict[int, tuple[Ints, Floats]] = {}

    def order(self, column: int) -> tuple[Ints, Floats]:
        """Positions of a column's values by size, and these values; without missing numbers."""
        if column not in self._orders:
            values = self.values[column]
            places = np.argsort(values, kind="stable")[: len(values) - int(np.isnan(values).sum())]
            # codes as well: a number that is sought among others of its kind is found without converting these
            self._orders[column] = places, values[places].astype(np.float64)
        return self._orders[column]

    def rows(self, clause: _Clause) -> Ints:
        """Positions of those that fulfil it."""
        places, present = self.order(clause.column)
        first = 0 if clause.sign < 0 else present.searchsorted(clause.value, "left")
        last = len(present) if clause.sign > 0 else present.searchsorted(clause.value, "right")
        return places[first:last]

    def alone(self, predicate: _Predicate) -> bool:
        """Whether a single row fulfils it: looked for among those of the clause that the fewest fulfil."""
        fulfil = {clause: self.rows(clause) for clause in predicate}
        rows = fulfil.pop(min(fulfil, key=lambda clause: len(fulfil[clause])))
        for clause in fulfil:
            rows = rows[clause.holds(self.values[clause.column][rows])]
        return len(rows) == 1

    def isolated(self, predicates: Sequence[_Predicate]) -> Bools:
        """Of each whether a single row fulfils it."""
        return np.array([self.alone(predicate) for predicate in predicates], dtype=bool)


def singling_out(train: Coded, control: Coded, synthetic: Coded, streams: Streams, one_column: bool) -> Finding:
    """How many predicates that a single synthetic row fulfils are fulfilled by a single training row."""
    draw = streams.numpy()
    size = min(len(train), len(control))
    known, other = _Sorted(train.sample(size, draw)), _Sorted(control.sample(size, draw))
    predicates = _outermost(synthetic, draw) if one_column else _together(synthetic, draw)
    blind = [_blind(synthetic, 1 if one_column else COLUMNS, draw) for _ in predicates]
    name = "singling_out_univariate" if one_column else "singling_out_multivariate"
    scope = "one column" if one_column else f"{min(COLUMNS, len(train.fields))} columns"
    return _finding(
        name, f"Singling out, {scope}", known.isolated(predicates), other.isolated(predicates), known.isolated(blind),
        "How many conditions read off the synthetic table fit exactly one training row.",
    )  # fmt: skip


def _outermost(synthetic: Coded, draw: np.random.Generator) -> list[_Predicate]:
    """Levels and numbers that a single synthetic row has, and the ends of numeric columns."""
    predicates: list[_Predicate] = []
    for j, field in enumerate(synthetic.fields):
        present = synthetic.values[j][~np.isnan(synthetic.values[j])]
        levels, counts = np.unique(present, return_counts=True)
        predicates += [(_Clause(j, 0, level),) for level in levels[counts == 1].tolist()]
        if len(levels) and not field.categorical:
            predicates += [(_Clause(j, -1, float(levels[0])),), (_Clause(j, 1, float(levels[-1])),)]
    return [predicates[i] for i in draw.permutation(len(predicates))[:QUESTIONS]]


def _together(synthetic: Coded, draw: np.random.Generator) -> list[_Predicate]:
    """Rows' own levels, and numbers as bounds away from the median, in some columns; those that fit one row alone.

    Of a long table of few levels few do, so that many are tried: rows and columns are drawn until there are enough
    guesses, none are left, or `TRIES` or `LOOKED_AT` are used up.
    """
    table, count, width = _Sorted(synthetic), len(synthetic), len(synthetic.fields)
    medians = [math.nan if field.categorical else _median(table, j) for j, field in enumerate(synthetic.fields)]
    every = count * math.comb(width, min(COLUMNS, width))
    tried, guesses = set[tuple[int, ...]](), dict[tuple[Any, ...], _Predicate | None]()
    found = 0
    for _ in range(min(TRIES, max(LEAST_TRIES, LOOKED_AT // count))):
        row = int(draw.integers(count))
        columns = np.sort(draw.permutation(width)[:COLUMNS]).tolist()
        tried.add((row, *columns))
        predicate = tuple(clause for j in columns if (clause := _of_row(synthetic, j, row, medians[j])))
        key = tuple((clause.column, clause.sign, clause.value) for clause in predicate)
        if predicate and key not in guesses:
            guesses[key] = predicate if table.alone(predicate) else None
            found += guesses[key] is not None
        if found == QUESTIONS or len(tried) == every:
            break
    return [predicate for predicate in guesses.values() if predicate]


def _median(table: _Sorted, column: int) -> float:
    _, present = table.order(column)
    return float(np.median(present)) if len(present) else math.nan


def _of_row(table: Coded, j: int, row: int, median: float) -> _Clause | None:
    value = float(table.values[j][row])
    if table.fields[j].categorical:
        return _Clause(j, 0, value)
    return None if math.isnan(value) else _Clause(j, 1 if value > median else -1, value)


def _blind(table: Coded, columns: int, draw: np.random.Generator) -> _Predicate:
    """A condition that knows no more than the columns' ranges and levels."""
    chosen = draw.permutation(len(table.fields))[:columns]
    return tuple(_anywhere(table, int(j), draw) for j in chosen)


def _anywhere(table: Coded, j: int, draw: np.random.Generator) -> _Clause:
    field, values = table.fields[j], table.values[j]
    if field.categorical:
        return _Clause(j, 0, float(draw.integers(max(1, len(field.levels)))))
    present = values[~np.isnan(values)]
    low, high = (present.min(), present.max()) if len(present) else (0.0, 0.0)
    return _Clause(j, int(draw.choice([-1, 1])), float(draw.uniform(low, high)))


# Linkability: two parts of a row lead to the same synthetic row


def linkability(
    train: Coded, control: Coded, synthetic: Coded, first: Ints, second: Ints, neighbours: int, streams: Streams
) -> Finding:
    """For how many rows the two parts have a nearest synthetic row in common."""
    draw = streams.numpy()
    size = min(len(train), len(control), QUESTIONS)

    def linked(table: Coded) -> Bools:
        rows = table.sample(size, draw)
        return _meet(_nearest(rows, synthetic, first, neighbours), _nearest(rows, synthetic, second, neighbours))

    k = min(neighbours, len(synthetic))
    blind = _meet(*(np.stack([draw.permutation(len(synthetic))[:k] for _ in range(size)]) for _ in range(2)))
    text = "How often two silos' parts of a row lead to the same synthetic row."
    return _finding("linkability", "Linkability", linked(train), linked(control), blind, text)


def _meet(a_QK: Ints, b_QK: Ints) -> Bools:
    return np.asarray((a_QK[:, :, None] == b_QK[:, None, :]).any(axis=(1, 2)))


# Attribute inference: the nearest synthetic row tells a secret


def inference(train: Coded, control: Coded, synthetic: Coded, secret: int, streams: Streams) -> Finding:
    """How often the nearest synthetic row, by all columns but the secret, has the secret's value."""
    draw = streams.numpy()
    size = min(len(train), len(control), QUESTIONS)
    known = np.array([j for j in range(len(train.fields)) if j != secret])

    def guessed(table: Coded) -> tuple[Bools, Coded]:
        rows = table.sample(size, draw)
        return _right(synthetic, _nearest(rows, synthetic, known, 1)[:, 0], rows, secret), rows

    (hits, rows), (control_hits, _) = guessed(train), guessed(control)
    blind = _right(synthetic, draw.integers(len(synthetic), size=size), rows, secret)
    name = train.fields[secret].name
    text = "How often the synthetic row nearest in all other columns has a row's value of this one."
    return _finding(f"inference_{name}", f"Inference of {name}", hits, control_hits, blind, text)


def _right(synthetic: Coded, guess_Q: Ints, rows: Coded, secret: int) -> Bools:
    guess, truth = synthetic.values[secret][guess_Q], rows.values[secret]
    if rows.fields[secret].categorical:
        return np.asarray(guess == truth)
    missing = np.isnan(guess) & np.isnan(truth)
    with np.errstate(invalid="ignore"):
        return np.asarray((np.abs(guess - truth) <= TOLERANCE * np.abs(truth)) | missing)


def _nearest(rows: Coded, synthetic: Coded, columns: Ints, k: int) -> Ints:
    """Positions (Q, K) of the nearest synthetic rows by Gower's distance over ``columns``, of equals the first."""
    parts = [_scaled(rows, synthetic, int(j)) for j in columns]
    k = min(k, len(synthetic))
    nearest_QK = np.empty((len(rows), k), np.int64)
    step = max(1, CELLS // len(synthetic))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        distance = np.zeros((len(nearest_QK[part]), len(synthetic)))
        for a, b, categorical in parts:
            distance += a[part, None] != b if categorical else _gaps(a[part], b)
        nearest_QK[part] = [_first(near, k) for near in distance]
    return nearest_QK


def _gaps(a_Q: Floats, b_S: Floats) -> Floats:
    """Absolute differences (Q, S); a missing number is as far as can be."""
    gaps = np.subtract(a_Q[:, None], b_S)
    np.abs(gaps, out=gaps)
    missing = np.isnan(a_Q).any() or np.isnan(b_S).any()
    return np.nan_to_num(gaps, copy=False, nan=1.0) if missing else gaps


def _first(distance_S: Floats, k: int) -> Ints:
    """Positions (K,) of the smallest, in order."""
    close = np.flatnonzero(distance_S <= np.partition(distance_S, k - 1)[k - 1])
    return close[np.argsort(distance_S[close], kind="stable")[:k]]


def _scaled(rows: Coded, synthetic: Coded, j: int) -> tuple[Floats, Floats, bool]:
    a, b = rows.values[j], synthetic.values[j]
    if rows.fields[j].categorical:
        return a, b, True
    both = np.concatenate([a, b])
    span = float(np.nanmax(both) - np.nanmin(both)) if not np.isnan(both).all() else 0.0
    return a / (span or 1.0), b / (span or 1.0), False


def _finding(name: str, label: str, hits: Bools, control: Bools, blind: Bools, text: str) -> Finding:
    """A risk with its three rates; 0 where no guess was made."""
    if not len(hits):
        hits = control = blind = np.zeros(1, dtype=bool)
    attack, other = Rate.of(hits), Rate.of(control)
    left = risk(attack, other)
    note = "what the rows that were not trained on give away, which the risk leaves out"
    score = Score(
        name=name, label=label, group=GROUP, value=100 * left.value, floor=0.0, floor_note=note, low=100 * left.low,
        high=100 * left.high, unit="%", better="lower", ideal=0.0, n=len(hits), explanation=text, method=METHOD,
    )  # fmt: skip
    rates = {"attack": attack, "control": other, "guess": Rate.of(blind)}
    return Finding(score, rates={key: (100 * r.value, 100 * r.low, 100 * r.high) for key, r in rates.items()})
