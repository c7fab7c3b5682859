"""SiloFuse on one joint representation: latents that describe a row's columns in all silos at once. Ours.

In SiloFuse each silo encodes its columns alone, and the generator has to find out what they have to do with those of
other silos. Here one vector per row is learnt for all of them, split between silos and coordinator like TabVFL's
(section IV), and read by every silo's decoder:

    silo                       coordinator                            silo
    e_i = E_i(x_i)      -->    z = J(e_1, ..., e_n)
                               z~ = z + sigma noise            -->    L_AE(D_i(z~), x_i)
    update E_i          <--    update J; dL/de_i               <--    dL_AE/dz~; update D_i

What TabVFL has and synthesis has no use for is left out: masks, TabNet, fine-tuning by a label. What it lacks is here:
latents of unit variance, which decoders learn to read through noise. Then E, J and D are frozen, and the coordinator
trains SiloFuse's generator on z. To sample, every silo gets the same generated latents, and decodes its columns.

What leaves a silo: the number of its rows and latents; un-noised encodings and gradients of a batch of training rows
in every iteration, and encodings of all rows at the end; losses of held-out rows; synthetic columns. **Silos get
latents of training rows to which all silos have contributed**, through noise that averages out over epochs, and
gradients that depend on them. Nothing protects silos from each other here, or from the coordinator, which has all it
needs to have a silo decode a training row.

Shapes: N training rows, B rows of a batch, L latents, as many as all silos' encoders have outputs; L_i of silo i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from silosynth.algorithms.silofuse.coder import PARTS, CoderConfig, sized
from silosynth.algorithms.silofuse.end_to_end import Decode, EndToEndParty, LatentGradients, descend, encoded
from silosynth.algorithms.silofuse.messages import PRESETS as STACKED
from silosynth.algorithms.silofuse.messages import SiloFuseConfig
from silosynth.algorithms.silofuse.stacked import check_rows, decoded, drawn, prepare, train_diffusion
from silosynth.core.conversation import Checkpoint, Conversation, Exchange, Progress
from silosynth.core.errors import ConfigError
from silosynth.core.messages import Done, Message, Release, check_positive
from silosynth.core.roster import Roster
from silosynth.core.schema import Table
from silosynth.core.streams import Streams
from silosynth.models.autoencoder import JointEncoder
from silosynth.models.layers import build
from silosynth.models.training import Learner, batches, held_out

_CHUNK = 8192  # rows that are encoded at once when training has ended
PRESETS: Mapping[str, SiloFuseConfig] = {
    name: replace(config, coder=replace(config.coder, form="plain"))  # unit variance and noise are the coordinator's
    for name, config in STACKED.items()
    if name != "paper"
}


@dataclass(frozen=True, slots=True)
class Join(Message):
    """Your decoder reads so many latents, of all silos: make a fresh autoencoder."""

    latents: int

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        check_positive(self, "latents")


@dataclass(frozen=True, slots=True)
class Compare(Message):
    """Decode these latents (B, L) of the rows that you encoded last, and compare."""

    release: ClassVar[Release] = Release.ROWS
    z_BL: Tensor


@dataclass(frozen=True, slots=True)
class Compared(Message):
    """The silo's reconstruction loss of those rows."""

    release: ClassVar[Release] = Release.STATISTICS
    loss: float


@dataclass(frozen=True, slots=True)
class Keep(Message):
    """All silos' losses of held-out rows together have never been so low: keep the weights."""


@dataclass(frozen=True, slots=True)
class Settle(Message):
    """Training has ended: take the weights that were kept."""


class JointParty(EndToEndParty):
    """A silo whose encoder says its part of each row's latents, and whose decoder reads all of them."""

    def answer(self, ask: Message) -> Message:
        """Answer one message of the coordinator."""
        coder = self.coder
        if not coder.encoders or not isinstance(ask, Join | Compare | Keep | Settle):
            return super().answer(ask)
        match ask:
            case Join():
                coder.join(ask.latents)
            case Compare():
                return self._compared(ask)
            case Keep():
                coder.learner.keep()
            case Settle():
                coder.learner.settle()
        return Done()

    @torch.no_grad()
    def _compared(self, ask: Compare) -> Compared:
        self.check(ask.z_BL, self.coder.read)
        coder, z_BL = self.coder, ask.z_BL.to(self.coder.device)
        levels, scores = coder.levels[self.rows], coder.scores[self.rows]
        return Compared(float(coder.network.likelihood(z_BL, levels, scores, coder.config.weight)))


class Joint:
    """The coordinator's part of the autoencoder, J, in training."""

    def __init__(self, rows: int, latents: int, config: CoderConfig, streams: Streams, device: torch.device) -> None:
        self.config = config = sized(config, rows)
        self.rows, self.streams, self.device = rows, streams, device
        network = build(JointEncoder, latents, config.hidden, generator=streams.child("weights").torch())
        self.network = network.to(device)
        self.learner = Learner(
            self.network, rate=config.rate, steps=config.steps, schedule=config.schedule, decay=config.decay,
            clip=config.clip,
        )  # fmt: skip
        self.train_rows, self.judge_rows = held_out(rows, config.held_out, 2000, streams.child("held-out").torch())

    def descend(self, z_BL: Tensor, gradient_BL: Tensor) -> None:
        """One step against the gradient of all silos' losses in ``z_BL``."""
        self.learner.optimizer.zero_grad()
        z_BL.backward(gradient_BL.to(self.device))
        self.learner.step()


def coordinate(
    roster: Roster, config: SiloFuseConfig, streams: Streams, device: torch.device, state: dict[str, Any] | None = None
) -> Conversation[dict[str, Any]]:
    """Train; returns the coordinator's part of the model."""
    if config.coder.form != "plain":
        raise ConfigError(
            "Joint latents are normalised at the coordinator, not in silos",
            config.coder.form,
            "Leave coder.form plain.",
        )
    if config.dp.private:
        raise ConfigError("Joint training has no differential privacy", config.dp.epsilon, "Use silofuse, or no dp.")
    if state is None or "latents" not in state:
        state = yield from _gather(roster, config.coder, prepare(roster, config), streams.child("joint"), device, state)
    generator = yield from train_diffusion(config, streams, device, state)
    return {**{key: state[key] for key in ("rows", "widths")}, "generator": generator.state(training=False)}


def synthesise(
    roster: Roster, config: SiloFuseConfig, model: dict[str, Any], rows: int, streams: Streams, device: torch.device
) -> Conversation[dict[str, Table]]:
    """SiloFuse's, but that every silo reads all latents."""
    z_GL = drawn(config, model, rows, streams, device)
    return (yield from decoded(roster, config, [z_GL] * len(roster), rows, streams))


def _gather(
    roster: Roster,
    config: CoderConfig,
    opening: Message,
    streams: Streams,
    device: torch.device,
    state: dict[str, Any] | None,
) -> Conversation[dict[str, Any]]:
    """Train the autoencoder; the latents of all rows."""
    if state is None:
        replies = yield roster.everyone(opening)
        rows, widths = check_rows(replies, roster)
        yield Exchange(dict.fromkeys(roster, Join(sum(widths))), rides=True)
        state = {"rows": rows, "widths": widths, "joint": None}
    joint = Joint(state["rows"], sum(state["widths"]), config, streams, device)
    if state["joint"] is not None:
        joint.learner.restore(state["joint"])
    learner = joint.learner
    while learner.done < learner.steps:
        yield from _train_part(roster, joint, state["widths"])
        yield Progress("joint autoencoder", learner.done, learner.steps)
        yield Checkpoint({**state, "joint": learner.state()})
    yield Exchange(dict.fromkeys(roster, Settle()), rides=True)
    learner.settle()
    z_NL = yield from _latents(roster, joint)
    state = {"rows": state["rows"], "widths": state["widths"], "latents": z_NL.cpu(), "generator": None}
    yield Checkpoint(state)
    return state


def _train_part(roster: Roster, joint: Joint, widths: list[int]) -> Conversation[None]:
    """A tenth of the iterations, and what held-out rows say to them."""
    learner, streams = joint.learner, joint.streams
    length = max(1, learner.steps // PARTS)
    part = learner.done // length
    draw = streams.child("noise", part).torch(joint.device)
    order = batches(len(joint.train_rows), joint.config.batch, streams.child("rows", part).torch())
    joint.network.train()
    while learner.done < min(learner.steps, (part + 1) * length):
        yield from _iterate(roster, joint, joint.train_rows[next(order)], widths, draw)
    if joint.config.held_out:
        yield from _judge(roster, joint)


def _iterate(
    roster: Roster, joint: Joint, rows: Tensor, widths: list[int], draw: torch.Generator
) -> Conversation[None]:
    e_BL = (yield from encoded(roster, rows)).to(joint.device).requires_grad_()
    z_BL = joint.network(e_BL)
    noise = torch.randn(z_BL.shape, generator=draw, device=joint.device)
    replies = yield roster.everyone(Decode((z_BL.detach() + joint.config.sigma * noise).cpu()))
    found = [reply.gradient_BL for party in roster if isinstance(reply := replies[party], LatentGradients)]
    joint.descend(z_BL, torch.stack(found).sum(dim=0))
    assert e_BL.grad is not None
    yield descend(roster, e_BL.grad.cpu(), widths)


def _judge(roster: Roster, joint: Joint) -> Conversation[None]:
    joint.network.eval()
    z_JL = _frozen(joint, (yield from encoded(roster, joint.judge_rows)))  # in one piece: silos remember the last
    noise = torch.randn(z_JL.shape, generator=joint.streams.child("judge").torch(joint.device), device=joint.device)
    replies = yield roster.everyone(Compare((z_JL + joint.config.sigma * noise).cpu()))
    loss = sum(reply.loss for party in roster if isinstance(reply := replies[party], Compared))
    if joint.learner.judge(loss):
        yield Exchange(dict.fromkeys(roster, Keep()), rides=True)


def _latents(roster: Roster, joint: Joint) -> Conversation[Tensor]:
    """Latents (N, L) of all rows, with statistics of many batches."""
    joint.network.eval()
    found = []
    for chunk in torch.arange(joint.rows).split(_CHUNK):
        found.append(_frozen(joint, (yield from encoded(roster, chunk))))
    return torch.cat(found)


@torch.no_grad()
def _frozen(joint: Joint, e_BL: Tensor) -> Tensor:
    z_BL: Tensor = joint.network(e_BL.to(joint.device))
    return z_BL
