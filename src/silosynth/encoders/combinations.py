"""Combinations of a silo's columns that do not occur in its rows are not made: what depends on what, found by the silo.

Two kinds of rules, both held by at least ``min_count`` rows wherever they name a value:

- *Determined columns.* Column a determines column b if all rows with the same a have the same b: a product's code its
  name, an age its age group. Such a b is not modelled. It is looked up when rows are decoded (`look_up`), so that the
  dependency holds in every row, and the model is smaller.
- *Barred pairs* of two columns' levels: nearly no row holds them, though many would if the columns were independent:
  husbands who are women. Decoded rows that hold one get another level in one of the two columns (`Barred.repair`).

Of columns with more levels than are learnt (`column.HeadEncoder`) the others are drawn among those that determine what
the rest of a row holds (`fitting`): of towns those in the row's region, which is modelled as well.

A dependency is believed only if chance does not explain it: to write down b's column must take far more nats than to
write down the table that replaces it (`believable`). What is found depends on rows: nothing is found under
differential privacy.

Shapes: N rows, R of them, K keys, C columns with levels, L levels of one of them, M of another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from silosynth.core.messages import Struct
from silosynth.core.schema import Column, Schema, Table, union
from silosynth.encoders.column import RARE, Encoder, EncoderConfig, HeadEncoder, least_rows

_CHANCE = 1e-6  # at most, that columns of the same values in random order show a dependency
_PROBE = 500  # rows that most pairs of columns are told apart by
EXPECTED = 20.0  # rows expected of independent columns for each row that holds a barred pair, and at least
_MOST_CELLS = 1 << 16  # of the table of two columns in which barred pairs are looked for
_PASSES = 4  # over rows, each of which changes one level of a row


class Determined(Struct):
    """Column ``values.name``, which ``keys.name`` determines.

    Attributes:
        keys: (K,) values of the determinant that enough rows hold, each once; missing is one of them where it is.
        values: (K,) the values that they determine.
        place: of the column in the table.
        modelled: whether it is modelled as well: rows of other values then keep what was modelled.
    """

    keys: Column
    values: Column
    place: int
    modelled: bool

    def look_up(self, determinant: Column, modelled: Column | None) -> Column:
        """The column of N decoded rows, from those of its determinant, and its own if it was modelled."""
        key_N = find_keys(self.keys, determinant)
        found_N, key_N = key_N >= 0, key_N.clamp(min=0)
        made = self.values.take(key_N)
        if modelled is None or bool(found_N.all()):
            return made
        if made.levels is not None and modelled.levels is not None:
            levels = union([modelled.levels, made.levels])
            made, modelled = made.recoded(levels), modelled.recoded(levels)
        return replace(
            modelled,
            values=torch.where(found_N, made.values, modelled.values),
            missing=torch.where(found_N, made.missing, modelled.missing),
            levels=made.levels,
        )


class Barred(Struct):
    """Pairs of levels of columns ``first`` and ``second`` that decoded rows must not hold.

    Attributes:
        first, second: numbers among the columns with levels; ``second`` depends more on ``first`` than the reverse.
        barred: (L, M) bool.
        counts: (L, M) int32, rows that hold each pair; 0 if they are fewer than ``min_count``.
    """

    first: int
    second: int
    barred: Tensor
    counts: Tensor


@dataclass(frozen=True)
class _Coded:
    """A column of N rows, by its K distinct values: increasing, missing last."""

    column: Column
    code_N: Tensor
    counts_K: Tensor

    @classmethod
    def of(cls, column: Column) -> _Coded:
        """Count a column's values."""
        values_N = torch.where(column.missing, torch.zeros((), dtype=column.values.dtype), column.values)
        distinct, code_N = values_N.unique(return_inverse=True)
        _, code_N = torch.where(column.missing, len(distinct), code_N).unique(return_inverse=True)
        return cls(column, code_N, torch.bincount(code_N))


@dataclass(frozen=True)
class _Keyed:
    """A column that may determine others.

    Attributes:
        coded: the column.
        keys: (K,) values that at least ``min_count`` rows hold.
        key_N: each row's key; -1 for none.
        pooled_R: rows of levels that become *rare*, if this is a level by name, and enough rows hold it.
        covers: whether all that can be decoded has a key, or is *rare*.
    """

    coded: _Coded
    keys: Column
    key_N: Tensor
    pooled_R: Tensor
    covers: bool
    rare: bool

    @classmethod
    def of(cls, coded: _Coded, config: EncoderConfig) -> _Keyed:
        """Find a column's keys."""
        column, counts_K = coded.column, coded.counts_K
        first_K = torch.zeros_like(counts_K)
        first_K[coded.code_N] = torch.arange(len(column))
        keys = column.take(first_K[counts_K >= config.min_count]).own_levels()
        key_N = find_keys(keys, column)
        least = least_rows(column.levels, config) if column.levels is not None else 1
        pooled_N = (counts_K < least)[coded.code_N] & ~column.missing
        rare = bool(pooled_N.any()) and all(isinstance(level, str) for level in column.levels or ())
        covers = bool((key_N >= 0)[~pooled_N].all())
        return cls(coded, keys, key_N, pooled_N.nonzero().flatten(), covers, rare)


def determined_columns(
    table: Table, schema: Schema, config: EncoderConfig, kept: Collection[str] = ()
) -> tuple[Determined, ...]:
    """The columns that another one determines, each after its determinant.

    Of two columns that determine each other, the determinant is the one in ``kept``, else categories rather than
    numbers, else the first. Columns in ``kept`` are modelled whatever determines them.
    """
    columns = [_Coded.of(column) for column in table.columns]

    def rank(i: int) -> tuple[int, bool, bool, int]:
        column = columns[i].column
        return -len(columns[i].counts_K), column.name not in kept, column.levels is None, i

    order = sorted((i for i, column in enumerate(columns) if len(column.counts_K) > 1), key=rank)
    earlier, found = list[_Keyed](), list[Determined]()
    for place in order:
        rules = (_determined(a, columns[place], schema, config, place) for a in reversed(earlier))  # few values first
        rule = next((rule for rule in rules if rule is not None), None)
        if rule is not None:
            found.append(replace(rule, modelled=rule.modelled or rule.values.name in kept))
        earlier.append(_Keyed.of(columns[place], config))
    return tuple(found)


def barred_pairs(columns: Sequence[Column], encoders: Sequence[Encoder], config: EncoderConfig) -> tuple[Barred, ...]:
    """Pairs of levels that fewer than ``min_count`` rows hold, and far fewer than if columns were independent.

    Columns with a continuous part are not looked at.
    """
    levelled = [(column, encoder) for column, encoder in zip(columns, encoders, strict=True) if encoder.width > 1]
    no_draws = np.random.default_rng(0)  # levels without scores need none
    discrete = [
        (c, encoder.width, encoder.encode(column, no_draws).levels)
        for c, (column, encoder) in enumerate(levelled)
        if not encoder.lines
    ]
    found = []
    for i, (first, width, level_N) in enumerate(discrete):
        for second, other_width, other_N in discrete[i + 1 :]:
            assert level_N is not None and other_N is not None  # of two levels or more
            if width * other_width <= _MOST_CELLS:
                cell_N = level_N * other_width + other_N
                counts = torch.bincount(cell_N, minlength=width * other_width).reshape(width, other_width)
                found += _barred(counts, first, second, config.min_count)
    return tuple(found)


def repair(levels_NC: Tensor, rules: Sequence[Barred], rng: np.random.Generator) -> Tensor:
    """Levels (N, C) without barred pairs, as far as a few changes of single levels reach.

    In each row that holds barred pairs, the column that is in most of them gets a level that goes with all others,
    drawn from its distribution given those that it did not go with.
    """
    tables = _tables(rules)
    levels_NC = levels_NC.clone()
    for _ in range(_PASSES if rules else 0):
        blame_NC = _blame(levels_NC, rules)
        rows = (blame_NC.amax(1) > 0).nonzero().flatten()
        if not len(rows):
            break
        worst_R = blame_NC[rows].argmax(1)
        for c in worst_R.unique().tolist():
            own = rows[worst_R == c]
            levels_NC[own, c] = _redrawn(levels_NC[own], c, tables[c], rng)
    return levels_NC


def with_classes(rules: Sequence[Determined], heads: Collection[str]) -> tuple[Determined, ...]:
    """The rules, one of which is of a column that is modelled as well, for each column in ``heads`` that has any.

    It is the column of most values, of those with at most half as many as their determinant.
    """
    several = list(rules)
    for name in heads:
        if any(rule.values.name == name and not rule.modelled for rule in several):
            continue  # not modelled itself
        own = [rule for rule in _from(name, several) if 2 * _values(rule) <= len(rule.keys)]
        if own and not any(rule.modelled for rule in own):
            most = max(own, key=_values)
            several[several.index(most)] = replace(most, modelled=True)
    return tuple(several)


def fitting(
    decoded: Table, encoders: Sequence[Encoder], rules: Sequence[Determined], rng: np.random.Generator
) -> Table:
    """Decoded rows whose drawn levels of `HeadEncoder`s determine what the row holds in columns that are modelled too.

    Where no level goes with all of these columns, one is drawn that goes with those of fewest values.
    """
    known = {column.name: column for column in decoded.columns}
    heads = [encoder for encoder in encoders if isinstance(encoder, HeadEncoder)]
    order = [rule.values.name for rule in rules]  # a determinant comes before what it determines
    for encoder in sorted(heads, key=lambda one: order.index(one.name) if one.name in order else -1, reverse=True):
        own = _from(encoder.name, rules)
        others = replace(known[encoder.name], values=encoder.others, missing=encoder.others < 0)
        made = look_up(Table((others,)), [replace(rule, modelled=False) for rule in own])
        class_m, class_N = torch.zeros(len(others)).long(), torch.zeros(len(decoded)).long()
        for rule in sorted((rule for rule in own if rule.modelled), key=_values):
            of_m, of_N = _classes(made[rule.values.name], known[rule.values.name])
            pairs = torch.stack([torch.cat([class_m, class_N]), torch.cat([of_m, of_N])], dim=1)
            class_m, class_N = pairs.unique(dim=0, return_inverse=True)[1].split([len(of_m), len(of_N)])
            known[encoder.name] = encoder.redraw(known[encoder.name], class_m, class_N, rng)
    return Table(tuple(known.values()))


def _from(name: str, rules: Sequence[Determined]) -> list[Determined]:
    """The rules of what a column determines, itself or by columns that are looked up."""
    known, found = {name}, []
    for rule in rules:
        if rule.keys.name in known:
            found.append(rule)
            known |= set() if rule.modelled else {rule.values.name}
    return found


def _values(rule: Determined) -> int:
    """How many values the rule determines."""
    return len(_Coded.of(rule.values).counts_K)


def _classes(value_m: Column, value_N: Column) -> tuple[Tensor, Tensor]:
    """Numbers (m,) of the values of one column, and (N,) of another, of numbers the nearest; -1 where it is missing."""
    if value_m.levels is not None and value_N.levels is not None:
        levels = union([value_m.levels, value_N.levels])
        of_m, of_N = (column.recoded(levels).values for column in (value_m, value_N))
    else:
        distinct = value_m.values[~value_m.missing].unique()
        of_m, of_N = (_nearest(distinct, column.values) for column in (value_m, value_N))
    return torch.where(value_m.missing, -1, of_m), torch.where(value_N.missing, -1, of_N)


def look_up(decoded: Table, rules: Sequence[Determined]) -> Table:
    """All columns, in the table's order, of those that were decoded."""
    known = {column.name: column for column in decoded.columns}
    order = list(decoded.names)
    for rule in rules:
        name = rule.values.name
        known[name] = rule.look_up(known[rule.keys.name], known.get(name))
    for rule in sorted(rules, key=lambda rule: rule.place):
        if not rule.modelled:
            order.insert(rule.place, rule.values.name)
    return Table(tuple(known[name] for name in order))


def find_keys(keys: Column, column: Column) -> Tensor:
    """For each row (N,) of ``column`` the number of its key, of numbers the nearest; -1 where there is none."""
    absent = keys.missing.nonzero().flatten()
    of_missing = int(absent[0]) if len(absent) else -1
    present = (~keys.missing).nonzero().flatten()
    if not len(present):
        key_N = torch.full_like(column.values, -1, dtype=torch.int64)
    elif keys.levels is not None:
        key_of = {keys.levels[code]: key for key, code in zip(present.tolist(), keys.values[present], strict=True)}
        key_N = torch.tensor([key_of.get(level, -1) for level in column.levels or ()] or [-1])[column.values]
    else:
        key_N = present[_nearest(keys.values[present], column.values)]
    return torch.where(column.missing, of_missing, key_N)


def _nearest(key_K: Tensor, value_N: Tensor) -> Tensor:
    """The number of the nearest of increasing keys (K,); of two, the smaller one."""
    above = torch.searchsorted(key_K, value_N).clamp(max=len(key_K) - 1)
    below = (above - 1).clamp(min=0)
    closer = (value_N.double() - key_K[below].double()) <= (key_K[above].double() - value_N.double())
    return torch.where(closer & (key_K[above] != value_N), below, above)


def _determined(a: _Keyed, b: _Coded, schema: Schema, config: EncoderConfig, place: int) -> Determined | None:
    """The rule by which a determines b, the column at ``place``; None if it does not, or chance may explain it."""
    if not _constant(a.key_N[:_PROBE], b.code_N[:_PROBE], len(a.keys)):
        return None
    rows, keys = (a.key_N >= 0).nonzero().flatten(), a.keys
    key_R, code_R = a.key_N[rows], b.code_N[rows]
    if not (_constant(key_R, code_R, len(keys)) and believable(code_R, len(keys))):
        return None
    first_K = torch.zeros(len(keys), dtype=torch.int64)
    first_K[key_R] = rows
    covers = a.covers
    if a.rare and RARE not in (keys.levels or ()):
        pooled = a.pooled_R
        known = len(pooled) >= config.min_count and bool((b.code_N[pooled] == b.code_N[pooled[0]]).all())
        covers = covers and known
        if known:
            keys, first_K = _with_rare(keys), torch.cat([first_K, pooled[:1]])
    values = _clipped(b.column.take(first_K).own_levels(), schema)
    return Determined(keys, values, place, modelled=not covers)


def _constant(key_N: Tensor, code_N: Tensor, keys: int) -> bool:
    """Whether rows of the same key have the same code; rows without a key do not count."""
    found_N = key_N >= 0
    key_R, code_R = key_N[found_N], code_N[found_N]
    code_K = code_N.new_zeros(keys)
    code_K[key_R] = code_R
    return bool((code_K[key_R] == code_R).all())


def believable(code_N: Tensor, keys: int) -> bool:
    """Whether more than chance makes ``keys`` keys determine these codes: see the module's docstring."""
    share = torch.unique(code_N, return_counts=True)[1].double() / len(code_N)
    nats = -len(code_N) * float((share * share.log()).sum())
    return len(share) > 1 and nats >= keys * math.log(len(share)) - math.log(_CHANCE)


def _with_rare(keys: Column) -> Column:
    """Keys, and the name that *rare* levels are decoded to as the last one."""
    levels = (*(keys.levels or ()), RARE)
    return replace(
        keys,
        values=torch.cat([keys.values, torch.tensor([len(levels) - 1])]),
        missing=torch.cat([keys.missing, torch.tensor([False])]),
        levels=levels,
    )


def _clipped(column: Column, schema: Schema) -> Column:
    """Numbers within their declared bounds."""
    declared = schema[column.name]
    if column.levels is not None or (declared.low is None and declared.high is None):
        return column
    low, high = declared.low, declared.high
    if not column.values.is_floating_point():  # beyond 2^53 a float bound would move values within
        low, high = None if low is None else math.ceil(low), None if high is None else math.floor(high)
    values = column.values.clamp(min=low, max=high)
    return replace(column, values=torch.where(column.missing, column.values, values))


def _barred(counts_LM: Tensor, first: int, second: int, least: int) -> list[Barred]:
    """The rule for two columns, if there is one."""
    expected = counts_LM.sum(1, keepdim=True) * counts_LM.sum(0, keepdim=True) / counts_LM.sum()
    barred = (counts_LM < least) & (expected >= EXPECTED * counts_LM.clamp(min=1))
    if not barred.any():
        return []
    common = torch.where(counts_LM < least, 0, counts_LM).int()
    if _unexplained(counts_LM) <= _unexplained(counts_LM.T):
        return [Barred(first, second, barred, common)]
    return [Barred(second, first, barred.T.contiguous(), common.T.contiguous())]


def _unexplained(counts: Tensor) -> float:
    """The share of the entropy of the table's second column that is left where the first is known."""
    joint, second = (x[x > 0].double() / counts.sum() for x in (counts, counts.sum(0)))
    first = counts.sum(1)
    first = first[first > 0].double() / counts.sum()
    entropies = [-float((share * share.log()).sum()) for share in (joint, first, second)]
    return (entropies[0] - entropies[1]) / entropies[2] if entropies[2] > 0 else 1.0


Tables = dict[int, list[tuple[int, Tensor, Tensor]]]  # of each column: others; (M, L) barred, and (M, L) counts


def _tables(rules: Sequence[Barred]) -> Tables:
    tables: Tables = {}
    for rule in rules:
        tables.setdefault(rule.second, []).append((rule.first, rule.barred, rule.counts))
        tables.setdefault(rule.first, []).append((rule.second, rule.barred.T, rule.counts.T))
    return tables


def _blame(levels_NC: Tensor, rules: Sequence[Barred]) -> Tensor:
    """How many barred pairs (N, C) each row's level is in; of two in the same one, the dependent is blamed more."""
    blame_NC = torch.zeros(levels_NC.shape)
    for rule in rules:
        held_N = rule.barred[levels_NC[:, rule.first], levels_NC[:, rule.second]]
        blame_NC[:, rule.first] += held_N
        blame_NC[:, rule.second] += 1.01 * held_N
    return blame_NC


def _redrawn(
    levels_RC: Tensor, c: int, tables: Sequence[tuple[int, Tensor, Tensor]], rng: np.random.Generator
) -> Tensor:
    """New levels (R,) of column c; old ones where none goes with all other columns."""
    old_R, allowed_RL, logits_RL = levels_RC[:, c], torch.ones(1), torch.zeros(1)
    for other, barred, counts in tables:
        given_R = levels_RC[:, other]
        allowed_RL = allowed_RL * ~barred[given_R]
        share_RL = counts[given_R] / counts[given_R].sum(1, keepdim=True).clamp(min=1)
        clash_R1 = barred[given_R, old_R][:, None]
        logits_RL = logits_RL + torch.where(clash_R1, share_RL.clamp(min=1e-6).log(), 0.0)
    weight_RL = (allowed_RL * logits_RL.exp()).cumsum(1)
    drawn_R = (weight_RL <= torch.from_numpy(rng.random((len(old_R), 1))) * weight_RL[:, -1:]).sum(1)
    return torch.where(weight_RL[:, -1] > 0, drawn_R.clamp(max=weight_RL.shape[1] - 1), old_R)
