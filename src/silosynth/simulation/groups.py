"""Samples of several groups of rows, each with conditions of its own and a number of rows.

Three ways to ask for them: a frame of conditions, one row for each synthetic row; the same number of rows of each level
of a column (``balance``); and other shares of a column's levels (``shift``), where whatever else rows hold stays as it
was learnt, given the level. Equal rows of a frame are one group. If groups are many, and no row is of two, they are
first looked for among rows without conditions (`Matching`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from silosynth.core.conditions import Condition, Level, Made, fulfils, is_absent, parse
from silosynth.core.errors import ConfigError, nearest
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.data.frames import to_pandas
from silosynth.encoders.column import RARE
from silosynth.simulation.accepting import BATCH, LEAST

MOST = 500  # groups, each drawn by itself
FEW = 8  # groups that are always drawn so
_WORTH = 8  # one row in so many that are drawn without conditions is to be one that is wanted
_SHORT = 'Name the levels: shift={"smoker": {"yes": 0.4}}.'


@dataclass(frozen=True)
class Groups:
    """Conditions and number of rows of each group, and the place of each of the N rows of all groups in the sample.

    ``apart``: whether no row is of two groups, as each names one value of the same columns, and there are many.
    """

    groups: tuple[tuple[tuple[Condition, ...], int], ...]
    place_N: Tensor
    apart: bool = False


def grouped(
    n: int, given: Any, balance: str | None, shift: Mapping[str, Any] | None, columns: Mapping[str, Made],
    streams: Streams,
) -> Groups:  # fmt: skip
    """The groups of a sample of ``n`` rows; see `Model.sample`.

    Raises:
        ConfigError: a column, level or share that is none; or more than one way to form groups.
    """
    framed = is_frame(given)
    if framed + (balance is not None) + (shift is not None) > 1:
        rule = "Rows are grouped in one way: by a frame of conditions, balance or shift"
        raise ConfigError(rule, "several", "Give one of them; conditions on all rows may come with it, in given={…}.")
    if framed:
        return _by_frame(n, given, columns)
    always = () if given is None else parse(given, columns)
    if balance is None and shift is None:
        return Groups(((always, n),), torch.arange(n))
    groups = by_level(n, balance, shift, columns)
    if twice := {one.column for one in always} & {condition.column for condition, _ in groups}:
        rule = "Each column is named once, by a condition or by shares"
        raise ConfigError(rule, twice.pop(), "List the levels, with their shares, in shift.")
    return Groups(tuple(((condition, *always), rows) for condition, rows in groups), mixed(n, streams))


def mixed(n: int, streams: Streams) -> Tensor:
    """The places (N,) of rows that are drawn group by group, in a sample that mixes them."""
    return torch.randperm(n, generator=streams.child("order").torch())


def by_level(
    n: int, balance: str | None, shift: Mapping[str, Any] | None, columns: Mapping[str, Made]
) -> list[tuple[Condition, int]]:
    """The groups of ``n`` rows by levels of one column, with how many rows each, none of them 0.

    Raises:
        ConfigError: see `grouped`.
    """
    shifted = _shifted(n, shift, columns) if shift is not None else []
    groups = shifted if balance is None else _balanced(n, _levelled(balance, columns))
    return [(condition, rows) for condition, rows in groups if rows]


def is_frame(given: Any) -> bool:
    """Whether conditions are those of a frame, a row for each synthetic row, and not the same for all rows."""
    return hasattr(given, "columns") or isinstance(given, list)


def _by_frame(n: int, given: Any, columns: Mapping[str, Made]) -> Groups:
    records = given
    if not isinstance(given, list):
        cells = to_pandas(given).to_dict("records")
        records = [{name: value for name, value in row.items() if not is_absent(value)} for row in cells]
    if n != len(records):
        rule = "A frame of conditions has one row for each synthetic row"
        raise ConfigError(rule, f"{len(records)} rows for {n}", "Leave out the number of rows.")
    return of_rows([parse(record, columns) for record in records])


def of_rows(wanted: Sequence[tuple[Condition, ...]]) -> Groups:
    """The groups of rows each of which has conditions of its own.

    Raises:
        ConfigError: see `check_led`.
    """
    rows: dict[tuple[Condition, ...], list[int]] = {}
    for number, conditions in enumerate(wanted):
        rows.setdefault(conditions, []).append(number)
    single = all(len(one.values) == 1 and not one.ranged and not one.missing for group in rows for one in group)
    apart = single and len({tuple(one.column for one in group) for group in rows}) == 1 and len(rows) > FEW
    if not apart:
        check_led(len(rows))
    place_N = torch.tensor([number for numbers in rows.values() for number in numbers])
    return Groups(tuple((conditions, len(numbers)) for conditions, numbers in rows.items()), place_N, apart)


def check_led(groups: int) -> None:
    """Refuse to draw more groups than `MOST`, each by itself.

    Raises:
        ConfigError: says what to do.
    """
    if groups > MOST:
        rule = f"A frame of conditions has at most {MOST} different rows, beside those that are found without looking"
        raise ConfigError(rule, groups, "Round numbers, give fewer columns, or fill in missing cells with impute.")


class Matching:
    """Rows of groups among rows that are drawn without conditions. No row is of two groups.

    So those of a group have the law of rows under its conditions: which of them are taken, and when it ends, hangs on
    how many rows groups have, and on nothing else.

    Attributes:
        found: the rows of each group so far.
        left: how many it still wants.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[Condition], int]]) -> None:
        self._conditions = [conditions for conditions, _ in groups]
        self.found: list[list[Table]] = [[] for _ in groups]
        self.left = [rows for _, rows in groups]

    @property
    def batch(self) -> int:
        """How many rows to draw without conditions next."""
        return min(BATCH, max(LEAST, 2 * sum(self.left)))

    def take(self, drawn: Table) -> bool:
        """Take what is wanted of rows that were drawn; whether it is worth while to draw as many again."""
        before = sum(self.left)
        for place, conditions in enumerate(self._conditions):
            if self.left[place]:
                rows = fulfils(drawn, conditions).nonzero().flatten()[: self.left[place]]
                self.found[place] += [drawn.take(rows)] if len(rows) else []
                self.left[place] -= len(rows)
        return sum(self.left) > 0 and _WORTH * (before - sum(self.left)) >= len(drawn)


def _levelled(name: str, columns: Mapping[str, Made]) -> Made:
    if not isinstance(name, str) or name not in columns:
        raise ConfigError("Rows are grouped by one column that is modelled", name, nearest(str(name), columns))
    levels = [level for level in columns[name].levels or () if level != RARE]
    if len(levels) < 2:
        rule = "Rows are grouped by a column with at least two levels"
        raise ConfigError(rule, name, "Of numbers, ask for ranges: sample(n, given={…}) for each.")
    return columns[name]


def _balanced(n: int, column: Made) -> list[tuple[Condition, int]]:
    levels = [level for level in column.levels or () if level != RARE]
    shares = {level: 1 / len(levels) for level in levels}
    return [(Condition(column.name, (level,)), rows) for level, rows in _counts(n, shares).items()]


def _shifted(n: int, shift: Mapping[str, Any], columns: Mapping[str, Made]) -> list[tuple[Condition, int]]:
    if not isinstance(shift, Mapping) or len(shift) != 1:
        raise ConfigError("The shares of one column can be shifted", shift, _SHORT)
    ((name, wanted),) = shift.items()
    column = _levelled(name, columns)
    levels = column.levels or ()
    if not isinstance(wanted, Mapping):
        if len(levels) != 2:
            raise ConfigError(f"Column {name!r} has {len(levels)} levels, so a share needs a level", wanted, _SHORT)
        wanted = {sorted(levels, key=lambda level: (str(type(level)), level))[1]: wanted}
    shares: dict[Level, float] = {}
    for level, share in wanted.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigError(f"Column {name!r}: a share is a number from 0 to 1", share, _SHORT)
        shares[column.condition(level).values[0]] = float(share)
    rest = tuple(level for level in levels if level not in shares)
    left = 1 - sum(shares.values())
    if left < -1e-9 or (left > 1e-9 and not rest and not column.missing):
        rule = f"Column {name!r}: shares add up to 1, or to less where other levels are left"
        raise ConfigError(rule, sum(shares.values()), "Change one of them.")
    counts = _counts(n, {**shares, None: max(0.0, left)})
    others = counts.pop(None)
    groups = [(Condition(name, (level,)), rows) for level, rows in counts.items() if level is not None]
    return [*groups, (Condition(name, rest, missing=column.missing), others)]


def _counts(n: int, shares: Mapping[Any, float]) -> dict[Any, int]:
    """Rows of each, as near to its share as whole numbers are, ``n`` in all."""
    total = sum(shares.values())
    exact = {level: n * share / total for level, share in shares.items()}
    counts = {level: int(rows) for level, rows in exact.items()}
    for level in sorted(exact, key=lambda level: counts[level] - exact[level])[: n - sum(counts.values())]:
        counts[level] += 1
    return counts
