"""A silo's columns as they are learnt where rules hold, and back: rows keep rules by the way that they are described.

Before training every row is described anew, by itself (`Ruled.describe`); when rows are drawn, that is undone
(`Ruled.restore`), so that generators of all kinds learn tables in which rules cannot be broken:

- *Fixed combinations* are one category, whose levels are the combinations. Levels that are pooled, or that noise left
  out, become one of the allowed combinations that have no name.
- *Null together*: the first column (or ``when``) says where values are missing. A value that is missing where it must
  not be is another row's.
- *Sums*: the total is computed. It is not modelled where nothing can be missing.
- *Inequalities*: the larger column is modelled as its difference from the smaller one (the largest of them, if it is
  above several). Where rounding or bounds leave no room, the difference is drawn again among those that fit.
- *Ranges* are the bounds of the column's encoder. *Patterns*: a level that does not match becomes another row's.

What it takes from rows (the ends of a column without bounds, a value near the mean in place of a missing one, whether
anything is missing) it takes only where the caller says that it may: never where noise protects rows, nor where silos
hold different rows, which must describe them alike. All else is public, and a row's description depends on no other
row: what is proved of a training with differential privacy stays true.

Where several rules claim one column, the first way is taken; the others hold by drawing rows again: see
`silosynth.core.rules.keeps_all`.

Shapes: N rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silosynth.core import rules as ruling
from silosynth.core.errors import DataError
from silosynth.core.messages import Struct
from silosynth.core.rules import FixedCombination, Inequality, NullTogether, Pattern, Rule, Sum, Value
from silosynth.core.schema import DURATIONS, Column, ColumnSchema, Kind, Schema, Table
from silosynth.core.streams import Streams
from silosynth.encoders.column import RARE, EncoderConfig, NumericEncoder, fit_encoder

_LENGTH = "timedelta64[ns]"


class Joined(Struct):
    """Columns that are modelled as one category.

    Attributes:
        name: of the category.
        columns: what they are.
        plain: which of them hold numbers or instants, rather than levels; of these, ``whole`` ones as int64.
        allowed: all combinations, as `silosynth.core.rules.key_of`; none where they are learnt.
    """

    name: str
    columns: tuple[ColumnSchema, ...]
    plain: tuple[bool, ...]
    whole: tuple[bool, ...]
    allowed: tuple[str, ...]

    def describe(self, table: Table) -> Column:
        """The category of N rows; a combination that is not allowed becomes one of those most like it, the same always.

        Drawn for each row, by public numbers, one row more would change what all rows after it become.
        """
        keys, place_N = ruling.combined([table[column.name] for column in self.columns])
        levels = self.allowed or tuple(sorted(keys))
        number = {key: code for code, key in enumerate(levels)}
        for key in set(keys) - set(number):
            like = _most_like(key, levels)
            number[key] = like[Streams(0).child("rules", self.name, key).integer() % len(like)]
        code_N = torch.tensor([number[key] for key in keys] or [0])[place_N]
        return Column(self.name, "object", code_N, torch.zeros(len(table), dtype=torch.bool), levels)

    def restore(self, column: Column, rng: np.random.Generator) -> list[Column]:
        """The columns of N drawn rows."""
        held = [str(level) for level in column.levels or () if level != RARE]
        others = [key for key in self.allowed if key not in held]
        keys = sorted([*held, *others]) if self.allowed else held
        if not keys:
            names = ", ".join(one.name for one in self.columns)
            raise DataError(
                f"Combinations of {names} were to be learnt, and enough rows hold none", 0, "List what is allowed."
            )
        number = {key: code for code, key in enumerate(keys)}
        code_N = torch.tensor([number.get(str(level), -1) for level in column.levels or ()] or [-1])[column.values]
        code_N = torch.where(column.missing, -1, code_N)
        unnamed = (code_N < 0).nonzero().flatten()
        known = code_N[code_N >= 0].numpy()
        pool = np.array([number[key] for key in others]) if others else known if len(known) else np.arange(len(keys))
        code_N[unnamed] = torch.from_numpy(rng.choice(pool, len(unnamed)))
        return [column.take(code_N) for column in self.columns_of(keys)]

    def columns_of(self, keys: Sequence[str]) -> list[Column]:
        """The columns of these combinations."""
        values = [ruling.values_of(key) for key in keys]
        return [self._column(place, [row[place] for row in values]) for place in range(len(self.columns))]

    def _column(self, place: int, values: Sequence[Value]) -> Column:
        """The column of all combinations."""
        name, dtype = self.columns[place].name, self.columns[place].dtype
        missing = torch.tensor([value is None for value in values])
        if self.plain[place]:
            numbers = [0 if value is None else value for value in values]
            kind = torch.int64 if self.whole[place] else torch.float64
            return Column(name, dtype, torch.tensor(numbers, dtype=kind), missing)
        levels = tuple(sorted({value for value in values if value is not None}))
        codes = torch.tensor([0 if value is None else levels.index(value) for value in values])
        return Column(name, dtype, codes, missing, levels)


class Summed(Struct):
    """A column that is the sum of others.

    Attributes:
        total: what it is.
        parts: the columns that are added.
        modelled: whether it is modelled as well, for where something is missing.
        whole: whether its values are int64.
        grid: of its values; 0 for none.
    """

    total: ColumnSchema
    parts: tuple[str, ...]
    modelled: bool
    whole: bool
    grid: float

    @property
    def name(self) -> str:
        """The total's name."""
        return self.total.name

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that it is computed from."""
        return self.parts

    def restore(self, known: dict[str, Column], rng: np.random.Generator) -> None:
        """Add the total of N drawn rows; where that would be out of its bounds, the last part is drawn again."""
        parts = [known[name] for name in self.parts]
        present_N = ~torch.stack([part.missing for part in parts]).any(0)
        rest, last = ruling.added([part.values for part in parts[:-1]]), parts[-1]
        least, most = _limits(self.total.low, self.total.high, rest)
        moved = between(last.values, least - rest.double(), most - rest.double(), present_N, rng)
        known[last.name] = last = replace(last, values=moved)
        total = on_grid(rest + last.values, self.grid, self.whole)
        if self.name in known:
            own = known[self.name]
            known[self.name] = replace(own, values=torch.where(present_N & ~own.missing, total, own.values))
        else:
            total = torch.where(present_N, total, 0)
            known[self.name] = Column(self.name, self.total.dtype, total, ~present_N)


class Above(Struct):
    """A column that is modelled as its difference from the largest of others.

    Attributes:
        column: what it is.
        lows: the columns that it is not below.
        strict: of these, which it is above.
        anchor: what takes the place of ``lows`` that are all missing.
        least, most: bounds of the column.
        whole: whether its values are int64.
        grid, step: of its values, 0 for none; and how far it is above where it is.
    """

    column: ColumnSchema
    lows: tuple[str, ...]
    strict: tuple[bool, ...]
    anchor: float
    least: float | None
    most: float | None
    whole: bool
    grid: float
    step: float

    @property
    def name(self) -> str:
        """The column's name."""
        return self.column.name

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that it is computed from."""
        return self.lows

    def describe(self, table: Table) -> Column:
        """The differences of N rows."""
        column, (base, _) = table[self.name], self._base({name: table[name] for name in self.lows}, len(table))
        values = torch.where(column.missing, 0, column.values - base)
        return replace(column, dtype=self.dtype, values=values)

    @property
    def dtype(self) -> str:
        """Of the differences."""
        instants = self.column.kind == Kind.DATETIME.value and not self.column.dtype.startswith(DURATIONS)
        return _LENGTH if instants else self.column.dtype

    def restore(self, known: dict[str, Column], rng: np.random.Generator) -> None:
        """Replace the differences of N drawn rows by the column."""
        drawn = known[self.name]
        base, limit = self._base(known, len(drawn))
        least, most = _limits(self.least, self.most, base)
        least = torch.maximum(least, limit)
        rough = on_grid(base + drawn.values, self.grid, self.whole)
        outside_N = (rough.double() < least) | (rough.double() > most)
        again = between(drawn.values, least - base.double(), most - base.double(), ~drawn.missing, rng, outside_N)
        made = on_grid(base + again, self.grid, self.whole)
        low_N = made.double() < limit  # by rounding: up to the next value
        made = torch.where(
            low_N, on_grid(torch.where(low_N, limit, made).to(made.dtype), self.grid, self.whole, True), made
        )
        values = torch.where(drawn.missing, 0, made)
        known[self.name] = Column(self.name, self.column.dtype, values, drawn.missing)

    def _base(self, columns: Mapping[str, Column], n: int) -> tuple[Tensor, Tensor]:
        """What differences (N,) are counted from; and the least values that the column may have, -inf for any."""
        base = torch.full((n,), -math.inf, dtype=torch.float64)
        limit, found_N, whole = base.clone(), torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
        for name, strict in zip(self.lows, self.strict, strict=True):
            low = columns[name]
            values = low.values
            if self.whole:
                values = values.ceil().long() if values.is_floating_point() else values
                whole = torch.where(~low.missing & (~found_N | (values > whole)), values, whole)
            found_N = found_N | ~low.missing
            exact = values.double()
            base = torch.where(low.missing, base, torch.maximum(base, exact))
            over = exact + self.step if self.step else torch.nextafter(exact, torch.tensor(math.inf).double())
            limit = torch.where(low.missing, limit, torch.maximum(limit, over if strict else exact))
        if self.whole:
            return torch.where(found_N, whole, int(self.anchor)), limit
        return torch.where(found_N, base, float(self.anchor)), limit


class Ruled(Struct):
    """How a silo's table is described where rules hold.

    Attributes:
        names: its columns in order.
        schema: what is modelled.
        patterns, nulls: rules that are repaired.
        joined, computed: see there; ``computed`` in the order in which they are restored.
        drop: columns that the description lacks.
    """

    names: tuple[str, ...]
    schema: Schema
    patterns: tuple[Pattern, ...]
    nulls: tuple[NullTogether, ...]
    joined: tuple[Joined, ...]
    computed: tuple[Summed | Above, ...]
    drop: tuple[str, ...]

    @property
    def anew(self) -> set[str]:
        """The columns that are described by others, or as differences: values that are drawn are not theirs."""
        return {column.name for one in self.joined for column in one.columns} | {one.name for one in self.computed}

    def describe(self, table: Table) -> Table:
        """The table (N rows) as it is learnt, in the schema's order."""
        known = {column.name: column for column in table.columns}
        for rule in self.nulls:
            absent_N = rule.absent(table)
            for name in rule.columns:
                missing = known[name].missing | absent_N
                known[name] = replace(known[name], missing=missing, values=torch.where(missing, 0, known[name].values))
        whole = Table(tuple(known.values()))
        for one in self.joined:
            known[one.name] = one.describe(whole)
        for other in self.computed:
            if isinstance(other, Above):
                known[other.name] = other.describe(whole)
        return Table(tuple(known[name] for name in self.schema.names if name in known))

    def restore(self, drawn: Table, rng: np.random.Generator) -> Table:
        """The columns (N rows) of a drawn description, in the table's order."""
        known = {column.name: column for column in drawn.columns}
        for one in self.joined:
            for column in one.restore(known.pop(one.name), rng):
                known[column.name] = column
        for pattern in self.patterns:
            known[pattern.column] = _matched(known[pattern.column], pattern, rng)
        for rule in self.nulls:
            _together(known, rule, rng)
        for other in self.computed:
            other.restore(known, rng)
        return Table(tuple(known[name] for name in self.names if name in known))


def ruled(
    schema: Schema,
    rules: Sequence[Rule],
    grids: Mapping[str, float],
    like: Table,
    rows: Table | None = None,
    least: int = 1,
) -> Ruled:
    """How columns are described where these rules hold, which are bound, and about columns of ``schema`` alone.

    Args:
        schema: with the bounds of ranges.
        grids: of columns of numbers and instants: the finest that their dtype and decimals can hold; 0 for none.
        like: a table of these columns; only the types of its values are looked at.
        rows: the rows, if what is described may depend on them.
        least: how many of them stand at least behind an end of a range, if more than encoders have by default.
    """
    plans = _Plans(schema, grids, like, rows, least)
    combinations = [rule for rule in rules if isinstance(rule, FixedCombination)]
    joined = tuple(plans.join(rule) for rule in combinations)
    taken = {column.name for one in joined for column in one.columns}
    nulls = tuple(rule for rule in rules if isinstance(rule, NullTogether) and not taken & set(rule.columns))
    together = {name for rule in nulls for name in rule.columns}
    sums = [rule for rule in rules if isinstance(rule, Sum) and rule.total not in taken]
    computed: list[Summed | Above] = [plans.sum(rule, together) for rule in sums]
    above: dict[str, list[Inequality]] = {}
    for rule in rules:
        if isinstance(rule, Inequality) and rule.high not in taken | {one.name for one in computed}:
            above.setdefault(rule.high, []).append(rule)
    computed += [plans.above(own) for own in above.values()]
    patterns = tuple(rule for rule in rules if isinstance(rule, Pattern) and rule.column not in taken)
    drop = {one.name for one in computed if isinstance(one, Summed) and not one.modelled} | taken
    described = {one.name: plans.difference(one) for one in computed if isinstance(one, Above)}
    first = {one.columns[0].name: ColumnSchema(one.name, Kind.CATEGORICAL.value, "object") for one in joined}
    columns = [
        first.get(column.name) or described.get(column.name, column)
        for column in schema.columns
        if column.name not in drop or column.name in first
    ]
    ordered = tuple(_ordered(computed))
    return Ruled(schema.names, Schema(tuple(columns)), patterns, nulls, joined, ordered, tuple(sorted(drop)))


class _Plans:
    """What is known of the columns that rules are about."""

    def __init__(self, schema: Schema, grids: Mapping[str, float], like: Table, rows: Table | None, least: int) -> None:
        self.schema, self.grids, self.like, self.rows = schema, grids, like, rows
        self.encoders = EncoderConfig(min_count=max(least, EncoderConfig().min_count))

    def join(self, rule: FixedCombination) -> Joined:
        columns = tuple(self.schema[name] for name in rule.columns)
        plain = tuple(self.like[name].levels is None for name in rule.columns)
        whole = tuple(not self.like[name].values.is_floating_point() for name in rule.columns)
        name = " & ".join(rule.columns)
        while name in self.schema.names:
            name += " &"
        return Joined(name, columns, plain, whole, tuple(sorted(set(map(ruling.key_of, rule.allowed)))))

    def sum(self, rule: Sum, together: set[str]) -> Summed:
        modelled = rule.total in together or any(map(self.optional, rule.named))
        whole = not self.like[rule.total].values.is_floating_point()
        return Summed(self.schema[rule.total], rule.parts, modelled, whole, float(self.grids.get(rule.total, 0)))

    def above(self, rules: Sequence[Inequality]) -> Above:
        column, lows = self.schema[rules[0].high], tuple(rule.low for rule in rules)
        least, most = self._ends(column)
        whole, grid = not self.like[column.name].values.is_floating_point(), float(self.grids.get(column.name, 0))
        strict = tuple(rule.strict for rule in rules)
        step = max(grid, 1.0) if whole else grid
        return Above(column, lows, strict, self._anchor(lows[0]), least, most, whole, grid, step)

    def difference(self, one: Above) -> ColumnSchema:
        """What the differences are: bounded where all columns are."""
        column, lows = one.column, [self.schema[name] for name in one.lows]
        places = [own.decimals for own in (column, *lows)]
        decimals = None if None in places else max(place for place in places if place is not None)
        low, high = None, None
        bounds = [bound for own in (column, *lows) for bound in (own.low, own.high)]
        if None not in bounds:
            optional = all(map(self.optional, one.lows))
            starts = [own.low for own in lows if own.low is not None] + [one.anchor] * optional
            assert column.low is not None and column.high is not None
            low = min(0, column.low - one.anchor) if optional else 0
            high = max(column.high - min(starts), low)
        return replace(column, dtype=one.dtype, decimals=decimals, low=low, high=high, missing=())

    def optional(self, name: str) -> bool:
        """Whether values of a column can be missing: in its rows, or by its dtype if they are not looked at."""
        if self.rows is not None:
            return bool(self.rows[name].missing.any())
        return re.fullmatch(r"bool|u?int\d+", self.schema[name].dtype) is None

    def _ends(self, column: ColumnSchema) -> tuple[float | None, float | None]:
        """Declared bounds, else those that the column's encoder would have."""
        if None not in (column.low, column.high) or self.rows is None:
            return column.low, column.high
        rows = self.rows[column.name]
        if not bool((~rows.missing).any()):
            return column.low, column.high
        encoder = fit_encoder(rows, column, self.encoders, np.random.default_rng(0))
        assert isinstance(encoder, NumericEncoder)
        return (encoder.low if column.low is None else column.low), (
            encoder.high if column.high is None else column.high
        )

    def _anchor(self, name: str) -> float:
        """A value near the middle of a column."""
        column, grid = self.schema[name], max(1.0, self.grids.get(name, 0.0))
        middle = 0.0
        if column.low is not None and column.high is not None:
            middle = (column.low + column.high) / 2
        elif self.rows is not None and self.optional(name):
            rows = self.rows[name]
            middle = float(rows.values[~rows.missing].double().mean()) if bool((~rows.missing).any()) else 0.0
        return int(middle // grid * grid)


def _ordered(computed: Sequence[Summed | Above]) -> Iterator[Summed | Above]:
    """Each after those that it is computed from; without circles, which rules do not form."""
    waiting = {one.name: one for one in computed}
    while waiting:
        free = [one for one in waiting.values() if not set(one.sources) & set(waiting)] or [
            next(iter(waiting.values()))
        ]
        for one in free:
            del waiting[one.name]
            yield one


def between(
    values: Tensor,
    low: Tensor,
    high: Tensor,
    present_N: Tensor,
    rng: np.random.Generator,
    outside: Tensor | None = None,
) -> Tensor:
    """Values (N,) that lie between ends (N,): those outside are drawn from the others', given that they lie between.

    Where no other row's does, the value is moved to the nearer end.
    """
    exact = values.double()
    bad = ((exact < low) | (exact > high)) if outside is None else outside
    rows = (bad & present_N & (low <= high)).nonzero().flatten()
    if not len(rows):
        return values
    pool = exact[present_N].sort().values
    first = torch.searchsorted(pool, low[rows].contiguous())
    after = torch.searchsorted(pool, high[rows].contiguous(), right=True)
    place = first + (torch.from_numpy(rng.random(len(rows))) * (after - first)).long()
    drawn = torch.where(after > first, pool[place.clamp(max=len(pool) - 1)], exact[rows].clamp(low[rows], high[rows]))
    moved = values.clone()
    moved[rows] = drawn.to(values.dtype)
    return moved


def on_grid(values: Tensor, grid: float, whole: bool, up: bool = False) -> Tensor:
    """Values (N,) rounded to a grid through zero, or up to it; int64 if ``whole``."""
    if whole and not values.is_floating_point():
        cell = max(1, int(grid))
        rest = values % cell
        return values - rest + cell * ((rest > 0) if up else (2 * rest >= cell)).long()
    if whole or grid > 0:
        cells = values / (grid or 1.0)
        rounded = cells.sub(1e-9).ceil() if up else cells.round()
        made = torch.from_numpy(np.round((rounded * (grid or 1.0)).numpy(), max(0, -round(math.log10(grid or 1.0)))))
        if up:
            made = torch.where(made < values, made + (grid or 1.0), made)
        return made.long() if whole else made
    return values


def _limits(low: float | None, high: float | None, like: Tensor) -> tuple[Tensor, Tensor]:
    ends = (-math.inf if low is None else low, math.inf if high is None else high)
    least, most = (torch.full((len(like),), float(end), dtype=torch.float64) for end in ends)
    return least, most


def _most_like(key: str, allowed: Sequence[str]) -> list[int]:
    """The allowed combinations that have most values in common with another one."""
    values = ruling.values_of(key)
    common = [sum(a == b for a, b in zip(values, ruling.values_of(own), strict=True)) for own in allowed]
    return [place for place, count in enumerate(common) if count == max(common)]


def _matched(column: Column, rule: Pattern, rng: np.random.Generator) -> Column:
    """The column without levels that do not match; rows that had one get another row's."""
    levels = column.levels or ()
    matching = rule.matching(levels)
    kept = [level for level, fits in zip(levels, matching, strict=True) if fits]
    if len(kept) == len(levels) or not kept:
        return column
    bad_N = ~torch.tensor(matching)[column.values] & ~column.missing
    pool = column.values[~bad_N & ~column.missing].numpy()
    pool = pool if len(pool) else np.flatnonzero(matching)
    values = column.values.clone()
    values[bad_N] = torch.from_numpy(rng.choice(pool, int(bad_N.sum())))
    return replace(column, values=values).recoded(kept)


def _together(known: dict[str, Column], rule: NullTogether, rng: np.random.Generator) -> None:
    """Columns that are missing exactly where they must; values that lack are another row's, of one row all."""
    held: dict[str, Any] = {name: known[name] for name in rule.named if name in known}
    absent_N = rule.absent(Table(tuple(held.values())))
    whole_N = ~torch.stack([known[name].missing for name in rule.columns]).any(0)
    donors = (whole_N & ~absent_N).nonzero().flatten()
    donors = donors if len(donors) else whole_N.nonzero().flatten()
    taken_N = torch.arange(len(absent_N))
    lacking_N = ~whole_N & ~absent_N
    if len(donors):
        taken_N[lacking_N] = donors[torch.from_numpy(rng.integers(len(donors), size=int(lacking_N.sum())))]
    for name in rule.columns:
        column = known[name]
        use_N = torch.where(column.missing, taken_N, torch.arange(len(absent_N)))
        made = column.take(use_N)
        missing = made.missing | absent_N
        known[name] = replace(made, missing=missing, values=torch.where(missing, 0, made.values))
