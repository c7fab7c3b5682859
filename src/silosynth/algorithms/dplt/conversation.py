"""DPLT: a latent tree over attributes that silos divide among themselves (Tang, Cheng, Su, Chen, Shao; IEEE TDSC 2021).

VFLGAN's baseline that is no GAN. Its own paper was not at hand: it is followed in outline, as VFLGAN's and other papers
describe it, and the rest is our reading.

====================================================  ==========================================================
outline                                               here
====================================================  ==========================================================
discrete attributes                                   `latents.attributes`: levels, and bins of normal scores
latent attributes, made by each silo from its own     `Silo._group`, `latents.grouped`, `latents.latent`
correlations of latent attributes across silos        `Silo._hide`, `Silo._relate`, `products`
noise that no single silo can take away               `Silo._share`: each of two silos adds its own
the tree, and its parameters                          `tree.learn`: Chow and Liu's, from the same noised tables
synthetic rows                                        `Tree.draw`, then `Silo._draw`
epsilon divided evenly over pairs of attributes       `budget`
====================================================  ==========================================================

Readings, and deviations:

* Every table that is counted gets discrete Laplace noise by `privacy.mechanisms`, and is charged: those by which
  attributes are grouped, one for each group, and one for each pair of latent attributes of all silos, whether the tree
  uses it or not. How many there are follows from numbers of columns, never from rows. So ``dp`` is a target, as
  elsewhere: encoders take their part, and the rest is divided such that all together cost a row of the aligned table
  no more, by the accountant's composition. The paper adds epsilons up.
* Numbers: the paper wants discrete attributes. ``dp`` has encoders learnt from noised histograms, whose scores are cut
  at public edges; without ``dp`` everything is exact, which the paper has no counterpart for.
* A latent attribute is a function of its group's cell, so that a cell is drawn from the group's own noised table, and
  attributes of a group are not made independent.
* Tables of two silos are counted by a product whose random factors the coordinator deals; the paper has a protocol of
  its own. See `products`.

Who learns what, with ``dp``: the coordinator sees noised tables of latent attributes, noised numbers of rows and of
states, and no table of a silo's own attributes, which stay there, noised all the same, for rows that are drawn. Silos
see what the others hide with random numbers, and in the rows that they are asked to draw the tree's noised statistics.
So the events hide a row from the coordinator, from outsiders, and from the other silos, as long as all follow the
protocol and the coordinator shares with no silo what it has dealt. Other silos know how many rows there are: all hold
the same.

The dealer must know how many rows there are, at most: the greatest noised number, and as many more as noise exceeds
with a probability of exp(-28). Beyond, rows would be left out of tables of two silos, and another one would take a
removed row's place: that probability, below 1e-12, is the only one that no event charges.

Shapes: L latent attributes of all silos, K flags of one silo's states.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.dplt import latents, products, tree
from silosynth.algorithms.dplt.budget import budget
from silosynth.algorithms.dplt.messages import (
    DPLTConfig,
    Draw,
    Factor,
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
from silosynth.core.conversation import Checkpoint, Conversation, Progress
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.core.roster import Roster
from silosynth.core.schema import Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.privacy.masks import Words
from silosynth.privacy.sealed import Envelope

M = TypeVar("M", bound=Message)
SPARE = 28.0  # rows that there may be beyond the noised number, in units of 1 / epsilon


def coordinate(
    roster: Roster, config: DPLTConfig, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
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
    roster: Roster, config: DPLTConfig, model: dict[str, Any], rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Draw states of all latent attributes, and have silos draw ``rows`` rows for them."""
    states_RL = tree.stored(model["tree"]).draw(rows, streams.child("states").torch())
    parts = torch.split(states_RL, [len(states) for states in model["states"]], dim=1)
    name, share = "/".join(streams.path), config.synthesis == "shared"
    asks = {party: Draw(part.contiguous(), name, share) for party, part in zip(roster, parts, strict=True)}
    replies = yield roster.each(asks)
    return {party: reply.table for party, reply in replies.items() if isinstance(reply, SyntheticColumns)}


def _encode(
    roster: Roster, config: DPLTConfig, streams: Streams, state: dict[str, Any]
) -> Conversation[dict[str, Any]]:
    """How many rows there are; with differential privacy, how many there may be."""
    replies = yield roster.everyone(Prepare(config, len(roster)))
    said = _said(replies, (Prepared, NoisedPrepared))
    rows = [reply.rows for reply in said]
    spent = [event for reply in said if isinstance(reply, NoisedPrepared) for event in reply.events]
    known = {"epsilons": list(budget(config, [reply.columns for reply in said], spent))}
    if config.dp.private:
        spare = math.ceil(SPARE / min(event.epsilon for event in spent))  # no less than of the number of rows
        return {**known, "rows": round(sum(rows) / len(rows)), "most": max(rows) + spare}
    if len(set(rows)) > 1:
        raise ProtocolError(
            "Silos must hold the same rows in the same order",
            dict(zip(roster, rows, strict=True)),
            "Align the silos by an identifier first.",
        )
    return {**known, "rows": rows[0], "most": rows[0]}


def _group(roster: Roster, config: DPLTConfig, streams: Streams, state: dict[str, Any]) -> Conversation[dict[str, Any]]:
    """Each silo's latent attributes."""
    replies = yield roster.everyone(Group(*state["epsilons"][:2]))
    said = _said(replies, (Grouped, NoisedGrouped))
    return {**state, "states": [list(reply.states) for reply in said], "first": said[0].first_S}


def _hide(roster: Roster, config: DPLTConfig, streams: Streams, state: dict[str, Any]) -> Conversation[dict[str, Any]]:
    """Deal random factors; each silo's latent attributes, hidden, for each other."""
    asks = {}
    for party in roster:
        factors = [Factor(peer, _seed(streams, party, peer)) for peer in roster if peer != party]
        asks[party] = Hide(state["most"], tuple(factors))
    replies = yield roster.each(asks)
    envelopes = [to_state(one) for reply in _said(replies, (Hidden,)) for one in reply.envelopes]
    return {**state, "envelopes": envelopes}


def _relate(
    roster: Roster, config: DPLTConfig, streams: Streams, state: dict[str, Any]
) -> Conversation[dict[str, Any]]:
    """Tables of all pairs, and the tree."""
    states = dict(zip(roster, state["states"], strict=True))
    dealt = {pair: _dealt(streams, pair, states, state["most"]) for pair in itertools.combinations(roster, 2)}
    envelopes, asks = [from_state(Envelope, one) for one in state["envelopes"]], {}
    for party in roster:
        others = []
        for envelope in envelopes:
            if envelope.receiver == party:
                pair = (party, envelope.sender) if (party, envelope.sender) in dealt else (envelope.sender, party)
                share = torch.from_numpy(dealt[pair][pair.index(party)].view(np.int64))
                others.append(Sealed(envelope, tuple(states[envelope.sender]), share))
        asks[party] = Relate(state["epsilons"][2], tuple(others))
    replies = yield roster.each(asks)
    said = dict(zip(roster, _said(replies, (Related, NoisedRelated)), strict=True))
    joint = {pair: latents.proper(counted) for pair, counted in _tables(said, states).items()}
    return {**state, "tree": tree.learn(state["first"], joint).state()}


STEPS = (_encode, _group, _hide, _relate)


def _seed(streams: Streams, party: str, peer: str) -> bytes:
    """Of the random matrix that hides ``party``'s latent attributes from ``peer``."""
    return products.seed_of(streams.child("hides", party, peer))


def _dealt(
    streams: Streams, pair: tuple[str, str], states: Mapping[str, Sequence[int]], rows: int
) -> tuple[Words, Words]:
    """Two random shares of U'V."""
    a, b = pair
    u = products.random_words(_seed(streams, a, b), rows, sum(states[a]))
    v = products.random_words(_seed(streams, b, a), rows, sum(states[b]))
    first = products.random_words(products.seed_of(streams.child("shares", a, b)), u.shape[1], v.shape[1])
    return first, products.product(u, v) - first


def _tables(
    said: Mapping[str, Related | NoisedRelated], states: Mapping[str, Sequence[int]]
) -> dict[tree.Pair, Tensor]:
    """Counts of all pairs of latent attributes, which are numbered silo by silo."""
    parties, found = list(said), dict[tree.Pair, Tensor]()
    first = dict(zip(parties, itertools.accumulate([0, *map(len, states.values())]), strict=False))
    for party, reply in said.items():
        own = range(first[party], first[party] + len(states[party]))
        found |= dict(zip(itertools.combinations(own, 2), reply.own, strict=True))
    for a, b in itertools.combinations(parties, 2):
        # replies list the other silos in the order in which the roster names them
        whole = said[a].shares[parties.index(b) - 1] + said[b].shares[parties.index(a)]
        for i, rows in enumerate(torch.split(whole, list(states[a]))):
            for j, counted in enumerate(torch.split(rows, list(states[b]), dim=1)):
                found[first[a] + i, first[b] + j] = counted
    return found


def _said(replies: Mapping[str, Message], kinds: tuple[type[M], ...]) -> list[Any]:
    """The replies in order, each of a kind that was asked for."""
    for party, reply in replies.items():
        if not isinstance(reply, kinds):
            raise ProtocolError(f"Silo {party!r} answers what it was asked", type(reply).__name__, "Compare versions.")
    return list(replies.values())
