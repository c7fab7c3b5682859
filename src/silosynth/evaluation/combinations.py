"""Rules: those that were declared, and those that training rows keep; and how often other rows break them.

Found in the training rows alone, whether or not a rule was declared, within silos and across them:

- a *dependency*: all rows with the same value of one column have the same value of the other. A row breaks it whose
  first value is known from training, and whose second is another than there.
- *pairs that never occur*: no training row holds these two levels, though at least `EXPECTED` would if the columns were
  independent.
- inequalities, sums, columns that are missing together, and keys: see `silosynth.evaluation.proposals`.

All may be broken by real rows too: beside each rate stands that of the hold-out. All rows of all tables are counted.
Columns of many values, most numbers among them, take no part in dependencies and pairs.

Shapes: n rows; K values of a column, L of another.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from silosynth.core.rules import FixedCombination, Rule, combined, values_of
from silosynth.core.schema import Schema, Table
from silosynth.encoders.combinations import EXPECTED, believable
from silosynth.evaluation import svg
from silosynth.evaluation.coding import Coded
from silosynth.evaluation.proposals import propose
from silosynth.evaluation.scores import Floats, Ints

MOST_COLUMNS = 200  # of wider tables, the first ones are looked at
MOST_VALUES = 1000  # of a column that takes part
MOST_CELLS = 1 << 16  # of the table of two columns in which pairs that never occur are looked for
LEAST_ROWS = 5  # of a value on average, in a column that takes part
_PROBE = 500  # rows that most pairs of columns are told apart by
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Combination:
    """A rule about columns that training rows keep, or that was declared, and how often other rows break it.

    Attributes:
        first, second: the columns; ``first`` determines ``second`` where it is a dependency. Of more than two columns,
            ``second`` names all but the first.
        kind: "dependency", "pairs", or the kind of a rule: see the module's docstring.
        across: whether two silos hold them; None without silos.
        rate: share of synthetic rows that break it.
        holdout: share of hold-out rows that break it; None without.
        examples: the most frequent of the synthetic pairs that training rows never hold.
        declared: whether it was declared; others were found.
        rule: in words, but for dependencies and pairs.
    """

    first: str
    second: str
    kind: str
    across: bool | None
    rate: float
    holdout: float | None
    examples: tuple[str, ...] = ()
    declared: bool = False
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Combinations:
    """All that was found.

    Attributes:
        found: declared rules; those that training rows keep; and pairs of columns that synthetic or hold-out rows
            break. The most broken first.
        rate, holdout: shares of synthetic and hold-out rows that break at least one.
        columns: number of columns looked at.
    """

    found: tuple[Combination, ...] = ()
    rate: float = 0.0
    holdout: float | None = None
    columns: int = 0


@dataclass(frozen=True, slots=True)
class RuledRows:
    """Rules, and the rows that are held to them.

    Attributes:
        declared, found: rules that were declared, and that training rows keep.
        tables: training, synthetic, and perhaps hold-out rows.
    """

    declared: tuple[Rule, ...]
    found: tuple[Rule, ...]
    tables: tuple[Table, ...]


def ruled_rows(tables: Sequence[tuple[Table, Schema]], declared: Sequence[Rule]) -> RuledRows:
    """Declared rules, and those that the first table keeps; of learnt combinations, those that it holds."""
    train, schema = tables[0]
    plain = [{column.name: column.levels is None for column in table.columns} for table, _ in tables]
    alike = {name for name in plain[0] if all(own.get(name) is plain[0][name] for own in plain)}
    learnt = [
        replace(rule, allowed=tuple(tuple(values_of(key)) for key in _held(train, rule)), learn=False)
        if isinstance(rule, FixedCombination) and rule.learn
        else rule
        for rule in declared
        if alike.issuperset(rule.named)
    ]
    known = {(rule.KIND, rule.named) for rule in learnt}
    found = propose(train.select([name for name in train.names if name in alike]), schema, dependencies=False)
    others = [rule for rule in found if (rule.KIND, rule.named) not in known]
    return RuledRows(tuple(learnt), tuple(others), tuple(table for table, _ in tables))


def _held(train: Table, rule: FixedCombination) -> list[str]:
    return combined([train[name] for name in rule.columns])[0]


def find(
    train: Coded,
    holdout: Coded | None,
    synthetic: Coded,
    owners: Sequence[str | None] | None = None,
    ruled: RuledRows | None = None,
) -> Combinations:
    """Find what training rows never hold, and how often the others do; list it with other rules.

    ``owners``: each column's silo.
    """
    tables = [train, synthetic] + ([] if holdout is None else [holdout])
    known = {j: _known(train, j) for j in range(len(train.fields))}
    taken = [j for j, own in known.items() if 1 < len(own) <= min(MOST_VALUES, len(train) // LEAST_ROWS)][:MOST_COLUMNS]
    columns = {j: [_codes(known[j], table.values[j]) for table in tables] for j in taken}
    labels = {j: _labels(train, j, known[j]) for j in taken}
    broken = [np.zeros(len(table), bool) for table in tables]
    found = []
    for rule in _rules({j: own[0] for j, own in columns.items()}):
        hits = [_breaks(rule, *(columns[j][t] for j in rule.pair)) for t in range(len(tables))]
        broken = [before | own for before, own in zip(broken, hits, strict=True)]
        if rule.kind == "dependency" or any(own.any() for own in hits[1:]):
            found.append(_combination(rule, train, hits, columns, labels, owners))
    if ruled is not None:
        held = [set(rule.named) for rule in ruled.declared]
        found = [one for one in found if not any({one.first, one.second} <= names for names in held)]
        for one in (*ruled.declared, *ruled.found):
            hits = [one.broken(table).numpy() for table in ruled.tables]
            broken = [before | own for before, own in zip(broken, hits, strict=True)]
            found.append(_listed(one, one in ruled.declared, hits, train, owners))
    found.sort(key=lambda one: (-one.rate, one.kind, one.first, one.second))
    shares = [_share(own) for own in broken]
    return Combinations(tuple(found), shares[1], shares[2] if holdout is not None else None, len(taken))


@dataclass(frozen=True, slots=True)
class _Rule:
    """Pairs (K, L) of values that rows may hold.

    Of a first value that is unknown in training nothing is said; a second one breaks dependencies alone.
    """

    pair: tuple[int, int]
    kind: Literal["dependency", "pairs"]
    allowed: NDArray[np.bool_]


def _known(train: Coded, j: int) -> NDArray[np.generic]:
    """The training table's values of a column, increasing; NaN, which is missing, comes last, once."""
    values = train.values[j]
    return np.unique(pd.unique(values)) if not train.fields[j].categorical else np.flatnonzero(np.bincount(values))


def _codes(known: NDArray[np.generic], values: NDArray[np.generic]) -> Ints:
    """Values (n,) as numbers of the K that are known; K for others."""
    places = pd.Index(known).get_indexer(pd.Index(values))
    return np.where(places < 0, len(known), places).astype(np.int64)


def _labels(train: Coded, j: int, known: NDArray[np.generic]) -> list[str]:
    """Names of the training table's values, in the order of their codes."""
    field = train.fields[j]
    if field.categorical:
        return [(*field.levels, "(missing)")[int(code)] for code in known]
    return ["(missing)" if np.isnan(value) else svg.value_label(field.kind, value) for value in known.tolist()]


def _rules(codes: dict[int, Ints]) -> list[_Rule]:
    """Dependencies of the training table's columns; then pairs that never occur, where neither depends on the other.

    What two columns that determine each other say of a third is listed for the first of them.
    """
    dependencies, apart, alike = list[_Rule](), list[tuple[int, int]](), set[int]()
    for a, b in itertools.combinations(codes, 2):
        sizes = int(codes[a].max()), int(codes[b].max())
        rule = _dependency(codes, *((a, b) if sizes[0] >= sizes[1] else (b, a)))
        if rule is None:
            apart.append((a, b))
        else:
            dependencies.append(rule)
            alike |= {b} if sizes[0] == sizes[1] else set()
    pairs = [_never(codes, a, b) for a, b in apart if not {a, b} & alike]
    return [*dependencies, *(rule for rule in pairs if rule is not None)]


def _dependency(codes: dict[int, Ints], a: int, b: int) -> _Rule | None:
    first, second = codes[a], codes[b]
    value_K = np.zeros(int(first.max()) + 1, np.int64)
    for rows in (slice(_PROBE), slice(None)):
        value_K[first[rows]] = second[rows]
        if (value_K[first[rows]] != second[rows]).any():
            return None
    if not believable(torch.from_numpy(second), len(value_K)):
        return None
    return _Rule((a, b), "dependency", value_K[:, None] == np.arange(int(second.max()) + 1))


def _never(codes: dict[int, Ints], a: int, b: int) -> _Rule | None:
    first, second = codes[a], codes[b]
    sizes = int(first.max()) + 1, int(second.max()) + 1
    if sizes[0] * sizes[1] > MOST_CELLS:
        return None
    counts = np.bincount(first * sizes[1] + second, minlength=sizes[0] * sizes[1]).reshape(sizes)
    expected: Floats = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / len(first)
    never = (counts == 0) & (expected >= EXPECTED)
    return _Rule((a, b), "pairs", ~never) if never.any() else None


def _breaks(rule: _Rule, first: Ints, second: Ints) -> NDArray[np.bool_]:
    """Which rows (n,) break a rule."""
    wide = np.pad(rule.allowed, ((0, 1), (0, 1)), constant_values=True)
    wide[:-1, -1] = rule.kind != "dependency"
    return ~wide[first, second]


def _combination(
    rule: _Rule, train: Coded, hits: Sequence[NDArray[np.bool_]], columns: dict[int, list[Ints]],
    labels: dict[int, list[str]], owners: Sequence[str | None] | None,
) -> Combination:  # fmt: skip
    a, b = rule.pair
    pairs = np.stack([columns[a][1], columns[b][1]], 1)[hits[1]]
    distinct, counts = np.unique(pairs, axis=0, return_counts=True)
    worst = distinct[np.argsort(-counts, kind="stable")[:_EXAMPLES]].tolist()
    examples = tuple(f"{labels[a][k]} with {(*labels[b], 'another')[m]}" for k, m in worst)
    across = None if owners is None or None in (owners[a], owners[b]) else owners[a] != owners[b]
    names = [train.fields[j].name for j in rule.pair]
    holdout = _share(hits[2]) if len(hits) > 2 else None
    return Combination(names[0], names[1], rule.kind, across, _share(hits[1]), holdout, examples)


def _listed(
    rule: Rule, declared: bool, hits: Sequence[NDArray[np.bool_]], train: Coded, owners: Sequence[str | None] | None
) -> Combination:
    owner = dict(zip((field.name for field in train.fields), owners or (), strict=False))
    silos = {owner.get(name) for name in rule.named}
    across = None if None in silos else len(silos) > 1
    first, *others = rule.named
    holdout = _share(hits[2]) if len(hits) > 2 else None
    words, rate = rule.in_words, _share(hits[1])
    return Combination(first, ", ".join(others), rule.KIND, across, rate, holdout, declared=declared, rule=words)


def _share(rows: NDArray[np.bool_]) -> float:
    return float(rows.mean()) if len(rows) else 0.0
