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
lines 10 and 12, which rows are pushed         `Silo._real_features`
lines 19-22, a step of the generator           `_generator_step`, `Tops.generator_loss`
line 23, Shuffle                               `Silo._order`: not the table is shuffled but the numbers of its rows
section 3.1.7, publication                     `synthesise`, `Silo._synthesise`
=============================================  ==============================================================

Readings, and deviations, each an option:

* D^a_b G^c_d: ``critic_blocks`` = (a, b), ``generator_blocks`` = (c, d). With b = 0 a silo's bottom critic is one
  linear layer; G^t ends in a linear layer whose outputs are split among the silos, so that it learns where c = 0 too.
* P_r, the ratio of features, decides who contributes conditions and how widths are split. A silo without a categorical
  column has nothing to condition on and never contributes, unless no silo has one: then nothing is conditioned.
* An epoch is rows // batch rounds; a round is ``critic_steps`` critic steps and one generator step, as in CTGAN.
  Small tables get at least ``least_rounds`` (ours).
* Row numbers: by ``index_privacy`` = "full" the contributor tells them to the coordinator, in an order that it does
  not know, and the others push all their rows (paper). Otherwise they never reach the coordinator: the contributor
  seals for the other silos a list of rows to push, exactly the batch ("none", the paper's section 3.1.6) or
  ``decoys`` times as many ("decoys", ours).
* ``shuffle`` = "round" renumbers rows after every round (paper), "step" after every step (ours).
* **The paper's index privacy does not survive its own backward pass**: only picked rows have a gradient that is not
  zero, so a silo that is handed gradients learns which rows were picked. ``bottom_gradients`` = "all" is the paper's
  update of every bottom critic; "contributor" (ours) updates the contributor's alone, which knows the rows anyway.
* The paper's shuffle seed becomes a secret that the silos agree on (`privacy.agreement`) and renew every round.

Who learns what, besides synthetic columns:

* the coordinator: numbers of rows, columns and conditional levels; of each step who contributes, the drawn levels (not
  their names) and, with "full", numbers of their rows in a secret order; **features of real rows**, un-noised, of
  every silo; at sampling the frequencies of levels. Row numbers say nothing across rounds, but two draws of a level
  that few rows hold are likely the same rows. And features can be followed: rows with equal values have equal
  features, which change slowly, and whoever knows their levels learns to read levels off them.
* other silos: what the top generator makes of the drawn levels; with "full" and "contributor" nothing of which rows were
  picked; with "decoys" a list that holds them; with "none", or with "all", the rows themselves.

No formal guarantee protects anybody here.

Shapes: N rows, B rows of a batch, T steps of a round, W_i features of silo i, F_i its slice of G^t's outputs, G
generated rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from silosynth.algorithms.vtgan.messages import (
    ORDER,
    PUBLICATION,
    Build,
    Criticise,
    DescendCritic,
    DescendGenerator,
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
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress
from silosynth.core.errors import ProtocolError
from silosynth.core.roster import Roster
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.models.gan import proportions
from silosynth.privacy.agreement import agree

REPORTS = 200  # times that a run says how far it is, and can be resumed from


@dataclass(frozen=True)
class Sizes:
    """What silos have told of themselves, in roster order."""

    rows: int
    columns: list[int]
    conditions: list[int]

    @property
    def ratio(self) -> Tensor:
        """The chance (N silos,) of each silo to contribute: P_r, among those that have something to condition on."""
        columns, conditions = torch.tensor(self.columns), torch.tensor(self.conditions)
        able = columns * (conditions > 0)
        return (able if able.any() else columns).double()

    def start(self, silo: int) -> int:
        """Where the silo's levels begin in the conditional vector."""
        return sum(self.conditions[:silo])


def coordinate(
    roster: Roster, config: VTGANConfig, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
    """Train; returns the coordinator's part of the model (paper, Algorithm 1)."""
    if state is None:
        state = yield from _begin(roster, config)
    sizes = Sizes(state["rows"], state["columns"], state["conditions"])
    tops = Tops(_tops_config(config, sizes), streams.child("weights"), device)
    if state["tops"] is not None:
        tops.restore(state["tops"])
    rounds = max(config.epochs * max(1, sizes.rows // config.batch), config.least_rounds)
    for number in range(state["round"], rounds):
        if number % max(1, rounds // REPORTS) == 0:
            yield Progress("adversarial training", number, rounds)
            yield Checkpoint({**state, "round": number, "tops": tops.state(training=True)})
        yield from _train_round(roster, config, sizes, tops, streams, number)
    yield Progress("adversarial training", rounds, rounds)
    return {**state, "round": rounds, "tops": tops.state(training=False)}


def _begin(roster: Roster, config: VTGANConfig) -> Conversation[dict[str, Any]]:
    """Line 1, the widths of all parts by P_r, and the secret from which the silos shuffle."""
    replies = yield roster.everyone(Encode(config))
    told = [reply for party in roster if isinstance(reply := replies[party], Encoded)]
    if len({reply.rows for reply in told}) > 1:
        rows = {party: reply.rows for party, reply in zip(roster, told, strict=True)}
        raise ProtocolError(
            "Silos must hold the same rows in the same order", rows, "Align the silos by an identifier first."
        )
    columns = [reply.columns for reply in told]
    widths = zip(proportions(config.width, columns), proportions(config.generator_width, columns), strict=True)
    yield roster.each({party: Build(*width) for party, width in zip(roster, widths, strict=True)})
    yield from agree(roster, ORDER)
    conditions = [reply.conditions for reply in told]
    return {"round": 0, "rows": told[0].rows, "columns": columns, "conditions": conditions, "tops": None}


def _tops_config(config: VTGANConfig, sizes: Sizes) -> TopsConfig:
    return TopsConfig(
        noise=config.noise, conditions=sum(sizes.conditions),
        features=proportions(config.width, sizes.columns), slices=proportions(config.generator_width, sizes.columns),
        critic=(config.width,) * config.critic_blocks[0],
        generator=(config.generator_width,) * config.generator_blocks[0],
        rate=config.rate, betas=config.betas, decay=config.decay, penalty=config.penalty, dropout=config.dropout,
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
    first = number * (config.critic_steps + 1)
    chosen = torch.multinomial(
        sizes.ratio, config.critic_steps + 1, replacement=True, generator=streams.child("contributors", number).torch()
    )
    *critic, last = yield from _draw_conditions(roster, sizes, first, [roster.parties[i] for i in chosen.tolist()])
    for batch in critic:
        yield from _critic_step(roster, config, tops, batch, draw)
    yield from _generator_step(roster, tops, last, draw)


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
    for party, reply in replies.items():
        assert isinstance(reply, Drawn)
        start = sizes.start(roster.parties.index(party))
        for i, step in enumerate(steps[party]):
            position_B = reply.positions_TB[i].long()
            picks_B = reply.picks_TB[i].long() if step < last else position_B[:0]
            sealed = reply.sealed[i] if step < last and reply.sealed else None
            position_B = torch.where(position_B < 0, position_B, position_B + start)
            batches[step] = Batch(step, party, position_B, picks_B, sealed)
    return [batches[first + i] for i in range(len(chosen))]


def _critic_step(
    roster: Roster, config: VTGANConfig, tops: Tops, batch: Batch, draw: torch.Generator
) -> Conversation[None]:
    """Lines 5 to 16."""
    cv_BP = tops.conditional(batch.position_B)
    with torch.no_grad():
        slices = tops.split(tops.generate(cv_BP, draw))
    asks = {}
    for party, slice_BF in zip(roster, slices, strict=True):
        own = party == batch.contributor
        asks[party] = Criticise(batch.step, slice_BF, own, None if own else batch.sealed)
    replies = yield roster.each(asks)
    fakes, reals = [], []
    for party in roster:
        reply = replies[party]
        assert isinstance(reply, Features)
        fakes.append(reply.fake_BW)
        reals.append(reply.real_RW if party == batch.contributor else reply.real_RW[batch.picks_B])  # line 14
    fake_BW, real_BW = tops.descend_critic(torch.cat(fakes, dim=1), torch.cat(reals, dim=1), cv_BP, draw)
    updates = {}
    for party, fake, real in zip(roster, tops.features(fake_BW), tops.features(real_BW), strict=True):
        if party == batch.contributor:
            updates[party] = DescendCritic(fake, real, None)
        elif config.bottom_gradients == "all":
            updates[party] = DescendCritic(fake, real, batch.picks_B.int())
    yield Exchange(updates)


def _generator_step(roster: Roster, tops: Tops, batch: Batch, draw: torch.Generator) -> Conversation[None]:
    """Lines 19 to 22. The contributor adds the cross-entropy of the conditions, which it alone can compute."""
    cv_BP = tops.conditional(batch.position_B)
    slice_BF = tops.generate(cv_BP, draw)
    asks = zip(roster, tops.split(slice_BF.detach()), strict=True)
    replies = yield roster.each({party: Generate(batch.step, part, party == batch.contributor) for party, part in asks})
    fakes = [reply.fake_BW for party in roster if isinstance(reply := replies[party], FakeFeatures)]
    fake_BW = tops.gradient_of_generator_loss(torch.cat(fakes, dim=1), cv_BP, draw)
    parts = zip(roster, tops.features(fake_BW), strict=True)
    replies = yield roster.each({party: DescendGenerator(part) for party, part in parts})
    found = [reply.slice_BF for party in roster if isinstance(reply := replies[party], SliceGradients)]
    tops.descend_generator(slice_BF, torch.cat(found, dim=1))


def synthesise(
    roster: Roster, config: VTGANConfig, model: dict[str, Any], rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Make ``rows`` synthetic rows; each silo's columns, or none where they stay partitioned (section 3.1.7).

    The silos put them into an order that the coordinator does not know, so that it cannot tell which noise made which.
    """
    draw = "/".join(streams.path)
    yield from agree(roster, f"{PUBLICATION} {draw}", fresh=False)
    sizes = Sizes(model["rows"], model["columns"], model["conditions"])
    tops = Tops(_tops_config(config, sizes), streams, device)
    tops.restore(model["tops"])
    position_G = yield from _sample_conditions(roster, sizes, rows, streams)
    slices = tops.split(tops.sample(position_G, streams.child("noise").torch(device)))
    share = config.synthesis == "shared"
    asks = {party: Synthesise(part, draw, share) for party, part in zip(roster, slices, strict=True)}
    replies = yield roster.each(asks)
    return {party: reply.table for party, reply in replies.items() if isinstance(reply, SyntheticColumns)}


def _sample_conditions(roster: Roster, sizes: Sizes, rows: int, streams: Streams) -> Conversation[Tensor]:
    """Positions (G,) drawn as often as levels occur, from contributors by P_r."""
    chosen = torch.multinomial(sizes.ratio, rows, replacement=True, generator=streams.child("contributors").torch())
    counts = torch.bincount(chosen, minlength=len(roster)).tolist()
    asks = {
        party: SampleConditions(count, "/".join(streams.path))
        for party, count in zip(roster, counts, strict=True)
        if count
    }
    replies = yield Exchange(asks)
    parts = []
    for party, reply in replies.items():
        assert isinstance(reply, SampledConditions)
        start = sizes.start(roster.parties.index(party))
        position_G = reply.position_G.long()
        parts.append(torch.where(position_G < 0, position_G, position_G + start))
    return torch.cat(parts)
