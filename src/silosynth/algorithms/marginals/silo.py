"""A silo that measures marginals: its columns as attributes, its part in tables, and values for drawn levels.

Shapes: N rows, A attributes, R rows that are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from silosynth.algorithms.marginals import networks, private, protocol as marginals
from silosynth.algorithms.marginals.options import MarginalsConfig
from silosynth.core.conversation import State, Turn, check_tensor, often, once
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message, from_state, to_state
from silosynth.core.schema import Column, ColumnSchema, Kind, Schema, Table
from silosynth.counting import opening, protocol as counting
from silosynth.counting.plan import CountRequest, padded
from silosynth.counting.silo import TableCounter
from silosynth.encoders import attributes as cells
from silosynth.encoders.table import MOST_BINS, ColumnParty, Learnt, named_columns
from silosynth.privacy.agreement import ASKS, Confirmations, Group, OfferShares, RelayedShares
from silosynth.privacy.events import Event

_LEVELS = "str"  # dtype of columns that are counted


class MarginalsSilo(ColumnParty):
    """A silo's side."""

    def _set_up(self) -> None:
        self.config: MarginalsConfig
        self.held: tuple[private.Held, ...] = ()  # of all silos, once attributes are made
        self.told = 0  # as told: noised with differential privacy
        self.attributes: tuple[networks.Attribute, ...] = ()
        self.events: list[Event] = []  # of this silo's encoders
        self.opened: list[int] = []  # sets
        self.named: list[int] = []  # sets that open in full, of which all silos have been told
        self.naming: tuple[int, ...] = ()  # those that silos are agreeing on
        self.group = Group(self.seat)
        self.counter = self._make_counter()

    def _script(self, training: bool) -> tuple[Turn, ...]:
        """What is measured is measured once; the counter checks the order of blocks."""
        if not training:
            return often(marginals.SynthesiseLevels)
        return (
            *once(marginals.DescribeHeld, marginals.MakeAttributes),
            *often(*ASKS),
            *once(counting.PrepareCount),
            *often(counting.DealSeed, counting.HideBlock, counting.TakeBlock),
            *once(counting.FinishCount),
            *often(opening.OpenTables, opening.RevealTables, *ASKS),
        )

    def _answer(self, ask: Message) -> Message:
        match ask:
            case marginals.DescribeHeld():
                return marginals.HeldDescribed(self._own_held)
            case marginals.MakeAttributes():
                return self._make(ask)
            case marginals.SynthesiseLevels():
                return self._synthesise(ask)
            case counting.PrepareCount():
                self._check_request(ask.request)
            case OfferShares() | RelayedShares() | Confirmations():
                return self._agree(ask)
            case opening.OpenTables() | opening.RevealTables():
                return self._open(ask)
        return self.counter.answer(ask)

    # Attributes.

    @property
    def _own_held(self) -> private.Held:
        table, schema = self.columns.table, self.columns.schema
        return private.Held(max(1, len(table.columns)), named_columns(table, schema))

    @property
    def _plan(self) -> private.MarginalsPlan | None:
        return private.plan_noise(self.config, self.held)

    def _make(self, ask: marginals.MakeAttributes) -> Message:
        """Fit encoders, with noise if ``dp`` asks for it, and make attributes."""
        place = self.seat.roster.parties.index(self.seat.name)
        if len(ask.held) != len(self.seat.roster) or ask.held[place] != self._own_held:
            raise self._refusal("makes attributes of the columns that it holds", len(ask.held))
        plan, columns, config = private.plan_noise(self.config, ask.held), self.columns, self.config
        if plan is None:
            columns.fit(config.encoders)
            self.told, shares = len(columns.table), self._exact_shares()
        else:
            learnt = columns.learn_with(config.encoders, plan.columns, plan.names, config.dp.delta)
            self.told, shares, self.events = learnt.rows, self._noised_shares(learnt), list(learnt.events)
        self.held = ask.held
        self.attributes = tuple(
            networks.make_attribute(encoder, share_F, config.bins, config.groups)
            for encoder, share_F in zip(columns.encoders, shares, strict=True)
        )
        self.counter = self._make_counter()
        names, levels = tuple(encoder.name for encoder in columns.encoders), tuple(a.size for a in self.attributes)
        made = self.told, names, levels, tuple(attribute.group_ends for attribute in self.attributes)
        if plan is None:
            return marginals.AttributesMade(*made)
        self.counter.events = list(plan.events)  # of all silos: what opens is to be afforded with them
        margins = tuple(attribute.margin_L for attribute in self.attributes)
        variances = tuple(self._variances(plan))
        return marginals.NoisedAttributesMade(*made, margins, variances, tuple(self.events))

    def _exact_shares(self) -> list[Tensor]:
        """Of each attribute's cells."""
        cells_NA = self._cells()
        sizes = cells.sizes_of(self.columns.encoders, self.config.bins)
        counts = [torch.bincount(of_N, minlength=size) for of_N, size in zip(cells_NA.T, sizes, strict=True)]
        return [count.double() / max(1, len(cells_NA)) for count in counts]

    def _noised_shares(self, learnt: Learnt) -> list[Tensor]:
        """The same from noised histograms: a continuous part is divided evenly, since its bins are so."""
        found = []
        for encoder, share_L in zip(learnt.encoders, learnt.shares, strict=True):
            lines = share_L[: encoder.lines].double().repeat_interleave(self.config.bins) / self.config.bins
            found.append(torch.cat([lines, share_L[encoder.lines :].double()]))
        return found

    def _variances(self, plan: private.MarginalsPlan) -> Iterator[float]:
        """Of each attribute's numbers of rows: a level of numbers is made of some of a histogram's bins."""
        for encoder, attribute in zip(self.columns.encoders, self.attributes, strict=True):
            yield plan.columns * (1.0 if encoder.categorical else max(1.0, MOST_BINS / attribute.size))

    def _cells(self) -> Tensor:
        """(N, A) of the rows."""
        return cells.attributes(*self.columns.encode(), self.columns.encoders, self.config.bins)

    # Tables.

    def _make_counter(self) -> TableCounter:
        """Of attributes' levels, and their groups, in place of what columns hold."""
        counted, names = list[Column](), {encoder.name for encoder in self.columns.encoders}
        cells_NA = self._cells() if self.attributes else torch.zeros(0, 0, dtype=torch.int64)
        for encoder, attribute, cell_N in zip(self.columns.encoders, self.attributes, cells_NA.T, strict=True):
            levels, groups = attribute.level_F, attribute.group_L[attribute.level_F]
            counted.append(_column(encoder.name, levels[cell_N], attribute.size))
            counted.append(_column(private.groups_name(encoder.name, names), groups[cell_N], attribute.groups))
        schema = Schema(tuple(ColumnSchema(one.name, Kind.CATEGORICAL.value, _LEVELS) for one in counted))
        private_run, streams = self.config.dp.private, self.streams.child("tables")
        target = self.config.dp if private_run else None
        table = Table(tuple(counted))
        return TableCounter(table, schema, self.seat, target, streams, exact=not private_run, scope="all")

    def _check_request(self, request: CountRequest) -> None:
        """Check that what is counted follows from the options, and from what this silo holds."""
        columns = request.columns
        half = len(columns) // 2 if len(columns) > 2 else len(columns)  # after levels come groups, if a tree is chosen
        groups = columns[half:] or columns
        if len(groups) != half or not self._all_columns([column.silo for column in columns[:half]]):
            raise self._refusal("counts as many columns as silos hold", len(columns))
        attributes = [
            private.CountedAttribute(a.silo, a.name, a.size, b.size)
            for a, b in zip(columns[:half], groups, strict=True)
        ]
        selected = len(columns) > half
        own = [
            private.CountedAttribute(self.seat.name, encoder.name, one.size, one.groups if selected else one.size)
            for encoder, one in zip(self.columns.encoders, self.attributes, strict=True)
        ]
        if [one for one in attributes if one.silo == self.seat.name] != own:
            raise self._refusal("counts the attributes that it has made", len(attributes))
        if request.rows != padded(request.rows) or request.rows < marginals.bound(self.told, self._plan):
            raise self._refusal("counts at least as many rows as it has told, rounded up", request.rows)
        if request != private.request_for(self.seat.roster.parties, attributes, request.rows, self._plan):
            raise self._refusal("counts what its options say", "other columns, sets, bits or blocks")

    def _all_columns(self, owners: Sequence[str]) -> bool:
        """Whether they are of as many columns as silos have said; without noise some may be determined by others."""
        said = {silo: one.columns for silo, one in zip(self.seat.roster, self.held, strict=True)}
        counts = Counter(owners)
        if self._plan is not None:
            return counts == said
        return all(count <= said.get(silo, 0) for silo, count in counts.items())

    @property
    def _counted(self) -> int:
        """How many attributes of all silos were counted; 0 before."""
        request = self.counter.request
        return 0 if request is None else len(request.columns) // (2 if len(request.columns) > 2 else 1)

    def _agree(self, ask: Message) -> Message:
        """Agree with all silos on the secret of a counting; and after it, on which tables open in full.

        So each silo knows all of them, those of others too, and that the others were told the same.
        """
        if self._counted == 0:
            return self.counter.answer(ask)
        if isinstance(ask, OfferShares):
            self.naming = self._nameable(ask)
        reply = self.group.answer(ask)
        if isinstance(ask, Confirmations):
            self.named, self.naming = [*self.named, *self.naming], ()
        return reply or Done()

    def _nameable(self, ask: OfferShares) -> tuple[int, ...]:
        """The tables that silos are to agree on: not too many with those before, and each once."""
        sets = private.named_sets(ask.purpose)
        named, most = [*self.named, *sets], private.most_tables(self.config, self._counted)
        there = all(number < len(private.full_sets(self._counted)) for number in sets)
        if not (sets and there and ask.fresh and len(set(named)) == len(named) <= most):
            raise self._refusal(f"opens at most {most} tables in full, each once, by a new agreement", ask.purpose)
        return sets

    def _open(self, ask: opening.OpenTables | opening.RevealTables) -> Message:
        """Open tables of groups, and in full those that silos have agreed on, each once; with the noise planned."""
        plan, full = self._plan, len(private.full_sets(self._counted)) if self._counted else 0
        noises = [opening.EXACT if plan is None else plan.full if one < full else plan.groups for one in ask.sets]
        given = list(ask.noises) if isinstance(ask, opening.OpenTables) else [opening.EXACT] * len(ask.sets)
        if given != noises:
            raise self._refusal("opens tables with the noise that follows from its options", "another")
        opened = [*self.opened, *ask.sets]
        if len(set(opened)) < len(opened) or not {one for one in ask.sets if one < full} <= set(self.named):
            raise self._refusal("opens each table once, in full those that all silos agreed on", "again, or another")
        reply = self.counter.answer(ask)
        self.opened = opened
        return reply

    def _refusal(self, rule: str, value: object) -> ProtocolError:
        return ProtocolError(f"Silo {self.seat.name!r} {rule}", value, "Both sides take the job's options as agreed.")

    # Synthetic rows.

    def _synthesise(self, ask: marginals.SynthesiseLevels) -> Message:
        """Draw a cell for each level, and a value for each cell, by noised histograms where ``dp`` asks for it."""
        sizes = [attribute.size for attribute in self.attributes]
        check_tensor("Levels of this silo's attributes", ask.levels_RA, None, len(sizes), below=max(sizes, default=1))
        streams, encoders = self.streams.child("synthesise", ask.draw), self.columns.encoders
        rng = streams.child("cells").numpy()
        cells_RA = torch.zeros_like(ask.levels_RA)
        for place, attribute in enumerate(self.attributes):
            cells_RA[:, place] = attribute.draw(ask.levels_RA[:, place].clamp(max=attribute.size - 1), rng)
        levels, scores = cells.codes(cells_RA, encoders, self.config.bins, streams.child("scores").torch())
        return self.publish(self.columns.decode(levels, scores, streams), self._shares)

    # State.

    def _state(self, training: bool) -> State:
        """What drawing rows needs, and what was released; with ``training`` also shares of tables."""
        state = {
            "config": to_state(self.config),
            "held": [to_state(one) for one in self.held],
            "encoders": self.columns.state(),
            "attributes": [to_state(attribute) for attribute in self.attributes],
            "events": [to_state(event) for event in self.events],
        }
        if not training:
            return state
        tables = {"opened": list(self.opened), "named": list(self.named)}
        return {**state, "rows": self.told, **tables, "counter": self.counter.state()}

    def _restore(self, state: State) -> None:
        self.columns.restore(state["encoders"])
        self.held = tuple(from_state(private.Held, one) for one in state["held"])
        self.attributes = tuple(from_state(networks.Attribute, one) for one in state["attributes"])
        self.events = [from_state(Event, event) for event in state["events"]]
        if "counter" in state:
            self.told, self.opened, self.named = state["rows"], list(state["opened"]), list(state["named"])
            self.counter = self._make_counter()
            self.counter.restore(state["counter"])


def _column(name: str, level_N: Tensor, size: int) -> Column:
    return Column(name, _LEVELS, level_N, torch.zeros(len(level_N), dtype=torch.bool), tuple(range(size)))
