"""MST: a maximum spanning tree of tables of two columns each, noised, over columns that several silos hold.

After R. McKenna, G. Miklau, D. Sheldon: *Winning the NIST Contest: A scalable and general approach to differentially
private synthetic data* (Journal of Privacy and Confidentiality, 2021), whose table is in one place. What differs:

====================================================  ==========================================================
paper                                                 here
====================================================  ==========================================================
levels of each column, noised                         `MarginalsSilo._make`: encoders are learnt from noised histograms
the exponential mechanism chooses each edge           `_select`: a coarse noisy table of every pair; all else follows
                                                      from these without further cost (`networks.association`)
noised tables of the tree's edges                     `_measure`: counted across silos, opened with noise
Private-PGM fits a graphical model                    `networks.fitted`: of a tree that is exact, without iterations
                                                      over a joint distribution
rows are drawn by rounding                            `networks.TableTree.draw`; silos draw values within levels
====================================================  ==========================================================

Nobody holds tables of columns of two silos: silos count them as shares (`silosynth.counting.protocol`), the coordinator
deals. What opens is noised in the shares (`silosynth.counting.opening`): by each of two silos half of it, and by the
coordinator another half, before anything is made of a table. So all that is selected, fitted and drawn is made of
tables as they may be passed on, and each row is protected by (epsilon, delta) from the coordinator, from each silo, and
from everybody else: as long as all follow the protocol, and coordinator and silos do not collude. Tables of two columns
of one silo are counted and noised by that silo.

*The noise is nobody's message*: it follows from the options and numbers of columns (`private.plan_noise`), and all that
is planned is charged up front. A silo opens each table of groups once, and tables of levels only as long as they form
no circle; and no more than the target affords, with what all silos' encoders cost.

Without ``dp`` the same tables open exactly: silos have small levels pooled by their encoders (``min_count``), and
nothing else protects counts. No row and no encoding of one leaves a silo, unless hidden by random numbers for another.

Shapes: R rows, A attributes of one silo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.marginals import networks, private
from silosynth.algorithms.marginals.options import MarginalsConfig
from silosynth.algorithms.marginals.private import Held
from silosynth.core import conversation
from silosynth.core.conversation import Checkpoint, Conversation, Progress, Roster, State, expect
from silosynth.core.messages import Message, Release, from_state, to_state
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.counting import opening, protocol as counting
from silosynth.counting.plan import CountRequest, Plan, padded
from silosynth.privacy.events import Event

REACH = 9.0  # standard deviations that no noise on a number of rows exceeds, but with a probability below 1e-18


# Messages, in talking order.


class DescribeHeld(Message):
    """Coordinator: how many columns do you hold, and of which kind?"""


class HeldDescribed(Message, release=Release.SCHEMA):
    """Silo: these."""

    held: Held


class MakeAttributes(Message, common=True):
    """Coordinator: this is what all silos hold, in their order; make attributes of your columns."""

    held: tuple[Held, ...]


class AttributesMade(Message, release=Release.COUNTS):
    """Silo: how many rows I hold; and how my attributes are counted."""

    rows: int
    names: tuple[str, ...]
    levels: tuple[int, ...]
    groups: tuple[int, ...]


class NoisedAttributesMade(AttributesMade, release=Release.NOISED):
    """Silo: the same from noised counts, with their events.

    Attributes:
        margins: each level's share of rows.
        variances: of the noise on each level's number of rows.
    """

    margins: tuple[Tensor, ...]
    variances: tuple[float, ...]
    events: tuple[Event, ...]


class SynthesiseLevels(Message, release=Release.SYNTHETIC):
    """Coordinator: draw columns for these levels (R, A) of your attributes. ``draw`` names the random stream."""

    levels_RA: Tensor
    draw: str


# The coordinator.


def coordinate(
    roster: Roster, config: MarginalsConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Learn the tree; returns it, which is the coordinator's part of the model."""
    state = {"stage": 0} if state is None else state
    for stage in range(state["stage"], len(STEPS)):
        yield Progress("tree of tables", stage, len(STEPS))
        yield Checkpoint(state)
        state = yield from STEPS[stage](roster, config, streams, state)
        state = {**state, "stage": stage + 1}
    yield Progress("tree of tables", len(STEPS), len(STEPS))
    return {"rows": state["rows"], "silos": state["silos"], "names": state["names"], "tree": state["tree"]}


def synthesise(
    roster: Roster, config: MarginalsConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Draw levels of all attributes, and have silos draw ``rows`` rows for them."""
    levels_RA = networks.TableTree.restored(model["tree"]).draw(rows, streams.child("levels").numpy())
    name = "/".join(streams.path)
    asks = {silo: SynthesiseLevels(levels_RA[:, _places(model, silo)], name) for silo in roster}
    return conversation.shared_columns((yield roster.each(asks)))


def _places(model: State, silo: str) -> list[int]:
    """Of a silo's attributes among all."""
    return [place for place, owner in enumerate(model["silos"]) if owner == silo]


def _describe(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """What all silos hold, from which the noise follows."""
    described = expect((yield roster.everyone(DescribeHeld())), HeldDescribed)
    return {"held": [to_state(reply.held) for reply in described]}


def _make(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """Each silo's attributes; the number of rows, and a bound of it, which is greater with differential privacy."""
    held = _held(state)
    plan = private.plan_noise(config, held)
    replies = yield roster.everyone(MakeAttributes(held))
    made = expect(replies, AttributesMade) if plan is None else expect(replies, NoisedAttributesMade)
    rows = [reply.rows for reply in made]
    if plan is None:
        conversation.check_same_rows(roster, rows)
    return {
        **state,
        "rows": max(1, round(sum(rows) / len(rows))),
        "most": max(bound(number, plan) for number in rows),
        "silos": [silo for silo, reply in zip(roster, made, strict=True) for _ in reply.names],
        "names": [name for reply in made for name in reply.names],
        "levels": [size for reply in made for size in reply.levels],
        "groups": [size for reply in made for size in reply.groups],
        "margins": [margin for reply in made for margin in getattr(reply, "margins", ())],
        "variances": [variance for reply in made for variance in getattr(reply, "variances", ())],
    }


def bound(rows: int, plan: private.MarginalsPlan | None) -> int:
    """What no silo holds more rows than, given its noised number."""
    return padded(rows + (0 if plan is None else math.ceil(REACH * math.sqrt(plan.columns))))


def _count(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """Silos get shares of the tables of all pairs."""
    yield from counting.count(roster, _request(roster, config, state))
    return state


def _select(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """The tree with the strongest associations, by tables of groups."""
    request, plan = _request(roster, config, state), private.plan_noise(config, _held(state))
    pairs, first = private.selected_pairs(len(state["names"])), len(private.tree_sets(len(state["names"])))
    noise = opening.EXACT if plan is None else plan.groups
    sets = range(first, first + len(pairs))
    opened = yield from _opened(roster, request, dict.fromkeys(sets, noise), streams.child("selection"))
    scores = {
        pair: networks.association(one.counts, one.variance)
        for pair, one in zip(pairs, opened.values(), strict=True)
    }  # fmt: skip
    scores = scores or {(0, 1): 0.0}
    return {**state, "edges": [list(edge) for edge in networks.spanning_tree(len(state["names"]), scores)]}


def _measure(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """The tree's tables, and the tree."""
    request, plan = _request(roster, config, state), private.plan_noise(config, _held(state))
    edges, sets = [tuple(edge) for edge in state["edges"]], private.tree_sets(len(state["names"]))
    chosen = [sets.index((min(edge), max(edge))) for edge in edges] or [0]
    noise = opening.EXACT if plan is None else plan.tree
    opened = yield from _opened(roster, request, dict.fromkeys(chosen, noise), streams.child("tree"))
    margins: list[networks.Measured | None] = [None] * len(state["names"])
    for place, (share, variance) in enumerate(zip(state["margins"], state["variances"], strict=True)):
        margins[place] = networks.Measured(share.numpy() * state["rows"], variance)
    tables = {}
    for edge, number in zip(edges, chosen, strict=bool(edges)):
        one = opened[number]
        tables[edge] = one if edge[0] < edge[1] else networks.Measured(one.counts.T, one.variance)
    if not edges:
        margins = [opened[0]]
    return {**state, "tree": networks.fitted(state["rows"], margins, tables).state()}


STEPS = (_describe, _make, _count, _select, _measure)


def _held(state: State) -> tuple[Held, ...]:
    return tuple(from_state(Held, one) for one in state["held"])


def _request(roster: Roster, config: MarginalsConfig, state: State) -> CountRequest:
    parts: Sequence[tuple[str, str, int, int]] = list(
        zip(state["silos"], state["names"], state["levels"], state["groups"], strict=True)
    )
    attributes = [private.CountedAttribute(*part) for part in parts]
    plan = private.plan_noise(config, _held(state))
    return private.request_for(roster.parties, attributes, state["most"], plan)


def _opened(
    roster: Roster, request: CountRequest, noises: Mapping[int, opening.CellNoise | None], streams: Streams
) -> Conversation[dict[int, networks.Measured]]:
    """Tables as they may be passed on, each with the variance of its noise."""
    if not noises:
        return {}
    opened, plan = (yield from opening.open_tables(roster, request, noises, streams.noise())), Plan(request)
    found = {}
    for number, noise in noises.items():
        halves = 3 if len(plan.parts[number]) == 2 else 2
        variance = 0.0 if noise is None else noise.deviation(halves) ** 2
        found[number] = networks.Measured(opened.passed_on[number].astype(np.float64), variance)
    return found
