"""MST and AIM: noised tables of two columns each, and a model of them, over columns that several silos hold.

After R. McKenna, G. Miklau, D. Sheldon: *Winning the NIST Contest: A scalable and general approach to differentially
private synthetic data* (Journal of Privacy and Confidentiality, 2021), and R. McKenna, B. Mullins, D. Sheldon,
G. Miklau: *AIM: An Adaptive and Iterative Mechanism for Differentially Private Synthetic Data* (VLDB, 2022), whose
tables are in one place. What differs:

====================================================  ==========================================================
papers                                                here
====================================================  ==========================================================
levels of each column, noised                         `MarginalsSilo._make`: encoders learn from noised histograms
MST: the exponential mechanism chooses each edge      `_select`: a coarse noisy table of every pair; all else follows
                                                      from these without further cost (`networks.association`)
AIM: the same chooses one table after the other       `_extend`: several a round, by how far the model so far misses
                                                      the coarse tables (`networks.missed`)
AIM: noise falls as rounds go on, until it is spent   the number of tables and their noise are planned
noised tables                                         `_open_full`: counted across silos, opened with noise
Private-PGM fits a graphical model                    `models.graphical.GraphicalModel`
rows are drawn by rounding                            next to their expected numbers; silos draw values within levels
====================================================  ==========================================================

Nobody holds tables of columns of two silos: silos count them as shares (`silosynth.counting.protocol`), the coordinator
deals. What opens is noised in the shares (`silosynth.counting.opening`): by each of two silos half of it, and by the
coordinator another half, before anything is made of a table. So all that is selected, fitted and drawn is made of
tables as they may be passed on, and each row is protected by (epsilon, delta) from the coordinator, from each silo, and
from everybody else: as long as all follow the protocol, and coordinator and silos do not collude. Tables of two columns
of one silo are counted and noised by that silo.

*The noise is nobody's message*: it follows from the options and numbers of columns (`private.plan_noise`), and all that
is planned is charged up front. A silo opens each table of groups once. Before tables open in full, all silos agree on
which these are (`privacy.agreement`, of which the tables are the purpose), so that each knows also those that it has no
part in, and that the others were told the same: together no more than were planned (`private.most_tables`).

Without ``dp`` the same tables open exactly: silos have small levels pooled by their encoders (``min_count``), and
nothing else protects counts. No row and no encoding of one leaves a silo, unless hidden by random numbers for another.

Shapes: R rows, A attributes of one silo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

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
from silosynth.models.graphical import GraphicalModel, Levels, MeasuredTable
from silosynth.privacy.agreement import agree
from silosynth.privacy.events import Event

Tables: TypeAlias = dict[networks.Attributes, networks.Measured]
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
    """Silo: how many rows I hold; and how my attributes are counted: numbers of levels, and where groups end."""

    rows: int
    names: tuple[str, ...]
    levels: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]


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
    """Learn the model; returns it, which is the coordinator's part."""
    state = {"stage": 0} if state is None else state
    steps = STEPS + (_extend,) * config.rounds if config.adaptive else STEPS
    for stage in range(state["stage"], len(steps)):
        yield Progress("tables", stage, len(steps))
        yield Checkpoint(state)
        state = yield from steps[stage](roster, config, streams, state)
        state = {**state, "stage": stage + 1}
    yield Progress("tables", len(steps), len(steps))
    return {key: state[key] for key in ("rows", "silos", "names", "model")}


def synthesise(
    roster: Roster, config: MarginalsConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Draw levels of all attributes, and have silos draw ``rows`` rows for them."""
    levels_RA = GraphicalModel.restored(model["model"]).draw(rows, streams.child("levels").numpy())
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
        "groups": [list(ends) for reply in made for ends in reply.groups],
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
    """The tree with the strongest associations, by tables of groups of all pairs."""
    request, plan = _request(roster, config, state), private.plan_noise(config, _held(state))
    pairs, first = private.selected_pairs(len(state["names"])), len(private.full_sets(len(state["names"])))
    noise = opening.EXACT if plan is None else plan.groups
    sets = range(first, first + len(pairs))
    opened = yield from _opened(roster, request, dict.fromkeys(sets, noise), streams.child("selection"))
    coarse = list(zip(pairs, opened.values(), strict=True))
    scores = {pair: networks.association(one.counts, one.variance) for pair, one in coarse}
    edges = networks.spanning_tree(len(state["names"]), scores or {(0, 1): 0.0})
    return {**state, "edges": [list(edge) for edge in edges], "coarse": _stored(dict(coarse))}


def _measure(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """The tree's tables, and its model."""
    edges = [tuple(edge) for edge in state["edges"]]
    pairs: list[networks.Attributes] = [(min(edge), max(edge)) for edge in edges]
    full = yield from _open_full(roster, config, streams.child("tree"), state, pairs or [(0,)])
    return _fit(state, full)


def _extend(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """More tables: of the pairs whose tables of groups the model misses most; and the model of all so far."""
    full, coarse, model = _restored(state["full"]), _restored(state["coarse"]), GraphicalModel.restored(state["model"])
    number = state["stage"] - len(STEPS)
    left = private.most_tables(config, len(state["names"])) - len(full)
    scores = {}
    for pair in [pair for pair in coarse if left and pair not in full]:
        expected = networks.in_groups(state["rows"] * model.marginal(pair), *_groups(state, pair))
        scores[pair] = networks.missed(coarse[pair], expected)
    count = math.ceil(left / (config.rounds - number))
    chosen = networks.most_missed(state["levels"], scores, full, count, config.cells)
    if not chosen:
        return state
    more = yield from _open_full(roster, config, streams.child("more", number), state, chosen)
    return _fit(state, full | more, model)


STEPS = (_describe, _make, _count, _select, _measure)


def _fit(state: State, full: Tables, start: GraphicalModel | None = None) -> State:
    """The graphical model of all tables that are open, and of all margins."""
    coarse, tables = _restored(state["coarse"]), list[MeasuredTable]()
    for place, one in enumerate(_margins(state)):
        tables.append(MeasuredTable((place,), one.counts, one.variance))
    for pair, one in full.items():
        if pair in coarse:
            one = networks.sharpened(one, coarse[pair], *_groups(state, pair))
        tables.append(MeasuredTable(pair, one.counts, one.variance))
    model = GraphicalModel.fitted(state["levels"], tables, state["rows"], start=start)
    return {**state, "full": _stored(full), "model": model.state()}


def _margins(state: State) -> list[networks.Measured]:
    """What silos have told of each attribute; nothing without noise."""
    told = zip(state["margins"], state["variances"], strict=True)
    return [networks.Measured(share.numpy() * state["rows"], variance) for share, variance in told]


def _groups(state: State, pair: networks.Attributes) -> list[Levels]:
    """Each level's group, of both attributes."""
    ends = [state["groups"][place] for place in pair]
    return [np.repeat(np.arange(len(of_group)), np.diff([0, *of_group])) for of_group in ends]


def _stored(tables: Tables) -> list[State]:
    return [
        {"attributes": list(pair), "counts": torch.from_numpy(one.counts), "variance": one.variance}
        for pair, one in tables.items()
    ]


def _restored(state: list[State]) -> Tables:
    return {tuple(one["attributes"]): networks.Measured(one["counts"].numpy(), one["variance"]) for one in state}


def _held(state: State) -> tuple[Held, ...]:
    return tuple(from_state(Held, one) for one in state["held"])


def _request(roster: Roster, config: MarginalsConfig, state: State) -> CountRequest:
    groups = map(len, state["groups"])
    parts = zip(state["silos"], state["names"], state["levels"], groups, strict=True)
    attributes = [private.CountedAttribute(*part) for part in parts]
    plan = private.plan_noise(config, _held(state))
    return private.request_for(roster.parties, attributes, state["most"], plan)


def _open_full(
    roster: Roster, config: MarginalsConfig, streams: Streams, state: State, pairs: Sequence[networks.Attributes]
) -> Conversation[Tables]:
    """Tables in full, after all silos have agreed which these are."""
    request, plan = _request(roster, config, state), private.plan_noise(config, _held(state))
    sets = private.full_sets(len(state["names"]))
    chosen, noise = [sets.index(pair) for pair in pairs], opening.EXACT if plan is None else plan.full
    yield from agree(roster, private.naming(chosen))
    opened = yield from _opened(roster, request, dict.fromkeys(chosen, noise), streams)
    return {pair: opened[number] for pair, number in zip(pairs, chosen, strict=True)}


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
