"""A silo that measures marginals: its columns as attributes, its part in tables, and values for drawn levels.

Shapes: N rows, A attributes, R rows that are drawn.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.marginals import networks, private, protocol as marginals
from silosynth.algorithms.marginals.options import MarginalsConfig
from silosynth.core.conditions import Condition
from silosynth.core.conversation import State, Turn, check_tensor, maybe, often, once
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done, Message, from_state, to_state
from silosynth.core.schema import Column, ColumnSchema, Kind, Schema, Table, check_agreed, check_trainable
from silosynth.core.streams import Streams
from silosynth.counting import joint, opening, protocol as counting
from silosynth.counting.plan import CountRequest, padded
from silosynth.counting.silo import TableCounter
from silosynth.encoders import attributes as cells, possible, summed
from silosynth.encoders.table import ColumnParty, Learnt, check_bounds, counted_share, named_columns
from silosynth.privacy import masker
from silosynth.privacy.agreement import ASKS, Agreements, Confirmations, Group, OfferShares, RelayedShares, is_new
from silosynth.privacy.events import Event
from silosynth.privacy.masker import told
from silosynth.privacy.masks import Words

_LEVELS = "str"  # dtype of columns that are counted


class MarginalsSilo(ColumnParty):
    """A silo's side."""

    def _set_up(self) -> None:
        self.config: MarginalsConfig
        self.held: tuple[private.Held, ...] = ()  # of all silos, once attributes are made
        self.holding = ""  # what silos have agreed that all hold: `private.holding`
        self.told = 0  # as told: noised with differential privacy
        self.attributes: tuple[networks.Attribute, ...] = ()
        self.wanted = networks.Wanted()  # of synthetic rows
        self.events: list[Event] = []  # of this silo's encoders
        self.opened: list[int] = []  # sets
        self.named: dict[int, opening.CellNoise | None] = {}  # sets that open in full, as all silos know, and how
        self.naming: dict[int, opening.CellNoise | None] = {}  # those that silos are agreeing on
        self.planned = 0  # how many more may be named, once some are
        self.told_cells = b""  # a hash of what levels are, where silos hold different rows
        self.group = Group(self.seat, self.streams.child("named"))  # on what all hold, and which tables open in full
        self.counter = self._make_counter()

    def _script(self, training: bool) -> tuple[Turn, ...]:
        """What is measured is measured once; the counter checks the order of blocks."""
        if not training:
            return often(marginals.WeighLevels, marginals.SynthesiseLevels)
        return (
            *once(marginals.DescribeHeld),
            *often(*ASKS),
            *once(marginals.MakeAttributes),
            *maybe(marginals.AskPossible),
            *often(*ASKS),
            *once(counting.PrepareCount),
            *often(counting.DealSeed, counting.HideBlock, counting.TakeBlock),
            *once(counting.FinishCount),
            *often(joint.HideBits, joint.TakeBits, opening.OpenTables, opening.RevealTables, *ASKS),
            *maybe(marginals.HandOverDecoders),
        )

    def _answer(self, ask: Message) -> Message:
        match ask:
            case marginals.DescribeHeld():
                return marginals.HeldDescribed(self._own_held)
            case marginals.MakeAttributes():
                return self._make(ask)
            case marginals.SynthesiseLevels():
                return self._synthesise(ask)
            case marginals.WeighLevels():
                return self._weigh()
            case marginals.AskPossible():
                return self._possible(ask)
            case marginals.HandOverDecoders():
                return self._hand_over()
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
        values = private.values_of(self.config, schema.select(table.names))
        return private.Held(values or (2,), named_columns(table, schema))

    @property
    def _plan(self) -> private.MarginalsPlan | None:
        return private.plan_noise(self.config, self.held)

    def _make(self, ask: marginals.MakeAttributes) -> Message:
        """Fit encoders, with noise if ``dp`` asks for it, and make attributes."""
        place = self.seat.roster.parties.index(self.seat.name)
        if len(ask.held) != len(self.seat.roster) or ask.held[place] != self._own_held:
            raise self._refusal("makes attributes of the columns that it holds", len(ask.held))
        plan, columns, config = private.plan_noise(self.config, ask.held), self.columns, self.config
        if plan is not None and self.holding != private.holding(ask.held):
            raise self._refusal("makes attributes once all have agreed what they hold", "other columns, or not yet")
        if plan is None:
            columns.fit(config.encoders)
            self.told, shares = len(columns.table), self._exact_shares()
        else:
            before = sum(one.columns for one in ask.held[:place])
            own = plan.columns[before : before + len(columns.table.columns)]
            learnt = columns.learn_with(config.encoders, (plan.rows, *own), plan.names, config.dp)
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
        counted = [half / counted_share(columns.schema[name]) ** 2 for half, name in zip(own, names, strict=True)]
        each = zip(counted, columns.encoders, self.attributes, strict=True)
        variances = tuple(networks.level_variance(*one) for one in each)
        return marginals.NoisedAttributesMade(*made, margins, variances, tuple(self.events))

    def _exact_shares(self) -> list[Tensor]:
        """Of each attribute's cells."""
        cells_NA = self._cells()
        sizes = cells.sizes_of(self.columns.encoders, self.config.bins)
        counts = [torch.bincount(of_N, minlength=size) for of_N, size in zip(cells_NA.T, sizes, strict=True)]
        return [count.double() / max(1, len(cells_NA)) for count in counts]

    def _noised_shares(self, learnt: Learnt) -> list[Tensor]:
        """The same from noised histograms."""
        each, bins = zip(learnt.encoders, learnt.shares, strict=True), self.config.bins
        return [networks.cell_shares(encoder, share_L, bins) for encoder, share_L in each]

    def _cells(self) -> Tensor:
        """(N, A) of the rows."""
        return cells.attributes(*self.columns.encode(), self.columns.encoders, self.config.bins)

    def _possible(self, ask: marginals.AskPossible) -> marginals.PossibleTold:
        """Which levels can hold what rules name: whatever the rules, it follows from noised counts."""
        if self._plan is None:
            raise self._refusal("tells what its levels stand for where noise has made them", "no dp")
        levels = [attribute.level_F for attribute in self.attributes]
        own = possible.levels_held(ask.rules, self.columns.encoders, levels, self.config.bins)
        return marginals.PossibleTold(tuple(own))

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
        table, seat = Table(tuple(counted)), self.seat
        everyone = None
        if self.config.silo_groups:
            seat, everyone = replace(seat, roster=seat.roster.only(self._own_group)), seat
        return TableCounter(
            table, schema, seat, target, streams, not private_run, scope="all", everyone=everyone, told=self.told_cells
        )  # fmt: skip

    @property
    def _own_group(self) -> tuple[str, ...]:
        """The silos that hold the same rows, if the options name groups of silos."""
        groups, name = self.config.silo_groups, self.seat.name
        if sorted(itertools.chain(*groups)) != sorted(self.seat.roster):
            rule = "Groups of silos name all silos, each once"
            raise ConfigError(rule, groups, f"Silos are {', '.join(self.seat.roster)}.")
        return next(group for group in groups if name in group)

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
        parties = self.seat.roster.parties
        if request != private.request_for(self.config, self.held, parties, attributes, request.rows):
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

    @property
    def _levels(self) -> tuple[int, ...]:
        """Of the attributes that were counted."""
        request = self.counter.request
        return () if request is None else tuple(column.size for column in request.columns[: self._counted])

    def _agree(self, ask: Message) -> Message:
        """Agree with all silos on what all hold, on the secret of a counting, and then on which tables open in full.

        So each silo knows all of them, those of others too, and that the others were told the same.
        """
        if not self.held:
            reply = self.group.answer(ask)
            self.holding = self.group.purpose if self.group.ready else ""
            return reply or Done()
        if self._counted == 0:
            return self.counter.answer(ask)
        if isinstance(ask, OfferShares):
            self.naming = self._nameable(ask)
        reply = self.group.answer(ask)
        if isinstance(ask, Confirmations):
            self.named, self.naming = self.named | self.naming, {}
        return reply or Done()

    def _nameable(self, ask: OfferShares) -> dict[int, opening.CellNoise | None]:
        """The tables that silos are to agree on, and their noise: not too many with those before, and each once.

        Those of one attribute may be among the last, whose noise follows from how many they are together.
        """
        sets, planned = private.named_sets(ask.purpose)
        most = self.planned if self.named else private.most_tables(self.config, self._levels)
        full = len(private.full_sets(self.config, self._counted))
        pairs = full - len(private.single_sets(self.config, self._counted))
        there = all(number < (full if planned == len(sets) else pairs) for number in sets)
        once = len({*self.named, *sets}) == len(self.named) + len(sets)
        if self.naming or not (there and once and ask.fresh and 0 < len(sets) <= planned <= most):
            raise self._refusal(f"opens at most {most} more tables in full, each once, by a new agreement", ask.purpose)
        self.planned = planned - len(sets)
        opened = tuple(noise for noise in self.named.values() if noise is not None)
        return dict.fromkeys(sets, private.next_noise(self.config, self.held, opened, planned))

    def _open(self, ask: opening.OpenTables | opening.RevealTables | opening.OpenSums) -> Message:
        """Open tables of groups and margins, and in full those that silos have agreed on, each once; as planned."""
        plan, full = self._plan, len(private.full_sets(self.config, self._counted)) if self._counted else 0
        margins = full + len(private.selected_pairs(self._counted))
        first = [opening.EXACT] * 2 if plan is None else [plan.groups, plan.margins]
        noises = [self.named.get(one) if one < full else first[one >= margins] for one in ask.sets]
        given = list(getattr(ask, "noises", ())) or [opening.EXACT] * len(ask.sets)
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

    def _hand_over(self) -> marginals.DecodersHandedOver:
        """What this silo draws values from, if the options say so: then it was made of noised counts."""
        if self.config.synthesis != "public":
            raise self._refusal("keeps what it draws values from, unless its options say otherwise", "asked for it")
        return marginals.DecodersHandedOver(self.columns.encoders, self.attributes)

    def restrict(self, conditions: Sequence[Condition]) -> None:
        """See `Party.restrict`."""
        encoders, rules = self.columns.encoders, self.columns.determined
        self.wanted = networks.wanted(conditions, encoders, self.config.bins, rules)

    def _weigh(self) -> Message:
        """Which part of each level fulfils the conditions."""
        every = {place: torch.ones(one.size, dtype=torch.float64) for place, one in enumerate(self.attributes)}
        return marginals.LevelsWeighed(tuple((every | self.wanted.weights(self.attributes)).values()))

    def _synthesise(self, ask: marginals.SynthesiseLevels) -> Message:
        """Draw a cell for each level, and a value for each cell, by noised histograms where ``dp`` asks for it.

        Under conditions these are drawn from what fulfils them; values next to the end of a range until they do.
        """
        sizes, streams = [one.size for one in self.attributes], self.streams.child("synthesise", ask.draw)
        check_tensor("Levels of this silo's attributes", ask.levels_RA, None, len(sizes), below=max(sizes, default=1))
        table = self.wanted.fulfilled(ask.levels_RA, streams, self._valued)
        return self.publish(table, self._shares)

    def _valued(self, levels_RA: Tensor, streams: Streams) -> Table:
        """Values of levels."""
        encoders, bins = self.columns.encoders, self.config.bins
        made = networks.drawn(levels_RA, self.attributes, encoders, bins, streams, self.wanted.parts)
        return self.columns.decode(*made, streams)

    # State.

    def _state(self, training: bool) -> State:
        """What drawing rows needs, and what was released; with ``training`` also shares of tables."""
        state = {
            "config": to_state(self.config),
            "encoders": self.columns.state(),
            "attributes": [to_state(attribute) for attribute in self.attributes],
            "events": [to_state(event) for event in self.events],
        }
        if not training:
            return state
        halves = [0 if noise is None else noise.half_variance for noise in self.named.values()]
        tables = {
            "opened": list(self.opened),
            "named": list(self.named),
            "halves": halves,
            "planned": self.planned,
            "holding": self.holding,
        }
        held = [to_state(one) for one in self.held]
        return {**state, "held": held, "rows": self.told, **tables, "counter": self.counter.state()}

    def _restore(self, state: State) -> None:
        """Continue from `_state`, or draw from what was handed over (`protocol.part_of`)."""
        self.columns.restore(state["encoders"])
        self.attributes = tuple(from_state(networks.Attribute, one) for one in state["attributes"])
        self.events = [from_state(Event, event) for event in state.get("events", ())]
        if "counter" in state:
            self.held = tuple(from_state(private.Held, one) for one in state["held"])
            self.holding = state["holding"]
            noises = [private.table_noise(self.config, half) if half else opening.EXACT for half in state["halves"]]
            self.named = dict(zip(state["named"], noises, strict=True))
            self.told, self.opened, self.planned = state["rows"], list(state["opened"]), state["planned"]
            self.counter = self._make_counter()
            self.counter.restore(state["counter"])


class RowsSilo(MarginalsSilo):
    """A silo that holds other rows of the same columns: its part in sums. It keeps no part of the model.

    Or one of a group of silos, which together hold other rows of the same columns than other groups. It counts with its
    group, as silos with different columns do; in sums it has zeros for columns that it does not hold.
    """

    def _set_up(self) -> None:
        super()._set_up()
        group = self.names_group = Group(self.seat)
        self.nonce = f"{self.streams.child('nonce', repr(self.config)).integer():016x}"
        rule = "The secret of names is new, and for nothing else"
        self._agreements = Agreements(
            rule, lambda ask: group if is_new(ask, marginals.NAMES, self.nonce) else None, group
        )
        self._masker = masker.Masker(self.seat, max(2, len(self.seat.roster)))  # of sums over all silos
        self.agreed: Schema | None = None

    def _script(self, training: bool) -> tuple[Turn, ...]:
        """What is summed is summed once; the coordinator samples alone."""
        if not training:
            return ()
        return (
            *once(marginals.DescribeRows),
            *often(*ASKS, *masker.ASKS),
            *once(marginals.SumCells),
            *often(*masker.ASKS),
            *maybe(marginals.SumNames),
            *often(*masker.ASKS),
            *maybe(marginals.SumBins),
            *often(*masker.ASKS),
            *once(marginals.TakeAttributes),
            *often(*ASKS),
            *once(counting.PrepareCount),
            *often(counting.DealSeed, counting.HideBlock, counting.TakeBlock),
            *once(counting.FinishCount),
            *often(opening.OpenSums, *ASKS, *masker.ASKS),
        )

    def _answer(self, ask: Message) -> Message:
        if not self.attributes and (reply := self._agreements.answer(ask) or self._masker.answer(ask)) is not None:
            return reply
        match ask:
            case marginals.DescribeRows():
                return self._describe_rows()
            case marginals.SumCells():
                return self._sum_cells(ask)
            case marginals.SumNames():
                return self._sum_names(ask)
            case marginals.SumBins():
                return self._sum_bins(ask)
            case marginals.TakeAttributes():
                return self._take(ask)
            case opening.OpenSums():
                return self._open(ask)
        return super()._answer(ask)

    # Sums of columns.

    def _describe_rows(self) -> marginals.RowsDescribed:
        table = self.columns.table
        check_trainable(table, self.columns.schema)
        private.check_enough(self.config, len(self.seat.roster))
        described = tuple(replace(one, reason="", missing=(), forms=()) for one in self._declared.columns)
        whole = tuple(column.name for column in table.columns if not column.values.is_floating_point())
        return marginals.RowsDescribed(Schema(described), whole, self.nonce)

    def _sum_cells(self, ask: marginals.SumCells) -> Message:
        """Count rows, levels in buckets, and where numbers lie."""
        own = self._held_of(ask.schema)
        check_agreed(self._declared, own)
        self.agreed, self.columns.table = ask.schema, summed.alike(self.columns.table, own)
        self.held = (private.held_of(self.config, ask.schema),)
        if self._plan is not None and self.config.dp.bounds == "declared":
            check_bounds([(self.columns.table, own)])
        counted = summed.first_cells(self.columns.table, own, self._names_key)
        if self.config.silo_groups and self._own_group[0] != self.seat.name:
            counted = [one for one in counted if one.column]  # rows of a group are counted by its first silo
        every = summed.first_cells(summed.blank_table(ask.schema), ask.schema, b"")
        return self._summed(ask, summed.laid_out(counted, every))

    @property
    def _declared(self) -> Schema:
        """Of its columns; without levels where counts open exactly, so that small ones of a level open to nobody."""
        schema = self.columns.schema.select(self.columns.table.names)
        return schema if self.config.dp.private else Schema(tuple(replace(one, levels=()) for one in schema.columns))

    def _held_of(self, schema: Schema) -> Schema:
        """What this silo holds of what silos agreed on: all, unless it is one of a group."""
        held = self.columns.table.names
        return schema.select([n for n in schema.names if n in held]) if self.config.silo_groups else schema

    def _sum_names(self, ask: marginals.SumNames) -> Message:
        """Names of levels, in the buckets that pass: so few that none passes for a single row's sake."""
        named, plan = summed.named(self._agreed), self._plan
        if len(ask.places) != len(named) * summed.TABLES:
            raise self._refusal("names levels in buckets of each table", len(ask.places))
        words = []
        for place, declared in enumerate(named):
            places = ask.places[place * summed.TABLES :][: summed.TABLES]
            summed.check_passing(places, 1.0 if plan is None else plan.names)
            held = declared.name in self.columns.table.names
            column = self.columns.table[declared.name] if held else summed.blank(declared)
            words.append(summed.name_words(column, places, self._names_key))
        named_as = marginals.ExactNames if plan is None else marginals.NoisedNames
        return named_as(self._masked(np.concatenate(words), ask))

    def _sum_bins(self, ask: marginals.SumBins) -> Message:
        agreed, own = self._agreed, self._held_of(self._agreed)
        every = summed.second_cells(summed.blank_table(agreed), agreed, ask.grids, ask.bins)
        held = [one.name in own.names for one in summed.numbers(agreed)]
        grids = tuple(itertools.compress(ask.grids, held))
        return self._summed(ask, summed.laid_out(summed.second_cells(self.columns.table, own, grids, ask.bins), every))

    def _summed(self, ask: marginals.SumCells | marginals.SumBins, cells: Sequence[summed.Cells]) -> Message:
        """Mask counts; with one of n - 1 parts of the noise, of n silos, so that n - 1 are enough."""
        plan, counts = self._plan, [one.counts.numpy() for one in cells]
        if plan is None:
            words = np.concatenate(counts).view(np.uint64)
            return marginals.ExactCells(self._masked(words, ask))
        rng, parts = self.streams.child("sums", repr(ask)).noise(), len(self.seat.roster) - 1
        variances, events = plan.by_name(self._agreed), list[Event]()
        noises = [private.column_noise(variances[one.column], one.factor) for one in cells]
        for one, noise in zip(cells, noises, strict=True):
            event = noise.event(one.what, joint=False, delta=self.config.dp.delta)
            events.append(replace(event, scope="all", times=one.times, delta=plan.names * one.names / one.times))
        self.events += events
        words = np.concatenate(opening.with_parts(counts, noises, parts, [rng] * len(noises))).view(np.uint64)
        return marginals.NoisedCells(self._masked(words, ask), tuple(events))

    def _masked(self, words: Words, ask: marginals.SumCells | marginals.SumNames | marginals.SumBins) -> Tensor:
        """By what silos were told here, and of the columns that it is about."""
        return self._masker.mask_words(words, ask.number, told(ask, self._agreed)).words

    @property
    def _agreed(self) -> Schema:
        if self.agreed is None:
            raise self._refusal("agrees on columns before it names levels", "not yet")
        return self.agreed

    @property
    def _names_key(self) -> bytes:
        return self.names_group.key(marginals.NAMES)

    # Attributes, and tables.

    def _take(self, ask: marginals.TakeAttributes) -> Done:
        """Attributes for all silos; whatever they are, a row counts in one cell of each table."""
        bins, names = self.config.bins, tuple(encoder.name for encoder in ask.encoders)
        sizes = cells.sizes_of(ask.encoders, bins)
        valid = names == self._held_of(self._agreed).names and len(ask.attributes) == len(sizes) and all(
            one.valid(size, bins) for one, size in zip(ask.attributes, sizes, strict=True)
        )  # fmt: skip
        if not valid:
            raise self._refusal("takes attributes of the columns that silos agreed on", names)
        self.told_cells = self._checked_cells(ask)
        self.columns.encoders, self.told = ask.encoders, ask.most
        self.attributes = tuple(one.without_shares() for one in ask.attributes)
        self.counter = self._make_counter()
        self.counter.events = [] if self._plan is None else list(self._plan.events)
        return Done()

    def _checked_cells(self, ask: marginals.TakeAttributes) -> bytes:
        """A hash of what all silos are told of cells; in groups, once this silo's are what all are committed to."""
        if not self.config.silo_groups:
            return told(ask, self._agreed)
        names, commitments, salts = self._agreed.names, getattr(ask, "commitments", ()), getattr(ask, "salts", ())
        alike = len(commitments) == len(names) and len(salts) == len(ask.encoders) and all(
            len(salt) == marginals.SALT
            and commitments[names.index(encoder.name)] == marginals.committed(salt, encoder, attribute)
            for salt, encoder, attribute in zip(salts, ask.encoders, ask.attributes, strict=True)
        )  # fmt: skip
        if not alike:
            raise self._refusal("takes attributes that are committed to, alike in all groups", "others")
        return told(self._agreed, *commitments)

    def _check_request(self, request: CountRequest) -> None:
        """Check that what is counted follows from the options and from the attributes."""
        name, parties, others = "", self.seat.roster.parties, set[str]()
        if self.config.silo_groups:
            name, parties = self.seat.name, self._own_group
            others = {silo for silo in parties if silo != name}
        own = {
            encoder.name: private.CountedAttribute(name, encoder.name, one.size, one.groups)
            for encoder, one in zip(self.columns.encoders, self.attributes, strict=True)
        }
        names = self._agreed.names
        levels, groups = request.columns[: len(names)], request.columns[-len(names) :]  # groups come last, if any
        attributes = [
            own.get(name) or private.CountedAttribute(level.silo, name, level.size, group.size)
            for name, level, group in zip(names, levels, groups, strict=False)
        ]
        strange = {one.silo for one in attributes if one.name not in own} - others
        if strange or request != private.request_for(self.config, self.held, parties, attributes, self.told):
            raise self._refusal("counts what its options say", "other columns, sets, bits or blocks")

    # State.

    def _state(self, training: bool) -> State:
        """Nothing once trained: the coordinator has the model."""
        if not training:
            return {}
        schema = None if self.agreed is None else to_state(self.agreed)
        return {
            **super()._state(training),
            "agreed": schema,
            "told": self.told_cells,
            "masker": self._masker.state(),
            "group": self.names_group.state(),
        }

    def _restore(self, state: State) -> None:
        """What `trained` returned restores nothing."""
        if not state:
            return
        if state["agreed"] is not None:
            self.agreed = from_state(Schema, state["agreed"])
            self.columns.table = summed.alike(self.columns.table, self._held_of(self.agreed))
        self.told_cells = state["told"]
        self._masker.restore(state["masker"])
        self.names_group.restore(state["group"])
        super()._restore(state)


def _column(name: str, level_N: Tensor, size: int) -> Column:
    return Column(name, _LEVELS, level_N, torch.zeros(len(level_N), dtype=torch.bool), tuple(range(size)))
