"""GDTS: one generator for silos that hold different rows of the same columns (Zhao, Birke, Chen; CLOUD 2023).

========================================  ====================================================================
paper                                     here
========================================  ====================================================================
section II-B, step 1                      `_summaries`, `GDTSSilo._summarise`, `private`
section II-B, step 2                      `_begin`, `encoders.federated.merge`
section II-B, step 3                      `_begin`, `GDTSSilo._take_encoders`
section II-C, figure 4: weights           `networks.silo_weights`
section II-A-2, GDTS_FL                   `_train_fl`, `_round`, `GDTSSilo._train_part`
section II-A-1, GDTS_MD; swaps            `_train_md`, `_md_step`, `GDTSSilo._teach_critic`; `_swap`
========================================  ====================================================================

Readings, and deviations, each an option:

* Counts get discrete Laplace noise: see `privacy.mechanisms`. Names of categories, which the paper releases as they
  are, are released by ``delta`` only where enough rows hold them.
* The paper adds no noise to summaries of numbers: ``numbers`` = "noised" is ours.
* Rounds: the paper averages after every epoch; ``rounds`` divides the epochs otherwise. Weights and batch
  normalisation's running statistics are averaged; each silo keeps the moments of its own Adam, and starts each round
  from the average.
* A round asks ``participation`` of the silos and goes on without those that get lost, or are away by lot
  (``absence``); the weights of those that reply are scaled to sum 1. Whoever comes back starts from the average like
  all others. With ``secure`` all silos of the round then make their models anew, without Adam's moments.
  Before training, and in mode "md", every silo is needed.
* ``weights`` = "paper" are figure 4's, "sharp" ours. The average models a mixture of the silos' rows in these
  proportions; conditions are drawn by the frequencies of that mixture.
* ``generator`` = "diffusion" is ours: SiloFuse's autoencoder and flow, averaged round by round.
* The coordinator holds the generator and samples alone, under conditions drawn by all silos' (noised) frequencies.
* Mode "md" follows MD-GAN (Hardy et al. 2019). In a step the coordinator makes rows for each silo, under conditions
  drawn by that silo's noised counts; each silo teaches its critic on some of them and returns the gradient of the
  generator's loss in others; the generator takes one step along all of these. Every ``swap_every`` epochs critics
  change places, sealed, so that none learns one silo by heart.

Who learns what:

* the coordinator: columns and kinds; noised counts of categories and rows; **un-noised summaries of numbers** (unless
  "noised"); every silo's **un-noised weights** in every round (mode "fl"), or, with ``secure``, only their sum; the
  gradients that a silo's critic returns for synthetic rows (mode "md").
* other silos: encoders merged from all, and the total row count; the average; in mode "md" synthetic rows and each
  other's critics, one after the other.

With ``secure`` a sum opens only if all its silos were told the same since their models began (`Heard`): columns, and
every part's weights. A silo checks its weight in the sum where ``weights`` is "rows", "equal" or "paper". Where it is
"sharp" the coordinator still chooses: where weights differ greatly, a sum is nearly one silo's model.

Noise covers what the ledger lists with its events, and nothing else: no epsilon holds for the model.

Shapes: P silos, W numbers of a model, B rows of a batch, E critic steps, C columns with levels, S scores, K levels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silosynth.algorithms.gdts.networks import LocalModel, make_model, put_weights, silo_weights, weights_of
from silosynth.algorithms.gdts.options import GDTSConfig
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress, Roster, State, expect
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.lost import present
from silosynth.core.messages import Done, Message, Release, Rows
from silosynth.core.schema import Schema, Table, agreed
from silosynth.core.streams import Streams
from silosynth.encoders.column import Encoder, decode_table, restored, stored
from silosynth.encoders.federated import Summary, merge
from silosynth.models.ctgan import ConditionalGAN
from silosynth.models.encoded import encoded_rows, no_codes
from silosynth.models.gan import ConditionLaw
from silosynth.models.training import RunningMean
from silosynth.privacy.aggregation import LEAST, TOGETHER, secure_sum
from silosynth.privacy.events import Event
from silosynth.privacy.masker import told
from silosynth.privacy.sealed import Envelope

REPORTS = 200  # times that mode "md" reports progress, and can be resumed from
_RESUME = "Resume from the last checkpoint; if silos are slow, with a longer time limit."


# Messages, in talking order.


class Describe(Message, common=True):
    """Coordinator: describe your columns."""


class Described(Message, release=Release.STATISTICS):
    """Silo: my columns and their kinds, as declared or inferred from the rows."""

    schema: Schema


class Summarise(Message, common=True):
    """Coordinator: summarise your categories; asked again, your numbers. Kinds are as all silos agreed."""

    schema: Schema


class NoisedSummaries(Message, release=Release.NOISED):
    """Silo: my columns, and with the categories my row count; all with noise."""

    columns: tuple[Summary, ...]
    rows: int
    events: tuple[Event, ...]


class ExactSummaries(Message, release=Release.STATISTICS):
    """Silo: the same without noise."""

    columns: tuple[Summary, ...]
    rows: int


class TakeEncoders(Message, release=Release.MERGED, common=True):
    """Coordinator: encode your rows with these, and make a model for a federation of ``rows`` rows."""

    encoders: tuple[Encoder, ...]
    rows: Rows[int]


class AskBack(Message):
    """Coordinator: part ``part`` begins, and you have missed an earlier one. Are you there?"""

    part: int


class TrainPart(Message, release=Release.AVERAGE):
    """Coordinator: train part ``part`` from these weights (W,), which include those that earlier parts trained.

    With ``anew``, keep nothing else of earlier parts.
    """

    part: int
    weights_W: Tensor
    anew: bool = False


class SendWeights(Message):
    """Coordinator: send your weights after part ``part``; with secure aggregation times ``weight``, and masked."""

    part: int
    weight: float


class LocalWeights(Message, release=Release.WEIGHTS):
    """Silo: my weights (W,)."""

    weights_W: Tensor


class TeachCritic(Message, release=Release.SYNTHETIC):
    """Coordinator: teach your critic on synthetic rows, then return the generator's gradient in others.

    Attributes:
        step: counts the generator's steps.
        fake_EBW, condition_EB: synthetic rows (E, B, K + S) and their conditions (E, B), for the critic.
        fake_BW, condition_B: those in which the generator's gradient is asked for.
    """

    step: int
    fake_EBW: Tensor
    condition_EB: Tensor
    fake_BW: Tensor
    condition_B: Tensor


class GeneratorGradient(Message, release=Release.GRADIENTS):
    """Silo: the gradient (B, K + S) of the generator's loss in its rows."""

    grad_fake_BW: Tensor


class SealCritic(Message):
    """Coordinator: seal your critic for another silo."""

    swap: int
    receiver: str


class SealedCritic(Message, release=Release.SEALED):
    """Silo: my critic."""

    envelope: Envelope


class TakeCritic(Message, release=Release.SEALED):
    """Coordinator: go on with this critic in place of yours."""

    swap: int
    envelope: Envelope


# The coordinator.


@dataclass(frozen=True)
class MergedColumns:
    """What the coordinator knows before training, in roster order.

    Attributes:
        encoders: of all columns, for all silos.
        counts_PK: (P, K) int64, each silo's rows on each level, of columns with several levels.
        rows: (P,) row counts.
        weights: (P,) weights of silos in averages, sum 1.
    """

    encoders: tuple[Encoder, ...]
    counts_PK: Tensor
    rows: list[int]
    weights: list[float]

    def model(self, config: GDTSConfig, streams: Streams, device: torch.device) -> LocalModel | None:
        """The model that silos train, without rows, and with the law of all silos' levels."""
        rows = encoded_rows(self.encoders, no_codes(self.encoders), device)
        return make_model(config, rows, sum(self.rows), streams.child("model"), device, self.counts())

    def counts(self) -> Tensor:
        """How often each level (K,) occurs among all rows, where a silo counts as much as in averages of models."""
        weight_P, rows_P = torch.tensor([self.weights, [max(1, rows) for rows in self.rows]], dtype=torch.float64)
        counts_K: Tensor = (weight_P * rows_P.sum() / rows_P) @ self.counts_PK.double()
        return counts_K.ceil().long()  # no level is forgotten

    def encoded(self) -> TakeEncoders:
        """What all silos are told of columns."""
        return TakeEncoders(self.encoders, sum(self.rows))

    def state(self) -> State:
        """In storable form."""
        encoders = stored(self.encoders)
        return {"encoders": encoders, "counts": self.counts_PK, "rows": self.rows, "weights": self.weights}

    @classmethod
    def restored(cls, state: State) -> MergedColumns:
        """What `state` stored."""
        return cls(restored(state["encoders"]), state["counts"], state["rows"], state["weights"])


@dataclass
class Heard:
    """What silos of secure sums were told that their models depend on; masks hang on it.

    Attributes:
        start, told: hashes of what they were told before training, and by now.
        silos: those that were told all of it. A sum with another one begins anew, for what a model keeps of parts that
            others missed, such as Adam's moments, would tell it from theirs.
    """

    start: bytes
    told: bytes
    silos: tuple[str, ...]

    def add(self, ask: TrainPart, silos: Iterable[str]) -> None:
        """These silos trained a part."""
        self.told, self.silos = heard(self.start, self.told, ask), tuple(silos)


def heard(start: bytes, before: bytes, ask: TrainPart) -> bytes:
    """A hash of what a silo was told, with this ask."""
    return told(start if ask.anew else before, ask)


def coordinate(
    roster: Roster, config: GDTSConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Train; returns the coordinator's part of the model, which is all that sampling needs."""
    if config.secure and len(roster) < LEAST:
        raise ConfigError(
            f"Secure aggregation hides silos among at least {LEAST}", len(roster), "Set secure = false, or find more."
        )
    if state is None:
        merged = yield from _begin(roster, config, streams)
        start = told(merged.encoded())
        state = {**merged.state(), "round": 0, "model": None, "heard": (start, start, roster.parties)}
    merged = MergedColumns.restored(state)
    model = merged.model(config, streams, device)
    if model is not None:
        if state["model"] is not None:
            model.restore(state["model"])
        train = _train_fl if config.mode == "fl" else _train_md
        yield from train(roster, config, merged, model, streams, state)
        state = {**state, "model": model.state(training=False)}
    return {name: value for name, value in state.items() if name not in ("round", "heard")}


def synthesise(
    roster: Roster, config: GDTSConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Make ``rows`` synthetic rows. The coordinator needs no silo for that."""
    yield from ()
    merged = MergedColumns.restored(model)
    generator = merged.model(config, streams, device)
    levels, scores = no_codes(merged.encoders, rows)
    if generator is not None:
        generator.restore(model["model"])
        levels, scores = generator.sample(rows, streams.child("rows"))
    return {"coordinator": decode_table(levels, scores, merged.encoders, streams.child("columns").numpy())}


# Before training: encoders and weights (section II-B, II-C).


def _begin(roster: Roster, config: GDTSConfig, streams: Streams) -> Conversation[MergedColumns]:
    replies = expect((yield roster.everyone(Describe())), Described)
    schema = agreed({silo: reply.schema for silo, reply in zip(roster, replies, strict=True)})
    summaries, rows = yield from _summaries(roster, schema)
    rng = streams.child("encoders").numpy()
    noise = math.sqrt(2) / config.epsilon if config.delta else 0.0
    columns = [merge(summaries[name], rows, schema[name], config.model.encoders, rng, noise) for name in schema.names]
    rule = config.weights if config.mode == "fl" else "equal"  # in mode "md" all silos teach the generator alike
    weights = silo_weights(rule, columns, rows)
    encoders = tuple(column.encoder for column in columns)
    counts = [column.counts for column in columns if column.encoder.width > 1]
    counts_PK = torch.cat([torch.zeros(len(rows), 0, dtype=torch.int64), *counts], 1)
    merged = MergedColumns(encoders, counts_PK, rows, weights)
    expect((yield roster.everyone(merged.encoded())), Done)
    return merged


def _summaries(roster: Roster, schema: Schema) -> Conversation[tuple[dict[str, list[Summary]], list[int]]]:
    """Silos' summaries of each column, and their row counts, in roster order (step 1)."""
    summaries: dict[str, list[Summary]] = {}
    rows: list[int] = []
    for part in ("categories", "numbers"):
        if len(summaries) == len(schema.names):
            break  # there are no numbers
        replies = yield roster.everyone(Summarise(schema))
        for reply in expect(replies, NoisedSummaries, ExactSummaries):
            for summary in reply.columns:
                summaries.setdefault(summary.encoder.name, []).append(summary)
            rows += [reply.rows] if part == "categories" else []
    missing = [name for name in schema.names if len(summaries.get(name, ())) != len(roster)]
    if missing or set(summaries) != set(schema.names):
        raise ProtocolError(
            "Every silo summarises every column, once", missing or sorted(summaries), "Compare versions."
        )
    return summaries, rows


# Mode "fl" (section II-A-2).


def _train_fl(
    roster: Roster, config: GDTSConfig, merged: MergedColumns, model: LocalModel, streams: Streams, state: State
) -> Conversation[None]:
    """Silos train, the coordinator averages, ``rounds`` times."""
    noted = Heard(*state["heard"])
    for number in range(state["round"], config.rounds):
        yield Progress("federated rounds", number, config.rounds)
        now = {"round": number, "model": model.state(training=True), "heard": astuple(noted)}
        yield Checkpoint({**state, **now})
        active = _active(roster, config, streams.child("round", number).numpy())
        yield from _round(active, dict(zip(roster, merged.weights, strict=True)), model, number, config, noted)
    yield Progress("federated rounds", config.rounds, config.rounds)


def _active(roster: Roster, config: GDTSConfig, rng: np.random.Generator) -> list[str]:
    """The silos of a round: ``participation`` of them are asked, of which each is away by ``absence``.

    At least one is there, under secure aggregation as many as it needs.
    """
    least = LEAST if config.secure else 1
    asked = rng.permutation(len(roster))[: max(least, round(config.participation * len(roster)))]
    return [roster.parties[i] for i in sorted(present(asked.tolist(), config.absence, rng, least))]


def _round(
    active: Sequence[str], weight: dict[str, float], model: LocalModel, number: int, config: GDTSConfig, noted: Heard
) -> Conversation[None]:
    """One round: all train, then send their weights, each alone or in a sum. Silos that get lost are left out."""
    networks, anew = model.networks(number, config.rounds), False
    if config.secure:
        active, anew = yield from _present_again(active, noted.silos, number)
    width, ask = len(weights_of(networks)), TrainPart(number, weights_of(model.given(number, config.rounds)), anew)
    trained = yield Exchange(dict.fromkeys(active, ask), missing=True)
    expect(trained, Done)
    asks = {silo: SendWeights(number, weight[silo]) for silo in trained}
    if config.secure:
        noted.add(ask, trained)
        mean_W = (yield from secure_sum(asks, number, width, told=noted.told)).mean()
    else:
        mean_W = yield from averaged(asks, width)
    put_weights(networks, mean_W.float())


def _present_again(
    active: Sequence[str], heard_all: Sequence[str], number: int
) -> Conversation[tuple[list[str], bool]]:
    """The silos of a round without those that missed an earlier one and are still away, and whether some are back."""
    missed = [silo for silo in active if silo not in heard_all]
    back = (yield Exchange({silo: AskBack(number) for silo in missed}, missing=True)) if missed else {}
    expect(back, Done)
    return [silo for silo in active if silo in heard_all or silo in back], bool(back)


def averaged(asks: dict[str, SendWeights], width: int) -> Conversation[Tensor]:
    """The weighted mean (W,) of silos' weights, which are fetched a few at a time and added up as they come.

    Raises:
        ProtocolError: all silos are lost.
    """
    mean, silos = RunningMean(width), list(asks)
    for first in range(0, len(silos), TOGETHER):
        replies = yield Exchange({silo: asks[silo] for silo in silos[first : first + TOGETHER]}, missing=True)
        for silo, reply in zip(replies, expect(replies, LocalWeights), strict=True):
            mean.add(reply.weights_W, asks[silo].weight)
    if not mean.count:
        raise ProtocolError("In each round at least one silo replies", "none", _RESUME)
    return mean.mean()


# Mode "md" (section II-A-1).


def _train_md(
    roster: Roster, config: GDTSConfig, merged: MergedColumns, model: Any, streams: Streams, state: State
) -> Conversation[None]:
    """All steps. An epoch has as many as the mean silo has batches of rows."""
    gan: ConditionalGAN = model
    gan.generator.network.train()
    epoch = max(1, sum(merged.rows) // len(roster) // config.ctgan.batch)
    steps = max(config.ctgan.epochs * epoch, config.ctgan.least_rounds)
    laws = [gan.law_of(counts_K) for counts_K in merged.counts_PK]
    for step in range(state["round"], steps):
        if step % max(1, steps // REPORTS) == 0:
            yield Progress("adversarial training", step, steps)
            yield Checkpoint({**state, "round": step, "model": gan.state(training=True)})
        yield from _md_step(roster, config, gan, laws, step, streams.child("step", step))
        if (step + 1) % (epoch * config.swap_every) == 0 and len(roster) > 1:
            yield from _swap(roster, step, streams.child("swap", step))
    yield Progress("adversarial training", steps, steps)


def _md_step(
    roster: Roster, config: GDTSConfig, gan: ConditionalGAN, laws: list[ConditionLaw], step: int, streams: Streams
) -> Conversation[None]:
    draw, pick = streams.child("noise").torch(gan.device), streams.child("conditions").torch()
    asks, pending = {}, {}
    for silo, law in zip(roster, laws, strict=True):
        given_EB = torch.stack([law.draw(config.ctgan.batch, pick) for _ in range(config.ctgan.critic_steps + 1)])
        with torch.no_grad():
            fake_EBW = torch.stack([gan.made(given.to(gan.device), draw)[1].cpu() for given in given_EB[:-1]])
        last_B = given_EB[-1].to(gan.device)
        out_BO, fake_BW = gan.made(last_B, draw)
        pending[silo] = out_BO, fake_BW, last_B
        asks[silo] = TeachCritic(step, fake_EBW, given_EB[:-1].int(), fake_BW.detach().cpu(), given_EB[-1].int())
    replies = yield roster.each(asks)
    gan.generator.clear()
    for silo, reply in zip(replies, expect(replies, GeneratorGradient), strict=True):
        out_BO, fake_BW, condition_B = pending[silo]
        gan.set_generator_gradient(out_BO, fake_BW, reply.grad_fake_BW.to(gan.device), condition_B, 1 / len(roster))
    gan.generator.step()


def _swap(roster: Roster, number: int, streams: Streams) -> Conversation[None]:
    """Each critic goes to another silo: along a circle through all, in an order drawn anew each time."""
    order = [roster.parties[i] for i in streams.numpy().permutation(len(roster))]
    receiver = dict(zip(order, order[1:] + order[:1], strict=True))
    replies = yield roster.each({silo: SealCritic(number, receiver[silo]) for silo in roster})
    asks = {}
    for silo, reply in zip(replies, expect(replies, SealedCritic), strict=True):
        if reply.envelope.receiver != receiver[silo]:
            raise ProtocolError(f"Silo {silo!r} seals its critic for {receiver[silo]!r}", reply.envelope.receiver)
        asks[receiver[silo]] = TakeCritic(number, reply.envelope)
    expect((yield roster.each(asks)), Done)
