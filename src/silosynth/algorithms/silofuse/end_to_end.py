"""E2E and E2EDistr: autoencoders and diffusion trained jointly (SiloFuse paper, section V-A, figures 8 and 9).

The baseline that SiloFuse is measured against. In every iteration the silos encode a batch and send its latents, the
coordinator noises and denoises them, the silos decode what comes back, and gradients return the same way:

    silo                       coordinator                            silo
    z_i = E_i(x_i)      -->    z~ = denoised F(z, t, e)        -->    L_AE(D_i(z~_i), x_i)
    update E_i          <--    update G; dL/dz                 <--    dL_AE/dz~_i; update D_i

Loss: the diffusion's squared error plus every silo's L_AE (figure 9). With one silo this is E2E, with several E2EDistr.

What leaves a silo, in every iteration: latents and gradients of a batch of training rows, un-noised. What a silo gets
back depends on the other silos' latents of the same rows, so silos learn about each other too. Bytes grow with
iterations. Sampling is SiloFuse's.

Shapes: B rows of a batch, L latents of all silos, L_i of silo i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from silosynth.algorithms.silofuse.coder import Coder
from silosynth.algorithms.silofuse.messages import PRESETS as STACKED
from silosynth.algorithms.silofuse.messages import Prepare, SiloFuseConfig, Synthesise
from silosynth.algorithms.silofuse.stacked import check_rows, prepare, prepared, split, synthesised
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Party, Progress
from silosynth.core.errors import ConfigError, ProtocolError
from silosynth.core.messages import Done, Message, Release
from silosynth.core.roster import Roster
from silosynth.core.schema import Schema, Table
from silosynth.core.streams import Streams
from silosynth.models.latent import LatentGenerator
from silosynth.models.training import batches
from silosynth.privacy.sealed import Seat


def _jointly(config: SiloFuseConfig) -> SiloFuseConfig:
    """The paper's gaussian diffusion on plain latents, with the iterations and widths of ``config``."""
    coder = replace(config.coder, form="plain", calibrate=False, fit_to_rows=False, rate=1e-3)
    latent = replace(
        config.latent, path="gaussian", target="latent", fit_to_rows=False, average=0.0, batch=512, rate=1e-3
    )
    return replace(config, coder=coder, latent=latent)


PRESETS: Mapping[str, SiloFuseConfig] = {name: _jointly(config) for name, config in STACKED.items()}


@dataclass(frozen=True, slots=True)
class Encode(Message):
    """Encode these training rows."""

    rows: Tensor


@dataclass(frozen=True, slots=True)
class BatchLatents(Message):
    """Latents (B, L_i) of the asked rows."""

    release: ClassVar[Release] = Release.ROWS
    z_BL: Tensor


@dataclass(frozen=True, slots=True)
class Decode(Message):
    """Decode these latents (B, L_i) of the same rows, denoised, and compare. They depend on other silos' latents."""

    release: ClassVar[Release] = Release.ROWS
    z_BL: Tensor


@dataclass(frozen=True, slots=True)
class LatentGradients(Message):
    """Gradient (B, L_i) of the silo's reconstruction loss in the latents that it was given."""

    release: ClassVar[Release] = Release.GRADIENTS
    gradient_BL: Tensor


@dataclass(frozen=True, slots=True)
class Descend(Message):
    """Gradient (B, L_i) of the whole loss in the silo's latents: update encoder and decoder."""

    release: ClassVar[Release] = Release.GRADIENTS
    gradient_BL: Tensor


class EndToEndParty(Party):
    """A silo whose autoencoder is trained through the coordinator's diffusion, which needs no seat among silos."""

    def __init__(self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device) -> None:
        self.coder = Coder(table, schema, streams, device)
        self.streams = streams
        self.kept: list[Table] = []
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.encoded = torch.zeros(0)

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator."""
        if not self.coder.encoders and not isinstance(ask, Prepare):
            raise ProtocolError("A silo is asked to prepare first", type(ask).__name__)
        match ask:
            case Prepare():
                return prepared(self.coder, ask)
            case Encode():
                return self._encode(ask)
            case Decode():
                return self._decode(ask)
            case Descend():
                return self._descend(ask)
            case Synthesise():
                return synthesised(self.coder, ask, self.streams, self.kept)
            case _:
                raise ProtocolError("An end-to-end silo does not understand this message", type(ask).__name__)

    def state(self) -> dict[str, Any]:
        """Encoders, autoencoder and its training."""
        return self.coder.state(training=True)

    def trained(self) -> dict[str, Any]:
        """What decoding needs: the silo's part of the model."""
        return self.coder.state(training=False)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state` or `trained`."""
        self.coder.restore(state)

    def _encode(self, ask: Encode) -> BatchLatents:
        coder, rows = self.coder, ask.rows
        if rows.dtype != torch.int64 or rows.dim() != 1 or not ((rows >= 0) & (rows < len(coder.table))).all():
            raise ProtocolError(f"Rows are numbers below {len(coder.table)}", f"{tuple(rows.shape)}, {rows.dtype}")
        self.rows = rows.to(coder.device)
        coder.network.train()
        coder.learner.optimizer.zero_grad()
        self.encoded, _ = coder.network.encode(coder.levels[self.rows], coder.scores[self.rows])
        return BatchLatents(self.encoded.detach().cpu())

    def _decode(self, ask: Decode) -> LatentGradients:
        coder = self.coder
        self.check(ask.z_BL, coder.read or coder.latents)
        z_BL = ask.z_BL.detach().to(coder.device).requires_grad_()
        levels, scores = coder.levels[self.rows], coder.scores[self.rows]
        coder.network.likelihood(z_BL, levels, scores, coder.config.weight).backward()
        return LatentGradients(torch.zeros_like(ask.z_BL) if z_BL.grad is None else z_BL.grad.cpu())

    def _descend(self, ask: Descend) -> Done:
        self.check(ask.gradient_BL, self.coder.latents)
        self.encoded.backward(ask.gradient_BL.to(self.coder.device))
        self.coder.learner.step()
        self.rows = self.rows[:0]
        return Done()

    def check(self, sent: Tensor, width: int) -> None:
        """Refuse what is not of the rows that were encoded last, so wide; and whatever comes when there are none.

        Raises:
            ProtocolError: names the shape.
        """
        if not len(self.rows) or tuple(sent.shape) != (len(self.rows), width):
            rule = f"A silo encodes rows, and is sent one vector of {width} for each"
            raise ProtocolError(rule, f"{tuple(sent.shape)} for {len(self.rows)} rows")


def coordinate(
    roster: Roster, config: SiloFuseConfig, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
    """Train; returns the coordinator's part of the model."""
    if config.latent.path != "gaussian" or config.coder.form != "plain":
        raise ConfigError("Joint training is for plain latents and Gaussian diffusion", config.latent.path)
    if config.dp.private:
        raise ConfigError("Joint training has no differential privacy", config.dp.epsilon, "Use silofuse, or no dp.")
    if state is None:
        coder = replace(config.coder, steps=config.latent.steps)  # both sides follow one schedule
        replies = yield roster.everyone(prepare(roster, replace(config, coder=coder)))
        rows, widths = check_rows(replies, roster)
        state = {"rows": rows, "widths": widths, "generator": None}
    generator = LatentGenerator(state["rows"], sum(state["widths"]), config.latent, streams.child("diffusion"), device)
    if state["generator"] is not None:
        generator.restore(state["generator"])
    while not generator.finished:
        yield from _train_part(roster, generator, state["rows"], state["widths"])
        yield Progress("joint training", generator.learner.done, generator.config.steps)
        yield Checkpoint({**state, "generator": generator.state(training=True)})
    return {"rows": state["rows"], "widths": state["widths"], "generator": generator.state(training=False)}


def _train_part(roster: Roster, generator: LatentGenerator, rows: int, widths: list[int]) -> Conversation[None]:
    config, learner = generator.config, generator.learner
    part = learner.done // generator.part
    draw = generator.streams.child("part", part).torch(generator.device)
    order = batches(rows, config.batch, generator.streams.child("rows", part).torch())
    while learner.done < min(config.steps, (part + 1) * generator.part):
        yield from _iterate(roster, generator, next(order), widths, draw)


def _iterate(
    roster: Roster, generator: LatentGenerator, rows: Tensor, widths: list[int], draw: torch.Generator
) -> Conversation[None]:
    z_BL = (yield from encoded(roster, rows)).to(generator.device).requires_grad_()
    denoised_BL, loss = generator.denoise(z_BL, draw)
    replies = yield roster.each(dict(zip(roster, map(Decode, split(denoised_BL.detach().cpu(), widths)), strict=True)))
    found = [reply.gradient_BL for party in roster if isinstance(reply := replies[party], LatentGradients)]
    generator.learner.optimizer.zero_grad()
    torch.autograd.backward([loss, denoised_BL], [None, torch.cat(found, dim=1).to(generator.device)])
    generator.learner.step()
    assert z_BL.grad is not None
    yield descend(roster, z_BL.grad.cpu(), widths)


def encoded(roster: Roster, rows: Tensor) -> Conversation[Tensor]:
    """What all silos make of these rows (B, L)."""
    replies = yield roster.everyone(Encode(rows))
    return torch.cat([reply.z_BL for party in roster if isinstance(reply := replies[party], BatchLatents)], dim=1)


def descend(roster: Roster, gradient_BL: Tensor, widths: list[int]) -> Exchange:
    """Each silo's part of the gradient (B, L); nobody waits for the answers."""
    updates = dict(zip(roster, map(Descend, split(gradient_BL, widths)), strict=True))
    return Exchange(updates, rides=True)
