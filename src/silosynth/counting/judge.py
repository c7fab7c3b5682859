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

**Figures** (`silosynth.counting.distances`) open in place of tables: of each set the squared distance, of shares of
rows, between the rows that were trained on and each of a few public tables, such as the synthetic one, or what
independence would give; and the rows that were held out.

A set opens if its columns are in one or two silos; exactly, also if in three where the job says so (``three``).
There, a coordinator that deals wrong can have a table show what single rows hold: see `silosynth.counting.protocol`.
Sets in more silos are left out.

**Groups of silos**, each divided by columns and of other rows (``silo_groups``): each counts its own rows, as silos
with different columns do, and sums over all silos open, as of silos with different rows. Sets are in one or two silos
of every group, which one silo cannot tell of other groups: a set in more is refused, not left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import torch
from torch import Tensor

from silosynth.core import conversation
from silosynth.core.conversation import (
    Checkpoint,
    Conversation,
    Exchange,
    Party,
    Roster,
    State,
    check_same_rows,
    expect,
)
from silosynth.core.errors import ConfigError, ProtocolError, nearest
from silosynth.core.messages import Message, NonNegative, Release, Struct
from silosynth.core.schema import ColumnSchema, Kind, Schema, Table, check_groups, modelled_columns
from silosynth.core.streams import Streams
from silosynth.counting import opening, plan as planning, protocol
from silosynth.counting.distances import Figure, FigurePlan, PrepareFigures, open_distances
from silosynth.counting.levels import CountedColumn
from silosynth.counting.opening import CellNoise
from silosynth.counting.plan import CountRequest, Plan
from silosynth.counting.silo import TableCounter
from silosynth.privacy.accounting import table_variance
from silosynth.privacy.aggregation import LEAST
from silosynth.privacy.events import Target
from silosynth.privacy.sealed import Seat

REFERENCES = 4  # most tables that one set is compared with: many figures are as good as the table
NEXT_TO = 1000  # numbers of rows that figures compare are made equal to one in so many, at least
HOLDOUT = "(hold-out)"
"""The column that says of each row whether it was held out: boolean, in every silo, the same in all."""


class JudgeConfig(Struct):
    """What is counted, and how it opens.

    Attributes:
        columns: of all silos, each name once; whose they are is found out by asking (``silo`` is empty).
        sets: the columns of each table, by their places in ``columns``.
        opening: "exact"; "noised", by the target; or "figures", exact ones, without the tables.
        dp: what all tables together may cost; private exactly if tables open with noise.
        holdout: whether each set gets a last axis: rows that were trained on, rows that were held out.
        most_rows: a public bound of the number of rows; 0 for none. With a target there must be one; figures, which
            tell numbers of rows, take no notice of it.
        references: of figures, for each set the public tables that it is compared with, int64: one of the set's shape,
            or up to `REFERENCES` of them along a first axis. Each is scaled to the number of rows.
        horizontal: whether silos hold different rows of the same columns: then sums over all of them open, by
            `privacy.aggregation`, exactly over three silos or more; no figures do.
        dealer: the silo that deals, in place of the coordinator (`silosynth.counting.dealing`); it holds no column that
            is judged. Empty for the coordinator.
        three: whether tables of three silos open, too (not with noise): see the module's docstring.
        silo_groups: the silos of each group, if silos are in groups, each of which divides all columns and holds other
            rows: then ``horizontal`` is set as well, and the coordinator deals.

    Raises:
        ConfigError: names repeat; a set is empty, repeats a column, or names one that is not there; there is a target
            without noise, or noise without a target; references are not one for each set, of its shape; or groups are
            too few, or none of different rows.
    """

    columns: tuple[CountedColumn, ...] = ()
    sets: tuple[tuple[int, ...], ...] = ()
    opening: Literal["exact", "noised", "figures"] = "noised"
    dp: Target = Target()
    references: tuple[Tensor, ...] = ()
    holdout: bool = False
    most_rows: NonNegative[int] = 0
    horizontal: bool = False
    dealer: str = ""
    three: bool = False
    silo_groups: tuple[tuple[str, ...], ...] = ()

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
        if self.horizontal and self.opening == "figures":
            raise ConfigError("Figures are of silos with different columns of the same rows", "the same columns")
        if len(self.references) != (len(self.sets) if self.opening == "figures" else 0):
            raise ConfigError("Figures, and nothing else, have references for each set", len(self.references))
        for number in range(len(self.references)):
            self.compared(number)
        if self.silo_groups:
            self._check_groups()

    def _check_groups(self) -> None:
        named = [silo for group in self.silo_groups for silo in group]
        if not self.horizontal or self.dealer or not all(self.silo_groups) or len(set(named)) < len(named):
            rule = "Groups of silos hold different rows, each silo is in one of them, and the coordinator deals"
            raise ConfigError(rule, self.dealer or self.silo_groups, "Leave the dealer out, or the groups.")
        least = 2 if self.opening == "noised" else LEAST
        if len(self.silo_groups) < least:
            rule = f"Sums over groups of silos are over {least} or more, of which each knows its own"
            raise ConfigError(rule, len(self.silo_groups), "Have tables open with noise, or find more.")

    def compared(self, number: int) -> tuple[Tensor, ...]:
        """The references of a set.

        Raises:
            ConfigError: they are not tables of its shape, or too many.
        """
        shape = tuple(self.columns[place].size for place in self.sets[number])
        given = self.references[number]
        tables = given.reshape(1, *given.shape) if given.dim() == len(shape) else given
        whole = given.dtype == torch.int64 and tuple(tables.shape[1:]) == shape and bool((given >= 0).all())
        if not whole or not 0 < len(tables) <= REFERENCES or not bool(tables.flatten(1).sum(1).all()):
            rule = f"A set is compared with 1 to {REFERENCES} tables of counts of its shape {shape}, int64, not empty"
            raise ConfigError(rule, f"{tuple(given.shape)} of {given.dtype}")
        return tuple(tables)


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


class TellNumbers(Message):
    """Coordinator: how many rows do you hold? Of figures only, which need it."""


class NumbersTold(Message, release=Release.COUNTS):
    """Silo: rows that were trained on, and rows that were held out."""

    trained: int
    held_out: int


# What both sides make of the options.


def request_for(config: JudgeConfig, silos: tuple[str, ...], owners: Sequence[str], rows: int) -> CountRequest:
    """What is counted.

    Args:
        config: the job's options.
        silos: all silos; of groups, those of one.
        owners: the silo of each column; empty where every silo has it.
        rows: the bound of their number.

    Raises:
        ConfigError: no set can open; of groups, one cannot; or see `CountRequest`.
    """
    columns = tuple(replace(column, silo=silo) for column, silo in zip(config.columns, owners, strict=True))
    everywhere = config.horizontal and not config.silo_groups
    all_silos = ("",) if everywhere else tuple(silo for silo in silos if silo != config.dealer)
    held = tuple(CountedColumn(silo, HOLDOUT, (False, True), missing=False) for silo in all_silos if config.holdout)
    sets = tuple(config.sets[number] for number in opened_sets(config, owners))
    if config.silo_groups and len(sets) < len(config.sets):
        rule = "Of groups of silos, each set is of columns in one or two silos of every group"
        raise ConfigError(rule, f"three of {', '.join(silos)}", "Judge without a target, or ask for other sets.")
    if not sets:
        raise ConfigError("At least one set is of columns in few enough silos", len(config.sets), "Ask for other sets.")
    if config.holdout:
        first = (min(all_silos.index(owners[place]) for place in places) for places in sets)
        sets = tuple((*places, len(columns) + silo) for places, silo in zip(sets, first, strict=True))
    bits = 64 if config.opening == "figures" else opening.bits_to_open(rows, noise_of(config))
    return CountRequest(silos, (*columns, *held), sets, rows, bits, dealer=config.dealer)


def opened_sets(config: JudgeConfig, owners: Sequence[str]) -> tuple[int, ...]:
    """The sets that open, by their places in the options."""
    most = 3 if config.three and config.opening != "noised" else 2
    found = enumerate(config.sets)
    return tuple(number for number, places in found if len({owners[place] for place in places}) <= most)


def noise_of(config: JudgeConfig) -> CellNoise | None:
    """The noise of each table, discrete Gaussian; None where they open exactly.

    All sets of the options together cost the target, whether all open or not: so it does not hang on what silos are
    told of others' columns, which could differ.
    """
    if config.opening != "noised":
        return opening.EXACT
    return CellNoise(half_variance=table_variance(config.dp, max(1, len(config.sets))))


def figures_for(config: JudgeConfig, request: CountRequest, numbers: tuple[int, int]) -> list[list[Figure]]:
    """The figures of each set that opens: rows trained on to each reference; with a hold-out, to the rows held out.

    Rows are scaled as references are, by the nearest fraction of small enough whole numbers, so that figures fit.

    Args:
        config: the job's options.
        request: what is counted.
        numbers: of rows that were trained on, and held out.

    Raises:
        ConfigError: there are no such rows.
    """
    trained, held_out = numbers
    if not trained or (config.holdout and not held_out):
        raise ConfigError("Figures are of at least one row that was trained on, and one held out", numbers)
    owners = [column.silo for column in request.columns[: len(config.columns)]]
    found = []
    for place, number in enumerate(opened_sets(config, owners)):
        figures = []
        for table in config.compared(number):
            real, public = _scales(trained, int(table.sum()))
            figures.append(Figure(place, (real, 0) if config.holdout else (real,), table * public))
        if config.holdout:
            real, other = _scales(trained, held_out)
            figures.append(Figure(place, (real, -other), torch.zeros_like(table)))
        found.append(figures)
    return found


def _scales(rows: int, others: int) -> tuple[int, int]:
    """Whole numbers by which ``rows`` and ``others`` are multiplied to be next to equal, at most about 2^30.

    Raises:
        ConfigError: no such numbers make them equal to one in `NEXT_TO`.
    """
    scale = Fraction(rows, others).limit_denominator(max(1, (1 << 30) // planning.padded(rows)))
    if abs(scale * others - rows) * NEXT_TO > rows:
        remedy = "Judge fewer synthetic rows, or open tables."
        raise ConfigError("Figures compare numbers of rows that are not too far apart", (rows, others), remedy)
    return scale.denominator, scale.numerator


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
        order and the hold-out (rows trained on, rows held out) last; None for a set in more silos than open, and for
        all where figures open: "distances" then has those of each set, in the order of `figures_for`, and "numbers"
        says how many rows were trained on and held out. "rows": the bound of their number. "noise": the largest
        standard deviation of a cell's noise, 0.0 without; "noises": that of each table.

    Raises:
        ConfigError: no silo holds a column, or two do; or nothing bounds the number of rows.
        ProtocolError: a silo refuses.
    """
    if config.opening == "noised" and not config.most_rows:
        remedy = "Give most_rows, of which it is no secret that there are no more."
        raise ConfigError("Tables that open with noise have a public bound of their rows", "none", remedy)
    groups = config.silo_groups or (roster.parties,)
    if state is None:
        owners = yield from _found(roster, config)
        numbers = (yield from _numbers(roster, config)) if config.opening == "figures" else (0, 0)
        rows = planning.padded(sum(numbers)) if sum(numbers) else config.most_rows
        rows = rows or (yield from _bound(roster, config))
        requests = [request_for(config, group, own, rows) for group, own in zip(groups, owners, strict=True)]
        yield from _counted(roster, config, requests)
        yield Checkpoint({"owners": list(map(list, owners)), "rows": rows, "numbers": list(numbers)})
    else:
        owners, rows, numbers = tuple(map(tuple, state["owners"])), state["rows"], tuple(state["numbers"])
    request, chosen = request_for(config, groups[0], owners[0], rows), opened_sets(config, owners[0])
    told = [""] * len(config.columns) if config.silo_groups else list(owners[0])
    found = {"owners": told, "rows": rows, "noise": 0.0, "noises": [0.0] * len(config.sets)}
    if config.opening == "figures":
        distances = yield from _distances(roster, config, request, numbers)
        nothing = {"tables": [None] * len(config.sets), "numbers": list(numbers)}
        return found | nothing | {"distances": _placed(chosen, distances, config)}
    noise = noise_of(config)
    noises = dict.fromkeys(range(len(chosen)), noise)
    tables = yield from opening.open_tables(roster, request, noises, streams.child("opening").noise())
    found["tables"] = _placed(chosen, [torch.from_numpy(tables.passed_on[place]) for place in noises], config)
    if noise is not None:
        silos = len(roster) if config.horizontal else 0
        deviations = [_deviation(noise, len(parts), silos) for parts in Plan(request).parts]
        found |= {"noise": max(deviations), "noises": _placed(chosen, deviations, config, 0.0)}
    return found


def _counted(roster: Roster, config: JudgeConfig, requests: Sequence[CountRequest]) -> Conversation[None]:
    """Count, by all silos or group by group."""
    if not config.silo_groups:
        return (yield from protocol.count(roster, requests[0]))
    each = [protocol.count(roster.only(own.silos), own, apart=True) for own in requests]
    yield from conversation.side_by_side(each)


def _deviation(noise: CellNoise, silos: int, summed: int) -> float:
    """Of a cell's noise, as it is passed on: of one silo, of two and the coordinator, or of all silos of a sum."""
    if summed:
        return noise.deviation(summed, summed - 1)
    return noise.deviation(3 if silos == 2 else 2)


def _placed(chosen: Sequence[int], values: Sequence[Any], config: JudgeConfig, rest: Any = None) -> list[Any]:
    """Values of the sets that opened, at their places in the options."""
    by_set = dict(zip(chosen, values, strict=True))
    return [by_set.get(number, rest) for number in range(len(config.sets))]


def _distances(
    roster: Roster, config: JudgeConfig, request: CountRequest, numbers: tuple[int, int]
) -> Conversation[list[list[float]]]:
    """Squared distances of shares of rows, for each set that opens."""
    figures = figures_for(config, request, numbers)
    flat = list(itertools.chain(*figures))
    opened = iter((yield from open_distances(roster, request, flat)))
    return [[next(opened) / (one.weights[0] * numbers[0]) ** 2 for one in own] for own in figures]


def _found(roster: Roster, config: JudgeConfig) -> Conversation[tuple[tuple[str, ...], ...]]:
    """The silo of each column, empty where every silo has it; of groups, that of each group."""
    held = expect((yield roster.everyone(FindColumns())), ColumnsHeld)
    if config.silo_groups:
        names = [column.name for column in config.columns]
        own = {silo: [names[place] for place in reply.places] for silo, reply in zip(roster, held, strict=True)}
        check_groups(own, config.silo_groups)
        each = [{name: silo for silo in group for name in own[silo]} for group in config.silo_groups]
        if lacking := [name for name in names if name not in each[0]]:
            raise ConfigError("All columns that are judged are in every group", lacking, "Leave the others out.")
        return tuple(tuple(owner[name] for name in names) for owner in each)
    owners = []
    if config.horizontal:
        lacking = [silo for silo, reply in zip(roster, held, strict=True) if len(reply.places) < len(config.columns)]
        if lacking:
            raise ConfigError("All columns that are judged are in every silo", lacking, "Leave the others out.")
        return (("",) * len(config.columns),)
    for place, column in enumerate(config.columns):
        silos = [silo for silo, reply in zip(roster, held, strict=True) if place in reply.places]
        if len(silos) != 1:
            rule = f"Column {column.name!r} that is judged is in one silo"
            raise ConfigError(rule, silos or "in none", "Leave it out of the synthetic table, or of all silos but one.")
        owners.append(silos[0])
    return (tuple(owners),)


def _holders(roster: Roster, config: JudgeConfig, ask: Message) -> Exchange:
    """Ask all silos but one that deals, which may hold no rows."""
    return Exchange({silo: ask for silo in roster if silo != config.dealer})


def _bound(roster: Roster, config: JudgeConfig) -> Conversation[int]:
    """The most that a silo tells."""
    return max(reply.rows for reply in expect((yield _holders(roster, config, TellRows())), RowsTold))


def _numbers(roster: Roster, config: JudgeConfig) -> Conversation[tuple[int, int]]:
    """Numbers of rows that were trained on, and held out."""
    replies = yield _holders(roster, config, TellNumbers())
    told = expect(replies, NumbersTold)
    check_same_rows(replies, [reply.trained for reply in told])
    check_same_rows(replies, [reply.held_out for reply in told])
    return told[0].trained, told[0].held_out


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
        holdout = config.holdout and seat.name != config.dealer  # which may hold no rows
        if holdout and HOLDOUT not in table.names:
            rule = "A silo that judges with a hold-out has a column that says which rows those are"
            raise ConfigError(rule, "none", nearest(HOLDOUT, table.names))
        own = modelled_columns(table, schema).names
        self._held = tuple(place for place, column in enumerate(config.columns) if column.name in own)
        everyone = seat if config.silo_groups else None
        if everyone is not None:
            groups = [group for group in config.silo_groups if seat.name in group]
            if len(groups) != 1 or sorted(itertools.chain(*config.silo_groups)) != sorted(seat.roster):
                raise ConfigError("Groups of silos name all silos, each once", config.silo_groups, "Name all silos.")
            seat = replace(seat, roster=seat.roster.only(groups[0]))
        self._config, self._seat = config, seat
        self._opened = set[tuple[int, ...]]()  # with noise, by the places of their columns
        target = config.dp if config.opening == "noised" else None
        exact, figures = config.opening == "exact", config.opening == "figures"
        self._counter = TableCounter(table, schema, seat, target, streams, exact, figures, everyone=everyone)
        held_out = int(table[HOLDOUT].values.sum()) if holdout else 0
        self._numbers = len(table) - held_out, held_out

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
            case TellNumbers():
                return self._tell_numbers()
            case protocol.PrepareCount():
                self._check_request(ask.request)
            case opening.OpenTables() | opening.OpenSums():
                return self._open(ask)
            case PrepareFigures():
                self._check_figures(ask)
        return self._counter.answer(ask)

    def _tell_rows(self) -> RowsTold:
        if self._config.opening != "exact" or self._config.most_rows:
            raise self._refusal("tells about how many rows it holds if tables open exactly, without a bound", "others")
        return RowsTold(planning.padded(sum(self._numbers)))

    def _tell_numbers(self) -> NumbersTold:
        if self._config.opening != "figures":
            raise self._refusal("tells numbers of rows if figures open", self._config.opening)
        return NumbersTold(*self._numbers)

    def _check_request(self, request: CountRequest) -> None:
        """Check that what is counted follows from the options, and from what this silo holds; it counts once."""
        config, name = self._config, self._seat.name
        if self._counter.request is not None:  # a dealer could make other errors each time, which figures would add up
            raise self._refusal("counts once for its job", "again")
        owners = tuple(column.silo for column in request.columns[: len(config.columns)])
        everywhere = config.horizontal and not config.silo_groups
        own, known = ("", {""}) if everywhere else (name, set(self._seat.roster))
        if tuple(place for place, owner in enumerate(owners) if owner == own) != self._held:
            raise self._refusal("counts the columns that it holds", owners)
        if not set(owners) <= known or len(owners) != len(config.columns):
            raise self._refusal("counts columns of the silos of its roster", owners)
        bound = 0 if config.opening == "figures" else config.most_rows
        if request.rows != (bound or planning.padded(request.rows)):  # others could be told from its own
            raise self._refusal("counts as many rows as its job says, or a rounded number of them", request.rows)
        if request != request_for(config, self._seat.roster.parties, owners, request.rows):
            raise self._refusal("counts what its job says", "other columns, sets, bits or blocks")

    def _open(self, ask: opening.OpenTables | opening.OpenSums) -> Message:
        """Open sets with the noise that follows from the options; each once, so that all together cost the target."""
        request, noise = self._counter.request, noise_of(self._config)
        if any(given != noise for given in ask.noises):
            raise self._refusal("opens tables with the noise that follows from its job", "another")
        sets = [request.sets[number] for number in ask.sets if request is not None and 0 <= number < len(request.sets)]
        if noise is not None and self._opened.intersection(sets):
            raise self._refusal("opens each table of its job once", "again")
        reply = self._counter.answer(ask)
        self._opened.update(sets)
        return reply

    def _check_figures(self, ask: PrepareFigures) -> None:
        """Check that figures are those that follow from the options, and from this silo's numbers of rows."""
        request = self._counter.request
        if request is None or self._config.opening != "figures":
            raise self._refusal("opens figures of a counting that has ended, if its job says so", "others")
        ours = tuple(itertools.chain(*figures_for(self._config, request, self._numbers)))
        plan = Plan(request)
        if FigurePlan(plan, ask.figures).context(()) != FigurePlan(plan, ours).context(()):
            raise self._refusal("opens the figures that follow from its job", "others")

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
