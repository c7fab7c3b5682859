"""MST and AIM: noised tables of two columns each, and a model of them, over columns that several silos hold.

After R. McKenna, G. Miklau, D. Sheldon: *Winning the NIST Contest: A scalable and general approach to differentially
private synthetic data* (Journal of Privacy and Confidentiality, 2021), and R. McKenna, B. Mullins, D. Sheldon,
G. Miklau: *AIM: An Adaptive and Iterative Mechanism for Differentially Private Synthetic Data* (VLDB, 2022), whose
tables are in one place. What differs:

====================================================  ==========================================================
papers                                                here
====================================================  ==========================================================
levels of each column, noised                         `MarginalsSilo._make`: encoders learn from noised histograms, of
                                                      which attributes are made; `_select`: a noised table of each
MST: the exponential mechanism chooses each edge      `_select`: a coarse noisy table of every pair; all else follows
                                                      from these without further cost (`networks.association`)
AIM: the same chooses one table after the other       `_extend`: several a round, by how far the model so far misses
                                                      the coarse tables (`networks.missed`)
AIM: noise falls as rounds go on, until it is spent   noise is for as many tables as are missed before each round, and
                                                      what is left of the budget (`private.next_noise`); where pairs
                                                      are few, tables of one attribute open last (`_alone`)
noised tables                                         `_open_full`: counted across silos, opened with noise
Private-PGM fits a graphical model                    `models.graphical.GraphicalModel`
rows are drawn by rounding                            next to their expected numbers; silos draw values within levels
====================================================  ==========================================================

Nobody holds tables of columns of two silos: silos count them as shares (`silosynth.counting.protocol`), the coordinator
deals. What opens is noised in the shares (`silosynth.counting.opening`), by noise that both silos of a table draw
together, and nobody knows. So all that is selected, fitted and drawn is made of tables as they may be passed on, and
each row is protected by (epsilon, delta) from the coordinator, from each silo, and from everybody else: as long as all
follow the protocol, and coordinator and silos do not collude. Tables of two columns of one silo are counted and noised
by that silo.

*The noise is nobody's message*: it follows from the options and from what columns are, as far as is public
(`private.plan_noise`), for tables in full also from how many are planned, and how many are open (`private.next_noise`).
A silo opens each table of groups once. Before tables open in full, all silos agree on which these are, and how many are
planned (`privacy.agreement`, of which that is the purpose), so that each knows also those that it has no part in, and
that the others were told the same: never more than before, nor than `private.most_tables`.

Without ``dp`` the same tables open exactly: silos have small levels pooled by their encoders (``min_count``), and
nothing else protects counts. No row and no encoding of one leaves a silo, unless hidden by random numbers for another.

Shapes: R rows, A attributes of one silo.
"""

from __future__ import annotations

import hmac
import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.marginals import networks, private
from silosynth.algorithms.marginals.options import MarginalsConfig
from silosynth.algorithms.marginals.private import Held
from silosynth.core import conversation
from silosynth.core.conditions import Condition
from silosynth.core.conversation import Checkpoint, Conversation, Progress, Roster, State, expect
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message, Positive, Release, from_state, to_state
from silosynth.core.rules import Rule
from silosynth.core.schema import Schema, Table, agreed, grouped, owners
from silosynth.core.streams import Streams
from silosynth.counting import opening, protocol as counting
from silosynth.counting.plan import CountRequest, padded
from silosynth.encoders import possible, summed
from silosynth.encoders.column import Encoder, decode_table, restored, stored
from silosynth.models.graphical import Axes, Flags, GraphicalModel, Levels, MeasuredTable, Numbers, cells_of
from silosynth.privacy.aggregation import Masked, secure_words
from silosynth.privacy.agreement import agree, new_purpose
from silosynth.privacy.events import Event
from silosynth.privacy.masker import told

Tables: TypeAlias = dict[networks.Attributes, networks.Measured]
Possible: TypeAlias = dict[networks.Attributes, Flags]
Step: TypeAlias = Callable[[Roster, MarginalsConfig, Streams, State], Conversation[State]]
FINEST = 2000  # parts of all rows, of which counts are not told apart further: a fit would take many times as long
REACH = 9.0  # standard deviations that no noise on a number of rows exceeds, but with a probability below 1e-18


# Messages, in talking order.


class DescribeHeld(Message):
    """Coordinator: how many columns do you hold, of how many values, as far as is public?"""


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


class AskPossible(Message, common=True):
    """Coordinator: which levels of your attributes can hold what these rules name, which are public?"""

    rules: tuple[Rule, ...]


class PossibleTold(Message, release=Release.DERIVED):
    """Silo: these, by the encoders that noised counts have made."""

    held: tuple[possible.LevelsHeld, ...]


class HandOverDecoders(Message, common=True):
    """Coordinator: what are values of your columns drawn from?"""


class DecodersHandedOver(Message, release=Release.DERIVED):
    """Silo: from these, which the noised counts of its columns have made."""

    encoders: tuple[Encoder, ...]
    attributes: tuple[networks.Attribute, ...]


class WeighLevels(Message):
    """Coordinator: which part of each level of your attributes fulfils the conditions that you have been told?"""


class LevelsWeighed(Message, release=Release.SYNTHETIC):
    """Silo: these (L,), by attribute; all of a level where there is no condition."""

    weights: tuple[Tensor, ...]


class SynthesiseLevels(Message, release=Release.SYNTHETIC):
    """Coordinator: draw columns for these levels (R, A) of your attributes. ``draw`` names the random stream."""

    levels_RA: Tensor
    draw: str


# The coordinator.


def coordinate(
    roster: Roster, config: MarginalsConfig, streams: Streams, device: torch.device, state: State | None = None,
    rules: Sequence[Rule] = (),
) -> Conversation[State]:  # fmt: skip
    """Learn the model; returns the coordinator's part, and "parts" of silos where these hand over theirs.

    ``rules`` are about columns of several silos, and bound to them.
    """
    if state is None and config.dp.private:
        state = {"stage": 0, "rules": [to_state(rule) for rule in possible.modelled(rules)]}
    state = yield from _taken(config, roster, streams, state)
    model = {key: state[key] for key in ("rows", "silos", "names", "model")}
    return model | {"parts": (yield from _handed_over(roster))} if config.synthesis == "public" else model


def _handed_over(roster: Roster) -> Conversation[dict[str, State]]:
    """What each silo's party draws values from (`part_of`): with it nobody needs the silo any more."""
    replies = expect((yield roster.everyone(HandOverDecoders())), DecodersHandedOver)
    return {silo: part_of(one.encoders, one.attributes) for silo, one in zip(roster, replies, strict=True)}


def part_of(encoders: Sequence[Encoder], attributes: Sequence[networks.Attribute]) -> State:
    """What a party draws values from, in storable form."""
    return {"encoders": stored(encoders), "attributes": [to_state(attribute) for attribute in attributes]}


def _taken(config: MarginalsConfig, roster: Roster, streams: Streams, state: State | None) -> Conversation[State]:
    """Take all steps, or those after a checkpoint's."""
    state = {"stage": 0} if state is None else state
    steps = _steps(config) + ((_extend,) * config.rounds + (_refine,) if config.adaptive else ())
    for stage in range(state["stage"], len(steps)):
        yield Progress("tables", stage, len(steps))
        state = yield from steps[stage](roster, config, streams, state)
        state = {**state, "stage": stage + 1}
        yield Checkpoint(state, always=config.horizontal and config.dp.private)  # silos never add the same noise again
    yield Progress("tables", len(steps), len(steps))
    return state


def _steps(config: MarginalsConfig) -> tuple[Step, ...]:
    return ROW_STEPS if config.horizontal else STEPS


def synthesise(
    roster: Roster, config: MarginalsConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Draw levels of all attributes, and have silos draw ``rows`` rows for them."""
    return (yield from _drawn(roster, model, rows, streams, {}))


def synthesise_given(
    roster: Roster, config: MarginalsConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """As `synthesise`, for silos that have been told conditions (`Party.restrict`): of the distribution given these."""
    replies = expect((yield roster.everyone(WeighLevels())), LevelsWeighed)
    weights = dict(enumerate(weight_L.numpy() for reply in replies for weight_L in reply.weights))
    return (yield from _drawn(roster, model, rows, streams, weights))


def _drawn(
    roster: Roster, model: State, rows: int, streams: Streams, weights: Mapping[int, Numbers]
) -> Conversation[dict[str, Table]]:
    """Rows whose levels have their chances multiplied by these weights (L,) of attributes."""
    levels_RA = GraphicalModel.restored(model["model"]).draw(rows, streams.child("levels").numpy(), weights)
    name = "/".join(streams.path)
    asks = {silo: SynthesiseLevels(levels_RA[:, _places(model, silo)], name) for silo in roster}
    return conversation.shared_columns((yield roster.each(asks)))


def _places(model: State, silo: str) -> list[int]:
    """Of a silo's attributes among all."""
    return [place for place, owner in enumerate(model["silos"]) if owner == silo]


def _describe(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """What all silos hold, from which the noise follows."""
    described = expect((yield roster.everyone(DescribeHeld())), HeldDescribed)
    return {**state, "held": [to_state(reply.held) for reply in described]}


def _make(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """Each silo's attributes; the number of rows, and a bound of it, which is greater with differential privacy."""
    held = _held(state)
    plan = private.plan_noise(config, held)
    if plan is not None:
        yield from agree(roster, private.holding(held))
    replies = yield roster.everyone(MakeAttributes(held))
    made = expect(replies, AttributesMade) if plan is None else expect(replies, NoisedAttributesMade)
    rows = [reply.rows for reply in made]
    if plan is None:
        conversation.check_same_rows(roster, rows)
    names = [name for reply in made for name in reply.names]
    levels = [size for reply in made for size in reply.levels]
    return {
        **state,
        "rows": max(1, round(sum(rows) / len(rows))),
        "most": max(bound(number, plan) for number in rows),
        "silos": [silo for silo, reply in zip(roster, made, strict=True) for _ in reply.names],
        "names": names,
        "levels": levels,
        "possible": (yield from _possible(roster, state, dict(zip(names, levels, strict=True)))),
        "groups": [list(ends) for reply in made for ends in reply.groups],
        "margins": [margin for reply in made for margin in getattr(reply, "margins", ())],
        "variances": [variance for reply in made for variance in getattr(reply, "variances", ())],
    }


def _possible(roster: Roster, state: State, sizes: Mapping[str, int]) -> Conversation[list[State]]:
    """Which pairs of levels a row can hold that keeps the rules, where not all; ``sizes`` are numbers of levels."""
    rules, places = tuple(from_state(Rule, rule) for rule in state.get("rules", ())), list(sizes)
    if not rules:
        return []
    told = expect((yield roster.everyone(AskPossible(rules))), PossibleTold)
    held: dict[str, list[possible.LevelsHeld]] = {}
    for one in (one for reply in told for one in reply.held):
        held.setdefault(one.column, []).append(one)
    found = list[State]()
    for names, flags_LM in possible.possible_pairs(rules, held):
        if flags_LM.shape != tuple(sizes.get(name) for name in names):
            raise ProtocolError("Silos tell of each level of their attributes", flags_LM.shape, "Compare versions.")
        if not flags_LM.all():
            found.append({"attributes": list(map(places.index, names)), "possible": torch.from_numpy(flags_LM)})
    return found


def _ruled_out(config: MarginalsConfig, state: State, tables: Iterable[networks.Attributes]) -> Possible:
    """As many structural zeros as fit beside these tables; rows that break other rules are thrown away."""
    pairs, found = list(tables), Possible()
    for one in state.get("possible", []):
        pair = (int(one["attributes"][0]), int(one["attributes"][1]))
        if cells_of(state["levels"], [*pairs, pair]) <= max(config.cells, cells_of(state["levels"], pairs)):
            pairs.append(pair)
            found[pair] = one["possible"].numpy()
    return found


def bound(rows: int, plan: private.MarginalsPlan | None) -> int:
    """What no silo holds more rows than, given its noised number."""
    return padded(rows + (0 if plan is None else math.ceil(REACH * math.sqrt(plan.rows))))


def _count(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """Silos get shares of the tables of all pairs."""
    groups = config.silo_groups
    if not groups:
        yield from counting.count(roster, _request(roster, config, state))
        return state
    requests = [_request(roster, config, state, group) for group in range(len(groups))]
    each = zip(groups, requests, strict=True)
    yield from conversation.side_by_side([counting.count(roster.only(group), own, apart=True) for group, own in each])
    return state


def _select(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """The tree with the strongest associations, by tables of groups of all pairs; and what attributes alone say."""
    request, count = _request(roster, config, state), len(state["names"])
    plan = private.plan_noise(config, _held(state))
    pairs, alone = private.selected_pairs(count), private.single_sets(config, count)
    first = len(private.full_sets(config, count))
    noises = dict.fromkeys(range(first, first + len(pairs)), opening.EXACT if plan is None else plan.groups)
    if plan is not None:
        noises |= dict.fromkeys(range(first + len(pairs), first + len(pairs) + len(alone)), plan.margins)
    opened = yield from _opened(roster, config, request, noises, streams.child("selection"), state["stage"])
    found = dict(zip((*pairs, *alone), opened.values(), strict=True))
    coarse: Tables = {pair: found[pair] for pair in pairs}
    scores = {pair: networks.association(coarse[pair].counts, coarse[pair].variance) for pair in pairs}
    edges = networks.spanning_tree(count, scores or {(0, 1): 0.0})
    single: Tables = {one: found[one] for one in alone}
    return {**state, "edges": [list(edge) for edge in edges], "coarse": _stored(coarse), "single": _stored(single)}


def _measure(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """The tree's tables, and its model.

    Of AIM with an epsilon of at most 1 as many, at most: of pairs under rules, as rows are thrown away where these are
    off; then of those that attributes say least of. How many are missed says how many more are planned.
    """
    edges: list[networks.Attributes] = [tuple(sorted(edge)) for edge in state["edges"]]
    first = {**state, "full": [], "halves": [], "alone": [], "planned": private.most_tables(config, state["levels"])}
    pairs = edges or [(0,)]
    if config.adaptive and state["coarse"]:
        state = _fit(config, first, {})
        missed = _most_missed(roster, config, state)
        wanted = edges if config.opens_tree else [tuple(sorted(pair)) for pair in _ruled_out(config, state, [])]
        pairs = list(dict.fromkeys([*wanted, *missed]))[: state["planned"]]
    alone = [list(one) for one in _alone(first, len(pairs))]
    state = _planned(config, {**state, **first, "alone": alone}, len(pairs))
    if not pairs:
        return state
    full = yield from _open_full(roster, config, streams.child("tree"), state, pairs[: max(1, len(edges))])
    return _fit(config, _left(config, state, full), full)


def _extend(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """More tables, of the pairs that the model misses most; and the model of all so far."""
    full, rounds = _restored(state["full"]), config.rounds - (state["stage"] - len(_steps(config)))
    missed = _most_missed(roster, config, state)
    alone = tuple(map(tuple, state["alone"]))
    chosen = (*missed, *alone) if rounds == 1 else missed[: math.ceil(len(missed) / rounds)]
    if not chosen:
        return state
    state = _planned(config, state, len(missed))
    more = yield from _open_full(roster, config, streams.child("more", rounds), state, chosen)
    return _fit(config, _left(config, state, more), full | more, GraphicalModel.restored(state["model"]))


def _planned(config: MarginalsConfig, state: State, pairs: int) -> State:
    """How many tables are still to open: so many pairs', and attributes'. Exact ones have no noise that hangs on it."""
    return {**state, "planned": pairs + len(state["alone"])} if config.dp.private else state


def _most_missed(roster: Roster, config: MarginalsConfig, state: State) -> tuple[networks.Attributes, ...]:
    """The pairs whose tables of groups the model misses by more than opening them is feared to bring.

    At most as many as are planned, and as there is room for.
    """
    if not (most := state["planned"] - len(state["alone"])):
        return ()
    full, coarse, model = _restored(state["full"]), _restored(state["coarse"]), GraphicalModel.restored(state["model"])
    variance, scores = _variance(roster, config, _next_noise(config, state)), dict[networks.Attributes, float]()
    for pair, one in coarse.items():
        if pair not in full:
            table = state["rows"] * model.marginal(pair)
            expected = networks.in_groups(table, *_groups(state, pair))
            scores[pair] = networks.missed(one, expected, cells=table.size, variance=variance)
    beside = [*full, *_ruled_out(config, state, full)]
    return networks.most_missed(state["levels"], scores, beside, most, config.cells)


def _alone(state: State, pairs: int) -> tuple[networks.Attributes, ...]:
    """What opens last, beside so many pairs, of which more may have been planned: each attribute, if all fit in.

    What is left may be much, as few pairs are worth a table where noise is several times all rows, or as the model has
    no room for more. All pairs gain by exact attributes; one pair's noise is soon small enough.
    """
    alone = tuple(_restored(state["single"]))
    return alone if pairs + len(alone) <= state["planned"] else ()


def _refine(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """The model of tables of groups as well, where it misses them: as many as there is room for."""
    yield from ()
    full, coarse, model = _restored(state["full"]), _restored(state["coarse"]), GraphicalModel.restored(state["model"])
    scores = {
        pair: networks.surprise(one, networks.in_groups(state["rows"] * model.marginal(pair), *_groups(state, pair)))
        for pair, one in coarse.items()
        if pair not in full
    }
    beside = [*full, *_ruled_out(config, state, full)]
    chosen = networks.most_surprising(_axes(state), scores, beside, config.cells)
    return _fit(config, state, full, model, chosen) if chosen else state


STEPS = (_describe, _make, _count, _select, _measure)


def _fit(
    config: MarginalsConfig, state: State, full: Tables, start: GraphicalModel | None = None,
    grouped: Sequence[networks.Attributes] = (),
) -> State:  # fmt: skip
    """The graphical model of all tables that are open in full, of all margins, and of these tables of groups.

    What rules leave out has no rows.
    """
    axes = _axes(state)
    coarse, measured = _restored(state["coarse"]), list[tuple[networks.Attributes, networks.Measured]]()
    single = _restored(state["single"])
    for place, own in enumerate(_margins(state)):
        others = [tables[place,] for tables in (single, full) if (place,) in tables]
        measured.append(((place,), networks.doubted(own, [*others, *networks.sums(place, full)])))
    measured += single.items()
    for pair, one in full.items():
        if pair in coarse:
            one = networks.sharpened(one, coarse[pair], *_groups(state, pair))
        measured.append((pair, one))
    measured += [(tuple(map(axes.groups, pair)), coarse[pair]) for pair in grouped]
    least = (state["rows"] / FINEST) ** 2
    tables = [
        MeasuredTable(pair, one.counts, max(least, one.variance) if one.variance else 0.0) for pair, one in measured
    ]
    ends, zeros = axes.ends if grouped else (), list(_ruled_out(config, state, full).items())
    model = GraphicalModel.fitted(axes.sizes, tables, state["rows"], start=start, ends=ends, possible=zeros)
    return {**state, "full": _stored(full), "model": model.state()}


def _margins(state: State) -> list[networks.Measured]:
    """What silos have told of each attribute; nothing without noise."""
    told = zip(state["margins"], state["variances"], strict=True)
    return [networks.Measured(share.numpy() * state["rows"], variance) for share, variance in told]


def _axes(state: State) -> Axes:
    """Attributes, and their groups."""
    return Axes(tuple(state["levels"]), tuple(map(tuple, state["groups"])))


def _groups(state: State, pair: networks.Attributes) -> list[Levels]:
    """Each level's group, of both attributes."""
    return [_axes(state).group_of(place) for place in pair]


def _stored(tables: Tables) -> list[State]:
    return [
        {"attributes": list(pair), "counts": torch.from_numpy(one.counts), "variance": one.variance}
        for pair, one in tables.items()
    ]


def _restored(state: list[State]) -> Tables:
    return {tuple(one["attributes"]): networks.Measured(one["counts"].numpy(), one["variance"]) for one in state}


def _held(state: State) -> tuple[Held, ...]:
    return tuple(from_state(Held, one) for one in state["held"])


def _request(roster: Roster, config: MarginalsConfig, state: State, group: int = 0) -> CountRequest:
    """What is counted; by one of the groups of silos, if there are groups."""
    silos, parties = state["silos"], roster.parties
    if config.silo_groups:
        silos, parties = state["owners"][group], config.silo_groups[group]
    parts = zip(silos, state["names"], state["levels"], map(len, state["groups"]), strict=True)
    attributes = [private.CountedAttribute(*part) for part in parts]
    return private.request_for(config, _held(state), parties, attributes, state["most"])


def _open_full(
    roster: Roster, config: MarginalsConfig, streams: Streams, state: State, pairs: Sequence[networks.Attributes]
) -> Conversation[Tables]:
    """Tables in full, after all silos have agreed which these are, and how many are planned."""
    request, sets = _request(roster, config, state), private.full_sets(config, len(state["names"]))
    chosen, noise = [sets.index(pair) for pair in pairs], _next_noise(config, state)
    yield from agree(roster, private.naming(chosen, state["planned"]))
    opened = yield from _opened(roster, config, request, dict.fromkeys(chosen, noise), streams, state["stage"])
    return {pair: opened[number] for pair, number in zip(pairs, chosen, strict=True)}


def _next_noise(config: MarginalsConfig, state: State) -> opening.CellNoise | None:
    """On each table that opens next, if as many do as are planned."""
    opened = tuple(private.table_noise(config, half) for half in state["halves"])
    return private.next_noise(config, _held(state), opened, state["planned"])


def _left(config: MarginalsConfig, state: State, opened: Tables) -> State:
    """After so many more tables."""
    noise, left = _next_noise(config, state), state["planned"] - len(opened)
    halves = [] if noise is None else [noise.half_variance] * len(opened)
    return {**state, "halves": [*state["halves"], *halves], "planned": left}


def _opened(
    roster: Roster, config: MarginalsConfig, request: CountRequest, noises: Mapping[int, opening.CellNoise | None],
    streams: Streams, step: int,
) -> Conversation[dict[int, networks.Measured]]:  # fmt: skip
    """Tables as they may be passed on, each with the variance of its noise; ``step`` numbers secure sums."""
    if not noises:
        return {}
    opened = yield from opening.open_tables(roster, request, noises, streams.noise(), step)
    return {
        number: networks.Measured(opened.passed_on[number].astype(np.float64), _variance(roster, config, noise))
        for number, noise in noises.items()
    }


def _variance(roster: Roster, config: MarginalsConfig, noise: opening.CellNoise | None) -> float:
    """Of the noise on a table as it may be passed on: all by one silo or by two together, or all silos' parts."""
    parts = (len(roster), len(roster) - 1) if config.horizontal else (2, 2)
    return 0.0 if noise is None else noise.deviation(*parts) ** 2


# Silos with different rows: sums over all of them, of what each counts in its own. Or groups of silos with different
# rows, each divided by columns: silos count columns, and groups tables, in shares; all else is the same.
#
# A coordinator that told silos of other cells, ranges or buckets than others could lay the rows of one into cells of
# their own, and read its table in the sum. So masks hang on what a silo was told (`privacy.masker.told`): if that
# differs, they do not cancel, and what opens is random words. In groups a silo is told of its own columns, and of
# commitments to all, which it checks for its own: so those that hold a column in other groups were told the same.

NAMES = "marginals: names of levels"  # what silos agree on a secret for
SALT = 32  # bytes
_FIRST, _NAMES, _BINS = range(3)  # rounds of sums, before tables are counted


class DescribeRows(Message):
    """Coordinator: describe your columns, of which you hold other rows than other silos, or other groups of silos."""


class RowsDescribed(Message, release=Release.SCHEMA):
    """Silo: these, without reasons and forms; which numbers are whole ones; a nonce, for the secret of names."""

    schema: Schema
    whole: tuple[str, ...]
    nonce: str


class SumCells(Message, common=True):
    """Coordinator: mask what is counted first, for the sum over all silos in this round. Kinds are as silos agreed."""

    number: int
    schema: Schema


class SumNames(Message, common=True):
    """Coordinator: mask names of levels in these buckets of each table, those of one column after those of another."""

    number: int
    places: tuple[Tensor, ...]


class SumBins(Message, common=True):
    """Coordinator: mask histograms of so many bins, at most."""

    number: int
    grids: tuple[summed.Grid, ...]
    bins: int


class NoisedCells(Masked, release=Release.NOISED):
    """Silo: my counts with my part of the noise, masked; and their events, those of names included."""

    events: tuple[Event, ...]


class ExactCells(Masked, release=Release.TABLES):
    """Silo: my counts, masked; their sum over all silos opens exactly."""


class NoisedNames(Masked, release=Release.MASKED):
    """Silo: names of which noised counts have passed, in a sum that does not say who holds them.

    What that costs the events of `NoisedCells` have said.
    """


class ExactNames(Masked, release=Release.TABLES):
    """Silo: the same, by exact counts."""


class TakeAttributes(Message, release=Release.MERGED, common=True):
    """Coordinator: make these attributes of your columns, for a table of at most so many rows."""

    encoders: tuple[Encoder, ...]
    attributes: tuple[networks.CountedLevels, ...]
    most: Positive[int]


class TakeNoisedAttributes(TakeAttributes, release=Release.NOISED):
    """Coordinator: the same, made of noised sums, whose events it repeats."""

    events: tuple[Event, ...]


class TakeOwnAttributes(TakeAttributes, common=False):
    """Coordinator: the same, of the columns that you hold in your group.

    Attributes:
        commitments: to the encoder and attribute of each column that silos agreed on (`committed`), alike for all.
        salts: of your own columns', by which you check them; 32 random bytes each, so that others guess nothing.
    """

    commitments: tuple[bytes, ...]
    salts: tuple[bytes, ...]


class TakeOwnNoisedAttributes(TakeNoisedAttributes, common=False):
    """Coordinator: the same, made of noised sums."""

    commitments: tuple[bytes, ...]
    salts: tuple[bytes, ...]


def committed(salt: bytes, encoder: Encoder, attribute: networks.CountedLevels) -> bytes:
    """What binds the coordinator to a column's cells, 32 bytes, and tells nothing of them to who lacks the salt."""
    return hmac.digest(salt, told(encoder, attribute), "sha256")


def coordinate_rows(
    roster: Roster, config: MarginalsConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Learn encoders and the tree, by sums; returns the model, which is all that sampling needs.

    Raises:
        ConfigError: there are too few silos, or groups of silos; or a group does not hold each column once.
    """
    private.check_enough(config, len(roster))
    state = yield from _taken(config, roster, streams, state)
    return {name: state[name] for name in ("rows", "names", "encoders", "attributes", "model")}


def synthesise_rows(
    roster: Roster, config: MarginalsConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Make ``rows`` synthetic rows. The coordinator needs no silo for that."""
    return (yield from synthesise_rows_given(roster, config, model, rows, streams, device, ()))


def synthesise_rows_given(
    roster: Roster, config: MarginalsConfig, model: State, rows: int, streams: Streams, device: torch.device,
    conditions: Sequence[Condition],
) -> Conversation[dict[str, Table]]:  # fmt: skip
    """As `synthesise_rows`, of the distribution given conditions."""
    yield from ()
    encoders, bins = restored(model["encoders"]), config.bins
    attributes = [from_state(networks.Attribute, one) for one in model["attributes"]]
    wanted = networks.wanted(conditions, encoders, bins)
    weights = {place: weight_L.numpy() for place, weight_L in wanted.weights(attributes).items()}
    levels_RA = GraphicalModel.restored(model["model"]).draw(rows, streams.child("levels").numpy(), weights)

    def draw(levels_RA: Tensor, streams: Streams) -> Table:
        codes = networks.drawn(levels_RA, attributes, encoders, bins, streams, wanted.parts)
        return decode_table(*codes, encoders, streams.child("columns").numpy())

    return {"coordinator": wanted.fulfilled(levels_RA, streams, draw)}


def _describe_rows(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """Columns that all silos have, from which the noise follows."""
    described = expect((yield roster.everyone(DescribeRows())), RowsDescribed)
    schemas = {silo: reply.schema for silo, reply in zip(roster, described, strict=True)}
    schema = agreed(grouped(schemas, config.silo_groups))
    holders = {name: [reply for reply in described if name in reply.schema.names] for name in schema.names}
    return {
        "schema": to_state(schema),
        "whole": [name for name, replies in holders.items() if all(name in reply.whole for reply in replies)],
        "owners": [owners(schemas, group, schema.names) for group in config.silo_groups],
        "nonces": [reply.nonce for reply in described],
        "held": [to_state(private.held_of(config, schema))],
    }


def _sum_cells(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """The number of rows, encoders of columns with levels, and where numbers lie."""
    schema, plan = from_state(Schema, state["schema"]), private.plan_noise(config, _held(state))
    yield from agree(roster, new_purpose(NAMES, state["nonces"]), fresh=False)
    found = yield from _summed(roster, SumCells(_FIRST, schema), summed.first_cells(_blank(state), schema, b""))
    rows = max(1, int(found.pop("")[0]))
    named = [one.name for one in summed.named(schema)]
    sketches = {name: found[name][0].reshape(summed.TABLES, -1) for name in named}
    told = yield from _named(roster, config, plan, sketches)
    known = _known(roster, config, {**state, "rows": rows})
    made = {name: known.of_names(name, sketches[name], told[name]) for name in named}
    numbers = [one.name for one in summed.numbers(schema)]
    made |= {name: known.of_public(name, found[name][0]) for name in schema.names if name not in (*named, *numbers)}
    grids = [known.grid(name, found.get(name, [])) for name in numbers]
    most = padded(rows + math.ceil(REACH * known.deviation))
    return {**state, "rows": rows, "most": most, "levelled": _kept(made), "grids": [to_state(grid) for grid in grids]}


def _named(
    roster: Roster, config: MarginalsConfig, plan: private.MarginalsPlan | None, sketches: Mapping[str, Tensor]
) -> Conversation[dict[str, summed.Told]]:
    """Names of levels of these columns, by sums of sketches."""
    if not sketches:
        return {}
    least = config.encoders.min_count if config.encoders.pool_rare else 1
    delta = 1.0 if plan is None else plan.names
    places = {name: summed.passing(sums[:, : summed.BUCKETS], delta, least) for name, sums in sketches.items()}
    widths = [summed.SLOT * sum(map(len, of)) for of in places.values()]
    ask = SumNames(_NAMES, tuple(row for of in places.values() for row in of))
    words, _ = yield from secure_words(dict.fromkeys(roster, ask), _NAMES, sum(widths), len(roster))
    parts = np.split(words, np.cumsum(widths)[:-1])
    return {name: summed.told_names(part, of) for (name, of), part in zip(places.items(), parts, strict=True)}


def _make_rows(roster: Roster, config: MarginalsConfig, streams: Streams, state: State) -> Conversation[State]:
    """Encoders of numbers; and attributes, for all silos."""
    known, plan = _known(roster, config, state), private.plan_noise(config, _held(state))
    grids = [from_state(summed.Grid, grid) for grid in state["grids"]]
    bins, made, rng = known.bins, _unkept(state["levelled"]), streams.child("encoders").numpy()
    if grids:
        cells = summed.second_cells(_blank(state), known.schema, grids, bins)
        found = yield from _summed(roster, SumBins(_BINS, tuple(grids), bins), cells)
        for declared, grid in zip(summed.numbers(known.schema), grids, strict=True):
            counts = found[declared.name][0]
            made[declared.name] = known.of_bins(declared.name, grid, bins, counts, config.encoders, rng)
    encoders, shares = zip(*(made[name] for name in known.schema.names), strict=True)
    attributes = [
        networks.make_attribute(
            encoder, networks.cell_shares(encoder, share_L, config.bins), config.bins, config.groups
        )
        for encoder, share_L in zip(encoders, shares, strict=True)
    ]
    counted = tuple(attribute.counted for attribute in attributes)
    salts = tuple(os.urandom(SALT) for _ in counted)
    asks = {silo: _takes(config, state, silo, encoders, counted, salts) for silo in roster}
    expect((yield roster.each(asks)), Done)
    noised = [] if plan is None else list(zip(encoders, attributes, strict=True))
    return {
        **{name: state[name] for name in ("stage", "held", "rows", "most", "owners")},
        "silos": [""] * len(encoders),
        "names": list(known.schema.names),
        "levels": [attribute.size for attribute in attributes],
        "groups": [list(attribute.group_ends) for attribute in attributes],
        "margins": [attribute.margin_L for _, attribute in noised],
        "variances": [networks.level_variance(known.counted_deviation(one[0].name) ** 2, *one) for one in noised],
        "encoders": stored(encoders),
        "attributes": [to_state(attribute) for attribute in attributes],
    }


def _takes(
    config: MarginalsConfig, state: State, silo: str, encoders: tuple[Encoder, ...],
    counted: tuple[networks.CountedLevels, ...], salts: tuple[bytes, ...],
) -> TakeAttributes:  # fmt: skip
    """What a silo makes of its columns: of all, or of those that it holds in its group."""
    plan, most = private.plan_noise(config, _held(state)), state["most"]
    if config.silo_groups:
        held = [any(group[place] == silo for group in state["owners"]) for place in range(len(encoders))]
        own = tuple(itertools.compress(encoders, held)), tuple(itertools.compress(counted, held)), most
        bound = tuple(map(committed, salts, encoders, counted)), tuple(itertools.compress(salts, held))
        return TakeOwnAttributes(*own, *bound) if plan is None else TakeOwnNoisedAttributes(*own, plan.events, *bound)
    take = encoders, counted, most
    return TakeAttributes(*take) if plan is None else TakeNoisedAttributes(*take, plan.events)


ROW_STEPS = (_describe_rows, _sum_cells, _make_rows, _count, _select, _measure)


def _summed(
    roster: Roster, ask: SumCells | SumBins, cells: Sequence[summed.Cells]
) -> Conversation[dict[str, list[Tensor]]]:
    """What all silos count together, by column; all of them must take part, as each brings a part of the noise."""
    sizes = [len(one.counts) for one in cells]
    words, _ = yield from secure_words(dict.fromkeys(roster, ask), ask.number, sum(sizes), len(roster))
    found: dict[str, list[Tensor]] = {}
    for one, sums in zip(cells, torch.from_numpy(words.view(np.int64)).split(sizes), strict=True):
        found.setdefault(one.column, []).append(sums)
    return found


def _blank(state: State) -> Table:
    """A table without rows, by which sums are laid out."""
    schema = from_state(Schema, state["schema"])
    return summed.blank_table(schema, state["whole"])


def _known(roster: Roster, config: MarginalsConfig, state: State) -> summed.KnownSums:
    plan = private.plan_noise(config, _held(state))
    schema = from_state(Schema, state["schema"])
    variances = {"": 0} if plan is None else plan.by_name(schema)
    parts = len(roster), len(roster) - 1
    deviations = {name: private.column_noise(one).deviation(*parts) if one else 0.0 for name, one in variances.items()}
    budget = "no noise" if plan is None else f"epsilon {config.dp.epsilon:.3g}, delta {config.dp.delta:.3g}"
    least = config.encoders.min_count
    return summed.KnownSums(schema, state["whole"], state["rows"], deviations[""], budget, least, deviations)


def _kept(made: Mapping[str, tuple[Encoder, Tensor]]) -> list[State]:
    return [{"encoder": to_state(encoder), "share": share} for encoder, share in made.values()]


def _unkept(kept: Sequence[State]) -> dict[str, tuple[Encoder, Tensor]]:
    encoders = [(restored([one["encoder"]])[0], one["share"]) for one in kept]
    return {encoder.name: (encoder, share) for encoder, share in encoders}
