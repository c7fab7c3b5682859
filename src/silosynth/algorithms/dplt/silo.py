"""A silo of DPLT: its columns, its attributes, its latent attributes, and the tables that it noises.

Shapes: N rows, A attributes, L latent attributes, K flags of their states.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.dplt import latents, products
from silosynth.algorithms.dplt.messages import (
    DPLTConfig,
    Draw,
    Group,
    Grouped,
    Hidden,
    Hide,
    NoisedGrouped,
    NoisedPrepared,
    NoisedRelated,
    Prepare,
    Prepared,
    Relate,
    Related,
    Sealed,
    SyntheticColumns,
)
from silosynth.core.conversation import Party
from silosynth.core.errors import DataError, ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.schema import Schema, Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder, decode_table, encode_table, fit_encoder, restored, stored
from silosynth.encoders.private import fit_private
from silosynth.privacy.accounting import spent
from silosynth.privacy.events import Event
from silosynth.privacy.masks import Words
from silosynth.privacy.mechanisms import noised_counts
from silosynth.privacy.sealed import Seat

LEAST_ROWS = 2
ROUNDING = 1e-9  # of epsilons, relative
HEAD = 40  # bytes before a hidden matrix: the number of rows, and the seed of the mask


class Silo(Party):
    """A silo's side of DPLT."""

    def __init__(self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device) -> None:
        self.table = table.select([name for name in table.names if name in schema.modelled])
        self.schema, self.seat, self.streams = schema, seat, streams
        self.prepared: Prepare | None = None
        self.encoders: tuple[Encoder, ...] = ()
        self.latents: list[latents.Latent] = []
        self.hidden: Hide | None = None
        self.levels, self.scores = torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, 0)
        self.attributes_NA = torch.zeros(0, 0, dtype=torch.int64)
        self.kept: list[Table] = []  # synthetic columns that stay here, when synthesis is partitioned
        self.told: list[str] = []  # kinds of messages that were answered and take noise: each has one stream of it
        self.events: list[Event] = []  # of all answers

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator."""
        match ask:
            case Prepare():
                return self._prepare(ask)
            case Group():
                return self._group(ask)
            case Hide():
                return self._hide(ask)
            case Relate():
                return self._relate(ask)
            case Draw():
                return self._draw(ask)
            case _:
                raise ProtocolError("A DPLT silo does not understand this message", type(ask).__name__)

    # Before any table.

    def _prepare(self, ask: Prepare) -> Message:
        """Fit encoders, with noise if ``dp`` asks for it, and make attributes."""
        self._once(ask)
        if not self.table.columns:
            raise DataError("A silo needs at least one column that is not an identifier", self.schema.names)
        if len(self.table) < LEAST_ROWS:
            raise DataError(f"A generator needs at least {LEAST_ROWS} rows", len(self.table), "Give the silo more.")
        self.prepared, config, streams = ask, ask.config, self.streams.child("encoders")
        if not config.dp.private:
            rng = streams.numpy()
            self.encoders = tuple(
                fit_encoder(column, self.schema[column.name], config.encoders, rng) for column in self.table.columns
            )
            self._encode()
            self._tell(ask, [])
            return Prepared(len(self.table), len(self.encoders))
        part = config.dp.encoders / ask.silos
        self.encoders, rows, events = fit_private(
            self.table, self.schema, config.encoders, config.dp.epsilon * part, config.dp.delta * part,
            streams.noise(), target=config.dp.delta,
        )  # fmt: skip
        self._encode()
        self._tell(ask, events)
        return NoisedPrepared(max(1, rows), len(self.encoders), tuple(events))

    def _encode(self) -> None:
        if not len(self.table):  # a restored silo that only draws
            return
        self.levels, self.scores = encode_table(self.table, self.encoders, self.streams.child("ties").numpy())
        self.attributes_NA = latents.attributes(self.levels, self.scores, self.encoders, self.config.bins)

    # Latent attributes.

    def _group(self, ask: Group) -> Message:
        """Group attributes by noised mutual information; make a latent attribute from each group's noised table."""
        self._once(ask)
        config, events = self.config, list[Event]()
        sizes = latents.sizes_of(self.encoders, config.bins)
        rng, draw = self.streams.child("groups").noise(), self.streams.child("classes").torch()
        information = [[0.0] * len(sizes) for _ in sizes]
        for a, b in itertools.combinations(range(len(sizes)), 2):
            counted = self._table([a, b], sizes)
            noised = self._noised(counted, ask.epsilon_pairs, "tables of two attributes", rng, events)
            information[a][b] = information[b][a] = latents.mutual_information(latents.proper(noised))
        found, what = list[latents.Latent](), "tables of groups of attributes"
        for group in latents.grouped(information, sizes, config.most, config.cells):
            noised = self._noised(self._table(group, sizes), ask.epsilon_groups, what, rng, events)
            found.append(latents.latent(group, noised, config.states, config.fits, draw))
        self._check([ask.epsilon_pairs if len(sizes) > 1 else 0.0, ask.epsilon_groups], events)
        self.latents = found
        self._tell(ask, events)
        states, one = tuple(one.states for one in self.latents), self.latents[0]
        first_S = torch.zeros(one.states, dtype=torch.float64).index_add_(0, one.state_C, one.share_C)
        return NoisedGrouped(states, first_S, tuple(events)) if config.dp.private else Grouped(states, first_S)

    def _table(self, group: Sequence[int], sizes: Sequence[int]) -> Tensor:
        return latents.table(self.attributes_NA[:, list(group)], [sizes[a] for a in group])

    # Tables of two latent attributes.

    def _hide(self, ask: Hide) -> Hidden:
        self.hidden, envelopes = ask, []
        own_NK = self._flags()
        for factor in ask.factors:
            hidden = own_NK - products.random_words(factor.seed, *own_NK.shape)
            head = len(self.table).to_bytes(8, "big") + self._mask(factor.peer)
            content = head + hidden.astype("<u8").tobytes()
            envelopes.append(self.seat.seal(factor.peer, _context(self.seat.name, factor.peer), content))
        return Hidden(tuple(envelopes))

    def _relate(self, ask: Relate) -> Message:
        """Tables of own pairs; and this silo's shares of those with others."""
        self._once(ask)
        events, rng = list[Event](), self.streams.child("tree").noise()
        states_NL, states = self._states(), [one.states for one in self.latents]
        what, own = f"tables of two latent attributes of {self.seat.name}", []
        for a, b in itertools.combinations(range(len(states)), 2):
            counted = latents.table(states_NL[:, [a, b]], [states[a], states[b]])
            own.append(self._noised(counted, ask.epsilon, what, rng, events))
        shares = tuple(self._share(other, ask.epsilon, rng, events) for other in ask.others)
        self._check([ask.epsilon if own or shares else 0.0], events)
        self._tell(ask, events)
        if self.config.dp.private:
            return NoisedRelated(tuple(own), shares, tuple(events))
        return Related(tuple(own), shares)

    def _share(self, other: Sealed, epsilon: float, rng: np.random.Generator, events: list[Event]) -> Tensor:
        """This silo's share of all tables with one other silo, with its own noise on each of them."""
        peer, own_NK = other.envelope.sender, self._flags()
        content = self.seat.open(other.envelope, _context(peer, self.seat.name))
        if int.from_bytes(content[:8], "big") != len(self.table):
            remedy = "Align the silos by an identifier first."
            raise ProtocolError("Silos must hold the same rows in the same order", (self.seat.name, peer), remedy)
        received = np.frombuffer(content[HEAD:], "<u8").astype(np.uint64).reshape(len(own_NK), -1)
        dealt, pair = other.share.numpy().view(np.uint64), sorted((self.seat.name, peer), key=self._place)
        if self.seat.name == pair[0]:
            words = products.told(own_NK, received, dealt, self._mask(peer), 1)
        else:
            hiding = products.random_words(self._seed(peer), *own_NK.shape)
            words = products.told(received, hiding, dealt, content[8:HEAD], -1)
        share, own = torch.from_numpy(words.view(np.int64)), [one.states for one in self.latents]
        rows, columns = (own, other.states) if self.seat.name == pair[0] else (other.states, own)
        what = f"tables of two latent attributes, one of {pair[0]} and one of {pair[1]}"
        for a, b in itertools.product(_spans(rows), _spans(columns)):
            share[a, b] = self._noised(share[a, b], epsilon, what, rng, events, joint=True)
        return share

    def _noised(
        self, counts: Tensor, epsilon: float, what: str, rng: np.random.Generator, events: list[Event],
        joint: bool = False,
    ) -> Tensor:  # fmt: skip
        """Noised counts of one table, or of a share of it modulo 2^64: a row is in one cell of it."""
        noised, event = noised_counts(counts, epsilon, what, rng)
        if event is not None:
            events.append(replace(event, scope="all", joint=joint, target=self.config.dp.delta))
        return noised

    def _check(self, epsilons: Sequence[float], events: Sequence[Event]) -> None:
        """Refuse what costs more than the target with all before: the coordinator says how much noise there is."""
        dp = self.config.dp
        if dp.private and not (max(epsilons) < math.inf and self._cost(events) <= dp.epsilon * (1 + ROUNDING)):
            rule = "A silo tells no tables that cost more than its target, with all that it has told"
            raise ProtocolError(rule, tuple(epsilons), f"It is epsilon {dp.epsilon:g} at delta {dp.delta:g}.")

    def _cost(self, events: Sequence[Event]) -> float:
        """Epsilon of all that was told, and of ``events``."""
        told = [*self.events, *events]
        return spent(told, max(0.0, self.config.dp.delta - spent(told, 0.0).own_delta)).epsilon

    def _once(self, ask: Message) -> None:
        """Refuse to answer twice: the same noise on other tables, or of another size, could be taken away."""
        if (name := type(ask).__name__) in self.told:
            raise ProtocolError("A silo answers each message that takes noise once", name, "Start a new run.")

    def _tell(self, ask: Message, events: Sequence[Event]) -> None:
        self.told.append(type(ask).__name__)
        self.events.extend(events)

    def _states(self) -> Tensor:
        """States (N, L) of the rows."""
        return torch.stack([one.of(self.attributes_NA) for one in self.latents], dim=1)

    def _flags(self) -> Words:
        """Flags of all states (rows that were asked for, K): rows beyond are left out, missing ones have none."""
        found = np.zeros((self._asked().rows, sum(one.states for one in self.latents)), np.uint64)
        states_NL = self._states()[: len(found)]
        starts = np.cumsum([0, *(one.states for one in self.latents)])[:-1]
        np.put_along_axis(found[: len(states_NL)], states_NL.numpy() + starts, 1, axis=1)
        return found

    def _asked(self) -> Hide:
        if self.hidden is None:
            raise ProtocolError("A silo hides its latent attributes before it counts pairs", "Relate comes too early")
        return self.hidden

    def _seed(self, peer: str) -> bytes:
        return next(factor.seed for factor in self._asked().factors if factor.peer == peer)

    def _mask(self, peer: str) -> bytes:
        """The seed of what hides both shares of a product from the coordinator; the second silo's is not used."""
        return products.seed_of(self.streams.child("mask", peer))

    def _place(self, name: str) -> int:
        return self.seat.roster.parties.index(name)

    # Rows.

    def _draw(self, ask: Draw) -> Message:
        if not self.latents:
            raise ProtocolError("A silo groups its attributes before it draws", "Draw comes too early")
        streams = self.streams.child("synthesise", ask.draw)
        draw = streams.child("cells").torch()
        drawn_RA = torch.zeros(len(ask.states_RL), len(self.encoders), dtype=torch.int64)
        for one, of_R in zip(self.latents, ask.states_RL.T, strict=True):
            drawn_RA[:, list(one.members)] = one.draw(of_R, draw)
        levels, scores = latents.codes(drawn_RA, self.encoders, self.config.bins, draw)
        table = decode_table(levels, scores, self.encoders, streams.child("columns").numpy())
        if ask.share:
            return SyntheticColumns(table)
        self.kept.append(table)
        return Done()

    # State.

    @property
    def config(self) -> DPLTConfig:
        """The options that the silo was told."""
        if self.prepared is None:
            raise ProtocolError("A silo is prepared before anything else", "another message comes first")
        return self.prepared.config

    def state(self) -> dict[str, Any]:
        """Encoders, latent attributes, and what hides them."""
        return {**self.trained(), "hidden": None if self.hidden is None else to_state(self.hidden)}

    def trained(self) -> dict[str, Any]:
        """What drawing needs, and what was told, which is not told again."""
        return {
            "prepared": None if self.prepared is None else to_state(self.prepared),
            "encoders": stored(self.encoders),
            "latents": [
                {"members": list(one.members), "sizes": list(one.sizes), "shares": one.share_C, "states": one.state_C}
                for one in self.latents
            ],
            "told": list(self.told),
            "events": [to_state(event) for event in self.events],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` or `trained` returned."""
        self.told = list(state.get("told", []))
        self.events = [from_state(Event, event) for event in state.get("events", [])]
        if state["prepared"] is None:
            return
        self.prepared = from_state(Prepare, state["prepared"])
        self.encoders = restored(state["encoders"])
        self.latents = [
            latents.Latent(tuple(one["members"]), tuple(one["sizes"]), one["shares"], one["states"])
            for one in state["latents"]
        ]
        hidden = state.get("hidden")
        self.hidden = None if hidden is None else from_state(Hide, hidden)
        self._encode()


def _context(sender: str, receiver: str) -> str:
    return f"dplt: latent attributes of {sender} for {receiver}"


def _spans(states: Sequence[int]) -> list[slice]:
    """Where each latent attribute's flags are."""
    ends = list(itertools.accumulate(states))
    return [slice(end - size, end) for end, size in zip(ends, states, strict=True)]
