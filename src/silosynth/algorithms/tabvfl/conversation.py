"""TabVFL: one latent representation of rows whose columns are in several silos (M. Rashad, Z. Zhao, J. Decouchant,
L. Y. Chen: "TabVFL: Improving Latent Representation Learning in Vertical Federated Learning", 2023).

A silo (guest) normalises and mixes its columns, and reconstructs them; TabNet's encoder and decoder between these are
with the coordinator (host), as is the label. Gradients cross the borders both ways, in the shape of a U.

=======================================  ====================================================================
paper                                    here
=======================================  ====================================================================
Algorithm 1, guests, lines 1 to 6        `Silo._prepare`, `Guest.embed`
  host, lines 8 to 16                    `Memory.gather`
  lines 17 to 21                         `Host.decode`
  guests, lines 22 to 24                 `Guest.reconstruct`
  host, lines 25 to 32                   `_Training._pretrain`, `Host.descend`, `Guest.descend`
Algorithm 2                              `Guest.embed`, `Memory.gather`, `Host.classify`, `Guest.descend`
IV-E, clients that fail                  `core.absence`, `_Training._reach`, `_Training._present`, `Memory`
LT, TabVFL-LE (V-A, figures A.3, A.4)    designs "local" and "local_encoders" of `Guest` and `Host`; the public code's
                                         LT: also ``label_gradients = false``
CT                                       design "local" on a federation of one silo
TabNet                                   `models.tabnet`
=======================================  ====================================================================

A step of pre-training takes two exchanges, one of fine-tuning a single one: each ask for a batch brings the gradients
of the last. Every ask says which batch it is for, and which step its gradient belongs to: whoever was away goes on with
the right batch, and forgets what never got a gradient.

Readings, and deviations, each an option where somebody might want it otherwise:

* The loss at the coordinator is the sum of silos' losses. Its gradient in each loss is 1, so each silo starts from its
  own loss and sends the gradient in its part of what was decoded; that is the same as in one piece.
* Masks are drawn for each feature by itself, one-hot ones too. The prior (1 - mask) is as the paper has it, although
  the coordinator's features are mixed by the silo's square layer, so that it names no column any more.
* All silos must be there in the first epoch of each phase, and in the first after a run was resumed: they are waited
  for then.
* The cache is by row, not by batch: batches may then change from epoch to epoch (``shuffle``). "paper": they don't.
* ``zeros`` puts zeros in place of masks, too: everything may be looked at.
* What is left over of an epoch is spread over its batches, instead of dropped.
* What early stopping goes by, the paper doesn't say: here the loss of rows that are held out, judged after each epoch
  in which nobody is away; the weights that did best are the ones that stay.
* TabVFL-LE adds up silos' decisions, so that all have the full latent dimension; LT deals it out.
* The encoder of "local" and "local_encoders" is with the columns and needs no square layer to hide them.
* A numeric label is standardised, and predicted by squared error.

Who learns what: docs/algorithms/tabvfl.md. Nothing here is differentially private.

Shapes: N rows, B rows of a batch, W numbers that a silo sends of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from silosynth.algorithms.tabvfl.batches import Batches, spans
from silosynth.algorithms.tabvfl.embedding import embed, said
from silosynth.algorithms.tabvfl.host import Host, Labels, Sent, partitions
from silosynth.algorithms.tabvfl.memory import Memory
from silosynth.algorithms.tabvfl.messages import (
    FINETUNING,
    HELD_OUT,
    PRETRAINING,
    Compare,
    Descend,
    Embed,
    Embedded,
    Judged,
    Keep,
    Look,
    Phase,
    Prepare,
    Prepared,
    Reconstruct,
    Reconstructed,
    Settle,
    TabVFLConfig,
    TrainAlone,
)
from silosynth.core.absence import present, under
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress
from silosynth.core.errors import ConfigError, DataError, ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.roster import Roster
from silosynth.core.streams import Streams

M = TypeVar("M", bound=Message)
_RESUME = "Resume the run once they are back."


def coordinate(
    roster: Roster, config: TabVFLConfig, labels: Labels | None, streams: Streams, device: torch.device,
    state: dict[str, Any] | None = None,
) -> Conversation[dict[str, Any]]:  # fmt: skip
    """Train; returns the coordinator's part of the model, and the latent vectors of all rows."""
    if config.finetune and labels is None:
        raise ConfigError("Fine-tuning needs a label", None, "Name one, or set finetune = false.")
    return (yield from under(config.missing, _train(roster, config, labels, streams, device, state)))


def _train(
    roster: Roster, config: TabVFLConfig, labels: Labels | None, streams: Streams, device: torch.device,
    state: dict[str, Any] | None,
) -> Conversation[dict[str, Any]]:  # fmt: skip
    state = (yield from _begin(roster, config, labels, streams)) if state is None else state
    training = _Training(roster, config, labels, streams, device, state)
    yield from training.run()
    latents_ND, _ = yield from embed(roster, training.host, state["rows"])
    about = {name: state[name] for name in ("rows", "widths", "classes")}
    return {**about, "latents": latents_ND, "host": training.host.state(training=False)}


def _begin(
    roster: Roster, config: TabVFLConfig, labels: Labels | None, streams: Streams
) -> Conversation[dict[str, Any]]:
    order = streams.child("order").integer()
    parts = zip(roster, partitions(config, len(roster)), strict=True)
    replies = said((yield roster.each({party: Prepare(config, part, order) for party, part in parts})), Prepared)
    told = [reply.rows for reply in replies.values()]
    if len(set(told)) > 1:
        raise ProtocolError(
            "Silos must hold the same rows in the same order", told, "Align the silos by an identifier first."
        )
    if labels is not None and len(labels.values) != told[0]:
        raise DataError("There is one label for each row", f"{len(labels.values)} for {told[0]} rows")
    classes = 0 if labels is None else labels.classes
    widths = [reply.width for reply in replies.values()]
    return {"rows": told[0], "widths": widths, "order": order, "classes": classes, "place": 0, "epoch": 0,
            "best": {}, "host": None, "memory": None}  # fmt: skip


@dataclass
class _Best:
    """The judgement that weights were kept by: its epoch and loss, and how many did not better it since."""

    number: int = -1
    loss: float = float("inf")
    waited: int = 0


class _Training:
    """Both phases, from a state."""

    def __init__(
        self, roster: Roster, config: TabVFLConfig, labels: Labels | None, streams: Streams, device: torch.device,
        state: dict[str, Any],
    ) -> None:  # fmt: skip
        self.roster, self.config, self.labels, self.streams, self.first = roster, config, labels, streams, state
        self.host = Host(state["widths"], state["classes"], config, streams.child("host"), device)
        self.batches = Batches(state["rows"], config, state["order"])
        self.place, self.epoch, self.best = state["place"], state["epoch"], _Best(**state["best"])
        if state["host"] is not None:
            self.host.restore(state["host"])
        self.loss, self.everyone = 0.0, True  # of the last epoch: the mean loss; whether all took part to its end

    def run(self) -> Conversation[None]:
        """What is left of both phases."""
        while self.place < len(self.config.phases):
            yield from self._phase(self.config.phases[self.place])
            self.place, self.epoch, self.best = self.place + 1, 0, _Best()

    def _phase(self, phase: Phase) -> Conversation[None]:
        epochs, self.memory = self.config.epochs(phase), self._memory(phase)
        while self.epoch < epochs and self.best.waited < self.config.patience:
            yield Progress(phase, self.epoch, epochs, {"loss": self.loss} if self.epoch else {})
            yield Checkpoint(self._state())
            yield from self._epoch(phase)
            self.epoch += 1
        yield Progress(phase, epochs, epochs, {"loss": self.loss})
        yield self.roster.everyone(Settle(self.best.number))
        self.host.part.settle(self.best.number)

    def _epoch(self, phase: Phase) -> Conversation[None]:
        present, self.everyone = self._present(phase), True
        if phase == PRETRAINING and self.config.design == "local":
            losses = yield from self._alone(present)
        else:
            losses = yield from self._together(phase, present)
        self.loss = sum(losses) / max(1, len(losses))
        self.memory.complete = True
        if len(self.batches.held_out) and self.everyone and len(present) == len(self.roster):
            yield from self._judge(phase)

    def _present(self, phase: Phase) -> list[str]:
        """Who takes part in this epoch, by lot (section IV-E): all of them in the first."""
        absence = self.config.absence if self.memory.complete else 0.0
        return present(self.roster.parties, absence, self.streams.child("absence", phase, self.epoch).numpy())

    # An epoch.

    def _alone(self, present: list[str]) -> Conversation[list[float]]:
        """Design "local": each silo pre-trains by itself, all batches at one go."""
        asks = {party: TrainAlone(self.epoch) for party in present}
        replies = yield from self._reach(asks, Judged, times=self.batches.count)
        return [reply.loss for reply in replies.values()]

    def _together(self, phase: Phase, present: list[str]) -> Conversation[list[float]]:
        """All batches. Each ask for one brings the gradients of the last."""
        losses, of = [], -1
        back: dict[str, Tensor] = {}
        for step in self.batches.steps(self.epoch):
            asks = {party: _embed(phase, step, of, back.get(party)) for party in present}
            replies = yield from self._reach(asks, Embedded)
            rows_B = self.batches.of(step)
            sent = self.host.take(self.memory.gather(rows_B, replies))
            if phase == PRETRAINING:
                slopes, loss = yield from self._pretrain(step, sent)
            else:
                assert self.labels is not None
                slopes, loss = self.host.classify(sent, self.labels.values[rows_B])
                slopes = slopes if self.config.label_gradients else [None] * len(self.roster)
            back = {party: slope for party, slope in zip(self.roster, slopes, strict=True) if slope is not None}
            of = step
            losses += [] if loss is None else [loss]
        yield from self._reach({party: Descend(of, slope) for party, slope in back.items()}, Done)
        return losses

    def _pretrain(self, step: int, sent: Sent) -> Conversation[tuple[list[Tensor | None], float | None]]:
        """Algorithm 1, lines 15 to 32: gradients for those that sent something, and the summed loss, if any came."""
        out_BD = self.host.decode(sent)
        outs = out_BD.detach().cpu().split(self.host.partitions, dim=1)
        parts = zip(self.roster, outs, sent.there, strict=True)
        asks = {party: Reconstruct(step, out_BP.contiguous()) for party, out_BP, there in parts if there}
        replies = yield from self._reach(asks, Reconstructed)
        if not replies:  # nobody is there, by lot
            return [None] * len(self.roster), None
        slopes = [replies[party].gradient_BP if party in replies else None for party in self.roster]
        return self.host.descend(sent, out_BD, slopes), sum(reply.loss for reply in replies.values())

    def _reach(self, asks: Mapping[str, Message], kind: type[M], times: float = 1.0) -> Conversation[dict[str, M]]:
        """Ask, and go on without those that are lost where that is possible: not before all have been there once."""
        if not asks:
            return {}
        replies = said((yield Exchange(asks, missing=self.memory.complete, times=times)), kind)
        if not replies:
            raise ProtocolError("At least one silo of those that were asked answers", "none", _RESUME)
        self.everyone = self.everyone and len(replies) == len(asks)
        return replies

    # Judgement.

    def _judge(self, phase: Phase) -> Conversation[None]:
        """Keep the weights if rows that are held out are better off with them than before."""
        loss, rows = 0.0, len(self.batches.held_out)
        for start, stop in spans(rows):
            part = yield from self._judge_part(phase, start, stop)
            if not self.everyone:
                return  # what is left of the silos says nothing about all
            loss += part * (stop - start) / rows
        self.best.waited += 1
        if loss < self.best.loss:
            replies = yield from self._reach(dict.fromkeys(self.roster, Keep(self.epoch, self.best.number)), Done)
            if len(replies) == len(self.roster):
                self.host.part.keep(self.epoch, self.best.number)
                self.best = _Best(self.epoch, loss)

    def _judge_part(self, phase: Phase, start: int, stop: int) -> Conversation[float]:
        """The loss of some rows that are held out; 0 if somebody is lost."""
        asks: Mapping[str, Message] = dict.fromkeys(self.roster, Compare(start, stop, None))
        if phase == FINETUNING or self.config.design != "local":
            looks = yield from self._reach(dict.fromkeys(self.roster, Look(phase, HELD_OUT, start, stop)), Embedded)
            z = [reply.z_BW for reply in looks.values()]
            if not self.everyone:
                return 0.0
            if phase == FINETUNING:
                assert self.labels is not None
                return self.host.loss(z, self.labels.values[self.batches.held_out[start:stop]])
            outs = zip(self.roster, self.host.rebuild(z), strict=True)
            asks = {party: Compare(start, stop, out_BP) for party, out_BP in outs}
        judged = yield from self._reach(asks, Judged)
        return sum(reply.loss for reply in judged.values())

    # State.

    def _memory(self, phase: Phase) -> Memory:
        """The phase's own; one that was stored if it is to be gone on with."""
        widths = self.first["widths"]
        if phase == PRETRAINING and self.config.design == "local_encoders":
            widths = [self.config.net.steps * width for width in widths]
        memory = Memory(dict(zip(self.roster, widths, strict=True)), self.first["rows"], phase, self.config)
        if self.epoch and self.first["memory"] is not None:
            memory.restore(self.first["memory"])
        return memory

    def _state(self) -> dict[str, Any]:
        """Where absence is simulated the cache is a part of it; else all silos are there after resuming, to fill it."""
        return {
            **self.first, "place": self.place, "epoch": self.epoch,
            "best": {"number": self.best.number, "loss": self.best.loss, "waited": self.best.waited},
            "host": self.host.state(training=True),
            "memory": self.memory.state() if self.config.absence and self.epoch else None,
        }  # fmt: skip


def _embed(phase: Phase, step: int, of: int, gradient_BW: Tensor | None) -> Embed:
    return Embed(phase, step) if gradient_BW is None else Embed(phase, step, of, gradient_BW)
