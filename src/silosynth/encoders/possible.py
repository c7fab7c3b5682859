"""Which levels of two attributes can be in one row under rules about columns of several silos: structural zeros.

A rule is public, and a silo's encoders are made of noised counts. So which levels can hold the values that a rule names
follows from noised counts, and a silo may tell it. The coordinator finds the pairs of levels of which no row that keeps
the rule can be, and leaves them out of the model, before tables are fitted: what noise and independence would put there
goes where rows can be. Within the levels that are left rows may still break a rule, and are then drawn again
(`silosynth.simulation.accepting`).

Shapes: N values, F cells (`silosynth.encoders.attributes`), L levels of one attribute, M of another, K keys of a rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from silosynth.core.messages import Struct
from silosynth.core.rules import FixedCombination, Inequality, Rule, Value, combined, values_of as values_of_key
from silosynth.encoders.attributes import values_of
from silosynth.encoders.column import Encoder

Flags = npt.NDArray[np.bool_]


class LevelsHeld(Struct):
    """Which levels of a column's attribute can hold what a rule names.

    Attributes:
        rule: its number.
        column: the column.
        can_KL: of a combination: whether a level can hold the column's part of the rule's K combinations.
        ends_EL: of an inequality: the least and the largest value of each level, NaN where it has none; missing last.
    """

    rule: int
    column: str
    can_KL: Tensor | None = None
    ends_EL: Tensor | None = None


def modelled(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules that say of pairs of levels whether rows can hold them."""
    return tuple(rule for rule in rules if isinstance(rule, Inequality | FixedCombination) and not _learnt(rule))


def _learnt(rule: Rule) -> bool:
    return isinstance(rule, FixedCombination) and not rule.allowed


def levels_held(
    rules: Sequence[Rule], encoders: Sequence[Encoder], levels: Sequence[Tensor], bins: int
) -> Iterator[LevelsHeld]:
    """What a silo tells of its own attributes under each rule; ``levels`` are of each attribute's cells, (F,)."""
    for (number, rule), (encoder, level_F) in itertools.product(enumerate(rules), zip(encoders, levels, strict=True)):
        if encoder.name not in rule.named:
            continue
        column, parts = values_of(encoder, bins)
        level_N, size = level_F.repeat_interleave(parts), int(level_F.max()) + 1
        if isinstance(rule, FixedCombination):
            keys, place_N = combined([column])
            place = rule.columns.index(encoder.name)
            known = {_text(values_of_key(key)[0]): number for number, key in enumerate(keys)}
            can_LV = torch.zeros(size, len(keys) + 1, dtype=torch.bool)
            can_LV[level_N, place_N] = True
            wanted = [known.get(_text(values[place]), len(keys)) for values in rule.allowed]
            if min(wanted) < len(keys):  # else values are written in another way, such as dates, or all are pooled
                yield LevelsHeld(number, encoder.name, can_KL=can_LV[:, wanted].T)
        elif column.levels is None:
            values_N = column.values.double()
            ends = torch.full((3, size), torch.nan, dtype=torch.float64)
            for row, how in enumerate(("amin", "amax")):
                known_N = ~column.missing
                ends[row].scatter_reduce_(0, level_N[known_N], values_N[known_N], how, include_self=False)
            ends[2] = torch.zeros(size, dtype=torch.float64).index_fill_(0, level_N[column.missing], 1.0)
            yield LevelsHeld(number, encoder.name, ends_EL=ends)


def _text(value: Value) -> str | None:
    """A value in the same words, whether a rule is bound to its column (`silosynth.data.rules`) or not."""
    if value is None or value == "":
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).lower()


def possible_pairs(
    rules: Sequence[Rule], held: Mapping[str, Sequence[LevelsHeld]]
) -> Iterator[tuple[tuple[str, str], Flags]]:
    """Of each two columns under one rule, (L, M): whether a row that keeps it can hold these levels.

    ``held`` is what silos told, by column.
    """
    for number, rule in enumerate(rules):
        told = {name: one for name in rule.named for one in held.get(name, ()) if one.rule == number}
        for first, second in itertools.combinations(told, 2):
            if isinstance(rule, FixedCombination):
                one, other = (told[name].can_KL for name in (first, second))
                if one is not None and other is not None:
                    yield (first, second), (one.double().T @ other.double() > 0).numpy()
            else:
                low, high = (told[name].ends_EL for name in (first, second))
                if low is not None and high is not None:
                    strict = isinstance(rule, Inequality) and rule.strict
                    yield (first, second), _ordered(low.numpy(), high.numpy(), strict)


def _ordered(low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], strict: bool) -> Flags:
    """Whether some value of a level (L) is below some of another (M); what is missing breaks no inequality."""
    least_L, most_M = low[0][:, None], high[1][None, :]
    below = least_L < most_M if strict else least_L <= most_M  # not of NaN
    found: Flags = below | (low[2] > 0)[:, None] | (high[2] > 0)[None, :]
    return found
