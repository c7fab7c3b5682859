"""Rules bound to the columns that they are about: names and kinds checked, values as tables hold them.

A user writes what a CSV file would: dates as text, whole numbers where a column is of floats. `bind` turns these into
what `silosynth.core.rules` compares, and refuses rules that cannot be kept: unknown columns, kinds that do not fit,
bounds that contradict each other, inequalities that form a circle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from silosynth.core.errors import ConfigError, DataError, SchemaError, nearest
from silosynth.core.files import existing
from silosynth.core.rules import (
    FixedCombination,
    Inequality,
    NullTogether,
    Pattern,
    Rule,
    Sum,
    Value,
    ValueRange,
)
from silosynth.core.schema import DURATIONS, UNMODELLED, ColumnSchema, Kind, Schema, Table
from silosynth.data import sources
from silosynth.data.dtypes import detail
from silosynth.data.infer import read_number
from silosynth.data.texts import is_date_form

_DAY, _HOUR, _MINUTE, _SECOND = 86_400_000_000_000, 3_600_000_000_000, 60_000_000_000, 1_000_000_000
_UNITS = {"[s": _SECOND, "[ms": 1_000_000, "[us": 1000}
_TRUE = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}


def bind(rules: Iterable[Rule], schema: Schema, table: Table, folder: Path | None = None) -> tuple[Rule, ...]:
    """The rules with values as ``table`` holds them, and sums with their tolerance.

    Args:
        rules: as they were declared.
        schema: of all columns that they may name.
        table: of the columns that are modelled; only the types of its values are looked at.
        folder: that files of combinations are relative to.

    Raises:
        ConfigError, SchemaError, StorageError: a rule names columns that there are not, or that are not modelled or of
            another kind; has values that fit no column; or contradicts bounds or another rule.
    """
    bound = []
    for rule in rules:
        for name in rule.named:
            _check_column(rule, name, schema)
        bound.append(_bound(rule, schema, table, folder))
    _check_together(bound, tightened(schema, bound))
    return tuple(bound)


def tightened(schema: Schema, rules: Sequence[Rule]) -> Schema:
    """The schema with the bounds of ranges."""
    columns = {column.name: column for column in schema.columns}
    for rule in rules:
        if isinstance(rule, ValueRange) and rule.column in columns:
            column = columns[rule.column]
            lows, highs = ([end for end in ends if end is not None] for ends in _ends(column, rule))
            columns[rule.column] = replace(column, low=max(lows, default=None), high=min(highs, default=None))
    return Schema(tuple(columns.values()))


def _ends(column: ColumnSchema, rule: ValueRange) -> tuple[list[Any], list[Any]]:
    return [column.low, rule.low], [column.high, rule.high]


def grids(schema: Schema) -> dict[str, float]:
    """Of columns of numbers and instants: the finest grid that decimals and dtype can hold; 0 for none."""
    return {column.name: _grid(column) for column in schema.columns if Kind(column.kind).numeric}


def _grid(column: ColumnSchema) -> float:
    if column.kind != Kind.DATETIME.value:
        return 0.0 if column.decimals is None else 10.0**-column.decimals
    form = detail(column.dtype)
    if form == "date" or column.dtype.startswith("date32"):
        return _DAY
    if is_date_form(form):
        codes = {code: unit for unit, codes in _CODES.items() for code in codes}
        return min((codes.get(code, _DAY) for code in re.findall(r"%[-^]?\d?([A-Za-z])", form)), default=_DAY)
    return next((unit for sign, unit in _UNITS.items() if sign in column.dtype), 1)


_CODES = {1: "fN", _SECOND: "STsXc", _MINUTE: "M", _HOUR: "HI"}


def _fail(rule: Rule, what: str, value: Any, remedy: str) -> NoReturn:
    raise ConfigError(f"Rule {rule.in_words!r} of kind {rule.KIND!r}: {what}", value, remedy)


def _check_column(rule: Rule, name: str, schema: Schema) -> None:
    if name not in schema.names:
        _fail(rule, "no silo has such a column", name, nearest(name, schema.names))
    if schema[name].kind in UNMODELLED:
        remedy = "Leave the rule out, or declare the column of another kind."
        _fail(rule, f"this column is of kind {schema[name].kind!r}: no values of it are learnt", name, remedy)


def _bound(rule: Rule, schema: Schema, table: Table, folder: Path | None) -> Rule:
    match rule:
        case FixedCombination():
            return _bound_combination(rule, schema, table, folder)
        case Inequality():
            check_alike(rule, rule.named, schema)
        case Sum():
            return _bound_sum(rule, schema)
        case NullTogether():
            for name in rule.columns:
                if re.fullmatch(r"bool|u?int\d+", schema[name].dtype):
                    remedy = "Use a dtype that can, such as Int64, or leave the rule out."
                    _fail(rule, f"column {name!r} cannot be missing", schema[name].dtype, remedy)
            if rule.when:
                return replace(rule, level=_value(rule, schema[rule.when], table, rule.level))
        case ValueRange():
            if not Kind(schema[rule.column].kind).numeric:
                _fail(
                    rule, "only numbers, dates and durations have a range", schema[rule.column].kind, "Use a pattern."
                )
            low, high = (
                None if end is None else read_number(schema[rule.column], end) for end in (rule.low, rule.high)
            )
            return replace(rule, low=low, high=high)
        case Pattern():
            if Kind(schema[rule.column].kind).numeric:
                _fail(rule, "only texts match a pattern", schema[rule.column].kind, "Use a range.")
    return rule


def own_parts(rule: FixedCombination, schema: Schema, table: Table) -> list[tuple[Value, ...]]:
    """Of each allowed combination the part that is about columns of ``table``, as these hold values.

    Raises:
        ConfigError: a column holds no such values.
    """
    own = [place for place, name in enumerate(rule.columns) if name in table.names]
    return [tuple(_value(rule, schema[rule.columns[k]], table, values[k]) for k in own) for values in rule.allowed]


def own_level(rule: NullTogether, schema: Schema, table: Table) -> Value:
    """The level of ``when``, as that column of ``table`` holds it.

    Raises:
        ConfigError: it holds no such values.
    """
    return _value(rule, schema[rule.when], table, rule.level)


def check_alike(rule: Rule, names: Sequence[str], schema: Schema) -> None:
    """Refuse to compare columns of different kinds.

    Raises:
        ConfigError: names them.
    """
    kinds = {name: _sort(schema[name]) for name in names}
    if "other" in kinds.values() or len(set(kinds.values())) > 1:
        remedy = "Name columns that are all numbers, all dates, or all durations; or declare their kinds."
        _fail(rule, "its columns can be compared", ", ".join(f"{n}: {schema[n].kind}" for n in kinds), remedy)


def _sort(column: ColumnSchema) -> str:
    """What a column can be compared with."""
    if column.kind == Kind.DATETIME.value:
        return "duration" if column.dtype.startswith(DURATIONS) else "instant"
    return "number" if Kind(column.kind).numeric else "other"


def _bound_sum(rule: Sum, schema: Schema) -> Sum:
    parts, total = [_sort(schema[name]) for name in rule.parts], _sort(schema[rule.total])
    instants = sorted({"duration" if part == "instant" else part for part in parts})
    later = total == "instant" and parts.count("instant") == 1 and instants == ["duration"]  # a date and durations
    if not later and (total == "instant" or len({*parts, total}) > 1 or "other" in parts):
        kinds = ", ".join(f"{name}: {schema[name].kind}" for name in rule.named)
        _fail(rule, "numbers or durations are added, or durations to a date", kinds, "Name such columns.")
    if rule.tolerance is not None:
        return rule
    grid = _grid(schema[rule.total])
    return replace(rule, tolerance=(grid / 2) * (1 + 1e-6) if grid and total == "number" else 0.0)


def _bound_combination(rule: FixedCombination, schema: Schema, table: Table, folder: Path | None) -> FixedCombination:
    listed = _in_file(rule, folder) if rule.file else rule.allowed
    rows = [tuple(_value(rule, schema[n], table, v) for n, v in zip(rule.columns, row, strict=True)) for row in listed]
    for name, values in zip(rule.columns, zip(*rows, strict=True), strict=False):
        column = schema[name]
        for value in values:
            number = isinstance(value, int | float) and Kind(column.kind).numeric
            if number and not (_least(column) <= value <= _most(column)):
                bounds = f"{column.low} to {column.high}"
                _fail(rule, f"its values of {name!r} lie within the column's bounds, {bounds}", value, "Widen these.")
    return replace(rule, allowed=tuple(dict.fromkeys(rows)), file="")


def listed(rule: Rule) -> Rule:
    """The rule, with the combinations of its file, if it names one, in place of the file's name.

    Raises:
        StorageError, ConfigError: there is no such file, or it lists no combinations of these columns.
    """
    if not isinstance(rule, FixedCombination) or not rule.file:
        return rule
    plain = [tuple(_plain(value) for value in row) for row in _in_file(rule, None)]
    return replace(rule, allowed=tuple(plain), file="")


def _plain(value: Any) -> Value:
    """A value of a file as a rule may hold it; instants as text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _least(column: ColumnSchema) -> float:
    return -np.inf if column.low is None else column.low


def _most(column: ColumnSchema) -> float:
    return np.inf if column.high is None else column.high


def _in_file(rule: FixedCombination, folder: Path | None) -> list[tuple[Any, ...]]:
    """The combinations of a file: of a CSV file as it is written, without guesses at kinds."""
    path = existing((folder or Path()) / Path(rule.file).expanduser())
    csv = sources.is_csv(path)
    frame = pd.read_csv(path, dtype=str, keep_default_na=False) if csv else sources.read(path)
    for name in rule.columns:
        if name not in frame.columns:
            _fail(rule, f"the file {path.name} lacks a column", name, nearest(name, list(map(str, frame.columns))))
    if not len(frame):
        _fail(rule, f"the file {path.name} lists combinations", "0 rows", "Give at least one.")
    held = frame[list(rule.columns)].drop_duplicates()
    return [tuple(None if pd.isna(value) else value for value in row) for row in held.itertuples(index=False)]


def _value(rule: Rule, column: ColumnSchema, table: Table, value: Any) -> Value:
    """A user's value as the column holds it."""
    if value is None or (isinstance(value, str) and value == ""):
        return None
    own = table[column.name]
    if own.levels is None:
        try:
            plain = float(value) if isinstance(value, str) and column.kind != Kind.DATETIME.value else value
            number = read_number(column, plain)
        except (SchemaError, ValueError):
            _fail(rule, f"column {column.name!r} holds no such values", value, f"Its kind is {column.kind!r}.")
        if own.values.is_floating_point():
            return number
        if number != int(number):
            _fail(rule, f"column {column.name!r} holds whole numbers", value, "Round it, or declare it continuous.")
        return int(number)
    wanted = type(own.levels[0]) if own.levels else str
    try:
        if wanted is bool:
            return value if isinstance(value, bool) else _TRUE[str(value).lower()]
        if wanted is int and float(value) == int(float(value)):
            return int(float(value))
        return float(value) if wanted is float else str(value)
    except (KeyError, ValueError):
        _fail(rule, f"column {column.name!r} has levels of another type", value, f"They are of type {wanted.__name__}.")


def _check_together(rules: Sequence[Rule], schema: Schema) -> None:
    """Refuse what no row can keep."""
    joined: dict[str, Rule] = {}
    totals: dict[str, Rule] = {}
    for rule in rules:
        match rule:
            case FixedCombination():
                for name in rule.columns:
                    if name in joined:
                        remedy = "Join them into one rule of all their columns."
                        _fail(rule, "a column is in one rule of fixed combinations", name, remedy)
                    joined[name] = rule
            case Sum():
                if rule.total in totals:
                    _fail(rule, "a column is the total of one sum", rule.total, "Leave out the other rule.")
                totals[rule.total] = rule
                _check_sum(rule, schema)
            case Inequality():
                low, high = schema[rule.low], schema[rule.high]
                if low.low is not None and high.high is not None and low.low > high.high - rule.strict * _grid(high):
                    bounds = f"{rule.low} from {low.low:g}, {rule.high} to {high.high:g}"
                    _fail(rule, "the columns' bounds let no row keep it", bounds, "Correct the bounds or the rule.")
            case ValueRange():
                own = schema[rule.column]
                if own.low is not None and own.high is not None and own.low > own.high:
                    bounds = f"from {own.low:g} to {own.high:g}"
                    _fail(
                        rule, "with the column's bounds it leaves no value", bounds, "Correct the bounds or the rule."
                    )
            case _:
                pass
    for pattern in (rule for rule in rules if isinstance(rule, Pattern)):
        for one in (rule for rule in rules if isinstance(rule, FixedCombination)):
            _check_pattern(pattern, one)
    _check_circles(rules)


def _check_sum(rule: Sum, schema: Schema) -> None:
    parts, total = [schema[name] for name in rule.parts], schema[rule.total]
    least, most = sum(map(_least, parts)), sum(map(_most, parts))
    slack = rule.tolerance or 0.0
    if least > _most(total) + slack or most < _least(total) - slack:
        bounds = f"{least:g} to {most:g}, and the total {_least(total):g} to {_most(total):g}"
        _fail(rule, "the columns' bounds let no row keep it: parts add up to", bounds, "Correct the bounds.")


def _check_pattern(pattern: Pattern, one: FixedCombination) -> None:
    if pattern.column in one.columns:
        place = one.columns.index(pattern.column)
        values = [values[place] for values in one.allowed if values[place] is not None]
        wrong = [value for value, fits in zip(values, pattern.matching(values), strict=True) if not fits]
        if wrong:
            _fail(pattern, "allowed combinations match it as well", wrong[0], "Correct the list or the pattern.")


def _check_circles(rules: Sequence[Rule]) -> None:
    """Refuse columns that are, by way of others, below themselves or parts of themselves."""
    above: dict[str, set[str]] = {}
    of: dict[tuple[str, str], Rule] = {}
    for rule in rules:
        pairs: Iterable[tuple[str, str]] = ()
        if isinstance(rule, Inequality):
            pairs = [(rule.low, rule.high)]
        elif isinstance(rule, Sum):
            pairs = [(part, rule.total) for part in rule.parts]
        for low, high in pairs:
            kind = f"{rule.KIND} "
            above.setdefault(kind + low, set()).add(kind + high)
            of[kind + low, kind + high] = rule
    for start in above:
        seen, waiting = set[str](), list(above[start])
        while waiting:
            name = waiting.pop()
            if name == start:
                rule = next(rule for (low, _), rule in of.items() if low == start)
                _fail(rule, "rules form no circle", start.partition(" ")[2], "Leave one of them out.")
            if name not in seen:
                seen.add(name)
                waiting += above.get(name, ())


def check_breaks(rules: Mapping[Rule, int], rows: int, silo: str, private: bool) -> list[str]:
    """What a silo says of its own rows that break rules: how many. The counts are exact: they are for the silo itself.

    Args:
        rules: how many rows break each.
        rows: how many there are.
        silo: whose they are.
        private: whether noise protects rows.

    Raises:
        DataError: a rule with ``on_break = "error"``, which is the default without noise, is broken.
    """
    said = []
    for rule, count in rules.items():
        if count and (rule.on_break or ("ignore" if private else "error")) == "error":  # type: ignore[attr-defined]
            raise DataError(
                f"Silo {silo!r}: every row keeps the rule {rule.in_words!r}",
                f"{count:,} of {rows:,} rows break it",
                'Correct the rows or the rule; or declare on_break = "ignore": synthetic rows keep it nonetheless.',
            )
        if count:
            said.append(
                f"Silo {silo!r}: {count:,} of {rows:,} rows break the rule {rule.in_words!r}; synthetic rows keep it"
            )
    return said
