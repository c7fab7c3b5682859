"""Rules that all rows of a table keep, beyond what chance explains: to be declared, or counted in other rows.

Found are columns that determine others (as fixed combinations), inequalities, sums of two columns, columns that are
missing together or exactly at a level, and keys. That rows keep a rule is no proof that it is one: its owner judges
that, and whether it is public (`to_toml` writes it as she would).

A rule is believed if columns in random order would break it in at least `EXPECTED` rows; an inequality, in at least one
row in ten as well, as columns of different scales mostly lie above each other. Not proposed is what another proposal
implies. Of wide tables only the first columns are looked at (`MOST_COLUMNS`).

Shapes: n rows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from silosynth.core.rules import (
    FixedCombination,
    Inequality,
    NullTogether,
    OnBreak,
    Rule,
    Sum,
    UniqueKey,
    Value,
    combined,
    to_mapping,
    values_of,
)
from silosynth.core.schema import DURATIONS, Column, ColumnSchema, Kind, Schema, Table, modelled_columns
from silosynth.data.rules import grids
from silosynth.encoders.column import EncoderConfig
from silosynth.encoders.combinations import EXPECTED, determined_columns

MOST_COLUMNS = 40
MOST_LISTED = 200  # combinations that are written down
_OFTEN = 0.1  # share of rows at least in which an inequality would be broken by chance
_PROBE = 200  # rows that most rules are told apart by


def propose(table: Table, schema: Schema, dependencies: bool = True) -> tuple[Rule, ...]:
    """Rules that all rows keep, each bound to the columns; those of dependent columns first, if they are looked for."""
    table = modelled_columns(table, schema)
    table = table.select(table.names[:MOST_COLUMNS])
    if len(table) < EXPECTED:
        return ()
    missing = _missing(table)
    joined = _combinations(table, schema, missing) if dependencies else []
    sums = [rule for rule in _sums(table, schema) if not _within(rule, joined)]
    orders = [rule for rule in _inequalities(table, schema) if not _within(rule, [*joined, *sums])]
    return (*joined, *orders, *sums, *missing, *_keys(table, schema))


def to_toml(rules: Sequence[Rule], schema: Schema) -> str:
    """Rules as sections of an experiment file, with instants and durations as text."""
    return "\n\n".join(_section(rule, schema) for rule in rules)


def _section(rule: Rule, schema: Schema) -> str:
    said = to_mapping(rule)
    said.pop("tolerance", None)
    if isinstance(rule, FixedCombination) and rule.allowed:
        kinds = [schema[name] for name in rule.columns]
        lines = [
            json.dumps([_text(c, v) for c, v in zip(kinds, row, strict=True)], ensure_ascii=False)
            for row in rule.allowed
        ]
        said["allowed"] = "[\n" + "".join(f"    {line},\n" for line in lines) + "]"
    written = {key: value if key == "allowed" else json.dumps(value, ensure_ascii=False) for key, value in said.items()}
    return "\n".join(["[[rules]]", *(f"{key} = {value}" for key, value in written.items())])


def _text(column: ColumnSchema, value: Value) -> Any:
    if value is None:
        return ""
    if column.kind != Kind.DATETIME.value or isinstance(value, str):
        return value
    return str(pd.Timedelta(value, "ns") if column.dtype.startswith(DURATIONS) else pd.Timestamp(value))


def _within(rule: Rule, others: Sequence[Rule]) -> bool:
    """Whether another rule is about all of a rule's columns."""
    return any(set(rule.named) <= set(other.named) for other in others)


# Columns that determine others.


def _combinations(table: Table, schema: Schema, others: Sequence[Rule]) -> list[FixedCombination]:
    """A rule for each group of columns that hang on each other, with the combinations that enough rows hold."""
    config = EncoderConfig()
    groups: list[set[str]] = []
    for found in determined_columns(table, schema, config):
        pair = {found.keys.name, found.values.name}
        if any(pair <= set(rule.named) for rule in others):
            continue  # only because one is missing where the other has a level
        near = [group for group in groups if group & pair]
        groups = [group for group in groups if group not in near] + [pair.union(*near)]
    return [_listed(table, [name for name in table.names if name in group], config.min_count) for group in groups]


def _listed(table: Table, names: Sequence[str], least: int) -> FixedCombination:
    keys, place_N = combined([table[name] for name in names])
    counts = torch.bincount(place_N, minlength=len(keys)).tolist()
    kept = sorted(key for key, count in zip(keys, counts, strict=True) if count >= least)
    breaks: OnBreak = "ignore" if len(kept) < len(keys) else ""
    if not 0 < len(kept) <= MOST_LISTED:
        return FixedCombination(tuple(names), learn=True)
    return FixedCombination(tuple(names), tuple(tuple(values_of(key)) for key in kept), on_break=breaks)


# Numbers and instants.


def _sorts(table: Table, schema: Schema) -> Iterator[list[Column]]:
    """Columns that can be compared: numbers, instants, durations."""
    numeric = [column for column in table.columns if column.levels is None and Kind(schema[column.name].kind).numeric]
    sorts: dict[str, list[Column]] = {}
    for column in numeric:
        instant = schema[column.name].kind == Kind.DATETIME.value
        length = schema[column.name].dtype.startswith(DURATIONS)
        sorts.setdefault("duration" if length else "instant" if instant else "number", []).append(column)
    yield from sorts.values()


def _inequalities(table: Table, schema: Schema) -> list[Inequality]:
    found: list[Inequality] = []
    for columns in _sorts(table, schema):
        pairs = itertools.permutations(columns, 2)
        orders = {(a.name, b.name): rule for a, b in pairs if (rule := _inequality(a, b)) is not None}
        between = {(a, c) for (a, b), (b2, c) in itertools.product(orders, orders) if b == b2}
        found += [rule for pair, rule in orders.items() if pair not in between]
    return found


def _inequality(low: Column, high: Column) -> Inequality | None:
    if bool((low.values > high.values)[:_PROBE][~(low.missing | high.missing)[:_PROBE]].any()):
        return None
    both = ~(low.missing | high.missing)
    first, second = low.values[both], high.values[both]
    n = len(first)
    if n < EXPECTED or bool((first > second).any()):
        return None
    below = torch.searchsorted(second.sort().values, first).double().sum() / n  # rows expected in random order
    if below < max(EXPECTED, _OFTEN * n):
        return None
    return Inequality(low.name, high.name, strict=not bool((first == second).any()))


def _sums(table: Table, schema: Schema) -> list[Sum]:
    steps = grids(schema)
    found: list[Sum] = []
    for columns in _sorts(table, schema):
        moving = [column for column in columns if len(column.values[~column.missing].unique()) > 2]
        if len(moving) < 3:
            continue
        probe = torch.stack([torch.where(c.missing, torch.nan, c.values.double())[:_PROBE] for c in moving])
        for total in range(len(moving)):
            half = steps[moving[total].name] / 2 * (1 + 1e-6)
            slack = half + probe[total].abs() * 1e-12
            for a in range(len(moving)):
                wrong = (probe[a] + probe - probe[total]).abs() > slack
                for b in (~wrong.any(1)).nonzero().flatten().tolist():
                    if a < b and total not in (a, b):
                        rule = Sum((moving[a].name, moving[b].name), moving[total].name, half)
                        found += [rule] * _adds_up(table, rule, [moving[a], moving[b], moving[total]])
    totals: dict[str, Sum] = {}
    for rule in found:
        totals.setdefault(rule.total, rule)
    return _without_circles(list(totals.values()))


def _adds_up(table: Table, rule: Sum, columns: Sequence[Column]) -> bool:
    """Whether all rows keep the rule, and enough of them have something to add."""
    present = ~torch.stack([column.missing for column in columns]).any(0)
    added = present & (columns[0].values != 0) & (columns[1].values != 0)
    return int(added.sum()) >= EXPECTED and not bool(rule.broken(table).any())


def _without_circles(sums: Sequence[Sum]) -> list[Sum]:
    kept: list[Sum] = []
    totals: set[str] = set()
    for rule in sums:
        if not set(rule.parts) & totals and not any(rule.total in other.parts for other in kept):
            kept.append(rule)
            totals.add(rule.total)
    return kept


# Missing values, and keys.


def _missing(table: Table) -> list[NullTogether]:
    masks: dict[bytes, list[Column]] = {}
    for column in table.columns:
        if EXPECTED <= int(column.missing.sum()) <= len(column) - EXPECTED:
            masks.setdefault(column.missing.numpy().tobytes(), []).append(column)
    found = []
    for group in masks.values():
        names = tuple(column.name for column in group)
        at = _level_of(table, group[0].missing)
        if at is not None:
            found.append(NullTogether(names, *at))
        elif len(names) > 1:
            found.append(NullTogether(names))
    return found


def _level_of(table: Table, missing: torch.Tensor) -> tuple[str, Value] | None:
    """The column and its level that is held exactly where something is missing."""
    for column in table.columns:
        if not column.levels:
            continue
        codes = column.values[missing & ~column.missing].unique()
        if len(codes) == 1 and bool((((column.values == codes[0]) & ~column.missing) == missing).all()):
            return column.name, column.levels[int(codes[0])]
    return None


def _keys(table: Table, schema: Schema) -> list[UniqueKey]:
    """Single columns, and pairs of them, in which no two rows are the same."""
    shares: Mapping[str, NDArray[np.float64]] = {
        column.name: np.unique(column.values.numpy(), return_counts=True)[1] / len(column)
        for column in table.columns
        if schema[column.name].kind != Kind.CONTINUOUS.value and not bool(column.missing.any())
    }
    single = [name for name, share in shares.items() if len(share) == len(table) > _PROBE]
    found = [UniqueKey((name,)) for name in single]
    alike = {name: float((share**2).sum()) for name, share in shares.items() if name not in single}
    pairs = len(table) * (len(table) - 1) / 2
    for a, b in itertools.combinations(alike, 2):
        rule = UniqueKey((a, b))
        if pairs * alike[a] * alike[b] >= EXPECTED:
            probes = (slice(_PROBE), slice(20 * _PROBE), slice(None))
            found += [rule] * (not any(bool(rule.broken(table.take(rows)).any()) for rows in probes))
    return found
