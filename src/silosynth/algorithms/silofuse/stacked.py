"""SiloFuse: cross-silo synthesis with latent tabular diffusion (Shankar, Brouwer, Hai, Chen; ICDE 2024).

Columns of the same rows are spread over silos. Each silo trains an autoencoder on its own columns, freezes it, and
sends the latents of its training rows once; the coordinator joins them and trains one generative model of latents.
To sample, the coordinator draws latents, gives each silo its own part, and each silo decodes it.

====================================  ==========================================
paper                                 here
====================================  ==========================================
Algorithm 1, lines 1-8                `_train_autoencoders`, `SiloFuseParty._train`
Algorithm 1, lines 9-12               `_gather_latents`, `SiloFuseParty._latents`
Algorithm 1, lines 13-18              `train_diffusion`
Algorithm 2                           `drawn`, `decoded`, `synthesised`
eq. (1), (2), (5)                     `models.latent`; eq. (4): `models.autoencoder`
====================================  ==========================================

Readings and deviations, each an option:

* The paper hovers between autoencoder and VAE: ``coder.form``. Ours is "noisy": the decoder learns to read
  unit-variance latents through noise, so that levels lie further apart than the generator's error.
* Its eq. (5) predicts latents, its text noise: ``latent.target``. Ours is neither: the velocity of a rectified flow.
* "Embedding 32 and hidden 1024" are read as the widths of two hidden layers, divided among the silos.
* "500,000 iterations encompassing the autoencoders and the DDPM" are read as 500 000 for each.
* The paper names neither its optimiser (here AdamW without decay), nor the denoiser's width (here 512), nor how
  variances grow (here linearly), and calls the denoiser "bilinear" (here eight linear layers). Encoders are ours
  throughout.
* 25 sampling steps against 200 in training need a respaced sampler: strided posterior (``eta`` = 1) or DDIM (0).
* ``coder.calibrate`` is ours: each silo shifts its decoder's heads so that the rows it decodes have the marginals of
  its own training rows. It needs no message.
* Whoever is the paper's C_1, coordinator and silo at once, runs both roles; the conversation is the same.

What leaves a silo: the number of its rows and latents; **one latent vector per training row, un-noised**, to the
coordinator; synthetic columns, to whoever assembles the table (not at all if they stay partitioned). Latents hide
values from somebody who knows nothing about them; they are not anonymous. Without ``dp`` (`private`), no formal
guarantee protects anybody here.

The number and size of messages do not depend on the number of iterations.

Shapes: N training rows, L latents of all silos, L_i of silo i, G generated rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from silosynth.algorithms.silofuse import private
from silosynth.algorithms.silofuse.coder import PARTS, Coder
from silosynth.algorithms.silofuse.messages import (
    AskLatents,
    Latents,
    Prepare,
    Prepared,
    SiloFuseConfig,
    Synthesise,
    SyntheticColumns,
    TrainAutoencoder,
)
from silosynth.algorithms.silofuse.private_silo import PrivateSide
from silosynth.core.conversation import Checkpoint, Conversation, Party, Progress, Replies
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Done, Message
from silosynth.core.roster import Roster
from silosynth.core.schema import Schema, Table
from silosynth.core.streams import Streams
from silosynth.models.latent import LatentGenerator
from silosynth.privacy.sealed import Seat


class SiloFuseParty(Party):
    """A silo C_i: holds its columns X_i, its encoder and its decoder. Says nothing to other silos: needs no seat."""

    def __init__(self, table: Table, schema: Schema, seat: Seat, streams: Streams, device: torch.device) -> None:
        self.coder = Coder(table, schema, streams, device)
        self.private = PrivateSide(self.coder, seat, streams)
        self.streams = streams
        self.kept: list[Table] = []  # synthetic columns that stay here, when synthesis is partitioned

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator."""
        if self.private.dp.private and isinstance(ask, TrainAutoencoder | AskLatents):
            raise ProtocolError("Under differential privacy, rows are not asked after otherwise", type(ask).__name__)
        match ask:
            case Prepare():
                return prepared(self.coder, ask)
            case TrainAutoencoder():
                return self._train(ask)
            case AskLatents():
                return self._latents()
            case Synthesise():
                return synthesised(self.coder, ask, self.streams, self.kept)
        reply = self.private.answer(ask)
        if reply is None:
            raise ProtocolError("A SiloFuse silo does not understand this message", type(ask).__name__)
        return reply

    def state(self) -> dict[str, Any]:
        """Encoders, autoencoder and its training."""
        return {**self.coder.state(training=True), "private": self.private.state()}

    def trained(self) -> dict[str, Any]:
        """What decoding needs: the silo's part of the model."""
        return self.coder.state(training=False)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state` or `trained`."""
        self.coder.restore(state)
        if "private" in state:
            self.private.restore(state["private"])

    def _train(self, ask: TrainAutoencoder) -> Done:
        self.coder.train(ask.part, ask.parts)
        return Done()

    def _latents(self) -> Latents:
        return Latents(self.coder.encode())


def prepared(coder: Coder, ask: Prepare) -> Prepared:
    """A silo's answer to `Prepare`."""
    coder.fit_encoders(ask.coder)
    return Prepared(len(coder.table), coder.latents)


def synthesised(coder: Coder, ask: Synthesise, streams: Streams, kept: list[Table]) -> Message:
    """A silo's answer to `Synthesise`: its columns if they are shared, otherwise it keeps them."""
    table = coder.decode(ask.z_GL, ask.rows, streams.child("synthesise", ask.draw))
    if ask.share:
        return SyntheticColumns(table)
    kept.append(table)
    return Done()


def coordinate(
    roster: Roster, config: SiloFuseConfig, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
    """Train; returns the coordinator's part of the model (paper, Algorithm 1)."""
    if state is None or "latents" not in state:
        state = yield from (private.gather if config.dp.private else _gather)(roster, config, state)
    noised = config.dp.private and config.dp_mode == "release"
    train = private.train_diffusion if noised else train_diffusion
    generator = yield from train(config, streams, device, state)
    rows = state.get("rows", len(state["latents"]))
    return {"rows": rows, "widths": state["widths"], "generator": generator.state(training=False)}


def _gather(roster: Roster, config: SiloFuseConfig, state: dict[str, Any] | None) -> Conversation[dict[str, Any]]:
    """Lines 1 to 12."""
    if state is None:
        replies = yield roster.everyone(prepare(roster, config))
        check_rows(replies, roster)
        state = {"part": 0}
        yield Checkpoint(state)
    yield from _train_autoencoders(roster, state["part"])
    z_NL, widths = yield from _gather_latents(roster)
    state = {"latents": z_NL, "widths": widths, "generator": None}
    yield Checkpoint(state)
    return state


def synthesise(
    roster: Roster, config: SiloFuseConfig, model: dict[str, Any], rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Draw ``rows`` synthetic rows; each silo's columns, or none where they stay partitioned (paper, Algorithm 2)."""
    z_GL = drawn(config, model, rows, streams, device)
    return (yield from decoded(roster, config, split(z_GL, model["widths"]), rows, streams))


def drawn(config: SiloFuseConfig, model: dict[str, Any], rows: int, streams: Streams, device: torch.device) -> Tensor:
    """Generated latents (G, L): for ``rows`` rows, or more of them to match marginals by (Algorithm 2, lines 1-4)."""
    generator = LatentGenerator(model["rows"], sum(model["widths"]), private.latent_config(config), streams, device)
    generator.restore(model["generator"])
    many = max(rows, config.least_rows) if config.coder.calibrate else rows
    return generator.sample(many, streams.child("latents"))


def decoded(
    roster: Roster, config: SiloFuseConfig, parts: list[Tensor], rows: int, streams: Streams
) -> Conversation[dict[str, Table]]:
    """The columns that silos make of what each is given of the generated latents (Algorithm 2, lines 6-7)."""
    draw, share = "/".join(streams.path), config.synthesis == "shared"
    asks = {id(z): Synthesise(z, rows, draw, share) for z in parts}  # one where all are given the same
    replies = yield roster.each({party: asks[id(z)] for party, z in zip(roster, parts, strict=True)})
    return {party: reply.table for party, reply in replies.items() if isinstance(reply, SyntheticColumns)}


def prepare(roster: Roster, config: SiloFuseConfig) -> Prepare:
    """The opening message, with hidden widths divided among the silos where the config says so."""
    share = len(roster) if config.divide else 1
    return Prepare(replace(config.coder, hidden=tuple(max(1, width // share) for width in config.coder.hidden)))


def check_rows(replies: Replies, roster: Roster) -> tuple[int, list[int]]:
    """The number of rows, which must be the same everywhere, and each silo's number of latents."""
    found = [reply for party in roster if isinstance(reply := replies[party], Prepared)]
    if len({reply.rows for reply in found}) > 1:
        rows = {party: reply.rows for party, reply in zip(roster, found, strict=True)}
        raise ProtocolError(
            "Silos must hold the same rows in the same order", rows, "Align the silos by an identifier first."
        )
    return found[0].rows, [reply.latents for reply in found]


def _train_autoencoders(roster: Roster, done: int) -> Conversation[None]:
    for part in range(done, PARTS):
        yield Progress("autoencoders", part, PARTS)
        yield roster.everyone(TrainAutoencoder(part, PARTS))
        yield Checkpoint({"part": part + 1})
    yield Progress("autoencoders", PARTS, PARTS)


def _gather_latents(roster: Roster) -> Conversation[tuple[Tensor, list[int]]]:
    replies = yield roster.everyone(AskLatents())
    parts = [reply.z_NL for party in roster if isinstance(reply := replies[party], Latents)]
    return torch.cat(parts, dim=1), [z.shape[1] for z in parts]


def train_diffusion(
    config: SiloFuseConfig, streams: Streams, device: torch.device, state: dict[str, Any]
) -> Conversation[LatentGenerator]:
    """Train the generator of the latents in ``state``; every checkpoint holds the state as well (lines 13-18)."""
    z_NL = state["latents"].to(device)
    generator = LatentGenerator(len(z_NL), z_NL.shape[1], config.latent, streams.child("diffusion"), device)
    if state["generator"] is not None:
        generator.restore(state["generator"])
    x_NL = generator.standardise(z_NL)
    while not generator.finished:
        loss = generator.train(x_NL)
        yield Progress("diffusion", generator.learner.done, generator.config.steps, {"held-out loss": loss})
        yield Checkpoint({**state, "generator": generator.state(training=True)})
    generator.finish()
    return generator


def split(z_GL: Tensor, widths: list[int]) -> list[Tensor]:
    """Latents of all silos, cut into each silo's own (Algorithm 2, line 5)."""
    return [z.contiguous() for z in z_GL.split(widths, dim=1)]
