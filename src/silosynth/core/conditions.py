"""Conditions: what synthetic rows are to hold in some columns, as plain values that a silo can be told.

Written alike in Python, JSON and TOML, and shorter on the command line:

==========================  ================================  ========================  ======================
meaning                     Python                            JSON, TOML                ``--given``
==========================  ================================  ========================  ======================
a level, or a number        ``"poor"``, ``0``                 ``"poor"``, ``0``         ``health=poor``
one of several              ``["poor", "fair"]``              ``["poor", "fair"]``      ``health=poor,fair``
a range, with its ends      ``(60, 80)``, ``(60, None)``      ``{low = 60, high = 80}``  ``age=60..80``, ``age=60..``
no value                    ``None``                          ``{missing = true}``      ``income=``
any of these                ``{"values": [0], "low": 9}``     ``{values = [0], low = 9}``
==========================  ================================  ========================  ======================

Shapes: N rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from silosynth.core.errors import ConfigError, nearest
from silosynth.core.messages import Struct
from silosynth.core.schema import Column, Table

Level: TypeAlias = str | int | float | bool
_KEYS = ("values", "low", "high", "missing")
_FORMS = "Give a level, a list of levels, a range (low, high), or None for missing values."


class Condition(Struct):
    """What rows hold in a column: one of ``values``, a number from ``low`` to ``high``, or, if ``missing``, no value.

    Numbers of instants and durations are nanoseconds, as in `Column`. A range with neither end is none.
    """

    column: str
    values: tuple[str | int | float | bool, ...] = ()
    low: float | None = None
    high: float | None = None
    missing: bool = False

    def holds(self, column: Column) -> Tensor:
        """Which rows (N,) bool of the column fulfil it."""
        if column.levels is None:
            found_N = self._holds(column.values.double(), column.values)
        else:
            of_level = torch.tensor([self.admits(level) for level in column.levels] or [False])
            found_N = of_level[column.values]
        return torch.where(column.missing, self.missing, found_N)

    def admits(self, level: Level) -> bool:
        """Whether a row with this level, or number, fulfils it."""
        if any(_same(level, value) for value in self.values):
            return True
        ranged = self.ranged and isinstance(level, int | float) and not isinstance(level, bool)
        return ranged and self._low <= float(level) <= self._high

    def _holds(self, number_N: Tensor, exact_N: Tensor) -> Tensor:
        found_N = torch.zeros(len(number_N), dtype=torch.bool)
        for value in self.values:
            found_N |= exact_N == value
        return found_N | ((number_N >= self._low) & (number_N <= self._high)) if self.ranged else found_N

    @property
    def ranged(self) -> bool:
        """Whether it has a range."""
        return self.low is not None or self.high is not None

    @property
    def _low(self) -> float:
        return -math.inf if self.low is None else self.low

    @property
    def _high(self) -> float:
        return math.inf if self.high is None else self.high


def _holds_whole(condition: Condition) -> bool:
    """Whether any whole number fulfils it."""
    between = condition.ranged and math.isfinite(condition._low) and math.isfinite(condition._high)
    ranged = condition.ranged and (not between or math.floor(condition._high) >= math.ceil(condition._low))
    return ranged or any(float(value).is_integer() for value in condition.values)


def fulfils(table: Table, conditions: Sequence[Condition]) -> Tensor:
    """Which rows (N,) bool of the table fulfil all conditions on columns that it has."""
    found_N = torch.ones(len(table), dtype=torch.bool)
    for condition in conditions:
        if condition.column in table.names:
            found_N &= condition.holds(table[condition.column])
    return found_N


@dataclass(frozen=True)
class Made:
    """What a generator can make of a column, by which conditions on it are read.

    Attributes:
        name: the column's.
        levels: of categories; None of numbers and instants.
        low, high: the range of numbers; None if it is not known.
        missing: whether rows without a value can be made.
        read: the number of a bound of numbers or instants, from whatever a user may write.
        whole: whether it holds whole numbers only.
    """

    name: str
    levels: tuple[Level, ...] | None
    low: float | None
    high: float | None
    missing: bool
    read: Callable[[Any], float]
    whole: bool = False

    def condition(self, given: Any) -> Condition:
        """The condition that ``given`` expresses.

        Raises:
            ConfigError: it is none, or no row that is made could fulfil it; names column, value and remedy.
        """
        made = self._parsed(given)
        if made.missing and not self.missing:
            raise ConfigError(
                f"Column {self.name!r} had a value in every training row, so no row is made without one", given,
                "Leave missing values out of the condition.",
            )  # fmt: skip
        if self.levels is not None:
            known = [level for level in self.levels if made.admits(level)]
            if not known and not made.missing:
                rule = f"No level of column {self.name!r} fulfils the condition"
                raise ConfigError(rule, given, nearest(str(given), map(str, self.levels)))
        elif not made.missing and self.whole and not _holds_whole(made):
            raise ConfigError(f"Column {self.name!r} holds whole numbers: no row fulfils the condition", given)
        elif not made.missing and not self._reaches(made):
            rule = f"Column {self.name!r} is made from {self.low:g} to {self.high:g}: no row fulfils the condition"
            raise ConfigError(rule, given, "Give values within that range.")
        return made

    def _reaches(self, made: Condition) -> bool:
        """Whether numbers from `low` to `high` fulfil a condition."""
        if self.low is None or self.high is None:
            return True
        low, high = self.low, self.high
        inside = any(not isinstance(value, str) and low <= value <= high for value in made.values)
        return inside or (made.ranged and made._low <= high and made._high >= low)

    def _parsed(self, given: Any) -> Condition:
        if is_absent(given):
            return Condition(self.name, missing=True)
        if isinstance(given, Mapping):
            return self._of_mapping(given)
        if isinstance(given, tuple):
            if self.levels is not None and not self._numbers:
                rule = f"Column {self.name!r} has levels, and (low, high) is a range of numbers"
                raise ConfigError(rule, given, f"Write a list of levels: {list(given)!r}.")
            if len(given) != 2:
                raise ConfigError(f"Column {self.name!r}: a range is (low, high)", given, f"{_FORMS}")
            return self._range(*given)
        if isinstance(given, list | set | frozenset):
            if not given:
                raise ConfigError(f"Column {self.name!r}: a list of levels names at least one", given, _FORMS)
            present = [value for value in given if not is_absent(value)]
            values = tuple(self._value(value) for value in _sorted(present))
            return Condition(self.name, values, missing=len(present) < len(given))
        return Condition(self.name, (self._value(given),))

    def _of_mapping(self, given: Mapping[str, Any]) -> Condition:
        unknown = [key for key in given if key not in _KEYS]
        if unknown or not given:
            remedy = nearest(str(unknown[0]), _KEYS) if unknown else _FORMS
            raise ConfigError(f"A condition on column {self.name!r} has {', '.join(_KEYS)}", dict(given), remedy)
        made = self._range(given.get("low"), given.get("high")) if {"low", "high"} & set(given) else None
        values = given.get("values", ())
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ConfigError(f"Column {self.name!r}: 'values' is a list", values, f"Write [{values!r}].")
        missing = given.get("missing", False)
        if not isinstance(missing, bool):
            raise ConfigError(f"Column {self.name!r}: 'missing' is true or false", missing)
        own = tuple(self._value(value) for value in values)
        return replace(made or Condition(self.name), values=own, missing=missing)

    @property
    def _numbers(self) -> bool:
        """Whether levels are numbers, which have ranges too."""
        levels = self.levels or ()
        return all(isinstance(level, int | float) and not isinstance(level, bool) for level in levels)

    def _range(self, low: Any, high: Any) -> Condition:
        if self.levels is not None and not self._numbers:
            rule = f"Column {self.name!r} has levels, which have no range"
            raise ConfigError(rule, (low, high), "Write a list of levels.")
        first, last = (None if is_absent(end) else self.read(end) for end in (low, high))
        if first is None and last is None:
            rule = f"Column {self.name!r}: a range has at least one end"
            raise ConfigError(rule, (low, high), "Leave the column out if it may hold anything.")
        if first is not None and last is not None and first > last:
            raise ConfigError(f"Column {self.name!r}: low must not exceed high", (low, high), "Swap them.")
        return Condition(self.name, (), first, last)

    def _value(self, value: Any) -> Level:
        """A level by its value, or by its name as text; a number as it is read."""
        if hasattr(value, "item") and callable(value.item) and not isinstance(value, str):
            value = value.item()  # NumPy's
        if self.levels is None:
            return self.read(value)
        for level in self.levels:
            if _same(level, value):
                return level
        named = [level for level in self.levels if not isinstance(level, str) and str(level) == str(value)]
        if named and isinstance(value, str):
            return named[0]
        rule = f"Column {self.name!r} has no level of this name"
        raise ConfigError(rule, str(value), nearest(str(value), map(str, self.levels)))


def parse(given: Any, columns: Mapping[str, Made]) -> tuple[Condition, ...]:
    """The conditions that ``given`` expresses, column by column; ``columns`` are those that are modelled.

    Raises:
        ConfigError: an unknown column (names the nearest), a condition that cannot be read, or one that no row fulfils.
    """
    if not isinstance(given, Mapping):
        rule = "Conditions are given by column"
        raise ConfigError(rule, type(given).__name__, 'Write {"health": "poor", "age": (60, 80)}.')
    for name in given:
        if name not in columns:
            rule = "A condition names a column that is modelled"
            raise ConfigError(rule, name, nearest(str(name), columns))
    return tuple(columns[name].condition(value) for name, value in given.items())


def from_text(texts: Sequence[str], columns: Mapping[str, Made]) -> dict[str, Any]:
    """What ``--given`` expresses: texts such as "age=60..80", or one JSON object. For `parse`.

    Raises:
        ConfigError: a text is neither, or a column is given twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        new = _from_json(text) if text.lstrip().startswith("{") else dict([_from_pair(text, columns)])
        twice = sorted(set(new) & set(found))
        if twice:
            raise ConfigError("A condition names each column once", twice[0], "List the values: health=poor,fair.")
        found |= new
    return found


def by_name(texts: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """What they express of columns of which no more is known than their names.

    Raises:
        ConfigError: as `from_text`; or a column is none of these (names the nearest).
    """
    found = from_text(texts, {name: Made(name, None, None, None, True, float) for name in names})
    for name in found:
        if name not in names:
            raise ConfigError("A condition names a column that is modelled", name, nearest(name, names))
    return found


def _from_json(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        remedy = 'Write it as in {"health": "poor", "age": {"low": 60, "high": 80}}.'
        raise ConfigError("Conditions in JSON are one object", text, remedy) from error


def _from_pair(text: str, columns: Mapping[str, Made]) -> tuple[str, Any]:
    names = [name for name in columns if text.startswith(f"{name}=")]
    name = max(names, key=len) if names else text.partition("=")[0]
    if "=" not in text:
        raise ConfigError("A condition is written COLUMN=VALUE", text, "Such as health=poor or age=60..80.")
    value = text[len(name) + 1 :]
    levels = columns[name].levels if name in columns else None
    if value == "":
        return name, None
    if levels is not None and value in map(str, levels):
        return name, value
    low, dots, high = value.partition("..")
    if dots and (levels is None or columns[name]._numbers):
        return name, (_number(low) if low else None, _number(high) if high else None)
    parts = value.split(",")
    if levels is not None:
        return name, parts if len(parts) > 1 else value
    return name, [_number(part) for part in parts]


def _number(text: str) -> Any:
    """The number that a text is; other texts, such as dates, as they are."""
    try:
        return float(text)
    except ValueError:
        return text


def _same(level: Level, value: Any) -> bool:
    """Whether they are equal, and both or neither are booleans or texts."""
    kinds = [(isinstance(one, bool), isinstance(one, str)) for one in (level, value)]
    return kinds[0] == kinds[1] and bool(level == value)


def is_absent(value: Any) -> bool:
    """Whether it is None, NaN, or what pandas has in their place."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)


def _sorted(values: Sequence[Any]) -> list[Any]:
    """In an order that does not depend on a set's."""
    return sorted(values, key=lambda value: (str(type(value)), str(value)))
