"""Silos of SiloFuse, of the jointly trained baselines, and of joint latents. Messages and shapes: `protocol`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from silosynth.algorithms.silofuse import networks, private, protocol
from silosynth.algorithms.silofuse.options import CoderConfig
from silosynth.core.conditions import Condition
from silosynth.core.conversation import State, Turn, check_place, check_tensor, often, once
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.schema import Table
from silosynth.encoders.table import ColumnParty
from silosynth.models.nearness import Nearness
from silosynth.privacy import accounting, agreement


class CoderSilo(ColumnParty):
    """A silo that holds its columns, its encoder and its decoder: fits them, and decodes synthetic rows."""

    def _set_up(self) -> None:
        self.coder = networks.Coder(self.columns, self.device)
        self.nearness: Nearness | None = None  # of latents that are sent to those of training rows

    def also(self, own: Table) -> None:
        """See `Party.also`."""
        self.coder.also(own)

    def _coder_config(self) -> CoderConfig:
        """Options of its encoders and its autoencoder."""
        config: CoderConfig = self.config.coder_of(len(self.seat.roster))
        return config

    def _answer(self, ask: Message) -> Message:
        match ask:
            case protocol.FitCoder():
                self.coder.fit(self._coder_config())
                return protocol.CoderFitted(self.coder.rows, self.coder.latents)
            case protocol.SynthesiseFromLatents():
                self._check_latents(ask)
                table = self.coder.decode(ask.z_GL, ask.rows, self.streams.child("synthesise", ask.draw))
                return self.publish(table, self._shares)
            case protocol.WeighLatents():
                return self._weigh(ask)
            case _:
                raise ProtocolError("A SiloFuse silo does not understand this message", type(ask).__name__)

    def restrict(self, conditions: Sequence[Condition]) -> None:
        """See `Party.restrict`; where latents are not led to conditions, rows are left as they are drawn."""
        if self.config.guided:
            self.coder.restrict(conditions)

    def _weigh(self, ask: protocol.WeighLatents) -> protocol.LatentWeights:
        """How probable conditions are. Latents of training rows are refused here as where rows are decoded."""
        check_tensor("Latents to weigh", ask.z_GL, None, self.coder.latents)
        if self.nearness is not None:
            self.nearness.check(ask.z_GL)
        return protocol.LatentWeights(self.coder.weigh(ask.z_GL, self.streams.child("synthesise", ask.draw)))

    def _check_latents(self, ask: protocol.SynthesiseFromLatents) -> None:
        check_tensor("Latents to decode", ask.z_GL, None, self.coder.read or self.coder.latents)
        check_place("The number of rows to decode, less one,", ask.rows - 1, len(ask.z_GL))
        if self.nearness is not None:
            self.nearness.check(ask.z_GL[: ask.rows])

    @property
    def _known(self) -> bool:
        """Whether the coordinator has un-noised latents that this silo could know again."""
        return not self.coder.read  # joint latents are made by the coordinator

    def reference(self) -> State:
        """Latents of training rows, which nobody but the coordinator could send back."""
        if self.nearness is not None:
            return self.nearness.state()
        if not (self.columns.encoders and self.coder.rows and self._known):
            return {}
        config = self.coder.config
        return Nearness(self.coder.encode(), config.sigma if config.form == "noisy" else 0.0, self.streams).state()

    def judge_by(self, reference: State) -> None:
        """See `Party.judge_by`."""
        self.nearness = Nearness.restored(reference, self.streams) if reference else None

    def _restore(self, state: State) -> None:
        self.coder.restore(state)

    def _state(self, training: bool) -> State:
        """Encoders and autoencoder, which decode; with ``training`` also what training needs."""
        return self.coder.state(training)


class SiloFuseSilo(CoderSilo):
    """A silo C_i, which trains its autoencoder (E_i, D_i) on its own columns X_i."""

    def _set_up(self) -> None:
        super()._set_up()
        self.private = private.SiloFusePrivateSide(self.coder, self.config, self.seat, self.streams)

    def _script(self, training: bool) -> tuple[Turn, ...]:
        if not training:
            return often(protocol.SynthesiseFromLatents, protocol.WeighLatents)
        train = often(protocol.TrainAutoencoder, by="part")
        if self.config.dp.private:
            first = once(private.LearnCoder, *agreement.ASKS, accounting.Charge)
            return (*first, *train, *once(private.AskChargedLatents))
        return (*once(protocol.FitCoder), *train, *once(protocol.AskLatents))

    def _answer(self, ask: Message) -> Message:
        match ask:
            case protocol.TrainAutoencoder():
                (self.private if self.config.dp.private else self.coder).train(ask.part, protocol.PARTS)
                return Done()
            case protocol.AskLatents():
                return protocol.Latents(self.coder.encode())
        return self.private.answer(ask) or super()._answer(ask)

    @property
    def _known(self) -> bool:
        """With ``dp`` for all readers no un-noised latents leave."""
        return not self.config.dp.private or bool(self.config.releases)

    def _state(self, training: bool) -> State:
        more = {"private": self.private.state()} if training else {}
        return {**super()._state(training), **more}

    def _restore(self, state: State) -> None:
        super()._restore(state)
        if "private" in state:
            self.private.restore(state["private"])


_ITERATION = (protocol.EncodeBatch, protocol.DecodeBatch, protocol.UpdateCoder)


class EndToEndSilo(CoderSilo):
    """A silo whose autoencoder is trained through the coordinator's networks, iteration by iteration."""

    def _set_up(self) -> None:
        protocol.check_joint(self.config)
        super()._set_up()
        self.batch = torch.zeros(0, dtype=torch.int64)  # rows that were encoded last
        self.encoded = torch.zeros(0)  # their latents, with the graph that they come from

    def _coder_config(self) -> CoderConfig:
        return replace(super()._coder_config(), steps=self.config.latent.steps)  # both sides follow one schedule

    def _script(self, training: bool) -> tuple[Turn, ...]:
        if not training:
            return often(protocol.SynthesiseFromLatents, protocol.WeighLatents)
        return (*once(protocol.FitCoder), *often(*_ITERATION))

    def _answer(self, ask: Message) -> Message:
        match ask:
            case protocol.EncodeBatch():
                return self._encode(ask)
            case protocol.DecodeBatch():
                return self._decode(ask)
            case protocol.UpdateCoder():
                return self._update(ask)
            case _:
                return super()._answer(ask)

    def check(self, sent: Tensor, width: int) -> None:
        """Check that ``sent`` is (B, ``width``), for the B rows that were encoded last, and that there are any.

        Raises:
            ProtocolError: names the shape.
        """
        if not len(self.batch) or tuple(sent.shape) != (len(self.batch), width):
            rule = f"A silo encodes rows, and is sent one vector of {width} for each"
            raise ProtocolError(rule, f"{tuple(sent.shape)} for {len(self.batch)} rows")
        check_tensor("A vector for each row", sent, None, None)

    def _encode(self, ask: protocol.EncodeBatch) -> protocol.BatchLatents:
        coder, rows = self.coder, ask.rows
        check_tensor("Numbers of rows", rows, None, below=coder.rows)
        self.batch = rows.to(coder.device)
        coder.network.train()
        coder.learner.clear()
        self.encoded, _ = coder.network.encode(coder.levels[self.batch], coder.scores[self.batch])
        return protocol.BatchLatents(self.encoded.detach().cpu())

    def _decode(self, ask: protocol.DecodeBatch) -> protocol.LatentGradients:
        coder = self.coder
        self.check(ask.z_BL, coder.read or coder.latents)
        z_BL = ask.z_BL.detach().to(coder.device).requires_grad_()
        coder.reconstruction_loss(z_BL, self.batch).backward()
        return protocol.LatentGradients(torch.zeros_like(ask.z_BL) if z_BL.grad is None else z_BL.grad.cpu())

    def _update(self, ask: protocol.UpdateCoder) -> Done:
        self.check(ask.grad_z_BL, self.coder.latents)
        self.encoded.backward(ask.grad_z_BL.to(self.coder.device))
        self.coder.learner.step()
        self.batch = self.batch[:0]
        return Done()


class JointSilo(EndToEndSilo):
    """A silo whose encoder contributes to each row's latents, and whose decoder reads all of them."""

    def _coder_config(self) -> CoderConfig:
        return CoderSilo._coder_config(self)

    def _script(self, training: bool) -> tuple[Turn, ...]:
        if not training:
            return often(protocol.SynthesiseFromLatents, protocol.WeighLatents)
        iterations = often(*_ITERATION, protocol.AskLoss, protocol.KeepWeights)
        ends = (*once(protocol.SettleWeights), *often(protocol.EncodeBatch))
        return (*once(protocol.FitCoder, protocol.JoinLatents), *iterations, *ends)

    def _answer(self, ask: Message) -> Message:
        match ask:
            case protocol.JoinLatents():
                self.coder.join(ask.latents)
            case protocol.AskLoss():
                return self._loss(ask)
            case protocol.KeepWeights():
                self.coder.learner.keep()
            case protocol.SettleWeights():
                self.coder.learner.settle()
            case _:
                return super()._answer(ask)
        return Done()

    @torch.no_grad()
    def _loss(self, ask: protocol.AskLoss) -> protocol.HeldOutLoss:
        self.check(ask.z_BL, self.coder.read)
        return protocol.HeldOutLoss(float(self.coder.reconstruction_loss(ask.z_BL.to(self.coder.device), self.batch)))
