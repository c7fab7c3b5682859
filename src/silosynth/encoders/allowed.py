"""Conditions on columns as conditions on their codes: which levels go with them, and which scores.

A column that another one determines is looked up when rows are decoded (`combinations`), so conditions on it are
conditions on its determinant. What decoding changes beyond that (pairs of levels that are barred) is not foreseen here:
who decodes must still look at the rows.

Shapes: N rows, L levels of a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from silosynth.core.conditions import Condition, fulfils
from silosynth.core.errors import ConfigError
from silosynth.core.schema import Column, Table
from silosynth.encoders.column import Codes, Encoder, HeadEncoder
from silosynth.encoders.combinations import Determined, look_up


@dataclass(frozen=True)
class Allowed:
    """What conditions allow of a column's codes.

    Attributes:
        encoder: the column's.
        column, score: its place among columns with levels, and among scores; -1 for none.
        level_L: which levels without a score are allowed; those with one are not.
        conditions: on this column, and on those that it determines.
        rules: by which these are looked up.
    """

    encoder: Encoder
    column: int
    score: int
    level_L: Tensor
    conditions: tuple[Condition, ...]
    rules: tuple[Determined, ...]

    def scores(self, score_N: Tensor) -> Tensor:
        """Which scores (N,) bool are allowed, where the level has one."""
        levels = torch.zeros(len(score_N), dtype=torch.int64)
        return _holds(self.encoder, levels, score_N, self.conditions, self.rules)

    def chance(self, level_NL: Tensor, line_N: Tensor) -> Tensor:
        """How probable (N,) allowed codes are, from probabilities of levels, and of allowed scores on the line."""
        lines = self.encoder.lines
        if self.column < 0:
            return line_N if lines else self.level_L.float().expand(len(level_NL), 1)[:, 0]
        return level_NL[:, lines:] @ self.level_L[lines:].float() + level_NL[:, :lines].sum(1) * line_N


def allowed(encoders: Sequence[Encoder], rules: Sequence[Determined], conditions: Sequence[Condition]) -> list[Allowed]:
    """What the conditions allow of each column that they concern.

    Raises:
        ConfigError: no level fulfils those on a column and on columns that it determines.
    """
    found, column, score = [], 0, 0
    for encoder in encoders:
        own = looked_up_from(encoder.name, rules)
        names = {encoder.name, *(rule.values.name for rule in own)}
        concerned = tuple(condition for condition in conditions if condition.column in names)
        if concerned:
            levels = torch.arange(encoder.width)
            level_L = _holds(encoder, levels, torch.zeros(encoder.width), concerned, own) & (levels >= encoder.lines)
            if isinstance(encoder, HeadEncoder):  # any of the levels that are drawn
                held = _holds(encoder.every, encoder.others, torch.zeros(0), concerned, own)
                level_L[-1] = held.any()
            if not (encoder.lines or level_L.any()):
                columns = " and ".join(repr(condition.column) for condition in concerned)
                rule = f"No row fulfils the conditions on {columns} together: one column determines the other"
                raise ConfigError(rule, len(concerned), "Leave out one of them.")
            places = (column if encoder.width > 1 else -1, score if encoder.continuous else -1)
            found.append(Allowed(encoder, *places, level_L, concerned, own))
        column, score = column + (encoder.width > 1), score + encoder.continuous
    return found


def looked_up_from(name: str, rules: Sequence[Determined]) -> tuple[Determined, ...]:
    """The rules that look columns up by this one, or by one that is; not those of columns that are modelled as well."""
    known, found = {name}, []
    for rule in rules:
        if rule.keys.name in known and not rule.modelled:
            known.add(rule.values.name)
            found.append(rule)
    return tuple(found)


def _holds(
    encoder: Encoder, level_N: Tensor, score_N: Tensor, conditions: Sequence[Condition], rules: Sequence[Determined]
) -> Tensor:
    levels = level_N if encoder.width > 1 else None
    codes = Codes(levels, score_N if encoder.continuous else None)
    column: Column = encoder.decode(codes, len(level_N), np.random.default_rng(0))
    return fulfils(look_up(Table((column,)), rules), conditions)
