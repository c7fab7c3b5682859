"""Rules that rows keep: what a table's owner declares of its columns, for real rows and for synthetic ones.

=================  ===================================  ======================================================
kind               class                                a row breaks it if
=================  ===================================  ======================================================
``combination``    `FixedCombination`                   its values of these columns are not among those allowed
``inequality``     `Inequality`                         one column's value is above another's (or as large)
``sum``            `Sum`                                a column is not the sum of others
``null_together``  `NullTogether`                       some of the columns are missing, and others are not
``unique``         `UniqueKey`                          an earlier row has the same values of these columns
``range``          `ValueRange`                         a value is beyond bounds
``pattern``        `Pattern`                            a text does not match a regular expression
=================  ===================================  ======================================================

Missing values break no inequality, sum, range, pattern or key; in a combination missing is a value like others.

A rule is public: it is what somebody knows about the columns, whatever rows hold. `read_rules` reads rules from
mappings, as they come from experiment files; `silosynth.data.rules` binds them to columns: only then are values those
that tables hold (instants as nanoseconds), and only then does `broken` say which rows break one.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from silosynth.core.errors import ConfigError, MessageError, nearest
from silosynth.core.messages import Struct
from silosynth.core.schema import Column, Table

Value = str | int | float | bool | None
OnBreak = Literal["", "error", "ignore"]
"""What real rows that break a rule do: end the training, or count as if they were repaired. Empty: "ignore" where
noise protects rows, whose number nobody may tell, else "error"."""


class Rule(Struct):
    """A rule; see the module's docstring. Lists are taken for tuples."""

    KIND: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _tuples(getattr(self, field.name)))
        super().__post_init__()

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that it is about."""
        raise NotImplementedError

    @property
    def in_words(self) -> str:
        """The rule as a line of text."""
        raise NotImplementedError

    def broken(self, table: Table) -> Tensor:
        """Which rows (N,) of a table break it, bool."""
        raise NotImplementedError

    def _refuse(self, rule: str, value: Any, remedy: str) -> None:
        raise ConfigError(f"Rule of kind {self.KIND!r}: {rule}", value, remedy)

    def _check_several(self, columns: Sequence[str], least: int = 2) -> None:
        if len(columns) < least or len(set(columns)) < len(columns):
            self._refuse(f"it names at least {least} different columns", list(columns), 'Such as columns = ["a", "b"].')


class FixedCombination(Rule):
    """Rows hold only certain combinations of these columns' values.

    Attributes:
        columns: at least two.
        allowed: the combinations, each with a value per column; None or "" for missing. They are public.
        file: instead of ``allowed``: a table of the combinations, with these columns.
        learn: instead: those of the rows. Under differential privacy only those that noised counts release.
    """

    KIND = "combination"
    columns: tuple[str, ...]
    allowed: tuple[tuple[Value, ...], ...] = ()
    file: str = ""
    learn: bool = False
    on_break: OnBreak = ""

    def _check(self) -> None:
        self._check_several(self.columns)
        if (len(self.allowed) > 0) + bool(self.file) + self.learn != 1:
            rule = "one of 'allowed', 'file' and 'learn' says which combinations rows may hold"
            self._refuse(rule, list(self.columns), "Give one of them; silosynth inspect TABLE proposes a list.")
        for values in self.allowed:
            if len(values) != len(self.columns):
                self._refuse("a combination has a value for each column", list(values), f"In order {self.columns}.")

    @property
    @override
    def named(self) -> tuple[str, ...]:
        return self.columns

    @property
    @override
    def in_words(self) -> str:
        what = "as in the rows" if self.learn else f"{len(self.allowed)} allowed" if self.allowed else self.file
        return f"combinations of {', '.join(self.columns)}: {what}"

    @override
    def broken(self, table: Table) -> Tensor:
        if not self.allowed:
            return torch.zeros(len(table), dtype=torch.bool)
        keys, place_N = combined([table[name] for name in self.columns])
        allowed = set(map(key_of, self.allowed))
        return torch.tensor([key not in allowed for key in keys] or [False])[place_N]


class Inequality(Rule):
    """No row has ``low`` above ``high``; with ``strict`` they are not equal either. Numbers, instants or durations."""

    KIND = "inequality"
    low: str
    high: str
    strict: bool = False
    on_break: OnBreak = ""

    def _check(self) -> None:
        self._check_several(self.named)

    @property
    @override
    def named(self) -> tuple[str, ...]:
        return (self.low, self.high)

    @property
    @override
    def in_words(self) -> str:
        return f"{self.low} {'<' if self.strict else '<='} {self.high}"

    @override
    def broken(self, table: Table) -> Tensor:
        low, high = table[self.low], table[self.high]
        wrong_N = low.values >= high.values if self.strict else low.values > high.values
        return wrong_N & ~low.missing & ~high.missing


class Sum(Rule):
    """``total`` is the sum of ``parts``, up to ``tolerance``: by default half a unit of the total's last decimal."""

    KIND = "sum"
    parts: tuple[str, ...]
    total: str
    tolerance: float | None = None
    on_break: OnBreak = ""

    def _check(self) -> None:
        self._check_several(self.parts)
        self._check_several(self.named)
        if self.tolerance is not None and not 0 <= self.tolerance < float("inf"):
            self._refuse("the tolerance is at least 0", self.tolerance, "Leave it out for half a unit of the total.")

    @property
    @override
    def named(self) -> tuple[str, ...]:
        return (*self.parts, self.total)

    @property
    @override
    def in_words(self) -> str:
        return f"{' + '.join(self.parts)} = {self.total}"

    @override
    def broken(self, table: Table) -> Tensor:
        columns = [table[name] for name in self.named]
        present_N = ~torch.stack([column.missing for column in columns]).any(0)
        total = columns[-1].values
        difference = (added([column.values for column in columns[:-1]]) - total).abs()
        slack = (self.tolerance or 0.0) + (total.abs() * 1e-12 if total.is_floating_point() else 0)
        return (difference > slack) & present_N


class NullTogether(Rule):
    """The columns are missing in the same rows; with ``when``, exactly where that column has the value ``level``."""

    KIND = "null_together"
    columns: tuple[str, ...]
    when: str = ""
    level: Value = None
    on_break: OnBreak = ""

    def _check(self) -> None:
        self._check_several(self.columns, 1 if self.when else 2)
        self._check_several(self.named)
        if self.when and self.level in (None, ""):
            self._refuse("'when' needs the level at which columns are missing", self.when, 'Such as level = "none".')

    @property
    @override
    def named(self) -> tuple[str, ...]:
        return (*self.columns, self.when) if self.when else self.columns

    @property
    @override
    def in_words(self) -> str:
        together = f"{', '.join(self.columns)} missing "
        return together + (f"exactly where {self.when} is {self.level}" if self.when else "together")

    def absent(self, table: Table) -> Tensor:
        """Where (N,) the columns have to be missing."""
        return at_level(table[self.when], self.level) if self.when else table[self.columns[0]].missing

    @override
    def broken(self, table: Table) -> Tensor:
        absent_N = self.absent(table)
        return torch.stack([table[name].missing != absent_N for name in self.columns]).any(0)


class UniqueKey(Rule):
    """No two rows have the same values of these columns; rows that lack one of them do not count."""

    KIND = "unique"
    columns: tuple[str, ...]
    on_break: OnBreak = ""

    def _check(self) -> None:
        self._check_several(self.columns, 1)

    @property
    @override
    def named(self) -> tuple[str, ...]:
        return self.columns

    @property
    @override
    def in_words(self) -> str:
        return f"{', '.join(self.columns)} unique"

    @override
    def broken(self, table: Table) -> Tensor:
        columns = [table[name] for name in self.columns]
        place_N = _places(columns)
        whole_N = ~torch.stack([column.missing for column in columns]).any(0)
        first = torch.full((int(place_N.max()) + 1 if len(place_N) else 0,), len(place_N))
        rows_N = torch.arange(len(place_N))
        first.scatter_reduce_(0, place_N, rows_N, "amin")
        return whole_N & (first[place_N] != rows_N)


class ValueRange(Rule):
    """Values of a column of numbers, instants or durations lie between bounds, which may be reached."""

    KIND = "range"
    column: str
    low: str | int | float | None = None
    high: str | int | float | None = None
    on_break: OnBreak = ""

    def _check(self) -> None:
        if self.low is None and self.high is None:
            self._refuse("it has a low or a high bound", self.column, "Such as low = 0.")

    @property
    @override
    def named(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    @override
    def in_words(self) -> str:
        bounds = [("from", self.low), ("to", self.high)]
        return f"{self.column} {' '.join(f'{word} {bound}' for word, bound in bounds if bound is not None)}"

    @override
    def broken(self, table: Table) -> Tensor:
        column = table[self.column]
        beyond_N = torch.zeros(len(column), dtype=torch.bool)
        if isinstance(self.low, int | float):
            beyond_N |= column.values < self.low
        if isinstance(self.high, int | float):
            beyond_N |= column.values > self.high
        return beyond_N & ~column.missing


class Pattern(Rule):
    """Texts of a column match a regular expression as a whole."""

    KIND = "pattern"
    column: str
    pattern: str
    on_break: OnBreak = ""

    def _check(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            self._refuse(f"it has a regular expression of Python: {error}", self.pattern, 'Such as "[A-Z]{2}[0-9]+".')

    @property
    @override
    def named(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    @override
    def in_words(self) -> str:
        return f"{self.column} matches {self.pattern}"

    def matching(self, levels: Iterable[Any]) -> list[bool]:
        """Which levels match."""
        wanted = re.compile(self.pattern)
        return [wanted.fullmatch(str(level)) is not None for level in levels]

    @override
    def broken(self, table: Table) -> Tensor:
        column = table[self.column]
        matching = torch.tensor(self.matching(column.levels or ()) or [True])
        return ~matching[column.values] & ~column.missing


KINDS: dict[str, type[Rule]] = {
    kind.KIND: kind for kind in (FixedCombination, Inequality, Sum, NullTogether, UniqueKey, ValueRange, Pattern)
}


def read_rules(given: Iterable[Rule | Mapping[str, Any]]) -> tuple[Rule, ...]:
    """Rules, or mappings with the key ``kind`` and a rule's fields, as rules.

    Raises:
        ConfigError: an unknown kind or field, one that is missing, or a value that does not fit.
    """
    if isinstance(given, str | Mapping | Rule) or not isinstance(given, Iterable):
        raise ConfigError("Rules are a list", type(given).__name__, "Put the rule in brackets.")
    return tuple(one if isinstance(one, Rule) else _read(one) for one in given)


def _read(given: Any) -> Rule:
    if not isinstance(given, Mapping):
        raise ConfigError(
            "A rule is one of silosynth.rules, or a mapping", type(given).__name__, 'Such as {"kind": "sum", …}.'
        )
    kind = given.get("kind")
    if kind not in KINDS:
        raise ConfigError("A rule has a kind that exists", kind, nearest(str(kind), KINDS))
    fields = {field.name: field for field in dataclasses.fields(KINDS[kind])}
    said = {name: value for name, value in given.items() if name != "kind"}
    for name in said:
        if name not in fields:
            raise ConfigError(f"A rule of kind {kind!r} has no such key", name, nearest(name, fields))
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in said:
            raise ConfigError(f"A rule of kind {kind!r} lacks a key", name, f"It has {', '.join(fields)}.")
    try:
        return KINDS[kind](**said)
    except MessageError as error:
        field_name = error.rule.partition(".")[2]
        raise ConfigError(f"Rule of kind {kind!r}: {field_name}", error.value, "See docs/guide/rules.md.") from None


def to_mapping(rule: Rule) -> dict[str, Any]:
    """A rule as `read_rules` reads it, without what is as by default."""
    fields = [
        f for f in dataclasses.fields(rule) if f.default is dataclasses.MISSING or getattr(rule, f.name) != f.default
    ]
    return {"kind": rule.KIND} | {field.name: _lists(getattr(rule, field.name)) for field in fields}


def break_rates(table: Table, rules: Sequence[Rule]) -> list[int]:
    """How many rows break each rule."""
    return [int(rule.broken(table).sum()) for rule in rules]


def keeps_all(table: Table, rules: Sequence[Rule]) -> Tensor:
    """Which rows (N,) break none of the rules."""
    kept_N = torch.ones(len(table), dtype=torch.bool)
    for rule in rules:
        kept_N &= ~rule.broken(table)
    return kept_N


def added(values: Sequence[Tensor]) -> Tensor:
    """The sum (N,) of columns."""
    total = values[0]
    for more in values[1:]:
        total = total + more
    return total


def at_level(column: Column, level: Value) -> Tensor:
    """Where (N,) a column has a value."""
    if column.levels is None:
        return (column.values == level) & ~column.missing
    return torch.tensor([own == level for own in column.levels] or [False])[column.values] & ~column.missing


def key_of(values: Sequence[Value]) -> str:
    """A combination of values as a text from which `values_of` reads them."""
    return json.dumps([None if value == "" else value for value in values], ensure_ascii=False)


def values_of(key: str) -> list[Value]:
    """The values of `key_of`."""
    values: list[Value] = json.loads(key)
    return values


def combined(columns: Sequence[Column]) -> tuple[list[str], Tensor]:
    """The distinct combinations of N rows, as `key_of`, and the number of each row's."""
    place_N = _places(columns)
    first = torch.zeros(int(place_N.max()) + 1 if len(place_N) else 0, dtype=torch.int64)
    first[place_N] = torch.arange(len(place_N))
    held = [_values(column.take(first)) for column in columns]
    return [key_of(values) for values in zip(*held, strict=True)], place_N


def _values(column: Column) -> list[Value]:
    plain = column.values.tolist()
    values = plain if column.levels is None else [column.levels[code] if column.levels else None for code in plain]
    return [None if gone else value for value, gone in zip(values, column.missing.tolist(), strict=True)]


def _places(columns: Sequence[Column]) -> Tensor:
    """A number for each row (N,): the same exactly where rows have the same values."""
    place_N = torch.zeros(len(columns[0]), dtype=torch.int64)
    for column in columns:
        _, own_N = column.values.unique(return_inverse=True)
        own_N = torch.where(column.missing, 0, own_N + 1)
        place_N = place_N * (int(own_N.max()) + 1 if len(own_N) else 1) + own_N
        place_N = place_N.unique(return_inverse=True)[1]
    return place_N


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value
