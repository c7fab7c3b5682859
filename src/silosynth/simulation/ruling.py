"""Rules over a federation: what each silo describes anew before it trains, and which drawn rows keep all of them.

A rule about columns of one silo is kept by how that silo describes its rows (`silosynth.encoders.ruled`). Sums across
silos are added up where synthetic columns are shared. Every other rule across silos, keys that are unique, and what a
description leaves over, are compared in synthetic rows, and rows that break one are drawn again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from silosynth.core.conditions import Condition, fulfils
from silosynth.core.errors import ConfigError
from silosynth.core.messages import from_state, to_state
from silosynth.core.rules import (
    FixedCombination,
    Inequality,
    NullTogether,
    Rule,
    Sum,
    UniqueKey,
    ValueRange,
    combined,
    keeps_all,
)
from silosynth.core.schema import Schema, Table, distinct_columns
from silosynth.core.streams import Streams
from silosynth.data.rules import bind, check_breaks, grids, tightened
from silosynth.encoders.ruled import Ruled, Summed, ruled
from silosynth.simulation.accepting import Parts, where_all
from silosynth.simulation.federation import Federation

COMPARED = FixedCombination, Inequality, NullTogether
"""Rules that can be kept across two silos whose columns stay: see `silosynth.privacy.simultaneous`."""
MOST_ALLOWED = 256
"""Combinations of such a rule: each takes eight bytes of a message for every row."""


@dataclass(frozen=True)
class Ruling:
    """Rules, and how silos describe their columns under them.

    Attributes:
        rules: all rules, bound to columns.
        forms: by silo.
        horizontal: whether silos hold different rows of the same columns, which all describe alike.
        across: sums of columns of several silos.
    """

    rules: tuple[Rule, ...] = ()
    forms: Mapping[str, Ruled] = field(default_factory=dict)
    horizontal: bool = False
    across: tuple[Summed, ...] = ()

    def schemas(self, whole: Mapping[str, Schema]) -> dict[str, Schema]:
        """What silos describe, of their columns."""
        return {silo: self.forms[silo].schema if silo in self.forms else own for silo, own in whole.items()}

    def restored(self, parts: Parts, streams: Streams) -> dict[str, Table]:
        """Each silo's columns of a batch of drawn descriptions."""
        made = {silo: self._restored(silo, table, streams) for silo, table in parts.items()}
        known = {column.name: column for table in made.values() for column in table.columns}
        for total in self.across:
            total.restore(known, streams.child("rules").numpy())
        if self.across:
            made = {name: Table(tuple(known[own] for own in table.names)) for name, table in made.items()}
        return made

    def _restored(self, silo: str, table: Table, streams: Streams) -> Table:
        form = next(iter(self.forms.values()), None) if self.horizontal else self.forms.get(silo)
        return table if form is None else form.restore(table, streams.child("rules", silo).numpy())

    def to_state(self) -> dict[str, Any]:
        """In storable form."""
        return {
            "rules": [to_state(rule) for rule in self.rules],
            "forms": {silo: to_state(form) for silo, form in self.forms.items()},
            "horizontal": self.horizontal,
            "across": [to_state(total) for total in self.across],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ruling:
        """The rules that `to_state` stored; raises as `from_state` does."""
        return cls(
            tuple(from_state(Rule, rule) for rule in state["rules"]),
            {silo: from_state(Ruled, form) for silo, form in state["forms"].items()},
            bool(state["horizontal"]),
            tuple(from_state(Summed, total) for total in state["across"]),
        )


def across(rules: Sequence[Rule], silos: Mapping[str, Sequence[str]]) -> tuple[Rule, ...]:
    """The rules about columns of several silos that are learnt as they are, given what each silo holds.

    Columns that are in a rule of one silo may be described anew by it: of these nothing is said.
    """
    own = [rule for rule in rules if any(set(rule.named) <= set(held) for held in silos.values())]
    anew = {name for rule in own if not isinstance(rule, ValueRange | UniqueKey) for name in rule.named}
    return tuple(rule for rule in rules if rule not in own and not anew & set(rule.named))


def led(conditions: Sequence[Condition], form: Ruled | None, rules: Sequence[Rule]) -> tuple[Condition, ...]:
    """The conditions on columns whose values are drawn as they come out, which draws can be led to.

    Not on those that ``form`` describes anew, nor on totals, which are added up at the end.
    """
    anew = set() if form is None else form.anew
    totals = {rule.total for rule in rules if isinstance(rule, Sum)}
    return tuple(condition for condition in conditions if condition.column not in anew | totals)


class Keeping:
    """Which rows of one sampling keep all rules: rows of all batches have different keys.

    Where columns stay in their silos, each silo says it of its own.
    """

    def __init__(self, ruling: Ruling) -> None:
        self.ruling = ruling
        self.rules = [rule for rule in ruling.rules if not isinstance(rule, UniqueKey)]
        self.keys = [(rule, set[str]()) for rule in ruling.rules if isinstance(rule, UniqueKey)]
        self.drawn = self.kept = 0

    def accepts(self, parts: Parts, wanted: Sequence[Condition] = ()) -> Tensor:
        """Which rows (N,) of a batch fulfil conditions, and keep all rules, also beside rows of earlier batches."""
        fulfils_N = where_all(parts, partial(fulfils, conditions=wanted))
        table = distinct_columns(parts.values())
        kept_N = self.keeps(table, fulfils_N)
        for place in range(len(self.keys)):
            kept_N = self.new(place, table, kept_N)
        self.add(table, kept_N)
        self.drawn, self.kept = self.drawn + int(fulfils_N.sum()), self.kept + int(kept_N.sum())
        return kept_N

    def keeps(self, table: Table, wanted_N: Tensor) -> Tensor:
        """Which rows (N,) of those that are wanted keep all rules but for keys."""
        rows = wanted_N.nonzero().flatten()
        kept_N = torch.zeros(len(wanted_N), dtype=torch.bool)
        kept_N[rows] = keeps_all(table.take(rows), self.rules)
        return kept_N

    def new(self, place: int, table: Table, kept_N: Tensor) -> Tensor:
        """Those of the rows (N,) that are kept so far which have a new key, of rule ``place`` of `keys`."""
        rule, seen = self.keys[place]
        rows = kept_N.nonzero().flatten()
        new_N = kept_N.clone()
        new_N[rows[~_new(rule, table.take(rows), seen)]] = False
        return new_N

    def add(self, table: Table, kept_N: Tensor) -> None:
        """Remember the keys of rows (N,) that are kept."""
        for rule, seen in self.keys:
            seen.update(combined([table[name].take(kept_N) for name in rule.columns])[0])

    @property
    def rate(self) -> float:
        """The share of drawn rows that were kept."""
        return self.kept / self.drawn if self.drawn else 1.0


def _new(rule: UniqueKey, table: Table, seen: set[str]) -> Tensor:
    """Which rows (N,) have a key that no row has had before."""
    keys, place_N = combined([table[name] for name in rule.columns])
    before = torch.tensor([key in seen for key in keys] or [False])
    missing_N = torch.stack([table[name].missing for name in rule.columns]).any(0)
    return missing_N | ~(before[place_N] | rule.broken(table)) if len(table) else missing_N


def under_rules(
    federation: Federation, rules: Sequence[Rule], *, private: bool, partitioned: bool, least: int
) -> tuple[Federation, Ruling, list[str]]:
    """The federation as its silos describe it under rules; the rules, bound; and what silos say of their rows.

    Args:
        federation: with the rows.
        rules: as they were declared.
        private: whether noise protects rows.
        partitioned: whether synthetic columns stay in their silos.
        least: rows that stand behind an end of a range (`silosynth.catalog.fewest_rows`).

    Raises:
        ConfigError, SchemaError, StorageError: rules cannot be kept: see `silosynth.data.rules.bind`.
        DataError: rows break a rule that they must not break.
    """
    if not rules:
        return federation, Ruling(horizontal=federation.horizontal), []
    for rule in rules:
        if private and rule.on_break == "error":  # type: ignore[attr-defined]
            raise ConfigError(
                f"Where noise protects rows, whether they break a rule is not told: {rule.in_words!r}", "error",
                'Leave on_break out, or set it to "ignore".',
            )  # fmt: skip
    if federation.groups:
        return _of_groups(federation, rules, private)
    held = list(federation.tables.values())[: 1 if federation.horizontal else None]
    bound = bind(rules, federation.schema, distinct_columns(held))
    owners = {silo: set(table.names) for silo, table in federation.tables.items()}
    own = {silo: [rule for rule in bound if set(rule.named) <= names] for silo, names in owners.items()}
    apart = [rule for rule in bound if not any(rule in rules for rules in own.values())]
    check_across(apart, owners, partitioned)
    said, tables, forms = [], {}, {}
    for silo, table in federation.tables.items():
        breaks = {rule: int(rule.broken(table).sum()) for rule in own[silo]}
        said += check_breaks(breaks, len(table), silo, private)
        schema = tightened(federation.schemas[silo], bound)
        forms[silo], tables[silo] = described(own[silo], schema, table, private, federation.horizontal, least)
    whole = distinct_columns(federation.tables.values())
    ruling = Ruling(bound, forms, federation.horizontal, totals(apart, federation.schema, whole))
    schemas = ruling.schemas(federation.schemas)
    columns = tuple(dict.fromkeys(name for table in tables.values() for name in table.names))
    return replace(federation, tables=tables, schemas=schemas, columns=columns), ruling, said


def _of_groups(federation: Federation, rules: Sequence[Rule], private: bool) -> tuple[Federation, Ruling, list[str]]:
    """Groups of silos divide columns in ways of their own, so that none describes anew what another cannot.

    Sums are added up, and rows that break another rule are drawn again.
    """
    whole = distinct_columns([federation.tables[silo] for silo in federation.groups[0]])
    bound, said = bind(rules, federation.schema, whole), list[str]()
    check_across(bound, federation.silos, False)
    for silo, table in federation.tables.items():
        own = {rule: int(rule.broken(table).sum()) for rule in bound if set(rule.named) <= set(table.names)}
        said += check_breaks(own, len(table), silo, private)
    return federation, Ruling(bound, horizontal=True, across=totals(bound, federation.schema, whole)), said


def described(
    rules: Sequence[Rule], schema: Schema, table: Table, private: bool, horizontal: bool, least: int
) -> tuple[Ruled, Table]:
    """How a silo describes its rows under rules of its own, which are bound; and its rows described so.

    ``schema`` has the bounds of ranges. Where noise protects rows (``private``), or silos hold different ones
    (``horizontal``), the description depends on none. ``least`` rows stand behind an end of a range.
    """
    schema = _without_reasons(schema) if private else schema
    form = ruled(schema, rules, grids(schema), table, None if private or horizontal else table, least)
    return form, form.describe(table).own_levels()


def check_across(rules: Sequence[Rule], silos: Mapping[str, Iterable[str]], partitioned: bool) -> None:
    """Refuse rules about columns of several silos that nobody can keep.

    Args:
        rules: such ones.
        silos: what each silo holds.
        partitioned: whether synthetic columns stay in their silos.

    Raises:
        ConfigError: names the rule: columns stay where their values would have to be added up, or told apart in all
            rows; or in more than two silos, or under more than `MOST_ALLOWED` combinations; or these are to be learnt.
    """
    for rule in rules:
        if partitioned:
            _check_compared(rule, sum(not set(rule.named).isdisjoint(names) for names in silos.values()))
        if isinstance(rule, FixedCombination) and rule.learn:
            raise ConfigError(
                "Combinations are learnt from the rows of one silo", rule.in_words, "List those that are allowed."
            )


def _check_compared(rule: Rule, silos: int) -> None:
    """Refuse a rule about columns that stay in so many silos, if codes cannot tell whether a row keeps it."""
    remedy = 'Share synthetic columns, with "shared" for the option synthesis; or leave the rule out.'
    if not isinstance(rule, COMPARED):
        what = "Columns that stay in their silos are neither added up nor told apart in all rows"
        raise ConfigError(what, rule.in_words, remedy)
    if silos > 2:
        raise ConfigError("Columns that stay are compared between two silos", f"{rule.in_words}: {silos}", remedy)
    if isinstance(rule, FixedCombination) and len(rule.allowed) > MOST_ALLOWED:
        what = f"Of columns that stay at most {MOST_ALLOWED} combinations are compared"
        raise ConfigError(what, f"{len(rule.allowed)}", remedy)


def totals(apart: Sequence[Rule], schema: Schema, table: Table) -> tuple[Summed, ...]:
    """Sums across silos: their totals are learnt, for where something is missing, and then added up.

    ``schema`` is of all columns; of ``table`` only the types of values are looked at.
    """
    return tuple(
        Summed(schema[r.total], r.parts, True, not table[r.total].values.is_floating_point(), grids(schema)[r.total])
        for r in apart
        if isinstance(r, Sum)
    )


def _without_reasons(schema: Schema) -> Schema:
    return Schema(tuple(replace(column, reason="", forms=()) for column in schema.columns))
