"""VT-GAN: a conditional tabular GAN split between a coordinator and N silos (Zhao, Wu, van Moorsel, Chen).

Columns of the same rows are spread over silos. Generator and critic are split: top parts run at the coordinator, each
silo has bottom parts for its own columns. Activations and gradients cross the split in every step.

=============================================  ==============================================================
paper, Algorithm 1                             here
=============================================  ==============================================================
line 1, Encode                                 `_begin`, `VTGANSilo._encode`
lines 2-24, the loop over rounds               `coordinate`, `_train_round`
lines 4 and 18, CVGeneration                   `_draw_conditions`, `VTGANSilo._draw_conditions`
lines 5-16, a step of the critic               `_critic_step`, `VTGANSilo._push`, `Tops.critic_loss`
lines 10 and 12, which rows are pushed         `VTGANSilo._rows_to_push`, `RowNumbers`
lines 19-22, a step of the generator           `_generator_step`, `Tops.generator_loss`
line 23, Shuffle                               `RowNumbers.order`: not rows are shuffled but their numbers
section 3.1.7, publication                     `synthesise`, `VTGANSilo._synthesise`
=============================================  ==============================================================

Readings, and deviations, each an option:

* D^a_b G^c_d: ``critic_blocks`` = (a, b), ``generator_blocks`` = (c, d). With b = 0 a silo's bottom critic is one
  linear layer; G^t ends in a linear layer whose outputs are split among the silos, so that it learns where c = 0 too.
* P_r, the ratio of features, decides who contributes conditions and how widths are split. A silo without a
  categorical column contributes rows drawn uniformly, under no condition: a conditional vector of zeros.
* ``contributors``: those of a round are drawn by P_r, "independent" of each other, or "spread" evenly (ours).
* ``bottom_critics`` = "orthonormal" (ours): silos keep the matrices of their bottom critics at orthonormal rows or
  columns, so that no gradient in rows is longer than the one in features that it comes from. Where b = 0 and features
  are no wider than encoded rows, they are equally long, and the penalty is one on rows.
* ``average`` (ours): rows are made with a moving average of the generators' weights. docs/decisions/0013.
* ``statistics`` = "contributor" (ours): batches of one contributor have conditions alike, and running statistics of
  batch normalisation of their own. docs/decisions/0013.
* An epoch is rows // batch rounds; a round is ``critic_steps`` critic steps and one generator step, as in CTGAN.
  Small tables get at least ``least_rounds`` (ours).
* Row numbers: by ``index_privacy`` = "full" the contributor sends them to the coordinator, in an order that it does
  not know, and the others push all their rows (paper). Otherwise they never reach the coordinator: the contributor
  seals for the other silos a list of rows to push, exactly the batch ("none", the paper's section 3.1.6) or
  ``decoys`` times as many ("decoys", ours).
* ``shuffle`` = "round" renumbers rows after every round (paper), "step" after every step (ours).
* **The paper's index privacy does not survive its own backward pass**: only picked rows have a non-zero gradient, so a
  silo that receives gradients learns which rows were picked. ``bottom_gradients`` = "all" is the paper's update of
  every bottom critic; "contributor" (ours) updates the contributor's alone, which knows the rows anyway; with "none"
  (ours, not with ``dp``) they stay at their first matrices: gradients also reveal others' columns. Features are then
  one fixed linear map of encoded rows, which keeps distances where it is no narrower than these.
* The paper's shuffle seed becomes a secret that the silos agree on for each training (`privacy.agreement`), from which
  the order of each round or step is derived.

Who learns what, besides synthetic columns:

* the coordinator: numbers of rows, columns and conditional levels; of each step who contributes, the drawn levels (not
  their names) and, with "full", numbers of their rows in a secret order; **features of real rows**, un-noised, of
  every silo; at sampling the frequencies of levels. Row numbers reveal nothing across rounds, but two draws of a level
  that few rows hold are likely the same rows. And features can be followed: rows with equal values have equal
  features, which change slowly or not at all, and whoever knows their levels learns to read levels off them; whoever
  knows the matrices, or enough rows to solve for them, computes rows from features that are no narrower.
* other silos: who contributes to a step (where statistics are "all", only whether they do so themselves), and what the
  top generator makes of the drawn levels; unless ``bottom_gradients`` are "none", gradients in features of the rows
  that they contribute, or of all picked ones, off which others' levels can be read to a part; of which rows were picked
  nothing with "full" (unless gradients go to "all"), a list that holds them with "decoys", and all with "none".

Without ``dp`` (`private`), no formal guarantee protects anybody here.

Shapes: N rows, B rows of a batch, R pushed rows, T steps of a round, W_i features of silo i, F_i its slice of G^t's
outputs, G generated rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from silosynth.algorithms.vtgan import private
from silosynth.algorithms.vtgan.networks import SiloSizes, Tops
from silosynth.algorithms.vtgan.options import VTGANConfig
from silosynth.core import conversation
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress, Roster, State, expect
from silosynth.core.messages import Done, Message, Release, Rows, Size, from_state, to_state
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.models.gan import proportions
from silosynth.privacy import accounting, agreement
from silosynth.privacy.events import Event

ORDER = "vtgan: order of rows"  # purpose of the secret order that row numbers refer to
PUBLICATION = "vtgan: publication"  # and of the order in which synthetic rows are published
REPORTS = 200  # times that a training reports progress, and can be resumed from


# Messages, in talking order.


class EncodeRows(Message, common=True):
    """Fit your encoders and encode your rows."""


class Encoded(Message, release=Release.COUNTS):
    """Numbers of my rows, columns, and levels that conditions can name."""

    rows: int
    columns: int
    conditions: int


class EncodedPrivately(accounting.EncodersLearnt):
    """My noised row count, and number of columns."""

    columns: int


class BuildBottoms(Message):
    """Make your bottom parts: blocks and features of the critic are ``width`` wide, the generator's ``slice`` wide."""

    width: Size[int]
    slice: Size[int]


class DrawConditions(Message):
    """Contribute conditions, with rows that fulfil them, to these critic steps, and to these generator steps."""

    critic: tuple[int, ...]
    generator: tuple[int, ...]


class DrawnConditions(Message, release=Release.CONDITIONS):
    """Positions (T, B) of the drawn levels, critic steps first, and where these steps' rows are in what is pushed.

    ``picks_CB`` are numbers of rows in the silos' secret order, or places in the list that is sealed for the others.
    """

    positions_TB: Tensor
    picks_CB: Tensor
    sealed: tuple[bytes, ...]


class PushRows(Message):
    """Make rows from this slice (B, F_i), and send features of these and of real rows: the batch's, or all.

    The contributor knows the batch; the others push all their rows. For its name see `VTGANConfig.shown`.
    """

    step: int
    slice_BF: Tensor
    contributor: str


class PushListed(Message, release=Release.PICKS):
    """The same; the real rows are those of the list that the contributor has sealed for the other silos."""

    step: int
    slice_BF: Tensor
    contributor: str
    sealed: bytes


class PushSampled(Message):
    """With differential privacy: the same; the real rows are those that the silos' secret samples."""

    step: int
    slice_BF: Tensor


class PushedFeatures(Message, release=Release.ROWS):
    """Features of made rows (B, W_i), and of real rows (R, W_i)."""

    fake_BW: Tensor
    real_RW: Tensor


class DescendBottomCritic(Message, release=Release.GRADIENTS):
    """To the contributor: gradients (B, W_i) in the features of the step. Update your bottom critic."""

    grad_fake_BW: Tensor
    grad_real_BW: Tensor


class DescendPicked(Message, release=Release.PICKED_GRADIENTS):
    """To the others: the same. ``picks_B`` are the pushed rows that these gradients belong to; the rest's are zero.

    They are sorted by row, so as not to reveal which row goes with which condition.
    """

    grad_fake_BW: Tensor
    grad_real_BW: Tensor
    picks_B: Tensor


class DescendPrivately(Message, release=Release.GRADIENTS):
    """Each example's gradients (R, W_i) in features: of the made row ``pairs_R`` that it was judged beside; its own."""

    grad_fake_RW: Tensor
    grad_real_RW: Tensor
    pairs_R: Tensor


class GenerateRows(Message):
    """Make rows from this slice (B, F_i), and send their features."""

    step: int
    slice_BF: Tensor
    contributor: str


class FakeFeatures(Message, release=Release.MADE):
    """Features (B, W_i) of made rows."""

    fake_BW: Tensor


class DescendBottomGenerator(Message):
    """Gradient (B, W_i) in the features of the made rows: update your bottom generator."""

    grad_fake_BW: Tensor


class SliceGradients(Message, release=Release.MADE):
    """Gradient (B, F_i) in the slice."""

    grad_slice_BF: Tensor


class SampleConditions(Message):
    """Draw ``rows`` conditions as often as their levels occur. ``draw`` names the random stream."""

    rows: Rows[int]
    draw: str


class SampledConditions(Message, release=Release.CONDITIONS):
    """Positions (G,) of the drawn levels."""

    position_G: Tensor


class VTGANSynthesise(Message):
    """Make rows from this slice (G, F_i), put them in the silos' secret order.

    ``contributed`` is how many of them each silo has drawn conditions for, one silo after the other in roster order.
    """

    slice_GF: Tensor
    contributed: tuple[int, ...]
    draw: str


# Training.


def coordinate(
    roster: Roster, config: VTGANConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Train; returns the coordinator's part of the model (paper, Algorithm 1)."""
    config = config.settled
    if state is None:
        state = yield from _begin(roster, config)
    sizes = SiloSizes(state["rows"], state["columns"], state["conditions"])
    tops = Tops(config, sizes, streams.child("weights"), device)
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


def _begin(roster: Roster, config: VTGANConfig) -> Conversation[State]:
    """Line 1, the widths of all parts by P_r, and the secret from which the silos shuffle, or sample."""
    replies = yield roster.everyone(EncodeRows())
    if config.dp.private:
        learnt = expect(replies, EncodedPrivately)
        columns = [reply.columns for reply in learnt]
        charged = yield from accounting.agree_and_charge(roster, ORDER, learnt, partial(private.solve, config))
        rows = charged.rows
        yield from _build(roster, config, columns)
        more: State = {"conditions": [0] * len(roster), "event": to_state(charged.events[0])}
    else:
        encoded = expect(replies, Encoded)
        columns, rows = [reply.columns for reply in encoded], encoded[0].rows
        conversation.check_same_rows(roster, [reply.rows for reply in encoded])
        yield from _build(roster, config, columns)
        yield from agreement.agree(roster, ORDER)
        more = {"conditions": [reply.conditions for reply in encoded]}
    return {"round": 0, "rows": rows, "columns": columns, "tops": None, **more}


def _build(roster: Roster, config: VTGANConfig, columns: list[int]) -> Conversation[None]:
    widths = zip(proportions(config.width, columns), proportions(config.generator_width, columns), strict=True)
    asks = {silo: BuildBottoms(*width) for silo, width in zip(roster, widths, strict=True)}
    expect((yield roster.each(asks)), Done)


@dataclass(frozen=True)
class Batch:
    """The conditions of one step: who contributes them, their positions (B,) among all, and their rows."""

    step: int
    contributor: str
    position_B: Tensor
    picks_B: Tensor
    sealed: bytes | None


def _train_round(
    roster: Roster, config: VTGANConfig, sizes: SiloSizes, tops: Tops, streams: Streams, number: int
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
    """The same with differential privacy; the generator's step has no condition."""
    first = number * (config.critic_steps + 1)
    last = first + config.critic_steps
    for step in range(first, last):
        yield from _private_critic_step(roster, config, tops, step, rows, event, streams)
    nothing = torch.zeros(0, dtype=torch.int64)
    batch = Batch(last, roster.parties[0], private.no_condition(config.batch), nothing, None)
    yield from _generator_step(roster, config, tops, batch, streams.child("round", number).torch(tops.device))


def _draw_conditions(roster: Roster, sizes: SiloSizes, first: int, chosen: list[str]) -> Conversation[list[Batch]]:
    """Conditions for all steps of a round, the last of which is the generator's; each contributor is asked once."""
    last = first + len(chosen) - 1
    steps = {silo: [first + i for i, name in enumerate(chosen) if name == silo] for silo in set(chosen)}
    asks = {
        silo: DrawConditions(tuple(s for s in steps[silo] if s < last), tuple(s for s in steps[silo] if s == last))
        for silo in roster
        if silo in steps
    }
    replies = yield Exchange(asks)
    batches = {}
    for silo, reply in zip(asks, expect(replies, DrawnConditions), strict=True):
        for i, step in enumerate(steps[silo]):
            position_B = sizes.among_all(roster.parties.index(silo), reply.positions_TB[i])
            picks_B = reply.picks_CB[i].long() if step < last else position_B[:0]
            sealed = reply.sealed[i] if step < last and reply.sealed else None
            batches[step] = Batch(step, silo, position_B, picks_B, sealed)
    return [batches[first + i] for i in range(len(chosen))]


def _critic_step(
    roster: Roster, config: VTGANConfig, tops: Tops, batch: Batch, draw: torch.Generator
) -> Conversation[None]:
    """Lines 5 to 16."""
    cv_BP = tops.conditional(batch.position_B)
    with torch.no_grad():
        slice_BF = tops.generate(cv_BP, draw, config.kind(roster.parties.index(batch.contributor)))
    asks: dict[str, Message] = {}
    for silo, part in zip(roster, tops.split_slices(slice_BF), strict=True):
        listed = None if silo == batch.contributor else batch.sealed
        step = batch.step, part, config.shown(batch.contributor, silo)
        asks[silo] = PushRows(*step) if listed is None else PushListed(*step, listed)
    replies = yield roster.each(asks)
    pushed = dict(zip(roster, expect(replies, PushedFeatures), strict=True))
    fake_BW = torch.cat([pushed[silo].fake_BW for silo in roster], dim=1)
    picks = {silo: slice(None) if silo == batch.contributor else batch.picks_B for silo in roster}  # line 14
    real_BW = torch.cat([pushed[silo].real_RW[picks[silo]] for silo in roster], dim=1)
    gradients = [tops.split_features(part) for part in tops.descend_critic(fake_BW, real_BW, cv_BP, draw)]
    by_row = batch.picks_B.argsort(stable=True)
    updates: dict[str, Message] = {}
    for silo, grad_fake, grad_real in zip(roster, *gradients, strict=True):
        if silo == batch.contributor:
            updates[silo] = DescendBottomCritic(grad_fake, grad_real)
        else:
            updates[silo] = DescendPicked(grad_fake, grad_real[by_row], batch.picks_B[by_row].int())
    updates = {silo: update for silo, update in updates.items() if config.updates(batch.contributor, silo)}
    if updates:
        yield Exchange(updates, rides=True)


def _private_critic_step(
    roster: Roster, config: VTGANConfig, tops: Tops, step: int, rows: int, event: Event, streams: Streams
) -> Conversation[None]:
    """The same with differential privacy: see `private`."""
    draw = streams.child("step", step).torch(tops.device)
    with torch.no_grad():
        slice_BF = tops.generate(tops.conditional(private.no_condition(config.batch)), draw, 0)
    parts = zip(roster, tops.split_slices(slice_BF), strict=True)
    pushed = expect((yield roster.each({silo: PushSampled(step, part) for silo, part in parts})), PushedFeatures)
    fake_BW, real_RW = (torch.cat(part, dim=1) for part in zip(*((p.fake_BW, p.real_RW) for p in pushed), strict=True))
    *gradients, pairs_R = private.descend_top(tops, step, fake_BW, real_RW, rows, event, streams)
    ends = zip(roster, *map(tops.split_features, gradients), strict=True)
    updates = {silo: DescendPrivately(fake, real, pairs_R) for silo, fake, real in ends}
    yield Exchange(updates, rides=True)


def _generator_step(
    roster: Roster, config: VTGANConfig, tops: Tops, batch: Batch, draw: torch.Generator
) -> Conversation[None]:
    """Lines 19 to 22. The contributor adds the cross-entropy of the conditions, which it alone can compute."""
    cv_BP = tops.conditional(batch.position_B)
    slice_BF = tops.generate(cv_BP, draw, config.kind(roster.parties.index(batch.contributor)))
    parts = zip(roster, tops.split_slices(slice_BF.detach()), strict=True)
    asks = {silo: GenerateRows(batch.step, part, config.shown(batch.contributor, silo)) for silo, part in parts}
    fakes = [reply.fake_BW for reply in expect((yield roster.each(asks)), FakeFeatures)]
    grad_fake_BW = tops.gradient_of_generator_loss(torch.cat(fakes, dim=1), cv_BP, draw)
    parts = zip(roster, tops.split_features(grad_fake_BW), strict=True)
    replies = yield roster.each({silo: DescendBottomGenerator(part) for silo, part in parts})
    grad_slices = [reply.grad_slice_BF for reply in expect(replies, SliceGradients)]
    tops.descend_generator(slice_BF, torch.cat(grad_slices, dim=1))


# Publication.


def synthesise(
    roster: Roster, config: VTGANConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Make ``rows`` synthetic rows; each silo's columns, or none where they stay partitioned (section 3.1.7).

    The silos put them into an order that the coordinator does not know, so that it cannot link noise to rows.
    """
    config = config.settled
    draw = f"{'/'.join(streams.path)} of {_digest(model['tops'])}"
    yield from agreement.agree(roster, f"{PUBLICATION} {draw}", fresh=False)
    sizes = SiloSizes(model["rows"], model["columns"], model["conditions"])
    tops = Tops(config, sizes, streams, device)
    tops.restore(model["tops"])
    if config.dp.private:
        position_G, counts = private.no_condition(rows), [rows, *[0] * (len(roster) - 1)]
    else:
        position_G, counts = yield from _sample_conditions(roster, config, sizes, rows, draw, streams)
    noise = streams.child("noise").torch(device)
    made = [tops.sample(part, noise, config.kind(i)) for i, part in enumerate(position_G.split(counts))]
    parts = zip(roster, tops.split_slices(torch.cat(made)), strict=True)
    asks = {silo: VTGANSynthesise(part, tuple(counts), draw) for silo, part in parts}
    return conversation.shared_columns((yield roster.each(asks)))


def _sample_conditions(
    roster: Roster, config: VTGANConfig, sizes: SiloSizes, rows: int, draw: str, streams: Streams
) -> Conversation[tuple[Tensor, list[int]]]:
    """Positions (G,) drawn as often as levels occur, from contributors by P_r, and how many each contributes."""
    chosen = sizes.contributors(rows, config.contributors == "spread", streams.child("contributors").torch())
    counts = torch.bincount(chosen, minlength=len(roster)).tolist()
    asks = {silo: SampleConditions(count, draw) for silo, count in zip(roster, counts, strict=True) if count}
    drawn = zip(asks, expect((yield Exchange(asks)), SampledConditions), strict=True)
    return torch.cat([sizes.among_all(roster.parties.index(silo), reply.position_G) for silo, reply in drawn]), counts


def _digest(tops: State) -> str:
    """A name for a trained model, so that no two publish in the same order."""
    digest = hashlib.sha256()
    for tensor in tops["generator"]["network"].values():
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
