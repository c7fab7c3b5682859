"""TabVFL: one latent representation of rows whose columns are in several silos (M. Rashad, Z. Zhao, J. Decouchant,
L. Y. Chen: "TabVFL: Improving Latent Representation Learning in Vertical Federated Learning", 2023).

A silo (guest) normalises and mixes its columns, and reconstructs them; TabNet's encoder and decoder between these are
the coordinator's (host), as is the label. Gradients cross the borders both ways, in the shape of a U.

=======================================  ====================================================================
paper                                    here
=======================================  ====================================================================
Algorithm 1, guests, lines 1 to 6        `TabVFLSilo._prepare`, `Guest.embed`
  host, lines 8 to 16                    `EmbeddingCache.gather`
  lines 17 to 21                         `Host.decode`
  guests, lines 22 to 24                 `Guest.reconstruct`
  host, lines 25 to 32                   `_TwoPhases._pretrain`, `Host.descend`, `Guest.descend`
Algorithm 2                              `Guest.embed`, `EmbeddingCache.gather`, `Host.classify`, `Guest.descend`
IV-E, clients that fail                  `core.conversation`, `_TwoPhases._ask`, `_TwoPhases._present`, `EmbeddingCache`
LT, TabVFL-LE (V-A, figures A.3, A.4)    designs "local" and "local_encoders" of `Guest` and `Host`; the public code's
                                         LT: also ``label_gradients = false``
CT                                       design "local" on a federation of one silo
TabNet                                   `models.tabnet`
=======================================  ====================================================================

A step of pre-training takes two exchanges, one of fine-tuning a single one: each request for a batch brings the
gradients of the last. Every request names its batch, and the step that its gradient belongs to: a silo that was away
goes on with the right batch, and forgets batches that never got a gradient.

Readings, and deviations, each an option where somebody might want it otherwise:

* The loss at the coordinator is the sum of silos' losses. Its gradient in each loss is 1, so each silo starts from its
  own loss and sends the gradient in its part of what was decoded; that is the same as in one piece.
* Masks are drawn for each feature by itself, one-hot ones too. The prior (1 - mask) is as the paper has it, although
  the coordinator's features are mixed by the silo's square layer, so that it names no column any more.
* All silos must be there in the first epoch of each phase, and in the first after a run was resumed: they are waited
  for then.
* The cache is by row, not by batch: batches may then change from epoch to epoch (``shuffle``). "paper": they don't.
* ``zeros`` puts zeros in place of masks, too: every feature may be used.
* The remainder of an epoch is spread over its batches, instead of dropped.
* The paper doesn't say what early stopping goes by: here the loss of held-out rows, evaluated after each epoch in which
  nobody is away; the best weights are kept.
* TabVFL-LE adds up silos' decisions, so that all have the full latent dimension; LT divides it.
* The encoder of "local" and "local_encoders" is with the columns and needs no square layer to hide them.
* A numeric label is standardised, and predicted by squared error.

Who learns what: docs/algorithms/tabvfl.md. Nothing here is differentially private.

Shapes: N rows, B rows of a batch, W numbers a silo sends per row, P its part of what is decoded, D latents, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from silosynth.algorithms.tabvfl.networks import Batches, Embeddings, Host, Labels, Rows, partitions, spans
from silosynth.algorithms.tabvfl.options import FINETUNING, PRETRAINING, Phase, TabVFLConfig
from silosynth.core import conversation, lost
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress, Roster, State, expect
from silosynth.core.errors import ConfigError, DataError, ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.core.streams import Streams

M = TypeVar("M", bound=Message)
MIB = 2**20
_RESUME = "Resume the run once they are back."


# Messages, in talking order.


class PrepareGuest(Message):
    """Coordinator: fit encoders and make networks.

    Attributes:
        partition: P, the width of your part of what is decoded.
        order: the seed from which all parties draw the same batches.
    """

    partition: int
    order: int


class GuestPrepared(Message, release=Release.COUNTS):
    """Silo: my row count, and how many numbers of each row I send: as many as encoded columns, or latents."""

    rows: int
    width: int


class Embed(Message, release=Release.GRADIENTS):
    """Coordinator: embed the batch of step ``step``, after descending along this gradient (B, W) of step ``of``.

    There is no gradient in the first step of an epoch, and where the silo was away.
    """

    phase: Phase
    step: int
    of: int = -1
    grad_BW: Tensor | None = None


class Embedded(Message, release=Release.ROWS):
    """Silo: embedded rows (B, W), and in pre-training which features are masked (B, W)."""

    z_BW: Tensor
    mask_BW: Tensor | None = None


class Reconstruct(Message, release=Release.ROWS):
    """Coordinator: your part of what was decoded (B, P) of step ``step``. It depends on other silos' rows."""

    step: int
    out_BP: Tensor


class Reconstructed(Message, release=Release.GRADIENTS):
    """Silo: my reconstruction loss, and its gradient (B, P)."""

    loss: float
    grad_BP: Tensor


class ApplyGradient(Message, release=Release.GRADIENTS):
    """Coordinator: the gradient (B, W) of step ``of``, the last of an epoch."""

    of: int
    grad_BW: Tensor


class TrainAlone(Message):
    """Coordinator: pre-train alone for this epoch (design "local")."""

    epoch: int


class EmbedRows(Message):
    """Coordinator: embed rows ``start`` to ``stop`` as they are, without training."""

    phase: Phase
    rows: Rows
    start: int
    stop: int


class EvaluateRows(Message, release=Release.ROWS):
    """Coordinator: reconstruct those held-out rows from this (B, P), or alone where it is None, without training."""

    start: int
    stop: int
    out_BP: Tensor | None


class ReconstructionLoss(Message, release=Release.STATISTICS):
    """Silo: my mean reconstruction loss."""

    loss: float


class StoreWeights(Message):
    """Coordinator: keep your present weights under this number, besides those of number ``before``, and no others."""

    number: int
    before: int


class EndPhase(Message):
    """Coordinator: a phase has ended. Go back to the weights of this number; -1 leaves them as they are."""

    number: int


# The coordinator.


def coordinate(
    roster: Roster, config: TabVFLConfig, labels: Labels | None, streams: Streams, device: torch.device,
    state: State | None = None,
) -> Conversation[State]:  # fmt: skip
    """Train; returns the coordinator's part of the model, and the latent vectors of all rows."""
    if config.finetune and labels is None:
        raise ConfigError("Fine-tuning needs a label", None, "Name one, or set finetune = false.")
    return (yield from lost.under(config.missing, _train(roster, config, labels, streams, device, state)))


def embed(roster: Roster, host: Host, rows: int) -> Conversation[tuple[Tensor, Tensor]]:
    """Latents (N, D) of all rows that silos have, and predictions from them (N, K)."""
    parts = []
    for start, stop in spans(rows):
        replies = expect((yield roster.everyone(EmbedRows(FINETUNING, "all", start, stop))), Embedded)
        parts.append(host.predict([reply.z_BW for reply in replies]))
        yield Progress("embedding", stop, rows)
    latents, outs = zip(*parts, strict=True)
    return torch.cat(latents), torch.cat(outs)


def _train(
    roster: Roster, config: TabVFLConfig, labels: Labels | None, streams: Streams, device: torch.device,
    state: State | None,
) -> Conversation[State]:  # fmt: skip
    state = (yield from _begin(roster, config, labels, streams)) if state is None else state
    training = _TwoPhases(roster, config, labels, streams, device, state)
    yield from training.run()
    latents_ND, _ = yield from embed(roster, training.host, state["rows"])
    sizes = {name: state[name] for name in ("rows", "widths", "classes")}
    return {**sizes, "latents": latents_ND, "host": training.host.trainee.state(training=False)}


def _begin(roster: Roster, config: TabVFLConfig, labels: Labels | None, streams: Streams) -> Conversation[State]:
    order = streams.child("order").integer()
    parts = zip(roster, partitions(config, len(roster)), strict=True)
    replies = yield roster.each({silo: PrepareGuest(part, order) for silo, part in parts})
    prepared = expect(replies, GuestPrepared)
    conversation.check_same_rows(roster, [reply.rows for reply in prepared])
    rows = prepared[0].rows
    if labels is not None and len(labels.values) != rows:
        raise DataError("There is one label for each row", f"{len(labels.values)} for {rows} rows")
    classes = 0 if labels is None else labels.classes
    widths = [reply.width for reply in prepared]
    return {"rows": rows, "widths": widths, "order": order, "classes": classes, "place": 0, "epoch": 0,
            "best": {}, "host": None, "memory": None}  # fmt: skip


@dataclass
class _Best:
    """The evaluation at which weights were kept last: its epoch and loss, and how many have not improved on it."""

    number: int = -1
    loss: float = float("inf")
    waited: int = 0


class _TwoPhases:
    """Both phases, from a state."""

    def __init__(
        self, roster: Roster, config: TabVFLConfig, labels: Labels | None, streams: Streams, device: torch.device,
        state: State,
    ) -> None:  # fmt: skip
        self.roster, self.config, self.labels, self.streams, self.first = roster, config, labels, streams, state
        self.host = Host(state["widths"], state["classes"], config, streams.child("host"), device)
        self.batches = Batches(state["rows"], config, state["order"])
        self.place, self.epoch, self.best = state["place"], state["epoch"], _Best(**state["best"])
        if state["host"] is not None:
            self.host.trainee.restore(state["host"])
        self.loss, self.everyone = 0.0, True  # of the last epoch: the mean loss; whether all took part to its end

    def run(self) -> Conversation[None]:
        """What is left of both phases."""
        while self.place < len(self.config.phases):
            yield from self._phase(self.config.phases[self.place])
            self.place, self.epoch, self.best = self.place + 1, 0, _Best()

    def _phase(self, phase: Phase) -> Conversation[None]:
        epochs, self.cache = self.config.epochs(phase), self._cache(phase)
        while self.epoch < epochs and self.best.waited < self.config.patience:
            yield Progress(phase, self.epoch, epochs, {"loss": self.loss} if self.epoch else {})
            yield Checkpoint(self._state())
            yield from self._epoch(phase)
            self.epoch += 1
        yield Progress(phase, epochs, epochs, {"loss": self.loss})
        expect((yield self.roster.everyone(EndPhase(self.best.number))), Done)
        self.host.trainee.end_phase(self.best.number)

    def _epoch(self, phase: Phase) -> Conversation[None]:
        silos, self.everyone = self._present(phase), True
        if phase == PRETRAINING and self.config.design == "local":
            losses = yield from self._alone(silos)
        else:
            losses = yield from self._together(phase, silos)
        self.loss = sum(losses) / max(1, len(losses))
        self.cache.complete = True
        if len(self.batches.held_out) and self.everyone and len(silos) == len(self.roster):
            yield from self._evaluate(phase)

    def _present(self, phase: Phase) -> list[str]:
        """The silos of this epoch, by lot (section IV-E): all of them in the first."""
        absence = self.config.absence if self.cache.complete else 0.0
        rng = self.streams.child("absence", phase, self.epoch).numpy()
        return lost.present(self.roster.parties, absence, rng)

    # An epoch.

    def _alone(self, silos: list[str]) -> Conversation[list[float]]:
        """Design "local": each silo pre-trains alone, all batches in one exchange."""
        asks = {silo: TrainAlone(self.epoch) for silo in silos}
        replies = yield from self._ask(asks, ReconstructionLoss, times=self.batches.count)
        return [reply.loss for reply in replies.values()]

    def _together(self, phase: Phase, silos: list[str]) -> Conversation[list[float]]:
        """All batches. Each request for one brings the gradients of the last."""
        losses, last = [], -1
        grads: dict[str, Tensor] = {}
        for step in self.batches.steps(self.epoch):
            asks = {silo: _embed(phase, step, last, grads.get(silo)) for silo in silos}
            replies = yield from self._ask(asks, Embedded)
            rows_B = self.batches.of(step)
            sent = self.host.take(self.cache.gather(rows_B, replies))
            if phase == PRETRAINING:
                grads_of, loss = yield from self._pretrain(step, sent)
            else:
                assert self.labels is not None
                grads_of, loss = self.host.classify(sent, self.labels.values[rows_B])
                grads_of = grads_of if self.config.label_gradients else [None] * len(self.roster)
            grads = {silo: grad for silo, grad in zip(self.roster, grads_of, strict=True) if grad is not None}
            last = step
            losses += [] if loss is None else [loss]
        yield from self._ask({silo: ApplyGradient(last, grad) for silo, grad in grads.items()}, Done)
        return losses

    def _pretrain(self, step: int, sent: Embeddings) -> Conversation[tuple[list[Tensor | None], float | None]]:
        """Algorithm 1, lines 15 to 32: gradients for the silos present, and the summed loss, if any replied."""
        out_BD = self.host.decode(sent)
        outs = out_BD.detach().cpu().split(self.host.partitions, dim=1)
        parts = zip(self.roster, outs, sent.present, strict=True)
        asks = {silo: Reconstruct(step, out_BP.contiguous()) for silo, out_BP, there in parts if there}
        replies = yield from self._ask(asks, Reconstructed)
        if not replies:  # nobody is there, by lot
            return [None] * len(self.roster), None
        grads = [replies[silo].grad_BP if silo in replies else None for silo in self.roster]
        return self.host.descend(sent, out_BD, grads), sum(reply.loss for reply in replies.values())

    def _ask(self, asks: Mapping[str, Message], kind: type[M], times: float = 1.0) -> Conversation[dict[str, M]]:
        """Ask, and go on without silos that are lost where possible: not before all have been there once."""
        if not asks:
            return {}
        replies = yield Exchange(asks, missing=self.cache.complete, times=times)
        if not replies:
            raise ProtocolError("At least one silo of those asked replies", "none", _RESUME)
        self.everyone = self.everyone and len(replies) == len(asks)
        return dict(zip(replies, expect(replies, kind), strict=True))

    # Early stopping.

    def _evaluate(self, phase: Phase) -> Conversation[None]:
        """Keep the weights if they are better for held-out rows than those kept before."""
        loss, rows = 0.0, len(self.batches.held_out)
        for start, stop in spans(rows):
            part = yield from self._loss(phase, start, stop)
            if not self.everyone:
                return  # the losses of some silos say nothing about all
            loss += part * (stop - start) / rows
        self.best.waited += 1
        if loss < self.best.loss:
            replies = yield from self._ask(self._all(StoreWeights(self.epoch, self.best.number)), Done)
            if len(replies) == len(self.roster):
                self.host.trainee.keep(self.epoch, self.best.number)
                self.best = _Best(self.epoch, loss)

    def _loss(self, phase: Phase, start: int, stop: int) -> Conversation[float]:
        """The loss of some held-out rows; 0 if a silo is lost."""
        asks = self._all(EvaluateRows(start, stop, None))
        if phase == FINETUNING or self.config.design != "local":
            replies = yield from self._ask(self._all(EmbedRows(phase, "held out", start, stop)), Embedded)
            z = [reply.z_BW for reply in replies.values()]
            if not self.everyone:
                return 0.0
            if phase == FINETUNING:
                assert self.labels is not None
                return self.host.label_loss(z, self.labels.values[self.batches.held_out[start:stop]])
            outs = zip(self.roster, self.host.decode_rows(z), strict=True)
            asks = {silo: EvaluateRows(start, stop, out_BP) for silo, out_BP in outs}
        losses = yield from self._ask(asks, ReconstructionLoss)
        return sum(reply.loss for reply in losses.values())

    def _all(self, ask: Message) -> dict[str, Message]:
        return dict.fromkeys(self.roster, ask)

    # State.

    def _cache(self, phase: Phase) -> EmbeddingCache:
        """The phase's own; restored where it was stored for this phase."""
        widths = self.first["widths"]
        if phase == PRETRAINING and self.config.design == "local_encoders":
            widths = [self.config.net.steps * width for width in widths]
        cache = EmbeddingCache(dict(zip(self.roster, widths, strict=True)), self.first["rows"], phase, self.config)
        if self.epoch and self.first["memory"] is not None:
            cache.restore(self.first["memory"])
        return cache

    def _state(self) -> State:
        """With simulated absence, the cache too; otherwise all silos are there after resuming and fill it."""
        return {
            **self.first, "place": self.place, "epoch": self.epoch,
            "best": {"number": self.best.number, "loss": self.best.loss, "waited": self.best.waited},
            "host": self.host.trainee.state(training=True),
            "memory": self.cache.state() if self.config.absence and self.epoch else None,
        }  # fmt: skip


class EmbeddingCache:
    """What silos sent last of each row, for when they are lost (section IV-E): embeddings, and masks in pre-training.

    Of one phase. With ``missing`` = "cache" it takes 4 N (W_1 + … ) bytes, and one more per number that is masked.

    Args:
        widths: W_i, how many numbers of a row each silo sends.
    """

    def __init__(self, widths: Mapping[str, int], rows: int, phase: Phase, config: TabVFLConfig) -> None:
        self.silos, self.masked = list(widths), phase == PRETRAINING and config.design == "tabvfl"
        self.complete = False  # whether every row of every silo has been here
        alone = phase == PRETRAINING and config.design == "local"
        policy = "zeros" if alone else config.missing
        size = (4 + self.masked) * rows * sum(widths.values()) * (policy == "cache") / MIB
        if size > config.cache_limit:
            raise ConfigError(
                f"The cache for silos that get lost may take cache_limit = {config.cache_limit:g} MiB",
                f"{size:.0f} MiB",
                'Raise the limit, or set missing = "zeros", "wait" or "fail".',
            )
        self.z = lost.LastRows(widths, rows, policy)
        self.masks = lost.LastRows(widths if self.masked else {}, rows, policy, torch.bool)

    def gather(self, rows_B: Tensor, replies: Mapping[str, Embedded]) -> Embeddings:
        """Store what silos sent of a batch, and fill in for others (Algorithm 1, lines 8 to 14; 2, lines 7 to 11)."""
        z = self.z.fill(rows_B, {silo: reply.z_BW for silo, reply in replies.items()})
        masks = self.masks.fill(rows_B, {silo: _mask(silo, reply) for silo, reply in replies.items() if self.masked})
        return Embeddings(z, masks, [silo in replies for silo in self.silos])

    def state(self) -> State:
        """All of it."""
        return {"z": self.z.state(), "masks": self.masks.state()}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        self.z.restore(state["z"])
        self.masks.restore(state["masks"])
        self.complete = True


def _mask(silo: str, reply: Embedded) -> Tensor:
    if reply.mask_BW is None:
        raise ProtocolError(f"Silo {silo!r} says which features it masked", None, "Compare versions.")
    return reply.mask_BW


def _embed(phase: Phase, step: int, of: int, grad_BW: Tensor | None) -> Embed:
    return Embed(phase, step) if grad_BW is None else Embed(phase, step, of, grad_BW)
