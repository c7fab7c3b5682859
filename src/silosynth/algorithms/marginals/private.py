"""What is measured, and with how much noise: the same for coordinator and silos, from options and public numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from silosynth.algorithms.marginals.options import MOST_LEVELS, MarginalsConfig
from silosynth.core.errors import ConfigError
from silosynth.core.messages import NonNegative, Struct
from silosynth.core.schema import Schema
from silosynth.counting.levels import CountedColumn
from silosynth.counting.opening import EXACT, CellNoise, bits_to_open
from silosynth.counting.plan import CountRequest
from silosynth.encoders import summed
from silosynth.encoders.table import most_values
from silosynth.privacy.accounting import affords, affords_adaptive, table_variance
from silosynth.privacy.aggregation import LEAST
from silosynth.privacy.events import Event, gaussian_table
from silosynth.privacy.masker import told
from silosynth.privacy.mechanisms import LEAST_VARIANCE

MANY = 1000  # tables, by which it is found what one alone would take: variances are whole numbers
MOST_COLUMNS = 500  # of all silos
GROWS = 2 / 3  # power of a column's values: so much more of the budget; the sum of its counts' errors is then least
FEW_CELLS = 4  # of a table of two flags, which its table of groups tells as well
_NAMING = " tables are still to open in full, now: "
HALVINGS = 6  # of the variances that may be


class Held(Struct):
    """What a silo holds, as far as noise hangs on it; known from its schema alone.

    Attributes:
        values: of each column, how many it may have, or ``bins`` if that is less. Each becomes an attribute.
        named: how many columns have levels whose names come from rows.
    """

    values: tuple[int, ...]
    named: NonNegative[int]

    @property
    def columns(self) -> int:
        """How many there are."""
        return len(self.values)

    def _check(self) -> None:
        if not self.values or not all(2 <= value <= MOST_LEVELS for value in self.values) or self.named > self.columns:
            rule = f"A silo holds columns of 2 to {MOST_LEVELS} values each, and names at most those that it holds"
            raise ConfigError(rule, (self.values, self.named), "Compare versions.")


def values_of(config: MarginalsConfig, schema: Schema) -> tuple[int, ...]:
    """How many values each column may have, as far as its schema says: see `Held`."""
    return tuple(int(min(config.bins, most_values(one))) for one in schema.columns)


@dataclass(frozen=True)
class MarginalsPlan:
    """The noise of a training, which follows from its options and `Held` before anything is measured.

    Attributes:
        rows: variance of the noise on the number of rows, which is that on a column on average.
        columns: on what the encoder of each column is learnt from, of all silos: less for columns of more values.
        names: for each column with names, the probability at most that that of a single row is released.
        groups: on each table by which the tree is selected.
        margins: on the table of each attribute alone, which opens along with these.
        full: on each table that opens in full, if as many do as ``tables`` says: see `next_noise`.
        events: of all silos' encoders and numbers of rows.
    """

    rows: int
    columns: tuple[int, ...]
    names: float
    groups: CellNoise
    margins: CellNoise
    full: CellNoise
    events: tuple[Event, ...]

    def by_name(self, schema: Schema) -> dict[str, int]:
        """The variance of each column's noise, of silos that all hold these; and of the number of rows, by no name."""
        return {"": self.rows, **dict(zip(schema.names, self.columns, strict=True))}


@lru_cache(maxsize=64)
def plan_noise(config: MarginalsConfig, held: tuple[Held, ...]) -> MarginalsPlan | None:
    """The least noise with which all that is planned costs at most the target; None without one.

    The budget, as 1 / variance, is divided among encoders (``dp.encoders``), the selection, margins and what opens in
    full. Encoders' part is divided by `GROWS`; each other in equal parts among its tables: all pairs, whether the model
    uses them or not, all attributes, and ``tables``. Once it is known how many tables are worth it, that part is for
    these (`next_noise`).

    Raises:
        ConfigError: there are too many columns; or too little epsilon.
    """
    dp, attributes = config.dp, sum(one.columns for one in held)
    if attributes > MOST_COLUMNS:
        raise ConfigError(f"A model is of at most {MOST_COLUMNS} columns", attributes, "Leave some out.")
    if not dp.private:
        return None
    learnt, named = attributes + len(held), sum(one.named for one in held)
    wanted = [value**GROWS for one in held for value in one.values]
    weights = [one * attributes / math.fsum(wanted) for one in wanted]
    pairs, single, most = selected_pairs(attributes), single_sets(config, attributes), _tree_tables(config, attributes)
    counts = learnt, len(pairs), len(single), most
    each = table_variance(replace(dp, delta=(1 - dp.encoders) * dp.delta), MANY) / MANY
    lone = config.margins if single else 0.0
    parts = config.selection, lone, 1 - config.selection - lone
    shares = dp.encoders, *((1 - dp.encoders) * part for part in parts)
    used = sum(share for share, count in zip(shares, counts, strict=True) if count)
    halves = [each * count * used / share if count else 0.0 for share, count in zip(shares, counts, strict=True)]
    names = dp.encoders * dp.delta / max(1, named)

    def planned(scale: float) -> MarginalsPlan:
        rows, groups, margins, full = (max(LEAST_VARIANCE, math.ceil(scale * half)) for half in halves)
        columns = [max(LEAST_VARIANCE, math.ceil(scale * halves[0] / weight)) for weight in weights]
        what = "a column, or the number of rows"
        each = [gaussian_table(what, math.sqrt(2 * half), target=dp.delta) for half in (*columns, *[rows] * len(held))]
        events = (*[replace(one, delta=names) for one in each[:named]], *each[named:])
        coarse, alone, whole = (table_noise(config, half) for half in (groups, margins, full))
        return MarginalsPlan(2 * rows, tuple(2 * half for half in columns), names, coarse, alone, whole, events)

    def within(plan: MarginalsPlan) -> bool:
        return affords(dp, [*_first_events(config, attributes, plan), *[plan.full.event("", True, dp.delta)] * most])

    low, high = (LEAST_VARIANCE / max(halves), 1.0) if min(halves) < LEAST_VARIANCE else (1.0, 1.0)
    while not within(planned(high)):
        low, high = high, 1.01 * high
    for _ in range(HALVINGS if low < high else 0):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if within(planned(middle)) else (middle, high)
    return planned(high)


def most_tables(config: MarginalsConfig, levels: Sequence[int]) -> int:
    """How many tables of attributes with so many levels open in full, at most.

    ``tables`` times as many as a tree has, or that part of all ``pairs`` that have more than four cells, if that is
    more; but beyond a tree no more than there is room for in ``cells``, where each joins three attributes of a middling
    number of levels. With differential privacy the part that ``pairs`` leaves out is raised to the power of epsilon's
    cube root: where noise matters more, fewer open.
    """
    attributes = len(levels)
    worth = sum(one * other > FEW_CELLS for one, other in itertools.combinations(levels, 2))
    middle = math.exp(math.fsum(map(math.log, levels)) / attributes)
    power = config.dp.epsilon ** (1 / 3) if config.dp.private else 1.0
    part = 1 - math.pow(1 - config.pairs, power)
    wanted = max(_tree_tables(config, attributes), round(part * worth))
    return max(1, min(wanted, attributes - 1 + round(config.cells / middle**3)))


def _tree_tables(config: MarginalsConfig, attributes: int) -> int:
    """As many tables as the option says, whatever levels attributes turn out to have."""
    return max(1, min(attributes * (attributes - 1) // 2, round(config.tables * (attributes - 1))))


@lru_cache(maxsize=64)
def next_noise(
    config: MarginalsConfig, held: tuple[Held, ...], opened: tuple[CellNoise, ...], planned: int
) -> CellNoise | None:
    """The least noise on tables in full with which everything costs at most the target; None without one.

    How many open, and are planned, has hung on noise: so the cost passes a filter as well.

    Args:
        config, held: see `plan_noise`.
        opened: the noise on each table that is open in full.
        planned: how many more are to open, all with this noise.
    """
    plan = plan_noise(config, held)
    if plan is None:
        return None
    attributes, dp = sum(one.columns for one in held), config.dp
    before = [*_first_events(config, attributes, plan), *(one.event("", True, dp.delta) for one in opened)]
    spent = sum(plan.full.half_variance / one.half_variance for one in opened)
    left = max(1.0, _tree_tables(config, attributes) - spent)
    half = max(LEAST_VARIANCE, math.ceil(plan.full.half_variance * planned / left))

    def costs_more(noise: CellNoise) -> bool:
        events = [*before, *[noise.event("", True, dp.delta)] * planned]
        return not (affords(dp, events) and affords_adaptive(dp, events))

    while costs_more(table_noise(config, half)):
        half += 1 + half // 200
    return table_noise(config, half)


def _first_events(config: MarginalsConfig, attributes: int, plan: MarginalsPlan) -> list[Event]:
    """Of all that is measured before tables open in full."""
    pairs = [plan.groups.event("", True, config.dp.delta)] * len(selected_pairs(attributes))
    single = [plan.margins.event("", False, config.dp.delta)] * len(single_sets(config, attributes))
    return [*plan.events, *pairs, *single]


def table_noise(config: MarginalsConfig, half: int) -> CellNoise:
    """The noise on a table, of twice this variance: that of two silos' columns is drawn by both together."""
    return CellNoise(half_variance=half, joint=not config.horizontal)


def holding(held: Sequence[Held]) -> str:
    """The purpose of an agreement of all silos that they hold this: noise on columns hangs on those of all."""
    return f"what all silos hold: {told(*held).hex()}"


def naming(sets: Sequence[int], planned: int) -> str:
    """The purpose of an agreement of all silos that these tables open in full, of so many that are still to open."""
    return f"{planned}{_NAMING}{' '.join(map(str, sets))}"


def named_sets(purpose: str) -> tuple[tuple[int, ...], int]:
    """The tables that an agreement is about, and how many are still to open; none if it is about something else."""
    planned, naming, sets = purpose.partition(_NAMING)
    words = [planned, *sets.split()]
    is_it = naming and all(word.isascii() and word.isdigit() for word in words)
    return (tuple(map(int, words[1:])), int(planned)) if is_it else ((), 0)


def selected_pairs(attributes: int) -> tuple[tuple[int, int], ...]:
    """The pairs whose coarse tables say which open in full; none where there is but one pair."""
    return tuple(itertools.combinations(range(attributes), 2)) if attributes > 2 else ()


def single_sets(config: MarginalsConfig, attributes: int) -> tuple[tuple[int], ...]:
    """The sets of one attribute each, whose tables open with those of groups; exact tables of pairs say all of them."""
    return tuple((one,) for one in range(attributes)) if config.dp.private and attributes > 2 else ()


def full_sets(config: MarginalsConfig, attributes: int) -> tuple[tuple[int, ...], ...]:
    """The sets of which some open in full: all pairs, then each attribute once more; or the only one there is."""
    pairs = tuple(itertools.combinations(range(attributes), 2))
    return (*pairs, *single_sets(config, attributes)) if attributes > 1 else ((0,),)


@dataclass(frozen=True)
class CountedAttribute:
    """An attribute as it is counted."""

    silo: str
    name: str  # of its column
    levels: int
    groups: int


def request_for(
    config: MarginalsConfig,
    held: tuple[Held, ...],
    silos: tuple[str, ...],
    attributes: Sequence[CountedAttribute],
    rows: int,
) -> CountRequest:
    """What is counted: tables of levels, as in `full_sets`; then those of groups of all pairs, and of each attribute.

    Args:
        config, held: see `plan_noise`, from which follows the noise with which tables open.
        silos: all silos.
        attributes: of all silos, in their order.
        rows: the bound of their number.

    Raises:
        ConfigError: tables are too large.
    """
    names = {one.name for one in attributes}
    levels = tuple(_column(one.silo, one.name, one.levels) for one in attributes)
    pairs, number = selected_pairs(len(attributes)), len(attributes)
    groups = tuple(_column(one.silo, groups_name(one.name, names), one.groups) for one in attributes if pairs)
    alone = single_sets(config, number)
    sets = full_sets(config, number) + tuple((number + a, number + b) for a, b in pairs) + alone
    most = most_tables(config, tuple(one.levels for one in attributes))
    plan, full = plan_noise(config, held), next_noise(config, held, (), most)
    noises = (EXACT,) if plan is None else (plan.groups, plan.margins, full)
    return CountRequest(silos, levels + groups, sets, rows, max(bits_to_open(rows, noise) for noise in noises))


def groups_name(name: str, names: set[str]) -> str:
    """What the groups of a column are called, which no column is."""
    found = f"groups of {name}"
    while found in names:
        found += "'"
    return found


def _column(silo: str, name: str, size: int) -> CountedColumn:
    return CountedColumn(silo, name, tuple(range(size)), missing=False)


# Silos with different rows.


def held_of(config: MarginalsConfig, schema: Schema) -> Held:
    """What all of them hold together: one row of all is in one silo, so that columns are charged once."""
    return Held(values_of(config, schema), len(summed.named(schema)))


def check_enough(config: MarginalsConfig, silos: int) -> None:
    """Check that sums are over enough silos, or groups of silos, for none to know another's by its own.

    Raises:
        ConfigError: they are not.
    """
    least, groups = 2 if config.dp.private else LEAST, len(config.silo_groups)
    what, number = ("groups of silos", groups) if groups else ("silos", silos)
    if number < least:
        rule = f"Sums over {what} with different rows are over {least} or more, of which each knows its own"
        remedy = "Put all rows into one silo: federation.central()." if number < 2 else "Give dp, or find more."
        raise ConfigError(rule, number, remedy)


def column_noise(variance: int, factor: float = 1.0) -> CellNoise:
    """The noise on a column's counts, of this many times the variance that is planned for it."""
    return CellNoise(half_variance=math.ceil(factor * variance / 2))
