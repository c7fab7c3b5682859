"""Appraising: what columns of other silos are worth to each silo's own, before anything is trained.

For each two columns of different silos a table of how many rows hold which of their groups opens, with noise. All
tables and all groups together cost one small target; what is concluded from them (`silosynth.evaluation.appraisal`)
costs nothing more.

1. *Describe.* Silos tell names of their columns, and which are numbers: `DescribeColumns` → `ColumnsDescribed`.
2. *Group.* Each silo is told of all columns, and finds groups of its own, by noised counts that nobody sees
   (`silosynth.counting.groups`). Which values a group holds stays in the silo: to others, a column has the levels 0, 1,
   2 and so on. `MakeGroups` → `GroupsMade`.
3. *Count* groups across silos (`silosynth.counting.protocol`).
4. *Open* all tables (`silosynth.counting.opening`).

**Noise is nobody's message.** It follows from the target and the columns (`plan_noise`), for each silo by itself: a
share of the budget, as 1 / variance, goes to groups, in equal parts to all counts of rows; the rest in equal parts to
tables.
So a silo checks nothing but that it is asked for what its options and these columns say: the tables of these columns,
each once. Columns of other silos are the coordinator's word, and silos that were told of different ones cannot count
together. A silo makes groups once: who could ask again would see the same rows in other groups.

Names and kinds of columns are public. So is the bound of row numbers (``most_rows``). Who sees what of the counting and
the opening, and what a party that deviates can do: see there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import torch

from silosynth.core.conversation import Checkpoint, Conversation, Party, Roster, State, expect
from silosynth.core.errors import ConfigError, DataError, ProtocolError
from silosynth.core.messages import Bound, Message, NonNegative, Release, Struct, from_state, to_state
from silosynth.core.schema import Column, ColumnSchema, Kind, Schema, Table, modelled_columns
from silosynth.core.streams import Streams
from silosynth.counting import groups, opening, protocol
from silosynth.counting.levels import CountedColumn
from silosynth.counting.opening import CellNoise
from silosynth.counting.plan import CountRequest
from silosynth.counting.silo import TableCounter
from silosynth.privacy.accounting import affords, table_variance
from silosynth.privacy.events import Event, Target
from silosynth.privacy.mechanisms import LEAST_VARIANCE
from silosynth.privacy.sealed import Seat

_MANY = 1000  # tables, by which it is found what one alone would take: variances are whole numbers
_NAMES = 0.1  # of delta: that a single row's level gets a group of its own
_LEVELS = "str"  # dtype of grouped columns
_Share = Annotated[float, Bound("above 0 and below 1", lambda share: 0 < share < 1)]
_Groups = Annotated[int, Bound("from 2 to 20", lambda count: 2 <= count <= 20)]


class AppraiseConfig(Struct):
    """What an appraisal costs, and how finely columns are counted.

    Attributes:
        dp: what all of it costs together.
        groups: most groups of a column. With few, less noise is in the way; with many, more can be seen.
        share: of the budget, that finding groups takes.
        most_rows: a public bound of the number of rows; the number of rows that are hidden and counted, too.
    """

    dp: Target = Target(0.5, 1e-6)
    groups: _Groups = 5
    share: _Share = 0.1
    most_rows: NonNegative[int] = 0

    def _check(self) -> None:
        if not self.dp.private:
            raise ConfigError("An appraisal has a target", "none", "Give dp = { epsilon = 0.5, delta = 1e-6 }.")


class DescribedColumn(Struct):
    """A column that takes part.

    Attributes:
        silo: whose it is.
        name: its name.
        number: whether it holds numbers or instants; else it has levels.
    """

    silo: str
    name: str
    number: bool


# Messages, in talking order.


class DescribeColumns(Message):
    """Coordinator: which columns do you hold?"""


class ColumnsDescribed(Message, release=Release.SCHEMA):
    """Silo: these."""

    columns: tuple[DescribedColumn, ...]


class MakeGroups(Message, common=True):
    """Coordinator: these are all silos' columns; make groups of yours."""

    columns: tuple[DescribedColumn, ...]


class GroupsMade(Message, release=Release.NOISED):
    """Silo: made, from counts with noise, which stay here."""

    events: tuple[Event, ...]


# What both sides make of the options and the columns.


@dataclass(frozen=True)
class NoisePlan:
    """The noise of an appraisal.

    Attributes:
        groups: on counts that groups are found by.
        tables: on tables that open.
        events: of all silos' groups.
        names: the probability at most, for each column with levels, that a single row's level gets a group of its own.
    """

    groups: CellNoise
    tables: CellNoise
    events: tuple[Event, ...]
    names: float


def pairs_of(columns: Sequence[DescribedColumn]) -> tuple[tuple[int, int], ...]:
    """The tables: each two columns of different silos, by their places."""
    places = itertools.combinations(range(len(columns)), 2)
    return tuple((a, b) for a, b in places if columns[a].silo != columns[b].silo)


@lru_cache(maxsize=16)
def plan_noise(config: AppraiseConfig, columns: tuple[DescribedColumn, ...]) -> NoisePlan:
    """The least noise with which everything costs at most the target.

    Raises:
        ConfigError: all columns are in one silo; or there are too many for the target.
    """
    dp, tables = config.dp, len(pairs_of(columns))
    if not tables:
        rule = "An appraisal is of columns in at least two silos"
        raise ConfigError(rule, f"{len(columns)} columns in one", "Name another silo, with columns on the same rows.")
    counts = sum(groups.rounds(column.number) for column in columns)
    levels = sum(not column.number for column in columns)
    names = _NAMES * dp.delta / max(1, levels)
    single = table_variance(replace(dp, delta=(1 - _NAMES) * dp.delta), _MANY) / _MANY
    finding = CellNoise(half_variance=max(LEAST_VARIANCE, math.ceil(single * counts / config.share)))
    events = tuple(
        event for column in columns for event in groups.events_of(column.name, column.number, finding, names, dp.delta)
    )
    half = max(LEAST_VARIANCE, math.ceil(single * tables / (1 - config.share)))
    while not affords(dp, [*events, *[CellNoise(half_variance=half).event("", True, dp.delta)] * tables]):
        half += 1 + half // 1000
    return NoisePlan(finding, CellNoise(half_variance=half), events, names)


def request_for(config: AppraiseConfig, silos: tuple[str, ...], columns: tuple[DescribedColumn, ...]) -> CountRequest:
    """What is counted.

    Raises:
        ConfigError: tables are too large; or see `plan_noise`.
    """
    levels = tuple(range(config.groups))
    counted = tuple(CountedColumn(column.silo, column.name, levels, missing=False) for column in columns)
    bits = opening.bits_to_open(config.most_rows, plan_noise(config, columns).tables)
    return CountRequest(silos, counted, pairs_of(columns), config.most_rows, bits)


# The coordinator.


def coordinate(
    roster: Roster, config: AppraiseConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[dict[str, Any]]:
    """Count and open.

    Args:
        roster: all silos.
        config: the job's options.
        streams: of the coordinator's own noise; its seed is a secret.
        device: not used.
        state: of a checkpoint, which is written between counting and opening.

    Returns:
        "columns": of all silos, in order; of each "silo", "name" and "number". "pairs": the columns of each table, by
        their places. "tables": int64, (groups, groups), as they may be passed on. "noise": the standard deviation of
        each cell's noise. "groups_noise": that of the counts by which groups were found.

    Raises:
        ConfigError: columns are in one silo only; there is no bound of their rows; or tables are too large.
        ProtocolError: a silo refuses.
    """
    check_bound(config)
    if state is None:
        described = expect((yield roster.everyone(DescribeColumns())), ColumnsDescribed)
        columns = tuple(column for reply in described for column in reply.columns)
        request = request_for(config, roster.parties, columns)
        expect((yield roster.everyone(MakeGroups(columns))), GroupsMade)
        yield from protocol.count(roster, request)
        yield Checkpoint({"columns": [to_state(column) for column in columns]})
    else:
        columns = tuple(from_state(DescribedColumn, column) for column in state["columns"])
        request = request_for(config, roster.parties, columns)
    plan, pairs = plan_noise(config, columns), pairs_of(columns)
    noises = dict.fromkeys(range(len(pairs)), plan.tables)
    found = yield from opening.open_tables(roster, request, noises, streams.child("opening").noise())
    return {
        "columns": [{"silo": one.silo, "name": one.name, "number": one.number} for one in columns],
        "pairs": [list(pair) for pair in pairs],
        "tables": [torch.from_numpy(found.passed_on[number]) for number in range(len(pairs))],
        "noise": plan.tables.deviation(3),
        "groups_noise": plan.groups.deviation(2),
    }


def check_bound(config: AppraiseConfig) -> None:
    """Check that the options have a public bound of row numbers.

    Raises:
        ConfigError: they do not.
    """
    if not config.most_rows:
        remedy = "Give most_rows, of which it is no secret that there are no more."
        raise ConfigError("An appraisal has a public bound of the number of rows", "none", remedy)


# A silo.


class AppraisingSilo(Party):
    """A silo's side of an appraisal: it makes groups once, and opens what follows from its options, once.

    Args:
        table: its columns; rows in the same order in all silos.
        schema: of these columns. Identifiers and pseudonyms take no part.
        seat: who this silo is.
        streams: of its noise, whose seed is a secret.
        device: not used.
        config: the job's options.

    Raises:
        ConfigError: there is no bound of the number of rows.
        DataError: no column takes part.
    """

    def __init__(
        self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device, config: AppraiseConfig
    ) -> None:
        check_bound(config)
        self._table, self._schema = modelled_columns(table, schema), schema
        self._config, self._seat, self._streams = config, seat, streams
        if not self._table.columns:
            rule = "A silo appraises columns that are neither identifiers nor pseudonyms"
            raise DataError(rule, schema.names, 'Declare what a column is, such as schema={"city": "categorical"}.')
        self._own = tuple(
            DescribedColumn(seat.name, column.name, groups.is_number(column, schema[column.name]))
            for column in self._table.columns
        )
        self._columns: tuple[DescribedColumn, ...] = ()  # of all silos, once groups are made
        self._groups: tuple[torch.Tensor, ...] = ()  # of each own column: each row's group, (N,)
        self._counter = self._make_counter()
        self._opened = False

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator.

        Raises:
            ConfigError: the columns are too many for the target.
            ProtocolError: it is asked for something else than follows from its options; or see `TableCounter.answer`.
        """
        match ask:
            case DescribeColumns():
                return ColumnsDescribed(self._own)
            case MakeGroups():
                return self._make_groups(ask)
            case protocol.PrepareCount():
                if not self._columns or ask.request != request_for(
                    self._config, self._seat.roster.parties, self._columns
                ):
                    raise self._refusal("counts the groups that it has made", "other columns, sets, rows or bits")
            case opening.OpenTables():
                return self._open(ask)
        return self._counter.answer(ask)

    def _make_groups(self, ask: MakeGroups) -> GroupsMade:
        if self._columns:
            raise self._refusal("makes groups once", "again")
        name = self._seat.name
        own = tuple(column for column in ask.columns if column.silo == name)
        if own != self._own or not {column.silo for column in ask.columns} <= set(self._seat.roster):
            raise self._refusal("makes groups of the columns that it holds, for silos of its roster", len(own))
        plan, streams = plan_noise(self._config, ask.columns), self._streams.child("groups")
        made, events = [], list[Event]()
        for place, (column, described) in enumerate(zip(self._table.columns, own, strict=True)):
            rng = streams.child(place, repr(plan.groups)).noise()  # also where a silo was brought back: no noise twice
            declared, most = self._schema[column.name], self._config.groups
            codes = groups.grouped(column, declared, most, plan.groups, plan.names, rng)
            made.append(torch.from_numpy(codes))
            events += groups.events_of(column.name, described.number, plan.groups, plan.names, self._config.dp.delta)
        self._columns, self._groups = ask.columns, tuple(made)
        self._counter = self._make_counter()
        self._counter.events = list(plan.events)  # of all silos: what opens is to be afforded with them
        return GroupsMade(tuple(events))

    def _make_counter(self) -> TableCounter:
        """Of groups, in place of what columns hold."""
        levels, kind = tuple(range(self._config.groups)), Kind.CATEGORICAL.value
        columns = tuple(
            Column(column.name, _LEVELS, codes, torch.zeros(len(codes), dtype=torch.bool), levels)
            for column, codes in zip(self._table.columns if self._groups else (), self._groups, strict=True)
        )
        schema = Schema(tuple(ColumnSchema(column.name, kind, _LEVELS) for column in columns))
        return TableCounter(Table(columns), schema, self._seat, self._config.dp, self._streams.child("tables"))

    def _open(self, ask: opening.OpenTables) -> Message:
        noise = plan_noise(self._config, self._columns).tables if self._columns else None
        if self._opened or any(given != noise for given in ask.noises):
            rule = "opens tables once, with the noise that follows from its options"
            raise self._refusal(rule, "again" if self._opened else "another")
        reply = self._counter.answer(ask)
        self._opened = True
        return reply

    def _refusal(self, rule: str, value: object) -> ProtocolError:
        return ProtocolError(f"Silo {self._seat.name!r} {rule}", value, "Both sides take the job's options as agreed.")

    def _state(self, training: bool) -> State:
        """Groups are stored until tables have opened, and not with results."""
        if not training:
            return {"columns": [], "groups": [], "counter": self._counter.trained(), "opened": self._opened}
        columns = [to_state(column) for column in self._columns]
        return {
            "columns": columns, "groups": list(self._groups), "counter": self._counter.state(), "opened": self._opened,
        }  # fmt: skip

    def restore(self, state: State) -> None:
        """Continue from a result of `state`."""
        self._columns = tuple(from_state(DescribedColumn, column) for column in state["columns"])
        self._groups, self._opened = tuple(state["groups"]), state["opened"]
        self._counter = self._make_counter()
        self._counter.restore(state["counter"])
