"""VT-GAN: a conditional tabular GAN split between a coordinator and N silos (Zhao, Wu, van Moorsel, Chen).

Columns of the same rows are spread over silos. Generator and critic are cut: top parts stand at the coordinator, each
silo has bottom parts for its own columns. Activations and gradients cross the cut in every step.

=============================================  ==============================================================
paper, Algorithm 1                             here
=============================================  ==============================================================
line 1, Encode                                 `_begin`, `Silo._encode`
lines 2-24, the loop over rounds               `coordinate`, `_train_round`
lines 4 and 18, CVGeneration                   `_draw_conditions`, `Silo._draw_conditions`
lines 5-16, a step of the critic               `_critic_step`, `Silo._criticise`, `Tops.critic_loss`
lines 10 and 12, which rows are pushed         `Silo._pushed`, `Numbers`
lines 19-22, a step of the generator           `_generator_step`, `Tops.generator_loss`
line 23, Shuffle                               `Numbers.order`: not the table is shuffled but the numbers of its rows
section 3.1.7, publication                     `synthesise`, `Silo._synthesise`
=============================================  ==============================================================

Readings, and deviations, each an option:

* D^a_b G^c_d: ``critic_blocks`` = (a, b), ``generator_blocks`` = (c, d). With b = 0 a silo's bottom critic is one
  linear layer; G^t ends in a linear layer whose outputs are split among the silos, so that it learns where c = 0 too.
* P_r, the ratio of features, decides who contributes conditions and how widths are split. What a silo without a
  categorical column contributes are rows drawn uniformly, under no condition: a conditional vector of zeros.
* ``contributors``: of a round they are drawn by P_r, "independent" of each other, or "spread" evenly (ours).
* ``bottom_critics`` = "orthonormal" (ours): silos keep the matrices of their bottom critics at orthonormal rows or
  columns, so that no slope in rows is longer than the one in features that it comes from. Where b = 0 and features are
  no wider than encoded rows, they are equally long, and the penalty is one on rows.
* ``average`` (ours): rows are made with a moving average of the generators' weights. docs/decisions/0013.
* ``statistics`` = "contributor" (ours): batches of one contributor have conditions alike, and running statistics of
  batch normalisation of their own. docs/decisions/0013.
* An epoch is rows // batch rounds; a round is ``critic_steps`` critic steps and one generator step, as in CTGAN.
  Small tables get at least ``least_rounds`` (ours).
* Row numbers: by ``index_privacy`` = "full" the contributor tells them to the coordinator, in an order that it does
  not know, and the others push all their rows (paper). Otherwise they never reach the coordinator: the contributor
  seals for the other silos a list of rows to push, exactly the batch ("none", the paper's section 3.1.6) or
  ``decoys`` times as many ("decoys", ours).
* ``shuffle`` = "round" renumbers rows after every round (paper), "step" after every step (ours).
* **The paper's index privacy does not survive its own backward pass**: only picked rows have a gradient that is not
  zero, so a silo that is handed gradients learns which rows were picked. ``bottom_gradients`` = "all" is the paper's
  update of every bottom critic; "contributor" (ours) updates the contributor's alone, which knows the rows anyway; with
  "none" (ours, not with ``dp``) they stay at their first matrices: gradients also tell of others' columns. Features are
  then one fixed linear map of encoded rows, which keeps distances where it is no narrower than these.
* The paper's shuffle seed becomes a secret that the silos agree on for each training (`privacy.agreement`), from which
  the order of each round or step is derived.

Who learns what, besides synthetic columns:

* the coordinator: numbers of rows, columns and conditional levels; of each step who contributes, the drawn levels (not
  their names) and, with "full", numbers of their rows in a secret order; **features of real rows**, un-noised, of
  every silo; at sampling the frequencies of levels. Row numbers say nothing across rounds, but two draws of a level
  that few rows hold are likely the same rows. And features can be followed: rows with equal values have equal
  features, which change slowly or not at all, and whoever knows their levels learns to read levels off them; whoever
  knows the matrices, or enough rows to solve for them, computes rows from features that are no narrower.
* other silos: who contributes to a step (where statistics are "all", only whether they do so themselves), and what the
  top generator makes of the drawn levels; unless ``bottom_gradients`` are "none", gradients in features of the rows
  that they contribute, or of all picked ones, off which others' levels can be read to a part; of which rows were picked
  nothing with "full" (unless gradients go to "all"), a list that holds them with "decoys", and all with "none".

Without ``dp`` (`private`), no formal guarantee protects anybody here.

Shapes: N rows, B rows of a batch, T steps of a round, W_i features of silo i, F_i its slice of G^t's outputs, G
generated rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from silosynth.algorithms.vtgan import private
from silosynth.algorithms.vtgan.messages import (
    ORDER,
    PUBLICATION,
    Build,
    Criticise,
    CriticiseListed,
    DescendCritic,
    DescendGenerator,
    DescendPicked,
    DrawConditions,
    Drawn,
    Encode,
    Encoded,
    FakeFeatures,
    Features,
    Generate,
    SampleConditions,
    SampledConditions,
    SliceGradients,
    Synthesise,
    SyntheticColumns,
    VTGANConfig,
)
from silosynth.algorithms.vtgan.tops import Tops, TopsConfig
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress, Replies
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.core.roster import Roster
from silosynth.core.schema import Table
from silosynth.core.state import from_state, to_state
from silosynth.core.streams import Streams
from silosynth.models.gan import proportions
from silosynth.privacy.agreement import agree
from silosynth.privacy.events import Event

M = TypeVar("M", bound=Message)
REPORTS = 200  # times that a run says how far it is, and can be resumed from


@dataclass(frozen=True)
class Sizes:
    """What silos have told of themselves, in roster order."""

    rows: int
    columns: list[int]
    conditions: list[int]

    def contributors(self, draws: int, spread: bool, generator: torch.Generator) -> Tensor:
        """Numbers of the silos (draws,) that contribute conditions, each drawn by P_r, the ratio of columns.

        Where they are ``spread`` evenly (systematic sampling, in random order), no round hears one only by chance.
        """
        line = torch.tensor(self.columns).double().cumsum(0)
        share = torch.rand(1 if spread else draws, generator=generator, dtype=torch.float64)
        at = (torch.arange(draws) + share) / draws if spread else share
        chosen = torch.searchsorted(line, at * line[-1], right=True).clamp(max=len(line) - 1)
        return chosen[torch.randperm(draws, generator=generator)]

    def among_all(self, silo: int, position_B: Tensor) -> Tensor:
        """The silo's positions as positions in the whole conditional vector; -1, no condition, stays."""
        position_B = position_B.long()
        return torch.where(position_B < 0, position_B, position_B + sum(self.conditions[:silo]))


def coordinate(
    roster: Roster, config: VTGANConfig, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
    """Train; returns the coordinator's part of the model (paper, Algorithm 1)."""
    config = private.settled(config)
    if state is None:
        state = yield from _begin(roster, config)
    sizes = Sizes(state["rows"], state["columns"], state["conditions"])
    tops = Tops(_tops_config(config, sizes), streams.child("weights"), device)
    if state["tops"] is not None:
        tops.restore(state["tops"])
    rounds, event = config.rounds(sizes.rows), state.get("event")
    for number in range(state["round"], rounds):
        if number % max(1, rounds // REPORTS) == 0:
            yield Progress("adversarial training", number, rounds)
            yield Checkpoint({**state, "round": number, "tops": tops.state(training=True)})
        if event is None:
            yield from _train_round(roster, config, sizes, tops, streams, number)
        else:
            yield from _train_privately(roster, config, tops, sizes.rows, from_state(Event, event), streams, number)
    yield Progress("adversarial training", rounds, rounds)
    return {**state, "round": rounds, "tops": tops.state(training=False)}


def _begin(roster: Roster, config: VTGANConfig) -> Conversation[dict[str, Any]]:
    """Line 1, the widths of all parts by P_r, and the secret from which the silos shuffle."""
    if config.dp.private:
        total, columns, event = yield from private.charge(roster, config)
        yield from _build(roster, config, columns)
        none, bill = [0] * len(columns), to_state(event)
        return {"round": 0, "rows": total, "columns": columns, "conditions": none, "tops": None, "event": bill}
    replies = yield roster.everyone(Encode(config))
    told = _said(replies, Encoded)
    if len({reply.rows for reply in told}) > 1:
        rows = {party: reply.rows for party, reply in zip(roster, told, strict=True)}
        raise ProtocolError(
            "Silos must hold the same rows in the same order", rows, "Align the silos by an identifier first."
        )
    columns = [reply.columns for reply in told]
    yield from _build(roster, config, columns)
    yield from agree(roster, ORDER)
    conditions = [reply.conditions for reply in told]
    return {"round": 0, "rows": told[0].rows, "columns": columns, "conditions": conditions, "tops": None}


def _build(roster: Roster, config: VTGANConfig, columns: list[int]) -> Conversation[None]:
    widths = zip(proportions(config.width, columns), proportions(config.generator_width, columns), strict=True)
    yield roster.each({party: Build(*width) for party, width in zip(roster, widths, strict=True)})


def _tops_config(config: VTGANConfig, sizes: Sizes) -> TopsConfig:
    return TopsConfig(
        noise=config.noise, conditions=sum(sizes.conditions),
        kinds=1 + config.kind(len(sizes.columns) - 1), orthonormal=config.bottom_critics == "orthonormal",
        features=proportions(config.width, sizes.columns), slices=proportions(config.generator_width, sizes.columns),
        critic=(config.width,) * config.critic_blocks[0],
        generator=(config.generator_width,) * config.generator_blocks[0],
        rate=config.rate, betas=config.betas, average=config.average, decay=config.decay, penalty=config.penalty,
        dropout=config.dropout,
    )  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """The conditions of one step: who contributes them, their positions (B,) among all, and their rows."""

    step: int
    contributor: str
    position_B: Tensor
    picks_B: Tensor
    sealed: bytes | None


def _train_round(
    roster: Roster, config: VTGANConfig, sizes: Sizes, tops: Tops, streams: Streams, number: int
) -> Conversation[None]:
    """Lines 3 to 22: ``critic_steps`` critic steps, then one of the generator."""
    draw = streams.child("round", number).torch(tops.device)
    draws, spread = config.critic_steps + 1, config.contributors == "spread"
    chosen = sizes.contributors(draws, spread, streams.child("contributors", number).torch())
    first = number * draws
    *critic, last = yield from _draw_conditions(roster, sizes, first, [roster.parties[i] for i in chosen.tolist()])
    for batch in critic:
        yield from _critic_step(roster, config, tops, batch, draw)
    yield from _generator_step(roster, config, tops, last, draw)


def _train_privately(
    roster: Roster, config: VTGANConfig, tops: Tops, rows: int, event: Event, streams: Streams, number: int
) -> Conversation[None]:
    """The same under differential privacy; the generator's step has no condition."""
    first = number * (config.critic_steps + 1)
    last = first + config.critic_steps
    for step in range(first, last):
        yield from private.critic_step(roster, config, tops, step, rows, event, streams)
    nothing = torch.zeros(0, dtype=torch.int64)
    batch = Batch(last, roster.parties[0], private.no_condition(config.batch), nothing, None)
    yield from _generator_step(roster, config, tops, batch, streams.child("round", number).torch(tops.device))


def _draw_conditions(roster: Roster, sizes: Sizes, first: int, chosen: list[str]) -> Conversation[list[Batch]]:
    """Conditions for all steps of a round, the last of which is the generator's, asked of each contributor at once."""
    last = first + len(chosen) - 1
    steps = {party: [first + i for i, name in enumerate(chosen) if name == party] for party in set(chosen)}
    asks = {
        party: DrawConditions(tuple(s for s in steps[party] if s < last), tuple(s for s in steps[party] if s == last))
        for party in roster
        if party in steps
    }
    replies = yield Exchange(asks)
    batches = {}
    for party, reply in zip(asks, _said(replies, Drawn), strict=True):
        for i, step in enumerate(steps[party]):
            position_B = sizes.among_all(roster.parties.index(party), reply.positions_TB[i])
            picks_B = reply.picks_TB[i].long() if step < last else position_B[:0]
            sealed = reply.sealed[i] if step < last and reply.sealed else None
            batches[step] = Batch(step, party, position_B, picks_B, sealed)
    return [batches[first + i] for i in range(len(chosen))]


def _critic_step(
    roster: Roster, config: VTGANConfig, tops: Tops, batch: Batch, draw: torch.Generator
) -> Conversation[None]:
    """Lines 5 to 16."""
    cv_BP = tops.conditional(batch.position_B)
    with torch.no_grad():
        slices = tops.split(tops.generate(cv_BP, draw, config.kind(roster.parties.index(batch.contributor))))
    asks: dict[str, Message] = {}
    for party, slice_BF in zip(roster, slices, strict=True):
        listed = None if party == batch.contributor else batch.sealed
        step = batch.step, slice_BF, config.told(batch.contributor, party)
        asks[party] = Criticise(*step) if listed is None else CriticiseListed(*step, listed)
    replies = yield roster.each(asks)
    features = dict(zip(roster, _said(replies, Features), strict=True))
    fakes = [features[party].fake_BW for party in roster]
    reals = [
        features[party].real_RW[slice(None) if party == batch.contributor else batch.picks_B]  # line 14
        for party in roster
    ]
    fake_BW, real_BW = tops.descend_critic(torch.cat(fakes, dim=1), torch.cat(reals, dim=1), cv_BP, draw)
    by_row = batch.picks_B.argsort(stable=True)
    updates: dict[str, Message] = {}
    for party, fake, real in zip(roster, tops.features(fake_BW), tops.features(real_BW), strict=True):
        if config.updates(batch.contributor, party):
            updates[party] = (
                DescendCritic(fake, real)
                if party == batch.contributor
                else DescendPicked(fake, real[by_row], batch.picks_B[by_row].int())
            )
    if updates:
        yield Exchange(updates, rides=True)


def _generator_step(
    roster: Roster, config: VTGANConfig, tops: Tops, batch: Batch, draw: torch.Generator
) -> Conversation[None]:
    """Lines 19 to 22. The contributor adds the cross-entropy of the conditions, which it alone can compute."""
    cv_BP = tops.conditional(batch.position_B)
    slice_BF = tops.generate(cv_BP, draw, config.kind(roster.parties.index(batch.contributor)))
    slices = zip(roster, tops.split(slice_BF.detach()), strict=True)
    asks = {party: Generate(batch.step, part, config.told(batch.contributor, party)) for party, part in slices}
    replies = yield roster.each(asks)
    fakes = [reply.fake_BW for reply in _said(replies, FakeFeatures)]
    fake_BW = tops.gradient_of_generator_loss(torch.cat(fakes, dim=1), cv_BP, draw)
    parts = zip(roster, tops.features(fake_BW), strict=True)
    replies = yield roster.each({party: DescendGenerator(part) for party, part in parts})
    found = [reply.slice_BF for reply in _said(replies, SliceGradients)]
    tops.descend_generator(slice_BF, torch.cat(found, dim=1))


def synthesise(
    roster: Roster, config: VTGANConfig, model: dict[str, Any], rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Make ``rows`` synthetic rows; each silo's columns, or none where they stay partitioned (section 3.1.7).

    The silos put them into an order that the coordinator does not know, so that it cannot tell which noise made which.
    """
    config = private.settled(config)
    draw = f"{'/'.join(streams.path)} of {_digest(model['tops'])}"
    yield from agree(roster, f"{PUBLICATION} {draw}", fresh=False)
    sizes = Sizes(model["rows"], model["columns"], model["conditions"])
    tops = Tops(_tops_config(config, sizes), streams, device)
    tops.restore(model["tops"])
    if config.dp.private:
        position_G, counts = private.no_condition(rows), [rows, *[0] * (len(roster) - 1)]
    else:
        position_G, counts = yield from _sample_conditions(roster, config, sizes, rows, draw, streams)
    noise = streams.child("noise").torch(device)
    made = [tops.sample(part, noise, config.kind(i)) for i, part in enumerate(position_G.split(counts))]
    slices = tops.split(torch.cat(made))
    share = config.synthesis == "shared"
    asks = {party: Synthesise(part, tuple(counts), draw, share) for party, part in zip(roster, slices, strict=True)}
    replies = yield roster.each(asks)
    return {party: reply.table for party, reply in replies.items() if isinstance(reply, SyntheticColumns)}


def _sample_conditions(
    roster: Roster, config: VTGANConfig, sizes: Sizes, rows: int, draw: str, streams: Streams
) -> Conversation[tuple[Tensor, list[int]]]:
    """Positions (G,) drawn as often as levels occur, from contributors by P_r, and how many each contributes."""
    chosen = sizes.contributors(rows, config.contributors == "spread", streams.child("contributors").torch())
    counts = torch.bincount(chosen, minlength=len(roster)).tolist()
    replies = yield Exchange(
        {party: SampleConditions(count, draw) for party, count in zip(roster, counts, strict=True) if count}
    )
    drawn = zip(replies, _said(replies, SampledConditions), strict=True)
    found = [sizes.among_all(roster.parties.index(party), reply.position_G) for party, reply in drawn]
    return torch.cat(found), counts


def _digest(tops: dict[str, Any]) -> str:
    """A name for a trained model, so that no two publish in the same order."""
    seen = hashlib.sha256()
    for tensor in tops["generator"]["network"].values():
        seen.update(tensor.cpu().numpy().tobytes())
    return seen.hexdigest()[:16]


def _said(replies: Replies, kind: type[M]) -> list[M]:
    """The replies in order, all of the kind that was asked for."""
    for party, reply in replies.items():
        if not isinstance(reply, kind):
            raise ProtocolError(
                f"Silo {party!r} answers with {kind.__name__}", type(reply).__name__, "Both must run the same version."
            )
    return list(replies.values())  # type: ignore[arg-type]
