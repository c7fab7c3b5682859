"""SiloFuse: cross-silo synthesis with latent tabular diffusion (Shankar, Brouwer, Hai, Chen; ICDE 2024).

Columns of the same rows are spread over silos. Each silo trains an autoencoder on its own columns, freezes it, and
sends the latents of its training rows once; the coordinator joins them and trains one generative model of latents.
To sample, the coordinator draws latents, gives each silo its own part, and each silo decodes it.

=====================================  ==============================================================
paper                                  here
=====================================  ==============================================================
Algorithm 1, lines 1-8                 `_train_autoencoders`, `networks.Coder.train`
Algorithm 1, lines 9-12                `_gather_latents`, `networks.Coder.encode`
Algorithm 1, lines 13-18               `_train_diffusion`
Algorithm 2, lines 1-4, 5, 6-7         `_drawn`, `split`, `_decoded` and `networks.Coder.decode`
eq. (1), (2), (5)                      `models.gaussian`; eq. (4): `models.autoencoder`
section V-A, figures 8 and 9           `coordinate_end_to_end`
=====================================  ==============================================================

Readings and deviations, each an option:

* The paper speaks of an autoencoder and of a VAE: ``coder.form``. Our default is "noisy": the decoder learns to read
  unit-variance latents through noise, so that levels lie further apart than the generator's error.
* Its eq. (5) predicts latents, its text noise: ``latent.target``. Our default predicts the velocity of a rectified
  flow.
* "Embedding 32 and hidden 1024" are read as the widths of two hidden layers, divided among the silos.
* "500,000 iterations encompassing the autoencoders and the DDPM" are read as 500 000 for each.
* The paper names neither its optimiser (here AdamW without decay), nor the denoiser's width (here 512), nor how
  variances grow (here linearly), and calls the denoiser "bilinear" (here eight linear layers). Column encoders are
  ours throughout.
* 25 sampling steps against 200 in training need a respaced sampler: strided posterior (``eta`` = 1) or DDIM (0).
* ``own_rows`` is ours: a silo trains its autoencoder on rows too that only it has. It sends no latents of these, and
  marginals are matched to the rows that all silos have, which the synthetic table stands for.
* ``coder.calibrate`` is ours: each silo shifts its decoder's heads so that the rows it decodes have the marginals of
  its own training rows. It needs no message.
* The paper's C_1, coordinator and silo at once, runs both roles; the conversation is the same.

**Conditions** (ours). `synthesise_given` leads latents to conditions that a silo has been told: `models.chains`. The
coordinator learns of each generated latent how probable they are, so how frequent they are, but not their columns or
values; a silo learns that there are conditions, and its own.

What leaves a silo: the number of its rows and latents; **one latent vector per training row, un-noised**, to the
coordinator; synthetic columns, to whoever assembles the table (not at all if they stay partitioned). Latents hide
values only from somebody who knows nothing about them; they are not anonymous. Without ``dp`` (`private`), no formal
guarantee protects anybody here. The number and size of messages do not depend on the number of iterations.

**E2E and E2EDistr** (`coordinate_end_to_end`), the baselines that SiloFuse is measured against, train autoencoders and
diffusion jointly. In every iteration latents of a batch go to the coordinator, and gradients return the same way:

    silo                       coordinator                            silo
    z_i = E_i(x_i)      -->    z~ = denoised F(z, t, e)        -->    L_AE(D_i(z~_i), x_i)
    update E_i          <--    update G; dL/dz                 <--    dL_AE/dz~_i; update D_i

Loss: the diffusion's squared error plus every silo's L_AE (figure 9). With one silo this is E2E, with several E2EDistr.
What leaves a silo, in every iteration: un-noised latents and gradients of a batch of training rows. What a silo gets
back depends on the other silos' latents of the same rows, so silos learn about each other too. Bytes grow with
iterations. Sampling is SiloFuse's.

**Joint latents** (`coordinate_joint`) are ours. In SiloFuse each silo encodes its columns alone, and the generator has
to find out how they relate to those of other silos. Here one vector per row is learnt for all columns, split between
silos and coordinator like TabVFL's (section IV), and read by every silo's decoder:

    silo                       coordinator                            silo
    e_i = E_i(x_i)      -->    z = J(e_1, ..., e_n)
                               z~ = z + sigma noise            -->    L_AE(D_i(z~), x_i)
    update E_i          <--    update J; dL/de_i               <--    dL_AE/dz~; update D_i

TabVFL's masks, TabNet and fine-tuning by a label are left out; latents of unit variance, read through noise, are
added. Then E, J and D are frozen, and the coordinator trains SiloFuse's generator on z. To sample, every silo gets the
same generated latents, and decodes its columns. What leaves a silo: what E2EDistr's silos send, encodings of all rows
at the end, and losses of held-out rows. **Silos get latents of training rows to which all silos have contributed**,
through noise that averages out over epochs, and gradients that depend on them. Nothing protects silos from each other
here, or from the coordinator, which has all it needs to have a silo decode a training row.

Shapes: N training rows, B rows of a batch, L latents of all silos, L_i of silo i, G generated rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from silosynth.algorithms.silofuse import networks, private
from silosynth.algorithms.silofuse.options import SiloFuseConfig
from silosynth.core import conversation
from silosynth.core.conversation import (
    Checkpoint,
    Conversation,
    Exchange,
    Progress,
    Roster,
    State,
    check_tensor,
    expect,
)
from silosynth.core.errors import ConfigError
from silosynth.core.messages import Done, Message, Release, Rows, Size, check_part
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.models.chains import Chains, Led
from silosynth.models.latent import LatentGenerator
from silosynth.models.training import batches

PARTS = 10  # messages in which the autoencoders' training is asked for, whatever the number of iterations
_CHUNK = 8192  # rows that are encoded at once when joint training has ended
_WORTH = 3.5  # times as many latents as without conditions are to be enough in all, if conditions are not rare
_PLENTY, _RARE = 2, 16  # times as many are drawn to find some that chains begin with, if they have to; of rare ones
_ALIKE, _MOST_ALIKE = 48, 64  # rows for each that is found, wanted and at most: others are of chains from it
_STEPS, _FIRST = 20, 5  # of chains; and after how many the first place counts
_APART = 1.75  # steps between two places of a chain that count, at least


# Messages in talking order.


class FitCoder(Message, common=True):
    """Coordinator: fit encoders and make an autoencoder."""


class CoderFitted(Message, release=Release.COUNTS):
    """Silo: the numbers of its rows, and of the latents of each."""

    rows: int
    latents: int


class TrainAutoencoder(Message, common=True):
    """Coordinator: train your autoencoder for part ``part`` of `PARTS`."""

    part: int

    def _check(self) -> None:
        check_part(self.part, PARTS)


class AskLatents(Message, common=True):
    """Coordinator: freeze your autoencoder and send your latents."""


class Latents(Message, release=Release.ROWS):
    """Silo: latents (N, L_i) of its training rows."""

    z_NL: Tensor


class SynthesiseFromLatents(Message, release=Release.SYNTHETIC):
    """Coordinator: decode the first ``rows`` of generated latents (G, L_i); all of them serve to match marginals.

    ``draw`` names the random stream.
    """

    z_GL: Tensor
    rows: Rows[int]
    draw: str


class WeighLatents(Message, release=Release.SYNTHETIC):
    """Coordinator: how probable are your conditions, given generated latents (G, L_i)?

    The first in a sampling are drawn without a condition, and serve to match marginals. ``draw`` names the stream.
    """

    z_GL: Tensor
    draw: str


class LatentWeights(Message, release=Release.SYNTHETIC):
    """Silo: that probability of each (G,), 1 where it has no conditions."""

    chance_G: Tensor


# Messages of joint training, in talking order.


class JoinLatents(Message, common=True):
    """Coordinator: make a fresh autoencoder, whose decoder reads ``latents`` latents, of all silos."""

    latents: Size[int]


class EncodeBatch(Message, common=True):
    """Coordinator: encode these training rows."""

    rows: Tensor


class BatchLatents(Message, release=Release.ROWS):
    """Silo: latents (B, L_i) of those rows."""

    z_BL: Tensor


class DecodeBatch(Message, release=Release.ROWS):
    """Coordinator: the loss's gradient at these latents of the same rows, (B, L_i) denoised ones or (B, L) joint ones.

    They depend on other silos' latents.
    """

    z_BL: Tensor


class LatentGradients(Message, release=Release.GRADIENTS):
    """Silo: gradient of its reconstruction loss in the latents that it was given, of their shape."""

    grad_z_BL: Tensor


class UpdateCoder(Message, release=Release.GRADIENTS):
    """Coordinator: gradient (B, L_i) of the whole loss in the silo's latents; take a step."""

    grad_z_BL: Tensor


class AskLoss(Message, release=Release.ROWS, common=True):
    """Coordinator: your loss of the rows that you encoded last, decoded from these latents (B, L)."""

    z_BL: Tensor


class HeldOutLoss(Message, release=Release.STATISTICS):
    """Silo: its reconstruction loss of those rows."""

    loss: float


class KeepWeights(Message, common=True):
    """Coordinator: all silos' losses of held-out rows together have never been so low; keep these weights."""


class SettleWeights(Message, common=True):
    """Coordinator: training has ended; take the weights that were kept."""


# SiloFuse.


def coordinate(
    roster: Roster, config: SiloFuseConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Train; returns the coordinator's part of the model (Algorithm 1)."""
    if state is None:
        state = yield from private.prepare(roster, config) if config.dp.private else _prepare(roster)
        yield Checkpoint(state)
    if "latents" not in state:
        yield from _train_autoencoders(roster, config, state)
        state = yield from (private.gather_latents if config.dp.private else _gather_latents)(roster, state)
        yield Checkpoint(state)
    return (yield from _train_diffusion(config, streams, device, state))


def synthesise(
    roster: Roster, config: SiloFuseConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """Draw ``rows`` synthetic rows; each silo's columns, or none where they stay partitioned (Algorithm 2)."""
    z_GL = _drawn(config, model, rows, streams, device)
    return (yield from _decoded(roster, split(z_GL, model["widths"]), rows, streams))


def synthesise_given(
    roster: Roster, config: SiloFuseConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """As `synthesise`, for silos that have been told conditions: nearly all rows fulfil them, and maybe fewer come.

    Latents are drawn as without conditions, and kept by how probable these are. Where that would take too many,
    chains lead to others from those that were found, and places on their way are rows.

    Raises:
        ConfigError: none is found.
    """
    if not config.guided:
        return (yield from synthesise(roster, config, model, rows, streams, device))
    generator, widths = _restored(config, model, streams, device), model["widths"]
    usual = max(rows, config.least_rows)
    found, drawn = yield from _found(roster, widths, generator, rows, usual, streams.child("found"))
    if not len(found):
        rule, remedy = "So few rows fulfil the conditions that none was found", "Ask for something more frequent."
        raise ConfigError(rule, f"0 of {drawn:,} rows", remedy)
    more = min(rows, _MOST_ALIKE * len(found)) - len(found)
    if more > 0:
        affordable, last = int(max(_WORTH * usual - drawn, drawn / 3)), _STEPS - _FIRST
        chains = Chains(found, min(more, max(affordable // _STEPS, math.ceil(_APART * more / last))))
        for number in range(_STEPS):
            own = streams.child("step", number)
            chains.step((yield from _weighed(roster, widths, generator, chains.proposed(own), own)), own)
            chains.pass_by(more * max(0, number + 1 - _FIRST) // last)
        found = found.and_then(chains.passed)
    z_GL = found.z_GL[:rows]
    return (yield from _decoded(roster, split(z_GL, widths), len(z_GL), streams))


def _found(
    roster: Roster, widths: list[int], generator: LatentGenerator, rows: int, usual: int, streams: Streams
) -> Conversation[tuple[Led, int]]:
    """Latents under conditions, ``rows`` or as many as are found among those that may be drawn; and how many were."""
    size, drawn, lots = usual, 0, list[Led]()
    while not lots or (size := _more(sum(map(len, lots)), drawn, rows, usual)):
        own = streams.child(drawn)
        weighed = yield from _weighed(roster, widths, generator, generator.start(size, own.child("latents")), own)
        lots.append(weighed.kept(own))
        drawn += size
    return functools.reduce(Led.and_then, lots), drawn


def _more(found: int, drawn: int, rows: int, usual: int) -> int:
    """How many latents to draw next, by how many were found so far; 0 where they are enough, or too rare."""
    likely = math.ceil(1.1 * (rows - found) * (drawn + 1) / (found + 1))
    most = _PLENTY if _ALIKE * found >= rows else _RARE
    most = int(usual * (_WORTH if drawn + likely <= _WORTH * usual else most))
    return max(0, min(likely, most - drawn, usual)) if found < rows else 0


def _weighed(
    roster: Roster, widths: list[int], generator: LatentGenerator, noise_GL: Tensor, streams: Streams
) -> Conversation[Led]:
    """The latents that noise leads to, and how probable all silos' conditions are of these."""
    z_GL, draw = generator.carried(noise_GL), "/".join(streams.path)
    asks = {silo: WeighLatents(z, draw) for silo, z in zip(roster, split(z_GL, widths), strict=True)}
    replies = expect((yield roster.each(asks)), LatentWeights)
    for reply in replies:
        check_tensor("Probabilities of conditions", reply.chance_G, len(z_GL))
    return Led(noise_GL, z_GL, torch.stack([reply.chance_G for reply in replies]).prod(dim=0))


def _prepare(roster: Roster) -> Conversation[State]:
    replies = expect((yield roster.everyone(FitCoder())), CoderFitted)
    conversation.check_same_rows(roster, [reply.rows for reply in replies])
    return {"part": 0, "rows": replies[0].rows, "widths": [reply.latents for reply in replies]}


def _train_autoencoders(roster: Roster, config: SiloFuseConfig, state: State) -> Conversation[None]:
    coder = config.coder_of(len(roster))
    note = _fewer("coder", coder.steps, coder.sized(state["rows"]).steps)
    for part in range(state["part"], PARTS):
        yield Progress("autoencoders", part, PARTS, note=note)
        expect((yield roster.everyone(TrainAutoencoder(part))), Done)
        yield Checkpoint({**state, "part": part + 1})
    yield Progress("autoencoders", PARTS, PARTS)


def _fewer(part: str, steps: int, made: int) -> str:
    """That a table of few rows gets fewer steps than the options say."""
    return f"{made:,} of {steps:,} steps: few rows get fewer, unless {part}.fit_to_rows = false" if made < steps else ""


def _gather_latents(roster: Roster, state: State) -> Conversation[State]:
    replies = expect((yield roster.everyone(AskLatents())), Latents)
    return {**state, "latents": torch.cat([reply.z_NL for reply in replies], dim=1), "generator": None}


def _train_diffusion(
    config: SiloFuseConfig, streams: Streams, device: torch.device, state: State
) -> Conversation[State]:
    """Train the generator of the latents in ``state``, which every checkpoint holds too (lines 13-18); the model."""
    z_NL = state["latents"].to(device)
    generator = LatentGenerator(state["rows"], z_NL.shape[1], config.generator(), streams.child("diffusion"), device)
    if state["generator"] is not None:
        generator.restore(state["generator"])
    x_NL = z_NL if config.releases else generator.standardise(z_NL)  # mean and scale would have to be noised
    note = _fewer("latent", config.generator().steps, generator.config.steps)
    while not generator.finished:
        figures = {}
        if config.releases:
            private.train_latent_part(generator, x_NL, state, config.dp.clip, streams)
        else:
            figures["held-out loss"] = generator.train(x_NL)
        yield Progress("diffusion", generator.learner.done, generator.config.steps, figures, note)
        yield Checkpoint({**state, "generator": generator.state(training=True)})
    generator.finish()
    return _model(state, generator)


def split(z_GL: Tensor, widths: list[int]) -> list[Tensor]:
    """Latents of all silos, cut into each silo's own (Algorithm 2, line 5)."""
    return [z.contiguous() for z in z_GL.split(widths, dim=1)]


def _model(state: State, generator: LatentGenerator) -> State:
    return {"rows": state["rows"], "widths": state["widths"], "generator": generator.state(training=False)}


def _restored(config: SiloFuseConfig, model: State, streams: Streams, device: torch.device) -> LatentGenerator:
    generator = LatentGenerator(model["rows"], sum(model["widths"]), config.generator(), streams, device)
    generator.restore(model["generator"])
    return generator


def _drawn(config: SiloFuseConfig, model: State, rows: int, streams: Streams, device: torch.device) -> Tensor:
    """Generated latents (G, L): for ``rows`` rows, or more of them to match marginals by (Algorithm 2, lines 1-4)."""
    generator = _restored(config, model, streams, device)
    return generator.sample(max(rows, config.least_rows) if config.coder.calibrate else rows, streams.child("latents"))


def _decoded(roster: Roster, parts: list[Tensor], rows: int, streams: Streams) -> Conversation[dict[str, Table]]:
    """The columns that silos decode from their parts of the generated latents (Algorithm 2, lines 6-7)."""
    draw = "/".join(streams.path)
    asks = {id(z): SynthesiseFromLatents(z, rows, draw) for z in parts}  # one where all are given the same
    replies = yield roster.each({silo: asks[id(z)] for silo, z in zip(roster, parts, strict=True)})
    return conversation.shared_columns(replies)


# E2E and E2EDistr.


def coordinate_end_to_end(
    roster: Roster, config: SiloFuseConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Train autoencoders and diffusion jointly; returns the coordinator's part of the model."""
    if config.latent.path != "gaussian" or config.coder.form != "plain":
        raise ConfigError("Joint training is for plain latents and Gaussian diffusion", config.latent.path)
    if config.latent.accumulate > 1:
        rule = "In joint training each batch is a step, of silos as well"
        raise ConfigError(rule, f"latent.accumulate = {config.latent.accumulate}", "Set it to 1.")
    check_joint(config)
    if state is None:
        prepared = yield from _prepare(roster)
        state = {**prepared, "generator": None}
    generator = LatentGenerator(state["rows"], sum(state["widths"]), config.latent, streams.child("diffusion"), device)
    if state["generator"] is not None:
        generator.restore(state["generator"])
    note = _fewer("latent", config.latent.steps, generator.config.steps)
    while not generator.finished:
        yield from _train_end_to_end(roster, generator, state["rows"], state["widths"])
        yield Progress("joint training", generator.learner.done, generator.config.steps, note=note)
        yield Checkpoint({**state, "generator": generator.state(training=True)})
    return _model(state, generator)


def _train_end_to_end(roster: Roster, generator: LatentGenerator, rows: int, widths: list[int]) -> Conversation[None]:
    """The iterations between two checks."""
    config, learner = generator.config, generator.learner
    part = learner.done // generator.part
    draw = generator.streams.child("part", part).torch(generator.device)
    order = batches(rows, config.batch, generator.streams.child("rows", part).torch())
    while learner.done < min(config.steps, (part + 1) * generator.part):
        z_BL = (yield from _encoded(roster, next(order))).to(generator.device).requires_grad_()
        denoised_BL, loss = generator.denoise(z_BL, draw)
        gradients = yield from _gradients(roster, split(denoised_BL.detach().cpu(), widths))
        learner.descend([loss, denoised_BL], [None, torch.cat(gradients, dim=1).to(generator.device)])
        yield _update(roster, z_BL, widths)


def _encoded(roster: Roster, rows: Tensor) -> Conversation[Tensor]:
    """All silos' latents (B, L) of these rows."""
    replies = expect((yield roster.everyone(EncodeBatch(rows))), BatchLatents)
    return torch.cat([reply.z_BL for reply in replies], dim=1)


def _gradients(roster: Roster, parts: Sequence[Tensor]) -> Conversation[list[Tensor]]:
    """Each silo's gradient in the latents that it is given."""
    asks = {id(z): DecodeBatch(z) for z in parts}  # one where all are given the same
    replies = yield roster.each({silo: asks[id(z)] for silo, z in zip(roster, parts, strict=True)})
    return [reply.grad_z_BL for reply in expect(replies, LatentGradients)]


def _update(roster: Roster, z_BL: Tensor, widths: list[int]) -> Exchange:
    """Send each silo its part of the gradient in its latents; nobody waits for the answers."""
    assert z_BL.grad is not None
    updates = zip(roster, map(UpdateCoder, split(z_BL.grad.cpu(), widths)), strict=True)
    return Exchange(dict(updates), rides=True)


def check_joint(config: SiloFuseConfig) -> None:
    """Refuse differential privacy, and rows of one silo alone, which joint training does not have.

    Raises:
        ConfigError: it is asked for.
    """
    if config.dp.private:
        raise ConfigError("Joint training has no differential privacy", config.dp.epsilon, "Use silofuse, or no dp.")
    if config.own_rows:
        raise ConfigError("Joint training is of rows that all silos have", "own_rows = true", "Use silofuse.")


# Joint latents.


def coordinate_joint(
    roster: Roster, config: SiloFuseConfig, streams: Streams, device: torch.device, state: State | None = None
) -> Conversation[State]:
    """Train joint latents, then SiloFuse's generator of them; returns the coordinator's part of the model."""
    if config.coder.form != "plain":
        raise ConfigError(
            "Joint latents are normalised at the coordinator, not in silos",
            config.coder.form,
            "Leave coder.form plain.",
        )
    check_joint(config)
    if state is None:
        prepared = yield from _prepare(roster)
        yield Exchange(dict.fromkeys(roster, JoinLatents(sum(prepared["widths"]))), rides=True)
        state = {**prepared, "joint": None}
    if "latents" not in state:
        state = yield from _train_joint(roster, config, streams.child("joint"), device, state)
        yield Checkpoint(state)
    return (yield from _train_diffusion(config, streams, device, state))


def synthesise_joint(
    roster: Roster, config: SiloFuseConfig, model: State, rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """As `synthesise`, except that every silo reads all latents."""
    z_GL = _drawn(config, model, rows, streams, device)
    return (yield from _decoded(roster, [z_GL] * len(roster), rows, streams))


def _train_joint(
    roster: Roster, config: SiloFuseConfig, streams: Streams, device: torch.device, state: State
) -> Conversation[State]:
    """Train the autoencoder; the state with latents (N, L) of all rows."""
    joint = networks.JointCoder(state["rows"], sum(state["widths"]), config.coder, streams, device)
    if state["joint"] is not None:
        joint.learner.restore(state["joint"])
    learner, note = joint.learner, _fewer("coder", config.coder.steps, joint.config.steps)
    while learner.done < learner.steps:
        yield from _train_joint_part(roster, joint, state["widths"])
        yield Progress("joint autoencoder", learner.done, learner.steps, note=note)
        yield Checkpoint({**state, "joint": learner.state()})
    yield Exchange(dict.fromkeys(roster, SettleWeights()), rides=True)
    learner.settle()
    latents = []
    for chunk in torch.arange(joint.rows).split(_CHUNK):
        latents.append(joint.encode((yield from _encoded(roster, chunk))))
    return {**state, "joint": None, "latents": torch.cat(latents).cpu(), "generator": None}


def _train_joint_part(roster: Roster, joint: networks.JointCoder, widths: list[int]) -> Conversation[None]:
    """A tenth of the iterations, judged by held-out rows."""
    learner, streams = joint.learner, joint.streams
    length = max(1, learner.steps // PARTS)
    part = learner.done // length
    draw = streams.child("noise", part).torch(joint.device)
    order = batches(len(joint.train_rows), joint.config.batch, streams.child("rows", part).torch())
    joint.network.train()
    while learner.done < min(learner.steps, (part + 1) * length):
        yield from _iterate_joint(roster, joint, joint.train_rows[next(order)], widths, draw)
    if joint.config.held_out:
        yield from _judge_joint(roster, joint)


def _iterate_joint(
    roster: Roster, joint: networks.JointCoder, rows: Tensor, widths: list[int], draw: torch.Generator
) -> Conversation[None]:
    e_BL = (yield from _encoded(roster, rows)).to(joint.device).requires_grad_()
    z_BL = joint.network(e_BL)
    gradients = yield from _gradients(roster, [joint.noised(z_BL, draw)] * len(roster))
    joint.descend(z_BL, torch.stack(gradients).sum(dim=0))
    yield _update(roster, e_BL, widths)


def _judge_joint(roster: Roster, joint: networks.JointCoder) -> Conversation[None]:
    z_BL = joint.encode((yield from _encoded(roster, joint.judge_rows)))  # in one piece: silos remember the last
    ask = AskLoss(joint.noised(z_BL, joint.streams.child("judge").torch(joint.device)))
    replies = expect((yield roster.everyone(ask)), HeldOutLoss)
    if joint.learner.judge(sum(reply.loss for reply in replies)):
        yield Exchange(dict.fromkeys(roster, KeepWeights()), rides=True)
