"""Judging: joint tables of a federation's columns open as a job was agreed, for a report on a synthetic table.

A job's options (`JudgeConfig`) say all of it: columns and their levels, sets, and how tables open. They come from the
synthetic table and are public; no levels or edges come from rows. Silos take from messages only which silo holds
which column, and check the rest against the options: a coordinator can open nothing else, and nothing in another way.

The **hold-out** is a hidden column (`HOLDOUT`): every silo has it, equal in all, and the coordinator adds the one of
the first silo of each set as the last axis. So one counting gives the table of the rows that were trained on and that
of rows that were held out; and as a row is in one of them only, noise protects both for the price of one.

Messages in talking order: `FindColumns` → `ColumnsHeld`; `TellRows` → `RowsTold` (only if nothing else bounds the
number of rows, and the job has no target); a counting (`silosynth.counting.protocol`); an opening
(`silosynth.counting.opening`).

A set opens if its columns are in one or two silos; exactly, also if in three where the job says so (``three``).
There, a coordinator that deals wrong can have a table show what single rows hold: see `silosynth.counting.protocol`.
Sets in more silos are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from silosynth.core.conversation import Checkpoint, Conversation, Party, Roster, State, expect
from silosynth.core.errors import ConfigError, ProtocolError, nearest
from silosynth.core.messages import Message, NonNegative, Release, Struct
from silosynth.core.schema import ColumnSchema, Kind, Schema, Table, modelled_columns
from silosynth.core.streams import Streams
from silosynth.counting import opening, plan as planning, protocol
from silosynth.counting.levels import CountedColumn
from silosynth.counting.opening import CellNoise
from silosynth.counting.plan import CountRequest, Plan
from silosynth.counting.silo import TableCounter
from silosynth.privacy.accounting import table_variance
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import Seat

HOLDOUT = "(hold-out)"
"""The column that says of each row whether it was held out: boolean, in every silo, the same in all."""


class JudgeConfig(Struct):
    """What is counted, and how it opens.

    Attributes:
        columns: of all silos, each name once; whose they are is found out by asking (``silo`` is empty).
        sets: the columns of each table, by their places in ``columns``.
        opening: "exact"; or "noised", by the target.
        dp: what all tables together may cost; private exactly if tables open with noise.
        holdout: whether each set gets a last axis: rows that were trained on, rows that were held out.
        most_rows: a public bound of the number of rows; 0 for none. With a target there must be one.
        three: whether tables of three silos open, too (exactly only): see the module's docstring.

    Raises:
        ConfigError: names repeat; a set is empty, repeats a column, or names one that is not there; or there is a
            target without noise, or noise without a target.
    """

    columns: tuple[CountedColumn, ...] = ()
    sets: tuple[tuple[int, ...], ...] = ()
    opening: Literal["exact", "noised"] = "noised"
    dp: Target = Target()
    holdout: bool = False
    most_rows: NonNegative[int] = 0
    three: bool = False

    def _check(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names) or HOLDOUT in names or any(column.silo for column in self.columns):
            rule = f"Columns that are judged have each name once, not {HOLDOUT!r}, and no silo"
            raise ConfigError(rule, names, "Leave repeated ones out.")
        for places in self.sets:
            known = all(0 <= place < len(names) for place in places)
            if not places or not known or len(set(places)) < len(places):
                raise ConfigError("A set names columns by their places, each once", places)
        if self.columns and self.dp.private is not (self.opening == "noised"):
            rule = "Tables that open with noise have a target, and no others have one"
            raise ConfigError(rule, self.opening, 'Give dp = { epsilon = …, delta = … }, or opening = "exact".')


# Messages, in talking order.


class FindColumns(Message):
    """Coordinator: which of the job's columns do you hold?"""


class ColumnsHeld(Message, release=Release.SCHEMA):
    """Silo: these, by their places in the options."""

    places: tuple[int, ...]


class TellRows(Message):
    """Coordinator: about how many rows do you hold?"""


class RowsTold(Message, release=Release.COUNTS):
    """Silo: at most so many, rounded up to the next 1024."""

    rows: int


# What both sides make of the options.


def request_for(config: JudgeConfig, silos: tuple[str, ...], owners: Sequence[str], rows: int) -> CountRequest:
    """What is counted.

    Args:
        config: the job's options.
        silos: all silos.
        owners: the silo of each column.
        rows: the bound of their number.

    Raises:
        ConfigError: no set can open; or see `CountRequest`.
    """
    columns = tuple(replace(column, silo=silo) for column, silo in zip(config.columns, owners, strict=True))
    held = tuple(CountedColumn(silo, HOLDOUT, (False, True), missing=False) for silo in silos if config.holdout)
    sets = tuple(config.sets[number] for number in opened_sets(config, owners))
    if not sets:
        raise ConfigError("At least one set is of columns in few enough silos", len(config.sets), "Ask for other sets.")
    if config.holdout:
        first = (min(silos.index(owners[place]) for place in places) for places in sets)
        sets = tuple((*places, len(columns) + silo) for places, silo in zip(sets, first, strict=True))
    bits = opening.bits_to_open(rows, noise_of(config))
    return CountRequest(silos, (*columns, *held), sets, rows, bits)


def opened_sets(config: JudgeConfig, owners: Sequence[str]) -> tuple[int, ...]:
    """The sets that open, by their places in the options."""
    most = 3 if config.three and config.opening == "exact" else 2
    found = enumerate(config.sets)
    return tuple(number for number, places in found if len({owners[place] for place in places}) <= most)


def noise_of(config: JudgeConfig) -> CellNoise | None:
    """The noise of each table, discrete Gaussian; None where they open exactly.

    All sets of the options together cost the target, whether all open or not: so it does not hang on what silos are
    told of others' columns, which could differ.
    """
    if config.opening == "exact":
        return opening.EXACT
    return CellNoise(half_variance=table_variance(config.dp, max(1, len(config.sets))))


# The coordinator.


def coordinate(
    roster: Roster, config: JudgeConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[dict[str, Any]]:
    """Count and open.

    Args:
        roster: all silos.
        config: the job's options.
        streams: of the coordinator's own noise; its seed is a secret.
        device: not used.
        state: of a checkpoint, which is written between counting and opening.

    Returns:
        "owners": the silo of each column. "tables": of each set, int64, as they may be passed on, axes in the set's
        order and the hold-out (rows trained on, rows held out) last; None for a set in more silos than open. "rows":
        the bound of their number. "noise": the largest standard deviation of a cell's noise, 0.0 without; "noises":
        that of each table.

    Raises:
        ConfigError: no silo holds a column, or two do; or nothing bounds the number of rows.
        ProtocolError: a silo refuses.
    """
    if config.opening == "noised" and not config.most_rows:
        remedy = "Give most_rows, of which it is no secret that there are no more."
        raise ConfigError("Tables that open with noise have a public bound of their rows", "none", remedy)
    if state is None:
        owners = yield from _found(roster, config)
        rows = config.most_rows or (yield from _bound(roster))
        yield from protocol.count(roster, request_for(config, roster.parties, owners, rows))
        yield Checkpoint({"owners": list(owners), "rows": rows})
    else:
        owners, rows = tuple(state["owners"]), state["rows"]
    request, chosen = request_for(config, roster.parties, owners, rows), opened_sets(config, owners)
    noise = noise_of(config)
    noises = dict.fromkeys(range(len(chosen)), noise)
    tables = yield from opening.open_tables(roster, request, noises, streams.child("opening").noise())
    found = {number: torch.from_numpy(tables.passed_on[place]) for place, number in enumerate(chosen)}
    deviations = {number: _deviation(request, place, noise) for place, number in enumerate(chosen)}
    return {
        "owners": list(owners),
        "tables": [found.get(number) for number in range(len(config.sets))],
        "rows": rows,
        "noise": max(deviations.values()),
        "noises": [deviations.get(number, 0.0) for number in range(len(config.sets))],
    }


def _found(roster: Roster, config: JudgeConfig) -> Conversation[tuple[str, ...]]:
    """The silo of each column."""
    held = expect((yield roster.everyone(FindColumns())), ColumnsHeld)
    owners = []
    for place, column in enumerate(config.columns):
        silos = [silo for silo, reply in zip(roster, held, strict=True) if place in reply.places]
        if len(silos) != 1:
            rule = f"Column {column.name!r} that is judged is in one silo"
            raise ConfigError(rule, silos or "in none", "Leave it out of the synthetic table, or of all silos but one.")
        owners.append(silos[0])
    return tuple(owners)


def _bound(roster: Roster) -> Conversation[int]:
    """The most that a silo tells."""
    return max(reply.rows for reply in expect((yield roster.everyone(TellRows())), RowsTold))


def _deviation(request: CountRequest, number: int, noise: CellNoise | None) -> float:
    """Of a cell's noise, as it is passed on: two halves of one silo, or three of two silos and the coordinator."""
    return 0.0 if noise is None else noise.deviation(3 if len(Plan(request).parts[number]) == 2 else 2)


# A silo.


class JudgingSilo(Party):
    """A silo's side of a judging: a counting silo that counts and opens what its job's options say, and nothing else.

    Args:
        table: its columns, and `HOLDOUT` if there is a hold-out; rows in the same order in all silos.
        schema: of these columns; that of the hold-out may be left out.
        seat: who this silo is.
        streams: of its noise, whose seed is a secret.
        device: not used.
        config: the job's options.

    Raises:
        ConfigError: there is a hold-out, and the table lacks its column.
    """

    def __init__(
        self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device, config: JudgeConfig
    ) -> None:
        schema = _with_holdout(schema)
        if config.holdout and HOLDOUT not in table.names:
            rule = "A silo that judges with a hold-out has a column that says which rows those are"
            raise ConfigError(rule, "none", nearest(HOLDOUT, table.names))
        own = modelled_columns(table, schema).names
        self._held = tuple(place for place, column in enumerate(config.columns) if column.name in own)
        self._config, self._seat, self._rows = config, seat, len(table)
        self._opened = set[tuple[int, ...]]()  # with noise, by the places of their columns
        target = config.dp if config.opening == "noised" else None
        self._counter = TableCounter(table, schema, seat, target, streams, exact=config.opening == "exact")

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator.

        Raises:
            DataError: a column is not as declared.
            ProtocolError: it is asked for something else than its job says; or see `TableCounter.answer`.
        """
        match ask:
            case FindColumns():
                return ColumnsHeld(self._held)
            case TellRows():
                return self._tell_rows()
            case protocol.PrepareCount():
                self._check_request(ask.request)
            case opening.OpenTables():
                return self._open(ask)
        return self._counter.answer(ask)

    def _tell_rows(self) -> RowsTold:
        if self._config.opening == "noised" or self._config.most_rows:
            raise self._refusal("tells how many rows it holds if there is neither noise nor a bound", "there is")
        return RowsTold(planning.padded(self._rows))

    def _check_request(self, request: CountRequest) -> None:
        """Check that what is counted follows from the options, and from what this silo holds."""
        config, name = self._config, self._seat.name
        owners = tuple(column.silo for column in request.columns[: len(config.columns)])
        if tuple(place for place, owner in enumerate(owners) if owner == name) != self._held:
            raise self._refusal("counts the columns that it holds", owners)
        if not set(owners) <= set(self._seat.roster) or len(owners) != len(config.columns):
            raise self._refusal("counts columns of the silos of its roster", owners)
        if request.rows != (config.most_rows or planning.padded(request.rows)):  # others could be told from its own
            raise self._refusal("counts as many rows as its job says, or a rounded number of them", request.rows)
        if request != request_for(config, self._seat.roster.parties, owners, request.rows):
            raise self._refusal("counts what its job says", "other columns, sets, bits or blocks")

    def _open(self, ask: opening.OpenTables) -> Message:
        """Open sets with the noise that follows from the options; each once, so that all together cost the target."""
        request, noise = self._counter.request, noise_of(self._config)
        if any(given != noise for given in ask.noises):
            raise self._refusal("opens tables with the noise that follows from its job", "another")
        sets = [request.sets[number] for number in ask.sets if request is not None and 0 <= number < len(request.sets)]
        if self._opened.intersection(sets):
            raise self._refusal("opens each table of its job once", "again")
        reply = self._counter.answer(ask)
        self._opened.update(sets)
        return reply

    def _refusal(self, rule: str, value: object) -> ProtocolError:
        return ProtocolError(f"Silo {self._seat.name!r} {rule}", value, "Both sides take the job's options as agreed.")

    def _state(self, training: bool) -> State:
        counter = self._counter.state() if training else self._counter.trained()
        return {"counter": counter, "opened": [list(places) for places in sorted(self._opened)]}

    def restore(self, state: State) -> None:
        """Continue from a result of `state`."""
        self._counter.restore(state["counter"])
        self._opened = set(map(tuple, state["opened"]))


def _with_holdout(schema: Schema) -> Schema:
    if HOLDOUT in schema.names:
        return schema
    return Schema((*schema.columns, ColumnSchema(HOLDOUT, Kind.BOOLEAN.value, "bool")))
