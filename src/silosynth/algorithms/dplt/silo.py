"""A silo of DPLT: its columns, its attributes, its latent attributes, and the tables that it noises.

Shapes: N rows, A attributes, L latent attributes, K flags of their states, R rows that are drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.dplt import networks, private, protocol as dplt
from silosynth.algorithms.dplt.options import DPLTConfig
from silosynth.core.conversation import State, Turn, often, once
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message, from_state, to_state
from silosynth.counting.products import AnyWords, random_words
from silosynth.encoders import attributes
from silosynth.encoders.table import ColumnParty
from silosynth.privacy.events import Event

HEAD = 40  # bytes before a hidden matrix: the row count, and the seed of the mask


class DPLTSilo(ColumnParty):
    """A silo's side of DPLT."""

    def _set_up(self) -> None:
        self.config: DPLTConfig
        self.latents: list[networks.Latent] = []
        self.hidden: dplt.Hide | None = None
        self.attributes_NA = torch.zeros(0, 0, dtype=torch.int64)
        self.events: list[Event] = []  # of all replies

    def _script(self, training: bool) -> tuple[Turn, ...]:
        """Each message once: the same noise on other tables, or of another size, could be subtracted."""
        if not training:
            return often(dplt.DPLTSynthesise)
        return once(dplt.PrepareAttributes, dplt.GroupAttributes, dplt.Hide, dplt.Relate)

    def _answer(self, ask: Message) -> Message:
        match ask:
            case dplt.PrepareAttributes():
                return self._prepare()
            case dplt.GroupAttributes():
                return self._group(ask)
            case dplt.Hide():
                return self._hide(ask)
            case dplt.Relate():
                return self._relate(ask)
            case dplt.DPLTSynthesise():
                return self._synthesise(ask)
            case _:
                raise ProtocolError("A DPLT silo does not understand this message", type(ask).__name__)

    # Attributes.

    def _prepare(self) -> Message:
        """Fit encoders, with noise if ``dp`` asks for it, and make attributes."""
        config, columns, rows = self.config, self.columns, len(self.columns.table)
        if not config.dp.private:
            columns.fit(config.encoders)
            self._make_attributes()
            return dplt.AttributesPrepared(rows, len(columns.encoders))
        learnt = columns.learn(config.encoders, config.dp, len(self.seat.roster))
        self._make_attributes()
        self.events.extend(learnt.events)
        return dplt.NoisedAttributesPrepared(learnt.rows, len(columns.encoders), learnt.events)

    def _make_attributes(self) -> None:
        self.attributes_NA = attributes.attributes(*self.columns.encode(), self.columns.encoders, self.config.bins)

    # Latent attributes.

    def _group(self, ask: dplt.GroupAttributes) -> Message:
        """Group attributes by noised mutual information; make a latent attribute from each group's noised table."""
        config, noise = self.config, private.TableNoise(self.streams.child("groups").noise(), self.config.dp)
        sizes = attributes.sizes_of(self.columns.encoders, config.bins)
        draw, what = self.streams.child("classes").torch(), "tables of two attributes"
        information = [[0.0] * len(sizes) for _ in sizes]
        for a, b in itertools.combinations(range(len(sizes)), 2):
            noised = noise.noised(self._table([a, b], sizes), ask.epsilon_pairs, what)
            information[a][b] = information[b][a] = networks.mutual_information(attributes.proper(noised))
        latents, what = list[networks.Latent](), "tables of groups of attributes"
        for group in networks.grouped(information, sizes, config.most, config.cells):
            noised = noise.noised(self._table(group, sizes), ask.epsilon_groups, what)
            latents.append(networks.fit_latent(group, noised, config.states, config.fits, draw))
        noise.check(self.events, [ask.epsilon_pairs if len(sizes) > 1 else 0.0, ask.epsilon_groups])
        self.latents = latents
        self.events.extend(noise.events)
        states, first = tuple(latent.states for latent in latents), latents[0]
        first_S = torch.zeros(first.states, dtype=torch.float64).index_add_(0, first.state_C, first.share_C)
        if config.dp.private:
            return dplt.NoisedGrouped(states, first_S, tuple(noise.events))
        return dplt.Grouped(states, first_S)

    def _table(self, group: Sequence[int], sizes: Sequence[int]) -> Tensor:
        return networks.table(self.attributes_NA[:, list(group)], [sizes[a] for a in group])

    # Tables of two latent attributes.

    def _hide(self, ask: dplt.Hide) -> dplt.Hidden:
        self.hidden, envelopes = ask, []
        own_NK = self._flags()
        for factor in ask.factors:
            hidden = own_NK - random_words(factor.seed, len(own_NK), own_NK.shape[1], 64)
            head = len(self.columns.table).to_bytes(8, "big") + self._mask(factor.peer)
            content = head + hidden.astype("<u8").tobytes()
            context, again = _context(self.seat.name, factor.peer), self.streams.child("sealed", factor.peer).noise()
            envelopes.append(self.seat.seal(factor.peer, context, content, again.words(4).tobytes()))
        return dplt.Hidden(tuple(envelopes))

    def _relate(self, ask: dplt.Relate) -> Message:
        """Tables of own pairs; and this silo's shares of those with others."""
        noise = private.TableNoise(self.streams.child("tree").noise(), self.config.dp)
        states_NL, states = self._states(), self._sizes()
        what, own = f"tables of two latent attributes of {self.seat.name}", []
        for a, b in itertools.combinations(range(len(states)), 2):
            counts = networks.table(states_NL[:, [a, b]], [states[a], states[b]])
            own.append(noise.noised(counts, ask.epsilon, what))
        shares = tuple(self._share(other, ask.epsilon, noise) for other in ask.others)
        noise.check(self.events, [ask.epsilon if own or shares else 0.0])
        self.events.extend(noise.events)
        if self.config.dp.private:
            return dplt.NoisedRelated(tuple(own), shares, tuple(noise.events))
        return dplt.Related(tuple(own), shares)

    def _share(self, other: dplt.HiddenPeer, epsilon: float, noise: private.TableNoise) -> Tensor:
        """This silo's share of all tables with one other silo, with its own noise on each of them."""
        peer, own_NK = other.envelope.sender, self._flags()
        content = self.seat.open(other.envelope, _context(peer, self.seat.name))
        if int.from_bytes(content[:8], "big") != len(self.columns.table):
            remedy = "Align the silos by an identifier first."
            raise ProtocolError("Silos must hold the same rows in the same order", (self.seat.name, peer), remedy)
        received = np.frombuffer(content[HEAD:], "<u8").astype(np.uint64).reshape(len(own_NK), -1)
        dealt, pair = other.share.numpy().view(np.uint64), sorted((self.seat.name, peer), key=self._place)
        hiding = random_words(self._seed(peer), len(own_NK), own_NK.shape[1], 64)
        if self.seat.name == pair[0]:
            mask = private.mask_of(self._mask(peer), own_NK - hiding, received)
            words = private.masked_share(own_NK, received, dealt, mask, 1)
        else:
            mask = private.mask_of(content[8:HEAD], received, own_NK - hiding)
            words = private.masked_share(received, hiding, dealt, mask, -1)
        share, own = torch.from_numpy(words.view(np.int64)), self._sizes()
        rows, columns = (own, other.states) if self.seat.name == pair[0] else (other.states, own)
        what = f"tables of two latent attributes, one of {pair[0]} and one of {pair[1]}"
        for a, b in itertools.product(_slices(rows), _slices(columns)):
            share[a, b] = noise.noised(share[a, b], epsilon, what, joint=True)
        return share

    def _states(self) -> Tensor:
        """States (N, L) of the rows."""
        return torch.stack([latent.of(self.attributes_NA) for latent in self.latents], dim=1)

    def _sizes(self) -> list[int]:
        """Number of states of each latent attribute."""
        return [latent.states for latent in self.latents]

    def _flags(self) -> AnyWords:
        """Flags (rows asked for, K) of all states: rows beyond are left out, missing ones have no flag set."""
        flags = np.zeros((self._asked().rows, sum(self._sizes())), np.uint64)
        states_NL = self._states()[: len(flags)]
        starts = np.cumsum([0, *self._sizes()])[:-1]
        np.put_along_axis(flags[: len(states_NL)], states_NL.numpy() + starts, 1, axis=1)
        return flags

    def _asked(self) -> dplt.Hide:
        if self.hidden is None:
            raise ProtocolError("A silo hides its latent attributes before it counts pairs", "Relate comes too early")
        return self.hidden

    def _seed(self, peer: str) -> bytes:
        return next(factor.seed for factor in self._asked().factors if factor.peer == peer)

    def _mask(self, peer: str) -> bytes:
        """The seed of what hides both shares of a product from the coordinator; the second silo's is not used."""
        return private.seed_of(self.streams.child("mask", peer))

    def _place(self, name: str) -> int:
        return self.seat.roster.parties.index(name)

    # Synthetic rows.

    def _synthesise(self, ask: dplt.DPLTSynthesise) -> Message:
        streams, encoders = self.streams.child("synthesise", ask.draw), self.columns.encoders
        draw = streams.child("cells").torch()
        drawn_RA = torch.zeros(len(ask.states_RL), len(encoders), dtype=torch.int64)
        for latent, state_R in zip(self.latents, ask.states_RL.T, strict=True):
            drawn_RA[:, list(latent.members)] = latent.draw(state_R, draw)
        levels, scores = attributes.codes(drawn_RA, encoders, self.config.bins, draw)
        return self.publish(self.columns.decode(levels, scores, streams), self._shares)

    # State.

    def _state(self, training: bool) -> State:
        """What drawing rows needs, and what was released; with ``training`` also what hides it."""
        return {
            "config": to_state(self.config),
            "silos": len(self.seat.roster),  # among which the encoders' budget was divided
            "encoders": self.columns.state(),
            "latents": [latent.state() for latent in self.latents],
            "events": [to_state(event) for event in self.events],
            "hidden": to_state(self.hidden) if training and self.hidden is not None else None,
        }

    def _restore(self, state: State) -> None:
        self.events = [from_state(Event, event) for event in state.get("events", [])]
        self.columns.restore(state["encoders"])
        if not self.columns.encoders:
            return
        self._make_attributes()
        self.latents = [networks.Latent.restored(latent) for latent in state["latents"]]
        hidden = state.get("hidden")
        self.hidden = None if hidden is None else from_state(dplt.Hide, hidden)


def _context(sender: str, receiver: str) -> str:
    """What an envelope with hidden flags is bound to."""
    return f"dplt: latent attributes of {sender} for {receiver}"


def _slices(states: Sequence[int]) -> list[slice]:
    """Where each latent attribute's flags are."""
    ends = list(itertools.accumulate(states))
    return [slice(end - size, end) for end, size in zip(ends, states, strict=True)]
