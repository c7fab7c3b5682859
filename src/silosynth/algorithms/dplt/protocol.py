"""DPLT: a latent tree over attributes that silos divide among themselves (Tang, Cheng, Su, Chen, Shao; IEEE TDSC 2021).

VFLGAN's baseline that is no GAN. Its own paper was not at hand: it is followed in outline, as VFLGAN's and other papers
describe it, and the rest is our reading.

====================================================  ==========================================================
outline                                               here
====================================================  ==========================================================
discrete attributes                                   `encoders.attributes`: levels, and bins of scores
latent attributes, made by each silo from its own     `DPLTSilo._group`, `networks.grouped`, `networks.fit_latent`
correlations of latent attributes across silos        `DPLTSilo._hide`, `DPLTSilo._relate`, `private`
noise that no single silo can take away               `DPLTSilo._share`: each of two silos adds its own
the tree, and its parameters                          `networks.learn_tree`: Chow and Liu's, from the noised tables
synthetic rows                                        `Tree.draw`, then `DPLTSilo._synthesise`
epsilon divided evenly over pairs of attributes       `private.epsilons`
====================================================  ==========================================================

Readings, and deviations:

* Every table that is counted gets discrete Laplace noise by `privacy.mechanisms`, and is charged: those by which
  attributes are grouped, one for each group, and one for each pair of latent attributes of all silos, whether the tree
  uses it or not. Their number follows from numbers of columns, never from rows. So ``dp`` is a target, as elsewhere:
  encoders take their part, and the rest is divided such that all together cost a row of the aligned table no more, by
  the accountant's composition. The paper adds epsilons up.
* Numbers: the paper wants discrete attributes. With ``dp``, encoders are learnt from noised histograms, and their
  scores are cut at public edges; without, everything is exact, for which the paper has no counterpart.
* A latent attribute is a function of its group's cell, so that a cell is drawn from the group's own noised table, and
  attributes of a group are not made independent.
* Tables of two silos are counted by a product whose random factors the coordinator deals (see `private`); the paper has
  a protocol of its own.

Who learns what, with ``dp``: the coordinator sees noised tables of latent attributes, noised row counts and numbers of
states, and no table of a silo's own attributes, which stay there, noised all the same, for drawing rows. Silos see what
the others hide with random numbers, and in the rows that they are asked to draw the tree's noised statistics. So the
events hide a row from the coordinator, from outsiders, and from the other silos, as long as all follow the protocol and
the coordinator shares with no silo what it has dealt. Other silos know the row count: all hold the same rows.

The dealer must know an upper bound of the row count: the greatest noised count, and as many more as noise exceeds with
a probability of exp(-28). Beyond it, rows would be left out of tables of two silos, and another row would take a
removed one's place: that probability, below 1e-12, is the only one that no event charges.

Shapes: L latent attributes of all silos, R rows that are drawn, S states of one latent attribute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.dplt import networks, private
from silosynth.algorithms.dplt.options import DPLTConfig
from silosynth.core import conversation
from silosynth.core.conversation import Checkpoint, Conversation, Progress, Roster, State, expect
from silosynth.core.messages import Message, Release, Rows, Struct, from_state, to_state
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.counting.products import AnyWords, product, random_words
from silosynth.encoders.attributes import proper
from silosynth.privacy.events import Event
from silosynth.privacy.sealed import Envelope

SPARE = 28.0  # rows that there may be beyond the noised count, in units of 1 / epsilon


# Messages, in talking order.


class PrepareAttributes(Message, common=True):
    """Coordinator: encode your columns; with differential privacy by your part of all silos' budget."""


class AttributesPrepared(Message, release=Release.COUNTS):
    """Silo: my numbers of rows and columns."""

    rows: int
    columns: int


class NoisedAttributesPrepared(AttributesPrepared, release=Release.NOISED):
    """Silo: the same, with a noised row count and the events of my encoders."""

    events: tuple[Event, ...]


class GroupAttributes(Message, common=True):
    """Coordinator: group your attributes, and make a latent attribute of each group.

    Attributes:
        epsilon_pairs: of each table of two attributes.
        epsilon_groups: of each table of a group.
    """

    epsilon_pairs: float
    epsilon_groups: float


class Grouped(Message, release=Release.STATISTICS):
    """Silo: number of states of each of my latent attributes, and the distribution (S,) of the first."""

    states: tuple[int, ...]
    first_S: Tensor


class NoisedGrouped(Grouped, release=Release.NOISED):
    """Silo: the same, from noised tables."""

    events: tuple[Event, ...]


class Factor(Struct):
    """For the product with one other silo: the seed (32 bytes) of the random matrix that hides this silo's flags."""

    peer: str
    seed: bytes


class Hide(Message):
    """Coordinator: hide ``rows`` rows of your latent attributes by these factors, and seal them for the other silos."""

    rows: Rows[int]
    factors: tuple[Factor, ...]


class Hidden(Message, release=Release.SEALED):
    """Silo: one envelope for each other silo."""

    envelopes: tuple[Envelope, ...]


class HiddenPeer(Struct):
    """What another silo has hidden, the states of its latent attributes, and the dealer's share of the product.

    The share is int64, words modulo 2^64; its rows are those of the silo that the roster names first.
    """

    envelope: Envelope
    states: tuple[int, ...]
    share: Tensor


class Relate(Message, release=Release.SEALED):
    """Coordinator: count all pairs of your latent attributes, and with those of others; ``epsilon`` for each table."""

    epsilon: float
    others: tuple[HiddenPeer, ...]


class Related(Message, release=Release.STATISTICS):
    """Silo: tables of my own pairs, and my share of all those with each other silo, in the order of the envelopes."""

    own: tuple[Tensor, ...]
    shares: tuple[Tensor, ...]


class NoisedRelated(Related, release=Release.NOISED):
    """Silo: the same with noise."""

    events: tuple[Event, ...]


class DPLTSynthesise(Message, release=Release.SYNTHETIC):
    """Coordinator: draw columns for these states (R, L) of your latent attributes. ``draw`` names the random stream."""

    states_RL: Tensor
    draw: str


# The coordinator.


def coordinate(
    roster: Roster, config: DPLTConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Learn the tree; returns it, which is the coordinator's part of the model."""
    state = {"stage": 0} if state is None else state
    for stage in range(state["stage"], len(STEPS)):
        yield Progress("latent tree", stage, len(STEPS))
        yield Checkpoint(state)
        state = yield from STEPS[stage](roster, config, streams, state)
        state = {**state, "stage": stage + 1}
    yield Progress("latent tree", len(STEPS), len(STEPS))
    return {"rows": state["rows"], "states": state["states"], "tree": state["tree"]}


def synthesise(
    roster: Roster, config: DPLTConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Draw states of all latent attributes, and have silos draw ``rows`` rows for them."""
    states_RL = networks.Tree.restored(model["tree"]).draw(rows, streams.child("states").torch())
    parts = torch.split(states_RL, [len(states) for states in model["states"]], dim=1)
    name = "/".join(streams.path)
    asks = {silo: DPLTSynthesise(part.contiguous(), name) for silo, part in zip(roster, parts, strict=True)}
    return conversation.shared_columns((yield roster.each(asks)))


def _prepare(roster: Roster, config: DPLTConfig, streams: Streams, state: State) -> Conversation[State]:
    """Row count, and an upper bound of it, which is greater with differential privacy; epsilons of all tables."""
    replies = yield roster.everyone(PrepareAttributes())
    if not config.dp.private:
        exact = expect(replies, AttributesPrepared)
        conversation.check_same_rows(roster, [reply.rows for reply in exact])
        epsilons = private.epsilons(config, [reply.columns for reply in exact], ())
        return {"epsilons": list(epsilons), "rows": exact[0].rows, "most": exact[0].rows}
    noised = expect(replies, NoisedAttributesPrepared)
    rows = [reply.rows for reply in noised]
    events = [event for reply in noised for event in reply.events]
    epsilons = private.epsilons(config, [reply.columns for reply in noised], events)
    spare = math.ceil(SPARE / min(event.epsilon for event in events))  # no event has less epsilon than the row count's
    return {"epsilons": list(epsilons), "rows": round(sum(rows) / len(rows)), "most": max(rows) + spare}


def _group(roster: Roster, config: DPLTConfig, streams: Streams, state: State) -> Conversation[State]:
    """Each silo's latent attributes."""
    replies = yield roster.everyone(GroupAttributes(*state["epsilons"][:2]))
    grouped = expect(replies, NoisedGrouped) if config.dp.private else expect(replies, Grouped)
    return {**state, "states": [list(reply.states) for reply in grouped], "first": grouped[0].first_S}


def _hide(roster: Roster, config: DPLTConfig, streams: Streams, state: State) -> Conversation[State]:
    """Deal random factors; each silo's latent attributes, hidden, for each other."""
    asks = {}
    for silo in roster:
        factors = [Factor(peer, _seed(streams, silo, peer)) for peer in roster if peer != silo]
        asks[silo] = Hide(state["most"], tuple(factors))
    hidden = expect((yield roster.each(asks)), Hidden)
    return {**state, "envelopes": [to_state(envelope) for reply in hidden for envelope in reply.envelopes]}


def _relate(roster: Roster, config: DPLTConfig, streams: Streams, state: State) -> Conversation[State]:
    """Tables of all pairs, and the tree."""
    states = dict(zip(roster, state["states"], strict=True))
    dealt = {pair: _dealt(streams, pair, states, state["most"]) for pair in itertools.combinations(roster, 2)}
    envelopes, asks = [from_state(Envelope, envelope) for envelope in state["envelopes"]], {}
    for silo in roster:
        others = []
        for envelope in envelopes:
            if envelope.receiver == silo:
                pair = (silo, envelope.sender) if (silo, envelope.sender) in dealt else (envelope.sender, silo)
                share = torch.from_numpy(dealt[pair][pair.index(silo)].view(np.int64))
                others.append(HiddenPeer(envelope, tuple(states[envelope.sender]), share))
        asks[silo] = Relate(state["epsilons"][2], tuple(others))
    replies = yield roster.each(asks)
    related = expect(replies, NoisedRelated) if config.dp.private else expect(replies, Related)
    tables = _tables(dict(zip(roster, related, strict=True)), states)
    joint = {pair: proper(table) for pair, table in tables.items()}
    return {**state, "tree": networks.learn_tree(state["first"], joint).state()}


STEPS = (_prepare, _group, _hide, _relate)


def _seed(streams: Streams, silo: str, peer: str) -> bytes:
    """The seed of the random matrix that hides ``silo``'s latent attributes from ``peer``."""
    return private.seed_of(streams.child("hides", silo, peer))


def _dealt(
    streams: Streams, pair: tuple[str, str], states: Mapping[str, Sequence[int]], rows: int
) -> tuple[AnyWords, AnyWords]:
    """Two random shares of U'V."""
    a, b = pair
    u = random_words(_seed(streams, a, b), rows, sum(states[a]), 64)
    v = random_words(_seed(streams, b, a), rows, sum(states[b]), 64)
    first = random_words(private.seed_of(streams.child("shares", a, b)), u.shape[1], v.shape[1], 64)
    return first, product(u, v) - first


def _tables(replies: Mapping[str, Related], states: Mapping[str, Sequence[int]]) -> dict[networks.Pair, Tensor]:
    """Counts of all pairs of latent attributes, which are numbered silo by silo."""
    silos, tables = list(replies), dict[networks.Pair, Tensor]()
    first = dict(zip(silos, itertools.accumulate([0, *map(len, states.values())]), strict=False))
    for silo, reply in replies.items():
        own = range(first[silo], first[silo] + len(states[silo]))
        tables |= dict(zip(itertools.combinations(own, 2), reply.own, strict=True))
    for a, b in itertools.combinations(silos, 2):
        # replies list the other silos in roster order
        total = replies[a].shares[silos.index(b) - 1] + replies[b].shares[silos.index(a)]
        for i, rows in enumerate(torch.split(total, list(states[a]))):
            for j, table in enumerate(torch.split(rows, list(states[b]), dim=1)):
                tables[first[a] + i, first[b] + j] = table
    return tables
